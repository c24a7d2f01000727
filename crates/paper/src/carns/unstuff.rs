//! What it costs when a file outgrows its first strip (IV.A.1): once, for one write.

use espalier_proto::Caller;
use espalier_sim::process::{Door, Identity, Process};
use espalier_sim::source::{Op, OpKind, OpenFlags, Script, Step};

use super::{CLUSTER, servers};
use crate::error::PaperError;
use crate::outcome::{Claim, Outcome, Table};
use crate::play::Crew;
use crate::trial::Trial;
use crate::{Experiment, Setting};

pub(crate) const UNSTUFF: Experiment =
    Experiment { id: "carns-unstuff", title: "Linux cluster: the cost of unstuffing a file", run };

/// Files, of which each is unstuffed once.
const FILES: u32 = 100;
/// Bytes of a write, and the first strip.
const PIECE: u64 = 4 << 10;
const STRIP: u64 = 64 << 10;

fn run(setting: &Setting<'_>) -> Result<Outcome, PaperError> {
    let servers = servers(setting);
    // What messages take, and not what syncs do: those of the paper's servers are as long as 20 messages.
    let cluster = CLUSTER.replace("4.9 ms", "0 s");
    let cluster = format!("[cluster]\nranks = 1\ndata = {servers}\n{cluster}");
    let tally = Trial { crews: Box::new(crew), ..Trial::new(&cluster)? }.run(setting)?;
    let median = |phase: u32| -> Result<f64, PaperError> {
        Ok(tally.phase(phase, OpKind::Write)?.latencies.value_at_quantile(0.5) as f64 / 1e3)
    };
    // Within the strip, past it for the first time, and again.
    let [stuffed, unstuff, striped] = [median(1)?, median(2)?, median(3)?];
    // The first is a message as those are that it costs: one with bytes, by which something changes.
    let messages = (unstuff - striped) / stuffed.max(f64::MIN_POSITIVE);
    let claims = vec![Claim {
        text: "the write that unstuffs a file takes at most 4 message times longer than one after it".into(),
        paper: "4.1 ms once".into(),
        ours: format!("{messages:.1} message times, {:.2} ms", (unstuff - striped) / 1e3),
        holds: messages <= 4.0,
    }];
    let rows = [
        ("write within the strip: a message", stuffed),
        ("write that unstuffs", unstuff),
        ("write after it", striped),
    ];
    let rows = rows.map(|(what, time)| vec![what.to_string(), format!("{time:.0}")]).to_vec();
    let table = Table { name: "latencies", columns: vec!["operation", "median us"], rows };
    let setup = format!(
        "A metadata server and {servers} data servers; one client writes {PIECE} bytes each to {FILES} files: within the first 64 KiB, just past \
         them, and behind that. In the simulator disks take no time."
    );
    Ok(Outcome { setup, claims, tables: vec![table], ..Outcome::default() })
}

fn crew() -> Vec<Crew> {
    let path = |file: u32| format!("/{file}");
    let create = OpenFlags::WRITE | OpenFlags::READ | OpenFlags::CREATE;
    let write = |offset: u64| {
        (3..3 + FILES).map(move |file| Step::Do(Op::Write { file, offset: Some(offset), size: PIECE }))
    };
    let steps = (3..3 + FILES)
        .map(move |file| Step::Do(Op::open(file, path(file), create)))
        .chain([Step::Barrier])
        .chain(write(0))
        .chain([Step::Barrier])
        .chain(write(STRIP))
        .chain([Step::Barrier])
        .chain(write(STRIP + PIECE));
    let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
    let identity = Identity { number: 0, caller, umask: 0o022, door: Door::Library };
    vec![vec![(0, Box::new(Process::new(identity, Box::new(Script::new(steps)))))]]
}
