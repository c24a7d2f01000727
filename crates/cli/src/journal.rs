//! `espalier journal`: the journals of decoupled namespaces and of file systems that are not
//! mounted (sevilla 6.3.2).

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueHint};
use espalier_meta::{Event, MergeRecord};
use espalier_policy::Mechanism;
use espalier_runtime::{
    ClientJournal, Error, JournalEvent, JournalFile, JournalSummary, Merged, Namespace, NamespaceOrigin,
    OfflineStores, StoreLocation, apply_nonvolatile, erase_events, export_journal, import_journal,
    read_events,
};
use serde::Serialize;

use crate::args::RadosArgs;
use crate::decouple::compose::persist;
use crate::merge::{self, open_journal};
use crate::{cluster, mount};

/// Exit status if a journal is damaged.
const DAMAGED: u8 = 1;
/// Longest line of an event in columns.
const COLUMNS: usize = 200;

#[derive(Debug, Args)]
pub struct JournalArgs {
    #[command(subcommand)]
    pub command: JournalCommand,
}

#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Show a journal, and check all of it. Exits with 1 if it is damaged.
    Inspect {
        /// A namespace, an exported journal, or a file system that is not mounted.
        #[arg(value_hint = ValueHint::AnyPath)]
        source: PathBuf,
        /// List the events, or the records of an exported journal.
        #[arg(long)]
        events: bool,
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        rados: RadosArgs,
    },
    /// Write the journal of a namespace to a file that `import`, `apply` and `merge --from` read;
    /// of another file system, its events as lines of JSON.
    Export {
        /// A namespace, or a file system that is not mounted.
        #[arg(value_hint = ValueHint::DirPath)]
        source: PathBuf,
        /// Output file; `-` or none for standard output.
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        #[command(flatten)]
        rados: RadosArgs,
    },
    /// Make a namespace of an exported journal, which can be mounted, changed and merged.
    Import {
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// An empty directory; created if absent.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Erase the last events of a namespace's journal: undo its last changes.
    Erase {
        /// A namespace that is not mounted.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The last event to retain, as `inspect --events` numbers them.
        #[arg(long, value_name = "EVENT")]
        after: u64,
    },
    /// Merge a namespace, which stays where it is, and print the time.
    #[command(group = clap::ArgGroup::new("how").args(["volatile", "nonvolatile"]).required(true))]
    Apply {
        /// A namespace or an exported journal.
        #[arg(value_hint = ValueHint::AnyPath)]
        journal: PathBuf,
        /// With --volatile the decoupled directory; with --nonvolatile a file system that is not
        /// mounted, or the directory of a cluster that is stopped.
        #[arg(value_hint = ValueHint::DirPath)]
        target: PathBuf,
        /// Send it to the server, which applies it in memory and journals it.
        #[arg(long)]
        volatile: bool,
        /// Apply it to the stored metadata, without a server.
        #[arg(long)]
        nonvolatile: bool,
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        rados: RadosArgs,
    },
}

pub(crate) fn journal(command: &JournalCommand) -> Result<ExitCode> {
    match command {
        JournalCommand::Inspect { source, events, json, rados } if source.is_file() => {
            let _ = rados;
            inspect_file(source, *events, *json)
        }
        JournalCommand::Inspect { source, events, json, rados } => {
            inspect(&rados.locate(source)?, *events, *json)
        }
        JournalCommand::Export { source, file, rados } => export(&rados.locate(source)?, file.as_deref()),
        JournalCommand::Import { file, dir } => {
            import_journal(&JournalFile::open(file)?, dir, |_| ())?;
            println!("{} is a namespace of this journal", dir.display());
            Ok(ExitCode::SUCCESS)
        }
        JournalCommand::Erase { dir, after } => {
            let erased = erase_events(dir, *after)?;
            println!("erased {erased} events");
            Ok(ExitCode::SUCCESS)
        }
        JournalCommand::Apply { journal, target, nonvolatile, json, rados, .. } => {
            let opened = open_journal(journal)?;
            let began = Instant::now();
            let mechanism = if *nonvolatile {
                let stores = stores(target, rados)?;
                apply_nonvolatile(&*opened, journal, &stores, |_| ())?;
                Mechanism::NonvolatileApply
            } else {
                let path = target.canonicalize();
                let path = path.with_context(|| format!("no directory {}", target.display()))?;
                if merge::mounted_namespace(&path)?.is_some() {
                    bail!("a namespace is mounted on {0}: `espalier umount {0}` first", path.display());
                }
                merge::apply(&path, &*opened, journal)?;
                Mechanism::VolatileApply
            };
            let (took, records) = (began.elapsed(), opened.len());
            if *json {
                let seconds = took.as_secs_f64();
                let mechanism = mechanism.to_string();
                println!(
                    "{}",
                    serde_json::json!({ "mechanism": mechanism, "seconds": seconds, "records": records })
                );
            } else {
                show_time(mechanism, took);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the time of a mechanism.
pub(crate) fn show_time(mechanism: Mechanism, took: Duration) {
    eprintln!("{:<22} {:>9.3} s", mechanism.to_string(), took.as_secs_f64());
}

fn stores(target: &Path, rados: &RadosArgs) -> Result<OfflineStores> {
    if cluster::is_cluster(target) {
        return Ok(OfflineStores::Cluster(cluster::offline_stores(target)?));
    }
    Ok(OfflineStores::One(rados.locate(target)?))
}

fn is_namespace(source: &StoreLocation) -> bool {
    source.directory().is_some_and(|dir| NamespaceOrigin::read(dir).is_ok())
}

fn export(source: &StoreLocation, file: Option<&Path>) -> Result<ExitCode> {
    let namespace = source.directory().filter(|_| is_namespace(source));
    let file = file.filter(|file| *file != Path::new("-"));
    let began = Instant::now();
    match (namespace, file) {
        (Some(_), None) if std::io::stdout().is_terminal() => {
            bail!("a namespace's journal cannot go to a terminal: name a file, or redirect the output")
        }
        (Some(dir), None) => {
            let journal = mount::patiently(source, || Namespace::open(dir))?;
            export_journal(&journal, &mut BufWriter::new(std::io::stdout()), |_| ())?;
        }
        (Some(dir), Some(file)) => {
            let journal = mount::patiently(source, || Namespace::open(dir))?;
            persist(&journal, file)?;
        }
        (None, None) => return export_events(source, &mut BufWriter::new(std::io::stdout())),
        (None, Some(path)) => {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            return export_events(source, &mut BufWriter::new(file));
        }
    }
    eprintln!("exported in {:.3} s", began.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// Writes events as lines of JSON.
fn export_events(source: &StoreLocation, out: &mut dyn Write) -> Result<ExitCode> {
    let mut outcome = Ok(());
    let summary = read_events(source, |event| {
        if outcome.is_ok() {
            outcome = serde_json::to_string(&EventLine::of(&event))
                .map_err(std::io::Error::from)
                .and_then(|line| writeln!(out, "{line}"));
        }
    })?;
    outcome.and_then(|()| out.flush()).context("cannot write the events")?;
    Ok(verdict(&summary))
}

fn verdict(summary: &JournalSummary) -> ExitCode {
    if let Some(damage) = &summary.damage {
        eprintln!("espalier: the journal is damaged at position {}: {}", damage.position.0, damage.why);
        return ExitCode::from(DAMAGED);
    }
    ExitCode::SUCCESS
}

#[derive(Serialize)]
struct EventLine<'a> {
    event: u64,
    position: u64,
    in_tables: bool,
    change: &'a Event,
}

impl<'a> EventLine<'a> {
    fn of(event: &'a JournalEvent) -> Self {
        let JournalEvent { position, sequence, in_tables, event } = event;
        Self { event: *sequence, position: position.0, in_tables: *in_tables, change: event }
    }
}

/// The name of a variant.
fn kind(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().into()
}

/// One line of limited length.
fn shortened(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(COLUMNS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn inspect(source: &StoreLocation, lists: bool, json: bool) -> Result<ExitCode> {
    let (mut kinds, mut lines) = (BTreeMap::<String, u64>::new(), Vec::new());
    let mut read = || {
        kinds.clear();
        lines.clear();
        read_events(source, |event| {
            *kinds.entry(kind(&event.event)).or_default() += 1;
            if lists {
                lines.push(event);
            }
        })
    };
    // A namespace's mount may be about to end; a server is not.
    let summary = if is_namespace(source) { mount::patiently(source, read)? } else { read()? };
    let whose = summary.origin.as_ref();
    if json {
        let damage = summary.damage.as_ref();
        println!(
            "{}",
            serde_json::json!({
                "kind": if whose.is_some() { "namespace" } else { "file system" },
                "uuid": summary.uuid.to_string(),
                "rank": summary.rank.0,
                "directory": whose.map(|origin| origin.directory.0),
                "inodes": whose.map(|origin| origin.decoupled.inodes / 2),
                "capacity": summary.capacity,
                "begin": summary.begin.0,
                "end": summary.end.0,
                "in_tables": summary.in_tables,
                "frames": summary.frames,
                "events": summary.events,
                "kinds": kinds,
                "damage": damage.map(|damage| {
                    serde_json::json!({ "position": damage.position.0, "why": damage.why })
                }),
            })
        );
        for line in &lines {
            println!("{}", serde_json::to_string(&EventLine::of(line))?);
        }
        return Ok(verdict(&summary));
    }
    let mut text = String::new();
    match whose {
        Some(origin) => text += &origin_text(origin),
        None => writeln!(text, "file system  {}, metadata server {}", summary.uuid, summary.rank)?,
    }
    let used = summary.end.0 - summary.begin.0;
    writeln!(text, "bytes        {used} of {}", summary.capacity)?;
    writeln!(
        text,
        "events       {} in {} frames; the tables contain those up to {}",
        summary.events, summary.frames, summary.in_tables
    )?;
    for (kind, number) in &kinds {
        writeln!(text, "  {number:>9}  {kind}")?;
    }
    print!("{text}");
    for JournalEvent { sequence, in_tables, event, .. } in &lines {
        let mark = if *in_tables { "-" } else { " " };
        println!("{sequence:>9}{mark} {}", shortened(event));
    }
    Ok(verdict(&summary))
}

fn origin_text(origin: &NamespaceOrigin) -> String {
    let (id, inodes) = (origin.decoupled.id, origin.decoupled.inodes / 2);
    format!("namespace    {id:032x} of directory {}, {inodes} inode numbers\n", origin.directory)
}

#[derive(Serialize)]
struct RecordLine<'a> {
    record: u64,
    change: &'a MergeRecord,
}

#[derive(Serialize)]
struct BigLine {
    record: u64,
    big_file: String,
    bytes: u64,
}

fn inspect_file(path: &Path, lists: bool, json: bool) -> Result<ExitCode> {
    let journal = match JournalFile::open(path) {
        Err(
            error @ (Error::DamagedJournal { .. } | Error::NoJournalFile { .. } | Error::Unmergeable(..)),
        ) => {
            eprintln!("espalier: {error}");
            return Ok(ExitCode::from(DAMAGED));
        }
        opened => opened?,
    };
    let (mut kinds, mut lines) = (BTreeMap::<String, u64>::new(), Vec::new());
    for record in 0..journal.len() {
        let (kind, text, line) = match journal.record(record)? {
            Merged::Record(change) => {
                let line = serde_json::to_string(&RecordLine { record, change: &change })?;
                (kind(&change), shortened(&change), line)
            }
            Merged::Big(file) => {
                let big_file = file.names[0].1.escape_ascii().to_string();
                let text = format!("Big {{ name: \"{big_file}\", bytes: {} }}", file.attr.size);
                (
                    "Big".into(),
                    text,
                    serde_json::to_string(&BigLine { record, big_file, bytes: file.attr.size })?,
                )
            }
        };
        *kinds.entry(kind).or_default() += 1;
        if lists {
            lines.push(if json { line } else { format!("{record:>9}  {text}") });
        }
    }
    let origin = journal.origin();
    if json {
        println!(
            "{}",
            serde_json::json!({
                "kind": "exported journal",
                "namespace": format!("{:032x}", origin.decoupled.id),
                "directory": origin.directory.0,
                "inodes": origin.decoupled.inodes / 2,
                "records": journal.len(),
                "kinds": kinds,
            })
        );
    } else {
        print!("{}records      {}\n", origin_text(origin), journal.len());
        for (kind, number) in &kinds {
            println!("  {number:>9}  {kind}");
        }
    }
    for line in lines {
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}
