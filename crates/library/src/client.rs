//! The client's machine as it is, for tools that bring paths and open files of their own.

use std::sync::Arc;
use std::time::Duration;

use espalier_client::{Answer, Call};
use espalier_proto::{Caller, Errno};
use espalier_runtime::{Messages, Traced};

use crate::options::ConnectOptions;
use crate::session::{ConnectError, Credentials, Session};

/// A connection over which calls are made by inode numbers, as a kernel makes them. What has been looked up and opened is whoever calls to
/// forget and to release. It needs a runtime of tokio.
#[derive(Clone, Debug)]
pub struct Client(Arc<Session>);

impl Client {
    /// `leases`: whether it caches.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn connect(url: &str, credentials: &Credentials, leases: bool) -> Result<Self, ConnectError> {
        Ok(Self(Session::connect(url, credentials, &ConnectOptions::new(), leases).await?))
    }

    /// # Errors
    /// As the servers answer; `EIO`: the client has been closed.
    pub async fn call(&self, caller: Caller, call: Call<'_>) -> Result<Answer, Errno> {
        let told = self.0.begin_for(caller, call).await.unwrap_or(Err(Errno::EIO))?;
        if let Some(handle) = told.handle {
            handle.leave();
        }
        Ok(told.answer)
    }

    /// Forgets what it has cached.
    pub fn forget(&self) {
        self.0.cached(|sessions, _| sessions.cache().distrust());
    }

    /// What has been sent and received so far.
    pub fn messages(&self) -> Messages {
        self.0.messages()
    }

    /// As [`FileSystem::trace`](crate::FileSystem::trace).
    pub fn trace(&self, since: Option<u64>, lasting: Duration) -> Traced {
        self.0.trace(since, lasting)
    }

    /// Ends the session, and waits until the servers have been told.
    pub async fn close(self) {
        self.0.close().await;
    }
}
