//! Holes: `SEEK_HOLE`, `SEEK_DATA`, and allocated space.

use rustix::fs::{SeekFrom, seek};

use super::prelude::*;

/// Offset of the first data, or of the first hole, at or after `from`.
pub(super) fn find(file: &File, data: bool, from: u64) -> rustix::io::Result<u64> {
    seek(file, if data { SeekFrom::Data(from) } else { SeekFrom::Hole(from) })
}

/// Checks that `data` is within the reported data segments and everything else reads as zeros.
pub(super) fn consistent(file: &File, len: u64, data: &[(u64, u64)]) -> CaseResult {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match find(file, true, at) {
            Ok(start) => start,
            Err(e) if e == rustix::io::Errno::NXIO => break,
            Err(e) => return Err(e.into()),
        };
        let end = find(file, false, start)?;
        check!(start >= at && end > start && end <= len, "data at {start}..{end} of {len}");
        segments.push((start, end));
        at = end;
    }
    for &(start, end) in data {
        check!(
            segments.iter().any(|s| s.0 <= start && end <= s.1),
            "data {start}..{end} lies in a hole: {segments:?}"
        );
    }
    Ok(())
}

/// Copies the reported data segments, as cp(1) does, and the length.
pub(super) fn copy_data(from: &File, to: &File) -> CaseResult {
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut at = 0;
    while at < len {
        let start = match find(from, true, at) {
            Err(e) if e == rustix::io::Errno::NXIO => break,
            found => found?,
        };
        at = find(from, false, start)?;
        let mut data = vec![0; (at - start) as usize];
        from.read_exact_at(&mut data, start)?;
        to.write_all_at(&data, start)?;
    }
    Ok(())
}

pub(super) fn small_holes(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"end", 20_000)?;
    same!(file.metadata()?.len(), 20_003);
    let mut all = vec![1; 20_003];
    file.read_exact_at(&mut all, 0)?;
    check!(all[..20_000].iter().all(|b| *b == 0));
    consistent(&file, 20_003, &[(20_000, 20_003)])?;
    fails!(find(&file, true, 20_003), ENXIO);
    fails!(find(&file, false, 20_003), ENXIO);
    same!(find(&file, false, 20_002)?, 20_003);
    let empty = d.open("empty")?;
    fails!(find(&empty, true, 0), ENXIO);
    Ok(())
}

pub(super) fn big_holes(d: &Dir) -> CaseResult {
    const MIB: u64 = 1 << 20;
    let file = d.open("f")?;
    let pieces = [(0, 100), (4 * MIB, 5 * MIB), (9 * MIB, 9 * MIB + 1), (20 * MIB, 20 * MIB + 70_000)];
    for (start, end) in pieces {
        file.write_all_at(&pattern(start, (end - start) as usize), start)?;
    }
    let len = file.metadata()?.len();
    same!(len, 20 * MIB + 70_000);
    consistent(&file, len, &pieces)?;
    check!(find(&file, false, 4 * MIB)? < 9 * MIB, "a hole of 4 MiB is not seen");
    for (start, end) in pieces {
        let mut back = vec![0; (end - start) as usize];
        file.read_exact_at(&mut back, start)?;
        same!(back, pattern(start, (end - start) as usize));
    }
    file.set_len(30 * MIB)?;
    consistent(&file, 30 * MIB, &pieces)?;
    same!(find(&file, false, 29 * MIB)?, 29 * MIB);
    Ok(())
}

pub(super) fn terabytes(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    let far = (4u64 << 40) - 4096;
    file.write_all_at(b"four terabytes away", far)?;
    file.write_all_at(b"start", 0)?;
    let len = file.metadata()?.len();
    same!(len, far + 19);
    check!(file.metadata()?.blocks() < 1 << 15, "{} blocks", file.metadata()?.blocks());
    consistent(&file, len, &[(0, 5), (far, far + 19)])?;
    let mut back = [0; 19];
    file.read_exact_at(&mut back, far)?;
    same!(&back, b"four terabytes away");
    file.read_exact_at(&mut back, 1 << 41)?;
    same!(back, [0; 19]);
    file.set_len(1 << 40)?;
    file.sync_all()?;
    same!(fs::metadata(d.at("f"))?.len(), 1 << 40);
    file.set_len(3)?;
    same!(fs::read(d.at("f"))?, b"sta");
    Ok(())
}

pub(super) fn blocks_sane(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(&pattern(1, 1 << 20), 0)?;
    file.sync_all()?;
    let blocks = fs::metadata(d.at("f"))?.blocks() * 512;
    check!((1 << 20..4 << 20).contains(&blocks), "{blocks} bytes for 1 MiB");
    check!(file.metadata()?.blksize() >= 512);
    file.set_len(0)?;
    file.sync_all()?;
    let blocks = fs::metadata(d.at("f"))?.blocks() * 512;
    check!(blocks <= 1 << 16, "{blocks} bytes for an empty file");
    file.set_len(1 << 30)?;
    check!(file.metadata()?.blocks() * 512 < 1 << 20, "a hole takes space");
    Ok(())
}

pub(super) fn hole_then_write(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    let mut want = vec![0; 400_000];
    file.set_len(400_000)?;
    for (n, offset) in [399_990, 0, 65_530, 65_540, 131_070, 4_090, 200_000].into_iter().enumerate() {
        let bytes = pattern(n as u64, 10);
        file.write_all_at(&bytes, offset as u64)?;
        want[offset..offset + 10].copy_from_slice(&bytes);
        same!(fs::read(d.at("f"))?, want);
    }
    Ok(())
}
