use espalier_meta::{Acknowledge, Config};
use espalier_proto::*;

use crate::harness::{Fault, Harness, ROOT_CALLER, config, everywhere, name, under_faults};

fn fsync(fs: &mut Harness, path: &str) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Fsync { ino })
}

#[test]
fn the_file_its_bytes_and_its_name_are_durable() {
    let mut fs = Harness::new();
    fs.mkdir("dir");
    fs.file("dir/file", b"bytes");
    assert_eq!(fsync(&mut fs, "dir/file"), Ok(Reply::Done));
    let seen = fs.dump();
    fs.file("later", b"");
    let mut fs = fs.crash();
    assert_eq!(fs.dump(), seen);
}

#[test]
fn a_big_files_stream_is_durable() {
    let mut fs = Harness::new();
    let ino = fs.file("big", &[7; 100]);
    fs.disk.store().stream_write(ino, 0, &[8; 100]).unwrap();
    fsync(&mut fs, "big").unwrap();
    let mut fs = fs.crash();
    fs.walk("big").unwrap();
    assert_eq!(fs.read(ino), [8; 100]);
}

#[test]
fn fsync_is_answered_after_journal_sync() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        fs.lazy = true;
        let id = fs.send(&ROOT_CALLER, Request::Fsync { ino: Ino::ROOT });
        assert_eq!(fs.answers.get(&id), None);
        fs.run_until_idle();
        assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Done)));
        fs.lazy = false;
    });
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let mut fs = Harness::new();
    fs.file("file", b"bytes");
    fsync(&mut fs, "file").unwrap();
    fs.file("lost", b"bytes");
    // Only this I/O fails; the disk works again at once.
    fs.fault = Some((fs.count, Fault::Fails(Errno::EIO)));
    assert_eq!(fsync(&mut fs, "lost"), Err(Errno::EIO));
    for _ in 0..3 {
        assert_eq!(fsync(&mut fs, "lost"), Err(Errno::EIO));
        assert_eq!(fs.write(Ino(2), 0, b"x"), Err(Errno::EIO));
        assert_eq!(fs.create(Ino::ROOT, "new", NewNode::Regular), Err(Errno::EIO));
        assert_eq!(
            fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None }),
            Err(Errno::EIO)
        );
        fs.checkpoint();
    }
    let ino = fs.walk("file").unwrap();
    assert_eq!(fs.read(ino), b"bytes");
    assert_eq!(fs.meta.failure(), Some(Errno::EIO));
    // An unmount does not wait for it.
    fs.drain();
    let mut fs = fs.crash();
    let ino = fs.walk("file").unwrap();
    assert_eq!(fs.read(ino), b"bytes");
    assert_eq!(fs.walk("lost"), Err(Errno::ENOENT));
    assert!(fs.create(Ino::ROOT, "new", NewNode::Regular).is_ok());
}

/// With durable acknowledgement, no reply exposes a change that will never be durable.
#[test]
fn with_sync_lost_change_is_not_reported() {
    let mut fs = Harness::with(Config { acknowledge: Acknowledge::Durable, ..config() });
    let dir = fs.mkdir("dir");
    fs.file("file", b"bytes");
    fs.file("dir/gone", b"");
    fs.fault = Some((fs.count, Fault::Fails(Errno::EIO)));
    assert_eq!(fs.ask(Request::Unlink { dir, name: name("gone"), time: None }), Err(Errno::EIO));
    let list = Request::ReadDir { dir, after: 0, limit: 10, plus: false };
    for request in [Request::Lookup { dir, name: name("gone") }, list, Request::GetAttr { ino: dir }] {
        assert_eq!(fs.ask(request), Err(Errno::EIO), "it may be there again after a restart");
    }
    let file = fs.walk("file").unwrap();
    assert_eq!(fs.read(file), b"bytes", "other files are readable");
    let mut fs = fs.crash();
    assert!(fs.walk("dir/gone").is_ok());
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.file("dir/big", &[7; 100]);
    };
    for path in ["dir/file", "dir/big", "dir"] {
        under_faults(before, |fs| fsync(fs, path));
    }
}
