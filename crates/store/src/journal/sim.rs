use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::BlockFile;
use super::sparse::SparseBytes;

const SECTOR_BYTES: usize = 512;

/// A file in memory that can lose power, for tests and the simulator.
pub struct SimFile(Mutex<SimFileState>);

#[derive(Clone)]
struct SimFileState {
    /// Contents as the operating system returns them.
    bytes: SparseBytes,
    /// Contents at the last sync.
    durable: SparseBytes,
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
        Self::of(SparseBytes::new(len))
    }

    /// A file with durable contents.
    pub fn with_bytes(bytes: &[u8]) -> Self {
        let mut durable = SparseBytes::new(bytes.len());
        durable.write(0, bytes);
        Self::of(durable)
    }

    fn of(durable: SparseBytes) -> Self {
        let (bytes, written) = (durable.clone(), BTreeMap::new());
        Self(Mutex::new(SimFileState { bytes, durable, written, left: u64::MAX, syncs: 0 }))
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
                bytes.write(sector * SECTOR_BYTES, version);
            }
        }
        Self::of(bytes)
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
        let SimFileState { bytes, durable, .. } = &mut *state;
        for contents in [bytes, durable] {
            let mut byte = [0];
            contents.read(offset, &mut byte);
            contents.write(offset, &[byte[0] ^ mask]);
        }
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
        let (state, start) = (self.state(), offset as usize);
        if start + buf.len() > state.bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.bytes.read(start, buf);
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
        if state.bytes.holds(start, data) {
            return Ok(());
        }
        state.bytes.write(start, data);
        for sector in start / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
            let from = sector * SECTOR_BYTES;
            let to = (from + SECTOR_BYTES).min(state.bytes.len());
            let mut version = vec![0; to - from];
            state.bytes.read(from, &mut version);
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
                durable.write(sector * SECTOR_BYTES, last);
            }
        }
        state.syncs += 1;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn data_from(&self, offset: u64) -> io::Result<u64> {
        Ok(self.state().bytes.data_from(offset as usize) as u64)
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
