//! Requests with late replies do not delay others, also over io_uring. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use espalier_fuse::{
    Attr, Filesystem, InitFlags, MountOptions, Op, ROOT_NODE, Reply, Request, Session, Threads, Transport,
    Wanted, force_unmount, unmount,
};

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

/// An empty directory. Lookups of `wait` are left unanswered.
#[derive(Default)]
struct BlockedLookups(Mutex<Vec<Reply>>);

impl Filesystem for BlockedLookups {
    fn request(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Op::Lookup { name } if name.starts_with(b"wait") => self.0.lock().unwrap().push(reply),
            Op::Lookup { .. } => reply.error(ENOENT),
            Op::GetAttr { .. } => {
                let root = Attr { ino: ROOT_NODE, mode: 0o040_755, nlink: 2, ..Attr::default() };
                reply.attr(&root, Duration::from_secs(3600));
            }
            _ => reply.error(ENOSYS),
        }
    }
}

#[test]
fn blocked_requests_do_not_stop_others() {
    const MANY: usize = 60;
    let directory = tempfile::tempdir().unwrap();
    let flags = Wanted::default().flags | InitFlags::OVER_IO_URING;
    let wanted = Wanted { flags, ..Wanted::default() };
    let session = Session::mount("waiting", directory.path(), &MountOptions::default(), &wanted).unwrap();
    if session.granted().transport() != Transport::Uring {
        return eprintln!("skipped: the kernel has no io_uring to offer");
    }
    let filesystem = Arc::new(BlockedLookups::default());
    let served = Arc::clone(&filesystem);
    let threads = Threads { device: 2, rings: 8, rings_max: 256 };
    let server = std::thread::spawn(move || session.run(threads, served).unwrap());
    let root = directory.path();
    std::thread::scope(|scope| {
        for number in 0..MANY {
            scope.spawn(move || fs::symlink_metadata(root.join(format!("wait{number}"))).unwrap_err());
        }
        let began = Instant::now();
        while filesystem.0.lock().unwrap().len() < MANY {
            let (taken, time) = (filesystem.0.lock().unwrap().len(), began.elapsed());
            if time > Duration::from_secs(60) {
                // A failed test must not wait forever.
                filesystem.0.lock().unwrap().clear();
                force_unmount(root).unwrap();
                panic!("{taken} are taken after {time:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (signal, signalled) = mpsc::channel();
        scope.spawn(move || signal.send(fs::symlink_metadata(root.join("other")).unwrap_err().kind()));
        let answer = signalled.recv_timeout(Duration::from_secs(60));
        filesystem.0.lock().unwrap().drain(..).for_each(|reply| reply.error(ENOENT));
        assert_eq!(answer, Ok(ErrorKind::NotFound));
    });
    // The nudge of the kernel may still be pending.
    let ends = Instant::now() + Duration::from_secs(60);
    while let Err(error) = unmount(root) {
        assert!(Instant::now() < ends, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.join().unwrap();
}
