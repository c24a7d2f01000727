//! Connection options.

use crate::file_system::FileSystem;
use crate::session::{ConnectError, Credentials, Session, User};

/// Options for a connection; [`FileSystem::connect`] uses the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) user: User,
    pub(crate) writeback: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectOptions {
    /// The user of this process, without write-back.
    pub fn new() -> Self {
        Self { user: User::current(), writeback: false }
    }

    /// Acts as another user. The server's configuration may forbid it.
    pub fn user(&mut self, user: User) -> &mut Self {
        self.user = user;
        self
    }

    /// Enables write-back: creates, removals and writes to new files in a directory that no other
    /// client knows are acknowledged before the server applies them. The next
    /// [`FileSystem::sync_all`] or [`File::sync_all`](crate::File::sync_all) reports an operation
    /// that failed. The last 64 operations may be lost if the program ends without `sync_all` or
    /// [`FileSystem::close`].
    pub fn writeback(&mut self, writeback: bool) -> &mut Self {
        self.writeback = writeback;
        self
    }

    /// # Errors
    /// As [`FileSystem::connect`].
    pub async fn connect(&self, url: &str, credentials: &Credentials) -> Result<FileSystem, ConnectError> {
        Ok(FileSystem(Session::connect(url, credentials, self, true).await?))
    }
}
