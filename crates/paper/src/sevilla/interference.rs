//! Sevilla 6.1: the costs of durability (Fig. 6.2) and of strong consistency (Figs. 6.3 and 6.4).

use std::sync::{Arc, Mutex, PoisonError};

use espalier_proto::Caller;
use espalier_sim::process::{Frontend, Identity, Process, Program};
use espalier_sim::source::{Done, Next, Op, Source};
use espalier_sim::{Line, Nanos, Random};

use super::run::{CLIENT_US, claim, model, simulate};
use crate::error::PaperError;
use crate::outcome::{Chart, ExperimentResult, Table};
use crate::play::ProcessGroup;
use crate::trial::Trial;
use crate::{EVERYWHERE, Experiment, SIMULATED, Setting, Testbed};

pub(crate) const FIG6_2: Experiment = Experiment {
    id: "sevilla-fig6.2",
    title: "Durability: creates with a journal, by the number of changes written at once",
    places: EVERYWHERE,
    run: fig6_2,
};
pub(crate) const FIG6_3: Experiment = Experiment {
    id: "sevilla-fig6.3",
    title: "Consistency: creates while another client interferes",
    places: EVERYWHERE,
    run: fig6_3,
};
pub(crate) const FIG6_4: Experiment = Experiment {
    id: "sevilla-fig6.4",
    title: "Consistency: requests that interference causes, over time",
    places: SIMULATED,
    run: fig6_4,
};

/// Seconds at which each creator has made its files, since the barrier.
type EndTimes = Arc<Mutex<Vec<f64>>>;

/// The size of an experiment.
#[derive(Clone, Copy)]
struct JobSize {
    /// Factor of all service times, so that fewer files take as long as the thesis'.
    slow: u32,
    /// Files of each client, and of the interfering client in each directory.
    files: u32,
    others: u32,
    /// When that begins.
    after: Nanos,
    clients: &'static [u32],
}

impl JobSize {
    fn of(setting: &Setting<'_>) -> Self {
        let slow = match (setting.place, setting.quick) {
            (Testbed::Simulator, false) => 5,
            (_, quick) => 20 * if quick { 5 } else { 1 },
        };
        let clients: &[u32] = match (setting.place, setting.quick) {
            (Testbed::Simulator, false) => &[1, 5, 10, 15, 20],
            (Testbed::Simulator, true) => &[1, 5, 20],
            (Testbed::Machine, _) => &[1, 2, 4],
        };
        // Real servers are not slowed down, so the job is shorter.
        let millis = if setting.place == Testbed::Simulator { 30_000 } else { 300 };
        Self { slow, files: 100_000 / slow, others: 1_000 / slow, after: Nanos(millis * 1_000_000), clients }
    }
}

/// Makes files in a directory of its own.
#[derive(Debug)]
struct Creator {
    number: u32,
    files: u32,
    made: Option<u32>,
    begun: Option<Nanos>,
    waits: bool,
    ends: EndTimes,
}

impl Source for Creator {
    fn next(&mut self, _: &mut Random, last: Option<&Done>) -> Next {
        let Some(made) = self.made else {
            self.made = Some(0);
            return Next::Do(Op::mkdir(format!("/d{}", self.number)));
        };
        if std::mem::take(&mut self.waits) {
            return Next::Barrier;
        }
        if let Some(last) = last.filter(|_| made > 0) {
            self.begun.get_or_insert(last.begun);
            if made == self.files {
                let seconds = (last.ended - self.begun.unwrap_or(last.begun)).as_secs_f64();
                self.ends.lock().unwrap_or_else(PoisonError::into_inner).push(seconds);
                return Next::End;
            }
        }
        self.made = Some(made + 1);
        Next::Do(Op::mknod(format!("/d{}/{made}", self.number)))
    }
}

/// Makes files in the directories of all creators, in turn, after a while.
#[derive(Debug)]
struct Interferer {
    directories: u32,
    left: u32,
    after: Option<Nanos>,
    waits: bool,
}

impl Source for Interferer {
    fn next(&mut self, _: &mut Random, _: Option<&Done>) -> Next {
        if std::mem::take(&mut self.waits) {
            return Next::Barrier;
        }
        if let Some(after) = self.after.take() {
            return Next::Pause(after);
        }
        let Some(left) = self.left.checked_sub(1) else { return Next::End };
        self.left = left;
        Next::Do(Op::mknod(format!("/d{}/other{left}", left % self.directories)))
    }
}

/// Creators, each a client, and at the next one the interfering client if there is one.
fn group(clients: u32, size: JobSize, interferes: bool, ends: &EndTimes) -> ProcessGroup {
    let process = |number: u32, source: Box<dyn Source>| {
        let caller = Caller { uid: 0, gid: 0, pid: number + 1, groups: Some([].into()) };
        let identity = Identity { number, caller, umask: 0o022, frontend: Frontend::Mount };
        (number, Box::new(Process::new(identity, source)) as Box<dyn Program>)
    };
    let creator = |number| {
        let (files, ends) = (size.files, Arc::clone(ends));
        process(number, Box::new(Creator { number, files, made: None, begun: None, waits: true, ends }))
    };
    let other = || {
        let (directories, left) = (clients, clients * size.others);
        process(clients, Box::new(Interferer { directories, left, after: Some(size.after), waits: true }))
    };
    (0..clients).map(creator).chain(interferes.then(other)).collect()
}

/// The scenario of a job. One client more than creators interferes, or does nothing.
fn scenario(clients: u32, size: JobSize, settings: &str) -> String {
    format!(
        "[cluster]\nclients = {}\nwriteback = false\n{settings}[output]\nseries = \"5 s\"\n{}",
        clients + 1,
        model(size.slow, CLIENT_US)
    )
}

/// Seconds of the slowest client.
fn slowest(
    setting: &Setting<'_>,
    (clients, size): (u32, JobSize),
    settings: &str,
    interferes: bool,
) -> Result<f64, PaperError> {
    let ends = EndTimes::default();
    let shared = Arc::clone(&ends);
    let crews = Box::new(move || vec![group(clients, size, interferes, &shared)]);
    Trial { crews, ..Trial::new(&scenario(clients, size, settings))? }.run(setting)?;
    let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
    if ends.len() != clients as usize {
        return Err(PaperError::Nothing("the end of a client"));
    }
    Ok(ends.iter().copied().fold(0.0, f64::max))
}

/// A table and a chart of slowdowns, by clients and ways.
fn slowdowns(size: JobSize, names: &[&'static str], slowdowns: &[Vec<f64>]) -> (Table, Chart) {
    let row = |(at, clients): (usize, &u32)| {
        let cells = slowdowns.iter().map(|way| format!("{:.2}", way[at]));
        std::iter::once(clients.to_string()).chain(cells).collect()
    };
    let rows = size.clients.iter().enumerate().map(row).collect();
    let columns = std::iter::once("clients").chain(names.iter().copied()).collect();
    let line = |(name, way): (&&str, &Vec<f64>)| {
        let points =
            size.clients.iter().map(|clients| f64::from(*clients)).zip(way.iter().copied()).collect();
        Line { name: (*name).into(), points, dots: false }
    };
    let lines = names.iter().zip(slowdowns).map(line).collect();
    let chart = Chart { name: "slowdown", over: "clients", quantity: "times one client's", lines };
    (Table { name: "slowdowns", columns, rows }, chart)
}

fn about(setting: &Setting<'_>, size: JobSize) -> String {
    let place = match setting.place {
        Testbed::Simulator => format!(
            "Service times are those of PVFS's servers (wu 4.3), {} times as long, with as many fewer files.",
            size.slow
        ),
        Testbed::Machine => "Servers and clients share the processors of this machine.".into(),
    };
    format!(
        "Each client makes {} files in a directory of its own, as through a kernel, which looks up each name before; clients wait for each \
         change (no write-back). {place}",
        size.files
    )
}

/// Numbers of changes that a commit of the journal may have: the thesis' segments dispatched at
/// once.
const DISPATCHED: [u32; 4] = [1, 10, 30, 40];

fn fig6_2(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let size = JobSize::of(setting);
    let names = ["no sync", "1 change", "10 changes", "30 changes", "40 changes"];
    let synced =
        |changes: u32| format!("durability = \"durable\"\nlow_watermark = 1\nhigh_watermark = {changes}\n");
    let settings: Vec<String> =
        std::iter::once(String::new()).chain(DISPATCHED.iter().map(|changes| synced(*changes))).collect();
    let mut times = Vec::new();
    for settings in &settings {
        let measured: Result<Vec<f64>, PaperError> =
            size.clients.iter().map(|clients| slowest(setting, (*clients, size), settings, false)).collect();
        times.push(measured?);
    }
    let base = times[0][0];
    let ratios: Vec<Vec<f64>> =
        times.iter().map(|way| way.iter().map(|seconds| seconds / base).collect()).collect();
    let last = size.clients.len() - 1;
    let cost = ratios[1][last] / ratios[0][last];
    let (one, most) = (ratios[1][last], ratios[4][last]);
    let claims = vec![
        claim(
            "a journal that is durable before the answer slows creates",
            "2.4 times",
            format!("{cost:.2} times"),
            cost > 1.0,
        ),
        claim(
            "the slowdown grows with the number of clients",
            "",
            format!("{:.1} and {one:.1} times", ratios[1][0]),
            one > ratios[1][0],
        ),
        claim(
            "40 at once come close to 1 at once, or are better (within 10 %)",
            "approach",
            format!("{most:.1} and {one:.1} times"),
            most < 1.1 * one,
        ),
    ];
    let (table, chart) = slowdowns(size, &names, &ratios);
    Ok(ExperimentResult {
        setup: format!(
            "{} Without sync a change is answered when it is in the journal's file; our servers cannot work without a journal. Otherwise a \
             commit has at most this many changes. Times are those of the slowest client.",
            about(setting, size)
        ),
        claims,
        tables: vec![table],
        charts: vec![chart],
        ..ExperimentResult::default()
    })
}

fn fig6_3(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let size = JobSize::of(setting);
    let mut times = [Vec::new(), Vec::new()];
    for clients in size.clients {
        for (interferes, times) in [false, true].into_iter().zip(&mut times) {
            times.push(slowest(setting, (*clients, size), "", interferes)?);
        }
    }
    let base = times[0][0];
    let ratios: Vec<Vec<f64>> =
        times.iter().map(|way| way.iter().map(|seconds| seconds / base).collect()).collect();
    let per_client = |way: &[f64]| {
        let per = way.iter().zip(size.clients).map(|(ratio, clients)| ratio / f64::from(*clients));
        per.sum::<f64>() / way.len() as f64
    };
    let (without, with) = (per_client(&ratios[0]), per_client(&ratios[1]));
    let last = size.clients.len() - 1;
    let claims = vec![
        claim(
            "interference slows the slowest client, on average over the numbers of clients",
            "1.67 to 1.42 per client: 1.18 times",
            format!("{:.2} times", with / without),
            with > without,
        ),
        claim(
            "and more clients are slower than one",
            "",
            format!("{:.1} times", ratios[0][last]),
            ratios[0][last] > 1.0,
        ),
    ];
    let (table, chart) = slowdowns(size, &["no interference", "interference"], &ratios);
    Ok(ExperimentResult {
        setup: format!(
            "{} From {:.1} s on another client makes {} files in each of these directories. Times are those of the slowest client.",
            about(setting, size),
            size.after.as_secs_f64(),
            size.others
        ),
        claims,
        tables: vec![table],
        charts: vec![chart],
        ..ExperimentResult::default()
    })
}

fn fig6_4(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    const CLIENTS: u32 = 5;
    let size = JobSize::of(setting);
    let run = |interferes| {
        let crews = vec![group(CLIENTS, size, interferes, &EndTimes::default())];
        simulate(setting, &scenario(CLIENTS, size, ""), crews, |_, _| {})
    };
    let (without, with) = (run(false)?, run(true)?);
    let files = f64::from(CLIENTS * size.files);
    // Less what the other client needs for its files: a lookup and a create.
    let others = f64::from(2 * CLIENTS * size.others);
    let requests = (without.count("request") as f64 / files, (with.count("request") as f64 - others) / files);
    let (none, revoked) = (without.count("revoke"), with.count("revoke"));
    let claims = vec![
        claim(
            "interference makes clients ask for names that they could prove absent before",
            "more requests",
            format!("{:.2} and {:.2} requests a file", requests.0, requests.1),
            requests.1 > requests.0,
        ),
        claim(
            "since it revokes what they may cache",
            "capabilities are revoked",
            format!("{none} and {revoked} revocations"),
            revoked > none,
        ),
    ];
    let row = |(name, seconds, sent, revoked): (&str, f64, f64, u64)| {
        vec![name.to_owned(), format!("{seconds:.1}"), format!("{sent:.2}"), revoked.to_string()]
    };
    let rows = [
        ("no interference", without.seconds(), requests.0, none),
        ("interference", with.seconds(), requests.1, revoked),
    ];
    let lines =
        without.stacked("no interference, ").into_iter().chain(with.stacked("interference, ")).collect();
    Ok(ExperimentResult {
        setup: format!(
            "{CLIENTS} clients. {} From {:.0} s on another client makes {} files in each of these directories; its own requests are \
             not counted.",
            about(setting, size),
            size.after.as_secs_f64(),
            size.others
        ),
        claims,
        tables: vec![Table {
            name: "requests",
            columns: vec!["run", "seconds", "requests a file", "revocations"],
            rows: rows.into_iter().map(row).collect(),
        }],
        charts: vec![Chart { name: "requests", over: "seconds", quantity: "requests a second", lines }],
        ..ExperimentResult::default()
    })
}
