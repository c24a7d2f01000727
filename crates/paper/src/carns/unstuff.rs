//! Cost of outgrowing the first strip (IV.A.1): once, for one write.

use espalier_proto::Caller;
use espalier_sim::process::{Frontend, Identity, Process};
use espalier_sim::source::{Op, OpKind, OpenFlags, Script, ScriptStep};

use super::{CLUSTER, servers};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::play::ProcessGroup;
use crate::trial::Trial;
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const UNSTUFF: Experiment = Experiment {
    id: "carns-unstuff",
    title: "Linux cluster: the cost of unstuffing a file",
    places: EVERYWHERE,
    run,
};

/// Files; each is unstuffed once.
const FILES: u32 = 200;
/// Bytes of a write, and of the first strip.
const PIECE: u64 = 4 << 10;
const STRIP: u64 = 64 << 10;
/// Offsets of a file's writes: within the strip, past it, and twice again. The write after the
/// unstuffing one may wait for data servers to confirm the datafiles.
const WRITES: [u64; 4] = [0, STRIP, STRIP + PIECE, STRIP + 2 * PIECE];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let servers = servers(setting);
    // Costs of messages without syncs: those of the paper's servers take as long as 20 messages.
    let cluster = CLUSTER.replace("4.9 ms", "0 s");
    let cluster = format!("[cluster]\nranks = 1\ndata = {servers}\ncache = \"ttl 100 ms\"\n{cluster}");
    let summary = Trial { crews: Box::new(crew), ..Trial::new(&cluster)? }.run(setting)?;
    let median = |write: u32| -> Result<f64, PaperError> {
        let mut latencies = summary.phase(phase(0, write), OpKind::Write)?.latencies.clone();
        for file in 1..FILES {
            // Both have three digits.
            let _ = latencies.add(&summary.phase(phase(file, write), OpKind::Write)?.latencies);
        }
        Ok(latencies.value_at_quantile(0.5) as f64 / 1e3)
    };
    let [stuffed, unstuff, next, striped] = [median(0)?, median(1)?, median(2)?, median(3)?];
    // The first write is a message of the same kind: with bytes, and changing something.
    let more = unstuff + next - 2.0 * striped;
    let messages = more / stuffed.max(f64::MIN_POSITIVE);
    let claims = vec![Claim {
        text: "the write that unstuffs a file, and the next, take at most 4 message times longer than two after them".into(),
        paper: "4.1 ms once".into(),
        ours: format!("{messages:.1} message times, {:.2} ms", more / 1e3),
        holds: messages <= 4.0,
    }];
    let rows = [
        ("write within the strip: a message", stuffed),
        ("write that unstuffs", unstuff),
        ("write after it", next),
        ("write after that", striped),
    ];
    let rows = rows.map(|(operation, time)| vec![operation.to_string(), format!("{time:.0}")]).to_vec();
    let table = Table { name: "latencies", columns: vec!["operation", "median us"], rows };
    let setup = format!(
        "A metadata server and {servers} data servers; one client writes {PIECE} bytes each to {FILES} files, one file after the other: within the first 64 KiB, \
         just past them, and twice behind that. In the simulator disks take no time."
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], ..ExperimentResult::default() })
}

fn crew() -> Vec<ProcessGroup> {
    let path = |file: u32| format!("/{file}");
    let create = OpenFlags::WRITE | OpenFlags::READ | OpenFlags::CREATE;
    // One file after the other, so that all find servers equally awake.
    let writes = |file: u32| {
        WRITES.into_iter().flat_map(move |offset| {
            [ScriptStep::Barrier, ScriptStep::Do(Op::Write { file, offset: Some(offset), size: PIECE })]
        })
    };
    let steps = (3..3 + FILES)
        .map(move |file| ScriptStep::Do(Op::open(file, path(file), create)))
        .chain((3..3 + FILES).flat_map(writes));
    let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
    let identity = Identity { number: 0, caller, umask: 0o022, frontend: Frontend::Library };
    vec![vec![(0, Box::new(Process::new(identity, Box::new(Script::new(steps)))))]]
}

/// Barriers before one of a file's writes.
fn phase(file: u32, write: u32) -> u32 {
    1 + file * WRITES.len() as u32 + write
}
