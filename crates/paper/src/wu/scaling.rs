//! Figs. 5.2 and 5.4 beyond the thesis's sizes: this program's costs, and servers that
//! clients saturate.

use std::sync::PoisonError;

use super::grid::{Costs, CreateRun, CreatesOverTime, Division, Point};
use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Claim, Table};

/// Processes for each server that wait for a create.
const PROCESSES: u32 = 32;
/// Maximum number of entries of a fragment in a directory that splits.
const CAPACITY: u32 = 2000;

/// Notes for readers of the numbers.
pub(super) const SETUP: &str = " Tables `calibrated` and `from-empty`: 32 processes wait for each server; there are as many clients as servers, \
     at least 32, with as many processes each. Rates leave out the first half of the creates and the last tenth.";

/// A pre-distributed directory while all processes run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScalingPoint {
    pub point: Point,
    /// Creates a second, without the begin and the end of the run.
    pub rate: f64,
}

/// A directory that splits.
struct SplittingPoint {
    servers: u32,
    /// Time that filling one partition takes.
    fill_s: f64,
    /// Time until creates are 0.9 times as fast as in a pre-distributed directory. `None`: the run
    /// was shorter.
    reached_s: Option<f64>,
}

/// Each server has at least as many connections as processes wait for it, so that a small cluster
/// does not gain from batches on a connection.
fn run(division: Division, servers: u32, files: u32) -> CreateRun {
    let clients = servers.max(PROCESSES);
    let processes = servers * PROCESSES / clients;
    CreateRun { division, costs: Costs::Calibrated, servers, clients, processes, files }
}

/// Pre-distributed directories, by number of servers.
pub(super) fn points(setting: &Setting<'_>) -> Result<Vec<ScalingPoint>, PaperError> {
    let servers: &[u32] =
        if setting.quick { &[1, 8, 32, 256] } else { &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] };
    servers.iter().map(|servers| point(setting, *servers)).collect()
}

fn point(setting: &Setting<'_>, servers: u32) -> Result<ScalingPoint, PaperError> {
    let known = || setting.grids.scaling.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(point) = known().iter().find(|it| it.point.servers == servers) {
        return Ok(*point);
    }
    let files = if setting.quick { 30 } else { 100 };
    let (point, progress) = run(Division::PreDistributed, servers, files).measure_over_time(setting)?;
    let point = ScalingPoint { point, rate: steady_rate(&progress) };
    known().push(point);
    Ok(point)
}

/// The rate between the first half of all operations, in which clients connect to servers, and the
/// last tenth, in which processes end.
fn steady_rate(progress: &CreatesOverTime) -> f64 {
    let all = progress.last().map_or(0, |(_, done)| *done);
    let after = |tenths: u64| progress.iter().find(|(_, done)| 10 * done >= tenths * all);
    let (Some((begin, first)), Some((end, last))) = (after(5), after(9)) else { return 0.0 };
    (last - first) as f64 / (end - begin).max(f64::MIN_POSITIVE)
}

/// Throughput per server, relative to one server.
fn efficiency(points: &[ScalingPoint], of: &ScalingPoint) -> f64 {
    let one = points.first().map_or(f64::NAN, |first| first.rate / f64::from(first.point.servers));
    of.rate / f64::from(of.point.servers) / one
}

pub(super) fn claims(points: &[ScalingPoint]) -> Vec<Claim> {
    let most = points.last().map_or(0, |last| last.point.servers);
    let claim = |limit: u32, goal: f64| {
        let up_to = points.iter().filter(|it| it.point.servers <= limit);
        let least = up_to.map(|it| efficiency(points, it)).fold(f64::INFINITY, f64::min);
        Claim {
            text: format!(
                "calibrated costs: with up to {limit} servers, each creates at least {goal} times as much as a single one"
            ),
            paper: String::new(),
            ours: format!("{least:.2} times"),
            holds: least >= goal,
        }
    };
    vec![claim(32.min(most), 0.9), claim(most, 0.8), forwards_claim(points)]
}

fn forwards_claim(points: &[ScalingPoint]) -> Claim {
    let most = points.last().map_or(0, |last| last.point.servers);
    let ratio = |it: &ScalingPoint| it.point.forwards as f64 / f64::from(it.point.clients);
    let largest = points.iter().map(ratio).fold(0.0, f64::max);
    Claim {
        text: format!(
            "calibrated costs: forwards never exceed the number of processes, with up to {most} servers"
        ),
        paper: String::new(),
        ours: format!("at most {largest:.2} for each process"),
        holds: largest <= 1.0,
    }
}

pub(super) fn table(points: &[ScalingPoint]) -> Table {
    let row = |it: &ScalingPoint| {
        vec![
            it.point.servers.to_string(),
            it.point.clients.to_string(),
            format!("{:.0}", it.rate),
            format!("{:.2}", efficiency(points, it)),
            format!("{:.3}", it.point.seconds * 1e3),
            format!("{:.2}", it.point.queue()),
            format!("{:.2}", it.point.utilisation),
            it.point.forwards.to_string(),
        ]
    };
    let columns = vec![
        "servers",
        "processes",
        "creates/s",
        "efficiency",
        "mean ms",
        "queue",
        "utilisation",
        "forwards",
    ];
    Table { name: "calibrated", columns, rows: points.iter().map(row).collect() }
}

/// Directories that split from empty, and how soon they use all servers.
pub(super) fn splitting(setting: &Setting<'_>) -> Result<(Claim, Table), PaperError> {
    let servers: &[u32] = if setting.quick { &[8] } else { &[2, 4, 8, 16, 32] };
    let one = point(setting, 1)?.rate;
    let measure = |servers: &u32| {
        let whole = point(setting, *servers)?.rate;
        let run = run(Division::SplittingAt(CAPACITY), *servers, 4 * CAPACITY / PROCESSES);
        let (_, progress) = run.measure_over_time(setting)?;
        let fill_s = f64::from(CAPACITY) / one;
        let reached_s = time_of_rate(&progress, 0.9 * whole, fill_s / 10.0, run.clients);
        Ok(SplittingPoint { servers: *servers, fill_s, reached_s })
    };
    let measured = servers.iter().map(measure).collect::<Result<Vec<_>, PaperError>>()?;
    let ratio = |it: &SplittingPoint| it.reached_s.unwrap_or(f64::INFINITY) / it.fill_s;
    let few = measured.iter().filter(|it| it.servers <= 8);
    let worst = few.map(ratio).fold(0.0, f64::max);
    let claim = Claim {
        text: "calibrated costs: up to 8 servers reach 0.9 of the pre-distributed rate in twice the time that filling one partition takes"
            .into(),
        paper: String::new(),
        ours: format!("{worst:.2} times"),
        holds: worst <= 2.0,
    };
    let row = |it: &SplittingPoint| {
        // The first partition is filled once, and at each doubling half of every one.
        let least = f64::midpoint(1.0, f64::from(it.servers.ilog2()));
        vec![
            it.servers.to_string(),
            format!("{:.1}", it.fill_s * 1e3),
            it.reached_s.map_or("-".into(), |time| format!("{:.1}", time * 1e3)),
            it.reached_s.map_or("-".into(), |_| format!("{:.2}", ratio(it))),
            format!("{least:.2}"),
        ]
    };
    let columns = vec!["servers", "ms to fill one", "ms to 0.9", "fillings", "fillings at least"];
    Ok((claim, Table { name: "from-empty", columns, rows: measured.iter().map(row).collect() }))
}

/// The time from the first create until the rate over a window is reached. `clients`: each opens
/// the directory before.
fn time_of_rate(progress: &CreatesOverTime, rate: f64, window_s: f64, clients: u32) -> Option<f64> {
    let begin = progress.iter().rfind(|(_, done)| *done <= u64::from(clients) + 1).map_or(0.0, |it| it.0);
    let is_reached = |at: &usize| {
        let (since, before) = progress[*at];
        let after = progress[*at..].iter().find(|(time, _)| *time >= since + window_s);
        after.is_some_and(|(time, done)| (done - before) as f64 >= rate * (time - since))
    };
    (0..progress.len()).find(is_reached).map(|at| progress[at].0 - begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_rate_leaves_out_begin_and_end() {
        // Slow at first and in the end, 100 a second between.
        let at = |time: u32| match time {
            0..=40 => u64::from(time),
            41..=49 => 40 + 100 * u64::from(time - 40),
            _ => 940 + u64::from(time - 49),
        };
        let progress = (0..=109).map(|time| (f64::from(time), at(time))).collect();
        assert!((steady_rate(&progress) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn rate_is_reached_when_a_window_has_it() {
        let done = [1, 3, 4, 14, 24, 124, 224, 324];
        let progress: CreatesOverTime =
            (0..8).zip(done).map(|(time, done)| (f64::from(time), done)).collect();
        assert_eq!(time_of_rate(&progress, 90.0, 2.0, 2), Some(3.0));
        assert_eq!(time_of_rate(&progress, 101.0, 2.0, 2), None);
    }
}
