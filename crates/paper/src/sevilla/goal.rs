//! Our own goal for balancers: a hot subtree that changes every minute over 16 ranks.

use espalier_proto::Caller;
use espalier_sim::process::{Frontend, Identity, Process, Program};
use espalier_sim::source::{Done, Next, Op, Source};
use espalier_sim::{Nanos, Random};

use super::run::{CLIENT_US, MOVE_COST, Ran, claim, described, model, percent, simulate, table};
use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};
use crate::play::ProcessGroup;
use crate::{Experiment, SIMULATED, Setting};

pub(crate) const HOT_SUBTREE: Experiment = Experiment {
    id: "sevilla-hot-subtree",
    title: "A hot subtree that changes every minute, 16 ranks",
    places: SIMULATED,
    run,
};

const RANKS: u32 = 16;
/// Subtrees, and directories of each.
const SUBTREES: u32 = 16;
const DIRS: u32 = 16;
const MINUTE: Nanos = Nanos(60_000_000_000);
/// Goals: the least share of the best placement's throughput, and of that without balancing.
const OF_BEST: f64 = 0.85;
const OF_NONE: f64 = 0.98;

/// Numbers of clients: four use a rank fully.
const CLIENTS: [u32; 2] = [8, 16];

/// Initial placement of the directories.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed {
    /// Each subtree at a rank of its own.
    ByTree,
    /// The directories of each subtree at all ranks, which is best for hot subtrees.
    Spread,
}

/// A process that makes files in the hot subtree. It knows the time by its last operation.
#[derive(Debug)]
struct HotWriter {
    number: u32,
    files: u32,
    /// The directories that it makes before.
    made: Vec<Op>,
    waits: bool,
    begun: Option<Nanos>,
    minutes: u32,
    path: Option<String>,
}

fn dir(tree: u32, dir: u32) -> String {
    format!("/t{tree}.d{dir}")
}

impl Source for HotWriter {
    fn next(&mut self, random: &mut Random, last: Option<&Done>) -> Next {
        if let Some(op) = self.made.pop() {
            return Next::Do(op);
        }
        if std::mem::take(&mut self.waits) {
            return Next::Barrier;
        }
        let Some(last) = last.filter(|_| self.files > 0) else {
            self.files += 1;
            return Next::Do(Op::stat("/"));
        };
        if let Some(path) = self.path.take() {
            return Next::Do(Op::stat(path));
        }
        let passed = last.ended - *self.begun.get_or_insert(last.ended);
        let minute = (passed.0 / MINUTE.0) as u32;
        if minute >= self.minutes {
            return Next::End;
        }
        self.files += 1;
        let at = rand::Rng::random_range(random, 0..DIRS);
        let path = format!("{}/{}.{}", dir(minute % SUBTREES, at), self.number, self.files);
        self.path = Some(path.clone());
        Next::Do(Op::mknod(path))
    }
}

/// New directories go to the ranks in rotation: their order decides where they are.
fn writers(clients: u32, minutes: u32, placed: Placed) -> ProcessGroup {
    let made = |number: u32| match placed {
        Placed::ByTree => Op::mkdir(dir(number % SUBTREES, number / SUBTREES)),
        Placed::Spread => Op::mkdir(dir(number / DIRS, number % DIRS)),
    };
    let process = |number: u32| {
        let caller = Caller { uid: 0, gid: 0, pid: number + 1, groups: Some([].into()) };
        let identity = Identity { number, caller, umask: 0o022, frontend: Frontend::Library };
        // The last one is made first.
        let made = if number == 0 { (0..SUBTREES * DIRS).rev().map(made).collect() } else { Vec::new() };
        let writer = HotWriter { number, files: 0, made, waits: true, begun: None, minutes, path: None };
        (number, Box::new(Process::new(identity, Box::new(writer))) as Box<dyn Program>)
    };
    (0..clients).map(process).collect()
}

/// Operations a second in each minute, from the barrier on after which the subtrees are hot.
fn minutes(ran: &Ran, count: u32) -> Vec<f64> {
    let begun = ran.summary.span(1).map_or(0.0, |(begun, _)| begun.as_secs_f64());
    let in_minute = |minute: u32| {
        let (from, until) = (begun + 60.0 * f64::from(minute), begun + 60.0 * f64::from(minute + 1));
        let samples = ran.series.total.iter().filter(|it| it.time > from && it.time <= until);
        let rates: Vec<f64> = samples.map(|sample| sample.throughput).collect();
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    };
    (0..count).map(in_minute).collect()
}

/// A way to place the hot subtrees.
#[derive(Clone, Copy)]
struct PlacementWay {
    name: &'static str,
    initial: Placed,
    /// A policy, and the interval of its decisions in seconds.
    policy: Option<(&'static str, u32)>,
}

const WAYS: [PlacementWay; 5] = [
    PlacementWay { name: "no balancing", initial: Placed::ByTree, policy: None },
    PlacementWay { name: "adaptable, each 10 s", initial: Placed::ByTree, policy: Some(("adaptable", 10)) },
    PlacementWay { name: "adaptable, each 2 s", initial: Placed::ByTree, policy: Some(("adaptable", 2)) },
    PlacementWay { name: "best placement", initial: Placed::Spread, policy: None },
    PlacementWay {
        name: "adaptable-requests, each 2 s",
        initial: Placed::ByTree,
        policy: Some(("adaptable-requests", 2)),
    },
];

/// The runs with this many clients, in the order of [`WAYS`].
fn runs(setting: &Setting<'_>, clients: u32, slow: u32, count: u32) -> Result<Vec<Ran>, PaperError> {
    let text = format!(
        "[cluster]\nranks = {RANKS}\nclients = {clients}\nwriteback = false\n[output]\nseries = \"2 s\"\n{}",
        model(slow, CLIENT_US)
    );
    let balancer = |(policy, every): (&str, u32)| {
        format!("[balancer]\npolicy = \"{policy}\"\nevery = \"{every} s\"\n{MOVE_COST}")
    };
    let run = |way: PlacementWay| {
        let text = text.clone() + &way.policy.map_or(String::new(), balancer);
        simulate(setting, &text, vec![writers(clients, count, way.initial)], |_, _| {})
    };
    WAYS.into_iter().map(run).collect()
}

/// The claims about the rates of all minutes, in the order of [`WAYS`].
fn claims(clients: u32, rates: &[Vec<f64>]) -> [Claim; 3] {
    let sum = |at: usize| rates[at].iter().sum::<f64>();
    let (slowly, of_best, of_none) = (sum(1) / sum(3), sum(2) / sum(3), sum(2) / sum(0));
    let to_none = |at: usize| rates[at].iter().zip(&rates[0]).map(|(with, without)| with / without);
    let worst = [1, 2, 4].into_iter().flat_map(to_none).fold(f64::INFINITY, f64::min);
    let by_requests = sum(4) / sum(3);
    [
        claim(
            format!(
                "{clients} clients: adaptable, deciding each 2 s, reaches {OF_BEST} of the best placement"
            ),
            "",
            format!("{of_best:.2}; {slowly:.2} deciding each 10 s; {} of no balancing", percent(of_none)),
            of_best >= OF_BEST,
        ),
        claim(
            format!("{clients} clients: adaptable-requests, deciding each 2 s, reaches {OF_BEST} of it"),
            "",
            format!("{by_requests:.2}"),
            by_requests >= OF_BEST,
        ),
        claim(
            format!("{clients} clients: in no minute it falls below {OF_NONE} of no balancing"),
            "",
            format!("at least {worst:.2}"),
            worst >= OF_NONE,
        ),
    ]
}

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (slow, count) = if setting.quick { (20, 3) } else { (5, 8) };
    let mut result = ExperimentResult::default();
    let mut rows = Vec::new();
    for (clients, name) in CLIENTS.into_iter().zip(["throughput-8", "throughput-16"]) {
        let runs = runs(setting, clients, slow, count)?;
        let rates: Vec<Vec<f64>> = runs.iter().map(|ran| minutes(ran, count)).collect();
        result.claims.extend(claims(clients, &rates));
        for (way, rates) in WAYS.iter().zip(&rates) {
            let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.1}")).collect();
            rows.push(vec![clients.to_string(), way.name.to_owned(), rates.join(" ")]);
        }
        let lines = WAYS.iter().zip(&runs).map(|(way, ran)| ran.throughput(way.name)).collect();
        result.charts.push(Chart { name, over: "seconds", quantity: "operations a second", lines });
        let named = WAYS.iter().map(|way| way.name).zip(&runs);
        result.tables.push(Table { name: ["runs-8", "runs-16"][result.tables.len()], ..table(named) });
    }
    let columns = vec!["clients", "run", "operations a second in each minute"];
    result.tables.push(Table { name: "minutes", columns, rows });
    result.setup = format!(
        "8 and 16 clients make files in one of {SUBTREES} subtrees of {DIRS} directories and stat them, each minute in another one. Each subtree is at a rank of \
         its own, or, as the best placement, at all {RANKS}. Limits of moves are the default ones, except their cost. {}",
        described(slow, CLIENT_US).replace(" All metadata begins at rank 0; ranks decide each 10 s.", "")
    );
    Ok(result)
}
