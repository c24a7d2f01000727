//! Table I: time of `ls -al` in a directory of 12,000 files.

use espalier_proto::Caller;
use espalier_sim::process::{Frontend, Identity, Process};
use espalier_sim::source::{Op, OpKind, Script, ScriptStep, list, make_file};

use super::{CLUSTER, servers};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::play::ProcessGroup;
use crate::trial::Trial;
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const TABLE1: Experiment = Experiment {
    id: "carns-table1",
    title: "Linux cluster: ls times for 12,000 files",
    places: EVERYWHERE,
    run,
};

const DIR: &str = "/dir";

/// A way to list: the paper's times in seconds (baseline, stuffed), the frontend, and whether
/// attributes come with the listing.
const WAYS: [(&str, [f64; 2], Frontend, bool); 3] = [
    ("/bin/ls -al", [9.65, 8.53], Frontend::Mount, false),
    ("pvfs2-ls -al", [6.19, 4.85], Frontend::Library, false),
    ("pvfs2-lsplus -al", [2.72, 2.65], Frontend::Library, true),
];
/// The two kinds of files.
const POLICIES: [&str; 2] = ["[policy]\ncreate = \"client\"\nstuffing = false\n", ""];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (files, servers) = (files(setting.quick), servers(setting));
    let seconds = |policy: &str, frontend, plus| -> Result<f64, PaperError> {
        let crews = Box::new(move || way(files, frontend, plus));
        let cluster = format!("{policy}[cluster]\nranks = {servers}\ndata = {servers}\n{CLUSTER}");
        let summary = Trial { crews, ..Trial::new(&cluster)? }.run(setting)?;
        let stats = summary.phase(1, OpKind::Stat).map_or(0.0, |phase| phase.seconds());
        Ok(summary.phase(1, OpKind::List)?.seconds() + stats)
    };
    let (mut rows, mut ours) = (Vec::new(), Vec::new());
    for (name, paper, frontend, plus) in WAYS {
        let [baseline, stuffed] = POLICIES.map(|policy| seconds(policy, frontend, plus));
        let (baseline, stuffed) = (baseline?, stuffed?);
        let paper = paper.map(|seconds| format!("{seconds:.2}")).into_iter();
        let here = [baseline, stuffed].map(|seconds| format!("{seconds:.3}"));
        rows.push([name.to_string()].into_iter().chain(paper).chain(here).collect());
        ours.push([baseline, stuffed]);
    }
    let gain = ours[1][1] / ours[2][1].max(f64::MIN_POSITIVE);
    let mut claims = vec![Claim {
        text: "readdirplus lists at least 2.5 times as fast as readdir and stat by the same library".into(),
        paper: format!("{:.1} times", WAYS[1].1[1] / WAYS[2].1[1]),
        ours: format!("{gain:.1} times"),
        holds: gain >= 2.5,
    }];
    for ((name, [paper, paper_stuffed], ..), [baseline, stuffed]) in WAYS.into_iter().zip(ours).take(2) {
        let gain = baseline / stuffed.max(f64::MIN_POSITIVE);
        claims.push(Claim {
            text: format!("{name} is faster with stuffing"),
            paper: format!("{:.2} times", paper / paper_stuffed),
            ours: format!("{gain:.2} times"),
            holds: gain > 1.05,
        });
    }
    let columns = vec!["utility", "paper: baseline, s", "stuffing, s", "here: baseline, s", "stuffing, s"];
    let table = Table { name: "seconds", columns, rows };
    let setup = format!(
        "{servers} servers; a client that has cached nothing lists a directory of {files} files of 8 KiB: as a kernel does, and by the \
         library, with a stat of each name or with attributes in the listing. What ls itself does is not counted."
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], ..ExperimentResult::default() })
}

fn files(quick: bool) -> u64 {
    if quick { 1000 } else { 12_000 }
}

/// A process creates the files, drops its cache, and lists them.
fn way(files: u64, frontend: Frontend, plus: bool) -> Vec<ProcessGroup> {
    let path = |file: u64| format!("{DIR}/{file:08}");
    let stats = (0..files).filter(move |_| !plus).map(move |file| ScriptStep::Do(Op::stat(path(file))));
    let steps = std::iter::once(ScriptStep::Do(Op::mkdir(DIR)))
        .chain((0..files).flat_map(move |file| make_file(path(file), 8 << 10, 1 << 20)))
        .chain([ScriptStep::Barrier, ScriptStep::Forget])
        .chain(list(DIR.into(), plus))
        .chain(stats);
    let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
    let identity = Identity { number: 0, caller, umask: 0o022, frontend };
    vec![vec![(0, Box::new(Process::new(identity, Box::new(Script::new(steps)))))]]
}
