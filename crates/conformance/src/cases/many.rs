//! Very large numbers of files.

use std::collections::HashSet;

use super::prelude::*;
use crate::sys::DirReader;

pub(super) fn entries_in_a_directory(d: &Dir) -> CaseResult {
    let count = d.limits.entries;
    let name = |n: u32| format!("file-{n:07}");
    for n in 0..count {
        open(d.at(name(n)), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
    }
    let list = || -> Result<Vec<_>, Failure> { DirReader::open(d.path(), 64 * 1024)?.rest() };
    let all = list()?;
    same!(all.len(), count as usize);
    let inodes: HashSet<u64> = all.iter().map(|e| e.ino).collect();
    same!(inodes.len(), count as usize);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..1000 {
        check!(exists(d.at(name(rng.u32(..count)))));
        check!(!exists(d.at(name(count + rng.u32(..count)))));
    }
    for n in (0..count).step_by(2) {
        fs::remove_file(d.at(name(n)))?;
    }
    let rest = list()?;
    same!(rest.len(), count as usize / 2);
    for entry in rest {
        fs::remove_file(d.at(entry.name))?;
    }
    same!(list()?.len(), 0);
    Ok(())
}

pub(super) fn subdirectories(d: &Dir) -> CaseResult {
    let count: u64 = 2000;
    for n in 0..count {
        fs::create_dir(d.at(n.to_string()))?;
    }
    same!(stat(d.path())?.st_nlink, count + 2);
    for n in 0..count {
        fs::remove_dir(d.at(n.to_string()))?;
    }
    same!(stat(d.path())?.st_nlink, 2);
    Ok(())
}

pub(super) fn wide_and_deep(d: &Dir) -> CaseResult {
    for a in 0..10 {
        for b in 0..10 {
            let dir = d.at(format!("{a}/{b}"));
            fs::create_dir_all(&dir)?;
            for c in 0..30 {
                fs::write(dir.join(c.to_string()), format!("{a}{b}{c}"))?;
            }
        }
    }
    fs::rename(d.at("3"), d.at("4/moved"))?;
    same!(fs::read_to_string(d.at("4/moved/7/21"))?, "3721");
    let mut count = 0;
    let mut stack = vec![d.path().to_path_buf()];
    while let Some(path) = stack.pop() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { stack.push(entry.path()) } else { count += 1 }
        }
    }
    same!(count, 3000);
    fs::remove_dir_all(d.at("4"))?;
    check!(!exists(d.at("4")));
    Ok(())
}
