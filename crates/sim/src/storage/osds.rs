//! OSDs of a shared store, and requests that they do not answer in time.

use espalier_store::engine::{TimeOut, TimedOutEffect};
use rand::Rng;

use crate::random::Seed;

/// Number of OSDs. Each object is on one of them until that fails and others have taken over.
pub const OSDS: usize = 8;

/// The OSD of an object.
pub fn osd_of(object: &str) -> usize {
    let hash = object.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) as usize % OSDS
}

/// OSDs that do not answer.
#[derive(Clone, Copy, Debug)]
pub struct FailedOsds {
    pub failed: [bool; OSDS],
    /// Seed of what becomes of each write.
    pub seed: u64,
    /// Writes may take effect later. A client's do not (docs/rados.md, Bytes without a detour).
    pub may_be_late: bool,
}

impl FailedOsds {
    /// Requests to these OSDs fail. A write takes effect at once, later or never.
    pub fn into_time_out(self) -> TimeOut {
        let Self { failed, seed, may_be_late } = self;
        let mut random = Seed(seed).random("time limit", 0);
        Box::new(move |object| {
            let effect = match random.random_range(0..if may_be_late { 3 } else { 2 }) {
                0 => TimedOutEffect::None,
                1 => TimedOutEffect::Applied,
                _ => TimedOutEffect::Late,
            };
            failed[osd_of(object)].then_some(effect)
        })
    }
}
