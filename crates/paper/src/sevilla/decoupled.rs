//! Sevilla 6.4.2: decoupled namespaces of several clients (Fig. 6.7), and interference that is
//! allowed or blocked (Fig. 6.8), on mounts of this machine.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use espalier_sim::Line;
use tempfile::TempDir;

use super::mechanisms::{ClusterMount, create, one_server};
use super::run::claim;
use crate::cluster::LocalCluster;
use crate::error::PaperError;
use crate::outcome::{Chart, ExperimentResult, Table};
use crate::trial::medians;
use crate::{Experiment, Setting, Testbed};

pub(crate) const FIG6_7: Experiment = Experiment {
    id: "sevilla-fig6.7",
    title: "Parallel creates: RPCs, decoupled, and decoupled with a merge",
    places: &[Testbed::Machine],
    run: fig6_7,
};
pub(crate) const FIG6_8: Experiment = Experiment {
    id: "sevilla-fig6.8",
    title: "Interference allowed and blocked",
    places: &[Testbed::Machine],
    run: fig6_8,
};

const CLIENTS: [u32; 3] = [1, 2, 4];
const ABOUT: &str =
    "All clients are mounts of this machine, whose processors they share with the server; times are medians.";

fn files(setting: &Setting<'_>) -> u32 {
    if setting.quick { 1_000 } else { 20_000 }
}

fn trials(setting: &Setting<'_>) -> usize {
    if setting.quick { 1 } else { 3 }
}

/// Clients with a mount and a directory each, which is named after the directory of the mounts.
struct Clients<'a> {
    mounts: Vec<ClusterMount<'a>>,
    dirs: Vec<PathBuf>,
}

impl<'a> Clients<'a> {
    fn new(
        setting: &Setting<'a>,
        cluster: &LocalCluster,
        at: &Path,
        count: u32,
        options: &str,
    ) -> Result<Self, PaperError> {
        let (mut mounts, mut dirs) = (Vec::new(), Vec::new());
        let name = at.file_name().unwrap_or_default().display();
        for number in 0..count {
            let at = at.join(number.to_string());
            let mount = ClusterMount::new(setting.program, cluster.url(), at, options)?;
            let dir = mount.at.join(format!("{name}{number}"));
            std::fs::create_dir(&dir)?;
            mounts.push(mount);
            dirs.push(dir);
        }
        Ok(Self { mounts, dirs })
    }

    fn each(&self, before: &[&str], after: &[&str]) -> Result<(), PaperError> {
        self.mounts.iter().zip(&self.dirs).try_for_each(|(mount, dir)| mount.on(dir, before, after))
    }

    /// Seconds until all clients have made their files, and those of the slowest.
    fn create(&self, setting: &Setting<'_>, files: u32) -> Result<f64, PaperError> {
        let made = thread::scope(|scope| {
            let making: Vec<_> =
                self.dirs.iter().map(|dir| scope.spawn(move || create(setting, dir, files))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or(Err(PaperError::Nothing("the end of a client")))
            };
            making.into_iter().map(join).collect::<Result<Vec<f64>, _>>()
        })?;
        Ok(made.into_iter().fold(0.0, f64::max))
    }

    /// Seconds until all are merged, at once.
    fn merge(&self) -> Result<f64, PaperError> {
        let started = Instant::now();
        thread::scope(|scope| {
            let merge = |(mount, dir): (&'_ ClusterMount<'_>, &PathBuf)| mount.on(dir, &["merge"], &[]);
            let merging: Vec<_> =
                self.mounts.iter().zip(&self.dirs).map(|pair| scope.spawn(move || merge(pair))).collect();
            merging.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or(Err(PaperError::Nothing("the end of a merge")))
            })
        })?;
        Ok(started.elapsed().as_secs_f64())
    }
}

/// Seconds of RPCs, of creates in decoupled directories, and of their merges.
fn compared(setting: &Setting<'_>, clients: u32) -> Result<Vec<f64>, PaperError> {
    let (cluster, dir) = (one_server(setting)?, tempfile::tempdir()?);
    let at = |name: &str| {
        let at = dir.path().join(name);
        std::fs::create_dir(&at)?;
        Ok::<_, PaperError>(at)
    };
    // No lease, so each create is sent.
    let sending = Clients::new(setting, &cluster, &at("rpcs")?, clients, "insecure,cache=none")?;
    let rpcs = sending.create(setting, files(setting))?;
    drop(sending);
    let decoupled = Clients::new(setting, &cluster, &at("decoupled")?, clients, "insecure")?;
    decoupled.each(&["decouple"], &[])?;
    let created = decoupled.create(setting, files(setting));
    // Also after an error: the namespaces would stay mounted.
    let merged = decoupled.merge();
    let created = created?;
    Ok(vec![rpcs, created, created + merged?])
}

fn fig6_7(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let measured = medians(trials(setting), CLIENTS.len(), |way| compared(setting, CLIENTS[way]))?;
    let rate = |at: usize, way: usize| f64::from(CLIENTS[at] * files(setting)) / measured[at][way];
    let base = rate(0, 0);
    let names = ["RPCs", "decoupled: create", "decoupled: create and merge"];
    let row = |at: usize| {
        let cells = (0..names.len()).map(|way| format!("{:.2}", rate(at, way) / base));
        std::iter::once(CLIENTS[at].to_string()).chain(cells).collect()
    };
    let line = |way: usize| {
        let points = (0..CLIENTS.len()).map(|at| (f64::from(CLIENTS[at]), rate(at, way) / base)).collect();
        Line { name: names[way].into(), points, dots: false }
    };
    let last = CLIENTS.len() - 1;
    let (create, merge) = (rate(last, 1) / rate(last, 0), rate(last, 2) / rate(last, 0));
    let claims = vec![
        claim(
            "creates in decoupled directories are faster than RPCs",
            "91.7 times with 20 clients",
            format!("{create:.1} times with {}", CLIENTS[last]),
            create > 1.0,
        ),
        claim(
            "also with the merge",
            "3.37 times with 20 clients",
            format!("{merge:.2} times with {}", CLIENTS[last]),
            merge > 1.0,
        ),
    ];
    let columns = std::iter::once("clients").chain(names).collect();
    Ok(ExperimentResult {
        setup: format!(
            "Each client makes {} files in a directory of its own. RPCs: mounts without leases, so each create is sent. Decoupled: a namespace \
             on the disk for each client; all are merged at once, with the server's checks. Speedups over one client with RPCs ({base:.0} files a \
             second). {ABOUT}",
            files(setting)
        ),
        claims,
        tables: vec![Table { name: "speedups", columns, rows: (0..CLIENTS.len()).map(row).collect() }],
        charts: vec![Chart {
            name: "speedup",
            over: "clients",
            quantity: "times one client with RPCs",
            lines: (0..names.len()).map(line).collect(),
        }],
        ..ExperimentResult::default()
    })
}

/// How the directories of the clients are, and what another client does.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    /// The policy of interference of decoupled directories; `None`: they are not decoupled.
    policy: Option<&'static str>,
    interferes: bool,
}

const WAYS: [Way; 5] = [
    Way { name: "not decoupled, no interference", policy: None, interferes: false },
    Way { name: "not decoupled, interference", policy: None, interferes: true },
    Way { name: "decoupled, no interference", policy: Some("block"), interferes: false },
    Way { name: "decoupled, interference allowed", policy: Some("allow"), interferes: true },
    Way { name: "decoupled, interference blocked", policy: Some("block"), interferes: true },
];

/// Makes files in the directories of others until it is stopped. Returns how many were made, and
/// how many refused.
fn interfere(dirs: &[PathBuf], stop: &AtomicBool) -> Result<(u64, u64), PaperError> {
    let (mut made, mut refused) = (0, 0);
    for number in 0.. {
        for dir in dirs {
            if stop.load(Ordering::Relaxed) {
                return Ok((made, refused));
            }
            match File::create_new(dir.join(format!("other{number}"))) {
                Ok(_) => made += 1,
                Err(error) if error.kind() == ErrorKind::ResourceBusy => refused += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok((made, refused))
}

/// Seconds of the slowest client, and files of the interfering client that were made and refused.
fn interfered(setting: &Setting<'_>, clients: u32, way: Way) -> Result<Vec<f64>, PaperError> {
    let (cluster, dir): (_, TempDir) = (one_server(setting)?, tempfile::tempdir()?);
    let at = dir.path().join("clients");
    std::fs::create_dir(&at)?;
    let working = Clients::new(setting, &cluster, &at, clients, "insecure")?;
    let other = ClusterMount::new(setting.program, cluster.url(), dir.path().join("other"), "insecure")?;
    let seen: Vec<PathBuf> = (0..clients).map(|number| other.at.join(format!("clients{number}"))).collect();
    if let Some(policy) = way.policy {
        working.each(&["policy"], &["--set", &format!("interfere={policy}")])?;
        working.each(&["decouple"], &[])?;
    }
    let stop = AtomicBool::new(!way.interferes);
    let (seconds, others) = thread::scope(|scope| {
        let interfering = scope.spawn(|| interfere(&seen, &stop));
        let seconds = working.create(setting, files(setting));
        stop.store(true, Ordering::Relaxed);
        (seconds, interfering.join().unwrap_or(Err(PaperError::Nothing("the interfering client"))))
    });
    if way.policy.is_some() {
        working.merge()?;
    }
    let (made, refused) = others?;
    Ok(vec![seconds?, made as f64, refused as f64])
}

fn fig6_8(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let jobs: Vec<(Way, u32)> = WAYS.iter().flat_map(|way| CLIENTS.map(|clients| (*way, clients))).collect();
    let measured = medians(trials(setting), jobs.len(), |at| interfered(setting, jobs[at].1, jobs[at].0))?;
    let of = |way: usize, at: usize| &measured[way * CLIENTS.len() + at];
    // Normalised to one client of the same kind without interference.
    let slowdown = |way: usize, at: usize| of(way, at)[0] / of(if way < 2 { 0 } else { 2 }, 0)[0];
    let mean = |way: usize| {
        let all = (0..CLIENTS.len()).map(|at| slowdown(way, at) / slowdown(if way < 2 { 0 } else { 2 }, at));
        all.sum::<f64>() / CLIENTS.len() as f64
    };
    let row = |way: usize| {
        let cells = (0..CLIENTS.len()).map(|at| format!("{:.2}", slowdown(way, at)));
        let last = of(way, CLIENTS.len() - 1);
        let others = [format!("{:.0}", last[1]), format!("{:.0}", last[2])];
        std::iter::once(WAYS[way].name.to_owned()).chain(cells).chain(others).collect()
    };
    let line = |way: usize| {
        let points = (0..CLIENTS.len()).map(|at| (f64::from(CLIENTS[at]), slowdown(way, at))).collect();
        Line { name: WAYS[way].name.into(), points, dots: false }
    };
    let refused: f64 = (0..CLIENTS.len()).map(|at| of(4, at)[2]).sum();
    let claims = vec![
        claim(
            "interference slows clients that are not decoupled",
            "1.67 to 1.42 per client: 1.18 times",
            format!("{:.2} times", mean(1)),
            mean(1) > 1.0,
        ),
        claim(
            "with interference blocked, clients are nearly as fast as without (within 5 %)",
            "1.34 and 1.42 per client",
            format!("{:.2} times", mean(4)),
            mean(4) < 1.05,
        ),
        claim(
            "blocked clients get EBUSY",
            "-EBUSY",
            format!("{refused:.0} of their creates"),
            refused > 0.0 && (0..CLIENTS.len()).all(|at| of(4, at)[1] == 0.0),
        ),
    ];
    let columns = vec!["run", "1 client", "2 clients", "4 clients", "files of the other", "refused"];
    Ok(ExperimentResult {
        setup: format!(
            "Each client makes {} files in a directory of its own, while another client makes files in all of these as fast as it can. Blocking \
             goes with decoupled directories here; in the thesis these clients use RPCs. Clients that are not decoupled have write-back until another client interferes. Slowdowns of the slowest client, over one client of the same \
             kind without interference. {ABOUT}",
            files(setting)
        ),
        claims,
        tables: vec![Table { name: "slowdowns", columns, rows: (0..WAYS.len()).map(row).collect() }],
        charts: vec![Chart {
            name: "slowdown",
            over: "clients",
            quantity: "times one client's",
            lines: (0..WAYS.len()).map(line).collect(),
        }],
        ..ExperimentResult::default()
    })
}
