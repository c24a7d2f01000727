//! Time series of a run, sampled at equal intervals.

use serde::Serialize;

use crate::message::MessageKind;
use crate::report::Used;
use crate::station::Load;
use crate::time::Nanos;

/// A server's sample.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ServerSample {
    /// End of the interval in seconds.
    pub time: f64,
    pub server: u32,
    pub up: bool,
    /// Served requests per second.
    pub throughput: f64,
    /// Mean number of requests that waited or were served.
    pub queue: f64,
    /// Fraction of the time in which the processor's cores were busy.
    pub utilisation: f64,
    pub disk_queue: f64,
    pub disk_utilisation: f64,
    /// Number of files and directories.
    pub entries: u64,
}

/// A client's sample. Times are in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClientSample {
    pub time: f64,
    pub client: u32,
    /// Completed operations per second.
    pub throughput: f64,
    pub errors: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
}

/// A sample of all clients together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TotalSample {
    pub time: f64,
    pub throughput: f64,
    pub errors: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
}

/// Number of sent messages of one kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MessageSample {
    pub time: f64,
    pub kind: &'static str,
    pub messages: u64,
}

/// All series of a run.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub servers: Vec<ServerSample>,
    pub clients: Vec<ClientSample>,
    pub total: Vec<TotalSample>,
    pub messages: Vec<MessageSample>,
    last: Nanos,
    loads: Vec<(Load, Load)>,
    sent: [u64; MessageKind::ALL.len()],
    /// For each client: times in nanoseconds of operations that ended in this interval, and number
    /// of failures.
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

    /// An operation of a client has ended.
    pub fn ended(&mut self, client: u32, took: Nanos, failed: bool) {
        let (times, errors) = &mut self.recent[client as usize];
        times.push(took.0);
        *errors += u64::from(failed);
    }

    /// An interval ends. `servers`: for each, whether it is up, and its accounts.
    pub fn step(
        &mut self,
        now: Nanos,
        servers: impl Iterator<Item = (bool, Used)>,
        sent: &[u64; MessageKind::ALL.len()],
    ) {
        let (time, passed) = (now.as_secs_f64(), now - self.last);
        if passed == Nanos::ZERO {
            return;
        }
        let seconds = passed.as_secs_f64();
        let mean = |new: u128, old: u128| (new - old) as f64 / passed.0 as f64;
        for (server, (up, Used { cores, cpu, disk, entries })) in servers.enumerate() {
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
        let (mut all, mut all_errors) = (Vec::new(), 0);
        for (client, (times, errors)) in self.recent.iter_mut().enumerate() {
            let (client, errors) = (client as u32, std::mem::take(errors));
            let Latency { mean_us, p50_us, p95_us, p99_us } = Latency::of(times);
            let throughput = times.len() as f64 / seconds;
            self.clients.push(ClientSample {
                time,
                client,
                throughput,
                errors,
                mean_us,
                p50_us,
                p95_us,
                p99_us,
            });
            all_errors += errors;
            all.append(times);
        }
        let Latency { mean_us, p50_us, p95_us, p99_us } = Latency::of(&mut all);
        let (throughput, errors) = (all.len() as f64 / seconds, all_errors);
        self.total.push(TotalSample { time, throughput, errors, mean_us, p50_us, p95_us, p99_us });
        for kind in MessageKind::ALL {
            let messages = sent[kind as usize] - self.sent[kind as usize];
            if messages > 0 {
                self.messages.push(MessageSample { time, kind: kind.name(), messages });
            }
        }
        (self.last, self.sent) = (now, *sent);
    }
}

/// Latencies of operations in microseconds.
struct Latency {
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
}

impl Latency {
    /// Statistics of times in nanoseconds.
    fn of(times: &mut [u64]) -> Self {
        times.sort_unstable();
        let quantile = |part: f64| {
            let place = (times.len().saturating_sub(1) as f64 * part).round() as usize;
            times.get(place).map_or(0.0, |time| *time as f64 / 1e3)
        };
        let mean_us = times.iter().sum::<u64>() as f64 / 1e3 / times.len().max(1) as f64;
        Self { mean_us, p50_us: quantile(0.5), p95_us: quantile(0.95), p99_us: quantile(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_step_covers_time_since_last() {
        let mut series = Series::new(1, 2);
        let mut sent = [0; MessageKind::ALL.len()];
        let load = |area: u128, departures| {
            let mut load = Load::default();
            (load.area, load.busy_area, load.departures) = (area, area / 2, departures);
            load
        };
        let used = Used { cores: 2, cpu: load(1_000_000_000, 100), disk: load(0, 0), entries: 5 };
        let millis = Nanos::from_millis;
        for time in 1..=100 {
            series.ended(1, Nanos(time * 1000), time == 1);
        }
        sent[MessageKind::Request as usize] = 7;
        series.step(millis(500), [(true, used)].into_iter(), &sent);
        series.step(millis(1000), [(true, used)].into_iter(), &sent);
        let [first, second] = series.servers[..] else { panic!("{:?}", series.servers) };
        assert_eq!((first.throughput, first.queue, first.utilisation, first.entries), (200.0, 2.0, 0.5, 5));
        assert_eq!((second.throughput, second.queue), (0.0, 0.0));
        let busy = series.clients[1];
        assert_eq!((busy.client, busy.throughput, busy.errors), (1, 200.0, 1));
        assert_eq!((busy.p50_us, busy.p99_us, busy.mean_us), (51.0, 99.0, 50.5));
        assert_eq!((series.clients[0].throughput, series.clients[3].throughput), (0.0, 0.0));
        assert_eq!((series.total[0].throughput, series.total[1].throughput), (200.0, 0.0));
        assert_eq!(series.messages.len(), 1);
    }
}
