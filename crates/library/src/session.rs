//! The client's session, shared by all handles of a file system.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use espalier_client::{Answer, Cache, Call, Sessions, Users};
use espalier_net::{ConnectError as NetConnectError, Limits, Security, SecurityError};
use espalier_proto::{Accesses, Caller, ClientId, Errno, Ino, Request};
use espalier_runtime::{Called, Calls, Conversation, Messages, Remote, Servers, Traced, keep_connected};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::frontend::{Completion, LibraryFrontend, Ticket};
use crate::options::ConnectOptions;

/// Maximum number of cached inodes, and of names: about 20 MiB, and up to 64 MiB of file contents.
const CACHED: usize = 1 << 16;
/// Interval of the client's timer, which reports forgotten inodes to servers.
const TICK: Duration = Duration::from_millis(200);

/// The credentials of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A directory with `ca.pem`, `certificate.pem` and `key.pem`, created by `espalier cluster
    /// init` or `espalier cluster client`.
    Directory(PathBuf),
    /// No TLS, for trials on one machine: the traffic can be read and changed by others.
    Insecure,
}

/// The user on whose behalf a program acts. The server trusts this as far as the certificate
/// permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files and directories do not get.
    pub umask: u32,
}

impl User {
    /// The effective user and groups of the process, and umask 022.
    pub fn current() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
            umask: 0o022,
        }
    }
}

/// Why a connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Url(#[from] espalier_runtime::UrlError),
    #[error(transparent)]
    Credentials(#[from] SecurityError),
    #[error(transparent)]
    Server(#[from] NetConnectError),
    #[error("cannot read the server's root directory: {0}")]
    Root(Errno),
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
    #[error("the system has no random numbers: {0}")]
    Random(std::io::Error),
}

/// See the module's documentation.
pub(crate) struct Session {
    remote: Arc<Remote<LibraryFrontend>>,
    caller: Caller,
    umask: u32,
    next: AtomicU64,
    root_requested: AtomicU64,
    is_closed: AtomicBool,
    /// The background task; it ends when the sender is dropped.
    serving: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// An open file; dropping it closes the file.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) session: Weak<Session>,
    pub(crate) ino: Ino,
}

impl Handle {
    /// Leaves the file open; someone else closes it.
    pub(crate) fn leave(mut self) {
        self.session = Weak::new();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            // No one waits for the answer.
            drop(session.begin(Call::Release { ino: self.ino }));
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) async fn connect(
        url: &str,
        credentials: &Credentials,
        options: &ConnectOptions,
        leases: bool,
    ) -> Result<Arc<Self>, ConnectError> {
        let addresses = Servers::addresses(url)?;
        let security = match credentials {
            Credentials::Insecure => Security::Insecure,
            Credentials::Directory(dir) => Security::load_from(dir)?,
        };
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| ConnectError::Random(errno.into()))?;
        let client = ClientId(u64::from_ne_bytes(number));
        let (limits, accesses) = (Limits::default(), Accesses::All);
        let servers = Servers { addresses, security, limits, client, leases, accesses, data_pool: None };
        let first = servers.reach().await?;
        let frontend = LibraryFrontend { uses_writeback: options.writeback };
        let remote = Remote::new(frontend, Cache::new(CACHED, Users::AtOnce), &servers, &first.0, None);
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve(Arc::clone(&remote), servers, first, stopped));
        let User { uid, gid, groups, umask } = options.user.clone();
        let session = Arc::new(Self {
            remote,
            caller: Caller { uid, gid, pid: std::process::id(), groups: Some(groups.into()) },
            umask,
            next: AtomicU64::new(1),
            root_requested: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            serving: Mutex::new(Some((stop, serving))),
        });
        session.ask(Request::GetAttr { ino: Ino::ROOT }).await.map_err(ConnectError::Root)?;
        Ok(session)
    }

    pub(crate) fn cached<R>(&self, look: impl FnOnce(&mut Sessions<Called<Ticket>>, u64) -> R) -> Option<R> {
        self.remote.cached(look)
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn umask(&self) -> u32 {
        self.umask
    }

    pub(crate) fn messages(&self) -> Messages {
        self.remote.messages()
    }

    pub(crate) fn trace(&self, since: Option<u64>, lasting: Duration) -> Traced {
        self.remote.tracer().report(since, lasting)
    }

    /// Starts a call. It continues if the receiver is dropped.
    pub(crate) fn begin(self: &Arc<Self>, call: Call<'_>) -> oneshot::Receiver<Result<Completion, Errno>> {
        self.begin_for(self.caller.clone(), call)
    }

    pub(crate) fn begin_for(
        self: &Arc<Self>,
        caller: Caller,
        call: Call<'_>,
    ) -> oneshot::Receiver<Result<Completion, Errno>> {
        let (completion, answer) = oneshot::channel();
        if !self.is_closed.load(Ordering::Relaxed) {
            let ticket = Ticket { session: Arc::downgrade(self), completion };
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            self.remote.call(id, caller, call, ticket);
        }
        answer
    }

    pub(crate) async fn call(self: &Arc<Self>, call: Call<'_>) -> Result<Completion, Errno> {
        self.begin(call).await.unwrap_or(Err(Errno::EIO))
    }

    pub(crate) async fn request(self: &Arc<Self>, request: Request) -> Result<Completion, Errno> {
        self.call(Call::Request(request)).await
    }

    /// As [`Self::request`], for a request that opens nothing.
    pub(crate) async fn ask(self: &Arc<Self>, request: Request) -> Result<Answer, Errno> {
        Ok(self.request(request).await?.answer)
    }

    /// Rate limit for renewals of the root's lease, in ms: returns true to one caller per period.
    pub(crate) fn may_ask_for_root(&self, now: u64) -> bool {
        const PAUSE: u64 = 100;
        let requested = self.root_requested.load(Ordering::Relaxed);
        now >= requested + PAUSE
            && self
                .root_requested
                .compare_exchange(requested, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Ends the session and waits until the server knows.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, serving)) = serving {
            drop(stop);
            let _ = serving.await;
        }
    }
}

/// Serves the connections until the session is stopped, and then ends it at the servers.
async fn serve(
    remote: Arc<Remote<LibraryFrontend>>,
    servers: Servers,
    first: Conversation,
    stopped: oneshot::Receiver<()>,
) {
    let ticks = async {
        let mut interval = tokio::time::interval(TICK);
        loop {
            interval.tick().await;
            remote.tick();
        }
    };
    // The end of the session needs the connections that the other branch serves.
    let close = async {
        let _ = stopped.await;
        remote.close().await;
    };
    tokio::select! {
        () = keep_connected(Arc::clone(&remote), servers, first) => {}
        () = ticks => {}
        () = close => {}
    }
}
