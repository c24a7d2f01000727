//! The balancer of a running cluster: `espalier balancer record|set|off|show|history|undo` and
//! `espalier explain`, through an attribute of the root.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_balancer::{BalancerEngine, BalancerPolicy, MetricsSnapshot, check_policy};
use espalier_meta::{
    BalancerCommand, BalancerEvent, BalancerLogEntry, BalancerReport, BalancerStatus, DecisionRequest,
    DirectoryLoad, KnownLoad, LoadReport, MoveCandidate, MoveScope, StoredPolicy, decode, encode,
};
use espalier_proto::{Ino, Rank, Time};
use rustix::io::Errno;

use super::metrics::read_attribute;
use super::policies::{clock, load};
use super::root::ClusterRoot;
use crate::subtree;
use crate::table::printable;
use crate::usage::print_text;

/// The attribute of the root that shows and changes the balancer, and the one with the policy.
const BALANCER: &str = "user.espalier.balancer";
const POLICY: &str = "trusted.espalier.balancer";

const NEVER_SET: &str = "off: no balancer has been set";

/// Maximum number of directories that a search for paths lists.
const MOST_WALKED: usize = 50_000;

#[derive(Debug, Args)]
pub struct SetArgs {
    /// A policy's Lua file, or a name from `list`.
    #[arg(value_hint = ValueHint::FilePath, value_name = "FILE.lua|NAME")]
    policy: PathBuf,
    /// A mount of the cluster's root, a path in it, or the cluster's directory.
    #[arg(value_hint = ValueHint::DirPath, value_name = "MOUNTPOINT|CLUSTER", default_value = ".")]
    cluster: PathBuf,
    /// Interval between the decisions of a metadata server in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86400))]
    every: u32,
    /// The reason, for the log.
    #[arg(long, default_value = "")]
    why: String,
    /// Set a policy that fails in the check, unless it cannot be loaded at all.
    #[arg(long)]
    force: bool,
}

pub(super) fn set(args: &SetArgs) -> Result<ExitCode> {
    let policy = load(&args.policy)?;
    let root = ClusterRoot::of(&args.cluster)?;
    let report = read_report(&root)?;
    let ranks = u16::try_from(report.ranks.len()).unwrap_or(u16::MAX);
    let faults = check_policy(&BalancerEngine::new(policy.clone()), &[ranks], clock());
    let shown = args.policy.display();
    match faults.first() {
        Some(fault) if fault.is_of_text => bail!("{shown} is not set, because it cannot be loaded: {fault}"),
        Some(fault) if !args.force => {
            bail!("{shown} is not set, because it fails: {fault}\n--force sets it nevertheless")
        }
        Some(fault) => eprintln!("espalier: WARNING: {shown} fails: {fault}"),
        None => {}
    }
    change(&root, &report, Some(&policy), args.every, &args.why)
}

pub(super) fn off(path: &Path, why: &str) -> Result<ExitCode> {
    let root = ClusterRoot::of(path)?;
    let report = read_report(&root)?;
    match &report.policy {
        None => print_text(&NEVER_SET),
        Some(policy) if !policy.is_on() => print_text(&format!("version {}: off already", policy.version)),
        Some(_) => change(&root, &report, None, 10, why),
    }
}

/// Replaces the policy; `None`: balances no more. `report`: what was there before.
fn change(
    root: &ClusterRoot,
    report: &BalancerReport,
    policy: Option<&BalancerPolicy>,
    every_s: u32,
    why: &str,
) -> Result<ExitCode> {
    let before = report.policy.clone().unwrap_or_default();
    let stored = StoredPolicy {
        version: before.version + 1,
        name: policy.map_or(before.name, |policy| policy.name().into()),
        text: policy.map_or("", BalancerPolicy::text).into(),
        every_s,
        who: who(),
        why: why.into(),
        time: Time::default(),
    };
    command(root, &BalancerCommand::Set(stored.clone()))?;
    print_text(&format!("version {}: {}", stored.version, describe(&stored)))
}

fn describe(policy: &StoredPolicy) -> String {
    let StoredPolicy { name, every_s, .. } = policy;
    if policy.is_on() { format!("{name}, every {every_s} s") } else { "off".into() }
}

/// The user and the host, for the log.
fn who() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{user}@{}", host.trim()).chars().take(50).collect()
}

fn command(root: &ClusterRoot, command: &BalancerCommand) -> Result<()> {
    let is_undo = matches!(command, BalancerCommand::Undo { .. });
    root.set(BALANCER, &encode(command)).map_err(|errno| match errno {
        Errno::BUSY if is_undo => anyhow::anyhow!("the directory has changed since, or is still moving"),
        Errno::NOENT => anyhow::anyhow!("there is no move to undo"),
        Errno::BUSY => anyhow::anyhow!("somebody else has changed the balancer meanwhile"),
        Errno::INVAL => anyhow::anyhow!("the policy or the reason is too long"),
        errno => explained(errno, root),
    })
}

fn explained(errno: Errno, root: &ClusterRoot) -> anyhow::Error {
    let why = match errno {
        Errno::PERM | Errno::ACCESS => "only the superuser may",
        Errno::OPNOTSUPP | Errno::NODATA => "it is no mount of the root of several metadata servers",
        _ => "",
    };
    match why {
        "" => anyhow::Error::from(errno).context(format!("the balancer of {}", root.shown())),
        why => anyhow::anyhow!("the balancer of {}: {why}", root.shown()),
    }
}

fn read_report(root: &ClusterRoot) -> Result<BalancerReport> {
    let value = root.get(Path::new("/"), BALANCER).map_err(|errno| explained(errno, root))?;
    decode(&value).ok().with_context(|| format!("cannot decode {BALANCER} of {}", root.shown()))
}

pub(super) fn show(path: &Path, text: bool, json: bool) -> Result<ExitCode> {
    let root = ClusterRoot::of(path)?;
    let report = read_report(&root)?;
    if text {
        if !report.policy.as_ref().is_some_and(StoredPolicy::is_on) {
            bail!("the balancer is off: there is no policy to print");
        }
        let value = root.get(Path::new("/"), POLICY).map_err(|errno| explained(errno, &root))?;
        let stored: Option<StoredPolicy> = decode(&value).ok();
        return print_text(&stored.context("cannot decode the policy")?.text.trim_end());
    }
    if json { print_text(&to_json(&report)) } else { print_text(&to_text(&report).trim_end()) }
}

fn to_json(report: &BalancerReport) -> serde_json::Value {
    let policy = report.policy.as_ref().map(|policy| {
        serde_json::json!({ "version": policy.version, "name": policy.name, "on": policy.is_on(),
            "every_s": policy.every_s, "who": policy.who, "why": policy.why, "time": shown_time(policy.time) })
    });
    let rank = |(rank, status): &(Rank, Option<BalancerStatus>)| match status {
        None => serde_json::json!({ "rank": rank.0, "silent": true }),
        Some(BalancerStatus { version, decided_ms, last, is_failure, moves }) => serde_json::json!({
            "rank": rank.0, "silent": false, "version": version, "decided_ms": decided_ms, "last": last,
            "failure": is_failure, "moves": moves
        }),
    };
    serde_json::json!({ "policy": policy, "ranks": report.ranks.iter().map(rank).collect::<Vec<_>>() })
}

fn to_text(report: &BalancerReport) -> String {
    let mut text = match &report.policy {
        None => format!("{NEVER_SET}\n"),
        Some(policy) => {
            let StoredPolicy { version, who, why, time, .. } = policy;
            let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
            let (what, time) = (describe(policy), shown_time(*time));
            format!("version {version}: {what}\nset {time} by {who}{reason}\n")
        }
    };
    let _ = writeln!(text, "{:>4}{:>9}{:>13}{:>7}  LAST DECISION", "RANK", "VERSION", "DECIDED", "MOVES");
    for (rank, status) in &report.ranks {
        let Some(BalancerStatus { version, decided_ms, last, is_failure, moves }) = status else {
            let _ = writeln!(text, "{:>4}  SILENT", rank.0);
            continue;
        };
        let decided = decided_ms.map_or("-".into(), |ms| format!("{:.1} s ago", ms as f64 / 1000.0));
        let last = printable(last);
        let failure = if *is_failure { "HOLDS STILL: " } else { "" };
        let _ = writeln!(text, "{:>4}{version:>9}{decided:>13}{moves:>7}  {failure}{last}", rank.0);
    }
    text
}

fn shown_time(time: Time) -> String {
    subtree::shown_seconds(time.secs)
}

pub(super) fn history(path: &Path, json: bool) -> Result<ExitCode> {
    let root = ClusterRoot::of(path)?;
    let report = read_report(&root)?;
    let (paths, log) = (KnownPaths::of_log(&root, &report), report.log);
    let shown: Vec<_> = log.iter().map(|entry| sentence(entry, |dir, path| paths.get(dir, path))).collect();
    if json {
        let row = |(entry, shown): (&BalancerLogEntry, &String)| {
            serde_json::json!({ "time": shown_time(entry.time), "rank": entry.rank.0, "version": entry.version,
                "balancer": entry.balancer, "event": entry.event, "text": shown })
        };
        return print_text(&serde_json::Value::from_iter(log.iter().zip(&shown).map(row)));
    }
    print_text(&if shown.is_empty() { "no balancer has been set".into() } else { shown.join("\n") })
}

/// An entry of the log as text. `path_of`: the path of a directory, for which the log may have one.
fn sentence(entry: &BalancerLogEntry, path_of: impl Fn(Ino, Option<&str>) -> String) -> String {
    let BalancerLogEntry { time, rank: Rank(rank), version, balancer, event } = entry;
    let what = match event {
        BalancerEvent::Set { is_on, every_s, who, why } => {
            let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
            let what = if *is_on { format!("set, every {every_s} s,") } else { "off,".into() };
            format!("{what} version {version}, by {who}{reason}")
        }
        BalancerEvent::Moved { dir, path, to, scope, why, is_undone, .. } => {
            let without = match scope {
                MoveScope::Names => " without the directories below",
                MoveScope::Subtree => "",
            };
            let undone = if *is_undone { " (undone)" } else { "" };
            let path = path_of(*dir, path.as_deref());
            format!("{path} from rank {rank} to rank {to}{without}{undone}\n  {why}")
        }
        BalancerEvent::Undone { dir, path, to, who, .. } => {
            let path = path_of(*dir, path.as_deref());
            format!("{path} back from rank {rank} to rank {to}, by {who}")
        }
        BalancerEvent::Failed { error } => format!("rank {rank} holds still: {}", printable(error)),
        BalancerEvent::Limited { held_back } => {
            format!("the limits hold rank {rank} back: {}", printable(held_back))
        }
    };
    format!("{} {balancer}: {what}", shown_time(*time))
}

/// The paths of directories by inode number, from a walk of the tree. A server only knows those of
/// directories whose parents it has, too.
#[derive(Default)]
struct KnownPaths(HashMap<u64, String>);

impl KnownPaths {
    /// Directories may be removed meanwhile.
    fn walk(root: &ClusterRoot) -> Self {
        let of = |(dir, inode): (PathBuf, u64)| Some((inode, dir.to_str()?.to_owned()));
        Self(root.directories(MOST_WALKED).into_iter().filter_map(of).collect())
    }

    /// Those of a log. A walk would wait for a server that is down.
    fn of_log(root: &ClusterRoot, BalancerReport { log, ranks, .. }: &BalancerReport) -> Self {
        let is_unknown = |entry: &BalancerLogEntry| {
            use BalancerEvent::{Moved, Undone};
            matches!(entry.event, Moved { path: None, .. } | Undone { path: None, .. })
        };
        let is_silent = ranks.iter().any(|(_, status)| status.is_none());
        if !is_silent && log.iter().any(is_unknown) { Self::walk(root) } else { Self::default() }
    }

    /// `reported`: the path that a server knows.
    fn get(&self, dir: Ino, reported: Option<&str>) -> String {
        let found = self.0.get(&dir.0).map(String::as_str).or(reported);
        found.map_or_else(|| format!("(inode {dir})"), |path| printable(path).to_string())
    }
}

pub(super) fn undo(path: &Path) -> Result<ExitCode> {
    let root = ClusterRoot::of(path)?;
    command(&root, &BalancerCommand::Undo { who: who() })?;
    let report = read_report(&root)?;
    let (paths, log) = (KnownPaths::of_log(&root, &report), report.log);
    let last = log.iter().rev().find(|entry| matches!(entry.event, BalancerEvent::Undone { .. }));
    let shown = last.map(|entry| sentence(entry, |dir, path| paths.get(dir, path)));
    print_text(&shown.unwrap_or_default())
}

/// The log's entries about moves of a directory. `is_below`: only those that took the directories
/// below it along.
fn moves_of(log: &[BalancerLogEntry], ino: u64, is_below: bool) -> impl Iterator<Item = &BalancerLogEntry> {
    let mut takes_all = true;
    log.iter().filter(move |entry| match &entry.event {
        BalancerEvent::Moved { dir, scope, .. } if dir.0 == ino => {
            takes_all = *scope == MoveScope::Subtree;
            takes_all || !is_below
        }
        BalancerEvent::Undone { dir, .. } if dir.0 == ino => takes_all || !is_below,
        _ => false,
    })
}

/// Prints the moves of a directory, or of the nearest directory above that a balancer has moved or
/// that has split, and why it has split.
/// `cluster`: the directory of the cluster that has the path; `None`: the path is in a mount.
pub(crate) fn explain(path: &Path, cluster: Option<&Path>) -> Result<ExitCode> {
    let root = ClusterRoot::of(cluster.unwrap_or(path))?;
    let log = read_report(&root)?.log;
    let mut is_below = false;
    for dir in root.inner(path)?.ancestors() {
        let (ino, is_dir) = root.inode(dir)?;
        let shown = dir.display().to_string();
        let moves = moves_of(&log, ino, is_below).map(|entry| sentence(entry, |_, _| shown.clone()));
        let mut lines: Vec<_> = moves.collect();
        if is_dir {
            is_below = true;
            let fragments = root.get(dir, subtree::FRAGMENTS);
            lines.extend(subtree::splits(&fragments.map_err(|errno| explained(errno, &root))?, &shown)?);
        }
        if !lines.is_empty() {
            return print_text(&lines.join("\n"));
        }
    }
    print_text(&"no balancer has moved it or a directory above, and none of them has split")
}

pub(super) fn record(path: &Path, count: u32, every: u64) -> Result<ExitCode> {
    let mut recorder = MetricsRecorder::of(path)?;
    for n in 0..count {
        if n > 0 {
            std::thread::sleep(Duration::from_secs(every));
        }
        print_text(&serde_json::to_value(recorder.snapshots()?)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the metrics of a cluster.
pub(super) struct MetricsRecorder {
    root: ClusterRoot,
    /// Of the directories whose paths the servers do not know. The tree is walked once, because a
    /// walk is load as well.
    paths: Option<KnownPaths>,
}

impl MetricsRecorder {
    /// `path`: as for [`ClusterRoot::of`].
    pub(super) fn of(path: &Path) -> Result<Self> {
        Ok(Self { root: ClusterRoot::of(path)?, paths: None })
    }

    /// The present metrics, as each rank that is not silent would decide on them. They have the
    /// hottest directories of the cluster only, and no dwell times.
    pub(super) fn snapshots(&mut self) -> Result<Vec<MetricsSnapshot>> {
        let mut report = read_attribute(&self.root)?;
        // A walk would wait for a server that is down.
        let is_silent = report.ranks.iter().any(KnownLoad::is_silent);
        for dir in report.directories.iter_mut().filter(|dir| dir.path.is_none() && !is_silent) {
            let paths = self.paths.get_or_insert_with(|| KnownPaths::walk(&self.root));
            dir.path = Some(paths.get(dir.dir, None));
        }
        Ok(snapshots(&report))
    }
}

fn snapshots(report: &LoadReport) -> Vec<MetricsSnapshot> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let awake = report.ranks.iter().filter(|known| !known.is_silent());
    awake.map(|known| snapshot(report, known.rank, now_ms)).collect()
}

fn snapshot(report: &LoadReport, rank: Rank, now_ms: u64) -> MetricsSnapshot {
    let dirs: Vec<&DirectoryLoad> = report.directories.iter().filter(|dir| dir.rank == rank).collect();
    let candidate = |dir: &&DirectoryLoad| MoveCandidate {
        ino: dir.ino,
        scope: MoveScope::Names,
        parent: None,
        popularity: dir.own,
        entries: dir.entries,
        directories: 1,
        moved_ms: None,
    };
    let request = DecisionRequest {
        now_ms,
        rank,
        policy: StoredPolicy::default().into(),
        loads: report.ranks.clone(),
        candidates: dirs.iter().map(candidate).collect(),
        recent_moves_ms: Vec::new(),
        saved: Vec::new(),
    };
    let mut snapshot = espalier_rank_balancer::snapshot(&request);
    for (fragment, dir) in snapshot.fragments.iter_mut().zip(dirs) {
        fragment.name = dir.path.clone().unwrap_or_else(|| fragment.name.clone());
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use espalier_meta::{Milli, Popularity, RankLoad};

    use super::*;

    fn report() -> LoadReport {
        let own = Popularity { iwr: Milli(200_000), ..Popularity::default() };
        let dir = |rank, ino, path: Option<&str>| {
            let (rank, path) = (Rank(rank), path.map(String::from));
            DirectoryLoad { rank, ino: Ino(ino), dir: Ino(ino), path, entries: 10, own, subtree: own }
        };
        let rank = |rank, auth| KnownLoad {
            rank: Rank(rank),
            load: RankLoad { auth, all: auth, requests: Milli(500_000), ..RankLoad::default() },
            age_ms: Some(5),
        };
        // Ranks always have a little load.
        let idle = Popularity { iwr: Milli(1000), ..Popularity::default() };
        let directories =
            vec![dir(1, 9, Some("/b")), dir(0, 7, Some("/a")), dir(0, 8, None), dir(0, 10, Some("/c"))];
        LoadReport { ranks: vec![rank(0, own), rank(1, idle)], directories }
    }

    #[test]
    fn a_rank_decides_on_its_own_directories() {
        let snapshot = snapshot(&report(), Rank(0), 1000);
        assert_eq!(snapshot.validate(), Ok(()));
        let names: Vec<_> = snapshot.fragments.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["/a", "inode 8", "/c"]);
        assert_eq!(snapshot.ranks[0].auth.inode_writes, 200.0);
        assert_eq!(snapshot.now_ms - snapshot.ranks[1].at_ms, 5);
        assert_eq!(snapshot.ranks[1].all.inode_writes, 0.0, "it counts as idle");
    }

    #[test]
    fn greedy_spill_moves_a_busy_directory_to_a_rank_with_little_load() {
        let engine = BalancerEngine::new(load(Path::new("greedy-spill")).expect("shipped"));
        let plan = engine.decide(&snapshot(&report(), Rank(0), 1000), clock());
        assert_eq!(plan.moves.iter().map(|it| it.to).collect::<Vec<_>>(), [1], "{plan}");
    }

    #[test]
    fn log_entries_are_sentences() {
        let entry = |event| BalancerLogEntry {
            time: Time::default(),
            rank: Rank(1),
            version: 3,
            balancer: "spill".into(),
            event,
        };
        let shown = |event| sentence(&entry(event), |dir, _| format!("/{dir}"));
        let (who, why) = ("root@host".to_string(), "a test".to_string());
        let set = BalancerEvent::Set { is_on: true, every_s: 9, who, why: why.clone() };
        assert_eq!(shown(set), "1970-01-01 00:00:00Z spill: set, every 9 s, version 3, by root@host: a test");
        let (dir, fragment, first, path, to) = (Ino(7), Ino(8), 0, None::<String>, Rank(2));
        let moved = |scope| BalancerEvent::Moved {
            dir,
            fragment,
            first,
            path: path.clone(),
            to,
            scope,
            why: why.clone(),
            is_undone: true,
        };
        let text = "1970-01-01 00:00:00Z spill: /7 from rank 1 to rank 2 (undone)\n  a test";
        assert_eq!(shown(moved(MoveScope::Subtree)), text);
        let text = "1970-01-01 00:00:00Z spill: /7 from rank 1 to rank 2 without the directories below (undone)\n  a test";
        assert_eq!(shown(moved(MoveScope::Names)), text);
        let failed = BalancerEvent::Failed { error: "line 1\nline 2".into() };
        assert_eq!(shown(failed), "1970-01-01 00:00:00Z spill: rank 1 holds still: line 1?line 2");
        let limited = BalancerEvent::Limited { held_back: "3 moved too recently".into() };
        let text = "1970-01-01 00:00:00Z spill: the limits hold rank 1 back: 3 moved too recently";
        assert_eq!(shown(limited), text);
    }

    #[test]
    fn a_move_of_names_explains_nothing_about_directories_below() {
        let entry = |event| BalancerLogEntry {
            time: Time::default(),
            rank: Rank(0),
            version: 1,
            balancer: "spill".into(),
            event,
        };
        let moved = |dir, scope| BalancerEvent::Moved {
            dir: Ino(dir),
            fragment: Ino(dir),
            first: 0,
            path: None,
            to: Rank(1),
            scope,
            why: String::new(),
            is_undone: false,
        };
        let undone = |dir| BalancerEvent::Undone {
            dir: Ino(dir),
            first: 0,
            path: None,
            to: Rank(0),
            who: "me".into(),
        };
        let log = [
            moved(7, MoveScope::Names),
            moved(8, MoveScope::Subtree),
            undone(7),
            moved(7, MoveScope::Subtree),
            undone(7),
        ]
        .map(entry);
        assert_eq!(moves_of(&log, 7, false).count(), 4);
        assert_eq!(moves_of(&log, 7, true).count(), 2);
        assert_eq!(moves_of(&log, 8, true).count(), 1);
    }
}
