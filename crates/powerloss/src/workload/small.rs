//! Several threads create small files and make each durable separately.

use std::fs::{self, File};
use std::io::{IoSlice, Write};

use anyhow::{Result, anyhow};
use fastrand::Rng;
use rustix::fs::fgetxattr;
use rustix::io::ReadWriteFlags;

use super::WorkDir;
use crate::marks::{FileState, Mark};

const THREADS: usize = 4;
const CHANGES: usize = 60;
const MAX_BYTES: usize = 40_000;

pub fn run(place: &WorkDir, rng: Rng) -> Result<()> {
    run_on(place, rng, false)
}

/// The same for files whose bytes lie on data servers.
pub fn run_striped(place: &WorkDir, rng: Rng) -> Result<()> {
    run_on(place, rng, true)
}

fn run_on(place: &WorkDir, mut rng: Rng, striped: bool) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let rng = rng.fork();
                scope.spawn(move || change(place, thread, rng, striped))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Writes, replaces and removes a few files repeatedly, each change synced before the next.
fn change(place: &WorkDir, thread: usize, mut rng: Rng, striped: bool) -> Result<()> {
    let mut marks = place.marks()?;
    for _ in 0..CHANGES {
        let name = format!("s{thread}-{}", rng.u8(..10));
        let path = place.path(&name);
        let state = FileState::bytes(rng.u64(1..), rng.usize(1..MAX_BYTES));
        let FileState::Bytes(bytes) = state else { continue };
        match rng.u8(..4) {
            // A new file is empty first, then has some bytes, so the old one is removed first. On
            // data servers a file may have its size before the disk has its bytes, as on their file
            // system.
            0 if !path.exists() => {
                marks.say(&Mark::Begin(name.clone(), FileState::bytes(1, 0)))?;
                let begun = if striped { FileState::Torn(bytes) } else { state };
                marks.say(&Mark::Begin(name.clone(), begun))?;
                let mut file = File::create(&path)?;
                if rng.bool() {
                    file.write_all(&bytes.make())?;
                    file.sync_all()?;
                } else {
                    write_durably(&file, &bytes.make())?;
                }
                marks.say(&Mark::Done(name, state))?;
            }
            1 if path.exists() => {
                marks.say(&Mark::Begin(name.clone(), FileState::Gone))?;
                fs::remove_file(&path)?;
                make_durable(&File::open(&place.dir)?, &mut rng)?;
                marks.say(&Mark::Done(name, FileState::Gone))?;
            }
            _ => {
                marks.say(&Mark::Begin(name.clone(), state))?;
                let new = place.path(&format!("{name}.new"));
                let mut file = File::create(&new)?;
                file.write_all(&bytes.make())?;
                // Syncing the file syncs its new name. Unsynced bytes on data servers are durable
                // only if the rename replaces a file.
                let synced_after = rng.bool() && (!striped || path.exists());
                if !synced_after {
                    file.sync_all()?;
                }
                fs::rename(&new, &path)?;
                if synced_after {
                    make_durable(&file, &mut rng)?;
                } else {
                    make_durable(&File::open(&place.dir)?, &mut rng)?;
                }
                marks.say(&Mark::Done(name, state))?;
            }
        }
    }
    Ok(())
}

/// By an `fsync`, or as `espalier sync` does it for the whole file system, where that is one.
fn make_durable(file: &File, rng: &mut Rng) -> Result<()> {
    let synced = rng.bool() && fgetxattr(file, "system.espalier.sync", &mut [0; 1]).is_ok();
    if !synced {
        file.sync_all()?;
    }
    Ok(())
}

/// By a write that is durable when it returns, through an opening whose other writes are not.
fn write_durably(file: &File, bytes: &[u8]) -> Result<()> {
    let written = rustix::io::pwritev2(file, &[IoSlice::new(bytes)], 0, ReadWriteFlags::DSYNC)?;
    if written == bytes.len() {
        Ok(())
    } else {
        Err(anyhow!("{written} of {} bytes were written", bytes.len()))
    }
}
