use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

fn link(fs: &mut Harness, caller: &Caller, from: &str, to: &str) -> Result<Reply, Errno> {
    let ino = fs.walk(from)?;
    let (dir, name) = fs.place(to)?;
    fs.ask_as(caller, Request::Link { ino, dir, name })
}

#[test]
fn all_names_are_of_one_file() {
    everywhere(|fs| {
        fs.mkdir("dir");
        let ino = fs.file("file", b"bytes");
        let before = fs.attr("file");
        let Ok(Reply::Entry(entry)) = link(fs, &ROOT_CALLER, "file", "dir/other") else { panic!("no entry") };
        let attr = fs.attr("file");
        assert_eq!(entry.attr, attr);
        assert_eq!((attr.ino, attr.nlink, attr.mtime), (ino, 2, before.mtime));
        assert!(attr.ctime > before.ctime);
        assert_eq!(fs.attr("dir").mtime, attr.ctime);
        assert_eq!(fs.attr("dir/other"), attr);
        fs.write(ino, 0, b"other").unwrap();
        assert_eq!(fs.attr("dir/other").mtime, fs.attr("file").mtime);
    });
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.file("file", b"");
        assert_eq!(link(fs, &user(5), "file", "file/x"), Err(Errno::ENOTDIR));
        assert_eq!(link(fs, &user(5), "file", "dir/new"), Err(Errno::EACCES));
        assert_eq!(link(fs, &ROOT_CALLER, "dir", "dir/new"), Err(Errno::EPERM));
        assert_eq!(link(fs, &ROOT_CALLER, "file", "dir"), Err(Errno::EEXIST));
    });
}

#[test]
fn unlinked_inode_cannot_be_linked() {
    everywhere(|fs| {
        fs.file("file", b"");
        let ino = fs.open("file");
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None }).unwrap();
        let request = Request::Link { ino, dir: Ino::ROOT, name: name("new") };
        assert_eq!(fs.ask(request), Err(Errno::ENOENT));
        fs.ask(Request::Release { ino }).unwrap();
        fs.forget(ino);
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        let ino = fs.file("file", b"bytes");
        fs.file("single", b"bytes");
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("double") }).unwrap();
    };
    for from in ["single", "double"] {
        under_faults(before, |fs| link(fs, &ROOT_CALLER, from, "dir/new"));
    }
}
