//! Files that outgrow the strip, which the kernel then writes itself where it can.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Result;
use fastrand::Rng;
use rustix::fs::{FallocateFlags, OFlags, copy_file_range};

use super::WorkDir;
use crate::marks::{FileState, Mark, Marks, SeededBytes};

const STRIP: usize = 64 << 10;

pub fn run(place: &WorkDir, mut rng: Rng) -> Result<()> {
    let mut marks = place.marks()?;
    for round in 0..8 {
        if round == 4 {
            grow_far(place, &mut marks, &mut rng, "far")?;
        }
        grow(place, &mut marks, &mut rng, &format!("g{round}"))?;
        grow_synchronously(place, &mut marks, &mut rng, &format!("o{round}"))?;
        outgrow_what_is_durable(place, &mut marks, &mut rng, &format!("u{round}"))?;
        replace(place, &mut marks, &mut rng)?;
        remove(place, &mut marks, &mut rng, &format!("r{round}"))?;
    }
    Ok(())
}

/// On a mount with `sync`: a call that has returned is durable, without any other call.
pub fn run_synchronous(place: &WorkDir, mut rng: Rng) -> Result<()> {
    let mut marks = place.marks()?;
    for round in 0..6 {
        let name = format!("y{round}");
        let path = place.path(&name);
        let (mut file, mut at, mut pieces) = (File::create(&path)?, 0, Vec::new());
        for piece in 0..6 {
            let bytes = SeededBytes::new(rng.u64(1..), at, rng.usize(1..STRIP));
            file.write_all_at(&bytes.make(), at)?;
            marks.say(&Mark::DoneAt(name.clone(), bytes))?;
            pieces.push(bytes);
            at += bytes.length as u64;
            if piece == 3 {
                // Opened again, it may be passed through.
                file = File::options().write(true).open(&path)?;
            }
        }
        let zeros = SeededBytes::new(0, at, STRIP);
        if round % 2 == 0 {
            file.set_len(at + STRIP as u64)?;
        } else {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), at, STRIP as u64)?;
        }
        marks.say(&Mark::DoneAt(name.clone(), zeros))?;
        let copy = format!("{name}-copy");
        let (from, to) = (File::open(&path)?, File::create(place.path(&copy))?);
        to.set_len(at)?;
        while copy_file_range(&from, None, &to, None, at as usize)? > 0 {}
        for bytes in pieces {
            marks.say(&Mark::DoneAt(copy.clone(), bytes))?;
        }
    }
    Ok(())
}

/// Pieces in sequence, each synced; some through new openings.
fn grow(place: &WorkDir, marks: &mut Marks, rng: &mut Rng, name: &str) -> Result<()> {
    let path = place.path(name);
    let (mut file, mut at) = (File::create(&path)?, 0);
    for _ in 0..6 {
        let bytes = SeededBytes::new(rng.u64(1..), at, rng.usize(1..2 * STRIP));
        marks.say(&Mark::BeginAt(name.into(), bytes))?;
        file.write_all_at(&bytes.make(), at)?;
        if rng.bool() {
            file.sync_all()?
        } else {
            file.sync_data()?
        }
        marks.say(&Mark::DoneAt(name.into(), bytes))?;
        at += bytes.length as u64;
        if rng.bool() {
            drop(file);
            file = File::options().read(rng.bool()).write(true).open(&path)?;
        }
    }
    Ok(())
}

/// Enough to be written back before it is synced.
fn grow_far(place: &WorkDir, marks: &mut Marks, rng: &mut Rng, name: &str) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let file = File::create(place.path(name))?;
    let pieces = (0..24).map(|piece| SeededBytes::new(rng.u64(1..), piece * PIECE as u64, PIECE));
    let pieces: Vec<_> = pieces.collect();
    for bytes in &pieces {
        marks.say(&Mark::BeginAt(name.into(), *bytes))?;
        file.write_all_at(&bytes.make(), bytes.offset)?;
    }
    file.sync_all()?;
    pieces.into_iter().try_for_each(|bytes| marks.say(&Mark::DoneAt(name.into(), bytes)))
}

/// Through write-only openings with `O_DSYNC` or `O_SYNC`, and no other sync.
fn grow_synchronously(place: &WorkDir, marks: &mut Marks, rng: &mut Rng, name: &str) -> Result<()> {
    let path = place.path(name);
    let mut file = open_synchronously(&path, rng)?;
    let mut at = 0;
    for _ in 0..6 {
        let bytes = SeededBytes::new(rng.u64(1..), at, rng.usize(1..STRIP));
        marks.say(&Mark::BeginAt(name.into(), bytes))?;
        file.write_all_at(&bytes.make(), at)?;
        marks.say(&Mark::DoneAt(name.into(), bytes))?;
        at += bytes.length as u64;
        if rng.bool() {
            drop(file);
            file = open_synchronously(&path, rng)?;
        }
    }
    // Written through an opening without syncs, and then a little through one with.
    let other = format!("{name}-other");
    let path = place.path(&other);
    fs::write(&path, SeededBytes::new(rng.u64(1..), 0, 2 * STRIP).make())?;
    let bytes = SeededBytes::new(rng.u64(1..), 0, 1000);
    open_synchronously(&path, rng)?.write_all_at(&bytes.make(), 0)?;
    marks.say(&Mark::DoneAt(other, bytes))
}

fn open_synchronously(path: &Path, rng: &mut Rng) -> Result<File> {
    let flag = if rng.bool() { OFlags::DSYNC } else { OFlags::SYNC };
    let mut options = OpenOptions::new();
    Ok(options.write(true).create(true).truncate(false).custom_flags(flag.bits() as i32).open(path)?)
}

/// A small file is synced, then outgrows the strip without another sync.
fn outgrow_what_is_durable(place: &WorkDir, marks: &mut Marks, rng: &mut Rng, name: &str) -> Result<()> {
    // Bytes, a hole, or both.
    for (kind, preserved, size) in [("bytes", 40_000, 40_000), ("hole", 0, 50_000), ("both", 1000, 50_000)] {
        let name = format!("{name}-{kind}");
        let file = File::create(place.path(&name))?;
        let (bytes, zeros) = (
            SeededBytes::new(rng.u64(1..), 0, preserved),
            SeededBytes::new(0, preserved as u64, size - preserved),
        );
        file.write_all_at(&bytes.make(), 0)?;
        file.set_len(size as u64)?;
        file.sync_all()?;
        marks.say(&Mark::DoneAt(name.clone(), bytes))?;
        marks.say(&Mark::DoneAt(name, zeros))?;
        file.write_all_at(&SeededBytes::new(rng.u64(1..), size as u64, STRIP).make(), size as u64)?;
        // Makes the event durable.
        File::open(&place.dir)?.sync_all()?;
    }
    Ok(())
}

/// A new file is renamed over an old one.
fn replace(place: &WorkDir, marks: &mut Marks, rng: &mut Rng) -> Result<()> {
    for name in ["replaced-synced", "replaced"] {
        let state = FileState::bytes(rng.u64(1..), rng.usize(1..4 * STRIP));
        let FileState::Bytes(bytes) = state else { continue };
        let (path, new) = (place.path(name), place.path(&format!("{name}.new")));
        let there = path.exists();
        fs::write(&new, bytes.make())?;
        marks.say(&Mark::Begin(name.into(), state))?;
        // The first rename replaces no file, which gives no guarantee.
        if name == "replaced-synced" || !there {
            File::open(&new)?.sync_all()?;
        }
        fs::rename(&new, &path)?;
        if name == "replaced-synced" || !there {
            File::open(&place.dir)?.sync_all()?;
            marks.say(&Mark::Done(name.into(), state))?;
        }
    }
    Ok(())
}

/// Removed files stay removed, and leave nothing.
fn remove(place: &WorkDir, marks: &mut Marks, rng: &mut Rng, name: &str) -> Result<()> {
    let path = place.path(name);
    let state = FileState::bytes(rng.u64(1..), rng.usize(STRIP..4 * STRIP));
    let FileState::Bytes(bytes) = state else { return Ok(()) };
    fs::write(&path, bytes.make())?;
    File::open(&path)?.sync_all()?;
    marks.say(&Mark::Done(name.into(), state))?;
    marks.say(&Mark::Begin(name.into(), FileState::Gone))?;
    fs::remove_file(&path)?;
    File::open(&place.dir)?.sync_all()?;
    marks.say(&Mark::Done(name.into(), FileState::Gone))
}
