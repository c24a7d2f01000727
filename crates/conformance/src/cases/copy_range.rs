//! `copy_file_range(2)`.

use rustix::fs::copy_file_range;

use super::prelude::*;

/// Copies the whole range in as many calls as needed.
fn copy(from: &File, mut at: u64, to: &File, mut out: u64, mut len: usize) -> CaseResult {
    while len > 0 {
        let n = copy_file_range(from, Some(&mut at), to, Some(&mut out), len)?;
        check!(n > 0, "ended {len} bytes early");
        len -= n;
    }
    Ok(())
}

pub(super) fn small(d: &Dir) -> CaseResult {
    let data = pattern(1, 5000);
    d.file("a", &data)?;
    let (a, b) = (d.open("a")?, d.open("b")?);
    copy(&a, 0, &b, 0, 5000)?;
    same!(fs::read(d.at("b"))?, data);
    copy(&a, 1000, &b, 6000, 100)?;
    let all = fs::read(d.at("b"))?;
    same!(all.len(), 6100);
    check!(all[5000..6000].iter().all(|b| *b == 0));
    same!(all[6000..], data[1000..1100]);
    Ok(())
}

pub(super) fn large(d: &Dir) -> CaseResult {
    let data = pattern(2, 3_000_000);
    d.file("a", &data)?;
    let (a, b) = (d.open("a")?, d.open("b")?);
    copy(&a, 0, &b, 0, data.len())?;
    same!(fs::read(d.at("b"))?, data);
    // From a stuffed file into the first strip of an unstuffed one, and back.
    let c = d.open("c")?;
    copy(&a, 100_000, &c, 0, 60_000)?;
    copy(&c, 0, &b, 1_000_000, 60_000)?;
    same!(fs::read(d.at("b"))?[1_000_000..1_060_000], data[100_000..160_000]);
    same!(stat(d.at("b"))?.st_size, 3_000_000);
    Ok(())
}

pub(super) fn within_one_file(d: &Dir) -> CaseResult {
    let mut data = pattern(3, 200_000);
    d.file("a", &data)?;
    let a = d.open("a")?;
    copy(&a, 0, &a, 150_000, 50_000)?;
    data.copy_within(0..50_000, 150_000);
    same!(fs::read(d.at("a"))?, data);
    fails!(copy_file_range(&a, Some(&mut 0), &a, Some(&mut 10), 1000), EINVAL);
    Ok(())
}

pub(super) fn past_end(d: &Dir) -> CaseResult {
    d.file("a", b"12345")?;
    let (a, b) = (d.open("a")?, d.open("b")?);
    same!(copy_file_range(&a, Some(&mut 3), &b, Some(&mut 0), 100)?, 2);
    same!(copy_file_range(&a, Some(&mut 5), &b, Some(&mut 0), 100)?, 0);
    same!(copy_file_range(&a, Some(&mut 50), &b, Some(&mut 0), 100)?, 0);
    same!(fs::read(d.at("b"))?, b"45");
    let read_only = File::open(d.at("b"))?;
    fails!(copy_file_range(&a, Some(&mut 0), &read_only, Some(&mut 0), 1), EBADF);
    Ok(())
}
