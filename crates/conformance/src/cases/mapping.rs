//! Memory mappings, shared and private.

use rustix::mm::MapFlags;

use super::prelude::*;
use crate::map::FileMapping;

pub(super) fn shared_store_read(d: &Dir) -> CaseResult {
    for len in [4096, 65_536, 300_000] {
        let name = format!("f{len}");
        let mut want = pattern(1, len);
        d.file(&name, &want)?;
        let file = d.open(&name)?;
        let map = FileMapping::shared(&file, len)?;
        same!(map.load(0, len), want);
        for at in [0, len / 2, len - 5] {
            map.store(at, b"store");
            want[at..at + 5].copy_from_slice(b"store");
            same!(fs::read(d.at(&name))?, want, "read sees the store");
        }
        map.sync()?;
        drop((map, file));
        same!(fs::read(d.at(&name))?, want, "after unmapping");
    }
    Ok(())
}

pub(super) fn write_seen_by_mapping(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.set_len(200_000)?;
    let map = FileMapping::shared(&file, 200_000)?;
    for at in [0usize, 10, 4090, 65_530, 199_990] {
        file.write_all_at(b"written", at.min(199_993) as u64)?;
        same!(map.load(at.min(199_993), 7), b"written");
    }
    let other = d.open("f")?;
    other.write_all_at(b"by another", 100_000)?;
    same!(map.load(100_000, 10), b"by another");
    Ok(())
}

/// A file system may bypass the page cache for write-only handles; other handles must not be
/// affected.
pub(super) fn write_only_seen_by_others(d: &Dir) -> CaseResult {
    for len in [20_000, 200_000] {
        let name = format!("f{len}");
        let path = d.file(&name, &pattern(1, len))?;
        let writer = OpenOptions::new().write(true).open(&path)?;
        let reader = d.open(&name)?;
        let map = FileMapping::shared(&reader, len)?;
        let mut want = map.load(0, len);
        for (n, at) in [0, 4090, len / 2, len - 7].into_iter().enumerate() {
            // Data stored first must neither be lost nor reappear.
            map.store(at, b"stored");
            let bytes = format!("write{n}");
            writer.write_all_at(bytes.as_bytes(), at as u64 + 1)?;
            want[at] = b's';
            want[at + 1..at + 7].copy_from_slice(bytes.as_bytes());
            same!(map.load(at, 7), want[at..at + 7]);
            let mut read = vec![0; len];
            reader.read_exact_at(&mut read, 0)?;
            same!(read, want);
        }
        map.sync()?;
        let appender = OpenOptions::new().append(true).open(&path)?;
        rustix::io::write(&appender, b"appended")?;
        same!(stat(&path)?.st_size as usize, len + 8);
        same!(fs::read(&path)?, [&want[..], b"appended"].concat());
        drop((map, reader, writer, appender));
        same!(fs::read(&path)?, [&want[..], b"appended"].concat(), "when all is closed");
    }
    Ok(())
}

pub(super) fn shared_between_processes(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.set_len(100_000)?;
    let map = FileMapping::shared(&file, 100_000)?;
    in_child(|| {
        let mine = FileMapping::shared(&d.open("f")?, 100_000)?;
        mine.store(70_000, b"from the child");
        Ok(())
    })?;
    same!(map.load(70_000, 14), b"from the child");
    map.store(5, b"x");
    in_child(|| {
        same!(fs::read(d.at("f"))?[5], b'x');
        Ok(())
    })
}

pub(super) fn private_copy(d: &Dir) -> CaseResult {
    let f = d.file("f", &pattern(1, 10_000))?;
    let map = FileMapping::new(File::open(&f)?, 10_000, MapFlags::PRIVATE, true)?;
    map.store(100, b"mine only");
    same!(map.load(100, 9), b"mine only");
    same!(fs::read(&f)?, pattern(1, 10_000));
    let read_only = File::open(&f)?;
    fails!(FileMapping::shared(&read_only, 100), EACCES);
    Ok(())
}

pub(super) fn growing(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"short", 0)?;
    let map = FileMapping::shared(&file, 256 * 1024)?;
    same!(map.load(0, 5), b"short");
    file.set_len(256 * 1024)?;
    map.store(200_000, b"grown");
    same!(map.load(0, 5), b"short");
    let all = fs::read(d.at("f"))?;
    same!(all.len(), 256 * 1024);
    same!(all[200_000..200_005], *b"grown");
    // A write beyond the end by write(2) appears in the mapping.
    file.write_all_at(b"appended", 100_000)?;
    same!(map.load(100_000, 8), b"appended");
    Ok(())
}

pub(super) fn past_end_zero(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"abc", 0)?;
    let map = FileMapping::shared(&file, 4096)?;
    same!(map.load(3, 100), [0; 100]);
    // A store after the end of the file does not become part of it.
    map.store(10, b"lost");
    map.sync()?;
    same!(fs::read(d.at("f"))?, b"abc");
    drop(map);
    file.set_len(20)?;
    same!(fs::read(d.at("f"))?[..3], *b"abc");
    same!(fs::read(d.at("f"))?.len(), 20);
    // A load from a page after the end raises SIGBUS.
    let map = FileMapping::shared(&file, 16_384)?;
    let outcome = in_child(|| {
        map.load(8192, 1);
        Ok(())
    });
    check!(outcome.is_err(), "a load behind the end succeeded");
    Ok(())
}

/// Executes a program larger than a strip, which the kernel maps.
pub(super) fn executable(d: &Dir) -> CaseResult {
    let program = d.at("sh");
    fs::copy("/bin/sh", &program)?;
    chmod(&program, 0o755)?;
    for _ in 0..3 {
        let output = std::process::Command::new(&program).args(["-c", "echo $((6 * 7))"]).output()?;
        same!(output.stdout, b"42\n");
    }
    Ok(())
}

pub(super) fn unlinked_mapping(d: &Dir) -> CaseResult {
    let f = d.file("f", &pattern(3, 150_000))?;
    let map = FileMapping::shared(&d.open("f")?, 150_000)?;
    fs::remove_file(&f)?;
    d.file("f", b"another")?;
    same!(map.load(0, 150_000), pattern(3, 150_000));
    map.store(100, b"still mine");
    map.sync()?;
    same!(map.load(100, 10), b"still mine");
    same!(fs::read(&f)?, b"another");
    Ok(())
}

/// The file outgrows the strip while a mapping of its stuffed form is in use.
pub(super) fn strip_crossing(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    let mut want = pattern(4, 60_000);
    file.write_all_at(&want, 0)?;
    let map = FileMapping::shared(&file, 60_000)?;
    map.store(1000, b"before");
    want[1000..1006].copy_from_slice(b"before");
    file.write_all_at(&pattern(5, 100_000), 60_000)?;
    want.extend(pattern(5, 100_000));
    map.store(2000, b"after");
    want[2000..2005].copy_from_slice(b"after");
    file.write_all_at(b"written", 3000)?;
    want[3000..3007].copy_from_slice(b"written");
    same!(map.load(0, 60_000), want[..60_000]);
    check!(fs::read(d.at("f"))? == want);
    drop((map, file));
    check!(fs::read(d.at("f"))? == want, "after closing all");
    Ok(())
}

/// Stores that are not written back count as data for seeks, copies and block counts.
pub(super) fn dirty_pages_are_data(d: &Dir) -> CaseResult {
    for len in [9_000, 60_000, 65_536, 300_000, 5 << 20] {
        let name = format!("f{len}");
        let path = d.at(&name);
        let file = d.open(&name)?;
        file.set_len(len as u64)?;
        same!(file.metadata()?.blocks(), 0);
        let map = FileMapping::shared(&file, len)?;
        // Only the mapping keeps the file open.
        drop(file);
        let mut want = vec![0; len];
        let mut stored = Vec::new();
        for at in [len / 2, len - 5, 0] {
            map.store(at, b"store");
            want[at..at + 5].copy_from_slice(b"store");
            stored.push((at as u64, at as u64 + 5));
            if at == len / 2 {
                check!(stat(&path)?.st_blocks > 0, "{len}: no blocks");
            }
            let reader = File::open(&path)?;
            super::sparse::consistent(&reader, len as u64, &stored)?;
            let target = d.open(format!("g{len}-{at}"))?;
            super::sparse::copy_data(&reader, &target)?;
            check!(fs::read(d.at(format!("g{len}-{at}")))? == want, "a copy of {len} bytes, stored at {at}");
        }
        map.sync()?;
        map.store(len / 3, b"again");
        want[len / 3..len / 3 + 5].copy_from_slice(b"again");
        let (reader, target) = (File::open(&path)?, d.open("whole")?);
        target.set_len(0)?;
        let mut left = len;
        while left > 0 {
            let copied = rustix::fs::copy_file_range(&reader, None, &target, None, left)?;
            check!(copied > 0, "{left} bytes of {len} are not copied");
            left -= copied;
        }
        check!(fs::read(d.at("whole"))? == want, "copy_file_range of {len} bytes");
    }
    Ok(())
}

/// Loading a page of a hole through a mapping leaves the hole.
pub(super) fn loaded_pages_are_holes(d: &Dir) -> CaseResult {
    if d.kind() == "tmpfs" {
        // Loads allocate blocks on this file system.
        return Ok(());
    }
    for len in [60_000, 300_000, 5 << 20] {
        let file = d.open(format!("f{len}"))?;
        file.set_len(len as u64)?;
        let map = FileMapping::shared(&file, len)?;
        same!(map.load(len / 2, 100), [0; 100]);
        fails!(super::sparse::find(&file, true, 0), ENXIO);
        same!(super::sparse::find(&file, false, 0)?, 0);
        same!(file.metadata()?.blocks(), 0);
    }
    Ok(())
}
