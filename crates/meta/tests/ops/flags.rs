//! The flags of files and directories: immutable, append-only, nodump, noatime.

use espalier_meta::{Atime, Config};
use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, config, everywhere, name, open_how, under_faults, user};

const IMMUTABLE: InodeFlags = InodeFlags::IMMUTABLE;
const APPEND: InodeFlags = InodeFlags::APPEND;
const NODUMP: InodeFlags = InodeFlags::NODUMP;
const NOATIME: InodeFlags = InodeFlags::NOATIME;
const REFUSED: Result<Reply, Errno> = Err(Errno::EPERM);

fn set_as(fs: &mut Harness, caller: &Caller, path: &str, flags: InodeFlags) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
    fs.ask_as(caller, Request::SetAttr { ino, set })
}

fn set(fs: &mut Harness, path: &str, flags: InodeFlags) {
    set_as(fs, &ROOT_CALLER, path, flags).unwrap();
}

fn change(fs: &mut Harness, path: &str, set: SetAttr) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::SetAttr { ino, set })
}

fn unlink(fs: &mut Harness, path: &str) -> Result<Reply, Errno> {
    let (dir, name) = fs.place(path)?;
    fs.ask(Request::Unlink { dir, name, time: None })
}

fn rename(fs: &mut Harness, from: &str, to: &str) -> Result<Reply, Errno> {
    let ((from_dir, from), (to_dir, to)) = (fs.place(from)?, fs.place(to)?);
    fs.ask(Request::Rename { from_dir, from, to_dir, to, flags: RenameFlags::empty(), time: None })
}

fn link(fs: &mut Harness, from: &str, to: &str) -> Result<Reply, Errno> {
    let (ino, (dir, name)) = (fs.walk(from)?, fs.place(to)?);
    fs.ask(Request::Link { ino, dir, name })
}

fn xattr(fs: &mut Harness, path: &str) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    let (name, value) = (b"user.x".as_slice().into(), b"x".as_slice().into());
    fs.ask(Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false })
}

fn open(fs: &mut Harness, path: &str, access: Access, append: bool) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    let how = OpenHow { append, ..open_how(access, false) };
    let opened = fs.ask(Request::Open { ino, how });
    if opened.is_ok() {
        fs.ask(Request::Release { ino }).unwrap();
    }
    opened
}

fn write(fs: &mut Harness, path: &str) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.write(ino, 0, b"x")
}

fn allocate(fs: &mut Harness, path: &str, mode: AllocateMode) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Allocate { ino, offset: 0, length: 5, mode })
}

/// Either flag protects names and attributes.
fn keeps_names_and_attributes(fs: &mut Harness, path: &str) {
    let none = SetAttr::default();
    let past = Some(SetTime::To(Time::new(5, 0)));
    assert_eq!(unlink(fs, path), REFUSED);
    assert_eq!(rename(fs, path, "elsewhere"), REFUSED);
    assert_eq!(rename(fs, "other", path), REFUSED);
    assert_eq!(link(fs, path, "second"), REFUSED);
    assert_eq!(xattr(fs, path), REFUSED);
    for set in [
        SetAttr { perm: Some(0o600), ..none },
        SetAttr { uid: Some(5), ..none },
        SetAttr { size: Some(0), through_handle: true, ..none },
        SetAttr { size: Some(1000), ..none },
        SetAttr { atime: past, mtime: past, ..none },
        SetAttr { mtime: Some(SetTime::Now), ..none },
    ] {
        assert_eq!(change(fs, path, set), REFUSED, "{set:?}");
    }
}

#[test]
fn an_immutable_file_does_not_change() {
    everywhere(|fs| {
        fs.file("other", b"");
        for (path, bytes) in [("small", b"bytes".to_vec()), ("big", vec![7; 100])] {
            fs.file(path, &bytes);
            set(fs, path, IMMUTABLE);
            let before = fs.attr(path);
            assert_eq!(before.flags, IMMUTABLE);
            keeps_names_and_attributes(fs, path);
            let now = Some(SetTime::Now);
            assert_eq!(change(fs, path, SetAttr { atime: now, mtime: now, ..SetAttr::default() }), REFUSED);
            assert_eq!(write(fs, path), REFUSED);
            assert_eq!(open(fs, path, Access::WRITE, true), REFUSED);
            assert_eq!(allocate(fs, path, AllocateMode::empty()), REFUSED);
            assert_eq!(fs.attr(path), before);
            assert!(open(fs, path, Access::READ, false).is_ok());
            set(fs, path, InodeFlags::empty());
            assert!(unlink(fs, path).is_ok());
        }
    });
}

#[test]
fn append_only_file_grows_only_at_its_end() {
    everywhere(|fs| {
        fs.file("other", b"");
        for (path, bytes) in [("small", b"bytes".to_vec()), ("big", vec![7; 100])] {
            fs.file(path, &bytes);
            set(fs, path, APPEND);
            keeps_names_and_attributes(fs, path);
            assert_eq!(open(fs, path, Access::WRITE, false), REFUSED);
            assert!(
                open(fs, path, Access::WRITE, true).is_ok() && open(fs, path, Access::READ, false).is_ok()
            );
            let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
            assert_eq!(allocate(fs, path, punch), REFUSED);
            assert!(allocate(fs, path, AllocateMode::KEEP_SIZE).is_ok());
            let now = Some(SetTime::Now);
            assert!(change(fs, path, SetAttr { atime: now, mtime: now, ..SetAttr::default() }).is_ok());
        }
    });
}

#[test]
fn an_immutable_directory_keeps_its_entries() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.file("other", b"");
        set(fs, "dir", IMMUTABLE);
        let dir = fs.walk("dir").unwrap();
        assert_eq!(fs.create(dir, "new", NewNode::Regular), Err(Errno::EPERM));
        assert_eq!(link(fs, "other", "dir/new"), REFUSED);
        assert_eq!(rename(fs, "other", "dir/new"), REFUSED);
        assert_eq!(rename(fs, "dir/file", "moved"), REFUSED);
        assert_eq!(unlink(fs, "dir/file"), REFUSED);
        assert_eq!(fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("dir"), time: None }), REFUSED);
        // The file in it has no flags.
        assert!(write(fs, "dir/file").is_ok());
    });
}

#[test]
fn an_append_only_directory_only_gains_entries() {
    everywhere(|fs| {
        fs.mkdir("dir");
        set(fs, "dir", APPEND);
        fs.file("dir/file", b"bytes");
        fs.file("other", b"");
        assert_eq!(unlink(fs, "dir/file"), REFUSED);
        assert_eq!(rename(fs, "dir/file", "dir/moved"), REFUSED);
        assert_eq!(rename(fs, "other", "dir/file"), REFUSED);
        assert!(rename(fs, "other", "dir/new").is_ok());
        assert!(link(fs, "dir/new", "dir/second").is_ok());
    });
}

#[test]
fn owners_set_some_flags_and_the_superuser_all() {
    everywhere(|fs| {
        fs.file("file", b"");
        fs.chown("file", 5, 5);
        assert_eq!(set_as(fs, &user(6), "file", NODUMP), REFUSED);
        assert!(set_as(fs, &user(5), "file", NODUMP | NOATIME).is_ok());
        assert_eq!(set_as(fs, &user(5), "file", NODUMP | IMMUTABLE), REFUSED);
        set(fs, "file", NODUMP | IMMUTABLE);
        // An inode that stays immutable keeps its other flags.
        assert_eq!(set_as(fs, &ROOT_CALLER, "file", IMMUTABLE), REFUSED);
        assert_eq!(set_as(fs, &user(5), "file", NODUMP), REFUSED);
        set(fs, "file", NODUMP);
        fs.make("fifo", NewNode::Fifo);
        fs.make("link", NewNode::Symlink(b"x".as_slice().into()));
        for path in ["fifo", "link"] {
            assert_eq!(set_as(fs, &ROOT_CALLER, path, NODUMP), Err(Errno::EOPNOTSUPP));
        }
    });
}

#[test]
fn reading_a_noatime_file_keeps_its_access_time() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, ..config() });
    let ino = fs.file("file", b"bytes");
    set(fs, "file", NOATIME);
    let before = fs.attr("file").atime;
    fs.ask(Request::Read { ino, offset: 0, size: 5, noatime: false }).unwrap();
    assert_eq!(fs.attr("file").atime, before);
}

#[test]
fn a_tree_with_an_immutable_file_is_not_removed() {
    everywhere(|fs| {
        fs.mkdir("top");
        fs.mkdir("top/sub");
        fs.file("top/sub/file", b"bytes");
        fs.file("top/sub/second", b"bytes");
        link(fs, "top/sub/second", "outside").unwrap();
        let top = fs.walk("top").unwrap();
        for path in ["top", "top/sub", "top/sub/file", "outside"] {
            for flags in [IMMUTABLE, APPEND] {
                set(fs, path, flags);
                assert_eq!(fs.ask(Request::RemoveTree { dir: top }), REFUSED, "{path} {flags:?}");
                set(fs, path, InodeFlags::empty());
            }
        }
        assert!(fs.ask(Request::RemoveTree { dir: top }).is_ok());
    });
}

#[test]
fn flags_survive_a_crash_and_a_checkpoint() {
    let mut fs = Harness::new();
    fs.mkdir("dir");
    fs.file("dir/file", b"bytes");
    fs.file("big", &[7; 100]);
    set(&mut fs, "dir", APPEND);
    set(&mut fs, "dir/file", IMMUTABLE | NODUMP);
    set(&mut fs, "big", NOATIME);
    let ino = fs.walk("big").unwrap();
    fs.ask(Request::Fsync { ino }).unwrap();
    let mut fs = fs.crash();
    for _ in 0..2 {
        assert_eq!(fs.attr("dir").flags, APPEND);
        assert_eq!(fs.attr("dir/file").flags, IMMUTABLE | NODUMP);
        assert_eq!(fs.attr("big").flags, NOATIME);
        let top = fs.walk("dir").unwrap();
        assert_eq!(fs.ask(Request::RemoveTree { dir: top }), REFUSED);
        assert_eq!(fs.fsck(), []);
        fs.checkpoint();
        fs = fs.without_journal();
    }
}

#[test]
fn an_open_file_without_a_name_may_be_immutable() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        let ino = fs.open("file");
        unlink(fs, "file").unwrap();
        let set = SetAttr { flags: Some(IMMUTABLE), ..SetAttr::default() };
        fs.ask(Request::SetAttr { ino, set }).unwrap();
        assert_eq!(fs.write(ino, 0, b"x"), REFUSED);
        fs.ask(Request::Release { ino }).unwrap();
        fs.forget(ino);
    });
}

#[test]
fn setting_flags_happens_wholly_or_not_at_all() {
    let before = |fs: &mut Harness| {
        fs.file("file", b"bytes");
    };
    under_faults(before, |fs| set_as(fs, &ROOT_CALLER, "file", IMMUTABLE | NOATIME));
}
