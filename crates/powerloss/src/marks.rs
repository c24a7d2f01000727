//! A workload's marks, one per line, and the check that a directory matches them.
//!
//! A workload marks each operation before it starts, and when its result is durable. There are
//! three kinds of marks, each for separate paths:
//!
//! - A *history* (`do OPERATION`, `synced`) of one thread: a loss of power leaves the state after
//!   one of the operations, and no synced one is missing.
//! - A *file* (`begin PATH STATE`, `done PATH STATE`): it has the last state done, or one begun
//!   later; never a mixture.
//! - A *range* (`begin-at`, `done-at`) of a file: the same for each sector separately.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::str::{FromStr, SplitAsciiWhitespace};

use anyhow::{Context, Result, bail, ensure};

use crate::history::{History, HistoryOp};

const SECTOR: usize = 512;
/// Prefix of the names of histories, and of no other files.
pub const HISTORY: &str = "h-";

/// Bytes known by length and seed: those of one seed agree wherever both exist. Seed 0 is all
/// zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeededBytes {
    pub seed: u64,
    pub offset: u64,
    pub length: usize,
}

impl SeededBytes {
    pub fn new(seed: u64, offset: u64, length: usize) -> Self {
        Self { seed, offset, length }
    }

    pub fn make(self) -> Vec<u8> {
        if self.seed == 0 {
            return vec![0; self.length];
        }
        let byte = |at: u64| {
            let mut word = (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ self.seed.wrapping_mul(0xff51_afd7_ed55_8ccd);
            word = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            // Never zero: unwritten bytes are zero.
            ((word >> (8 * (at % 8))) as u8) | 1
        };
        (self.offset..self.offset + self.length as u64).map(byte).collect()
    }
}

/// Possible state of a file: absent, a number of bytes of a seed, or the result of a write of these
/// that is not durable: at most that number, with zeros for bytes that did not reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileState {
    Gone,
    Bytes(SeededBytes),
    Torn(SeededBytes),
}

impl FileState {
    pub fn bytes(seed: u64, length: usize) -> Self {
        Self::Bytes(SeededBytes::new(seed, 0, length))
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    Do(HistoryOp),
    Synced,
    Begin(String, FileState),
    Done(String, FileState),
    BeginAt(String, SeededBytes),
    DoneAt(String, SeededBytes),
}

/// The output of a workload's marks.
pub struct Marks(File);

impl Marks {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().append(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot open {}", path.display()))?))
    }

    pub fn say(&mut self, mark: &Mark) -> Result<()> {
        self.0.write_all(format!("{mark}\n").as_bytes()).context("cannot write a mark")
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Do(op) => write!(f, "do {op}"),
            Self::Synced => f.write_str("synced"),
            Self::Begin(path, state) => write!(f, "begin {path} {state}"),
            Self::Done(path, state) => write!(f, "done {path} {state}"),
            Self::BeginAt(path, bytes) => write!(f, "begin-at {path} {bytes}"),
            Self::DoneAt(path, bytes) => write!(f, "done-at {path} {bytes}"),
        }
    }
}

impl fmt::Display for FileState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("gone"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Torn(bytes) => write!(f, "torn {bytes}"),
        }
    }
}

impl fmt::Display for SeededBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.seed, self.offset, self.length)
    }
}

impl FromStr for Mark {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words = &mut line.split_ascii_whitespace();
        Ok(match next(words)? {
            "do" => Self::Do(HistoryOp::parse(words)?),
            "synced" => Self::Synced,
            "begin" => Self::Begin(next(words)?.into(), FileState::parse(words)?),
            "done" => Self::Done(next(words)?.into(), FileState::parse(words)?),
            "begin-at" => Self::BeginAt(next(words)?.into(), SeededBytes::parse(words)?),
            "done-at" => Self::DoneAt(next(words)?.into(), SeededBytes::parse(words)?),
            other => bail!("there are no marks `{other}`"),
        })
    }
}

impl FileState {
    fn parse(words: &mut SplitAsciiWhitespace<'_>) -> Result<Self> {
        let mut ahead = words.clone();
        match next(&mut ahead)? {
            "gone" => Ok(Self::Gone),
            "torn" => SeededBytes::parse(&mut ahead).map(Self::Torn),
            _ => SeededBytes::parse(words).map(Self::Bytes),
        }
    }
}

impl SeededBytes {
    pub(crate) fn parse(words: &mut SplitAsciiWhitespace<'_>) -> Result<Self> {
        Ok(Self::new(next(words)?.parse()?, next(words)?.parse()?, next(words)?.parse()?))
    }
}

pub(crate) fn next<'a>(words: &mut SplitAsciiWhitespace<'a>) -> Result<&'a str> {
    words.next().context("a mark was cut off")
}

/// Allowed states of a path.
struct Claim<T> {
    durable: Option<T>,
    /// Begun since then.
    begun: Vec<T>,
}

impl<T> Default for Claim<T> {
    fn default() -> Self {
        Self { durable: None, begun: Vec::new() }
    }
}

impl<T: Copy> Claim<T> {
    fn done(&mut self, state: T) {
        (self.durable, self.begun) = (Some(state), Vec::new());
    }

    fn allowed(&self) -> impl Iterator<Item = T> {
        self.durable.into_iter().chain(self.begun.iter().copied())
    }
}

/// Summary of a check.
#[derive(Debug, Default)]
pub struct Checked {
    pub files: usize,
    pub ranges: usize,
    /// The operation of the history that the state corresponds to, and the number of operations.
    pub history: Option<(usize, usize)>,
}

/// Checks a directory against all marks before the loss of power.
pub fn check(dir: &Path, marks: &[Mark]) -> Result<Checked> {
    let mut history = History::default();
    let mut files: BTreeMap<&str, Claim<FileState>> = BTreeMap::new();
    let mut ranges: BTreeMap<(&str, u64, usize), Claim<SeededBytes>> = BTreeMap::new();
    for mark in marks {
        match mark {
            Mark::Do(op) => history.begun(op.clone()),
            Mark::Synced => history.synced(),
            Mark::Begin(path, state) => files.entry(path).or_default().begun.push(*state),
            Mark::Done(path, state) => files.entry(path).or_default().done(*state),
            Mark::BeginAt(path, bytes) => {
                ranges.entry((path, bytes.offset, bytes.length)).or_default().begun.push(*bytes);
            }
            Mark::DoneAt(path, bytes) => {
                ranges.entry((path, bytes.offset, bytes.length)).or_default().done(*bytes);
            }
        }
    }
    for (path, claim) in &files {
        check_file(&dir.join(path), claim).with_context(|| format!("the file {path}"))?;
    }
    for ((path, offset, length), claim) in &ranges {
        let bytes = || format!("the file {path}, {length} bytes at {offset}");
        check_range(&dir.join(path), claim).with_context(bytes)?;
    }
    let history = history.check(dir)?;
    Ok(Checked { files: files.len(), ranges: ranges.len(), history })
}

fn check_file(path: &Path, claim: &Claim<FileState>) -> Result<()> {
    let found = read(path)?;
    let is = |state: FileState| match (state, &found) {
        (FileState::Gone, found) => found.is_none(),
        (FileState::Bytes(bytes), Some(found)) => found.len() == bytes.length && *found == bytes.make(),
        (FileState::Torn(bytes), Some(found)) => {
            found.len() <= bytes.length
                && found.iter().zip(bytes.make()).all(|(is, written)| [0, written].contains(is))
        }
        (FileState::Bytes(_) | FileState::Torn(_), None) => false,
    };
    // Before the first mark is done, the file may be absent.
    let absent = claim.durable.is_none() && found.is_none();
    ensure!(
        absent || claim.allowed().any(is),
        "it has {} bytes, and may be: {}",
        found.map_or("no".into(), |bytes| bytes.len().to_string()),
        claim.allowed().map(|state| state.to_string()).collect::<Vec<_>>().join(", or ")
    );
    Ok(())
}

fn check_range(path: &Path, claim: &Claim<SeededBytes>) -> Result<()> {
    let Some(durable) = claim.durable else { return Ok(()) };
    let found = read(path)?.context("it is not there")?;
    let (from, to) = (durable.offset as usize, durable.offset as usize + durable.length);
    let found = found.get(from..to).with_context(|| format!("it has {} bytes", found.len()))?;
    let allowed: HashSet<SeededBytes> = claim.allowed().collect();
    let allowed: Vec<Vec<u8>> = allowed.into_iter().map(SeededBytes::make).collect();
    let mut at = 0;
    while at < found.len() {
        // To the end of the sector.
        let end = ((from + at + 1).next_multiple_of(SECTOR) - from).min(found.len());
        let same = allowed.iter().any(|allowed| allowed[at..end] == found[at..end]);
        ensure!(same, "the bytes from {} to {} are none that were written", from + at, from + end);
        at = end;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn marks(text: &str) -> Vec<Mark> {
        let marks: Vec<Mark> = text.lines().map(|line| line.parse().unwrap()).collect();
        for (mark, line) in marks.iter().zip(text.lines()) {
            assert_eq!(mark.to_string(), line.trim());
        }
        marks
    }

    #[test]
    fn a_file_has_a_state_that_was_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let begun = marks("begin f 1 0 900\nbegin f 2 0 900");
        let done = marks("begin f 1 0 900\ndone f 1 0 900\nbegin f 2 0 900");
        assert!(check(dir.path(), &begun).is_ok());
        assert!(check(dir.path(), &done).is_err(), "lost");
        for seed in [1, 2] {
            std::fs::write(&path, SeededBytes::new(seed, 0, 900).make()).unwrap();
            assert!(check(dir.path(), &done).is_ok());
        }
        let mixed = [SeededBytes::new(1, 0, 512).make(), SeededBytes::new(2, 512, 388).make()].concat();
        std::fs::write(&path, mixed).unwrap();
        assert!(check(dir.path(), &done).is_err(), "mixed");
        assert!(check(dir.path(), &marks("done f gone")).is_err(), "back");
    }

    #[test]
    fn unsynced_bytes_may_be_short_and_have_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let begun = marks("begin f torn 1 0 900");
        let written = SeededBytes::new(1, 0, 900).make();
        let zeros = [&vec![0; 512], &written[512..]].concat();
        for fits in [&[], &zeros[..600], &zeros, &written] {
            std::fs::write(&path, fits).unwrap();
            assert!(check(dir.path(), &begun).is_ok());
            let done = check(dir.path(), &marks("begin f torn 1 0 900\ndone f 1 0 900"));
            assert_eq!(done.is_ok(), *fits == written, "once it is synced it is whole");
        }
        for wrong in [[&*written, &[0]].concat(), vec![2; 900]] {
            std::fs::write(&path, wrong).unwrap();
            assert!(check(dir.path(), &begun).is_err());
        }
    }

    #[test]
    fn range_may_mix_old_and_new_bytes_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let claim = marks("done-at f 1 100 1024\nbegin-at f 2 100 1024");
        let whole = |from: u64, to: u64| {
            [vec![0; 100], SeededBytes::new(from, 100, 412).make(), SeededBytes::new(to, 512, 612).make()]
                .concat()
        };
        for (from, to, fits) in [(1, 1, true), (1, 2, true), (2, 1, true), (1, 0, false), (3, 2, false)] {
            std::fs::write(&path, whole(from, to)).unwrap();
            assert_eq!(check(dir.path(), &claim).is_ok(), fits, "{from} {to}");
        }
        std::fs::write(&path, &whole(1, 1)[..1000]).unwrap();
        assert!(check(dir.path(), &claim).is_err(), "short");
    }

    #[test]
    fn a_history_ends_after_some_operation() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            "do create h-a\ndo write h-a 1 0 700\nsynced\ndo rename h-a h-b\ndo create h-c\ndo unlink h-b";
        let history = marks(text);
        assert!(check(dir.path(), &history).is_err(), "all lost");
        let (a, b, c) = (dir.path().join("h-a"), dir.path().join("h-b"), dir.path().join("h-c"));
        std::fs::write(&a, SeededBytes::new(1, 0, 700).make()).unwrap();
        assert_eq!(check(dir.path(), &history).unwrap().history, Some((2, 5)));
        std::fs::write(&c, b"").unwrap();
        assert!(check(dir.path(), &history).is_err(), "out of order");
        std::fs::rename(&a, &b).unwrap();
        assert_eq!(check(dir.path(), &history).unwrap().history, Some((4, 5)));
        std::fs::write(&b, b"").unwrap();
        assert!(check(dir.path(), &history).is_err(), "empty");
        std::fs::remove_file(&b).unwrap();
        assert_eq!(check(dir.path(), &history).unwrap().history, Some((5, 5)));
    }
}
