//! Short workload after a recovery, on its own files.

use std::fs::File;
use std::io::Write;

use anyhow::Result;
use fastrand::Rng;

use super::WorkDir;
use crate::marks::{FileState, Mark};

pub fn run(place: &WorkDir, mut rng: Rng) -> Result<()> {
    let mut marks = place.marks()?;
    for number in 0..10 {
        let (name, state) = (format!("again{number}"), FileState::bytes(rng.u64(1..), rng.usize(1..100_000)));
        let FileState::Bytes(bytes) = state else { continue };
        let mut file = File::create(place.path(&name))?;
        file.write_all(&bytes.make())?;
        file.sync_all()?;
        marks.say(&Mark::Done(name, state))?;
    }
    Ok(())
}
