//! `espalier balancer run|history|undo` and `espalier explain`: balances the load of a running
//! cluster through a mount of it. Reads the metrics of all ranks, decides for each, has fragments
//! move, and records every move in an attribute of the root.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_balancer::{
    BalancerEngine, FragmentMetrics, MetricsSnapshot, MovePlan, PopularityCounters, RankMetrics, SavedState,
};
use espalier_meta::{DirectoryLoad, KnownLoad, LoadReport, Popularity};
use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, setxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::metrics::read_attribute;
use super::policies::{clock, load};
use crate::subtree::{self, ShownFragment};
use crate::usage::print_text;

/// The attribute of the root with the last moves, as JSON, the latest last.
const MOVES: &str = "trusted.espalier.moves";
/// Maximum number of recorded moves, and of their bytes.
const MOST_RECORDED: usize = 200;
const MAX_RECORDED_BYTES: usize = 48 << 10;

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A policy's Lua file, or a name from `list`.
    #[arg(value_hint = ValueHint::FilePath, value_name = "FILE.lua|NAME")]
    policy: PathBuf,
    /// A mount of the cluster's root.
    #[arg(value_hint = ValueHint::DirPath)]
    mountpoint: PathBuf,
    /// Interval between decisions in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86400))]
    every: u64,
    /// Decide once, and end.
    #[arg(long)]
    once: bool,
    /// Print what would move, and move nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A move that a balancer began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RecordedMove {
    /// Milliseconds since 1970.
    at_ms: u64,
    balancer: String,
    /// The directory's path in the file system.
    path: String,
    /// The lowest hash of the fragment.
    first: u64,
    from: u16,
    to: u16,
    /// The numbers that it was decided by.
    why: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    undone: bool,
}

impl fmt::Display for RecordedMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_ms, balancer, path, from, to, why, undone, .. } = self;
        let time = jiff::Timestamp::from_millisecond(i64::try_from(*at_ms).unwrap_or_default());
        let time = time.map(|time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()).unwrap_or_default();
        let undone = if *undone { " (undone)" } else { "" };
        write!(f, "{time} {balancer}: {path} from rank {from} to rank {to}{undone}\n  {why}")
    }
}

pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let engine = BalancerEngine::new(load(&args.policy)?);
    let mount = args.mountpoint.as_path();
    let root = File::open(mount).with_context(|| format!("cannot open {}", mount.display()))?;
    if flock(&root, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another balancer runs on {}", mount.display());
    }
    let (mut states, mut paths) = (HashMap::new(), KnownPaths::default());
    loop {
        let is_failure = balance(&engine, mount, &mut states, &mut paths, args.dry_run)?;
        if args.once {
            return Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        std::thread::sleep(Duration::from_secs(args.every));
    }
}

/// Decides for each rank once. Returns true if the policy has failed.
fn balance(
    engine: &BalancerEngine,
    mount: &Path,
    states: &mut HashMap<u16, SavedState>,
    paths: &mut KnownPaths,
    dry_run: bool,
) -> Result<bool> {
    let mut report = read_attribute(mount)?;
    let mut history = read_moves(mount)?;
    paths.complete(mount, &mut report, &history)?;
    let mut is_failure = false;
    for known in report.ranks.iter().filter(|known| !known.is_silent()) {
        let rank = known.rank.0;
        let snapshot = snapshot(&report, rank, &history, states.get(&rank).copied().unwrap_or_default());
        let plan = engine.decide(&snapshot, clock());
        states.insert(rank, plan.state);
        is_failure |= plan.is_failure();
        if plan.is_failure() || !plan.moves.is_empty() || dry_run {
            print_text(&plan)?;
        }
        if !dry_run {
            carry_out(mount, &report, &plan, &mut history)?;
        }
    }
    Ok(is_failure)
}

/// The paths of directory records. A server knows those of directories whose parents it has, too.
#[derive(Debug, Default)]
struct KnownPaths {
    by_inode: HashMap<u64, String>,
    walked: Option<Instant>,
}

/// Maximum number of directories that a walk for paths lists, and the interval between walks.
const MOST_WALKED: usize = 50_000;
const WALK_INTERVAL: Duration = Duration::from_secs(30);

impl KnownPaths {
    /// Adds the paths that a report lacks, as far as they are found.
    fn complete(&mut self, mount: &Path, report: &mut LoadReport, history: &[RecordedMove]) -> Result<()> {
        let lacks = |paths: &Self, report: &LoadReport| {
            report
                .directories
                .iter()
                .any(|dir| dir.path.is_none() && !paths.by_inode.contains_key(&dir.ino.0))
        };
        if lacks(self, report) {
            history.iter().for_each(|moved| self.learn_records(mount, &moved.path));
        }
        if lacks(self, report) && self.walked.is_none_or(|walked| walked.elapsed() > WALK_INTERVAL) {
            for (dir, inode) in subtree::directories(mount, MOST_WALKED)? {
                let within = dir.strip_prefix(mount).ok().and_then(Path::to_str);
                self.by_inode.extend(within.map(|path| (inode, format!("/{path}"))));
            }
            self.walked = Some(Instant::now());
        }
        for dir in report.directories.iter_mut().filter(|dir| dir.path.is_none()) {
            dir.path = self.by_inode.get(&dir.ino.0).cloned();
        }
        Ok(())
    }

    /// Notes the records that a directory has at present.
    fn learn_records(&mut self, mount: &Path, path: &str) {
        let Ok(shown) = subtree::read(&mount.join(path.trim_start_matches('/'))) else { return };
        self.by_inode.extend(shown.fragments.iter().map(|fragment| (fragment.inode, path.to_owned())));
    }
}

/// The directories at a rank whose paths are known, so that they can be moved.
fn directories(report: &LoadReport, rank: u16) -> impl Iterator<Item = (&DirectoryLoad, &str)> {
    let at_rank = report.directories.iter().filter(move |dir| dir.rank.0 == rank);
    at_rank.filter_map(|dir| Some((dir, dir.path.as_deref()?)))
}

fn snapshot(
    report: &LoadReport,
    whoami: u16,
    history: &[RecordedMove],
    state: SavedState,
) -> MetricsSnapshot {
    let now_ms = now_ms();
    let fragment = |(dir, path): (&DirectoryLoad, &str)| FragmentMetrics {
        name: path.into(),
        parent: None,
        counters: counters(&dir.own),
        entries: dir.entries,
        moved_ms: history.iter().rev().find(|moved| moved.path == path).map(|moved| moved.at_ms),
    };
    let begun_here = history.iter().filter(|moved| moved.from == whoami);
    MetricsSnapshot {
        now_ms,
        whoami,
        ranks: report.ranks.iter().map(|known| rank_metrics(known, now_ms)).collect(),
        fragments: directories(report, whoami).map(fragment).collect(),
        foreign: PopularityCounters::default(),
        recent_moves_ms: begun_here.map(|moved| moved.at_ms).collect(),
        state,
        seed: now_ms,
    }
}

fn rank_metrics(known: &KnownLoad, now_ms: u64) -> RankMetrics {
    let KnownLoad { rank, load, age_ms } = known;
    RankMetrics {
        rank: rank.0,
        at_ms: age_ms.map_or(0, |age| now_ms.saturating_sub(age)),
        cpu: load.cpu.get(),
        mem: load.mem.get(),
        q: load.queue.get(),
        req: load.requests.get(),
        auth: counters(&load.auth),
        all: counters(&load.all),
    }
}

fn counters(of: &Popularity) -> PopularityCounters {
    let [inode_reads, inode_writes, readdirs, fetches, stores] = of.counts();
    PopularityCounters { inode_reads, inode_writes, readdirs, fetches, stores }
}

/// Has the fragments of a plan move, and records that.
fn carry_out(
    mount: &Path,
    report: &LoadReport,
    plan: &MovePlan,
    history: &mut Vec<RecordedMove>,
) -> Result<()> {
    let dirs: Vec<_> = directories(report, plan.rank).collect();
    for planned in &plan.moves {
        let Some((dir, path)) = dirs.get(planned.fragment).copied() else { continue };
        let here = mount.join(path.trim_start_matches('/'));
        // Removed, renamed, or moved meanwhile.
        let Ok(shown) = subtree::read(&here) else { continue };
        let Some(fragment) = shown.fragments.iter().find(|it| it.inode == dir.ino.0) else { continue };
        if let Err(error) = subtree::request_move(&here, &format!("{} {}", dir.ino, planned.to)) {
            print_text(&format!("  {error:#}"))?;
            continue;
        }
        history.push(RecordedMove {
            at_ms: plan.now_ms,
            balancer: plan.balancer.clone(),
            path: path.into(),
            first: fragment.first,
            from: plan.rank,
            to: planned.to,
            why: planned.to_string(),
            undone: false,
        });
    }
    if plan.moves.is_empty() { Ok(()) } else { write_moves(mount, history) }
}

fn read_moves(mount: &Path) -> Result<Vec<RecordedMove>> {
    let mut value = vec![0; 65536];
    match getxattr(mount, MOVES, &mut value) {
        Ok(length) => serde_json::from_slice(&value[..length])
            .with_context(|| format!("cannot decode {MOVES} of {}", mount.display())),
        Err(Errno::NODATA) => Ok(Vec::new()),
        Err(errno) => Err(errno).with_context(|| format!("cannot read {MOVES} of {}", mount.display())),
    }
}

fn write_moves(mount: &Path, history: &mut Vec<RecordedMove>) -> Result<()> {
    history.drain(..history.len().saturating_sub(MOST_RECORDED));
    let mut text = serde_json::to_vec(history)?;
    while text.len() > MAX_RECORDED_BYTES && !history.is_empty() {
        history.drain(..history.len().div_ceil(4));
        text = serde_json::to_vec(history)?;
    }
    setxattr(mount, MOVES, &text, XattrFlags::empty())
        .with_context(|| format!("cannot record moves at {}", mount.display()))
}

/// Prints the recorded moves.
pub(super) fn history(mount: &Path) -> Result<ExitCode> {
    let moves = read_moves(mount)?;
    print_moves(&moves, "no balancer has moved anything")
}

fn print_moves(moves: &[RecordedMove], none: &str) -> Result<ExitCode> {
    let mut text = String::new();
    for moved in moves {
        writeln!(text, "{moved}")?;
    }
    print_text(&if moves.is_empty() { none } else { text.trim_end() })
}

/// Moves back what a balancer has moved last.
pub(super) fn undo(mount: &Path) -> Result<ExitCode> {
    let mut moves = read_moves(mount)?;
    let Some(last) = moves.iter_mut().rev().find(|moved| !moved.undone) else {
        bail!("there is no move to undo");
    };
    let dir = mount.join(last.path.trim_start_matches('/'));
    let is_it = |it: &&ShownFragment| it.rank == last.to && it.first == last.first;
    let shown = subtree::read(&dir)?;
    let Some(fragment) = shown.fragments.iter().find(is_it) else {
        bail!("{} has changed since, or is still moving: see `espalier subtree show`", dir.display());
    };
    subtree::request_move(&dir, &format!("{} {}", fragment.inode, last.from))?;
    last.undone = true;
    let text = format!("{} moves back from rank {} to rank {}", last.path, last.to, last.from);
    write_moves(mount, &mut moves)?;
    print_text(&text)
}

/// Prints the recorded moves of a directory or of the directory of a file.
pub(crate) fn explain(path: &Path) -> Result<ExitCode> {
    let full = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
    let mount = root_of(&full)?;
    let within = full.strip_prefix(&mount).unwrap_or(&full);
    let is_above = |moved: &RecordedMove| within.starts_with(moved.path.trim_start_matches('/'));
    // The nearest directory above that a balancer has moved.
    let mut moves: Vec<_> = read_moves(&mount)?.into_iter().filter(is_above).collect();
    let nearest = moves.iter().map(|moved| moved.path.len()).max();
    moves.retain(|moved| Some(moved.path.len()) == nearest);
    print_moves(&moves, "no balancer has moved it or a directory above")
}

/// The mount point of a file system.
fn root_of(path: &Path) -> Result<PathBuf> {
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev());
    let of = device(path).with_context(|| format!("cannot read {}", path.display()))?;
    let root = path.ancestors().take_while(|dir| device(dir).is_ok_and(|device| device == of)).last();
    Ok(root.unwrap_or(path).to_owned())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use espalier_meta::{Milli, RankLoad};
    use espalier_proto::{Ino, Rank};

    use super::*;

    fn report() -> LoadReport {
        let own = Popularity { iwr: Milli(200_000), ..Popularity::default() };
        let dir = |rank, ino, path: Option<&str>| {
            let (rank, path) = (Rank(rank), path.map(String::from));
            DirectoryLoad { rank, ino: Ino(ino), path, entries: 10, own, subtree: own }
        };
        let rank = |rank, auth| KnownLoad {
            rank: Rank(rank),
            load: RankLoad { auth, all: auth, requests: Milli(500_000), ..RankLoad::default() },
            age_ms: Some(5),
        };
        let idle = Popularity::default();
        let directories =
            vec![dir(1, 9, Some("/b")), dir(0, 7, Some("/a")), dir(0, 8, None), dir(0, 10, Some("/c"))];
        LoadReport { ranks: vec![rank(0, own), rank(1, idle)], directories }
    }

    #[test]
    fn a_rank_decides_on_its_directories_with_known_paths() {
        let moved = RecordedMove {
            at_ms: 4,
            balancer: "greedy-spill".into(),
            path: "/c".into(),
            first: 0,
            from: 0,
            to: 1,
            why: String::new(),
            undone: false,
        };
        let snapshot = snapshot(&report(), 0, &[moved], SavedState::default());
        assert_eq!(snapshot.validate(), Ok(()));
        let names: Vec<_> = snapshot.fragments.iter().map(|it| (it.name.as_str(), it.moved_ms)).collect();
        assert_eq!(names, [("/a", None), ("/c", Some(4))]);
        assert_eq!((snapshot.recent_moves_ms.as_slice(), snapshot.ranks.len()), (&[4][..], 2));
        assert_eq!(snapshot.ranks[0].auth.inode_writes, 200.0);
    }

    #[test]
    fn greedy_spill_moves_one_of_two_busy_directories_to_an_idle_rank() {
        let engine = BalancerEngine::new(load(Path::new("greedy-spill")).expect("shipped"));
        let plan = engine.decide(&snapshot(&report(), 0, &[], SavedState::default()), clock());
        let moves: Vec<_> = plan.moves.iter().map(|it| (it.name.as_str(), it.to)).collect();
        assert_eq!(moves.len(), 1, "{plan}");
        assert_eq!(moves[0].1, 1);
    }
}
