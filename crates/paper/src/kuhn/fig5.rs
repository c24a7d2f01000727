//! Figs. 5.1 to 5.8: creation and removal of empty files by one and five clients, with and without
//! `no_metafile`. Without it clients create files as PVFS's do, with one datafile; with it both so
//! and as by default here.

use espalier_sim::Line;
use espalier_sim::source::OpKind;

use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};
use crate::trial::{Trial, medians};
use crate::{EVERYWHERE, Experiment, Setting, Testbed};

pub(crate) const FIG5_1: Experiment = Experiment {
    id: "kuhn-fig5.1",
    title: "One machine: file creation",
    places: EVERYWHERE,
    run: |on| figure(on, ONE, &[CREATE]),
};
pub(crate) const FIG5_3: Experiment = Experiment {
    id: "kuhn-fig5.3",
    title: "One machine: file removal",
    places: EVERYWHERE,
    run: |on| figure(on, ONE, &[REMOVE]),
};
pub(crate) const FIG5_4: Experiment = Experiment {
    id: "kuhn-fig5.4",
    title: "Five machines: file creation",
    places: EVERYWHERE,
    run: |on| figure(on, FIVE, &[CREATE]),
};
pub(crate) const FIG5_6: Experiment = Experiment {
    id: "kuhn-fig5.6",
    title: "Five machines: file removal",
    places: EVERYWHERE,
    run: |on| figure(on, FIVE, &[REMOVE]),
};
pub(crate) const FIG5_7: Experiment = Experiment {
    id: "kuhn-fig5.7",
    title: "One machine: efficiency of the optimized operations",
    places: EVERYWHERE,
    run: |on| figure(on, ONE, &[CREATE, REMOVE]),
};
pub(crate) const FIG5_8: Experiment = Experiment {
    id: "kuhn-fig5.8",
    title: "Five machines: efficiency of the optimized operations",
    places: EVERYWHERE,
    run: |on| figure(on, FIVE, &[CREATE, REMOVE]),
};

/// The machines of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machines {
    /// Metadata servers, and as many data servers.
    pub servers: u16,
    network: &'static str,
    /// The thesis's values for an operation: with one client and with five, on a disk, in percent
    /// of the time without the hint.
    thesis: fn(Timed) -> [u32; 2],
}

pub(super) const ONE: Machines = Machines {
    servers: 1,
    network: "loopback",
    thesis: |timed| if timed == CREATE { [60, 35] } else { [65, 50] },
};
pub(super) const FIVE: Machines = Machines {
    servers: 2,
    network: "gigabit",
    thesis: |timed| if timed == CREATE { [50, 40] } else { [60, 40] },
};

impl Machines {
    /// A cluster without workloads whose files have one datafile. `way`: one of [`WAYS`].
    pub fn scenario(self, setting: &Setting<'_>, disk: &str, clients: u32, way: &str) -> String {
        let Self { servers, network, .. } = self;
        // A lone server needs data servers beside it.
        let data = if setting.place == Testbed::Machine { servers.max(2) } else { servers };
        format!(
            "[cluster]\nranks = {servers}\ndata = {data}\nclients = {clients}\ncache = \"none\"\ndurability = \"durable\"\n\
             high_watermark = 1\n[policy]\n{way}\nstuffing = false\nnum_dfiles = 1\n\
             [model]\npreset = \"wu\"\n[network]\npreset = \"{network}\"\n[disk]\n{disk}\n"
        )
    }
}

/// An operation: name, barriers before it, operations counted.
type Timed = (&'static str, u32, OpKind);

const CREATE: Timed = ("creation", 2, OpKind::Create);
const REMOVE: Timed = ("removal", 3, OpKind::Unlink);

/// Techniques of creating files: by clients as in PVFS, without and with the hint, and by servers
/// with it.
pub(super) const WAYS: [&str; 3] =
    ["create = \"client\"", "create = \"client\"\nno_metafile = true", "no_metafile = true"];
pub(super) const CLIENTS: [u32; 2] = [1, 5];
/// The thesis does not state a sync's duration: taken from carns's cluster, of about the same age.
pub(super) const STORAGES: [(&str, &str); 2] =
    [("disk", "sync = \"4.9 ms\""), ("memory", "latency = \"0 s\"\nsync = \"0 s\"")];
/// Claims for a lone client, and for several that create on a disk.
const MOST: f64 = 0.60;
const MOST_TOGETHER: f64 = 0.40;

fn figure(
    setting: &Setting<'_>,
    machines: Machines,
    timed: &[Timed],
) -> Result<ExperimentResult, PaperError> {
    let files = files(setting);
    let (mut rows, mut claims, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (storage, disk) in STORAGES {
        let mut parts = vec![Vec::new(); timed.len()];
        for (at, clients) in CLIENTS.into_iter().enumerate() {
            let seconds = |way: usize| seconds(setting, machines, disk, clients, files, WAYS[way], timed);
            let times = medians(trials(setting), WAYS.len(), seconds)?;
            for (number, timed) in timed.iter().enumerate() {
                let [without, with, by_servers] = [0, 1, 2].map(|way: usize| times[way][number]);
                let [part, own_share] = [with, by_servers].map(|time| time / without.max(f64::MIN_POSITIVE));
                parts[number].push((f64::from(clients), part * 100.0));
                let thesis = format!("{} %", (machines.thesis)(*timed)[at]);
                let paper = if storage == "disk" { thesis } else { String::new() };
                rows.push(vec![
                    timed.0.into(),
                    storage.into(),
                    clients.to_string(),
                    format!("{without:.3}"),
                    format!("{with:.3}"),
                    percent(part),
                    paper.clone(),
                    format!("{by_servers:.3}"),
                    percent(own_share),
                ]);
                let most = if *timed == CREATE && clients > 1 { MOST_TOGETHER } else { MOST };
                if storage == "disk" {
                    claims.push(Claim {
                        text: format!(
                            "{} by {clients} on a disk takes at most {} of the time",
                            timed.0,
                            percent(most)
                        ),
                        paper,
                        ours: percent(part),
                        holds: part <= most,
                    });
                    if *timed == CREATE {
                        claims.push(Claim {
                            text: format!(
                                "only by servers, as by default, {} by {clients} on a disk takes at most {} of the time",
                                timed.0,
                                percent(MOST_TOGETHER)
                            ),
                            paper: String::new(),
                            ours: percent(own_share),
                            holds: own_share <= MOST_TOGETHER,
                        });
                    }
                }
            }
        }
        let drawn = timed.iter().zip(parts);
        lines.extend(drawn.map(|((name, ..), points)| Line {
            name: format!("{name}, {storage}"),
            points,
            dots: false,
        }));
    }
    lines.extend(timed.iter().map(|timed| Line {
        name: format!("{}, disk (paper)", timed.0),
        points:
            CLIENTS.into_iter().zip((machines.thesis)(*timed)).map(|(x, y)| (x.into(), y.into())).collect(),
        dots: true,
    }));
    let columns = vec![
        "operation",
        "storage",
        "clients",
        "without, s",
        "with, s",
        "part",
        "paper",
        "by servers, s",
        "part by servers",
    ];
    let servers = machines.servers;
    let setup = format!(
        "{servers} metadata and {servers} data servers; each client makes and removes {files} empty files in a directory of its own. Each change is \
         committed by itself, and durable before it is acknowledged. Without the hint a client makes inode, datafile, layout and name, and removes \
         name, datafile and inode; with it, it makes name and datafile, and removes the name: the server sees to the datafile. By servers: with the hint and nothing else, as it is by default, \
         a client has a file made with one message, and its datafile is made when something is written to it.{}",
        often(setting)
    );
    let table = Table { name: "seconds", columns, rows };
    let quantity = "percent of the time without the hint";
    let charts = vec![Chart { name: "parts", over: "clients", quantity, lines }];
    Ok(ExperimentResult { setup, claims, tables: vec![table], charts, ..ExperimentResult::default() })
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// The thesis has 50,000.
pub(super) fn files(setting: &Setting<'_>) -> u32 {
    match (setting.place, setting.quick) {
        (_, true) => 200,
        (Testbed::Simulator, false) => 5000,
        (Testbed::Machine, false) => 1000,
    }
}

/// Trials: single runs on this machine differ much.
pub(super) fn trials(setting: &Setting<'_>) -> usize {
    if setting.place == Testbed::Machine { 5 } else { 1 }
}

pub(super) fn often(setting: &Setting<'_>) -> String {
    match trials(setting) {
        1 => String::new(),
        trials => format!(" All is measured {trials} times, in turn. Times are medians."),
    }
}

/// Time of each operation for all clients.
fn seconds(
    setting: &Setting<'_>,
    machines: Machines,
    disk: &str,
    clients: u32,
    files: u32,
    way: &str,
    timed: &[Timed],
) -> Result<Vec<f64>, PaperError> {
    let cluster = machines.scenario(setting, disk, clients, way);
    let summary = Trial::new(&format!(
        "{cluster}[[workload]]\nkind = \"create\"\nshared = false\nenter = true\nopen = false\nremove = true\nfrontend = \"library\"\nfiles = {files}\n"
    ))?
    .run(setting)?;
    timed.iter().map(|(_, phase, kind)| Ok(summary.phase(*phase, *kind)?.seconds())).collect()
}
