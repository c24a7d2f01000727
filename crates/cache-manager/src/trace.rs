//! Accesses shaped like those of ParSplice (sevilla, 5.3.1): many reads of few keys at first, then
//! fewer reads of more keys; a group of keys is left for good when the next one begins.

use crate::CacheKey;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct TraceShape {
    pub seed: u64,
    /// Length of the run.
    pub seconds: u64,
    /// Groups of keys, called superbasins.
    pub groups: u64,
    /// Keys of the first group; later ones are larger, up to twice as large.
    pub group_keys: u64,
    /// Reads in the first second; the rate falls to a quarter.
    pub reads_per_s: u64,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceAccess {
    /// A new state.
    Write(CacheKey),
    /// A state that was written before.
    Read(CacheKey),
}

impl TraceShape {
    /// Calls `access` with the time in milliseconds. The same shape gives the same accesses.
    pub fn run(&self, mut access: impl FnMut(u64, TraceAccess)) {
        let mut random = self.seed;
        let mut first_key = 0;
        for group in 0..self.groups {
            let keys = self.group_keys + self.group_keys * group / self.groups;
            let (begin, end) = (self.second(group), self.second(group + 1));
            let mut written = 0;
            for second in begin..end {
                let reads = self.reads_per_s * (4 * self.seconds - 3 * second) / (4 * self.seconds);
                let known = (keys * (second + 1 - begin)).div_ceil(end - begin);
                for read in 0..reads.max(1) {
                    let at_ms = second * 1000 + read * 1000 / reads.max(1);
                    while written < known * (read + 1) / reads.max(1) || written == 0 {
                        access(at_ms, TraceAccess::Write(first_key + written));
                        written += 1;
                    }
                    // The smaller of two: early keys are read more often.
                    let key = (next(&mut random) % written).min(next(&mut random) % written);
                    access(at_ms, TraceAccess::Read(first_key + key));
                }
            }
            first_key += written;
        }
    }

    fn second(&self, group: u64) -> u64 {
        self.seconds * group / self.groups
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
