//! Figs. 5.2 and 5.5: listing empty files with attributes (`pvfs2-ls -l`), with and without
//! `no_metafile`.

use espalier_proto::Caller;
use espalier_sim::Line;
use espalier_sim::process::{Frontend, Identity, Process};
use espalier_sim::source::{Op, OpKind, Script, ScriptStep, list};

use super::fig5::{CLIENTS, FIVE, Machines, ONE, STORAGES, WAYS, files, often, percent, trials};
use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};
use crate::play::ProcessGroup;
use crate::trial::{Trial, medians};
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const FIG5_2: Experiment = Experiment {
    id: "kuhn-fig5.2",
    title: "One machine: file listing",
    places: EVERYWHERE,
    run: |on| figure(on, ONE, [60, 55]),
};
pub(crate) const FIG5_5: Experiment = Experiment {
    id: "kuhn-fig5.5",
    title: "Five machines: file listing",
    places: EVERYWHERE,
    run: |on| figure(on, FIVE, [50, 55]),
};

/// Claimed share of the time without the hint and with a stat of each name.
const MOST: f64 = 0.60;
/// Claimed share of the time without the hint when attributes come with the listing: the hint must
/// cost nothing. Runs differ by this much.
const AS_LONG: f64 = 1.25;

/// Barriers before the listings: names with a stat of each, and with attributes.
const STATS: u32 = 2;
const PLUS: u32 = 3;
/// Listings with attributes, which take about a millisecond each.
const LISTINGS: u32 = 20;

/// `thesis`: its values with one client and with five, in percent of the time without the hint.
fn figure(
    setting: &Setting<'_>,
    machines: Machines,
    thesis: [u32; 2],
) -> Result<ExperimentResult, PaperError> {
    let files = files(setting);
    let (mut rows, mut claims, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (storage, disk) in STORAGES {
        let mut points = Vec::new();
        for (clients, thesis) in CLIENTS.into_iter().zip(thesis) {
            let seconds = |hint: usize| -> Result<Vec<f64>, PaperError> {
                let crews = Box::new(move || crew(clients, files));
                let cluster = machines.scenario(setting, disk, clients, WAYS[hint]);
                let summary = Trial { crews, ..Trial::new(&cluster)? }.run(setting)?;
                Ok(vec![
                    summary.seconds(STATS, &[OpKind::List, OpKind::Stat])?,
                    summary.seconds(PLUS, &[OpKind::List])? / f64::from(LISTINGS),
                ])
            };
            let times = medians(trials(setting), 2, seconds)?;
            let ([stats, plus], [hint_stats, hint_plus]) =
                ([times[0][0], times[0][1]], [times[1][0], times[1][1]]);
            let part = |of: f64, whole: f64| of / whole.max(f64::MIN_POSITIVE);
            let paper = format!("{thesis} %");
            let ways =
                [("names, and a stat of each", stats, hint_stats), ("with attributes", plus, hint_plus)];
            for (way, without, with) in ways {
                let numbers = [format!("{without:.3}"), format!("{with:.3}")];
                let parts = [percent(part(with, without)), percent(part(with, stats)), paper.clone()];
                let row = [way.into(), storage.into(), clients.to_string()].into_iter().chain(numbers);
                rows.push(row.chain(parts).collect());
            }
            let (all, hint) = (part(hint_plus, stats), part(hint_plus, plus));
            points.push((f64::from(clients), all * 100.0));
            claims.push(Claim {
                text: format!(
                    "files without metafiles are listed with attributes by {clients} ({storage}) in at most {} of the time of a listing and a stat \
                     of each file with one",
                    percent(MOST)
                ),
                paper,
                ours: percent(all),
                holds: all <= MOST,
            });
            claims.push(Claim {
                text: format!(
                    "to list them so by {clients} ({storage}) takes at most {} of what files with metafiles take",
                    percent(AS_LONG)
                ),
                paper: String::new(),
                ours: percent(hint),
                holds: hint <= AS_LONG,
            });
        }
        lines.push(Line { name: format!("listing, {storage}"), points, dots: false });
    }
    let points = CLIENTS.into_iter().zip(thesis).map(|(x, y)| (x.into(), y.into())).collect();
    lines.push(Line { name: "listing (paper)".into(), points, dots: true });
    let columns =
        vec!["listing", "storage", "clients", "without, s", "with, s", "part", "of stats without", "paper"];
    let servers = machines.servers;
    let setup = format!(
        "{servers} metadata and {servers} data servers; each client has {files} empty files in a directory of its own, and caches nothing. By names and \
         stats each file is a message to a metadata server and one to its data server, with the hint, too, for owner and permissions. With \
         attributes in the listing, which both have, a page of names is a message, and all sizes of a page are one to each data server.{}",
        often(setting)
    );
    let table = Table { name: "seconds", columns, rows };
    let quantity = "percent of a listing and stats without the hint";
    let charts = vec![Chart { name: "parts", over: "clients", quantity, lines }];
    Ok(ExperimentResult { setup, claims, tables: vec![table], charts, ..ExperimentResult::default() })
}

/// Each client creates files in its own directory and lists them both ways, the short one several
/// times, each time with an empty cache.
fn crew(clients: u32, files: u32) -> Vec<ProcessGroup> {
    let process = |client: u32| {
        let dir = format!("/{client}");
        let path = move |file: u32| format!("/{client}/{file:08}");
        let steps = std::iter::once(ScriptStep::Do(Op::mkdir(dir.clone())))
            .chain([ScriptStep::Barrier])
            .chain((0..files).map(move |file| ScriptStep::Do(Op::mknod(path(file)))))
            .chain([ScriptStep::Barrier, ScriptStep::Forget])
            .chain(list(dir.clone(), false))
            .chain((0..files).map(move |file| ScriptStep::Do(Op::stat(path(file)))))
            .chain([ScriptStep::Barrier])
            .chain(
                (0..LISTINGS)
                    .flat_map(move |_| std::iter::once(ScriptStep::Forget).chain(list(dir.clone(), true))),
            );
        let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
        let identity = Identity { number: client, caller, umask: 0o022, frontend: Frontend::Library };
        (client, Box::new(Process::new(identity, Box::new(Script::new(steps)))) as Box<_>)
    };
    vec![(0..clients).map(process).collect()]
}
