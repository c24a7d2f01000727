//! Pages overwritten in place, as databases do, in files below and above the strip.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use fastrand::Rng;

use super::WorkDir;
use crate::marks::{Mark, SeededBytes};

const PAGE: usize = 4096;
const TRANSACTIONS: usize = 80;

pub fn run(place: &WorkDir, mut rng: Rng) -> Result<()> {
    let mut marks = place.marks()?;
    for (name, pages) in [("db-small", 12), ("db-big", 300)] {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(place.path(name))?;
        let page = |number: u64, seed| SeededBytes::new(seed, number * PAGE as u64, PAGE);
        for number in 0..pages {
            file.write_all_at(&page(number, 1).make(), number * PAGE as u64)?;
        }
        file.sync_all()?;
        for number in 0..pages {
            marks.say(&Mark::DoneAt(name.into(), page(number, 1)))?;
        }
        for _ in 0..TRANSACTIONS {
            let changed: Vec<SeededBytes> =
                (0..rng.usize(1..6)).map(|_| page(rng.u64(..pages), rng.u64(2..))).collect();
            for bytes in &changed {
                marks.say(&Mark::BeginAt(name.into(), *bytes))?;
                file.write_all_at(&bytes.make(), bytes.offset)?;
            }
            file.sync_data()?;
            for (at, bytes) in changed.iter().enumerate() {
                // Of a page written twice the last version is durable.
                if !changed[at + 1..].iter().any(|later| later.offset == bytes.offset) {
                    marks.say(&Mark::DoneAt(name.into(), *bytes))?;
                }
            }
        }
    }
    Ok(())
}
