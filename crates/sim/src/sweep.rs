//! Sweeps: runs of a scenario with different numbers of servers and clients (wu 5.1).

use serde::{Deserialize, Serialize};

use crate::report::Report;
use crate::scenario::Scenario;

/// The table `[sweep]`: the scenario runs with each pair of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SweepSettings {
    /// Values of `[cluster] ranks`.
    pub ranks: Vec<u16>,
    /// Values of `[cluster] clients`.
    pub clients: Vec<u32>,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub ranks: u16,
    pub clients: u32,
    pub operations: u64,
    /// Virtual time in which processes worked.
    pub seconds: f64,
    pub per_second: f64,
    /// Mean time of an operation.
    pub mean_us: f64,
    /// Mean number of requests in a server, waiting or served, and mean time there.
    pub queue: f64,
    pub wait_us: f64,
    /// Mean utilisation of the servers' processors.
    pub utilisation: f64,
    /// Requests per operation.
    pub messages: f64,
}

impl SweepSettings {
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.clients.is_empty()
    }

    /// The scenarios of the sweep.
    pub fn scenarios(&self, scenario: &Scenario) -> Vec<Scenario> {
        let or = |own: u32, numbers: Vec<u32>| if numbers.is_empty() { vec![own] } else { numbers };
        let ranks =
            or(scenario.cluster.ranks.into(), self.ranks.iter().map(|ranks| u32::from(*ranks)).collect());
        let clients = or(scenario.cluster.clients, self.clients.clone());
        let pairs = clients.iter().flat_map(|clients| ranks.iter().map(move |ranks| (*ranks, *clients)));
        let with = |(ranks, clients)| {
            let mut one = Scenario { sweep: Self::default(), ..scenario.clone() };
            (one.cluster.ranks, one.cluster.clients) = (ranks as u16, clients);
            one
        };
        pairs.map(with).collect()
    }
}

impl Point {
    pub fn new(scenario: &Scenario, report: &Report) -> Self {
        let operations: u64 = report.operations.iter().map(|kind| kind.count).sum();
        let servers = report.servers.len().max(1) as f64;
        let requests: u64 = report.servers.iter().map(|server| server.requests).sum();
        let sum = |of: fn(&crate::ServerReport) -> f64| report.servers.iter().map(of).sum::<f64>();
        let each = |sum: f64, count: u64| sum / count.max(1) as f64;
        Self {
            ranks: scenario.cluster.ranks,
            clients: scenario.cluster.clients,
            operations,
            seconds: report.worked_s,
            per_second: operations as f64 / report.worked_s.max(f64::MIN_POSITIVE),
            mean_us: each(
                report.operations.iter().map(|kind| kind.mean_us * kind.count as f64).sum(),
                operations,
            ),
            queue: sum(|server| server.queue) / servers,
            wait_us: each(sum(|server| server.seconds * server.requests as f64) * 1e6, requests),
            utilisation: sum(|server| server.utilisation) / servers,
            messages: each(requests as f64, operations),
        }
    }
}
