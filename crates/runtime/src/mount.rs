//! A mount of an embedded file system, from start to clean shutdown.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use espalier_fuse::{InitFlags, Session, Transport, Wanted};
use espalier_meta::LoadReport;
use espalier_proto::{Errno, Ino};

use crate::calls::Calls;
use crate::control::{self, Status, StatusSource};
use crate::error::Error;
use crate::frontend::{FuseFrontend, Mounted, Notifiers};
use crate::migrate::MigrationStatus;
use crate::migrate_mounted::{MigrationRequest, MountedStore};
use crate::node::Node;
use crate::record::Recorder;
use crate::tracer::Tracer;
use crate::volume::Volume;
use crate::watch::{MachineFigures, MetricsAddress, MetricsServer, Watch};

/// Mount options, except those of the store.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Options and flags for the kernel.
    pub kernel: espalier_fuse::MountOptions,
    /// Maximum number of threads that serve requests.
    pub threads: usize,
    /// The transport of requests; `None`: the fastest available.
    pub transport: Option<Transport>,
    /// Locks on files of a server are local to this machine.
    pub local_locks: bool,
    /// For mounts of servers: the kernel caches names and attributes for this time without
    /// coherence, and no bytes. `None`: it caches under leases.
    pub ttl: Option<Duration>,
    /// Time limit for writing out at unmount.
    pub drain: Duration,
    /// Address of the metrics for Prometheus.
    pub metrics: Option<MetricsAddress>,
    /// Duration from which on an operation is logged as slow; `None`: never.
    pub slow: Option<Duration>,
    /// A new file that records the calls for a replay.
    pub record: Option<PathBuf>,
}

/// Maximum number of queued notifications.
const NOTIFICATIONS: usize = 8192;

/// Mounts a volume and serves it until it is unmounted. `ready` is called when the mount point is
/// usable.
pub fn mount(
    volume: Volume,
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    volume.require_whole(source)?;
    // Before mounting, so that an address in use leaves nothing behind.
    let metrics = options.metrics.as_ref().map(MetricsServer::bind).transpose()?;
    let recorder = options.record.as_deref().map(Recorder::start).transpose()?;
    let name = source.to_string_lossy();
    let mut session = start_session(&name, mountpoint, options, false)?;
    let frontend = FuseFrontend::new(volume.meta.atime(), None, session.granted());
    set_notifiers(&mut session, &frontend)?;
    let is_recorded = recorder.is_some();
    recorder.into_iter().for_each(|recorder| frontend.set_recorder(recorder));
    let Volume { disk, meta, superblock, .. } = volume;
    let watch = Watch::new(options.threads, options.slow);
    let (node, background) = Node::new(meta, disk, frontend, watch);
    let node = Arc::new(node);
    let listener = control::Listener::of_store(source);
    let (moved, arrivals) = channel();
    let device = mounted_on(session.mountpoint());
    let store = MountedStore::new(source, superblock.clone(), Arc::clone(&node), device, moved);
    let status_source = Mount {
        store: Arc::new(store),
        node: Arc::clone(&node),
        mountpoint: session.mountpoint().into(),
        device,
        passthrough: session.granted().flags.contains(InitFlags::PASSTHROUGH),
        fuse: format!("7.{}", session.granted().minor),
    };

    std::thread::scope(|scope| {
        let (stop_clock, stopped) = channel::<()>();
        scope.spawn(|| node.run_background(background));
        scope.spawn({
            let node = &node;
            move || {
                node.tick();
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
                    node.tick();
                    node.frontend().look_after_signals(&**node);
                }
            }
        });
        if let Some(metrics) = &metrics {
            scope.spawn(|| metrics.serve(|path| (path == "/metrics").then(|| node.exposition())));
        }
        let served = listener.as_ref().map(|listener| {
            scope.spawn(|| listener.serve(|words| control::answer(&superblock, &status_source, words)))
        });
        // After a migration it also answers at its new store.
        let arrived = scope.spawn({
            let (superblock, status_source) = (&superblock, &status_source);
            move || {
                let listeners =
                    arrivals.iter().filter_map(|name: PathBuf| control::Listener::of_store(&name));
                let serve = |listener: control::Listener| {
                    let listener = Arc::new(listener);
                    let served = Arc::clone(&listener);
                    let answer = |words: &[&str]| control::answer(superblock, status_source, words);
                    scope.spawn(move || served.serve(answer));
                    listener
                };
                listeners.map(serve).collect::<Vec<_>>()
            }
        });
        ready();
        let outcome = session.run(
            options.threads,
            // Passthrough writes would bypass the option `sync` and the recording.
            Arc::new(Mounted {
                calls: Arc::clone(&node),
                may_pass_through: !node.background_work.disk.sync && !is_recorded,
                is_shared: false,
                transport: options.transport,
            }),
        );
        node.frontend().finish_recording();
        status_source.store.close();
        if let Some(sync_point) = node.background_work.disk.sync_point() {
            sync_point.close();
        }
        let drained = node.drain(options.drain);
        drop(stop_clock);
        node.background_work.stop();
        if let (Some(listener), Some(served)) = (&listener, served) {
            listener.stop();
            let _ = served.join();
        }
        if let Ok(listeners) = arrived.join() {
            listeners.iter().for_each(|listener| listener.stop());
        }
        if let Some(metrics) = &metrics {
            metrics.stop();
        }
        outcome?;
        if drained { Ok(()) } else { Err(Error::Unwritten(node.state().1.unwrap_or(Errno::EIO))) }
    })
}

/// Mounts and prepares to serve requests. `is_shared`: other clients may change what the kernel
/// caches.
pub(crate) fn start_session(
    name: &str,
    mountpoint: &Path,
    options: &MountOptions,
    is_shared: bool,
) -> Result<Session, Error> {
    let failed = |error| Error::Mount { mountpoint: mountpoint.into(), source: error };
    espalier_fuse::detach_dead(mountpoint).map_err(|source| Error::Io {
        context: format!("cannot remove a dead mount from {}", mountpoint.display()),
        source,
    })?;
    // The kernel's cached names are valid for every caller, so the kernel must check search
    // permission.
    let kernel = espalier_fuse::MountOptions { default_permissions: true, ..options.kernel.clone() };
    let mut wanted = wanted(options.transport);
    if is_shared {
        // The streams are on other machines.
        wanted.flags.remove(InitFlags::PASSTHROUGH);
        // With leases the kernel is notified of changes; this flag would also make it drop its own
        // writes.
        wanted.flags.set(InitFlags::AUTO_INVAL_DATA, options.ttl.is_some());
        wanted.flags.set(InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS, !options.local_locks);
    }
    let session = Session::mount(name, mountpoint, &kernel, &wanted).map_err(failed)?;
    if is_shared {
        read_further_ahead(session.mountpoint());
    }
    Ok(session)
}

/// Increases the kernel's readahead for remote files from 128 KiB. FUSE file systems can do this
/// only through sysfs, as root.
fn read_further_ahead(mountpoint: &Path) {
    const KIB: u32 = 1024;
    let Some(device) = mounted_on(mountpoint) else { return };
    let setting = format!("/sys/class/bdi/0:{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, KIB.to_string()) {
        tracing::debug!(%error, "cannot set {setting}");
    }
}

pub(crate) fn set_notifiers(session: &mut Session, frontend: &FuseFrontend) -> Result<(), Error> {
    let mut start = || {
        let failed = |source| Error::Io { context: "cannot start a thread for notifications".into(), source };
        session.notifier(NOTIFICATIONS).map_err(failed)
    };
    frontend.set_notifiers(Notifiers { names: start()?, inodes: start()? });
    Ok(())
}

/// Answers status queries of a mount.
struct Mount {
    store: Arc<MountedStore>,
    node: Arc<Node<FuseFrontend>>,
    mountpoint: PathBuf,
    /// The device number of this mount at the mount point.
    device: Option<u32>,
    passthrough: bool,
    fuse: String,
}

impl StatusSource for Mount {
    fn state(&self) -> (u64, Option<Errno>) {
        self.node.state()
    }

    fn figures(&self) -> MachineFigures {
        self.node.figures()
    }

    fn load(&self, most: usize) -> Option<LoadReport> {
        self.node.load(most)
    }

    fn watch(&self) -> &Watch {
        &self.node.background_work.watch
    }

    fn tracer(&self) -> &Tracer {
        &self.node.background_work.tracer
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.node.path_of(ino)
    }

    fn migrate(&self, request: MigrationRequest) -> Result<(), String> {
        self.store.migrate(&request)
    }

    fn migration(&self) -> Option<MigrationStatus> {
        self.store.migration()
    }

    fn stop_migration(&self) {
        self.store.stop();
    }

    fn complete(&self, status: &mut Status) {
        status.moved_to = self.store.moved_to();
        status.pools = self.node.background_work.disk.pools();
        let is_mounted = mounted_on(&self.mountpoint) == self.device;
        status.mountpoint = is_mounted.then(|| self.mountpoint.clone());
        status.passthrough = Some(self.passthrough && !self.node.background_work.disk.sync);
        status.fuse = Some(self.fuse.clone());
        status.transport = self.node.frontend().transport().map(|transport| name_of(transport).into());
    }
}

/// The name of a transport for users.
pub(crate) fn name_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Uring => "uring",
        Transport::Queues => "queues",
    }
}

fn mounted_on(mountpoint: &Path) -> Option<u32> {
    espalier_fuse::mounted_device(mountpoint).ok().flatten()
}

/// The features requested from the kernel at initialization.
pub fn wanted(transport: Option<Transport>) -> Wanted {
    let mut flags = InitFlags::ASYNC_READ
        | InitFlags::DONT_MASK
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::PASSTHROUGH
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::HAS_EXPIRE_ONLY
        | InitFlags::POSIX_ACL;
    flags.set(InitFlags::OVER_IO_URING, transport != Some(Transport::Queues));
    Wanted { flags, ..Wanted::default() }
}
