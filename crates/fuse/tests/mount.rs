//! Mounts a small file system. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]

use espalier_fuse::{
    Attr, BackingId, DirBuffer, Entry, Filesystem, Granted, InitFlags, MountError, MountOptions, Notifier,
    Op, Opened, OpenedFlags, ROOT_NODE, Reply, Request, Session, StatFs, Transport, Wanted, detach_dead,
    force_unmount, is_dead, mounted_device, unmount,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
const HOUR: Duration = Duration::from_secs(3600);

/// A directory of files in memory. Some names misbehave, see `lookup`.
#[derive(Default)]
struct MemoryFs {
    state: Mutex<MemoryFsState>,
    /// The backing file of passthrough opens.
    backing: Option<File>,
    lookups: AtomicU64,
    forgets: AtomicU64,
    plus: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    closed: AtomicU64,
    transport: Mutex<Option<Transport>>,
    /// Controls how long an `fsync` takes.
    syncs: Syncs,
    /// The pending lookup of the name `held`.
    held: Mutex<Option<Reply>>,
}

/// Every other `fsync` blocks its thread until `end`, and the others are answered then.
#[derive(Default)]
struct Syncs {
    state: Mutex<(u64, bool, Vec<Reply>)>,
    ended: Condvar,
}

impl Syncs {
    fn begin(&self, reply: Reply) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        if state.0.is_multiple_of(2) && !state.1 {
            return state.2.push(reply);
        }
        drop(self.ended.wait_while(state, |state| !state.1).unwrap());
        reply.ok();
    }

    fn begun(&self) -> u64 {
        self.state.lock().unwrap().0
    }

    fn end(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 = true;
        state.2.drain(..).for_each(Reply::ok);
        self.ended.notify_all();
    }
}

#[derive(Default)]
struct MemoryFsState {
    names: BTreeMap<Vec<u8>, u64>,
    data: BTreeMap<u64, Vec<u8>>,
    last: u64,
    open: Option<BackingId>,
}

impl MemoryFsState {
    fn attr(&self, node: u64) -> Option<Attr> {
        if node == ROOT_NODE {
            return Some(Attr { ino: 1, mode: 0o040755, nlink: 2, ..Attr::default() });
        }
        let size = self.data.get(&node)?.len() as u64;
        Some(Attr {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            mode: 0o100644,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        })
    }

    fn entry(&self, node: u64) -> Option<Entry> {
        Some(Entry { node, generation: 1, attr: self.attr(node)?, entry_valid: HOUR, attr_valid: HOUR })
    }

    fn add(&mut self, name: &[u8]) -> u64 {
        self.last += 1;
        let node = ROOT_NODE + self.last;
        self.names.insert(name.into(), node);
        self.data.insert(node, Vec::new());
        node
    }

    fn listing(&self) -> Vec<(u64, u32, &[u8])> {
        let dots = [&b"."[..], b".."].map(|name| (ROOT_NODE, 0o040000, name));
        dots.into_iter().chain(self.names.iter().map(|(name, node)| (*node, 0o100000, &name[..]))).collect()
    }
}

impl Filesystem for MemoryFs {
    fn init(&self, granted: &Granted) {
        assert!(granted.minor >= 36);
        *self.transport.lock().unwrap() = Some(granted.transport());
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    fn destroy(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn request(&self, request: Request<'_>, reply: Reply) {
        if let Op::Lookup { name } = request.op {
            self.lookups.fetch_add(1, Ordering::Relaxed);
            match name {
                b"dropped" => return drop(reply),
                b"panic" => panic!("requested"),
                b"held" => return *self.held.lock().unwrap() = Some(reply),
                b"later" => {
                    // Another thread answers while this one serves other requests.
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(50));
                        reply.error(ENOENT);
                    });
                    return;
                }
                _ => {}
            }
        }
        if let Op::FSync { .. } = request.op {
            return self.syncs.begin(reply);
        }
        let state = &mut *self.state.lock().unwrap();
        match request.op {
            Op::Lookup { name } => match state.names.get(name).and_then(|&node| state.entry(node)) {
                Some(entry) => reply.entry(&entry),
                None => reply.error(ENOENT),
            },
            Op::Forget { .. } => {
                self.forgets.fetch_add(1, Ordering::Relaxed);
            }
            Op::BatchForget(forgets) => {
                self.forgets.fetch_add(forgets.count() as u64, Ordering::Relaxed);
            }
            Op::GetAttr { .. } => match state.attr(request.node) {
                Some(attr) => reply.attr(&attr, HOUR),
                None => reply.error(ENOENT),
            },
            Op::SetAttr(set) => {
                if let (Some(size), Some(data)) = (set.size, state.data.get_mut(&request.node)) {
                    data.resize(size as usize, 0);
                }
                reply.attr(&state.attr(request.node).unwrap(), HOUR);
            }
            Op::Create { name, .. } => {
                let node = state.add(name);
                reply.create(&state.entry(node).unwrap(), &Opened { handle: node, ..Opened::default() });
            }
            Op::Open { .. } => match &self.backing {
                Some(file) => {
                    let id = reply.channel().backing_open(file.as_fd()).unwrap();
                    assert!(state.open.replace(id).is_none());
                    reply.open(&Opened {
                        backing: Some(id),
                        flags: OpenedFlags::KEEP_CACHE,
                        ..Opened::default()
                    });
                }
                None => reply.open(&Opened {
                    handle: request.node,
                    flags: OpenedFlags::KEEP_CACHE,
                    ..Opened::default()
                }),
            },
            Op::Read { offset, size, .. } => {
                let data = &state.data[&request.node];
                let start = data.len().min(offset as usize);
                let end = data.len().min(start + size as usize);
                reply.data(&data[start..end]);
            }
            Op::Write { offset, data, .. } => {
                let file = state.data.get_mut(&request.node).unwrap();
                let end = offset as usize + data.len();
                file.resize(file.len().max(end), 0);
                file[offset as usize..end].copy_from_slice(data);
                reply.written(data.len() as u32);
            }
            Op::ReadDir { offset, size, .. } => {
                let mut bytes = Vec::new();
                let mut buffer = DirBuffer::new(&mut bytes, size);
                for (index, (ino, mode, name)) in
                    state.listing().into_iter().enumerate().skip(offset as usize)
                {
                    if !buffer.push(ino, index as u64 + 1, mode, name) {
                        break;
                    }
                }
                reply.data(buffer.as_bytes());
            }
            Op::ReadDirPlus { offset, size, .. } => {
                self.plus.fetch_add(1, Ordering::Relaxed);
                let mut bytes = Vec::new();
                let mut buffer = DirBuffer::new(&mut bytes, size);
                for (index, (ino, mode, name)) in
                    state.listing().into_iter().enumerate().skip(offset as usize)
                {
                    let entry = if ino == ROOT_NODE { Entry::default() } else { state.entry(ino).unwrap() };
                    if !buffer.push_plus(&entry, ino, index as u64 + 1, mode, name) {
                        break;
                    }
                }
                reply.data(buffer.as_bytes());
            }
            Op::Rename { name, new_name, .. } => {
                let node = state.names.remove(name).unwrap();
                state.names.insert(new_name.into(), node);
                reply.ok();
            }
            Op::Unlink { name } => {
                state.names.remove(name);
                reply.ok();
            }
            Op::StatFs => {
                reply.statfs(&StatFs { blocks: 1000, block_size: 4096, name_max: 255, ..StatFs::default() })
            }
            Op::OpenDir { .. } => reply.open(&Opened::default()),
            Op::Release { .. } => {
                if let Some(id) = state.open.take() {
                    reply.channel().backing_close(id).unwrap();
                    assert!(reply.channel().backing_close(id).is_err(), "it is closed already");
                    self.closed.fetch_add(1, Ordering::Relaxed);
                }
                reply.ok();
            }
            Op::ReleaseDir { .. } | Op::Flush { .. } => reply.ok(),
            _ => reply.error(ENOSYS),
        }
    }
}

/// A served mount; dropping it unmounts.
struct TestMount {
    directory: tempfile::TempDir,
    filesystem: Arc<MemoryFs>,
    notifier: Notifier,
    granted: Granted,
    server: Option<JoinHandle<()>>,
}

/// Maximum number of threads, which the CPUs share.
const THREADS: usize = 32;

fn wanted(transport: Transport) -> Wanted {
    let mut flags = Wanted::default().flags | InitFlags::PASSTHROUGH | InitFlags::HAS_EXPIRE_ONLY;
    flags.set(InitFlags::OVER_IO_URING, transport == Transport::Uring);
    Wanted { flags, ..Wanted::default() }
}

fn mount(transport: Transport, filesystem: MemoryFs, options: &MountOptions) -> TestMount {
    let directory = tempfile::tempdir().unwrap();
    let mut session = Session::mount("a,test", directory.path(), options, &wanted(transport)).unwrap();
    assert_eq!(session.granted().transport(), transport);
    let notifier = session.notifier(16).unwrap();
    let granted = *session.granted();
    let filesystem = Arc::new(filesystem);
    let served = Arc::clone(&filesystem);
    let server = std::thread::spawn(move || session.run(THREADS, served).unwrap());
    TestMount { directory, filesystem, notifier, granted, server: Some(server) }
}

impl TestMount {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until the kernel has processed the queued notifications.
    fn wait_until_sent(&self) {
        let (done, finished) = mpsc::sync_channel(1);
        while !self.notifier.fence({
            let done = done.clone();
            move || done.send(()).unwrap()
        }) {
            std::thread::yield_now();
        }
        finished.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    fn lookups_during(&self, action: impl FnOnce()) -> u64 {
        let before = self.filesystem.lookups.load(Ordering::Relaxed);
        action();
        self.filesystem.lookups.load(Ordering::Relaxed) - before
    }

    fn end(mut self) {
        // If it were unmounted before the rings are registered, it would be served over queues.
        while self.filesystem.begun.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        unmount(self.directory.path()).unwrap();
        self.server.take().unwrap().join().unwrap();
        assert_eq!(self.filesystem.begun.load(Ordering::Relaxed), 1);
        assert_eq!(*self.filesystem.transport.lock().unwrap(), Some(self.granted.transport()));
        assert_eq!(self.filesystem.ended.load(Ordering::Relaxed), 1);
        assert!(!self.notifier.inval_entry(ROOT_NODE, b"a"), "the queue ends with its session");
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if self.server.is_some() {
            let _ = force_unmount(self.directory.path());
        }
    }
}

macro_rules! over_both_transports {
    ($($name:ident),* $(,)?) => {
        mod queues {
            use super::Transport;
            $(#[test] fn $name() { super::$name(Transport::Queues) })*
        }
        mod uring {
            use super::Transport;
            $(#[test] fn $name() {
                match super::uring_available() {
                    Ok(()) => super::$name(Transport::Uring),
                    Err(error) => eprintln!("skipped: {}: {error}", super::URING),
                }
            })*
        }
    };
}

over_both_transports! {
    files_can_be_made_read_listed_renamed_and_removed,
    large_reads_and_writes_keep_their_bytes,
    a_dropped_reply_and_a_panic_cost_that_request_only,
    a_reply_may_come_later_and_from_another_thread,
    notifications_make_the_kernel_forget,
    expired_names_keep_what_is_mounted_on_them,
    a_notification_that_waits_for_a_directory_holds_up_no_other,
    pruned_nodes_are_forgotten,
    a_full_notifier_says_so,
    a_backing_file_is_read_and_written_without_us,
    options_reach_the_mount_table,
    a_busy_mount_is_detached_by_force_only,
    a_session_that_never_runs_unmounts_itself,
    late_session_end_does_not_affect_next_mount,
    the_mount_of_a_dead_server_is_recognised_and_removed,
    a_request_that_takes_long_holds_up_no_other,
    an_abort_ends_what_is_never_answered,
}

/// The kernel's switch, which each mount turns on while it starts.
const URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Fails if the kernel has no io_uring for FUSE, or the switch cannot be turned.
fn uring_available() -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(URING).map(drop)
}

/// Waits up to a minute for a condition.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn files_can_be_made_read_listed_renamed_and_removed(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    let names = |mounted: &TestMount| -> BTreeSet<String> {
        fs::read_dir(mounted.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };

    fs::write(mounted.path("a"), b"hello").unwrap();
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"hello");
    assert_eq!(fs::metadata(mounted.path("a")).unwrap().len(), 5);
    fs::write(mounted.path("b"), b"").unwrap();
    assert_eq!(names(&mounted), BTreeSet::from(["a".into(), "b".into()]));
    assert!(mounted.filesystem.plus.load(Ordering::Relaxed) > 0);

    fs::rename(mounted.path("a"), mounted.path("c")).unwrap();
    assert_eq!(fs::read(mounted.path("c")).unwrap(), b"hello");
    assert_eq!(fs::read(mounted.path("a")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::remove_file(mounted.path("c")).unwrap();
    assert_eq!(names(&mounted), BTreeSet::from(["b".into()]));
    assert_eq!(errno(fs::create_dir(mounted.path("d"))), ENOSYS);

    for index in 0..3000 {
        File::create(mounted.path(&format!("a file with a name of some length, number {index}"))).unwrap();
    }
    assert_eq!(names(&mounted).len(), 3001, "a listing of several buffers");
    mounted.end();
}

fn large_reads_and_writes_keep_their_bytes(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    assert_eq!(mounted.granted.max_write, 1 << 20);
    let bytes: Vec<u8> = (0..9_000_001u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            scope.spawn(|| {
                let mut file = OpenOptions::new()
                    .create(true)
                    .truncate(true)
                    .read(true)
                    .write(true)
                    .open(mounted.path(name))
                    .unwrap();
                file.write_all(&bytes).unwrap();
                assert!(mounted.notifier.inval_inode(file.metadata().unwrap().ino(), 0, 0));
                mounted.wait_until_sent();
                file.seek(SeekFrom::Start(0)).unwrap();
                let mut read = Vec::new();
                file.read_to_end(&mut read).unwrap();
                assert!(read == bytes);
            });
        }
    });
    mounted.end();
}

fn a_dropped_reply_and_a_panic_cost_that_request_only(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    fs::write(mounted.path("a"), b"hello").unwrap();
    for _ in 0..3 {
        assert_eq!(errno(fs::metadata(mounted.path("dropped"))), EIO);
        assert_eq!(errno(fs::metadata(mounted.path("panic"))), EIO);
    }
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"hello");
    mounted.end();
}

fn a_reply_may_come_later_and_from_another_thread(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(errno(fs::metadata(mounted.path("later"))), ENOENT));
        }
    });
    // Lookups of one name wait for each other without holding threads.
    assert!(start.elapsed() < Duration::from_secs(60));
    mounted.end();
}

fn notifications_make_the_kernel_forget(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    fs::write(mounted.path("a"), b"hello").unwrap();
    let look = || assert!(fs::metadata(mounted.path("a")).is_ok());
    assert_eq!(mounted.lookups_during(look), 0, "cached for an hour");

    let (dropped, done) = mpsc::channel();
    let then = Box::new(move || dropped.send(()).unwrap());
    assert!(mounted.notifier.expire_entry(ROOT_NODE, b"a", Some(then)));
    done.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(mounted.lookups_during(look), 1);
    assert_eq!(mounted.lookups_during(look), 0);

    assert!(mounted.granted.flags.contains(InitFlags::HAS_EXPIRE_ONLY));
    assert!(mounted.notifier.expire_entry(ROOT_NODE, b"a", None));
    mounted.wait_until_sent();
    assert_eq!(mounted.lookups_during(look), 1);

    // The file changes without the kernel's knowledge.
    let node = fs::metadata(mounted.path("a")).unwrap().ino();
    let read = || fs::read(mounted.path("a")).unwrap();
    assert_eq!(read(), b"hello");
    mounted.filesystem.state.lock().unwrap().data.insert(node, b"world".to_vec());
    assert_eq!(read(), b"hello");
    assert!(mounted.notifier.inval_inode(node, 0, 0));
    mounted.wait_until_sent();
    assert_eq!(read(), b"world");

    // The file disappears.
    mounted.filesystem.state.lock().unwrap().names.clear();
    assert!(mounted.notifier.delete(ROOT_NODE, node, b"a"));
    mounted.wait_until_sent();
    assert_eq!(fs::metadata(mounted.path("a")).unwrap_err().kind(), ErrorKind::NotFound);
    mounted.end();
}

fn expired_names_keep_what_is_mounted_on_them(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    fs::write(mounted.path("a"), b"below").unwrap();
    let top = tempfile::NamedTempFile::new().unwrap();
    fs::write(top.path(), b"on top").unwrap();
    rustix::mount::mount_bind(top.path(), mounted.path("a")).unwrap();
    let read = || fs::read(mounted.path("a")).unwrap();
    assert_eq!(read(), b"on top");
    assert!(mounted.notifier.expire_entry(ROOT_NODE, b"a", None));
    mounted.wait_until_sent();
    assert_eq!(mounted.lookups_during(|| assert_eq!(read(), b"on top")), 1);
    if mounted.granted.prune {
        let node = mounted.filesystem.state.lock().unwrap().names[&b"a"[..]];
        assert!(mounted.notifier.prune(&[node]));
        mounted.wait_until_sent();
        assert_eq!(read(), b"on top");
    }
    // The name is bound to another node.
    assert!(mounted.notifier.expire_entry(ROOT_NODE, b"a", None));
    mounted.wait_until_sent();
    mounted.filesystem.state.lock().unwrap().add(b"a");
    assert_eq!(read(), b"");
    mounted.end();
}

fn a_notification_that_waits_for_a_directory_holds_up_no_other(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    let (done, order) = mpsc::channel();
    let signal = |what: &'static str| {
        let done = done.clone();
        move || done.send(what).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(errno(fs::metadata(mounted.path("held"))), ENOENT));
        eventually("it is looked up", || mounted.filesystem.held.lock().unwrap().is_some());
        // The kernel has locked the directory for the lookup.
        assert!(mounted.notifier.expire_entry(ROOT_NODE, b"a", Some(Box::new(signal("locked")))));
        assert!(mounted.notifier.expire_entry(ROOT_NODE, b"b", Some(Box::new(signal("after it")))));
        assert!(mounted.notifier.expire_entry(4711, b"a", Some(Box::new(signal("other")))));
        assert!(mounted.notifier.fence(signal("fence")));
        assert!(order.recv_timeout(Duration::from_millis(200)).is_err());
        mounted.notifier.relieve(Duration::from_secs(3600));
        assert!(order.recv_timeout(Duration::from_millis(200)).is_err());
        mounted.notifier.relieve(Duration::from_millis(100));
        assert_eq!(order.recv_timeout(Duration::from_secs(60)).unwrap(), "other");
        assert!(order.recv_timeout(Duration::from_millis(200)).is_err());
        mounted.filesystem.held.lock().unwrap().take().unwrap().error(ENOENT);
    });
    for what in ["locked", "after it", "fence"] {
        assert_eq!(order.recv_timeout(Duration::from_secs(60)).unwrap(), what);
    }
    mounted.end();
}

fn pruned_nodes_are_forgotten(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    if !mounted.granted.prune {
        return mounted.end();
    }
    fs::write(mounted.path("a"), b"hello").unwrap();
    let node = fs::metadata(mounted.path("a")).unwrap().ino();
    // A close is asynchronous, and a node in use is not dropped, so repeat the request.
    let deadline = Instant::now() + Duration::from_secs(60);
    while mounted.filesystem.forgets.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline);
        assert!(mounted.notifier.prune(&[node, 4711]));
        mounted.wait_until_sent();
        std::thread::sleep(Duration::from_millis(10));
    }
    mounted.end();
}

fn a_full_notifier_says_so(transport: Transport) {
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    let (release, held) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let hold = move || {
        started.send(()).unwrap();
        let _ = held.recv();
    };
    assert!(mounted.notifier.fence(hold));
    running.recv().unwrap();
    for node in ROOT_NODE..ROOT_NODE + 16 {
        assert!(mounted.notifier.inval_inode(node, -1, 0));
        assert!(
            node > ROOT_NODE || mounted.notifier.inval_inode(node, -1, 0),
            "a duplicate takes no space in the queue"
        );
    }
    assert!(!mounted.notifier.inval_inode(ROOT_NODE, -1, 0));
    release.send(()).unwrap();
    while !mounted.notifier.inval_inode(ROOT_NODE, -1, 0) {
        std::thread::yield_now();
    }
    while !mounted.notifier.fence(|| panic!("requested")) {
        std::thread::yield_now();
    }
    mounted.wait_until_sent();
    mounted.end();
}

fn a_backing_file_is_read_and_written_without_us(transport: Transport) {
    // The backing file is on a disk file system, and on tmpfs.
    for place in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let mut file = tempfile::tempfile_in(place).unwrap();
        file.write_all(b"from the backing file").unwrap();
        let backing = Some(file.try_clone().unwrap());
        let mounted = mount(transport, MemoryFs { backing, ..MemoryFs::default() }, &MountOptions::default());
        assert!(mounted.granted.flags.contains(InitFlags::PASSTHROUGH));
        {
            let mut state = mounted.filesystem.state.lock().unwrap();
            let node = state.add(b"a");
            // The kernel does not read beyond the reported size.
            state.data.insert(node, vec![0; 21]);
        }
        let opened = OpenOptions::new().read(true).write(true).open(mounted.path("a")).unwrap();
        let mut bytes = [0; 21];
        opened.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"from the backing file");
        opened.write_all_at(b"INTO", 0).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"INTO the backing file");
        assert_eq!(mounted.filesystem.state.lock().unwrap().data[&2], [0; 21]);
        drop(opened);
        // The kernel sends a release with delay, and none during an unmount.
        let started = std::time::Instant::now();
        while mounted.filesystem.closed.load(Ordering::Relaxed) != 1 {
            assert!(started.elapsed() < Duration::from_secs(30), "the release never came");
            std::thread::yield_now();
        }
        mounted.end();
    }
}

fn a_request_that_takes_long_holds_up_no_other(transport: Transport) {
    const SYNCS: u64 = 8;
    let mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    let files: Vec<File> =
        (0..SYNCS).map(|n| File::create(mounted.path(&format!("f{n}"))).unwrap()).collect();
    let syncs = &mounted.filesystem.syncs;
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().unwrap());
        }
        let (done, others) = mpsc::channel();
        let mounted = &mounted;
        scope.spawn(move || {
            eventually("they do not wait for each other", || syncs.begun() == SYNCS);
            // From every CPU, as each may have its own queue.
            for n in 0..64 {
                let name = mounted.path(&format!("other{n}"));
                std::thread::scope(|scope| {
                    scope.spawn(move || fs::write(name, b"hello").unwrap()).join().unwrap()
                });
            }
            done.send(()).unwrap();
        });
        let outcome = others.recv_timeout(Duration::from_secs(120));
        // Also when the test has failed, so that it ends.
        syncs.end();
        outcome.expect("other requests are served");
    });
    drop(files);
    mounted.end();
}

fn an_abort_ends_what_is_never_answered(transport: Transport) {
    let mut mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    let files = ["a", "b"].map(|name| File::create(mounted.path(name)).unwrap());
    let filesystem = Arc::clone(&mounted.filesystem);
    std::thread::scope(|scope| {
        let callers = files.each_ref().map(|file| scope.spawn(|| file.sync_all()));
        eventually("both have come", || filesystem.syncs.begun() == 2);
        force_unmount(mounted.directory.path()).unwrap();
        for caller in callers {
            assert!(caller.join().unwrap().is_err());
        }
    });
    // One of them holds its thread.
    filesystem.syncs.state.lock().unwrap().1 = true;
    filesystem.syncs.ended.notify_all();
    mounted.server.take().unwrap().join().unwrap();
    // The other is answered long after the unmount.
    filesystem.syncs.end();
}

fn options_reach_the_mount_table(transport: Transport) {
    let options = MountOptions {
        read_only: true,
        no_suid: true,
        no_dev: true,
        no_exec: true,
        no_atime: true,
        allow_other: true,
        default_permissions: true,
        max_read: Some(65536),
        ..MountOptions::default()
    };
    let mounted = mount(transport, MemoryFs::default(), &options);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(mounted.directory.path().to_str().unwrap())).unwrap();
    let fields: Vec<_> = line.split(' ').collect();
    assert_eq!((fields[0], fields[2]), ("a,test", "fuse.espalier"));
    let shown: BTreeSet<_> = fields[3].split(',').collect();
    for option in
        ["ro", "nosuid", "nodev", "noexec", "noatime", "allow_other", "default_permissions", "max_read=65536"]
    {
        assert!(shown.contains(option), "{option} in {line}");
    }
    assert_eq!(fs::write(mounted.path("a"), b"").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    mounted.end();
}

fn a_busy_mount_is_detached_by_force_only(transport: Transport) {
    let mut mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    fs::write(mounted.path("a"), b"hello").unwrap();
    let mut open = File::open(mounted.path("a")).unwrap();
    assert_eq!(unmount(mounted.directory.path()).unwrap_err().kind(), ErrorKind::ResourceBusy);
    force_unmount(mounted.directory.path()).unwrap();
    mounted.server.take().unwrap().join().unwrap();
    assert!(open.read(&mut [0; 8]).is_err());
    assert_eq!(fs::read_dir(mounted.directory.path()).unwrap().count(), 0, "the directory is unmounted");
}

fn a_session_that_never_runs_unmounts_itself(transport: Transport) {
    let directory = tempfile::tempdir().unwrap();
    let session =
        Session::mount("idle", directory.path(), &MountOptions::default(), &wanted(transport)).unwrap();
    drop(session);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn late_session_end_does_not_affect_next_mount(transport: Transport) {
    let directory = tempfile::tempdir().unwrap();
    let options = MountOptions::default();
    let first = Session::mount("first", directory.path(), &options, &wanted(transport)).unwrap();
    let number = mounted_device(directory.path()).unwrap();
    force_unmount(directory.path()).unwrap();
    // The kernel reuses the number of the last device, unless another test has it.
    let second = Session::mount("second", directory.path(), &options, &wanted(transport)).unwrap();
    if mounted_device(directory.path()).unwrap() != number {
        eprintln!("the number was taken");
    }
    drop(first);
    assert!(mounted_device(directory.path()).unwrap().is_some(), "the second mount exists");
    drop(second);
    assert_eq!(mounted_device(directory.path()).unwrap(), None);
}

#[test]
#[ignore = "run as an ordinary user, with fusermount3 in the path"]
fn an_ordinary_user_mounts_with_the_helper() {
    let transport = Transport::Queues;
    let mounted =
        mount(transport, MemoryFs::default(), &MountOptions { no_exec: true, ..MountOptions::default() });
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(mounted.directory.path().to_str().unwrap())).unwrap();
    assert!(
        line.starts_with("a,test ") && line.contains(" fuse.espalier ") && line.contains("noexec"),
        "{line}"
    );
    fs::write(mounted.path("a"), b"hello").unwrap();
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"hello");
    mounted.end();

    let mut mounted = mount(transport, MemoryFs::default(), &MountOptions::default());
    fs::write(mounted.path("a"), b"hello").unwrap();
    let open = File::open(mounted.path("a")).unwrap();
    force_unmount(mounted.directory.path()).unwrap();
    drop(open);
    mounted.server.take().unwrap().join().unwrap();

    let refused = MountOptions { subtype: "x,nonsense".into(), allow_other: true, ..MountOptions::default() };
    let directory = tempfile::tempdir().unwrap();
    let error = Session::mount("a", directory.path(), &refused, &Wanted::default()).unwrap_err();
    assert!(
        matches!(&error, MountError::HelperFailed(complaint) if complaint.contains("allow_other")),
        "{error}"
    );
}

const MOUNTPOINT: &str = "ESPALIER_TEST_MOUNTPOINT";
const TRANSPORT: &str = "ESPALIER_TEST_TRANSPORT";
const DESCRIPTORS: &str = "ESPALIER_TEST_DESCRIPTORS";

#[test]
#[ignore = "run in a process of its own, by the tests below"]
fn serve_in_a_process() {
    let path = PathBuf::from(std::env::var_os(MOUNTPOINT).unwrap());
    let uring = std::env::var(TRANSPORT).unwrap() == "Uring";
    let mut transport = if uring { Transport::Uring } else { Transport::Queues };
    let requested = wanted(transport);
    if std::env::var_os(DESCRIPTORS).is_some() {
        // Two remain: one for the kernel's switch, and one for the device.
        let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let limit = Rlimit { current: Some(next + 2), maximum: Some(next + 2) };
        setrlimit(Resource::Nofile, limit).unwrap();
        transport = Transport::Queues;
    }
    let session = Session::mount("doomed", &path, &MountOptions::default(), &requested).unwrap();
    assert_eq!(session.granted().transport(), transport);
    session.run(THREADS, Arc::new(MemoryFs::default())).unwrap();
}

fn serve_elsewhere(directory: &Path, transport: Transport, descriptors: Option<&str>) -> Child {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "serve_in_a_process"]);
    command.env(MOUNTPOINT, directory).env(TRANSPORT, format!("{transport:?}"));
    if let Some(descriptors) = descriptors {
        command.env(DESCRIPTORS, descriptors);
    }
    let outside = device(directory);
    let server = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("it is mounted", || device(directory) != outside);
    server
}

#[test]
fn without_io_uring_to_be_had_there_are_queues() {
    if let Err(error) = uring_available() {
        return eprintln!("skipped: {URING}: {error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let mut server = serve_elsewhere(directory.path(), Transport::Uring, Some("few"));
    let name = directory.path().join("a");
    fs::write(&name, b"hello").unwrap();
    assert_eq!(fs::read(&name).unwrap(), b"hello");
    unmount(directory.path()).unwrap();
    assert!(server.wait().unwrap().success());
}

fn the_mount_of_a_dead_server_is_recognised_and_removed(transport: Transport) {
    let directory = tempfile::tempdir().unwrap();
    let outside = device(directory.path());
    let mut server = serve_elsewhere(directory.path(), transport, None);
    assert!(!is_dead(directory.path()).unwrap());
    assert!(!detach_dead(directory.path()).unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(is_dead(directory.path()).unwrap());
    assert!(detach_dead(directory.path()).unwrap());
    assert!(!detach_dead(directory.path()).unwrap());
    assert_eq!(device(directory.path()), outside);
    // The mount point can be used again immediately.
    let mut server = serve_elsewhere(directory.path(), transport, None);
    fs::write(directory.path().join("a"), b"hello").unwrap();
    unmount(directory.path()).unwrap();
    assert!(server.wait().unwrap().success());
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}
