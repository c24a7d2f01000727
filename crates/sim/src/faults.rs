//! Faults: random ones, and those at stated times.

use espalier_proto::named;
use rand::Rng;
use serde::Deserialize;

use crate::dist::Distribution;
use crate::random::{Random, Seed};
use crate::time::Nanos;

/// The table `[faults]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSettings {
    /// Start of random faults.
    pub from: Nanos,
    /// End of random faults; by default, the end of all processes.
    pub until: Option<Nanos>,
    /// A server's process is killed, and restarted later.
    pub crash: Option<Fault>,
    /// A server loses power: writes that are not durable may be lost or torn.
    pub power: Option<Fault>,
    /// A client crashes with its processes and does not return.
    pub client_crash: Option<Fault>,
    /// A connection breaks.
    pub cut: Option<Fault>,
    /// The network is split in two parts.
    pub partition: Option<Fault>,
    /// Messages to and from a node are delayed.
    pub late: Option<Fault>,
    /// Delay of `late` messages.
    pub late_by: Option<Distribution>,
    /// A server's disk fails all requests. The server restarts when the disk works again.
    pub disk_failure: Option<Fault>,
    /// A server's disk is slow.
    pub slow_disk: Option<Fault>,
    /// A server that fails over is paused, and continues later with what it knew.
    pub pause: Option<Fault>,
    /// A server that fails over hands over its ranks, ends, and starts again.
    pub restart: Option<Fault>,
    /// A server that fails over does not reach the shared store.
    pub store_cut: Option<Fault>,
    /// The shared store answers no server.
    pub store_down: Option<Fault>,
    /// An OSD of the shared store fails: requests to its objects wait, until others have taken them
    /// over. `nodes`: of 8 OSDs.
    pub osd_down: Option<Fault>,
    /// A server's commit watermarks change: each change by itself, or, if that is the setting,
    /// batches.
    pub reload: Option<Fault>,
    /// The destination of a migration is full, or fails.
    pub destination: Option<Fault>,
    /// Factor of a slow disk's service times.
    pub slowness: Option<f64>,
}

/// Frequency and duration of a fault.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// Time between occurrences.
    pub every: Option<Distribution>,
    /// Stated times of occurrence.
    pub at: Vec<Nanos>,
    #[serde(rename = "for")]
    pub lasts: Option<Distribution>,
    /// Affected nodes: servers by number, metadata servers first; clients by their own numbers.
    /// Empty: any.
    pub nodes: Vec<u32>,
}

named! {
    /// Kinds of faults.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum FaultKind {
        Crash = "crash",
        Power = "power",
        ClientCrash = "client_crash",
        Cut = "cut",
        Partition = "partition",
        Late = "late",
        DiskFailure = "disk_failure",
        SlowDisk = "slow_disk",
        Reload = "reload",
        Pause = "pause",
        Restart = "restart",
        StoreCut = "store_cut",
        StoreDown = "store_down",
        OsdDown = "osd_down",
        Destination = "destination",
    }
}

impl FaultKind {
    /// True if the kind concerns servers that fail over; `None`: it concerns all clusters.
    pub fn of_failover(self) -> Option<bool> {
        match self {
            Self::Pause | Self::Restart | Self::StoreCut | Self::StoreDown | Self::OsdDown => Some(true),
            Self::Power | Self::DiskFailure | Self::Reload | Self::Destination => Some(false),
            _ => None,
        }
    }
}

impl FaultSettings {
    pub fn of(&self, kind: FaultKind) -> Option<&Fault> {
        match kind {
            FaultKind::Crash => self.crash.as_ref(),
            FaultKind::Power => self.power.as_ref(),
            FaultKind::ClientCrash => self.client_crash.as_ref(),
            FaultKind::Cut => self.cut.as_ref(),
            FaultKind::Partition => self.partition.as_ref(),
            FaultKind::Late => self.late.as_ref(),
            FaultKind::DiskFailure => self.disk_failure.as_ref(),
            FaultKind::SlowDisk => self.slow_disk.as_ref(),
            FaultKind::Reload => self.reload.as_ref(),
            FaultKind::Destination => self.destination.as_ref(),
            FaultKind::Pause => self.pause.as_ref(),
            FaultKind::Restart => self.restart.as_ref(),
            FaultKind::StoreCut => self.store_cut.as_ref(),
            FaultKind::StoreDown => self.store_down.as_ref(),
            FaultKind::OsdDown => self.osd_down.as_ref(),
        }
    }
}

/// Default duration.
static LASTS: Distribution = Distribution::constant(Nanos(1_000_000_000));
static LATE: Distribution = Distribution::exponential(Nanos(200_000_000));

/// Generates faults.
#[derive(Debug)]
pub struct Faults {
    settings: FaultSettings,
    /// One generator per kind, so that adding a kind of fault does not affect the others.
    randoms: Vec<Random>,
}

impl Faults {
    pub fn new(settings: &FaultSettings, seed: Seed) -> Self {
        let randoms = FaultKind::ALL.iter().map(|kind| seed.random(kind.name(), 0)).collect();
        Self { settings: settings.clone(), randoms }
    }

    pub fn random(&mut self, kind: FaultKind) -> &mut Random {
        &mut self.randoms[kind as usize]
    }

    /// All stated faults, and the first random one of each kind.
    pub fn first(&mut self) -> Vec<(Nanos, FaultKind)> {
        let mut first = Vec::new();
        for kind in FaultKind::ALL {
            let stated = self.settings.of(kind).into_iter().flat_map(|fault| fault.at.iter());
            first.extend(stated.map(|at| (*at, kind)));
            first.extend(self.next(kind, self.settings.from).map(|at| (at, kind)));
        }
        first
    }

    /// Time of the next random fault of a kind after `after`.
    pub fn next(&mut self, kind: FaultKind, after: Nanos) -> Option<Nanos> {
        let every = self.settings.of(kind)?.every.as_ref()?;
        // Excludes endless repetition at one instant.
        let at = after + every.sample(&mut self.randoms[kind as usize]).max(Nanos(1));
        self.settings.until.is_none_or(|until| at <= until).then_some(at)
    }

    /// True if a fault at that time is a stated one, which is not followed by a random one.
    pub fn is_stated(&self, kind: FaultKind, at: Nanos) -> bool {
        self.settings.of(kind).is_some_and(|fault| fault.at.contains(&at))
    }

    /// The affected node, of `nodes`, and the duration.
    pub fn draw(&mut self, kind: FaultKind, nodes: usize) -> (usize, Nanos) {
        let random = &mut self.randoms[kind as usize];
        let fault = self.settings.of(kind);
        let of = fault.map_or(&[][..], |fault| &fault.nodes);
        let node = match of.len() {
            0 => random.random_range(0..nodes.max(1)),
            count => of[random.random_range(0..count)] as usize,
        };
        let lasts = fault.and_then(|fault| fault.lasts.as_ref()).unwrap_or(&LASTS);
        (node, lasts.sample(random))
    }

    /// Delay of late messages.
    pub fn lateness(&mut self) -> Nanos {
        let late = self.settings.late_by.as_ref().unwrap_or(&LATE);
        late.sample(&mut self.randoms[FaultKind::Late as usize])
    }

    pub fn slowness(&self) -> f64 {
        self.settings.slowness.unwrap_or(10.0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_drawn_and_stated() {
        let settings: FaultSettings = toml::from_str(
            "from = \"1 s\"\nuntil = \"9 s\"\ncrash = { every = \"3 s\", nodes = [2] }\npower = { at = [\"5 s\"], for = \"2 s\" }",
        )
        .unwrap();
        let seconds = |seconds: u64| Nanos::from_millis(seconds * 1000);
        let mut faults = Faults::new(&settings, Seed(1));
        assert_eq!(faults.first(), [(seconds(4), FaultKind::Crash), (seconds(5), FaultKind::Power)]);
        assert_eq!(faults.next(FaultKind::Crash, seconds(4)), Some(seconds(7)));
        assert_eq!(faults.next(FaultKind::Crash, seconds(7)), None, "after the end");
        assert!(faults.is_stated(FaultKind::Power, seconds(5)));
        assert!(!faults.is_stated(FaultKind::Crash, seconds(4)));
        assert_eq!(faults.draw(FaultKind::Crash, 4), (2, seconds(1)));
        assert!(faults.draw(FaultKind::Power, 4).0 < 4);
    }

    #[test]
    fn kinds_have_the_names_of_the_fields() {
        for (place, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
            let settings: FaultSettings =
                toml::from_str(&format!("{} = {{ every = \"1 s\" }}", kind.name())).unwrap();
            assert!(settings.of(kind).is_some());
        }
    }
}
