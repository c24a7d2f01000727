//! Measurements of one directory for numbers of servers and clients.

use std::sync::{Mutex, PoisonError};

use espalier_proto::{Caller, ClientId, Errno, FromClient, Ino, Rank, Reply, Request, RequestId, named};
use espalier_sim::process::{FileTable, Frontend, Identity, Process, Program, WORKING_DIR};
use espalier_sim::source::{Op, OpKind, OpenFlags, Script, ScriptStep};
use espalier_sim::{Line, Nanos, Observer, Report, ServerReport};

use super::scaling::ScalingPoint;
use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Chart, Table};
use crate::trial::Trial;

/// The cause of the directory's fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Division {
    PreDistributed,
    /// A fragment with more entries than the mean per server splits (wu 5.3).
    Splitting,
    /// A fragment with more entries than this splits.
    SplittingAt(u32),
}

named! {
    /// Costs of operations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Costs {
        /// The thesis's models of PVFS (4.3).
        Thesis = "thesis",
        /// This program on a small virtual machine, as calibrated.
        Calibrated = "calibrated",
    }
}

impl Costs {
    /// Mean processor time of a create in seconds.
    pub fn service(self) -> f64 {
        match self {
            Self::Thesis => 0.378e-3,
            Self::Calibrated => 5.155e-6,
        }
    }

    fn tables(self) -> &'static str {
        match self {
            Self::Thesis => "[model]\npreset = \"wu\"\n[network]\npreset = \"myri10g\"\n",
            Self::Calibrated => include_str!("../../../../scenarios/machines.toml"),
        }
    }
}

/// A run: all clients create entries in one directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreateRun {
    pub division: Division,
    pub costs: Costs,
    pub servers: u32,
    pub clients: u32,
    /// Processes of each client; one in the thesis.
    pub processes: u32,
    /// Entries of each process.
    pub files: u32,
}

/// The directory of a run.
const DIR: &str = "/shared";
/// Time for servers to distribute it.
const DISTRIBUTION: Nanos = Nanos(100_000_000);
/// The number of barriers before the creates.
pub(super) const CREATES: u32 = 2;

/// Completed operations over time: samples with their time in seconds.
pub(super) type CreatesOverTime = Vec<(f64, u64)>;

impl CreateRun {
    pub fn entries(&self) -> u32 {
        self.clients * self.processes * self.files
    }

    /// Clients have no kernel, as those of PVFS in the thesis, and each process waits for its
    /// create.
    pub fn trial(&self) -> Result<Trial, PaperError> {
        let run = *self;
        let Self { division, costs, servers, clients, processes, .. } = run;
        let policy = match division {
            Division::PreDistributed => format!("dir_servers = {servers}"),
            Division::Splitting => format!("dir_split = {}", (self.entries() / servers).max(1)),
            Division::SplittingAt(capacity) => format!("dir_split = {}", capacity.max(1)),
        };
        let tables = costs.tables();
        let trial = Trial::new(&format!(
            "[cluster]\nranks = {servers}\nclients = {clients}\nwriteback = false\n[policy]\n{policy}\n{tables}"
        ))?;
        let crew = move || {
            let files: Vec<FileTable> = (0..clients).map(|_| FileTable::default()).collect();
            let process = |number: u32| run.process(number, &files[(number % clients) as usize]);
            [(0..clients * processes).map(process).collect()].into()
        };
        Ok(Trial { crews: Box::new(crew), stops_at_once: true, ..trial })
    }

    /// The first process of each client enters the directory, for all of them, before the first
    /// create: the attributes that it gets with it are at all servers.
    fn process(self, number: u32, files: &FileTable) -> (u32, Box<dyn Program>) {
        let begin = if number == 0 {
            vec![ScriptStep::Do(Op::mkdir(DIR)), ScriptStep::Pause(DISTRIBUTION)]
        } else {
            Vec::new()
        };
        let enter = Op::open(WORKING_DIR, DIR, OpenFlags::PATH | OpenFlags::DIRECTORY);
        let steps = begin
            .into_iter()
            .chain([ScriptStep::Barrier])
            .chain((number < self.clients).then_some(ScriptStep::Do(enter)))
            .chain([ScriptStep::Barrier])
            .chain((0..self.files).map(move |file| ScriptStep::Do(Op::mknod(format!("{number}.{file}")))));
        let caller = Caller { uid: 0, gid: 0, pid: number + 1, groups: Some([].into()) };
        let identity = Identity { number, caller, umask: 0o022, frontend: Frontend::Library };
        (number % self.clients, Box::new(Process::sharing(identity, Box::new(Script::new(steps)), files)))
    }

    pub fn measure(&self, setting: &Setting<'_>) -> Result<Point, PaperError> {
        Ok(self.measure_over_time(setting)?.0)
    }

    pub fn measure_over_time(&self, setting: &Setting<'_>) -> Result<(Point, CreatesOverTime), PaperError> {
        let (mut redirects, mut progress) = (Redirects::default(), CreatesOverTime::new());
        let before = u64::from(self.clients) + 1;
        let mut begun = None;
        let events = u64::from(self.entries() / 50).clamp(10, 20_000);
        let report = self.trial()?.sampled(setting, &mut redirects, events, &mut |now, world| {
            let done = world.progress().operations;
            if done <= before {
                begun = Some(world.report());
            }
            progress.push((now.as_secs_f64(), done));
        })?;
        let begun = begun.ok_or(PaperError::Nothing("the begin of the creates"))?;
        let create = OpKind::Create.name();
        let creates = report.operations.iter().find(|kind| kind.kind == create);
        let creates = creates.ok_or(PaperError::Nothing(create))?;
        let time_s = (report.worked_s - begun.worked_s).max(f64::MIN_POSITIVE);
        // Reports have means since the start of the run.
        let mean = |of: fn(&ServerReport) -> f64| {
            let total = |report: &Report| report.servers.iter().map(of).sum::<f64>() * report.worked_s;
            (total(&report) - total(&begun)) / time_s / f64::from(self.servers)
        };
        let point = Point {
            servers: self.servers,
            clients: self.clients * self.processes,
            throughput: creates.count as f64 / time_s,
            seconds: creates.mean_us / 1e6,
            in_server: mean(|server| server.queue),
            arrivals: mean(|server| server.arrivals_per_second),
            utilisation: mean(|server| server.utilisation),
            forwards: redirects.count(),
        };
        Ok((point, progress))
    }
}

/// The result of a run, from the first create on. Means are over the servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub servers: u32,
    /// Clients that wait for a create: processes, if clients have several.
    pub clients: u32,
    /// Creates a second.
    pub throughput: f64,
    /// Mean time of a create at the client.
    pub seconds: f64,
    /// Mean number of requests in a server, waiting or served.
    pub in_server: f64,
    /// Requests a second at a server.
    pub arrivals: f64,
    pub utilisation: f64,
    /// Requests that a server could not serve, since another fragment has the name. The thesis's
    /// servers forward them; here the reply has the client repeat them.
    pub forwards: u64,
}

impl Point {
    /// Mean number of requests that wait at a server: N - rho (Eq. 5.3).
    pub fn queue(&self) -> f64 {
        self.in_server - self.utilisation
    }

    /// True if the servers are busy nearly all the time.
    pub fn is_saturated(&self) -> bool {
        self.utilisation > 0.9
    }
}

/// Counts replies that lead requests to other fragments.
#[derive(Debug, Default)]
struct Redirects {
    replies: u64,
    /// Requests for maps, whose replies are not counted.
    maps: u64,
}

impl Redirects {
    fn count(&self) -> u64 {
        self.replies.saturating_sub(self.maps)
    }
}

/// The root has fragments, too.
impl Observer for Redirects {
    fn requested(&mut self, _: u32, _: u64, _: Rank, message: &FromClient) {
        if let FromClient::Request { request: Request::Fragments { dir }, .. } = message {
            self.maps += u64::from(*dir != Ino::ROOT);
        }
    }

    fn replied(&mut self, _: Nanos, _: Rank, _: ClientId, _: RequestId, result: &Result<Reply, Errno>) {
        let dir = match result {
            Ok(Reply::Fragments(fragments)) => fragments.map.dir(),
            Ok(Reply::Misrouted { dir }) => *dir,
            _ => return,
        };
        self.replies += u64::from(dir != Ino::ROOT);
    }
}

/// The thesis's numbers of servers and clients; fewer if `quick`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub servers: &'static [u32],
    pub clients: &'static [u32],
    pub files: u32,
}

pub(super) fn size(setting: &Setting<'_>) -> Size {
    if setting.quick {
        Size { servers: &[1, 4, 16], clients: &[8, 64], files: 100 }
    } else {
        Size { servers: &[1, 2, 4, 8, 16, 32], clients: &[32, 64, 128, 256, 512], files: 200 }
    }
}

/// Points for all numbers of servers and clients.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub costs: Costs,
    pub points: Vec<Point>,
}

/// Points that have been measured, for the experiments that share them.
#[derive(Debug, Default)]
pub struct MeasuredGrids {
    grids: Mutex<Vec<((Division, Costs), Grid)>>,
    pub(super) scaling: Mutex<Vec<ScalingPoint>>,
}

impl Grid {
    pub fn measure(setting: &Setting<'_>, division: Division, costs: Costs) -> Result<Self, PaperError> {
        let grids = || setting.grids.grids.lock().unwrap_or_else(PoisonError::into_inner);
        let measured =
            grids().iter().find(|(key, _)| *key == (division, costs)).map(|(_, grid)| grid.clone());
        if let Some(grid) = measured {
            return Ok(grid);
        }
        let Size { servers, clients, files } = size(setting);
        let pairs = clients.iter().flat_map(|clients| servers.iter().map(|servers| (*servers, *clients)));
        let point = |(servers, clients)| {
            CreateRun { division, costs, servers, clients, processes: 1, files }.measure(setting)
        };
        let grid = Self { costs, points: pairs.map(point).collect::<Result<_, _>>()? };
        grids().push(((division, costs), grid.clone()));
        Ok(grid)
    }

    /// The points with this many clients, by number of servers.
    pub fn with_clients(&self, clients: u32) -> Vec<Point> {
        self.points.iter().filter(|point| point.clients == clients).copied().collect()
    }

    /// The points with this many servers, by number of clients.
    pub fn with_servers(&self, servers: u32) -> Vec<Point> {
        self.points.iter().filter(|point| point.servers == servers).copied().collect()
    }

    pub fn at(&self, servers: u32, clients: u32) -> Result<Point, PaperError> {
        let found = self.points.iter().find(|point| (point.servers, point.clients) == (servers, clients));
        found.copied().ok_or(PaperError::Nothing("the grid"))
    }
}

/// The axis of a chart; the other number has a line for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Servers,
    Clients,
}

/// A quantity of all points: its name and unit, and how it follows from a point.
pub(super) type Quantity = (&'static str, fn(&Point) -> f64);

/// The charts of a figure, one for each grid.
pub(super) fn charts(setting: &Setting<'_>, grids: &[Grid], axis: Axis, (name, of): Quantity) -> Vec<Chart> {
    let Size { servers, clients, .. } = size(setting);
    let lines = |grid: &Grid| -> Vec<Line> {
        let line = |name: String, points: Vec<Point>, at: fn(&Point) -> u32| Line {
            name,
            points: points.iter().map(|point| (f64::from(at(point)), of(point))).collect(),
            dots: false,
        };
        match axis {
            Axis::Servers => clients
                .iter()
                .map(|count| {
                    line(format!("{count} clients"), grid.with_clients(*count), |point| point.servers)
                })
                .collect(),
            Axis::Clients => servers
                .iter()
                .map(|count| {
                    line(format!("{count} servers"), grid.with_servers(*count), |point| point.clients)
                })
                .collect(),
        }
    };
    let over = if axis == Axis::Servers { "servers" } else { "clients" };
    let chart = |grid: &Grid| Chart { name: grid.costs.name(), over, quantity: name, lines: lines(grid) };
    grids.iter().map(chart).collect()
}

/// A table with the points of several grids.
pub(super) fn table(grids: &[Grid]) -> Table {
    let columns =
        vec!["costs", "clients", "servers", "creates/s", "mean ms", "queue", "utilisation", "forwards"];
    let row = |costs: Costs, point: &Point| {
        vec![
            costs.name().to_string(),
            point.clients.to_string(),
            point.servers.to_string(),
            format!("{:.0}", point.throughput),
            format!("{:.3}", point.seconds * 1e3),
            format!("{:.2}", point.queue()),
            format!("{:.2}", point.utilisation),
            point.forwards.to_string(),
        ]
    };
    let rows = grids.iter().flat_map(|grid| grid.points.iter().map(move |point| row(grid.costs, point)));
    Table { name: "points", columns, rows: rows.collect() }
}

/// Notes for readers of the numbers.
pub(super) fn setup(setting: &Setting<'_>, division: Division) -> String {
    let files = size(setting).files;
    let how = match division {
        Division::PreDistributed => "has a fragment on each server from the start",
        Division::Splitting | Division::SplittingAt(_) => {
            "splits when a fragment has more entries than all entries divided by the servers"
        }
    };
    format!(
        "Each client creates {files} entries, one after another, in one directory, which {how}. `thesis`: a create takes 0.378 ms of a server (wu 4.3.3), \
         on Myrinet; `calibrated`: the costs of this program, on gigabit Ethernet. Changes are acknowledged when written. Clients have no \
         kernel, and repeat a request that a server cannot serve; PVFS's servers would forward it."
    )
}
