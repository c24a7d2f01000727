use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

const PLAIN: RenameFlags = RenameFlags::empty();

fn rename(fs: &mut Harness, from: &str, to: &str, flags: RenameFlags) -> Result<Reply, Errno> {
    rename_as(fs, &ROOT_CALLER, from, to, flags)
}

fn rename_as(
    fs: &mut Harness,
    caller: &Caller,
    from: &str,
    to: &str,
    flags: RenameFlags,
) -> Result<Reply, Errno> {
    let (from_dir, from) = fs.place(from)?;
    let (to_dir, to) = fs.place(to)?;
    fs.ask_as(caller, Request::Rename { from_dir, from, to_dir, to, flags, time: None })
}

#[test]
fn a_name_moves() {
    everywhere(|fs| {
        fs.mkdir("a");
        fs.mkdir("b");
        let ino = fs.file("a/file", b"bytes");
        let before = fs.attr("a/file");
        assert_eq!(rename(fs, "a/file", "b/moved", PLAIN), Ok(Reply::Done));
        assert_eq!(fs.walk("a/file"), Err(Errno::ENOENT));
        let after = fs.attr("b/moved");
        assert_eq!((after.ino, after.mtime, after.nlink), (ino, before.mtime, 1));
        assert!(after.ctime > before.ctime);
        assert_eq!((fs.attr("a").mtime, fs.attr("b").mtime), (after.ctime, after.ctime));
    });
}

#[test]
fn existing_target_is_replaced() {
    everywhere(|fs| {
        let ino = fs.file("from", b"new");
        fs.file("to", b"old");
        let old = fs.open("to");
        rename(fs, "from", "to", PLAIN).unwrap();
        assert_eq!(fs.walk("to"), Ok(ino));
        // A client that has it open keeps it.
        fs.forget(old);
        assert_eq!((fs.attr_of(old).nlink, fs.read(old)), (0, b"old".to_vec()));
        fs.ask(Request::Release { ino: old }).unwrap();
        assert_eq!(fs.ask(Request::GetAttr { ino: old }), Err(Errno::ESTALE));
    });
}

#[test]
fn a_moved_directory_has_another_parent() {
    everywhere(|fs| {
        fs.mkdir("a");
        fs.mkdir("a/sub");
        fs.file("a/sub/file", b"");
        let to = fs.mkdir("b");
        fs.mkdir("b/empty");
        rename(fs, "a/sub", "b/empty", PLAIN).unwrap();
        assert_eq!((fs.attr("a").nlink, fs.attr("b").nlink), (2, 3));
        let dir = fs.walk("b/empty").unwrap();
        let listing = fs.ask(Request::ReadDir { dir, after: 0, limit: 10, plus: false });
        assert!(matches!(listing, Ok(Reply::Listing { parent, .. }) if parent == to));
        assert!(fs.walk("b/empty/file").is_ok());
    });
}

#[test]
fn two_names_of_one_file_both_stay() {
    everywhere(|fs| {
        let ino = fs.file("one", b"");
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("two") }).unwrap();
        rename(fs, "one", "two", PLAIN).unwrap();
        assert_eq!((fs.walk("one"), fs.walk("two")), (Ok(ino), Ok(ino)));
    });
}

#[test]
fn flags_exchange_refuse_and_leave_a_whiteout() {
    everywhere(|fs| {
        fs.mkdir("dir");
        let file = fs.file("file", b"bytes");
        let sub = fs.mkdir("dir/sub");
        rename(fs, "file", "dir/sub", RenameFlags::EXCHANGE).unwrap();
        assert_eq!((fs.walk("file"), fs.walk("dir/sub")), (Ok(sub), Ok(file)));
        assert_eq!(fs.attr("dir").nlink, 2);
        assert_eq!(rename(fs, "file", "dir/sub", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
        rename(fs, "dir/sub", "moved", RenameFlags::WHITEOUT).unwrap();
        let whiteout = fs.attr("dir/sub");
        assert_eq!((whiteout.kind, whiteout.rdev), (FileType::CharDevice, 0));
        assert_eq!(fs.walk("moved"), Ok(file));
    });
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.mkdir("dir/sub");
        fs.mkdir("full");
        fs.file("full/file", b"");
        fs.file("file", b"");
        let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
        assert_eq!(rename(fs, "absent", "file/x", both), Err(Errno::EINVAL));
        assert_eq!(rename(fs, "file", "file/x", PLAIN), Err(Errno::ENOTDIR));
        assert_eq!(rename(fs, "absent", "x", PLAIN), Err(Errno::ENOENT));
        assert_eq!(rename(fs, "file", "absent", RenameFlags::EXCHANGE), Err(Errno::ENOENT));
        assert_eq!(rename(fs, "dir", "dir/sub/x", PLAIN), Err(Errno::EINVAL));
        assert_eq!(rename(fs, "file", "dir", PLAIN), Err(Errno::EISDIR));
        assert_eq!(rename(fs, "dir", "file", PLAIN), Err(Errno::ENOTDIR));
        assert_eq!(rename(fs, "dir", "full", PLAIN), Err(Errno::ENOTEMPTY));
        assert_eq!(rename_as(fs, &user(5), "file", "full/x", PLAIN), Err(Errno::EACCES));
        fs.chmod("full", 0o1777);
        fs.mkdir("open");
        fs.chmod("open", 0o777);
        assert_eq!(rename_as(fs, &user(5), "full/file", "open/x", PLAIN), Err(Errno::EPERM));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("a");
        fs.mkdir("b");
        fs.mkdir("a/sub");
        fs.file("a/sub/inside", b"inside");
        fs.file("a/file", b"bytes");
        fs.file("b/old", b"old");
        fs.file("b/big", &[7; 100]);
        let ino = fs.walk("a/file").unwrap();
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("link") }).unwrap();
    };
    for (from, to, flags) in [
        ("a/file", "b/new", PLAIN),
        ("a/sub/inside", "b/old", PLAIN),
        ("link", "b/big", PLAIN),
        ("a/sub", "b/sub", PLAIN),
        ("a/sub", "b/old", RenameFlags::EXCHANGE),
        ("link", "b/old", RenameFlags::EXCHANGE),
        ("b/big", "a/big", RenameFlags::WHITEOUT),
    ] {
        under_faults(before, |fs| {
            let replaced = match fs.walk(to) {
                Err(Errno::ENOENT) => None,
                found => Some(found?),
            };
            let reply = rename(fs, from, to, flags);
            if let (Some(ino), PLAIN) = (replaced, flags) {
                fs.forget(ino);
            }
            reply
        });
    }
}
