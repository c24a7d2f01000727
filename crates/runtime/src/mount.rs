//! A mounted file system, from the first request to the last byte written out.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use espalier_fuse::{InitFlags, Session, Transport, Wanted};
use espalier_proto::{Errno, Ino};

use crate::calls::Calls;
use crate::control::{self, Status, Told};
use crate::door::{FuseDoor, Mounted, Notifiers};
use crate::error::Error;
use crate::node::Node;
use crate::record::Recorder;
use crate::tracer::Tracer;
use crate::volume::Volume;
use crate::watch::{MachineFigures, MetricsAddress, MetricsServer, Watch};

/// How a file system is mounted, apart from how its store is opened.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Flags and options for the kernel.
    pub kernel: espalier_fuse::MountOptions,
    /// At most so many threads serve requests.
    pub threads: usize,
    /// How requests come from the kernel; by itself the fastest that can be had.
    pub transport: Option<Transport>,
    /// Locks on files are the kernel's own business even if they are a server's: those on other machines do not see them.
    pub local_locks: bool,
    /// Of a server's: the kernel caches names and attributes for so long, whatever becomes of them meanwhile, and bytes not at all.
    /// `None`: it caches under leases.
    pub ttl: Option<Duration>,
    /// How long unmounting may take to write out what has not been written.
    pub drain: Duration,
    /// Where figures are served for Prometheus, if they are.
    pub metrics: Option<MetricsAddress>,
    /// How long an operation may take without being logged as slow; `None`: as long as it likes.
    pub slow: Option<Duration>,
    /// A new file in which calls are recorded, to be replayed.
    pub record: Option<PathBuf>,
}

/// Notifications to the kernel that may be under way.
const NOTIFICATIONS: usize = 8192;

/// Mounts and serves until somebody unmounts. `ready` is called once the mount point is usable.
pub fn mount(
    volume: Volume,
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    volume.require_whole(source)?;
    // Before mounting, so that nothing is left behind if the address is taken.
    let metrics = options.metrics.as_ref().map(MetricsServer::bind).transpose()?;
    let recorder = options.record.as_deref().map(Recorder::start).transpose()?;
    let name = source.to_string_lossy();
    let mut session = start_session(&name, mountpoint, options, false)?;
    let door = FuseDoor::new(volume.meta.atime(), None, session.granted());
    set_notifiers(&mut session, &door)?;
    let is_recorded = recorder.is_some();
    recorder.into_iter().for_each(|recorder| door.set_recorder(recorder));
    let Volume { disk, meta, superblock, .. } = volume;
    let watch = Watch::new(options.threads, options.slow);
    let (node, background) = Node::new(meta, disk, door, watch);
    let node = Arc::new(node);
    let listener = control::Listener::of_store(source);
    let told = Mount {
        node: Arc::clone(&node),
        mountpoint: session.mountpoint().into(),
        device: mounted_on(session.mountpoint()),
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
                    node.door().look_after_signals(&**node);
                }
            }
        });
        if let Some(metrics) = &metrics {
            scope.spawn(|| metrics.serve(|path| (path == "/metrics").then(|| node.exposition())));
        }
        let served = listener.as_ref().map(|listener| {
            scope.spawn(|| listener.serve(|words| control::answer(&superblock, &told, words)))
        });
        ready();
        let outcome = session.run(
            options.threads,
            // What the kernel writes itself is not synced as the option `sync` says, and not recorded.
            Arc::new(Mounted {
                calls: Arc::clone(&node),
                may_pass_through: !node.errands.disk.sync && !is_recorded,
                is_shared: false,
                transport: options.transport,
            }),
        );
        node.door().finish_recording();
        let drained = node.drain(options.drain);
        drop(stop_clock);
        node.errands.stop();
        if let (Some(listener), Some(served)) = (&listener, served) {
            listener.stop();
            let _ = served.join();
        }
        if let Some(metrics) = &metrics {
            metrics.stop();
        }
        outcome?;
        if drained { Ok(()) } else { Err(Error::Unwritten(node.state().1.unwrap_or(Errno::EIO))) }
    })
}

/// Mounts, for requests to be served. `is_shared`: others may change what the kernel
/// caches.
pub(crate) fn start_session(
    name: &str,
    mountpoint: &Path,
    options: &MountOptions,
    is_shared: bool,
) -> Result<Session, Error> {
    let failed = |error| Error::Mount { mountpoint: mountpoint.into(), source: error };
    espalier_fuse::detach_dead(mountpoint).map_err(|source| Error::Io {
        what: format!("cannot remove a dead mount from {}", mountpoint.display()),
        source,
    })?;
    // Names that the kernel has cached are good for every caller, so it must check who may search a directory.
    let kernel = espalier_fuse::MountOptions { default_permissions: true, ..options.kernel.clone() };
    let mut wanted = wanted(options.transport);
    if is_shared {
        // Streams are on other machines.
        wanted.flags.remove(InitFlags::PASSTHROUGH);
        // With leases the kernel is told what to drop. With this it would drop what it writes itself, too.
        wanted.flags.set(InitFlags::AUTO_INVAL_DATA, options.ttl.is_some());
        wanted.flags.set(InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS, !options.local_locks);
    }
    let session = Session::mount(name, mountpoint, &kernel, &wanted).map_err(failed)?;
    if is_shared {
        read_further_ahead(session.mountpoint());
    }
    Ok(session)
}

/// What comes from other machines takes a while. A kernel by itself reads no more than 128 KiB ahead of who reads a file from its beginning on,
/// and lets no file system of this kind have more but by this setting, which is root's.
fn read_further_ahead(mountpoint: &Path) {
    const KIB: u32 = 1024;
    let Some(device) = mounted_on(mountpoint) else { return };
    let setting = format!("/sys/class/bdi/0:{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, KIB.to_string()) {
        tracing::debug!(%error, "cannot set {setting}");
    }
}

pub(crate) fn set_notifiers(session: &mut Session, door: &FuseDoor) -> Result<(), Error> {
    let mut start = || {
        let failed = |source| Error::Io { what: "cannot start a thread for notifications".into(), source };
        session.notifier(NOTIFICATIONS).map_err(failed)
    };
    door.set_notifiers(Notifiers { names: start()?, inodes: start()? });
    Ok(())
}

/// What tells how the file system is.
struct Mount {
    node: Arc<Node<FuseDoor>>,
    mountpoint: PathBuf,
    /// What is mounted on the mount point while this file system is.
    device: Option<u32>,
    passthrough: bool,
    fuse: String,
}

impl Told for Mount {
    fn state(&self) -> (u64, Option<Errno>) {
        self.node.state()
    }

    fn figures(&self) -> MachineFigures {
        self.node.figures()
    }

    fn watch(&self) -> &Watch {
        &self.node.errands.watch
    }

    fn tracer(&self) -> &Tracer {
        &self.node.errands.tracer
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.node.path_of(ino)
    }

    fn complete(&self, status: &mut Status) {
        let is_mounted = mounted_on(&self.mountpoint) == self.device;
        status.mountpoint = is_mounted.then(|| self.mountpoint.clone());
        status.passthrough = Some(self.passthrough && !self.node.errands.disk.sync);
        status.fuse = Some(self.fuse.clone());
        status.transport = self.node.door().transport().map(|transport| name_of(transport).into());
    }
}

/// As it is told to people.
pub(crate) fn name_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Uring => "uring",
        Transport::Queues => "queues",
    }
}

fn mounted_on(mountpoint: &Path) -> Option<u32> {
    espalier_fuse::mounted_device(mountpoint).ok().flatten()
}

/// What is asked of the kernel at the first message.
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
