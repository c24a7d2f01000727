use espalier_proto::*;

use crate::harness::{Harness, everywhere, name, under_faults, user};

fn unlink(fs: &mut Harness, path: &str) -> Result<Reply, Errno> {
    unlink_as(fs, &crate::harness::ROOT_CALLER, path)
}

fn unlink_as(fs: &mut Harness, caller: &Caller, path: &str) -> Result<Reply, Errno> {
    let (dir, name) = fs.place(path)?;
    fs.ask_as(caller, Request::Unlink { dir, name, time: None })
}

#[test]
fn the_name_goes_and_the_times_of_its_directory_change() {
    everywhere(|fs| {
        fs.mkdir("dir");
        let ino = fs.file("dir/file", b"bytes");
        assert_eq!(unlink(fs, "dir/file"), Ok(Reply::Done));
        assert_eq!(fs.walk("dir/file"), Err(Errno::ENOENT));
        let dir = fs.attr("dir");
        assert!(dir.mtime == dir.ctime && dir.mtime > dir.btime);
        // The kernel still knows it.
        assert_eq!(fs.attr_of(ino).nlink, 0);
        fs.forget(ino);
        assert_eq!(fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
    });
}

#[test]
fn of_several_names_the_others_stay() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("other") }).unwrap();
        let before = fs.attr("other");
        unlink(fs, "file").unwrap();
        let after = fs.attr("other");
        assert!((before.nlink, after.nlink) == (2, 1) && after.ctime > before.ctime);
        assert_eq!(after.mtime, before.mtime);
        assert_eq!(fs.read(ino), b"bytes");
    });
}

#[test]
fn an_open_file_stays_until_it_is_released() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        let ino = fs.open("file");
        unlink(fs, "file").unwrap();
        fs.forget(ino);
        assert_eq!(fs.read(ino), b"bytes");
        fs.ask(Request::Release { ino }).unwrap();
        assert_eq!(fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
    });
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.mkdir("dir/sub");
        fs.file("dir/file", b"");
        assert_eq!(unlink(fs, "dir/file/x"), Err(Errno::ENOTDIR));
        assert_eq!(unlink(fs, "dir/sub"), Err(Errno::EISDIR));
        assert_eq!(unlink(fs, "dir/absent"), Err(Errno::ENOENT));
        let other = user(5);
        // In a directory that may be searched but not written, `ENOENT` takes precedence.
        assert_eq!(unlink_as(fs, &other, "dir/absent"), Err(Errno::ENOENT));
        assert_eq!(unlink_as(fs, &other, "dir/file"), Err(Errno::EACCES));
        fs.chmod("dir", 0o700);
        assert_eq!(unlink_as(fs, &other, "dir/absent"), Err(Errno::EACCES));
        // In a sticky directory only the owner may remove.
        fs.chmod("dir", 0o1777);
        assert_eq!(unlink_as(fs, &other, "dir/file"), Err(Errno::EPERM));
        fs.chown("dir/file", 5, 5);
        assert_eq!(unlink_as(fs, &other, "dir/file"), Ok(Reply::Done));
    });
}

#[test]
fn acknowledged_time_is_used_if_near_now() {
    everywhere(|fs| {
        for (skew, is_accepted) in [(-11, false), (-9, true), (0, true), (9, true), (11, false)] {
            fs.file("file", b"bytes");
            let ino = fs.open("file");
            let time = Time::new(fs.now.secs + skew, 0);
            fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: Some(time) }).unwrap();
            let expected = if is_accepted { time } else { fs.now };
            assert_eq!(fs.attr_of(ino).ctime, expected);
            let dir = fs.attr_of(Ino::ROOT);
            assert_eq!([dir.mtime, dir.ctime], [expected; 2]);
            fs.ask(Request::Release { ino }).unwrap();
            fs.forget(ino);
        }
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.file("dir/big", &[7; 100]);
        let ino = fs.file("dir/first", b"two names");
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("second") }).unwrap();
    };
    for path in ["dir/file", "dir/big", "dir/first", "second"] {
        under_faults(before, |fs| {
            let reply = unlink(fs, path);
            let ino = fs.walk("dir")?;
            fs.forget(ino);
            reply
        });
    }
}
