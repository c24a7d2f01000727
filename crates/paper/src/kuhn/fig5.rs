//! Figs. 5.1 to 5.8: empty files are made and removed by one client
//! or by five, with and without the hint `no_metafile`. Without it files are made as PVFS's clients make them, each with one datafile; with it, too, and
//! as they are by default.

use espalier_sim::Line;
use espalier_sim::source::OpKind;

use crate::error::PaperError;
use crate::outcome::{Chart, Claim, Outcome, Table};
use crate::trial::{Trial, medians};
use crate::{Experiment, Place, Setting};

pub(crate) const FIG5_1: Experiment = Experiment {
    id: "kuhn-fig5.1",
    title: "One machine: file creation",
    run: |on| figure(on, ONE, &[CREATE]),
};
pub(crate) const FIG5_3: Experiment = Experiment {
    id: "kuhn-fig5.3",
    title: "One machine: file removal",
    run: |on| figure(on, ONE, &[REMOVE]),
};
pub(crate) const FIG5_4: Experiment = Experiment {
    id: "kuhn-fig5.4",
    title: "Five machines: file creation",
    run: |on| figure(on, FIVE, &[CREATE]),
};
pub(crate) const FIG5_6: Experiment = Experiment {
    id: "kuhn-fig5.6",
    title: "Five machines: file removal",
    run: |on| figure(on, FIVE, &[REMOVE]),
};
pub(crate) const FIG5_7: Experiment = Experiment {
    id: "kuhn-fig5.7",
    title: "One machine: efficiency of the optimized operations",
    run: |on| figure(on, ONE, &[CREATE, REMOVE]),
};
pub(crate) const FIG5_8: Experiment = Experiment {
    id: "kuhn-fig5.8",
    title: "Five machines: efficiency of the optimized operations",
    run: |on| figure(on, FIVE, &[CREATE, REMOVE]),
};

/// The machines of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machines {
    /// For metadata; as many are for data.
    pub servers: u16,
    network: &'static str,
    /// What is told of an operation: with one client and with five, on a disk, in percent of the time without the hint.
    told: fn(Timed) -> [u32; 2],
}

pub(super) const ONE: Machines = Machines {
    servers: 1,
    network: "loopback",
    told: |timed| if timed == CREATE { [60, 35] } else { [65, 50] },
};
pub(super) const FIVE: Machines = Machines {
    servers: 2,
    network: "gigabit",
    told: |timed| if timed == CREATE { [50, 40] } else { [60, 40] },
};

impl Machines {
    /// A cluster without workloads, where files have one datafile. `way`: one of [`WAYS`].
    pub fn scenario(self, setting: &Setting<'_>, disk: &str, clients: u32, way: &str) -> String {
        let Self { servers, network, .. } = self;
        // A server that is alone has no data servers.
        let data = if setting.place == Place::Machine { servers.max(2) } else { servers };
        format!(
            "[cluster]\nranks = {servers}\ndata = {data}\nclients = {clients}\ncache = \"none\"\ndurability = \"durable\"\n\
             high_watermark = 1\n[policy]\n{way}\nstuffing = false\nnum_dfiles = 1\n\
             [model]\npreset = \"wu\"\n[network]\npreset = \"{network}\"\n[disk]\n{disk}\n"
        )
    }
}

/// An operation: its name, the barriers before it, and what is counted.
type Timed = (&'static str, u32, OpKind);

const CREATE: Timed = ("creation", 2, OpKind::Create);
const REMOVE: Timed = ("removal", 3, OpKind::Unlink);

/// How files are made: without the hint, with it, both as PVFS's clients do, and with it by servers alone.
pub(super) const WAYS: [&str; 3] =
    ["create = \"client\"", "create = \"client\"\nno_metafile = true", "no_metafile = true"];
pub(super) const CLIENTS: [u32; 2] = [1, 5];
/// The thesis does not say how long a sync takes: as long as on carns's cluster, of about the same age.
pub(super) const STORAGES: [(&str, &str); 2] =
    [("disk", "sync = \"4.9 ms\""), ("memory", "latency = \"0 s\"\nsync = \"0 s\"")];
/// That of a lone client, and of several that make files on a disk.
const MOST: f64 = 0.60;
const MOST_TOGETHER: f64 = 0.40;

fn figure(setting: &Setting<'_>, machines: Machines, timed: &[Timed]) -> Result<Outcome, PaperError> {
    let files = files(setting);
    let (mut rows, mut claims, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (storage, disk) in STORAGES {
        let mut parts = vec![Vec::new(); timed.len()];
        for (at, clients) in CLIENTS.into_iter().enumerate() {
            let seconds = |way: usize| seconds(setting, machines, disk, clients, files, WAYS[way], timed);
            let times = medians(trials(setting), WAYS.len(), seconds)?;
            for (number, timed) in timed.iter().enumerate() {
                let [without, with, by_servers] = [0, 1, 2].map(|way: usize| times[way][number]);
                let [part, alone] = [with, by_servers].map(|time| time / without.max(f64::MIN_POSITIVE));
                parts[number].push((f64::from(clients), part * 100.0));
                let told = format!("{} %", (machines.told)(*timed)[at]);
                let paper = if storage == "disk" { told } else { String::new() };
                rows.push(vec![
                    timed.0.into(),
                    storage.into(),
                    clients.to_string(),
                    format!("{without:.3}"),
                    format!("{with:.3}"),
                    percent(part),
                    paper.clone(),
                    format!("{by_servers:.3}"),
                    percent(alone),
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
                                "by servers alone, as by default, {} by {clients} on a disk takes at most {} of the time",
                                timed.0,
                                percent(MOST_TOGETHER)
                            ),
                            paper: String::new(),
                            ours: percent(alone),
                            holds: alone <= MOST_TOGETHER,
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
        points: CLIENTS.into_iter().zip((machines.told)(*timed)).map(|(x, y)| (x.into(), y.into())).collect(),
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
    let what = "percent of the time without the hint";
    let charts = vec![Chart { name: "parts", over: "clients", what, lines }];
    Ok(Outcome { setup, claims, tables: vec![table], charts, ..Outcome::default() })
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// The thesis has 50,000.
pub(super) fn files(setting: &Setting<'_>) -> u32 {
    match (setting.place, setting.quick) {
        (_, true) => 200,
        (Place::Simulator, false) => 5000,
        (Place::Machine, false) => 1000,
    }
}

/// How often all is measured: on this machine one run differs much from the next.
pub(super) fn trials(setting: &Setting<'_>) -> usize {
    if setting.place == Place::Machine { 5 } else { 1 }
}

pub(super) fn often(setting: &Setting<'_>) -> String {
    match trials(setting) {
        1 => String::new(),
        trials => format!(" All is measured {trials} times, in turn. Times are medians."),
    }
}

/// How long each operation takes all clients.
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
    let tally = Trial::new(&format!(
        "{cluster}[[workload]]\nkind = \"create\"\nshared = false\nenter = true\nopen = false\nremove = true\ndoor = \"library\"\nfiles = {files}\n"
    ))?
    .run(setting)?;
    timed.iter().map(|(_, phase, kind)| Ok(tally.phase(*phase, *kind)?.seconds())).collect()
}
