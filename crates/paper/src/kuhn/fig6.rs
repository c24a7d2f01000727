//! Figs. 6.1 to 6.6: the servers' steps to create, list and remove one file, with and without a
//! metafile.

use std::path::PathBuf;
use std::time::Duration;

use espalier_library::{FileSystem, Traced};
use espalier_proto::Caller;
use espalier_runtime::trace_of;
use espalier_sim::process::{Frontend, Identity, Process};
use espalier_sim::source::{Op, Script, ScriptStep as Do, list, make_file};
use espalier_sim::{Nanos, Scenario, Tracing, World};
use espalier_timeline::{Log, NodeId, Operation, Panel, Span, Step, align, length, operations, picture};

use crate::cluster::{LocalCluster, Wanted};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Picture, Table};
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const FIG6: Experiment = Experiment {
    id: "kuhn-fig6",
    title: "What servers do to create, list and remove a file (Figs. 6.1 to 6.6)",
    places: EVERYWHERE,
    run,
};

/// Directory policies: the paper's normal case, its optimised case, and the default here.
const WAYS: [(&str, &str); 3] = [
    ("with a metafile", "create = \"client\"\nstuffing = false"),
    ("without a metafile", "no_metafile = true"),
    ("default", ""),
];

/// An operation: its name, its name in spans, and the paper's numbers of steps, normal and
/// optimised.
const DONE: [(&str, &str, u32, u32); 3] =
    [("create", "create", 5, 3), (LISTS, "readdirplus", 6, 5), ("remove", "unlink", 4, 3)];
/// Data servers are asked for sizes either way: readdirplus already saves the message that the
/// paper saves.
const LISTS: &str = "list";

const DIR: &str = "/dir";
const FILE: &str = "/dir/file";
/// Bytes of the file.
const BYTES: usize = 4096;
/// Pause between operations, for background work.
const PAUSE: Duration = Duration::from_millis(500);
/// Far more spans than there are.
const SPANS: usize = 10_000;
/// Messages between servers at their start and at intervals.
const BY_THE_WAY: [&str; 3] = ["space", "admit sessions", "list new"];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let mut all = Vec::new();
    for (_, policy) in WAYS {
        all.push(match setting.place {
            crate::Testbed::Simulator => simulate(policy)?,
            crate::Testbed::Machine => play(setting, policy)?,
        });
    }
    let found: Vec<_> = all.iter().map(|spans| operations(spans)).collect();
    let (mut rows, mut claims, mut pictures) = (Vec::new(), Vec::new(), Vec::new());
    for (name, kind, normal, optimised) in DONE {
        let (mut panels, mut counts) = (Vec::new(), Vec::new());
        for ((way, _), operations) in WAYS.iter().zip(&found) {
            let (operation, later) = done(operations, kind).ok_or(PaperError::Nothing(kind))?;
            let (steps, later) = (steps_of_servers(&operation), later.map(steps_of_servers).sum::<usize>());
            counts.push(steps + later);
            let micros = format!("{:.0}", length(&operation) as f64 / 1e3);
            let numbers = [messages(&operation), steps, later].map(|number| number.to_string());
            rows.push([name.into(), (*way).into()].into_iter().chain(numbers).chain([micros]).collect());
            panels.push(Panel { title: format!("{name} {way}"), operation });
        }
        claims.push(Claim {
            text: format!(
                "to {name} a file takes {} steps of servers without a metafile, and by default no more than that",
                if name == LISTS { "no more" } else { "fewer" }
            ),
            paper: format!("{optimised} steps instead of {normal}"),
            ours: format!("{} instead of {}, by default {}", counts[1], counts[0], counts[2]),
            holds: (counts[1] < counts[0] || name == LISTS && counts[1] == counts[0]) && counts[2] <= counts[1],
        });
        let svg = picture(&panels).map_err(|error| std::io::Error::other(error.to_string()))?;
        pictures.push(Picture { name, svg });
    }
    let columns = vec!["operation", "way", "messages", "steps of servers", "in the background", "us"];
    let tables = vec![Table { name: "steps", columns, rows }];
    let setup = format!(
        "A metadata server and data servers, which answer when a change is durable. One client makes a file of {BYTES} bytes, lists its \
         directory, and removes it. What servers do for that in the background is counted, and not drawn."
    );
    Ok(ExperimentResult { setup, claims, tables, pictures, ..ExperimentResult::default() })
}

/// The first operation of the kind, with the client's calls right after it, and the servers'
/// background work until the next one.
fn done<'a, 'b>(
    all: &'b [Operation<'a>],
    kind: &str,
) -> Option<(Operation<'a>, impl Iterator<Item = &'b Operation<'a>>)> {
    let is_call = |operation: &Operation<'_>| matches!(operation.root().place, NodeId::Client(_));
    let begins = |operation: &Operation<'_>| {
        is_call(operation) && DONE.iter().any(|(_, kind, ..)| operation.root().kind == *kind)
    };
    let at = all.iter().position(|operation| begins(operation) && operation.root().kind == kind)?;
    let until = all[at + 1..].iter().position(begins).map_or(all.len(), |next| at + 1 + next);
    let mut operation = all[at].clone();
    for call in all[at + 1..until].iter().filter(|other| other.root().kind == "write" && is_call(other)) {
        operation.steps.extend_from_slice(&call.steps);
    }
    let by_the_way = |other: &&Operation<'_>| BY_THE_WAY.contains(&other.root().kind.as_ref());
    let later = all[at + 1..until].iter().filter(move |other| !is_call(other) && !by_the_way(other));
    Some((operation, later))
}

fn steps_of_servers(operation: &Operation<'_>) -> usize {
    let is_asking = |span: &Span| span.id.is_some_and(|id| id.from == span.place);
    let of_servers = |step: &&Step<'_>| !is_asking(step.span);
    operation.steps.iter().filter(of_servers).count()
}

fn messages(operation: &Operation<'_>) -> usize {
    let is_request = |span: &Span| span.id.is_some_and(|id| id.from == span.place && id.to != id.from);
    operation.steps.iter().filter(|step| is_request(step.span)).count()
}

fn simulate(policy: &str) -> Result<Vec<Span>, PaperError> {
    let text = format!(
        "[cluster]\ndata = 1\ndurability = \"durable\"\ncache = \"none\"\n[model]\npreset = \"wu\"\n[network]\npreset = \"gigabit\"\n\
         [policy]\n{policy}\n"
    );
    let scenario = Scenario::parse(&text, std::path::Path::new("an experiment"))?;
    let (mut tracing, mutator) = (Tracing(Log::new(SPANS)), &mut ());
    let mut world = World::empty(&scenario, &mut tracing, mutator)?;
    let pause = || [Do::Pause(Nanos::from(PAUSE))];
    let steps = std::iter::once(Do::Do(Op::mkdir(DIR)))
        .chain(pause())
        .chain(make_file(FILE.into(), BYTES as u64, BYTES as u64))
        .chain(pause())
        .chain(list(DIR.into(), true))
        .chain(pause())
        .chain([Do::Do(Op::unlink(FILE))])
        .chain(pause());
    let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
    let identity = Identity { number: 0, caller, umask: 0o022, frontend: Frontend::Library };
    world.add_processes(vec![(0, Box::new(Process::new(identity, Box::new(Script::new(steps)))))]);
    world.run()?;
    drop(world);
    Ok(tracing.0.since(Some(0)).spans)
}

fn play(setting: &Setting<'_>, policy: &str) -> Result<Vec<Span>, PaperError> {
    let policy: toml::Table =
        policy.parse().map_err(|error: toml::de::Error| PaperError::Cluster(error.to_string()))?;
    let settings = [("sync", toml::Value::Boolean(true)), ("policy", toml::Value::Table(policy))];
    let wanted = Wanted {
        servers: 2,
        ranks: 1,
        insecure: true,
        settings: settings.map(|(key, value)| (key.to_string(), value)).into_iter().collect(),
        in_memory: false,
    };
    let cluster = LocalCluster::start(setting.program, &wanted)?;
    let stores = cluster.stores()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let fs = FileSystem::connect(cluster.url(), &cluster.credentials()).await?;
        fs.create_dir(DIR).await?;
        tokio::time::sleep(PAUSE).await;
        let (own, theirs) = (fs.trace(None, LASTING).next, begin(&stores)?);
        fs.write(FILE, &[7; BYTES]).await?;
        tokio::time::sleep(PAUSE).await;
        fs.read_dir_plus(DIR).await?;
        tokio::time::sleep(PAUSE).await;
        fs.remove_file(FILE).await?;
        // Servers free unused inodes with a delay.
        tokio::time::sleep(4 * PAUSE).await;
        let mut spans = fs.trace(Some(own), Duration::ZERO).spans;
        for (store, from) in stores.iter().zip(theirs) {
            spans.extend(traced(store, Some(from))?.spans);
        }
        align(&mut spans);
        fs.close().await;
        Ok(spans)
    })
}

/// Longer than it takes.
const LASTING: Duration = Duration::from_secs(60);

fn begin(stores: &[PathBuf]) -> Result<Vec<u64>, PaperError> {
    stores.iter().map(|store| Ok(traced(store, None)?.next)).collect()
}

fn traced(store: &std::path::Path, since: Option<u64>) -> Result<Traced, PaperError> {
    trace_of(store, since, LASTING).map_err(|error| PaperError::Cluster(error.to_string()))
}
