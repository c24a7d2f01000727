use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

fn rmdir(fs: &mut Harness, caller: &Caller, path: &str) -> Result<Reply, Errno> {
    let (dir, name) = fs.place(path)?;
    fs.ask_as(caller, Request::RmDir { dir, name, time: None })
}

#[test]
fn an_empty_directory_goes_with_its_parents_link() {
    everywhere(|fs| {
        fs.mkdir("dir");
        let ino = fs.mkdir("dir/sub");
        assert_eq!(rmdir(fs, &ROOT_CALLER, "dir/sub"), Ok(Reply::Done));
        assert_eq!(fs.walk("dir/sub"), Err(Errno::ENOENT));
        let dir = fs.attr("dir");
        assert!(dir.nlink == 2 && dir.mtime > dir.btime && dir.ctime == dir.mtime);
        // A process in the directory finds it empty.
        assert_eq!(fs.list(ino, false), []);
        fs.forget(ino);
        assert_eq!(fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
    });
}

#[test]
fn removed_file_is_stale_before_checkpoint() {
    let mut fs = Harness::new();
    fs.mkdir("dir");
    let ino = fs.mkdir("dir/sub");
    fs.checkpoint();
    assert_eq!(rmdir(&mut fs, &ROOT_CALLER, "dir/sub"), Ok(Reply::Done));
    fs.forget(ino);
    // The store still has a record of its place.
    for _ in 0..2 {
        assert_eq!(fs.ask(Request::Lookup { dir: ino, name: name("file") }), Err(Errno::ESTALE));
    }
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.mkdir("dir/sub");
        fs.file("dir/file", b"");
        assert_eq!(rmdir(fs, &ROOT_CALLER, "dir/file/x"), Err(Errno::ENOTDIR));
        assert_eq!(rmdir(fs, &user(5), "dir/absent"), Err(Errno::ENOENT));
        assert_eq!(rmdir(fs, &user(5), "dir/sub"), Err(Errno::EACCES));
        assert_eq!(rmdir(fs, &ROOT_CALLER, "dir/file"), Err(Errno::ENOTDIR));
        assert_eq!(rmdir(fs, &ROOT_CALLER, "dir"), Err(Errno::ENOTEMPTY));
        fs.chmod("dir", 0o1777);
        assert_eq!(rmdir(fs, &user(5), "dir/sub"), Err(Errno::EPERM));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.mkdir("dir/sub");
        fs.mkdir("dir/full");
        fs.file("dir/full/file", b"");
    };
    for path in ["dir/sub", "dir/full"] {
        under_faults(before, |fs| rmdir(fs, &ROOT_CALLER, path));
    }
}
