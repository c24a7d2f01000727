//! `espalier subtree`: how directories of a mounted file system are divided among metadata servers.

use std::fmt::Write;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueHint};
use espalier_policy::{Key, Policy};
use espalier_proto::common_prefix;
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::policy::attribute;
use crate::usage::print_text;

#[derive(Debug, Args)]
pub struct SubtreeArgs {
    #[command(subcommand)]
    pub command: SubtreeCommand,
}

#[derive(Debug, Subcommand)]
pub enum SubtreeCommand {
    /// Show the fragments of a directory: the ranges of name hashes, their metadata servers,
    /// numbers of entries and loads.
    Show {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Move the names of a directory, and of all directories below it, to another metadata server,
    /// which then serves what is created there. Needs the superuser.
    Move {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// The rank of the metadata server, from 0.
        #[arg(long, value_name = "RANK")]
        to: u16,
        /// Move this fragment only: the inode number that `subtree show` prints.
        #[arg(long, value_name = "INODE")]
        fragment: Option<u64>,
        /// Return before the directories have moved.
        #[arg(long)]
        no_wait: bool,
    },
    /// Keep the names of a directory, and of all directories below it, at one metadata server: the
    /// policy setting `pin`, which new directories inherit.
    Pin {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// A rank from 0; `distributed`: each directory at one that its inode number determines;
        /// `off`: wherever they are.
        #[arg(value_name = "RANK|distributed|parent|off")]
        to: String,
    },
}

pub(crate) const FRAGMENTS: &str = "user.espalier.fragments";

/// The fragments of a directory, as its server returns them.
#[derive(Debug, Deserialize)]
pub(crate) struct Shown {
    version: u32,
    servers: u32,
    pub fragments: Vec<ShownFragment>,
    /// The last transfers of names between fragments, the latest at the end.
    transfers: Vec<ShownTransfer>,
}

#[derive(Debug, Deserialize)]
struct ShownTransfer {
    /// `split`, `merge` or `move`.
    kind: String,
    /// Ranks.
    from: u16,
    to: u16,
    /// The hashes that the fragment at `to` has had since.
    first: u64,
    last: u64,
    /// When it ended, in seconds since 1970.
    at: i64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ShownFragment {
    pub rank: u16,
    pub inode: u64,
    /// The lowest and the highest hash.
    pub first: u64,
    last: u64,
    entries: u64,
    /// Decayed counts: reads, writes, listings, records loaded and stored.
    popularity: [f64; 5],
    /// Why it has split off; absent for the first fragment.
    split_by: Option<String>,
}

/// A fragment in the output for programs.
#[derive(Debug, Serialize)]
struct JsonFragment {
    /// The most significant bits that the name hashes have in common.
    prefix: u64,
    bits: u32,
    rank: u16,
    entries: u64,
    inode: u64,
    first_hash: u64,
    last_hash: u64,
    ird: f64,
    iwr: f64,
    readdir: f64,
    fetch: f64,
    store: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    split_by: Option<String>,
}

pub(crate) fn subtree(command: &SubtreeCommand) -> Result<ExitCode> {
    match command {
        SubtreeCommand::Show { path, json } => {
            let shown = read(path)?;
            if *json { print_text(&to_json(path, &shown)) } else { print_text(&to_text(&shown).trim_end()) }
        }
        SubtreeCommand::Move { path, to, fragment, no_wait } => move_tree(path, *to, *fragment, !no_wait),
        SubtreeCommand::Pin { path, to } => pin(path, to),
    }
}

/// Interval between looks at directories that move.
const MOVE_POLL: Duration = Duration::from_millis(200);

/// Moves the directories of a tree, or a fragment of one directory.
fn move_tree(path: &Path, to: u16, fragment: Option<u64>, waits: bool) -> Result<ExitCode> {
    let value = fragment.map_or_else(|| to.to_string(), |inode| format!("{inode} {to}"));
    let mut dirs = vec![path.to_owned()];
    if fragment.is_none() {
        dirs = directories(path, usize::MAX)?.into_iter().map(|(dir, _)| dir).collect();
    }
    let before = read(path)?.fragments;
    for dir in &dirs {
        request_move(dir, &value)?;
    }
    let mut names = 0;
    for dir in dirs.iter().filter(|_| waits) {
        names += wait_for_move(dir, to, fragment, &value)?;
    }
    // A fragment has another inode at its new rank.
    let moved_fragment = before.iter().find(|it| Some(it.inode) == fragment);
    names = moved_fragment.map_or(names, |it| it.entries);
    let moved = match (fragment, dirs.len()) {
        (Some(_), _) => "1 fragment".into(),
        (None, 1) => "1 directory".into(),
        (None, count) => format!("{count} directories"),
    };
    let done = if waits { format!("moved, with {names} names") } else { "about to move".into() };
    print_text(&format!("{moved} {done}"))
}

/// Requests a move of a directory, unless it has been removed meanwhile.
pub(crate) fn request_move(dir: &Path, value: &str) -> Result<()> {
    let requested = setxattr(dir, FRAGMENTS, value.as_bytes(), XattrFlags::empty());
    requested.or_else(|errno| if errno == Errno::NOENT { Ok(()) } else { Err(errno) }).map_err(|errno| {
        let why = match errno {
            Errno::PERM | Errno::ACCESS => "only the superuser may move directories",
            Errno::INVAL => "there is no such rank or fragment",
            Errno::BUSY => "it is pinned to another rank (espalier subtree pin), or decoupled",
            _ => "",
        };
        let error = anyhow::Error::from(errno).context(format!("cannot move {}", dir.display()));
        if why.is_empty() { error } else { anyhow::anyhow!("cannot move {}: {why}", dir.display()) }
    })
}

/// Waits until the fragments of a directory, or one of them, are at a rank. Returns the number of
/// the directory's names.
fn wait_for_move(dir: &Path, to: u16, fragment: Option<u64>, value: &str) -> Result<u64> {
    let mut tries = 0_u32;
    loop {
        let text = attribute(dir, FRAGMENTS).or_else(|error| {
            // Removed meanwhile; another one may have got its name.
            let is_removed = error.downcast_ref() == Some(&Errno::NOENT);
            if is_removed { Ok(None) } else { Err(error) }
        });
        let Some(text) = text? else { return Ok(0) };
        let shown: Shown = toml::from_str(&text).context("cannot decode the fragments")?;
        let left = |it: &&ShownFragment| match fragment {
            Some(inode) => it.inode == inode,
            None => it.rank != to,
        };
        if shown.fragments.iter().find(left).is_none_or(|it| it.rank == to) {
            return Ok(shown.fragments.iter().map(|it| it.entries).sum());
        }
        std::thread::sleep(MOVE_POLL);
        tries += 1;
        // A restarted server has forgotten a move that had not begun.
        if tries.is_multiple_of(50) {
            request_move(dir, value)?;
            tracing::warn!(
                "{} is still at another rank than {to}: a rank may be down or full (espalier status); \
                 the move goes on if this command is interrupted",
                dir.display()
            );
        }
    }
}

/// Sets the policy setting `pin` on all directories of a tree.
fn pin(path: &Path, to: &str) -> Result<ExitCode> {
    let mut policy = Policy::NONE;
    policy.set(Key::Pin, to)?;
    read(path)?;
    let dirs = directories(path, usize::MAX)?;
    for (dir, _) in &dirs {
        setxattr(dir, Key::Pin.attribute(), to.as_bytes(), XattrFlags::empty())
            .with_context(|| format!("cannot set the policy of {}", dir.display()))?;
    }
    let count = dirs.len();
    print_text(&format!("pin = {to} in {count} {}", if count == 1 { "directory" } else { "directories" }))
}

/// A directory and all those below it on the same file system, which may change meanwhile.
/// Their inode numbers follow. `most`: the number after which the walk ends.
pub(crate) fn directories(path: &Path, most: usize) -> Result<Vec<(PathBuf, u64)>> {
    let root = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let device = root.dev();
    let mut dirs = vec![(path.to_owned(), root.ino())];
    let mut next = 0;
    while let Some((dir, _)) = dirs.get(next).filter(|_| dirs.len() < most).cloned() {
        next += 1;
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound && next > 1 => continue,
            entries => entries.with_context(|| format!("cannot read {}", dir.display()))?,
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir
                && let Ok(metadata) = entry.metadata()
                && metadata.dev() == device
            {
                dirs.push((entry.path(), metadata.ino()));
            }
        }
    }
    Ok(dirs)
}

pub(crate) fn read(path: &Path) -> Result<Shown> {
    let text = attribute(path, FRAGMENTS)?.with_context(|| {
        format!("{} is not a directory of a mounted Espalier file system", path.display())
    })?;
    toml::from_str(&text).with_context(|| format!("cannot decode {FRAGMENTS} of {}", path.display()))
}

fn to_json(path: &Path, shown: &Shown) -> serde_json::Value {
    let fragment = |of: &ShownFragment| {
        let (prefix, bits) = common_prefix(&(of.first..=of.last));
        let [ird, iwr, readdir, fetch, store] = of.popularity;
        JsonFragment {
            prefix,
            bits,
            rank: of.rank,
            entries: of.entries,
            inode: of.inode,
            first_hash: of.first,
            last_hash: of.last,
            ird,
            iwr,
            readdir,
            fetch,
            store,
            split_by: of.split_by.clone(),
        }
    };
    let fragments: Vec<_> = shown.fragments.iter().map(fragment).collect();
    let transfer = |of: &ShownTransfer| {
        let (prefix, bits) = common_prefix(&(of.first..=of.last));
        serde_json::json!({
            "kind": of.kind, "from": of.from, "to": of.to, "time": shown_seconds(of.at), "prefix": prefix, "bits": bits,
            "first_hash": of.first, "last_hash": of.last
        })
    };
    let moves: Vec<_> = shown.transfers.iter().map(transfer).collect();
    serde_json::json!({
        "path": path, "version": shown.version, "servers": shown.servers, "fragments": fragments,
        "moves": moves
    })
}

fn to_text(shown: &Shown) -> String {
    let total: u64 = shown.fragments.iter().map(|fragment| fragment.entries).sum();
    let mut text = format!(
        "{} fragment{} at {} servers, {total} entries, map version {}\n\
         {:<18}{:>6}{:>12}{:>9}{:>9}{:>9}{:>9}{:>9}  INODE\n",
        shown.fragments.len(),
        if shown.fragments.len() == 1 { "" } else { "s" },
        shown.servers,
        shown.version,
        "HASHES",
        "RANK",
        "ENTRIES",
        "IRD",
        "IWR",
        "READDIR",
        "FETCH",
        "STORE"
    );
    for ShownFragment { rank, inode, first, last, entries, popularity, .. } in &shown.fragments {
        let hashes = show_hashes(*first, *last);
        let _ = write!(text, "{hashes:<18}{rank:>6}{entries:>12}");
        for count in popularity {
            let _ = write!(text, "{count:>9.1}");
        }
        let _ = writeln!(text, "  {inode}");
    }
    for ShownTransfer { kind, from, to, first, last, at } in &shown.transfers {
        let (time, hashes) = (shown_seconds(*at), show_hashes(*first, *last));
        let _ = writeln!(text, "{time}  {kind:<5}  from rank {from} to {to}: {hashes}");
    }
    text
}

/// A line for each fragment of a directory that has split off, with the reason. `shown`: the
/// directory's path. `fragments`: its attribute.
pub(crate) fn splits(fragments: &[u8], shown: &str) -> Result<Vec<String>> {
    let fragments: Shown =
        toml::from_str(&String::from_utf8_lossy(fragments)).context("cannot decode the fragments")?;
    let line = |fragment: ShownFragment| {
        let hashes = show_hashes(fragment.first, fragment.last);
        let why = fragment.split_by?;
        Some(format!("{shown}: fragment {hashes} at rank {} has split off: {why}", fragment.rank))
    };
    Ok(fragments.fragments.into_iter().filter_map(line).collect())
}

/// Seconds since 1970 as date and time.
pub(crate) fn shown_seconds(secs: i64) -> String {
    let time = jiff::Timestamp::from_second(secs);
    time.map(|time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()).unwrap_or_default()
}

/// A range of hashes as the prefix that they share, in binary; `...` follows while the fragment
/// splits and has only some of the hashes with this prefix.
fn show_hashes(first: u64, last: u64) -> String {
    let (prefix, bits) = common_prefix(&(first..=last));
    let digits = if bits == 0 { String::new() } else { format!("{prefix:0width$b}", width = bits as usize) };
    // All hashes with the prefix begin with it and end in all zeros or all ones.
    let is_whole = (last - first).checked_add(1).is_some_and(u64::is_power_of_two)
        && first.trailing_zeros().min(63) >= 63 - bits;
    format!("{digits}*{}", if is_whole { "" } else { "..." })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = 1 << 62;

    fn shown(text: &str) -> Shown {
        toml::from_str(text).expect("fragments")
    }

    #[test]
    fn whole_directory_is_one_fragment_without_prefix() {
        let last = i64::MAX;
        let shown = shown(&format!(
            "version = 0\nservers = 1\nfragments = [\n{{ rank = 0, inode = 1, first = 0, last = {last}, entries = 3, popularity = [1.5, 0.0, 2, 0.0, 4.0] }},\n]\ntransfers = []\n"
        ));
        let json = to_json(Path::new("/mnt"), &shown);
        let fragment = serde_json::json!({
            "prefix": 0, "bits": 0, "rank": 0, "entries": 3, "inode": 1, "first_hash": 0, "last_hash": last,
            "ird": 1.5, "iwr": 0.0, "readdir": 2.0, "fetch": 0.0, "store": 4.0
        });
        assert_eq!(json["fragments"], serde_json::json!([fragment]));
        assert!(
            to_text(&shown).ends_with(
                "\n*                      0           3      1.5      0.0      2.0      0.0      4.0  1\n"
            ),
            "{}",
            to_text(&shown)
        );
    }

    #[test]
    fn last_transfers_are_shown_with_time_and_ranks() {
        let shown = shown(&format!(
            "version = 3\nservers = 2\nfragments = []\ntransfers = [\n\
             {{ kind = \"split\", from = 0, to = 1, first = {HALF}, last = {}, at = 1800000000 }},\n]\n",
            i64::MAX
        ));
        let json = serde_json::json!([{
            "kind": "split", "from": 0, "to": 1, "time": "2027-01-15 08:00:00Z", "prefix": 1, "bits": 1,
            "first_hash": HALF, "last_hash": i64::MAX
        }]);
        assert_eq!(to_json(Path::new("/mnt"), &shown)["moves"], json);
        let text = to_text(&shown);
        assert!(text.ends_with("\n2027-01-15 08:00:00Z  split  from rank 0 to 1: 1*\n"), "{text}");
    }

    #[test]
    fn hashes_are_shown_as_their_prefix() {
        assert_eq!(show_hashes(0, i64::MAX as u64), "*");
        assert_eq!(show_hashes(HALF, i64::MAX as u64), "1*");
        assert_eq!(show_hashes(HALF / 2, HALF - 1), "01*");
        assert_eq!(show_hashes(HALF, HALF), format!("1{}*", "0".repeat(62)));
        // Names above this hash are in another fragment already.
        assert_eq!(show_hashes(0, HALF - 2), "0*...");
        assert_eq!(show_hashes(HALF + 5, i64::MAX as u64), "1*...");
    }
}
