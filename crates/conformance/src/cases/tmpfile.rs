//! `O_TMPFILE`: files without a name until `linkat` gives them one.

use std::os::fd::AsRawFd;

use super::prelude::*;

fn make(d: &Dir, extra: OFlags) -> rustix::io::Result<File> {
    open(d.path(), OFlags::TMPFILE | OFlags::RDWR | extra)
}

fn link_by_proc(file: &File, to: PathBuf) -> rustix::io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

pub(super) fn unlinked(d: &Dir) -> CaseResult {
    let file = make(d, OFlags::empty())?;
    same!(file.metadata()?.nlink(), 0);
    check!(file.metadata()?.is_file());
    same!(crate::sys::names(d.path())?.len(), 0);
    let data = pattern(1, 200_000);
    file.write_all_at(&data, 0)?;
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0)?;
    same!(back, data);
    fails!(open(d.path(), OFlags::TMPFILE | OFlags::RDONLY), EINVAL);
    Ok(())
}

pub(super) fn linked_by_fd(d: &Dir) -> CaseResult {
    for len in [0, 10, 70_000] {
        let file = make(d, OFlags::empty())?;
        let data = pattern(2, len);
        file.write_all_at(&data, 0)?;
        rustix::fs::linkat(&file, "", CWD, d.at("named"), AtFlags::EMPTY_PATH)?;
        same!(stat(d.at("named"))?.st_ino, file.metadata()?.ino());
        same!(file.metadata()?.nlink(), 1);
        same!(fs::read(d.at("named"))?, data);
        fails!(rustix::fs::linkat(&file, "", CWD, d.at("named"), AtFlags::EMPTY_PATH), EEXIST);
        fs::remove_file(d.at("named"))?;
    }
    Ok(())
}

pub(super) fn linked_by_proc(d: &Dir) -> CaseResult {
    let file = make(d, OFlags::empty())?;
    file.write_all_at(b"before", 0)?;
    fs::create_dir(d.at("sub"))?;
    link_by_proc(&file, d.at("sub/named"))?;
    file.write_all_at(b"after!", 0)?;
    drop(file);
    same!(fs::read(d.at("sub/named"))?, b"after!");
    same!(mode(d.at("sub/named"))?, 0o644);
    Ok(())
}

pub(super) fn exclusive_cannot_be_linked(d: &Dir) -> CaseResult {
    let file = make(d, OFlags::EXCL)?;
    fails!(link_by_proc(&file, d.at("named")), ENOENT);
    check!(!exists(d.at("named")));
    // A file that lost its last name cannot get another either.
    let path = d.file("f", b"")?;
    let file = File::open(&path)?;
    fs::remove_file(&path)?;
    fails!(link_by_proc(&file, d.at("named")), ENOENT);
    Ok(())
}

pub(super) fn many(d: &Dir) -> CaseResult {
    let files: Vec<File> = (0..200).map(|_| make(d, OFlags::empty())).collect::<Result<_, _>>()?;
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(n.to_string().as_bytes(), 0)?;
    }
    for (n, file) in files.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        link_by_proc(file, d.at(n.to_string()))?;
    }
    drop(files);
    same!(crate::sys::names(d.path())?.len(), 100);
    for n in (0..200).step_by(2) {
        same!(fs::read_to_string(d.at(n.to_string()))?, n.to_string());
    }
    Ok(())
}
