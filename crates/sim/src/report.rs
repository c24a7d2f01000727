//! Results of a run.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::balancer::BalancerReport;
use crate::message::MessageKind;
use crate::source::{Done, OpKind};
use crate::station::{Little, Load};
use crate::time::Nanos;

/// Results of a run. Server figures and rates refer to the time in which processes worked.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    /// Runs with the same fingerprint are identical.
    pub fingerprint: String,
    /// Seconds of virtual time in which processes worked, and until everything was at rest.
    pub worked_s: f64,
    pub total_s: f64,
    /// Number of simulated events.
    pub events: u64,
    pub operations: Vec<KindReport>,
    pub servers: Vec<ServerReport>,
    pub messages: BTreeMap<&'static str, u64>,
    pub message_bytes: u64,
    /// Number of faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub fragments: FragmentReport,
    /// Decisions of balancers, if there are any.
    pub balancer: Option<BalancerReport>,
    /// Stations that violate Little's law, which indicates a bug in the simulator's accounting.
    pub lawless: Vec<String>,
}

/// Changes of partitioned directories at all ranks, since the last start of their servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FragmentReport {
    pub splits: u64,
    /// Splits because of requests.
    pub splits_by_rate: u64,
    pub merges: u64,
    pub moves: u64,
    /// Names that went to another record of their directory.
    pub names_moved: u64,
    /// Requests for names that another record has, which clients repeat there.
    pub misrouted: u64,
    /// Those of them that servers forwarded.
    pub forwarded: u64,
}

/// Statistics of one kind of operation. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    pub kind: &'static str,
    pub count: u64,
    pub errors: u64,
    pub per_second: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// As returned by [`quantiles`].
    #[serde(skip)]
    pub quantiles: Vec<Nanos>,
}

/// Utilisation of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    pub server: u32,
    /// `metadata` or `data`.
    pub role: &'static str,
    pub requests: u64,
    /// Mean number of requests in the server, waiting or served; arrivals per second; mean seconds
    /// in the server (Little's L, lambda and W).
    pub queue: f64,
    pub arrivals_per_second: f64,
    pub seconds: f64,
    /// Utilisation of its processor.
    pub utilisation: f64,
    pub disk_queue: f64,
    pub disk_utilisation: f64,
    pub entries: u64,
}

/// Accounts of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub cores: usize,
    pub cpu: Load,
    pub disk: Load,
    pub entries: u64,
}

impl ServerReport {
    /// The report of a server, and its violations of Little's law.
    pub fn new(server: u32, role: &'static str, now: Nanos, used: &Used) -> (Self, Vec<String>) {
        let stations = [("processor", used.cpu.little(now)), ("disk", used.disk.little(now))];
        let is_lawless = |(_, little): &&(&str, Little)| !little.holds();
        let lawless = stations.iter().filter(is_lawless).map(|(what, little)| {
            let Little { number, rate, time } = little;
            format!("server {server}'s {what}: {number} jobs, {rate} arrivals per second, {time} s each")
        });
        let total = now.0.max(1) as f64;
        let [(_, cpu), (_, disk)] = stations;
        let report = Self {
            server,
            role,
            requests: used.cpu.departures,
            queue: cpu.number,
            arrivals_per_second: cpu.rate,
            seconds: cpu.time,
            utilisation: used.cpu.busy_area as f64 / total / used.cores.max(1) as f64,
            disk_queue: disk.number,
            disk_utilisation: used.disk.busy_area as f64 / total,
            entries: used.entries,
        };
        (report, lawless.collect())
    }
}

/// Quantiles at equal steps of probability, ascending. The last one is chosen such that linear
/// interpolation has the exact mean; otherwise few very long times would weigh too much.
pub fn quantiles(times: &Histogram<u64>) -> Vec<Nanos> {
    const STEPS: u32 = 64;
    let at = |step| times.value_at_quantile(f64::from(step) / f64::from(STEPS));
    let mut quantiles: Vec<u64> = (0..STEPS).map(at).collect();
    let sum: f64 = quantiles.windows(2).map(|pair| (pair[0] + pair[1]) as f64 / 2.0).sum();
    let last = quantiles.last().copied().unwrap_or_default();
    let longest = 2.0 * (times.mean() * f64::from(STEPS) - sum) - last as f64;
    quantiles.push((longest as u64).max(last));
    quantiles.into_iter().map(Nanos).collect()
}

/// Completed operations by kind.
#[derive(Debug, Default)]
pub struct Summary {
    kinds: BTreeMap<OpKind, Times>,
}

#[derive(Debug)]
struct Times {
    errors: u64,
    /// Nanoseconds.
    times: Histogram<u64>,
}

impl Summary {
    pub fn add(&mut self, done: &Done) {
        let times = match self.kinds.entry(done.kind) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                // From a nanosecond to a day, with three significant digits.
                let Ok(times) = Histogram::new_with_bounds(1, 86_400_000_000_000, 3) else { return };
                entry.insert(Times { errors: 0, times })
            }
        };
        times.errors += u64::from(done.result.is_err());
        times.times.saturating_record((done.ended - done.begun).0);
    }

    pub fn operations(&self) -> u64 {
        self.kinds.values().map(|times| times.times.len()).sum()
    }

    /// `seconds`: time in which processes worked.
    pub fn report(&self, seconds: f64) -> Vec<KindReport> {
        let report = |(kind, Times { errors, times }): (&OpKind, &Times)| {
            let micros = |part: f64| times.value_at_quantile(part) as f64 / 1e3;
            KindReport {
                kind: kind.name(),
                count: times.len(),
                errors: *errors,
                per_second: times.len() as f64 / seconds.max(f64::MIN_POSITIVE),
                mean_us: times.mean() / 1e3,
                p50_us: micros(0.5),
                p95_us: micros(0.95),
                p99_us: micros(0.99),
                max_us: times.max() as f64 / 1e3,
                quantiles: quantiles(times),
            }
        };
        self.kinds.iter().map(report).collect()
    }
}

/// Counts by name of their kind, without zeros.
pub fn messages(sent: &[u64; MessageKind::ALL.len()]) -> BTreeMap<&'static str, u64> {
    let counts = MessageKind::ALL.into_iter().map(|kind| (kind.name(), sent[kind as usize]));
    counts.filter(|(_, count)| *count > 0).collect()
}

impl Report {
    /// Number of all operations.
    pub fn count(&self) -> u64 {
        self.operations.iter().map(|kind| kind.count).sum()
    }

    /// Writes what concerns fragments and balancers.
    fn show_balancing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FragmentReport { splits, splits_by_rate, merges, moves, names_moved, misrouted, forwarded } =
            self.fragments;
        if self.fragments != FragmentReport::default() {
            writeln!(
                f,
                "fragments: {splits} splits ({splits_by_rate} because of requests), {merges} merges, {moves} moves, \
                 {names_moved} names moved, {misrouted} misrouted requests ({forwarded} forwarded)"
            )?;
        }
        if let Some(BalancerReport { policy, decisions, moves, failures, error }) = &self.balancer {
            writeln!(
                f,
                "balancer {policy}: {decisions} decisions, {moves} moves begun, {failures} failures"
            )?;
            if let Some(error) = error {
                writeln!(f, "  last failure: {error}")?;
            }
        }
        Ok(())
    }

    /// Mean number of requests in a metadata server.
    pub fn mean_queue(&self) -> f64 {
        let queues: Vec<f64> = self
            .servers
            .iter()
            .filter(|server| server.role == "metadata")
            .map(|server| server.queue)
            .collect();
        queues.iter().sum::<f64>() / queues.len().max(1) as f64
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, fingerprint, worked_s, total_s, events, .. } = self;
        let rate = self.count() as f64 / worked_s.max(f64::MIN_POSITIVE);
        writeln!(
            f,
            "seed {seed}, fingerprint {fingerprint}: {} operations in {worked_s:.3} s, {rate:.0} per second",
            self.count()
        )?;
        writeln!(f, "{events} events; at rest after {total_s:.3} s")?;
        writeln!(
            f,
            "\n{:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "operation", "count", "errors", "per s", "mean us", "p50 us", "p99 us", "max us"
        )?;
        for kind in &self.operations {
            let KindReport { kind, count, errors, per_second, mean_us, p50_us, p99_us, max_us, .. } = kind;
            writeln!(
                f,
                "{kind:>10} {count:>10} {errors:>8} {per_second:>10.0} {mean_us:>10.1} {p50_us:>10.1} {p99_us:>10.1} {max_us:>10.1}"
            )?;
        }
        writeln!(
            f,
            "\n{:>6} {:>8} {:>10} {:>8} {:>8} {:>10} {:>8} {:>10}",
            "server", "role", "requests", "queue", "busy", "disk queue", "busy", "entries"
        )?;
        for server in &self.servers {
            let ServerReport {
                server,
                role,
                requests,
                queue,
                utilisation,
                disk_queue,
                disk_utilisation,
                entries,
                ..
            } = server;
            writeln!(
                f,
                "{server:>6} {role:>8} {requests:>10} {queue:>8.2} {:>7.1}% {disk_queue:>10.2} {:>7.1}% {entries:>10}",
                utilisation * 100.0,
                disk_utilisation * 100.0
            )?;
        }
        let messages: Vec<_> = self.messages.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(f, "\nmessages: {} ({} bytes)", messages.join(", "), self.message_bytes)?;
        if !self.faults.is_empty() {
            let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            writeln!(f, "faults: {}", faults.join(", "))?;
        }
        self.show_balancing(f)?;
        for lawless in &self.lawless {
            writeln!(f, "ERROR: Little's law does not hold for {lawless}")?;
        }
        Ok(())
    }
}
