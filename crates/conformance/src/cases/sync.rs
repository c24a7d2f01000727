//! `fsync` and related calls succeed without changes, on all types of files that POSIX lists.

use super::prelude::*;

pub(super) fn files(d: &Dir) -> CaseResult {
    for len in [0, 10, 70_000, 2_000_000] {
        let file = d.open(format!("f{len}"))?;
        let data = pattern(1, len);
        file.write_all_at(&data, 0)?;
        file.sync_all()?;
        file.sync_data()?;
        same!(fs::read(d.at(format!("f{len}")))?, data);
        File::open(d.at(format!("f{len}")))?.sync_all()?;
    }
    let (reader, _writer) = crate::process::pipe()?;
    fails!(rustix::fs::fsync(reader), EINVAL | EROFS);
    Ok(())
}

pub(super) fn directories(d: &Dir) -> CaseResult {
    let directory = open(d.path(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    for n in 0..20 {
        d.file(n.to_string(), b"x")?;
        rustix::fs::fsync(&directory)?;
    }
    rustix::fs::fdatasync(&directory)?;
    same!(crate::sys::names(d.path())?.len(), 20);
    Ok(())
}

pub(super) fn filesystem(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(&pattern(1, 500_000), 0)?;
    rustix::fs::syncfs(&file)?;
    rustix::fs::syncfs(open(d.path(), OFlags::RDONLY)?)?;
    same!(fs::read(d.at("f"))?, pattern(1, 500_000));
    Ok(())
}

pub(super) fn ranges(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(&pattern(1, 500_000), 0)?;
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    for (offset, len) in [(0, 0), (0, 4096), (100_000, 200_000)] {
        crate::sys::sync_file_range(&file, offset, len, all)?;
    }
    fails!(crate::sys::sync_file_range(&file, 0, 0, 1 << 20), EINVAL);
    same!(fs::read(d.at("f"))?, pattern(1, 500_000));
    Ok(())
}

pub(super) fn after_unlink(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(&pattern(1, 100_000), 0)?;
    fs::remove_file(d.at("f"))?;
    file.sync_all()?;
    rustix::fs::syncfs(&file)?;
    same!(file.metadata()?.len(), 100_000);
    Ok(())
}
