//! `rename(2)` and `renameat2(2)`.

use rustix::fs::{RenameFlags, renameat_with};

use super::prelude::*;

fn rename(from: PathBuf, to: PathBuf, flags: RenameFlags) -> rustix::io::Result<()> {
    renameat_with(CWD, from, CWD, to, flags)
}

pub(super) fn plain(d: &Dir) -> CaseResult {
    let a = d.file("a", b"a")?;
    let before = stat(&a)?;
    fs::create_dir(d.at("dir"))?;
    fs::rename(&a, d.at("dir/b"))?;
    check!(!exists(&a));
    let after = stat(d.at("dir/b"))?;
    same!((after.st_ino, after.st_size, mtime(&after)), (before.st_ino, 1, mtime(&before)));
    fs::create_dir(d.at("dir/sub"))?;
    d.file("dir/sub/f", b"deep")?;
    fs::rename(d.at("dir"), d.at("moved"))?;
    same!(fs::read(d.at("moved/sub/f"))?, b"deep");
    fails!(fs::rename(d.at("dir"), d.at("x")), ENOENT);
    fails!(fs::rename(d.at("moved"), d.at("none/x")), ENOENT);
    fails!(fs::rename(d.at("moved/b/x"), d.at("y")), ENOTDIR);
    Ok(())
}

pub(super) fn no_replace(d: &Dir) -> CaseResult {
    let flags = RenameFlags::NOREPLACE;
    d.file("a", b"a")?;
    d.file("b", b"b")?;
    fails!(rename(d.at("a"), d.at("b"), flags), EEXIST);
    fails!(rename(d.at("a"), d.at("a"), flags), EEXIST);
    rustix::fs::symlink("nowhere", d.at("l"))?;
    fails!(rename(d.at("a"), d.at("l"), flags), EEXIST);
    rename(d.at("a"), d.at("c"), flags)?;
    same!(fs::read(d.at("c"))?, b"a");
    same!(fs::read(d.at("b"))?, b"b");
    Ok(())
}

pub(super) fn exchange(d: &Dir) -> CaseResult {
    let flags = RenameFlags::EXCHANGE;
    let (a, b) = (d.file("a", b"a")?, d.file("b", b"b")?);
    let (ino_a, ino_b) = (stat(&a)?.st_ino, stat(&b)?.st_ino);
    rename(a.clone(), b.clone(), flags)?;
    same!((stat(&a)?.st_ino, stat(&b)?.st_ino), (ino_b, ino_a));
    same!((fs::read(&a)?, fs::read(&b)?), (b"b".to_vec(), b"a".to_vec()));
    fails!(rename(a.clone(), d.at("none"), flags), ENOENT);
    fails!(rename(d.at("none"), a.clone(), flags), ENOENT);
    rename(a.clone(), a.clone(), flags)?;
    fs::hard_link(&a, d.at("a2"))?;
    rename(a.clone(), d.at("a2"), flags)?;
    same!(stat(&a)?.st_nlink, 2);
    Ok(())
}

pub(super) fn exchange_kinds(d: &Dir) -> CaseResult {
    let flags = RenameFlags::EXCHANGE;
    fs::create_dir_all(d.at("one/dir/inner"))?;
    fs::create_dir(d.at("two"))?;
    d.file("two/file", b"f")?;
    rename(d.at("one/dir"), d.at("two/file"), flags)?;
    same!(fs::read(d.at("one/dir"))?, b"f");
    check!(exists(d.at("two/file/inner")));
    // Moving a directory to another parent updates its `..` and the link counts.
    same!((stat(d.at("one"))?.st_nlink, stat(d.at("two"))?.st_nlink), (2, 3));
    same!(stat(d.at("two/file/.."))?.st_ino, stat(d.at("two"))?.st_ino);
    fails!(rename(d.at("two"), d.at("two/file"), flags), EINVAL);
    fails!(rename(d.at("two/file"), d.at("two"), flags), EINVAL);
    // Exchange of two directories that are not empty.
    d.file("one/x", b"")?;
    rename(d.at("one"), d.at("two"), flags)?;
    check!(exists(d.at("two/x")) && exists(d.at("one/file/inner")));
    Ok(())
}

pub(super) fn whiteout(d: &Dir) -> CaseResult {
    d.file("a", b"a")?;
    rename(d.at("a"), d.at("b"), RenameFlags::WHITEOUT)?;
    same!(fs::read(d.at("b"))?, b"a");
    let left = stat(d.at("a"))?;
    same!((left.st_mode & libc::S_IFMT, left.st_rdev), (libc::S_IFCHR, 0));
    fs::create_dir_all(d.at("dir/sub"))?;
    rename(d.at("dir"), d.at("b2"), RenameFlags::WHITEOUT | RenameFlags::NOREPLACE)?;
    check!(exists(d.at("b2/sub")));
    same!(stat(d.at("dir"))?.st_mode & libc::S_IFMT, libc::S_IFCHR);
    fs::remove_file(d.at("dir"))?;
    Ok(())
}

pub(super) fn into_own_subtree(d: &Dir) -> CaseResult {
    fs::create_dir_all(d.at("a/b/c"))?;
    for to in ["a/x", "a/b/x", "a/b/c/x", "a/b/c"] {
        fails!(fs::rename(d.at("a"), d.at(to)), EINVAL);
    }
    for to in ["a/b/x", "a/b/c/x"] {
        fails!(fs::rename(d.at("a/b"), d.at(to)), EINVAL);
    }
    fails!(fs::rename(d.at("a/b/c"), d.at("a")), ENOTEMPTY | EEXIST);
    fails!(fs::rename(d.at("a/."), d.at("z")), EBUSY | EINVAL);
    fails!(fs::rename(d.at("a/b/.."), d.at("z")), EBUSY | EINVAL);
    check!(exists(d.at("a/b/c")));
    Ok(())
}

pub(super) fn over_non_empty(d: &Dir) -> CaseResult {
    fs::create_dir(d.at("from"))?;
    fs::create_dir(d.at("to"))?;
    d.file("to/f", b"")?;
    fails!(fs::rename(d.at("from"), d.at("to")), ENOTEMPTY | EEXIST);
    fs::remove_file(d.at("to/f"))?;
    let ino = stat(d.at("from"))?.st_ino;
    fs::rename(d.at("from"), d.at("to"))?;
    same!(stat(d.at("to"))?.st_ino, ino);
    Ok(())
}

pub(super) fn over_kinds(d: &Dir) -> CaseResult {
    fs::create_dir(d.at("dir"))?;
    d.file("f", b"")?;
    rustix::fs::symlink("f", d.at("l"))?;
    fails!(fs::rename(d.at("dir"), d.at("f")), ENOTDIR);
    fails!(fs::rename(d.at("f"), d.at("dir")), EISDIR);
    fails!(fs::rename(d.at("l"), d.at("dir")), EISDIR);
    fails!(rustix::fs::rename(d.at("f"), d.at("g/")), ENOTDIR | ENOENT);
    fs::rename(d.at("f"), d.at("l"))?;
    check!(stat(d.at("l"))?.st_mode & libc::S_IFMT == libc::S_IFREG);
    Ok(())
}

pub(super) fn same_file(d: &Dir) -> CaseResult {
    let a = d.file("a", b"a")?;
    fs::hard_link(&a, d.at("b"))?;
    fs::rename(&a, d.at("b"))?;
    check!(exists(&a) && exists(d.at("b")));
    fs::rename(&a, &a)?;
    same!(stat(&a)?.st_nlink, 2);
    Ok(())
}

pub(super) fn over_open_file(d: &Dir) -> CaseResult {
    let old = d.open("old")?;
    old.write_all_at(&pattern(1, 100_000), 0)?;
    d.file("new", b"new")?;
    fs::rename(d.at("new"), d.at("old"))?;
    same!(old.metadata()?.nlink(), 0);
    let mut back = vec![0; 100_000];
    old.read_exact_at(&mut back, 0)?;
    same!(back, pattern(1, 100_000));
    same!(fs::read(d.at("old"))?, b"new");
    Ok(())
}

pub(super) fn open_directory(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    fs::create_dir(d.at("other"))?;
    let handle = open(&dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    fs::rename(&dir, d.at("other/moved"))?;
    rustix::fs::mkdirat(&handle, "made", Mode::from_raw_mode(0o755))?;
    check!(exists(d.at("other/moved/made")));
    same!(rustix::fs::statat(&handle, "..", AtFlags::empty())?.st_ino, stat(d.at("other"))?.st_ino);
    in_child(|| {
        std::env::set_current_dir(d.at("other/moved"))?;
        fs::rename(d.at("other"), d.at("away"))?;
        same!(std::env::current_dir()?, d.at("away/moved"));
        check!(Path::new("made").exists());
        Ok(())
    })
}

pub(super) fn sticky(d: &Dir) -> CaseResult {
    let shared = d.mkdir("shared", 0o1777)?;
    let mine = |name: &str, owner: User| -> CaseResult {
        let path = shared.join(name);
        fs::write(&path, b"")?;
        chmod(&path, 0o666)?;
        chown(&path, owner.uid, owner.gid)
    };
    mine("alice", ALICE)?;
    mine("bob", BOB)?;
    BOB.run(|| {
        fails!(fs::rename(shared.join("alice"), shared.join("x")), EPERM | EACCES);
        fails!(fs::rename(shared.join("bob"), shared.join("alice")), EPERM | EACCES);
        fails!(
            rename(shared.join("bob"), shared.join("alice"), RenameFlags::EXCHANGE),
            EPERM | EACCES
        );
        fs::rename(shared.join("bob"), shared.join("bob2"))?;
        Ok(())
    })?;
    // The owner of the directory may do all of this.
    chown(&shared, ALICE.uid, ALICE.gid)?;
    ALICE.run(|| Ok(fs::rename(shared.join("bob2"), shared.join("alice"))?))
}

pub(super) fn times(d: &Dir) -> CaseResult {
    fs::create_dir(d.at("one"))?;
    fs::create_dir(d.at("two"))?;
    d.file("one/f", b"")?;
    let before = (stat(d.at("one"))?, stat(d.at("two"))?, stat(d.at("one/f"))?);
    tick();
    fs::rename(d.at("one/f"), d.at("two/f"))?;
    let after = (stat(d.at("one"))?, stat(d.at("two"))?, stat(d.at("two/f"))?);
    check!(mtime(&after.0) > mtime(&before.0) && ctime(&after.0) > ctime(&before.0));
    check!(mtime(&after.1) > mtime(&before.1) && ctime(&after.1) > ctime(&before.1));
    check!(ctime(&after.2) > ctime(&before.2));
    same!(mtime(&after.2), mtime(&before.2));
    Ok(())
}

pub(super) fn dotdot_follows(d: &Dir) -> CaseResult {
    fs::create_dir_all(d.at("a/sub"))?;
    fs::create_dir(d.at("b"))?;
    same!((stat(d.at("a"))?.st_nlink, stat(d.at("b"))?.st_nlink), (3, 2));
    fs::rename(d.at("a/sub"), d.at("b/sub"))?;
    same!((stat(d.at("a"))?.st_nlink, stat(d.at("b"))?.st_nlink), (2, 3));
    same!(stat(d.at("b/sub/.."))?.st_ino, stat(d.at("b"))?.st_ino);
    fs::create_dir(d.at("a/sub"))?;
    fs::rename(d.at("b/sub"), d.at("a/sub"))?;
    same!((stat(d.at("a"))?.st_nlink, stat(d.at("b"))?.st_nlink), (3, 2));
    Ok(())
}

pub(super) fn bad_flags(d: &Dir) -> CaseResult {
    d.file("a", b"")?;
    d.file("b", b"")?;
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    fails!(rename(d.at("a"), d.at("b"), both), EINVAL);
    fails!(rename(d.at("a"), d.at("b"), RenameFlags::from_bits_retain(0x100)), EINVAL);
    Ok(())
}
