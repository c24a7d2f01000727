//! `fallocate(2)` and its modes.

use rustix::fs::{FallocateFlags, fallocate};

use super::prelude::*;

const PLAIN: FallocateFlags = FallocateFlags::empty();

/// Returns false if the file system may lack the mode and does.
fn may_lack(d: &Dir, result: rustix::io::Result<()>) -> Result<bool, Failure> {
    match result {
        Err(e) if e == rustix::io::Errno::OPNOTSUPP && d.kind() != "fuse" => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

pub(super) fn extends(d: &Dir) -> CaseResult {
    for (len, to) in [(0, 10_000), (10, 66_000), (70_000, 200_000), (5, 5)] {
        let file = d.open(format!("f{to}"))?;
        let data = pattern(1, len);
        file.write_all_at(&data, 0)?;
        fallocate(&file, PLAIN, 0, to)?;
        same!(file.metadata()?.len(), to.max(len as u64));
        let all = fs::read(d.at(format!("f{to}")))?;
        check!(all[..len] == data && all[len..].iter().all(|b| *b == 0));
    }
    let file = d.open("g")?;
    fallocate(&file, PLAIN, 100_000, 1 << 20)?;
    same!(file.metadata()?.len(), 100_000 + (1 << 20));
    Ok(())
}

pub(super) fn keep_size(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"abc", 0)?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20)?;
    same!(file.metadata()?.len(), 3);
    same!(fs::read(d.at("f"))?, b"abc");
    file.set_len(100)?;
    same!(fs::read(d.at("f"))?[3..], [0; 97]);
    Ok(())
}

pub(super) fn punch_hole(d: &Dir) -> CaseResult {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for len in [5_000usize, 65_536, 400_000] {
        let file = d.open(format!("f{len}"))?;
        let mut want = pattern(1, len);
        file.write_all_at(&want, 0)?;
        let pieces = [(100, 200), (4096, 100), (len / 2, len / 4), (len - 10, 1000)];
        for (start, count) in pieces {
            if !may_lack(d, fallocate(&file, flags, start as u64, count as u64))? {
                return Ok(());
            }
            let end = (start + count).min(len);
            want[start.min(end)..end].fill(0);
            same!(file.metadata()?.len(), len as u64);
            same!(fs::read(d.at(format!("f{len}")))?, want);
        }
    }
    // A punched range frees its space.
    let file = d.open("big")?;
    file.write_all_at(&pattern(2, 4 << 20), 0)?;
    file.sync_all()?;
    let before = fs::metadata(d.at("big"))?.blocks();
    fallocate(&file, flags, 0, 4 << 20)?;
    let after = fs::metadata(d.at("big"))?.blocks();
    check!(after < before / 2, "{before} blocks before, {after} after");
    fails!(super::sparse::find(&file, true, 0), ENXIO);
    Ok(())
}

pub(super) fn zero_range(d: &Dir) -> CaseResult {
    let zero = FallocateFlags::ZERO_RANGE;
    for len in [3_000usize, 60_000, 300_000] {
        let file = d.open(format!("f{len}"))?;
        let mut want = pattern(1, len);
        file.write_all_at(&want, 0)?;
        if !may_lack(d, fallocate(&file, zero, 10, 2000))? {
            return Ok(());
        }
        want[10..2010].fill(0);
        same!(fs::read(d.at(format!("f{len}")))?, want);
        fallocate(&file, zero | FallocateFlags::KEEP_SIZE, len as u64 - 5, 100)?;
        want[len - 5..].fill(0);
        same!(fs::read(d.at(format!("f{len}")))?, want);
        fallocate(&file, zero, len as u64, 5000)?;
        want.resize(len + 5000, 0);
        same!(fs::read(d.at(format!("f{len}")))?, want);
    }
    Ok(())
}

/// Allocated ranges count as blocks, read as zeros and are writable; truncation frees them.
pub(super) fn allocates(d: &Dir) -> CaseResult {
    for len in [1_000u64, 20_000, 65_536, 300_000, 5 << 20] {
        for (keep, flags) in [(false, PLAIN), (true, FallocateFlags::KEEP_SIZE)] {
            let name = format!("f{len}-{keep}");
            let file = d.open(&name)?;
            same!(file.metadata()?.blocks(), 0);
            fallocate(&file, flags, 0, len)?;
            let (blocks, size) = (stat(d.at(&name))?.st_blocks as u64, file.metadata()?.len());
            check!(blocks * 512 >= len, "{blocks} blocks for {len} bytes");
            same!(size, if keep { 0 } else { len });
            check!(fs::read(d.at(&name))?.iter().all(|byte| *byte == 0), "not all zeros");
            super::sparse::consistent(&file, size, &[])?;
            let data = pattern(len, len as usize / 2);
            file.write_all_at(&data, 0)?;
            super::sparse::consistent(&file, file.metadata()?.len(), &[(0, len / 2)])?;
            check!(fs::read(d.at(&name))?[..data.len()] == data);
            let blocks = stat(d.at(&name))?.st_blocks as u64;
            check!(blocks * 512 >= len, "{blocks} blocks for {len} bytes when a half is written");
            file.set_len(0)?;
            let blocks = stat(d.at(&name))?.st_blocks;
            same!(blocks, 0, "blocks of {len} bytes after truncation");
        }
    }
    Ok(())
}

/// Punched, zeroed and skipped ranges are holes of whole blocks.
pub(super) fn makes_holes(d: &Dir) -> CaseResult {
    use super::sparse::find;
    const BLOCK: u64 = 4096;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for len in [30_000, 60_000, 400_000] {
        for (name, flags) in [("punched", punch), ("zeroed", FallocateFlags::ZERO_RANGE)] {
            let file = d.open(format!("{name}{len}"))?;
            file.write_all_at(&pattern(1, len), 0)?;
            file.sync_all()?;
            if !may_lack(d, fallocate(&file, flags, BLOCK - 10, 2 * BLOCK + 20))? {
                return Ok(());
            }
            same!(find(&file, false, 0)?, BLOCK, "{name} {len}");
            same!(find(&file, true, BLOCK)?, 3 * BLOCK, "{name} {len}");
            same!(find(&file, false, 3 * BLOCK)?, len as u64, "{name} {len}");
        }
        let file = d.open(format!("skipped{len}"))?;
        let (last, len) = (len as u64 / BLOCK, len as u64);
        file.set_len(len)?;
        file.write_all_at(b"first", 0)?;
        file.write_all_at(b"later", len - 2 * BLOCK)?;
        file.sync_all()?;
        same!(find(&file, true, 0)?, 0);
        same!(find(&file, false, 0)?, BLOCK, "skipped {len}");
        same!(find(&file, true, BLOCK)?, (last - 2) * BLOCK, "skipped {len}");
        same!(find(&file, false, (last - 2) * BLOCK)?, (last - 1) * BLOCK, "skipped {len}");
        fails!(find(&file, true, (last - 1) * BLOCK), ENXIO);
    }
    Ok(())
}

pub(super) fn errors(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    fails!(fallocate(&file, PLAIN, 0, 0), EINVAL);
    fails!(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 10), EOPNOTSUPP);
    fails!(fallocate(&File::open(d.at("f"))?, PLAIN, 0, 10), EBADF);
    fails!(fallocate(&file, PLAIN, i64::MAX as u64 - 10, 100), EFBIG | EINVAL);
    Ok(())
}
