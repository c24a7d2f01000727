//! A mounted file system, from the first request to the last byte written out.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use espalier_fuse::{InitFlags, Session, Transport, Wanted};
use espalier_proto::Errno;

use crate::control;
use crate::door::{FuseDoor, Mounted};
use crate::error::Error;
use crate::node::Node;
use crate::volume::Volume;
use crate::watch::{MetricsAddress, MetricsServer, Watch};

/// How a file system is mounted, apart from how its store is opened.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Flags and options for the kernel.
    pub kernel: espalier_fuse::MountOptions,
    /// At most so many threads serve requests.
    pub threads: usize,
    /// How requests come from the kernel; by itself the fastest that can be had.
    pub transport: Option<Transport>,
    /// How long unmounting may take to write out what has not been written.
    pub drain: Duration,
    /// Where figures are served for Prometheus, if they are.
    pub metrics: Option<MetricsAddress>,
    /// How long an operation may take without being logged as slow; `None`: as long as it likes.
    pub slow: Option<Duration>,
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
    let failed = |error| Error::Mount { mountpoint: mountpoint.into(), source: error };
    espalier_fuse::detach_dead(mountpoint).map_err(|source| Error::Io {
        what: format!("cannot remove a dead mount from {}", mountpoint.display()),
        source,
    })?;
    // Before mounting, so that nothing is left behind if the address is taken.
    let metrics = options.metrics.as_ref().map(MetricsServer::bind).transpose()?;
    let name = source.to_string_lossy();
    let mut kernel = options.kernel.clone();
    let mut wanted = wanted(&kernel, options.transport);
    let mut session = Session::mount(&name, mountpoint, &kernel, &wanted).map_err(failed)?;
    if !session.granted().epoch && !kernel.default_permissions {
        // Without epochs the kernel cannot be told to distrust names that a caller may not look up any more: let it
        // check permissions itself.
        drop(session);
        kernel.default_permissions = true;
        wanted.flags |= InitFlags::POSIX_ACL;
        session = Session::mount(&name, mountpoint, &kernel, &wanted).map_err(failed)?;
    }
    let door = FuseDoor::new(kernel.default_permissions, volume.meta.atime(), session.granted());
    match session.notifier(NOTIFICATIONS) {
        Ok(notifier) => door.set_notifier(notifier),
        Err(source) => {
            return Err(Error::Io { what: "cannot start the thread for notifications".into(), source });
        }
    }
    let Volume { disk, meta, superblock, .. } = volume;
    let watch = Watch::new(options.threads, options.slow);
    let (node, background) = Node::new(meta, disk, door, watch);
    let node = Arc::new(node);
    let listener = control::Listener::bind(source, session.mountpoint(), &superblock, session.granted());

    std::thread::scope(|scope| {
        let (stop_clock, stopped) = channel::<()>();
        scope.spawn(|| node.run_background(background));
        scope.spawn({
            let node = &node;
            move || {
                node.tick();
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
                    node.tick();
                }
            }
        });
        if let Some(metrics) = &metrics {
            scope.spawn(|| metrics.serve(|| node.exposition()));
        }
        let served = listener.as_ref().map(|listener| scope.spawn(|| listener.serve(&node)));
        ready();
        let outcome = session.run(
            options.threads,
            // What the kernel writes itself is not synced as the option `sync` says.
            Arc::new(Mounted {
                calls: Arc::clone(&node),
                may_pass_through: !node.errands.disk.sync,
                transport: options.transport,
            }),
        );
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

/// What is asked of the kernel at the first message.
pub fn wanted(kernel: &espalier_fuse::MountOptions, transport: Option<Transport>) -> Wanted {
    let mut flags = InitFlags::ASYNC_READ
        | InitFlags::DONT_MASK
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::PASSTHROUGH
        | InitFlags::DIRECT_IO_ALLOW_MMAP;
    // A kernel that checks permissions must know the access control lists.
    flags.set(InitFlags::POSIX_ACL, kernel.default_permissions);
    flags.set(InitFlags::OVER_IO_URING, transport != Some(Transport::Queues));
    Wanted { flags, ..Wanted::default() }
}
