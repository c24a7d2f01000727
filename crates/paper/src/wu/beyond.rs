//! What wu did not measure: other operations than creates, and other hash functions and capacities
//! of fragments (6.6).

use espalier_proto::{Caller, FIRST_HASH, FragmentMap, Ino, LAST_CURSOR, Name, RenameFlags, name_hash};
use espalier_sim::process::{Frontend, Identity, Process, Program};
use espalier_sim::source::{Op, OpKind, Script, ScriptStep, list};

use super::grid::{Costs, CreateRun, Division};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::trial::Trial;
use crate::{Experiment, SIMULATED, Setting};

pub(crate) const MIXED: Experiment = Experiment {
    id: "wu-mixed",
    title: "listings, renames and removals in a pre-distributed directory",
    places: SIMULATED,
    run: mixed,
};
pub(crate) const NAMES: Experiment =
    Experiment { id: "wu-names", title: "hash functions and sets of names", places: SIMULATED, run: names };
pub(crate) const CAPACITIES: Experiment =
    Experiment { id: "wu-capacities", title: "capacities of fragments", places: SIMULATED, run: capacities };

/// Phases of the mixed workload: the barriers before them, and what counts.
const PHASES: [(u32, OpKind); 4] =
    [(1, OpKind::Create), (2, OpKind::List), (3, OpKind::Rename), (4, OpKind::Unlink)];

fn mixed(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (servers, clients, files): (&[u32], u32, u32) =
        if setting.quick { (&[1, 4], 32, 50) } else { (&[1, 2, 4, 8, 16], 64, 50) };
    let mut rates = Vec::new();
    for count in servers {
        let run = CreateRun {
            division: Division::PreDistributed,
            costs: Costs::Thesis,
            servers: *count,
            clients,
            processes: 1,
            files,
        };
        let trial = run.trial()?;
        let crews =
            Box::new(move || [(0..clients).map(|client| mixed_process(client, files)).collect()].into());
        let summary = Trial { crews, ..trial }.run(setting)?;
        let rate = |(phase, kind)| Ok::<f64, PaperError>(summary.phase(phase, kind)?.rate());
        rates.push(PHASES.into_iter().map(rate).collect::<Result<Vec<f64>, _>>()?);
    }
    let growth = |at: usize| rates[rates.len() - 1][at] / rates[0][at];
    let claims = vec![
        Claim {
            text: "removals grow with the servers as creates do".into(),
            paper: String::new(),
            ours: format!("{:.1} and {:.1} times", growth(3), growth(0)),
            holds: growth(3) > 0.7 * growth(0),
        },
        Claim {
            text: "renames grow, although most are transactions of two servers".into(),
            paper: String::new(),
            ours: format!("{:.1} times", growth(2)),
            holds: growth(2) > 1.5,
        },
    ];
    let row = |(servers, rates): (&u32, &Vec<f64>)| {
        core::iter::once(servers.to_string()).chain(rates.iter().map(|rate| format!("{rate:.0}"))).collect()
    };
    Ok(ExperimentResult {
        setup: format!(
            "{clients} clients with {files} entries each, in one directory with a fragment on each server: each creates its entries, lists the \
             directory with attributes (pages of 512 entries), renames its entries, and removes them. The thesis's costs."
        ),
        claims,
        tables: vec![Table {
            name: "rates",
            columns: vec!["servers", "creates/s", "pages/s", "renames/s", "removals/s"],
            rows: servers.iter().zip(&rates).map(row).collect(),
        }],
        ..ExperimentResult::default()
    })
}

fn mixed_process(client: u32, files: u32) -> (u32, Box<dyn Program>) {
    let name = move |file: u32| format!("/shared/{client}.{file}");
    let begin = (client == 0).then(|| ScriptStep::Do(Op::mkdir("/shared")));
    let each = move |op: fn(String) -> Op| (0..files).map(move |file| ScriptStep::Do(op(name(file))));
    let rename = |from: String| {
        let to = format!("{from}.new").into();
        Op::Rename { from: from.into(), to, flags: RenameFlags::empty() }
    };
    let steps = begin
        .into_iter()
        .chain([ScriptStep::Barrier])
        .chain(each(Op::mknod))
        .chain([ScriptStep::Barrier])
        .chain(list("/shared".into(), true))
        .chain([ScriptStep::Barrier])
        .chain(each(rename))
        .chain([ScriptStep::Barrier])
        .chain(each(|path| Op::unlink(format!("{path}.new"))));
    let caller = Caller { uid: 0, gid: 0, pid: client + 1, groups: Some([].into()) };
    let identity = Identity { number: client, caller, umask: 0o022, frontend: Frontend::Library };
    (client, Box::new(Process::new(identity, Box::new(Script::new(steps)))))
}

/// The name of entry `n`.
type NthName = fn(u32) -> String;
/// A hash of a name, 64 bits.
type HashFunction = fn(&[u8]) -> u64;

/// Sets of names as programs make them.
const SETS: [(&str, NthName); 6] = [
    ("numbers", |n| n.to_string()),
    ("mdtest", |n| format!("file.mdtest.{}.{}", n % 8, n / 8)),
    ("photographs", |n| format!("IMG_{n:05}.JPG")),
    ("objects", |n| format!("{:016x}.o", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15))),
    ("genomes", |n| format!("sample_{:03}_chr{}.bam.bai", n / 24, n % 24)),
    ("checkpoints", |n| format!("ckpt-step{:08}-rank{:04}.pt", n / 64 * 500, n % 64)),
];

const FUNCTIONS: [(&str, HashFunction); 3] = [
    ("SipHash-1-3, keyed (ours)", |name| Name::new(name).map_or(0, |name| name_hash(&[7; 16], &name) << 1)),
    ("FNV-1a", |name| {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        name.iter().fold(0xcbf2_9ce4_8422_2325, step)
    }),
    ("times 33", |name| {
        name.iter().fold(5381, |hash: u64, byte| hash.wrapping_mul(33).wrapping_add(u64::from(*byte)))
    }),
];

/// The largest difference of a fragment's entries from the mean, in standard deviations of random
/// numbers.
fn deviation(name: NthName, hash: HashFunction) -> f64 {
    const FRAGMENTS: u16 = 16;
    const NAMES: u32 = 32_000;
    let mut map = FragmentMap::new(Ino::ROOT, FRAGMENTS);
    for child in 1..usize::from(FRAGMENTS) {
        map.cede(child, Ino(1 + child as u64), *map.to_cede(child).start());
    }
    let mut counts = [0_u32; FRAGMENTS as usize];
    for n in 0..NAMES {
        let hash = (hash(name(n).as_bytes()) >> 1).clamp(FIRST_HASH, LAST_CURSOR - 1);
        counts[map.number(hash)] += 1;
    }
    let (all, share) = (f64::from(NAMES), 1.0 / f64::from(FRAGMENTS));
    let sigma = (all * share * (1.0 - share)).sqrt();
    counts.iter().map(|count| (f64::from(*count) - all * share).abs() / sigma).fold(0.0, f64::max)
}

/// Random numbers differ more once in some 100,000 sets.
const MOST_DEVIATION: f64 = 5.0;

fn names(_: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let table: Vec<Vec<f64>> =
        SETS.iter().map(|(_, name)| FUNCTIONS.map(|(_, hash)| deviation(*name, hash)).to_vec()).collect();
    let most = |function: usize| table.iter().map(|set| set[function]).fold(0.0, f64::max);
    let worst = (1..FUNCTIONS.len()).map(most).fold(0.0, f64::max);
    let claims = vec![
        Claim {
            text: "the keyed hash spreads each set as random numbers would be".into(),
            paper: "the hash function is not ideal".into(),
            ours: format!("at most {:.1} standard deviations from the mean", most(0)),
            holds: most(0) < MOST_DEVIATION,
        },
        Claim {
            text: "simpler functions do not".into(),
            paper: String::new(),
            ours: format!("up to {worst:.1} standard deviations"),
            holds: worst > MOST_DEVIATION,
        },
    ];
    let row = |((set, _), values): (&(&str, NthName), &Vec<f64>)| {
        core::iter::once((*set).to_string()).chain(values.iter().map(|value| format!("{value:.1}"))).collect()
    };
    let columns = core::iter::once("names").chain(FUNCTIONS.map(|(name, _)| name)).collect();
    Ok(ExperimentResult {
        setup: "32,000 names over 16 fragments; the largest difference of a fragment from the mean, in standard deviations.".into(),
        claims,
        tables: vec![Table { name: "deviations", columns, rows: SETS.iter().zip(&table).map(row).collect() }],
        ..ExperimentResult::default()
    })
}

fn capacities(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (servers, clients, files) = if setting.quick { (4, 32, 100) } else { (16, 256, 200) };
    let mean = clients * files / servers;
    let capacities = [mean / 16, mean / 4, mean, 4 * mean];
    let measure = |capacity: u32| {
        let division = Division::SplittingAt(capacity);
        CreateRun { division, costs: Costs::Thesis, servers, clients, processes: 1, files }.measure(setting)
    };
    let points = capacities.map(measure).into_iter().collect::<Result<Vec<_>, _>>()?;
    let (least, most) = (points[0], points[points.len() - 1]);
    let claims = vec![Claim {
        text: "fragments that split early use the servers sooner".into(),
        paper: "future work".into(),
        ours: format!(
            "{:.0} creates/s at {} entries, {:.0} at {}",
            least.throughput, capacities[0], most.throughput, capacities[3]
        ),
        holds: least.throughput > 1.2 * most.throughput,
    }];
    let row = |(capacity, point): (&u32, &super::grid::Point)| {
        vec![
            capacity.to_string(),
            format!("{:.0}", point.throughput),
            format!("{:.3}", point.seconds * 1e3),
            point.forwards.to_string(),
        ]
    };
    Ok(ExperimentResult {
        setup: format!(
            "{clients} clients create {files} entries each in one directory of {servers} servers. The thesis's costs."
        ),
        claims,
        tables: vec![Table {
            name: "capacities",
            columns: vec!["capacity", "creates/s", "mean ms", "forwards"],
            rows: capacities.iter().zip(&points).map(row).collect(),
        }],
        ..ExperimentResult::default()
    })
}
