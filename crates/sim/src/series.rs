//! What is measured while a run goes on, in equal steps of its time.

use serde::Serialize;

use crate::message::MessageKind;
use crate::station::Load;
use crate::time::Nanos;

/// How a server has been in one step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ServerSample {
    /// When the step ended, in seconds.
    pub time: f64,
    pub server: u32,
    pub up: bool,
    /// Requests that were served, per second.
    pub throughput: f64,
    /// Mean number of requests that waited or were served.
    pub queue: f64,
    /// The part of the time in which its processor's cores were busy.
    pub utilisation: f64,
    pub disk_queue: f64,
    pub disk_utilisation: f64,
    /// Files and directories that it has.
    pub entries: u64,
}

/// How a client has been in one step. Times are microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClientSample {
    pub time: f64,
    pub client: u32,
    /// Operations that have ended, per second.
    pub throughput: f64,
    pub errors: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
}

/// How many messages of a kind were sent in one step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MessageSample {
    pub time: f64,
    pub kind: &'static str,
    pub messages: u64,
}

/// All that was measured.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub servers: Vec<ServerSample>,
    pub clients: Vec<ClientSample>,
    pub messages: Vec<MessageSample>,
    last: Nanos,
    loads: Vec<(Load, Load)>,
    sent: [u64; MessageKind::ALL.len()],
    /// Of each client: how long operations took that have ended since, in nanoseconds, and how many have failed.
    recent: Vec<(Vec<u64>, u64)>,
}

impl Series {
    pub fn new(servers: usize, clients: usize) -> Self {
        Self {
            loads: vec![Default::default(); servers],
            recent: vec![Default::default(); clients],
            ..Self::default()
        }
    }

    /// An operation of a client's has ended.
    pub fn ended(&mut self, client: u32, took: Nanos, failed: bool) {
        let (times, errors) = &mut self.recent[client as usize];
        times.push(took.0);
        *errors += u64::from(failed);
    }

    /// A step ends. `servers`: of each whether it is up, how many cores it has, its load, its disk's, and its entries.
    pub fn step(
        &mut self,
        now: Nanos,
        servers: impl Iterator<Item = (bool, usize, Load, Load, u64)>,
        sent: &[u64; MessageKind::ALL.len()],
    ) {
        let (time, passed) = (now.as_secs_f64(), now - self.last);
        if passed == Nanos::ZERO {
            return;
        }
        let seconds = passed.as_secs_f64();
        let mean = |new: u128, old: u128| (new - old) as f64 / passed.0 as f64;
        for (server, (up, cores, cpu, disk, entries)) in servers.enumerate() {
            let (old_cpu, old_disk) = std::mem::replace(&mut self.loads[server], (cpu, disk));
            self.servers.push(ServerSample {
                time,
                server: server as u32,
                up,
                throughput: (cpu.departures - old_cpu.departures) as f64 / seconds,
                queue: mean(cpu.area, old_cpu.area),
                utilisation: mean(cpu.busy_area, old_cpu.busy_area) / cores as f64,
                disk_queue: mean(disk.area, old_disk.area),
                disk_utilisation: mean(disk.busy_area, old_disk.busy_area),
                entries,
            });
        }
        for (client, (times, errors)) in self.recent.iter_mut().enumerate() {
            times.sort_unstable();
            let quantile = |part: f64| {
                let place = (times.len().saturating_sub(1) as f64 * part).round() as usize;
                times.get(place).map_or(0.0, |time| *time as f64 / 1e3)
            };
            self.clients.push(ClientSample {
                time,
                client: client as u32,
                throughput: times.len() as f64 / seconds,
                errors: std::mem::take(errors),
                mean_us: times.iter().sum::<u64>() as f64 / 1e3 / times.len().max(1) as f64,
                p50_us: quantile(0.5),
                p95_us: quantile(0.95),
                p99_us: quantile(0.99),
            });
            times.clear();
        }
        for kind in MessageKind::ALL {
            let messages = sent[kind as usize] - self.sent[kind as usize];
            if messages > 0 {
                self.messages.push(MessageSample { time, kind: kind.name(), messages });
            }
        }
        (self.last, self.sent) = (now, *sent);
    }
}
