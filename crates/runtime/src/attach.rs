//! A mount of a cluster's file system: forwards the kernel's requests to servers.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_client::{Cache, Sessions, Users};
use espalier_fuse::Threads;
use espalier_meta::Atime;

use crate::calls::Calls;
use crate::control::{self, MountStatus};
use crate::error::Error;
use crate::frontend::{FuseFrontend, Mounted};
use crate::mount::{MountOptions, name_of, set_notifiers, start_session};
use crate::record::Recorder;
use crate::remote::Remote;
use crate::servers::{Servers, keep_connected};

/// Interval of the client's timer, for queued notifications and delayed revocations.
const TICK: Duration = Duration::from_millis(50);
/// Maximum number of cached inodes, and of names; with up to 256 MiB of file contents about 350
/// MiB.
const CACHED: usize = 1 << 18;

/// Maximum number of calls that wait for servers over io_uring, each with a thread and an open
/// file. Most wait for locks.
pub const WAITING_MAX: usize = 1024;

/// Mounts and serves until it is unmounted. `ready` is called when the mount point is usable.
pub fn mount_servers(
    servers: &Servers,
    source: &str,
    mountpoint: &Path,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    // A single task receives; another thread would only be woken for nothing.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|source| Error::Io { context: "cannot start threads".into(), source })?;
    // Before mounting, so that a refused connection is reported.
    let first = runtime.block_on(servers.reach())?;
    let pool = servers.open_data_pool(&first.0)?;
    let recorder = options.record.as_deref().map(Recorder::start).transpose()?;
    let mut session = start_session(source, mountpoint, options, true)?;
    let frontend = FuseFrontend::new(Atime::Relative, options.ttl, session.granted());
    set_notifiers(&mut session, &frontend)?;
    recorder.into_iter().for_each(|recorder| frontend.set_recorder(recorder));
    let remote = {
        let _entered = runtime.enter();
        Remote::new(frontend, Cache::new(CACHED, Users::Report), servers, &first.0, pool)
    };
    runtime.spawn(keep_connected(Arc::clone(&remote), servers.clone(), first));
    runtime.spawn({
        let remote = Arc::clone(&remote);
        async move {
            let mut interval = tokio::time::interval(TICK);
            loop {
                interval.tick().await;
                remote.tick();
                remote.frontend().tick();
                remote.frontend().look_after_signals(&*remote);
            }
        }
    });
    let status_source = Mount {
        remote: Arc::clone(&remote),
        url: source.into(),
        mountpoint: session.mountpoint().into(),
        fuse: format!("7.{}", session.granted().minor),
    };
    let listener = control::Listener::of_mount(session.mountpoint());
    ready();
    let mounted = Mounted {
        calls: Arc::clone(&remote),
        may_pass_through: false,
        is_shared: true,
        transport: options.transport,
    };
    // With device queues, no thread waits for a server, so few suffice. With io_uring each
    // unanswered call holds one.
    let cpus = std::thread::available_parallelism().map_or(2, NonZero::get).max(2);
    let threads =
        Threads { device: options.threads.min(cpus), rings: options.threads, rings_max: WAITING_MAX };
    let outcome = std::thread::scope(|scope| {
        let served = listener
            .as_ref()
            .map(|listener| scope.spawn(|| listener.serve(|words| status_source.answer(words))));
        let outcome = session.run(threads, Arc::new(mounted));
        if let (Some(listener), Some(served)) = (&listener, served) {
            listener.stop();
            let _ = served.join();
        }
        outcome
    });
    remote.frontend().finish_recording();
    runtime.block_on(remote.close());
    runtime.shutdown_background();
    Ok(outcome?)
}

/// Answers status queries of a mount.
struct Mount {
    remote: Arc<Remote<FuseFrontend>>,
    url: String,
    mountpoint: PathBuf,
    fuse: String,
}

impl Mount {
    fn answer(&self, words: &[&str]) -> serde_json::Result<String> {
        match words {
            ["status"] => serde_json::to_string(&self.status()),
            ["trace", since, millis] => control::answer_trace(self.remote.tracer(), since, millis),
            _ => control::refused("use `espalier top` on the server's store: this is a mount of a server"),
        }
    }

    fn status(&self) -> MountStatus {
        let ranks = self.remote.sessions();
        let counts = |sessions: &mut Sessions<_>, _| {
            (sessions.cache().counts(), sessions.fragment_counts(), sessions.walk_counts())
        };
        let (cache, fragments, walks) = self.remote.cached(counts).unwrap_or_default();
        MountStatus {
            url: self.url.clone(),
            mountpoint: self.mountpoint.clone(),
            pid: std::process::id(),
            transport: self.remote.frontend().transport().map(name_of).unwrap_or_default().into(),
            fuse: self.fuse.clone(),
            connected: ranks.iter().all(|session| session.connected),
            waiting: ranks.iter().map(|session| session.waiting).sum(),
            ranks,
            messages: self.remote.messages(),
            asked: self.remote.asked(),
            cache_hits: cache.hits,
            cache_inodes: cache.inodes,
            cache_names: cache.names,
            partitioned_directories: fragments.directories,
            redirects: fragments.redirects,
            pages_ahead: walks.requested,
            pages_ahead_read: walks.read,
        }
    }
}
