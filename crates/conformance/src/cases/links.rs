//! Hard links.

use super::prelude::*;

pub(super) fn counts(d: &Dir) -> CaseResult {
    let a = d.file("a", b"x")?;
    for n in 0..10 {
        fs::hard_link(&a, d.at(n.to_string()))?;
        same!(stat(&a)?.st_nlink, n + 2);
    }
    let ino = stat(&a)?.st_ino;
    for n in 0..10 {
        same!(stat(d.at(n.to_string()))?.st_ino, ino);
        fs::remove_file(d.at(n.to_string()))?;
        same!(stat(&a)?.st_nlink, 10 - n);
    }
    Ok(())
}

/// 65,000 names for one file (ext4's limit), or fewer if the file system returns EMLINK.
pub(super) fn max_links(d: &Dir) -> CaseResult {
    let a = d.file("a", b"shared")?;
    let mut names: u64 = 1;
    while names < 65_000 {
        match fs::hard_link(&a, d.at(format!("l{names}"))) {
            Ok(()) => names += 1,
            Err(e) if e.raw_os_error() == Some(libc::EMLINK) => break,
            Err(e) => return Err(e.into()),
        }
    }
    check!(names >= 65_000, "only {names} links");
    same!(stat(&a)?.st_nlink, names);
    same!(fs::read(d.at("l64999"))?, b"shared");
    for n in (1..names).step_by(2) {
        fs::remove_file(d.at(format!("l{n}")))?;
    }
    same!(stat(&a)?.st_nlink, names - names / 2);
    Ok(())
}

pub(super) fn shared_data(d: &Dir) -> CaseResult {
    let a = d.file("a", b"one")?;
    let b = d.at("b");
    fs::hard_link(&a, &b)?;
    for len in [3, 5000, 65_536, 70_000] {
        let data = pattern(len as u64, len);
        fs::write(&b, &data)?;
        same!(fs::read(&a)?, data);
    }
    chmod(&a, 0o604)?;
    same!(mode(&b)?, 0o604);
    fs::remove_file(&a)?;
    same!(fs::read(&b)?.len(), 70_000);
    same!(stat(&b)?.st_nlink, 1);
    Ok(())
}

pub(super) fn errors(d: &Dir) -> CaseResult {
    let a = d.file("a", b"")?;
    let dir = d.mkdir("dir", 0o755)?;
    fails!(fs::hard_link(&a, &dir), EEXIST);
    fails!(fs::hard_link(&a, &a), EEXIST);
    fails!(fs::hard_link(&dir, d.at("dir2")), EPERM);
    fails!(fs::hard_link(d.at("none"), d.at("b")), ENOENT);
    fails!(fs::hard_link(&a, d.at("none/b")), ENOENT);
    fails!(fs::hard_link(&a, d.at("a/b")), ENOTDIR);
    let other_mounts = ["/dev/shm", "/tmp", "/run", "/"].into_iter().map(Path::new);
    for other in other_mounts.filter(|p| stat(p).is_ok_and(|s| s.st_dev != stat(&a).map_or(0, |s| s.st_dev))) {
        fails!(fs::hard_link(&a, other.join("espalier-never-made")), EXDEV);
    }
    same!(stat(&a)?.st_nlink, 1);
    Ok(())
}

pub(super) fn across_directories(d: &Dir) -> CaseResult {
    for n in 0..20 {
        fs::create_dir(d.at(format!("d{n}")))?;
    }
    d.file("d0/f", b"content")?;
    for n in 1..20 {
        fs::hard_link(d.at(format!("d{}/f", n - 1)), d.at(format!("d{n}/f")))?;
    }
    // Remove the first name: the file must not depend on its original directory.
    fs::remove_file(d.at("d0/f"))?;
    fs::remove_dir(d.at("d0"))?;
    same!(fs::read(d.at("d19/f"))?, b"content");
    same!(stat(d.at("d7/f"))?.st_nlink, 19);
    fs::rename(d.at("d3/f"), d.at("d4/g"))?;
    fs::write(d.at("d4/g"), b"changed")?;
    same!(fs::read(d.at("d1/f"))?, b"changed");
    // Renaming a name to another name of the same file has no effect.
    fs::rename(d.at("d4/g"), d.at("d4/f"))?;
    check!(exists(d.at("d4/g")) && exists(d.at("d4/f")));
    Ok(())
}

pub(super) fn symlink_itself(d: &Dir) -> CaseResult {
    rustix::fs::symlink("target", d.at("s"))?;
    rustix::fs::linkat(CWD, d.at("s"), CWD, d.at("t"), AtFlags::empty())?;
    same!(fs::read_link(d.at("t"))?, Path::new("target"));
    same!(stat(d.at("s"))?.st_nlink, 2);
    d.file("target", b"file")?;
    rustix::fs::linkat(CWD, d.at("s"), CWD, d.at("u"), AtFlags::SYMLINK_FOLLOW)?;
    same!(fs::read(d.at("u"))?, b"file");
    check!(stat(d.at("u"))?.st_mode & libc::S_IFMT == libc::S_IFREG);
    Ok(())
}

pub(super) fn link_of_open_file(d: &Dir) -> CaseResult {
    let file = d.open("a")?;
    file.write_all_at(b"1", 0)?;
    fs::hard_link(d.at("a"), d.at("b"))?;
    file.write_all_at(&pattern(1, 80_000), 0)?;
    same!(fs::read(d.at("b"))?, pattern(1, 80_000));
    same!(file.metadata()?.nlink(), 2);
    fs::remove_file(d.at("a"))?;
    same!(file.metadata()?.nlink(), 1);
    Ok(())
}
