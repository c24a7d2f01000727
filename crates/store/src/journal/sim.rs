use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::BlockFile;

const SECTOR_BYTES: usize = 512;

/// A file in memory that can lose power, for tests and the simulator.
pub struct SimFile(Mutex<SimFileState>);

#[derive(Clone)]
struct SimFileState {
    /// Contents as the operating system returns them.
    bytes: Vec<u8>,
    /// Contents at the last sync.
    durable: Vec<u8>,
    /// Contents of each sector after each write since the last sync, by sector number. The medium
    /// may hold any of them: writeback copies a sector at an arbitrary moment.
    written: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Number of writes and syncs that still succeed.
    left: u64,
    syncs: u64,
}

impl SimFile {
    /// A file of `len` zero bytes. Only written ranges take memory.
    pub fn new(len: usize) -> Self {
        Self::of(vec![0; len], vec![0; len])
    }

    /// A file with durable contents.
    pub fn with_bytes(bytes: Vec<u8>) -> Self {
        let durable = bytes.clone();
        Self::of(bytes, durable)
    }

    fn of(bytes: Vec<u8>, durable: Vec<u8>) -> Self {
        Self(Mutex::new(SimFileState { bytes, durable, written: BTreeMap::new(), left: u64::MAX, syncs: 0 }))
    }

    /// The file as a power failure at this moment may leave it. Each sector independently holds its
    /// last synced contents or any contents written since. Each combination is reachable by some
    /// seed.
    pub fn crash(&self, seed: u64) -> Self {
        let state = self.state();
        let mut random = seed;
        let mut bytes = state.durable.clone();
        // Some seeds lose or keep nearly all sectors, which makes tails with a single tear more
        // frequent.
        let bias = next(&mut random) % 4;
        for (sector, versions) in &state.written {
            let chosen = match bias {
                0 if !next(&mut random).is_multiple_of(8) => 0,
                1 if !next(&mut random).is_multiple_of(8) => versions.len(),
                _ => (next(&mut random) % (versions.len() as u64 + 1)) as usize,
            };
            if let Some(version) = chosen.checked_sub(1).and_then(|index| versions.get(index)) {
                let start = sector * SECTOR_BYTES;
                bytes[start..start + version.len()].copy_from_slice(version);
            }
        }
        Self::with_bytes(bytes)
    }

    /// The file as a new process finds it after a crash of the process: no write is lost.
    pub fn reopen(&self) -> Self {
        Self(Mutex::new(self.state().clone()))
    }

    /// After `operations` more writes and syncs, all further ones fail; `u64::MAX`: none fails.
    pub fn fail_after(&self, operations: u64) {
        self.state().left = operations;
    }

    /// Flips bits on the medium, as decay does.
    pub fn damage(&self, offset: usize, mask: u8) {
        let mut state = self.state();
        state.bytes[offset] ^= mask;
        state.durable[offset] ^= mask;
    }

    /// Number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    fn state(&self) -> MutexGuard<'_, SimFileState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimFileState {
    fn count(&mut self) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::Error::other("the simulated disk fails"));
        }
        self.left -= u64::from(self.left < u64::MAX);
        Ok(())
    }
}

impl BlockFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let start = offset as usize;
        let source = state.bytes.get(start..start + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(source);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let (start, end) = (offset as usize, offset as usize + data.len());
        state.count()?;
        if end > state.bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // A write of identical contents adds no outcome of a crash.
        if state.bytes[start..end] == *data {
            return Ok(());
        }
        state.bytes[start..end].copy_from_slice(data);
        for sector in start / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
            let from = sector * SECTOR_BYTES;
            let to = (from + SECTOR_BYTES).min(state.bytes.len());
            let version = state.bytes[from..to].to_vec();
            state.written.entry(sector).or_default().push(version);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.count()?;
        let SimFileState { durable, written, .. } = &mut *state;
        for (sector, versions) in std::mem::take(written) {
            if let Some(last) = versions.last() {
                let start = sector * SECTOR_BYTES;
                durable[start..start + last.len()].copy_from_slice(last);
            }
        }
        state.syncs += 1;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }
}

/// SplitMix64. Implemented here because a seed must produce the same crash in every version.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
