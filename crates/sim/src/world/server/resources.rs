//! Use of a metadata server's processor and memory, as it reports it to its machine.

use espalier_meta::{Input, Meta, Milli};

use crate::time::Nanos;
use crate::world::server::SimServer;

impl SimServer {
    /// The use of the processor since the last tick, and of the memory for the cache.
    pub(super) fn resources(&mut self, now: Nanos) -> Input {
        let busy = self.cpu.load(now).busy_area;
        let (since, before) = std::mem::replace(&mut self.measured, (now, busy));
        let available = u128::from((now - since).0) * self.cpu.servers() as u128;
        let cache = self.meta().map_or(0, Meta::cache_bytes) as u128;
        Input::Resources {
            cpu: percent(busy.saturating_sub(before), available),
            mem: percent(cache, self.config.cache_bytes as u128),
        }
    }
}

/// In thousandths of a percent.
fn percent(used: u128, available: u128) -> Milli {
    Milli((used * 100_000).checked_div(available).unwrap_or(0) as u64)
}
