//! Runs of the simulator, with the thesis's cluster.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use espalier_sim::source::OpKind;
use espalier_sim::{BalancerMove, Line, Nanos, Report, Scenario, Series, World};

use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Claim, Table};
use crate::play::ProcessGroup;
use crate::summary::Summary;

/// Events between two looks at the time.
const STEP: u64 = 200;

/// Results of a run.
pub(super) struct Ran {
    pub report: Report,
    pub series: Series,
    pub moves: Vec<BalancerMove>,
    pub summary: Summary,
}

impl Ran {
    /// Seconds in which processes worked.
    pub fn seconds(&self) -> f64 {
        self.report.worked_s
    }

    /// Completed operations of all clients a second, over time.
    pub fn throughput(&self, name: impl Into<String>) -> Line {
        let points = self.series.total.iter().map(|sample| (sample.time, sample.throughput)).collect();
        Line { name: name.into(), points, dots: false }
    }

    /// Requests that each rank served a second, stacked over those of the ranks before it.
    pub fn stacked(&self, name: &str) -> Vec<Line> {
        let ranks = self.report.servers.len() as u32;
        let line = |rank: u32| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            for sample in self.series.servers.iter().filter(|sample| sample.server <= rank) {
                match points.last_mut().filter(|(time, _)| *time == sample.time) {
                    Some((_, sum)) => *sum += sample.throughput,
                    None => points.push((sample.time, sample.throughput)),
                }
            }
            Line { name: format!("{name}ranks 0 to {rank}"), points, dots: false }
        };
        (0..ranks).map(line).collect()
    }

    /// Ranks that served more than a twentieth of all requests.
    pub fn ranks_in_use(&self) -> usize {
        let all: u64 = self.report.servers.iter().map(|server| server.requests).sum();
        self.report.servers.iter().filter(|server| server.requests * 20 > all).count()
    }

    pub fn count(&self, kind: &str) -> u64 {
        self.report.messages.get(kind).copied().unwrap_or_default()
    }

    /// Mean and standard deviation of the latencies of a kind of operation after this many
    /// barriers, in milliseconds.
    pub fn latency(&self, phase: u32, kind: OpKind) -> Result<(f64, f64), PaperError> {
        let latencies = &self.summary.phase(phase, kind)?.latencies;
        Ok((latencies.mean() / 1e6, latencies.stdev() / 1e6))
    }
}

/// Service times of the thesis's metadata servers: those that wu measured of PVFS's (4.3), and as
/// much for a message of another rank as for a lookup. A client computes `client_us` for each
/// request. With `slow` all takes that much longer, so that fewer operations last as long as the
/// thesis's.
pub(super) fn model(slow: u32, client_us: f64) -> String {
    let slow = f64::from(slow);
    let us = |micros: f64| format!("\"{} us\"", micros * slow);
    let normal = |mean, deviation| format!("{{ normal = [{}, {}] }}", us(mean), us(deviation));
    let small = format!("{{ uniform = [{}, {}] }}", us(60.0), us(90.0));
    let (create, remove) = (normal(378.0, 25.0), normal(375.0, 23.0));
    let smalls = ["lookup", "setattr", "readdir", "open", "data", "other", "peer"];
    let smalls: String = smalls.iter().map(|work| format!("{work} = {small}\n")).collect();
    format!(
        "[model]\npreset = \"wu\"\ncreate = {create}\nrename = {create}\nremove = {remove}\n{smalls}entry = {}\nattributes = {}\n\
         client = {}\n[network]\npreset = \"gigabit\"\nlatency = {}\n[disk]\nlatency = {}\nsync = {}\n",
        us(0.6),
        us(13.2),
        us(client_us),
        us(50.0),
        us(80.0),
        us(200.0)
    )
}

/// Computing time of a client for each request, in microseconds, that lets four clients use a rank
/// fully when they make files (4.1.2.3).
pub(super) const CLIENT_US: f64 = 510.0;

/// Cost of moves for the engine in requests of [`model`]: of a directory, and of each of its
/// entries. `crates/sim/tests/balancer.rs` measures it.
pub(super) const MOVE_COST: &str = "cost_per_move = 30.0\ncost_per_entry = 0.05\n";

/// Limits of the engine for the thesis's balancers, which have none: a fragment may move on at each
/// decision. More than 64 moves do not follow from a decision.
pub(super) fn limits() -> String {
    format!("dwell = \"9 s\"\nmoves = 64\nwindow = \"9 s\"\n{MOVE_COST}")
}

/// A run with further processes. `look` is called again and again in between.
///
/// # Errors
/// [`PaperError`]
pub(super) fn simulate(
    setting: &Setting<'_>,
    text: &str,
    crews: Vec<ProcessGroup>,
    mut look: impl FnMut(Nanos, &World<'_>),
) -> Result<Ran, PaperError> {
    let scenario = Scenario::parse(text, Path::new("an experiment"))?;
    let (mut summary, mutator) = (Summary::default(), &mut ());
    let mut world = World::new(&scenario, &mut summary, mutator)?;
    crews.into_iter().for_each(|crew| world.add_processes(crew));
    loop {
        if setting.stop.load(Ordering::Relaxed) {
            return Err(PaperError::Stopped);
        }
        let progress = world.advance(STEP)?;
        if progress.is_over {
            break;
        }
        look(progress.now, &world);
    }
    let (report, series, moves) = (world.report(), world.series().clone(), world.balancer_moves().to_vec());
    drop(world);
    Ok(Ran { report, series, moves, summary })
}

/// Several runs, on all processors.
///
/// # Errors
/// [`PaperError`]
pub(super) fn simulate_all(setting: &Setting<'_>, texts: &[String]) -> Result<Vec<Ran>, PaperError> {
    let (next, runs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(text) = texts.get(at) else { return };
            let ran = simulate(setting, text, Vec::new(), |_, _| {});
            runs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((at, ran));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(texts.len());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut runs = runs.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    runs.sort_by_key(|(at, _)| *at);
    runs.into_iter().map(|(_, ran)| ran).collect()
}

pub(super) fn claim(text: impl Into<String>, paper: &str, ours: impl Into<String>, holds: bool) -> Claim {
    Claim { text: text.into(), paper: paper.into(), ours: ours.into(), holds }
}

/// A change in percent.
pub(super) fn percent(ratio: f64) -> String {
    // Avoids "-0".
    format!("{:+.1} %", ((ratio - 1.0) * 1000.0).round() / 10.0 + 0.0)
}

/// A row for each run.
pub(super) fn table<'a>(runs: impl IntoIterator<Item = (&'a str, &'a Ran)>) -> Table {
    let columns = vec![
        "run",
        "seconds",
        "requests",
        "between ranks",
        "misrouted",
        "moves",
        "names moved",
        "ranks used",
    ];
    let row = |(name, ran): (&str, &Ran)| {
        vec![
            name.to_owned(),
            format!("{:.1}", ran.seconds()),
            ran.count("request").to_string(),
            ran.count("peer").to_string(),
            ran.report.fragments.misrouted.to_string(),
            ran.report.fragments.moves.to_string(),
            ran.report.fragments.names_moved.to_string(),
            ran.ranks_in_use().to_string(),
        ]
    };
    Table { name: "runs", columns, rows: runs.into_iter().map(row).collect() }
}

/// Describes the settings that all experiments share.
pub(super) fn described(slow: u32, client_us: f64) -> String {
    let slower = match slow {
        1 => String::new(),
        slow => {
            format!(
                " Quick: all takes {slow} times as long, with as many fewer operations, so rates are {slow} times lower."
            )
        }
    };
    format!(
        "Service times are those of PVFS's servers (wu 4.3); a client computes {client_us:.0} us for each request. \
         Clients wait for each change (no write-back). All metadata begins at rank 0; ranks decide each 10 s.{slower}"
    )
}
