//! The life of a mount: INIT, then the serving threads.

use crate::abi::{self, InitFlags, Opcode};
use crate::channel::{Channel, Received};
use crate::mount::{self, MountError, MountOptions};
use crate::notify::Notifier;
use crate::reply::{Reply, ReplyDestination};
use crate::request::{Init, Op, Request};
use crate::ring::{self, Ring};
use crate::serve::{RINGS_MAX, serve};
use crate::slot::Slots;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file system, as the kernel uses it.
pub trait Filesystem: Send + Sync + 'static {
    /// Called once, before the first request.
    fn init(&self, granted: &Granted) {
        let _ = granted;
    }

    /// Handles a request, on one of several threads. The request borrows the thread's buffer; the
    /// reply may outlive the call and be sent from any thread.
    fn request(&self, request: Request<'_>, reply: Reply);

    /// Called once, after the last request.
    fn destroy(&self) {}
}

/// Features to request from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Used as far as the kernel offers them.
    pub flags: InitFlags,
    /// Maximum size of a WRITE or READ, rounded up to pages.
    pub max_write: u32,
    pub max_readahead: u32,
    /// Maximum number of readahead and asynchronous requests in progress.
    pub max_background: u16,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            flags: InitFlags::ASYNC_READ
                | InitFlags::DO_READDIRPLUS
                | InitFlags::READDIRPLUS_AUTO
                | InitFlags::PARALLEL_DIROPS,
            max_write: 1 << 20,
            max_readahead: u32::MAX,
            max_background: 64,
        }
    }
}

/// The negotiated features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The protocol version is 7.`minor`.
    pub minor: u32,
    pub flags: InitFlags,
    pub max_write: u32,
    pub max_readahead: u32,
    /// [`Notifier::inc_epoch`] is available.
    pub epoch: bool,
    /// [`Notifier::prune`] is available.
    pub prune: bool,
    /// A write through an opening with [`OpenedFlags::DIRECT_IO`](crate::OpenedFlags) removes its
    /// range from the page cache, so it is visible to other openings.
    pub coherent_direct_writes: bool,
}

/// The channel of requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By reads and writes of clones of the device.
    Queues,
    /// By shared memory, with an io_uring for each thread.
    Uring,
}

impl Granted {
    /// Final when [`Filesystem::init`] is called.
    pub fn transport(&self) -> Transport {
        if self.flags.contains(InitFlags::OVER_IO_URING) { Transport::Uring } else { Transport::Queues }
    }
}

/// Why [`Session::run`] ended other than by an unmount.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("cannot exchange requests and answers with the kernel")]
    Transport(#[source] io::Error),
}

/// A mounted file system that is not served yet. Dropping it unmounts.
#[derive(Debug)]
pub struct Session {
    channel: Channel,
    mountpoint: PathBuf,
    mount: Option<u64>,
    granted: Granted,
    /// One for each kernel queue; empty without io_uring.
    rings: Vec<Ring>,
    slots: Arc<Slots>,
    notifiers: Vec<Notifier>,
}

/// The number of threads that serve a mount.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// Maximum with device queues; threads are started on demand.
    pub device: usize,
    /// Initial number over io_uring, distributed among the CPUs, at least four per CPU. A CPU can
    /// have as many unanswered requests before the kernel delays the next.
    pub rings: usize,
    /// Maximum over io_uring; threads are added to a CPU when nearly all of its threads have
    /// unanswered requests.
    pub rings_max: usize,
}

impl From<usize> for Threads {
    fn from(threads: usize) -> Self {
        Self { device: threads, rings: threads, rings_max: threads }
    }
}

/// Without these, some messages have another layout. All supported kernels offer them.
const ALWAYS: InitFlags = InitFlags::INIT_EXT
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::SETXATTR_EXT);

impl Session {
    /// Mounts, and negotiates with the kernel. `source`: the device in the mount table.
    ///
    /// Accesses to the mount block until [`Session::run`] is called, so this thread must not access
    /// it before.
    pub fn mount(
        source: &str,
        mountpoint: &Path,
        options: &MountOptions,
        wanted: &Wanted,
    ) -> Result<Session, MountError> {
        let mountpoint = mountpoint.canonicalize().map_err(MountError::Mountpoint)?;
        let _enabled = if wanted.flags.contains(InitFlags::OVER_IO_URING) {
            ring::Enabled::for_a_mount().unwrap_or_else(|error| {
                tracing::debug!(%error, "the kernel may not offer io_uring");
                None
            })
        } else {
            None
        };
        let channel = mount::mount(source, &mountpoint, options)?;
        let mounted = mount::mount_at(&mountpoint).map_err(MountError::Mountpoint);
        let granted = handshake(&channel, wanted);
        match (mounted, granted) {
            (Ok(mount), Ok((granted, rings))) => {
                let (slots, notifiers) = (Arc::default(), Vec::new());
                Ok(Session { channel, mountpoint, mount, granted, rings, slots, notifiers })
            }
            (Err(error), _) | (_, Err(error)) => {
                let _ = mount::force_unmount(&mountpoint);
                Err(error)
            }
        }
    }

    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The canonical path of the mount.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The connection, for registering backing files outside of a request.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Starts a queue of at most `capacity` notifications, and its thread. It ends with the
    /// session.
    pub fn notifier(&mut self, capacity: usize) -> io::Result<Notifier> {
        let can_expire = self.granted.flags.contains(InitFlags::HAS_EXPIRE_ONLY);
        let notifier = Notifier::start(self.channel.clone(), Arc::clone(&self.slots), capacity, can_expire)?;
        self.notifiers.push(notifier.clone());
        Ok(notifier)
    }

    /// Serves requests until the file system is unmounted.
    pub fn run<F: Filesystem + ?Sized>(
        mut self,
        threads: impl Into<Threads>,
        filesystem: Arc<F>,
    ) -> Result<(), RunError> {
        let rings = std::mem::take(&mut self.rings);
        let outcome = serve(&self, rings, threads.into(), &*filesystem);
        filesystem.destroy();
        outcome
    }

    /// Another device queue. After a mount by the helper, this process may have no permission to
    /// open one; sharing the first is only slower.
    pub(crate) fn queue(&self) -> Channel {
        self.channel.clone_queue().unwrap_or_else(|error| {
            tracing::info!(%error, "the threads share a queue");
            self.channel.clone()
        })
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// A new entry for a kernel queue over io_uring.
    pub(crate) fn ring(&self, queue: u16) -> io::Result<Ring> {
        Ring::new(&self.channel, queue, self.granted.max_write as usize)
    }

    /// Unmounts, unless another mount has taken the place.
    pub(crate) fn abort(&self) {
        let ours = self.mount.is_some() && mount::mount_at(&self.mountpoint).ok() == Some(self.mount);
        if ours && let Err(error) = mount::force_unmount(&self.mountpoint) {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "cannot unmount");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for notifier in &self.notifiers {
            notifier.close();
        }
        self.abort();
    }
}

/// Reads the kernel's INIT and replies. If io_uring is negotiated, the rings are ready before the
/// reply, since the kernel then waits for them.
fn handshake(channel: &Channel, wanted: &Wanted) -> Result<(Granted, Vec<Ring>), MountError> {
    let mut buffer = Buffer::new(abi::PAGE);
    let length = loop {
        match channel.receive(buffer.as_mut()).map_err(|error| MountError::Handshake(error.into()))? {
            Received::Message(length) => break length,
            Received::Nothing => {}
            Received::Closed => return Err(MountError::Handshake(Errno::NODEV.into())),
        }
    };
    let request =
        Request::parse(&buffer.as_mut()[..length]).map_err(|e| MountError::Handshake(io::Error::other(e)))?;
    let reply = Reply::new(ReplyDestination::Device(channel.clone()), request.unique, Opcode::Init as u32);
    let Op::Init(offer) = request.op else {
        reply.error(Errno::PROTO.raw_os_error());
        return Err(MountError::Handshake(Errno::PROTO.into()));
    };
    if offer.major != abi::MAJOR || offer.minor < abi::MINOR_MIN {
        reply.error(Errno::PROTO.raw_os_error());
        return Err(MountError::Version { major: offer.major, minor: offer.minor });
    }
    let (mut granted, mut out) = negotiate(&offer, wanted);
    let mut rings = Vec::new();
    if granted.flags.contains(InitFlags::OVER_IO_URING) {
        rings = prepare(channel, &granted).unwrap_or_else(|error| {
            tracing::debug!(%error, "io_uring is unavailable: using device queues");
            Vec::new()
        });
        if rings.is_empty() {
            let flags = offer.flags - InitFlags::OVER_IO_URING;
            (granted, out) = negotiate(&Init { flags, ..offer }, wanted);
        }
    }
    reply.init(&out);
    Ok((granted, rings))
}

/// Creates one ring for each kernel queue.
fn prepare(channel: &Channel, granted: &Granted) -> io::Result<Vec<Ring>> {
    let queues = ring::queues()?;
    if usize::from(queues) > RINGS_MAX {
        return Err(io::Error::other(format!("{queues} CPUs are too many to have a ring for each")));
    }
    (0..queues).map(|queue| Ring::new(channel, queue, granted.max_write as usize)).collect()
}

/// The negotiated features and the reply to INIT.
fn negotiate(offer: &Init, wanted: &Wanted) -> (Granted, abi::InitOut) {
    let minor = offer.minor.min(abi::MINOR);
    let flags = offer.flags & (wanted.flags | ALWAYS);
    let max_pages = wanted.max_write.div_ceil(abi::PAGE as u32).clamp(1, u32::from(u16::MAX)) as u16;
    let max_write = u32::from(max_pages) * abi::PAGE as u32;
    let max_readahead = offer.max_readahead.min(wanted.max_readahead);
    let granted = Granted {
        minor,
        flags,
        max_write,
        max_readahead,
        epoch: minor >= abi::MINOR_EPOCH,
        prune: minor >= abi::MINOR_PRUNE,
        coherent_direct_writes: minor >= abi::MINOR_COHERENT,
    };
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor,
        max_readahead,
        flags: flags.bits() as u32,
        flags2: (flags.bits() >> 32) as u32,
        max_background: wanted.max_background,
        congestion_threshold: wanted.max_background / 4 * 3,
        max_write,
        time_granularity: 1,
        max_pages,
        // Backing files must not be on a stacked file system.
        max_stack_depth: u32::from(flags.contains(InitFlags::PASSTHROUGH)),
        ..Default::default()
    };
    (granted, out)
}

/// A receive buffer in which the data of a WRITE is page-aligned.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(crate) fn new(max_write: usize) -> Buffer {
        // One page for alignment, one for the headers, and one because the kernel requires 8 KiB at
        // least.
        let bytes = vec![0; max_write + 3 * abi::PAGE];
        let data = (bytes.as_ptr() as usize + abi::WRITE_PREFIX).next_multiple_of(abi::PAGE);
        let start = data - abi::WRITE_PREFIX - bytes.as_ptr() as usize;
        Buffer { bytes, start }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Init = Init { major: 7, minor: 45, max_readahead: 131_072, flags: InitFlags::all() };

    #[test]
    fn session_takes_wanted_subset_of_offered_flags() {
        let wanted = Wanted { flags: InitFlags::PASSTHROUGH | InitFlags::DONT_MASK, ..Wanted::default() };
        let (granted, out) = negotiate(&OFFER, &wanted);
        assert_eq!(granted.flags, wanted.flags | ALWAYS);
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, granted.flags.bits());
        assert_eq!((out.max_write, out.max_pages, out.max_stack_depth), (1 << 20, 256, 1));
        assert_eq!((out.max_background, out.congestion_threshold, out.max_readahead), (64, 48, 131_072));
        assert!(granted.prune);

        let poor = Init { minor: 36, flags: ALWAYS | InitFlags::DONT_MASK, ..OFFER };
        let (granted, out) = negotiate(&poor, &wanted);
        assert_eq!((granted.minor, granted.flags), (36, ALWAYS | InitFlags::DONT_MASK));
        assert_eq!(out.max_stack_depth, 0);
        assert!(!granted.prune);
    }

    #[test]
    fn odd_sizes_become_pages() {
        for (max_write, pages) in [(0, 1), (1, 1), (4097, 2), (u32::MAX, u16::MAX)] {
            let (granted, out) = negotiate(&OFFER, &Wanted { max_write, ..Wanted::default() });
            assert_eq!(out.max_pages, pages);
            assert_eq!(granted.max_write, u32::from(pages) * 4096);
        }
    }

    #[test]
    fn refused_ring_falls_back() {
        struct Empty(std::sync::Mutex<Option<Transport>>);
        impl Filesystem for Empty {
            fn init(&self, granted: &Granted) {
                *self.0.lock().expect("whole") = Some(granted.transport());
            }
            fn request(&self, request: Request<'_>, reply: Reply) {
                match request.op {
                    Op::GetAttr { .. } => reply.attr(
                        &crate::Attr { ino: 1, mode: 0o040755, nlink: 2, ..Default::default() },
                        std::time::Duration::ZERO,
                    ),
                    _ => reply.error(Errno::NOSYS.raw_os_error()),
                }
            }
        }
        let directory = tempfile::tempdir().expect("a directory");
        let flags = InitFlags::OVER_IO_URING;
        let wanted = Wanted { flags, ..Wanted::default() };
        let mounted = Session::mount("refused", directory.path(), &MountOptions::default(), &wanted);
        let mut session = mounted.expect("a mount");
        if session.granted().transport() == Transport::Queues {
            return eprintln!("skipped: the kernel offers no io_uring");
        }
        // More CPUs than the machine has.
        session.rings = vec![Ring::new(&session.channel, 1000, 1 << 20).expect("a ring")];
        let filesystem = Arc::new(Empty(Default::default()));
        let served = Arc::clone(&filesystem);
        let server = std::thread::spawn(move || session.run(4, served));
        let stat = std::fs::metadata(directory.path()).expect("an answer");
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&stat), 1);
        mount::unmount(directory.path()).expect("unmounts");
        server.join().expect("no panic").expect("no error");
        assert_eq!(*filesystem.0.lock().expect("whole"), Some(Transport::Queues));
    }

    #[test]
    fn write_data_lies_on_a_page() {
        let mut buffer = Buffer::new(1 << 20);
        let bytes = buffer.as_mut();
        assert_eq!((bytes.as_ptr() as usize + abi::WRITE_PREFIX) % abi::PAGE, 0);
        assert!(bytes.len() >= (1 << 20) + abi::PAGE);
    }
}
