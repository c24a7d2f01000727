//! Lookups of names, and inode numbers.

use std::collections::HashMap;

use super::prelude::*;

pub(super) fn errors(d: &Dir) -> CaseResult {
    d.file("f", b"")?;
    fs::create_dir(d.at("dir"))?;
    fails!(fs::metadata(d.at("none")), ENOENT);
    fails!(fs::metadata(d.at("dir/none")), ENOENT);
    fails!(fs::metadata(d.at("none/none")), ENOENT);
    fails!(fs::metadata(d.at("f/none")), ENOTDIR);
    fails!(fs::metadata(d.at("f/.")), ENOTDIR);
    fails!(fs::metadata(d.at("f/..")), ENOTDIR);
    fails!(fs::remove_file(d.at("f/x")), ENOTDIR);
    fails!(fs::create_dir(d.at("f/x")), ENOTDIR);
    fails!(fs::create_dir(d.at("none/x")), ENOENT);
    fails!(fs::create_dir(d.at("f")), EEXIST);
    fails!(fs::remove_dir(d.at("none")), ENOENT);
    fails!(rustix::fs::lstat(""), ENOENT);
    Ok(())
}

pub(super) fn inode_numbers(d: &Dir) -> CaseResult {
    let mut all = HashMap::new();
    for n in 0..500 {
        let path = if n % 5 == 0 { d.mkdir(n.to_string(), 0o755)? } else { d.file(n.to_string(), b"x")? };
        let s = stat(&path)?;
        check!(s.st_ino != 0);
        check!(all.insert(s.st_ino, path).is_none(), "inode {} twice", s.st_ino);
    }
    for (ino, path) in &all {
        same!(stat(path)?.st_ino, *ino);
        same!(stat(path)?.st_dev, stat(d.path())?.st_dev);
    }
    // Renames, writes and mode changes keep the inode number.
    let ino = stat(d.at("1"))?.st_ino;
    fs::rename(d.at("1"), d.at("5/moved"))?;
    fs::write(d.at("5/moved"), pattern(1, 100_000))?;
    chmod(d.at("5/moved"), 0o600)?;
    same!(stat(d.at("5/moved"))?.st_ino, ino);
    Ok(())
}

pub(super) fn directory_links(d: &Dir) -> CaseResult {
    same!(stat(d.path())?.st_nlink, 2);
    for n in 0..10 {
        fs::create_dir(d.at(format!("d{n}")))?;
        d.file(format!("f{n}"), b"")?;
        same!(stat(d.path())?.st_nlink, n + 3);
        same!(stat(d.at(format!("d{n}")))?.st_nlink, 2);
    }
    fs::remove_dir(d.at("d0"))?;
    fs::rename(d.at("d1"), d.at("d2"))?;
    same!(stat(d.path())?.st_nlink, 10);
    Ok(())
}

pub(super) fn trailing_slashes(d: &Dir) -> CaseResult {
    d.file("f", b"")?;
    rustix::fs::mkdir(d.at("dir/"), Mode::from_raw_mode(0o755))?;
    fails!(rustix::fs::stat(d.at("f/")), ENOTDIR);
    rustix::fs::stat(d.at("dir///"))?;
    fails!(rustix::fs::unlink(d.at("f/")), ENOTDIR);
    rustix::fs::rename(d.at("dir/"), d.at("dir2/"))?;
    rustix::fs::rmdir(d.at("dir2/"))?;
    Ok(())
}

/// A name with a cached negative lookup appears at once, whichever operation makes it.
pub(super) fn negative_then_created(d: &Dir) -> CaseResult {
    d.file("source", b"x")?;
    let n = d.at("n");
    let makers: [&dyn Fn() -> CaseResult; 6] = [
        &|| Ok(fs::write(&n, b"")?),
        &|| Ok(fs::create_dir(&n)?),
        &|| Ok(rustix::fs::symlink("x", &n)?),
        &|| Ok(fs::hard_link(d.at("source"), &n)?),
        &|| {
            d.file("other", b"")?;
            Ok(fs::rename(d.at("other"), &n)?)
        },
        &|| in_child(|| Ok(fs::write(&n, b"")?)),
    ];
    for make in makers {
        for _ in 0..3 {
            fails!(fs::symlink_metadata(&n), ENOENT);
            make()?;
            let s = fs::symlink_metadata(&n)?;
            if s.is_dir() { fs::remove_dir(&n)? } else { fs::remove_file(&n)? }
        }
        fails!(fs::symlink_metadata(&n), ENOENT);
    }
    Ok(())
}

pub(super) fn current_and_parent(d: &Dir) -> CaseResult {
    fs::create_dir_all(d.at("a/b"))?;
    same!(stat(d.at("a/b/."))?.st_ino, stat(d.at("a/b"))?.st_ino);
    same!(stat(d.at("a/b/.."))?.st_ino, stat(d.at("a"))?.st_ino);
    same!(stat(d.at("a/b/../.."))?.st_ino, stat(d.path())?.st_ino);
    same!(stat(d.at("a/./b/../b/."))?.st_ino, stat(d.at("a/b"))?.st_ino);
    Ok(())
}
