//! File contents across all sizes at which the representation of a file changes.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use super::prelude::*;

/// Random writes, truncates, reopens and reads of one file, compared with a vector.
fn fuzz(d: &Dir, seed: u64, limit: usize, steps: usize) -> CaseResult {
    let mut rng = fastrand::Rng::with_seed(seed);
    let path = d.at(format!("f{seed}"));
    let mut file = d.open(&path)?;
    let mut want: Vec<u8> = Vec::new();
    for step in 0..steps {
        let at = rng.usize(..limit);
        let len = if rng.bool() { rng.usize(..200) } else { rng.usize(..limit / 3) };
        match rng.u8(..10) {
            0..5 => {
                let bytes = pattern(rng.u64(..), len);
                file.write_all_at(&bytes, at as u64)?;
                if len > 0 {
                    want.resize(want.len().max(at + len), 0);
                    want[at..at + len].copy_from_slice(&bytes);
                }
            }
            5 => {
                file.set_len(at as u64)?;
                want.resize(at, 0);
            }
            6 => file = d.open(&path)?,
            7 => file.sync_data()?,
            _ => {
                let mut back = vec![0; len];
                let n = file.read_at(&mut back, at as u64)?;
                let end = (at + len).min(want.len());
                same!(back[..n], want[at.min(end)..end], "seed {seed} step {step}: read {len} at {at}");
            }
        }
        same!(file.metadata()?.len(), want.len() as u64, "seed {seed} step {step}");
    }
    let all = fs::read(&path)?;
    check!(all == want, "seed {seed}: the file differs at {:?}", all.iter().zip(&want).position(|(a, b)| a != b));
    Ok(())
}

pub(super) fn model_small(d: &Dir) -> CaseResult {
    (0..40).try_for_each(|seed| fuzz(d, seed, 12 << 10, 60))
}

pub(super) fn model_strip(d: &Dir) -> CaseResult {
    (100..130).try_for_each(|seed| fuzz(d, seed, 160 << 10, 80))
}

pub(super) fn model_megabyte(d: &Dir) -> CaseResult {
    (200..208).try_for_each(|seed| fuzz(d, seed, 3 << 20, 60))
}

pub(super) fn model_two_handles(d: &Dir) -> CaseResult {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let name = format!("f{seed}");
        let files = [d.open(&name)?, d.open(&name)?, OpenOptions::new().append(true).read(true).open(d.at(&name))?];
        let mut want: Vec<u8> = Vec::new();
        for _ in 0..60 {
            let bytes = pattern(rng.u64(..), rng.usize(1..9000));
            let index = rng.usize(..3);
            if index == 2 {
                rustix::io::write(&files[2], &bytes)?;
                want.extend_from_slice(&bytes);
            } else {
                let at = rng.usize(..150_000);
                files[index].write_all_at(&bytes, at as u64)?;
                want.resize(want.len().max(at + bytes.len()), 0);
                want[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let reader = &files[rng.usize(..3)];
            let mut back = vec![0; want.len()];
            reader.read_exact_at(&mut back, 0)?;
            check!(back == want, "seed {seed}");
        }
    }
    Ok(())
}

/// One handle appends beyond 64 KiB while another reads: reads return a prefix of the data.
pub(super) fn growing_reader(d: &Dir) -> CaseResult {
    for round in 0..10 {
        let name = format!("f{round}");
        let (writer, reader) = (d.open(&name)?, d.open(&name)?);
        let all = pattern(round, 400_000);
        let written = AtomicU64::new(0);
        std::thread::scope(|s| {
            let writing = s.spawn(|| -> CaseResult {
                for (n, piece) in all.chunks(1777).enumerate() {
                    writer.write_all_at(piece, n as u64 * 1777)?;
                    written.store((n * 1777 + piece.len()) as u64, Ordering::Release);
                }
                Ok(())
            });
            let mut back = vec![0; all.len()];
            loop {
                let least = written.load(Ordering::Acquire) as usize;
                let n = read_all(&reader, &mut back)?;
                check!(n >= least, "{least} bytes were written, {n} are seen");
                check!(back[..n] == all[..n], "wrong data in the first {n} bytes of round {round}");
                if least == all.len() {
                    break;
                }
            }
            writing.join().map_err(|_| Failure::at("the writer panicked"))?
        })?;
    }
    Ok(())
}

fn read_all(file: &File, buffer: &mut [u8]) -> Result<usize, Failure> {
    let mut n = 0;
    loop {
        match file.read_at(&mut buffer[n..], n as u64)? {
            0 => return Ok(n),
            more => n += more,
        }
    }
}

pub(super) fn vectored(d: &Dir) -> CaseResult {
    let mut file = d.open("f")?;
    let parts: Vec<Vec<u8>> = [1usize, 0, 4096, 70_000, 13].iter().map(|n| pattern(*n as u64, *n)).collect();
    let slices: Vec<IoSlice> = parts.iter().map(|p| IoSlice::new(p)).collect();
    let total: usize = parts.iter().map(Vec::len).sum();
    same!(file.write_vectored(&slices)?, total);
    same!(rustix::io::pwritev(&file, &slices, 100_000)?, total);
    let (mut a, mut b) = (vec![0; 5000], vec![0; total - 5000]);
    let n = rustix::io::preadv(&file, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 100_000)?;
    same!(n, total);
    a.extend(b);
    same!(a, parts.concat());
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    same!(rest.len(), 100_000, "the position is behind the first writev");
    Ok(())
}

pub(super) fn sizes_reopened(d: &Dir) -> CaseResult {
    for base in [0usize, 512, 4096, 8192, 65_536, 131_072, 1 << 20] {
        for len in base.saturating_sub(2)..base + 3 {
            let path = d.file(format!("f{len}"), &pattern(len as u64, len))?;
            same!(fs::read(&path)?, pattern(len as u64, len), "{len} bytes");
            let mut appended = OpenOptions::new().append(true).open(&path)?;
            appended.write_all(b"+")?;
            same!(fs::metadata(&path)?.len(), len as u64 + 1);
        }
    }
    Ok(())
}

pub(super) fn many_small_files(d: &Dir) -> CaseResult {
    for n in 0..2000u64 {
        d.file(n.to_string(), &pattern(n, (n % 300) as usize))?;
    }
    for n in (0..2000).rev() {
        same!(fs::read(d.at(n.to_string()))?, pattern(n, (n % 300) as usize), "file {n}");
    }
    Ok(())
}

/// Each file grows by many small appends and is read completely after each.
pub(super) fn many_sizes(d: &Dir) -> CaseResult {
    let file = OpenOptions::new().append(true).create(true).open(d.at("f"))?;
    let all = pattern(1, 300 * 700);
    for (n, piece) in all.chunks(700).enumerate() {
        (&file).write_all(piece)?;
        if n % 7 == 0 {
            check!(fs::read(d.at("f"))? == all[..(n + 1) * 700], "after {n} appends");
        }
    }
    Ok(())
}

pub(super) fn interleaved_files(d: &Dir) -> CaseResult {
    let mut rng = fastrand::Rng::with_seed(7);
    let files: Vec<File> = (0..20).map(|n| d.open(format!("f{n}"))).collect::<Result<_, _>>()?;
    let mut want = vec![Vec::new(); files.len()];
    for _ in 0..1500 {
        let n = rng.usize(..files.len());
        let bytes = pattern(rng.u64(..), rng.usize(1..3000));
        files[n].write_all_at(&bytes, want[n].len() as u64)?;
        want[n].extend_from_slice(&bytes);
    }
    for (n, want) in want.iter().enumerate() {
        check!(fs::read(d.at(format!("f{n}")))? == *want, "file {n}");
    }
    Ok(())
}
