use espalier_meta::{Atime, Config, Io, StreamCall};
use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, config, everywhere, name, open_how, under_faults, user};

fn read() -> OpenHow {
    open_how(Access::READ, false)
}

fn truncate() -> OpenHow {
    open_how(Access::WRITE, true)
}

fn open(fs: &mut Harness, caller: &Caller, path: &str, how: OpenHow) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask_as(caller, Request::Open { ino, how })
}

#[test]
fn open_file_exists_until_last_release() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        open(fs, &ROOT_CALLER, "file", read()).unwrap();
        open(fs, &ROOT_CALLER, "file", read()).unwrap();
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None }).unwrap();
        fs.forget(ino);
        fs.ask(Request::Release { ino }).unwrap();
        assert_eq!(fs.read(ino), b"bytes");
        fs.ask(Request::Release { ino }).unwrap();
        assert_eq!(fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
    });
}

#[test]
fn truncation_empties_the_file_and_takes_its_set_id_bits() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        fs.chmod("file", 0o6755);
        let before = fs.attr("file");
        open(fs, &ROOT_CALLER, "file", truncate()).unwrap();
        let after = fs.attr("file");
        assert_eq!((after.size, after.perm), (0, 0o755));
        assert!(after.mtime > before.mtime && after.ctime == after.mtime);
        assert_eq!(fs.read(ino), b"");
    });
}

#[test]
fn a_big_file_says_that_it_is_one_and_is_accessed_by_opening() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, ..config() });
    fs.file("big", &[7; 100]);
    let before = fs.attr("big").atime;
    let opened = Opened { streamed: true, accessed: true, ..Opened::default() };
    assert_eq!(open(fs, &ROOT_CALLER, "big", read()), Ok(Reply::Opened(opened)));
    assert!(fs.attr("big").atime > before);
    open(fs, &ROOT_CALLER, "big", truncate()).unwrap();
    assert_eq!(fs.attr("big").size, 0);
}

#[test]
fn open_file_is_unshared_without_sessions() {
    let fs = &mut Harness::new();
    fs.file("big", &[7; 100]);
    fs.file("small", b"bytes");
    let how = open_how(Access::READ | Access::WRITE, false);
    for name in ["big", "small"] {
        for _ in 0..2 {
            let opened = open(fs, &ROOT_CALLER, name, how);
            assert!(matches!(opened, Ok(Reply::Opened(Opened { shared: false, .. }))), "{name}: {opened:?}");
        }
    }
}

#[test]
fn the_caller_needs_the_rights() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        fs.chmod("file", 0o744);
        assert!(open(fs, &user(5), "file", read()).is_ok());
        assert_eq!(open(fs, &user(5), "file", truncate()), Err(Errno::EACCES));
        assert_eq!(fs.attr("file").size, 5);
    });
}

#[test]
fn truncating_open_succeeds_after_permission_change() {
    let fs = &mut Harness::new();
    let ino = fs.file("big", &[7; 100]);
    fs.chmod("big", 0o666);
    fs.shuffle = Some(fastrand::Rng::with_seed(1));
    let opens = fs.send(&user(5), Request::Open { ino, how: truncate() });
    let is_truncation = |(_, io): &(_, Io)| matches!(io, Io::Stream(StreamCall::Truncate { .. }, _));
    while !fs.waiting.iter().any(is_truncation) {
        assert!(fs.run_one());
    }
    let truncation = fs.waiting.extract_if(.., |waiting| is_truncation(waiting)).next().unwrap();
    fs.chmod("big", 0o600);
    fs.waiting.push(truncation);
    fs.run_until_idle();
    assert!(matches!(fs.answers.remove(&opens), Some(Ok(Reply::Opened(_)))));
    fs.shuffle = None;
    assert_eq!(open(fs, &user(5), "big", truncate()), Err(Errno::EACCES));
}

#[test]
fn a_read_only_mount_opens_nothing_for_writing() {
    let mut fs = Harness::new();
    fs.file("file", b"bytes");
    fs.drain();
    fs.config = Config { read_only: true, ..config() };
    let fs = &mut fs.crash();
    assert!(open(fs, &ROOT_CALLER, "file", read()).is_ok());
    assert_eq!(open(fs, &user(5), "file", truncate()), Err(Errno::EACCES));
    assert_eq!(open(fs, &ROOT_CALLER, "file", truncate()), Err(Errno::EROFS));
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.file("dir/big", &[7; 100]);
    };
    for path in ["dir/file", "dir/big"] {
        under_faults(before, |fs| open(fs, &ROOT_CALLER, path, truncate()));
    }
    under_faults(before, |fs| open(fs, &ROOT_CALLER, "dir/file", read()));
}
