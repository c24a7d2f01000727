//! Symbolic links.

use super::prelude::*;

pub(super) fn lengths(d: &Dir) -> CaseResult {
    for len in [1, 59, 60, 255, 256, 1023, 1024, 4094, 4095] {
        let target = "t".repeat(len);
        let path = d.at(format!("l{len}"));
        rustix::fs::symlink(&target, &path)?;
        same!(fs::read_link(&path)?.as_os_str().len(), len);
        same!(fs::read_link(&path)?, Path::new(&target));
        same!(stat(&path)?.st_size, len as i64);
    }
    fails!(rustix::fs::symlink("t".repeat(4096), d.at("too-long")), ENAMETOOLONG);
    fails!(rustix::fs::symlink("", d.at("empty")), ENOENT);
    Ok(())
}

pub(super) fn dangling(d: &Dir) -> CaseResult {
    rustix::fs::symlink("later", d.at("l"))?;
    fails!(File::open(d.at("l")), ENOENT);
    fs::write(d.at("l"), b"made through the link")?;
    same!(fs::read(d.at("later"))?, b"made through the link");
    fs::remove_file(d.at("later"))?;
    fails!(fs::metadata(d.at("l")), ENOENT);
    check!(exists(d.at("l")));
    fails!(fs::create_dir(d.at("l")), EEXIST);
    Ok(())
}

pub(super) fn loops(d: &Dir) -> CaseResult {
    rustix::fs::symlink("b", d.at("a"))?;
    rustix::fs::symlink("a", d.at("b"))?;
    rustix::fs::symlink("self", d.at("self"))?;
    fails!(File::open(d.at("a")), ELOOP);
    fails!(fs::metadata(d.at("self/x")), ELOOP);
    fails!(File::create(d.at("self")), ELOOP);
    // 40 consecutive links are followed, 41 are not.
    d.file("c0", b"end")?;
    for n in 1..=41 {
        rustix::fs::symlink(format!("c{}", n - 1), d.at(format!("c{n}")))?;
    }
    same!(fs::read(d.at("c40"))?, b"end");
    fails!(fs::read(d.at("c41")), ELOOP);
    Ok(())
}

pub(super) fn relative_and_nested(d: &Dir) -> CaseResult {
    fs::create_dir_all(d.at("x/y/z"))?;
    d.file("x/f", b"f")?;
    rustix::fs::symlink("../../f", d.at("x/y/z/up"))?;
    rustix::fs::symlink("y/z", d.at("x/down"))?;
    same!(fs::read(d.at("x/down/up"))?, b"f");
    fs::rename(d.at("x"), d.at("w"))?;
    same!(fs::read(d.at("w/down/up"))?, b"f");
    rustix::fs::symlink(d.at("w"), d.at("absolute"))?;
    same!(fs::read(d.at("absolute/down/up"))?, b"f");
    Ok(())
}

pub(super) fn attributes(d: &Dir) -> CaseResult {
    umask(0o77);
    rustix::fs::symlink("f", d.at("l"))?;
    umask(0o22);
    same!(stat(d.at("l"))?.st_mode, libc::S_IFLNK | 0o777);
    d.file("f", b"")?;
    chown(d.at("l"), 60_001, 61_001)?;
    same!((stat(d.at("l"))?.st_uid, stat(d.at("l"))?.st_gid), (60_001, 61_001));
    same!(stat(d.at("f"))?.st_uid, 0);
    chmod(d.at("l"), 0o600)?;
    same!(mode(d.at("f"))?, 0o600);
    same!(mode(d.at("l"))?, 0o777);
    let times = rustix::fs::Timestamps {
        last_access: crate::dir::timespec(1, 2),
        last_modification: crate::dir::timespec(3, 4),
    };
    rustix::fs::utimensat(CWD, d.at("l"), &times, AtFlags::SYMLINK_NOFOLLOW)?;
    same!(mtime(&stat(d.at("l"))?), 3_000_000_004);
    check!(mtime(&stat(d.at("f"))?) > 3_000_000_004);
    Ok(())
}

pub(super) fn trailing_slash(d: &Dir) -> CaseResult {
    fs::create_dir(d.at("dir"))?;
    d.file("f", b"")?;
    rustix::fs::symlink("dir", d.at("ld"))?;
    rustix::fs::symlink("f", d.at("lf"))?;
    same!(rustix::fs::lstat(d.at("ld/"))?.st_mode & libc::S_IFMT, libc::S_IFDIR);
    fails!(rustix::fs::lstat(d.at("lf/")), ENOTDIR);
    fails!(fs::remove_dir(d.at("ld")), ENOTDIR);
    fails!(rustix::fs::rmdir(d.at("ld/")), ENOTDIR);
    fs::remove_file(d.at("ld"))?;
    check!(exists(d.at("dir")));
    Ok(())
}

pub(super) fn not_followed(d: &Dir) -> CaseResult {
    d.file("f", b"kept")?;
    rustix::fs::symlink("f", d.at("l"))?;
    fs::rename(d.at("l"), d.at("m"))?;
    same!(fs::read_link(d.at("m"))?, Path::new("f"));
    fs::remove_file(d.at("m"))?;
    same!(fs::read(d.at("f"))?, b"kept");
    fails!(fs::read_link(d.at("f")), EINVAL);
    fails!(fs::read_link(d.at("none")), ENOENT);
    Ok(())
}
