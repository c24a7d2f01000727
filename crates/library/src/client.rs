//! Low-level access to the client for tools that manage paths and open files themselves.

use std::sync::Arc;
use std::time::Duration;

use espalier_client::{Answer, Call};
use espalier_proto::{Caller, Errno};
use espalier_runtime::{Messages, Traced};

use crate::options::ConnectOptions;
use crate::session::{ConnectError, Credentials, Session};

/// A connection for calls by inode number, as a kernel makes them. The caller must forget what it
/// looks up and release what it opens. It needs a tokio runtime.
#[derive(Clone, Debug)]
pub struct Client(Arc<Session>);

impl Client {
    /// `leases`: whether the client caches.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn connect(url: &str, credentials: &Credentials, leases: bool) -> Result<Self, ConnectError> {
        Ok(Self(Session::connect(url, credentials, &ConnectOptions::new(), leases).await?))
    }

    /// # Errors
    /// The server's error; `EIO` if the client is closed.
    pub async fn call(&self, caller: Caller, call: Call<'_>) -> Result<Answer, Errno> {
        let completion = self.0.begin_for(caller, call).await.unwrap_or(Err(Errno::EIO))?;
        if let Some(handle) = completion.handle {
            handle.leave();
        }
        Ok(completion.answer)
    }

    /// Drops all cached entries.
    pub fn forget(&self) {
        self.0.cached(|sessions, _| sessions.cache().distrust());
    }

    /// Counts of messages sent and received.
    pub fn messages(&self) -> Messages {
        self.0.messages()
    }

    /// As [`FileSystem::trace`](crate::FileSystem::trace).
    pub fn trace(&self, since: Option<u64>, lasting: Duration) -> Traced {
        self.0.trace(since, lasting)
    }

    /// Ends the session and waits until the servers know.
    pub async fn close(self) {
        self.0.close().await;
    }
}
