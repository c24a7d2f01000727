//! The disk after a loss of power.
//!
//! Everything before the last flush is there. Of later writes some are there, in any order, some in
//! part: only a sector of 512 bytes is atomic.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use fastrand::Rng;

use crate::record::LogEntry;

const SECTOR: usize = 512;
/// ext4 requires that its first block, with the superblock, is written atomically.
const SUPERBLOCK: u64 = 4096;

/// Writes a possible disk after a loss of power behind `entries` to `image`.
pub fn lose_power(image: &Path, entries: &[LogEntry], seed: u64) -> Result<()> {
    let file = File::options().write(true).open(image);
    let file = file.with_context(|| format!("cannot open {}", image.display()))?;
    let durable = entries.iter().rposition(|entry| *entry == LogEntry::Flush).unwrap_or(0);
    for (offset, data) in writes(&entries[..durable]) {
        file.write_all_at(data, offset)?;
    }
    let mut rng = Rng::with_seed(seed);
    let mut pending: Vec<_> = writes(&entries[durable..]).collect();
    rng.shuffle(&mut pending);
    // From hardly any to nearly all.
    let share = [0.0, 0.1, 0.5, 0.9, 1.0][rng.usize(..5)];
    pending.retain(|_| rng.f64() < share);
    for (offset, data) in pending {
        let torn = offset >= SUPERBLOCK && rng.u8(..4) == 0;
        for (sector, bytes) in data.chunks(SECTOR).enumerate() {
            if !torn || rng.bool() {
                file.write_all_at(bytes, offset + (sector * SECTOR) as u64)?;
            }
        }
    }
    Ok(())
}

fn writes(entries: &[LogEntry]) -> impl Iterator<Item = (u64, &[u8])> {
    entries.iter().filter_map(|entry| match entry {
        LogEntry::Write { offset, data } => Some((*offset, data.as_slice())),
        LogEntry::Flush | LogEntry::Mark(_) => None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(sector: u64, byte: u8, sectors: usize) -> LogEntry {
        LogEntry::Write { offset: SUPERBLOCK + sector * SECTOR as u64, data: vec![byte; sectors * SECTOR] }
    }

    /// The first bytes of the sectors after each of many losses.
    fn outcomes(entries: &[LogEntry]) -> std::collections::BTreeSet<[u8; 3]> {
        let image = tempfile::NamedTempFile::new().unwrap();
        let outcome = |seed| {
            image.as_file().set_len(0).unwrap();
            image.as_file().set_len(SUPERBLOCK + 3 * SECTOR as u64).unwrap();
            lose_power(image.path(), entries, seed).unwrap();
            let bytes = std::fs::read(image.path()).unwrap();
            [0, 1, 2].map(|sector| bytes[SUPERBLOCK as usize + sector * SECTOR])
        };
        (0..300).map(outcome).collect()
    }

    #[test]
    fn flushed_writes_are_there() {
        assert_eq!(outcomes(&[write(0, 1, 3), LogEntry::Flush]), [[1, 1, 1]].into());
    }

    #[test]
    fn unflushed_writes_may_be_lost_reordered_and_torn() {
        let found = outcomes(&[write(0, 1, 1), LogEntry::Flush, write(1, 2, 2), write(2, 3, 1)]);
        let all = [2, 0].into_iter().flat_map(|b| [0, 2, 3].map(|c| [1, b, c]));
        assert_eq!(found, all.collect());
    }
}
