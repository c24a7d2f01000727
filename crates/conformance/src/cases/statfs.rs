//! `statfs(2)` and `statvfs(3)`.

use super::prelude::*;

pub(super) fn sane(d: &Dir) -> CaseResult {
    let s = d.statfs()?;
    check!(s.f_bsize > 0 && s.f_blocks > 0);
    check!(s.f_bfree <= s.f_blocks && s.f_bavail <= s.f_bfree);
    check!(s.f_ffree <= s.f_files || s.f_files == 0);
    let f = d.file("f", b"")?;
    let v = rustix::fs::statvfs(&f)?;
    check!(v.f_frsize > 0 && v.f_namemax >= 255);
    same!(rustix::fs::fstatfs(&d.open("f")?)?.f_blocks, s.f_blocks);
    Ok(())
}

pub(super) fn counts_change(d: &Dir) -> CaseResult {
    let mut used = 0;
    // Retry: other programs may free space meanwhile, and earlier removals may be freed in the
    // background.
    for attempt in 0..20 {
        let before = d.statfs()?;
        let file = d.open(format!("f{attempt}"))?;
        file.write_all_at(&pattern(1, 32 << 20), 0)?;
        file.sync_all()?;
        let after = d.statfs()?;
        used = before.f_bfree.saturating_sub(after.f_bfree) * before.f_bsize as u64;
        if used >= 24 << 20 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    Err(crate::Failure::at(format!("32 MiB written, {used} bytes less free")))
}

pub(super) fn names(d: &Dir) -> CaseResult {
    same!(d.statfs()?.f_namelen, 255);
    Ok(())
}
