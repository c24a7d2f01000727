use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

fn tmpfile(fs: &mut Harness, caller: &Caller, path: &str) -> Result<Attr, Errno> {
    let dir = fs.walk(path)?;
    match fs.ask_as(caller, Request::TmpFile { dir, perm: 0o666, umask: 0o022 })? {
        Reply::Created(entry, _) => Ok(entry.attr),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tmpfile_has_no_name_and_is_removed_on_close() {
    everywhere(|fs| {
        let attr = tmpfile(fs, &ROOT_CALLER, "").unwrap();
        assert_eq!((attr.nlink, attr.kind, attr.perm), (0, FileType::Regular, 0o644));
        assert_eq!(fs.list(Ino::ROOT, false), []);
        fs.write(attr.ino, 0, b"bytes").unwrap();
        assert_eq!(fs.read(attr.ino), b"bytes");
        fs.forget(attr.ino);
        fs.ask(Request::Release { ino: attr.ino }).unwrap();
        assert_eq!(fs.ask(Request::GetAttr { ino: attr.ino }), Err(Errno::ESTALE));
    });
}

#[test]
fn tmpfile_may_be_linked() {
    everywhere(|fs| {
        let ino = tmpfile(fs, &ROOT_CALLER, "").unwrap().ino;
        fs.write(ino, 0, b"bytes").unwrap();
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("file") }).unwrap();
        fs.ask(Request::Release { ino }).unwrap();
        fs.forget(ino);
        let attr = fs.attr("file");
        assert_eq!((attr.ino, attr.nlink, fs.read(ino)), (ino, 1, b"bytes".to_vec()));
    });
}

#[test]
fn the_caller_must_be_able_to_make_files_there() {
    everywhere(|fs| {
        fs.file("file", b"");
        assert_eq!(tmpfile(fs, &user(5), "file"), Err(Errno::ENOTDIR));
        assert_eq!(tmpfile(fs, &user(5), ""), Err(Errno::EACCES));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| _ = fs.mkdir("dir");
    // A failed operation leaves nothing behind.
    under_faults(before, |fs| tmpfile(fs, &ROOT_CALLER, "dir").map(|attr| Reply::Offset(attr.ino.0)));
}
