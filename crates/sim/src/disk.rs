//! Model of disks: service times and failures.

use serde::Deserialize;

use crate::dist::Distribution;
use crate::quantity::Rate;
use crate::random::Random;
use crate::time::Nanos;

/// The table `[disk]`. A disk serves one request at a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiskSettings {
    /// Time of a request, excluding the transfer.
    pub latency: Distribution,
    /// `None`: transfers take no time.
    pub bandwidth: Option<Rate>,
    /// Time of a sync, excluding the transfer.
    pub sync: Distribution,
}

impl Default for DiskSettings {
    /// A solid state disk with a power-safe cache.
    fn default() -> Self {
        let micros = |micros: u64| Distribution::constant(Nanos(micros * 1000));
        Self { latency: micros(80), bandwidth: Some(Rate(1e9)), sync: micros(200) }
    }
}

impl DiskSettings {
    /// All requests take no time.
    pub fn free() -> Self {
        Self { latency: Distribution::ZERO, bandwidth: None, sync: Distribution::ZERO }
    }
}

/// A request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskRequest {
    /// Read or write of this number of bytes.
    Transfer(usize),
    /// Sync with this number of unsynced bytes.
    Sync(usize),
}

/// State of a disk.
#[derive(Clone, Debug)]
pub struct DiskModel {
    settings: DiskSettings,
    random: Random,
    /// Factor of all service times.
    pub slowness: f64,
    /// All requests fail.
    pub fails: bool,
}

impl DiskModel {
    pub fn new(settings: &DiskSettings, random: Random) -> Self {
        Self { settings: settings.clone(), random, slowness: 1.0, fails: false }
    }

    /// Service time of a request.
    pub fn time(&mut self, access: DiskRequest) -> Nanos {
        let (base_time, bytes) = match access {
            DiskRequest::Transfer(bytes) => (&self.settings.latency, bytes),
            DiskRequest::Sync(bytes) => (&self.settings.sync, bytes),
        };
        let bytes = self.settings.bandwidth.map_or(Nanos::ZERO, |rate| rate.time(bytes));
        let time = base_time.sample(&mut self.random) + bytes;
        Nanos((time.0 as f64 * self.slowness) as u64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Seed;

    #[test]
    fn disk_operations_take_time() {
        let settings: DiskSettings =
            toml::from_str("latency = \"1 ms\"\nbandwidth = \"1 MB/s\"\nsync = \"5 ms\"").unwrap();
        let mut disk = DiskModel::new(&settings, Seed(1).random("disk", 0));
        assert_eq!(disk.time(DiskRequest::Transfer(1000)), Nanos::from_millis(2));
        assert_eq!(disk.time(DiskRequest::Sync(2000)), Nanos::from_millis(7));
        disk.slowness = 10.0;
        assert_eq!(disk.time(DiskRequest::Sync(0)), Nanos::from_millis(50));
        let mut free = DiskModel::new(&DiskSettings::free(), Seed(1).random("disk", 0));
        assert_eq!(free.time(DiskRequest::Sync(1 << 30)), Nanos::ZERO);
    }
}
