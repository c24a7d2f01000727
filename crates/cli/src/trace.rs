//! `espalier trace`: the steps of operations (kuhn, chapter 6).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_runtime::{Traced, trace_of, trace_of_mount, trace_of_rank};
use espalier_timeline::{
    Operation, Panel, Span, align, draw, length, operations, picture, read_chrome, write_chrome,
};
use rustix::termios::tcgetwinsize;

use crate::cluster::{self, TracedServer};
use crate::report;

/// Width in characters without a terminal.
const WIDTH: usize = 110;
/// Time for which recording continues after the end of the observation.
const MORE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Mount points, directories of clusters on this machine, and files written by `--out`. Spans
    /// of clients and servers are joined.
    #[arg(value_hint = ValueHint::AnyPath, required = true, value_name = "MOUNTPOINT|DIR|FILE")]
    pub places: Vec<PathBuf>,
    /// Draw the operation of this kind with the median time: create, unlink, readdirplus, ...
    /// [default: the longest of all]
    #[arg(long, value_name = "OPERATION")]
    pub op: Option<String>,
    /// Duration in seconds, 0.1 to 300.
    #[arg(long, default_value = "5", value_parser = parse_seconds, value_name = "SECONDS")]
    pub seconds: f64,
    /// Write all spans to FILE.json, for Perfetto (ui.perfetto.dev) and Chrome, or the drawing to
    /// FILE.svg; repeatable.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = parse_out)]
    pub out: Vec<PathBuf>,
    /// Draw an operation of the same kind from this place below it, at the same scale, for instance
    /// from a file of an earlier `--out`.
    #[arg(long, value_name = "MOUNTPOINT|DIR|FILE", value_hint = ValueHint::AnyPath)]
    pub compare: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=300.0).contains(seconds))
        .ok_or_else(|| "expected 0.1 to 300 seconds".into())
}

fn parse_out(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|ending| ending == "json" || ending == "svg") {
        true => Ok(path),
        false => Err("expected a name that ends with .json or .svg".into()),
    }
}

pub(crate) fn trace(args: &TraceArgs) -> Result<ExitCode> {
    let time = Duration::from_secs_f64(args.seconds);
    let spans = collect(&args.places, time)?;
    let is_picture = |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "svg");
    for file in args.out.iter().filter(|file| !is_picture(file)) {
        write(file, &write_chrome(&spans))?;
    }
    let others = args.compare.iter().map(|place| collect(std::slice::from_ref(place), time));
    let others = others.collect::<Result<Vec<_>>>()?;
    let all = operations(&spans);
    if all.is_empty() {
        bail!("no operation has ended: use the file system meanwhile, or record for longer (--seconds)");
    }
    print!("{}", summary(&all));
    let operation = chosen(&all, args.op.as_deref())?;
    let mut panels = vec![panel(&args.places, operation)];
    for (place, spans) in args.compare.iter().zip(&others) {
        let found = operations(spans);
        let other = chosen(&found, Some(&operation.root().kind))
            .with_context(|| format!("cannot compare with {}", place.display()))?;
        panels.push(panel(std::slice::from_ref(place), other));
    }
    let scale = panels.iter().map(|panel| length(&panel.operation)).max().unwrap_or(0);
    for Panel { title, operation } in &panels {
        print!("\n{title}\n{}", draw(operation, scale, width()));
    }
    for file in args.out.iter().filter(is_picture) {
        write(file, &picture(&panels)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn panel<'a>(places: &[PathBuf], operation: &Operation<'a>) -> Panel<'a> {
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    Panel { title: format!("{}, {}", operation.root().kind, places.join(" ")), operation: operation.clone() }
}

fn width() -> usize {
    let size = tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    size.filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

/// A process that records spans, and the number of the first span requested from it.
struct SpanSource {
    path: PathBuf,
    is_mount: bool,
    /// Of a server that shares its store with others.
    rank: Option<u16>,
    from: u64,
}

impl SpanSource {
    fn begin(path: PathBuf, is_mount: bool, lasting: Duration) -> Result<Self> {
        Self { path, is_mount, rank: None, from: 0 }.begun(lasting)
    }

    fn of_server(server: TracedServer, lasting: Duration) -> Result<Self> {
        let TracedServer { path, rank } = server;
        Self { path, is_mount: false, rank, from: 0 }.begun(lasting)
    }

    fn begun(mut self, lasting: Duration) -> Result<Self> {
        let source = &mut self;
        source.from = source.ask(None, lasting)?.next;
        Ok(self)
    }

    fn ask(&self, since: Option<u64>, lasting: Duration) -> Result<Traced> {
        Ok(match self.rank {
            Some(rank) => trace_of_rank(&self.path, rank, since, lasting)?,
            None if self.is_mount => trace_of_mount(&self.path, since, lasting)?,
            None => trace_of(&self.path, since, lasting)?,
        })
    }
}

/// The spans of these places, in the time of one clock.
fn collect(places: &[PathBuf], time: Duration) -> Result<Vec<Span>> {
    let (mut spans, mut sources) = (Vec::new(), Vec::new());
    for place in places {
        if place.is_file() {
            let text =
                std::fs::read_to_string(place).with_context(|| format!("cannot read {}", place.display()))?;
            spans.extend(read_chrome(&text).with_context(|| format!("cannot use {}", place.display()))?);
        } else {
            sources.extend(live(place, time + MORE)?);
        }
    }
    let began = nanos_today();
    if !sources.is_empty() {
        std::thread::sleep(time);
    }
    let ended = nanos_today();
    for source in &sources {
        let mut reported = source.ask(Some(source.from), Duration::ZERO)?;
        // The sources are queried one after the other: drop spans outside the interval that all of
        // them cover.
        reported.spans.retain(|span| span.begin >= began && span.end <= ended);
        if reported.lost > 0 {
            eprintln!(
                "espalier: {} has lost {} spans: record for a shorter time",
                source.path.display(),
                reported.lost
            );
        }
        spans.extend(reported.spans);
    }
    align(&mut spans);
    Ok(spans)
}

fn nanos_today() -> u64 {
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(today.as_nanos()).unwrap_or(u64::MAX)
}

/// The processes at a place, with recording started.
fn live(place: &Path, lasting: Duration) -> Result<Vec<SpanSource>> {
    match report::store_of(place)? {
        Some(store) if store.to_str().is_some_and(cluster::is_url) => {
            Ok(vec![SpanSource::begin(place.into(), true, lasting)?])
        }
        Some(store) => Ok(vec![SpanSource::begin(store, false, lasting)?]),
        None if cluster::is_cluster(place) => {
            let servers = cluster::traced_servers(place)?.into_iter();
            servers.map(|server| SpanSource::of_server(server, lasting)).collect()
        }
        None if !place.exists() => bail!("there is no {}", place.display()),
        None => Ok(vec![SpanSource::begin(place.into(), false, lasting)?]),
    }
}

/// Table of operations by kind: number, median time, and steps.
fn summary(operations: &[Operation<'_>]) -> String {
    let mut kinds: BTreeMap<(&str, String), Vec<&Operation<'_>>> = BTreeMap::new();
    for operation in operations {
        let root = operation.root();
        kinds.entry((&root.kind, root.place.to_string())).or_default().push(operation);
    }
    let mut text =
        format!("{:<16} {:<20} {:>8} {:>12} {:>8}\n", "operation", "of", "number", "median us", "steps");
    for ((kind, place), all) in kinds {
        let median = median(all);
        let micros = took(median) as f64 / 1e3;
        let (number, steps) = (all_of(operations, kind, &place), median.steps.len());
        text += &format!("{kind:<16} {place:<20} {number:>8} {micros:>12.1} {steps:>8}\n");
    }
    text
}

fn all_of(operations: &[Operation<'_>], kind: &str, place: &str) -> usize {
    let is_one = |root: &Span| root.kind == kind && root.place.to_string() == place;
    operations.iter().filter(|operation| is_one(operation.root())).count()
}

fn took(operation: &Operation<'_>) -> u64 {
    operation.root().end.saturating_sub(operation.root().begin)
}

/// The operation with the median time. `all` is not empty.
fn median<'a, 'b>(mut all: Vec<&'a Operation<'b>>) -> &'a Operation<'b> {
    all.sort_by_key(|operation| took(operation));
    all[(all.len() - 1) / 2]
}

fn chosen<'a, 'b>(operations: &'a [Operation<'b>], kind: Option<&str>) -> Result<&'a Operation<'b>> {
    let Some(kind) = kind else {
        return operations.iter().max_by_key(|operation| took(operation)).context("there is no operation");
    };
    let of_kind: Vec<_> = operations.iter().filter(|operation| operation.root().kind == kind).collect();
    if of_kind.is_empty() {
        bail!("no {kind} has ended meanwhile: choose another operation");
    }
    Ok(median(of_kind))
}
