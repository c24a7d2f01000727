//! How a program connects.

use crate::file_system::FileSystem;
use crate::session::{ConnectError, Credentials, Session, User};

/// How a program connects, where that is to be otherwise than by [`FileSystem::connect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) user: User,
    pub(crate) early: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectOptions {
    /// As the user of this process, and not early.
    pub fn new() -> Self {
        Self { user: User::current(), early: false }
    }

    /// As another user, which the server's configuration may forbid.
    pub fn user(&mut self, user: User) -> &mut Self {
        self.user = user;
        self
    }

    /// In a directory that no other client knows, making and removing files and writing to new ones is answered at once, while the server
    /// does it. What cannot be done then is an error of the next [`FileSystem::sync_all`] or [`File::sync_all`](crate::File::sync_all). The client
    /// ends with the program: unless that closes the file system, or has synced, its last 64 changes may not be done when it ends.
    pub fn early(&mut self, early: bool) -> &mut Self {
        self.early = early;
        self
    }

    /// # Errors
    /// As [`FileSystem::connect`].
    pub async fn connect(&self, url: &str, credentials: &Credentials) -> Result<FileSystem, ConnectError> {
        Ok(FileSystem(Session::connect(url, credentials, self, true).await?))
    }
}
