//! Infers the files that existed before a trace began: those that it uses and has not made.

use std::collections::BTreeMap;

use espalier_proto::{Errno, SetAttr};

use super::Expected;
use crate::source::{Op, OpenFlags, Target};

/// Present state of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PriorState {
    Absent,
    There,
}

/// Initial state of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Was {
    /// Of unknown type.
    Something,
    Directory,
    File {
        bytes: u64,
        perm: Option<u32>,
    },
    Symlink {
        target: Option<Vec<u8>>,
    },
}

/// Information in a reply besides its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Observed {
    Directory,
    File {
        bytes: u64,
        perm: Option<u32>,
    },
    Symlink,
    Target(Vec<u8>),
    /// Number of bytes read.
    Read(u64),
}

/// The state of a partially examined trace.
#[derive(Debug, Default)]
pub(super) struct Before {
    known: BTreeMap<Vec<u8>, PriorState>,
    /// Initial state by initial path.
    was: BTreeMap<Vec<u8>, Was>,
    /// Renames in order: old and new path.
    renamed: Vec<(Vec<u8>, Vec<u8>)>,
    /// Open files by number: path, offset, and true if the data is unchanged since the start.
    open: BTreeMap<u32, (Vec<u8>, u64, bool)>,
}

impl Before {
    /// Examines an operation. Operations must come in the order of their completion.
    pub(super) fn see(&mut self, op: &Op, expected: Expected, observed: Option<Observed>) {
        match expected {
            Expected::Success => self.succeeded(op, observed),
            Expected::Error(errno) => self.failed(op, errno),
            Expected::AnyError => {}
        }
    }

    fn succeeded(&mut self, op: &Op, observed: Option<Observed>) {
        match op {
            Op::MkDir { path, .. } | Op::MkNod { path, .. } | Op::Symlink { path, .. } => self.made(path),
            Op::Open { file, path, flags, .. } => {
                let is_new =
                    flags.contains(OpenFlags::CREATE) && self.known.get(path) != Some(&PriorState::There);
                if is_new {
                    self.made(path);
                } else {
                    let directory = flags.contains(OpenFlags::DIRECTORY);
                    self.found(path, if directory { Was::Directory } else { Was::Something });
                }
                let is_whole = !is_new && !flags.contains(OpenFlags::TRUNCATE);
                self.open.insert(*file, (path.clone(), 0, is_whole));
            }
            Op::Read { file, offset, size } => self.read(*file, *offset, *size, observed),
            Op::Write { file, offset, size } => {
                if let Some((path, place, _)) = self.open.get_mut(file) {
                    *place = offset.map_or(place.saturating_add(*size), |_| *place);
                    let path = path.clone();
                    self.changed(&path);
                }
            }
            Op::Seek { file, offset } => {
                if let Some((_, place, _)) = self.open.get_mut(file) {
                    *place = *offset;
                }
            }
            Op::List { file, .. } => {
                if let Some((path, ..)) = self.open.get(file) {
                    self.found(&path.clone(), Was::Directory);
                }
            }
            Op::Stat { target: Target::File(file) } => {
                if let (Some((path, _, true)), Some(observed)) = (self.open.get(file), observed) {
                    self.found(&path.clone(), Was::from(observed));
                }
            }
            Op::SetAttr { target: Target::File(file), set } => {
                if let (Some((path, ..)), true) = (self.open.get(file), set.size.is_some()) {
                    self.changed(&path.clone());
                }
            }
            Op::Stat { target } | Op::SetAttr { target, .. } => {
                if let Target::Path(path) | Target::Link(path) = target {
                    self.found(path, observed.map_or(Was::Something, Was::from));
                }
            }
            Op::Access { path, .. } => self.found(path, Was::Something),
            Op::ReadLink { path } => {
                self.found(path, observed.map_or(Was::Symlink { target: None }, Was::from))
            }
            Op::Unlink { path } => {
                self.found(path, Was::Something);
                self.known.insert(path.clone(), PriorState::Absent);
            }
            Op::RmDir { path } => {
                self.found(path, Was::Directory);
                self.known.insert(path.clone(), PriorState::Absent);
            }
            Op::Rename { from, to, .. } => self.renamed(from, to),
            Op::Link { from, to } => {
                self.found(from, Was::Something);
                self.made(to);
            }
            Op::Close { file } => {
                self.open.remove(file);
            }
            Op::Sync { .. } | Op::Enter { .. } | Op::Recorded(_) => {}
        }
    }

    fn failed(&mut self, op: &Op, errno: Errno) {
        let path = match op {
            Op::MkDir { path, .. } | Op::Open { path, .. } | Op::Symlink { path, .. } => path,
            Op::Unlink { path } | Op::RmDir { path } | Op::Access { path, .. } | Op::ReadLink { path } => {
                path
            }
            Op::Stat { target: Target::Path(path) | Target::Link(path) } => path,
            Op::Link { to, .. } | Op::Rename { to, .. } if errno == Errno::EEXIST => to,
            _ => return,
        };
        match (errno, op) {
            (Errno::ENOENT, Op::MkDir { .. } | Op::Symlink { .. }) => {}
            (Errno::ENOENT, _) => drop(self.known.entry(path.clone()).or_insert(PriorState::Absent)),
            (Errno::EEXIST, Op::MkDir { .. }) | (Errno::EISDIR, _) => self.found(path, Was::Directory),
            (Errno::ENOTEMPTY, _) => {
                self.found(path, Was::Directory);
                let is_empty = !self.below(path).any(|(_, known)| *known == PriorState::There);
                if is_empty {
                    self.found(&[path, b"/.kept".as_slice()].concat(), Was::Something);
                }
            }
            (Errno::EEXIST | Errno::EINVAL, _) => self.found(path, Was::Something),
            (Errno::ENOTDIR, _) => {
                if let Some(parent) = parent(path) {
                    self.found(parent, Was::Something);
                }
            }
            _ => {}
        }
    }

    /// Names in a directory and below it.
    fn below<'a>(&'a self, path: &[u8]) -> impl Iterator<Item = (&'a Vec<u8>, &'a PriorState)> + use<'a> {
        let prefix = [path, b"/".as_slice()].concat();
        self.known.range(prefix.clone()..).take_while(move |(name, _)| name.starts_with(&prefix))
    }

    fn made(&mut self, path: &[u8]) {
        if let Some(parent) = parent(path) {
            self.found(parent, Was::Directory);
        }
        self.known.insert(path.to_vec(), PriorState::There);
    }

    /// A path exists, and the trace may not have made it.
    fn found(&mut self, path: &[u8], was: Was) {
        let (path, was) = match path.strip_suffix(b"/") {
            Some(path) if was == Was::Something => (path, Was::Directory),
            Some(path) => (path, was),
            None => (path, was),
        };
        if path.is_empty() {
            return;
        }
        if !self.known.contains_key(path) {
            if let Some(parent) = parent(path) {
                self.found(parent, Was::Directory);
            }
            self.known.insert(path.to_vec(), PriorState::There);
            self.was.insert(self.original(path), was);
        } else if let Some(known) = self.was.get_mut(&self.original(path)) {
            known.learn(was);
        }
    }

    /// The initial path of the file with this path.
    fn original(&self, path: &[u8]) -> Vec<u8> {
        let mut path = path.to_vec();
        for (from, to) in self.renamed.iter().rev() {
            if path.strip_prefix(to.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/') {
                path.splice(..to.len(), from.iter().copied());
            }
        }
        path
    }

    fn read(&mut self, file: u32, offset: Option<u64>, size: u64, observed: Option<Observed>) {
        let (Some((path, place, is_whole)), Some(Observed::Read(read))) =
            (self.open.get_mut(&file), observed)
        else {
            return;
        };
        let begin = offset.unwrap_or(*place);
        if offset.is_none() {
            *place = place.saturating_add(read);
        }
        if *is_whole && size > 0 && read > 0 {
            let path = path.clone();
            self.found(&path, Was::File { bytes: begin.saturating_add(read), perm: None });
        }
    }

    /// Stops learning the initial size of a file.
    fn changed(&mut self, path: &[u8]) {
        self.open
            .values_mut()
            .filter(|(other, ..)| other == path)
            .for_each(|(_, _, is_whole)| *is_whole = false);
    }

    fn renamed(&mut self, from: &[u8], to: &[u8]) {
        self.found(from, Was::Something);
        let [from, to] = [from, to].map(|path| path.strip_suffix(b"/").unwrap_or(path));
        let below: Vec<_> =
            self.below(from).map(|(name, known)| (name[from.len()..].to_vec(), known.clone())).collect();
        for (rest, known) in below {
            self.known.remove(&[from, &rest].concat());
            self.known.insert([to, &rest].concat(), known);
        }
        self.known.insert(from.to_vec(), PriorState::Absent);
        self.made(to);
        self.renamed.push((from.to_vec(), to.to_vec()));
    }

    /// Operations that make the initial files.
    pub(super) fn into_ops(self) -> Vec<Op> {
        let mut ops = Vec::new();
        for (path, was) in self.was {
            match was {
                Was::Directory => ops.push(Op::mkdir(path)),
                Was::Something => make_file(&path, 0, &mut ops),
                Was::File { bytes, perm } => {
                    make_file(&path, bytes, &mut ops);
                    if perm.is_some() {
                        let set = SetAttr { perm, ..SetAttr::default() };
                        ops.push(Op::SetAttr { target: Target::Path(path), set });
                    }
                }
                Was::Symlink { target } => {
                    let target = target.unwrap_or_else(|| b"unknown".to_vec());
                    ops.push(Op::Symlink { target, path });
                }
            }
        }
        ops
    }
}

impl Was {
    /// Merges later knowledge, which is equal or more specific.
    fn learn(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Something, other) => *self = other,
            (Self::File { bytes, perm }, Self::File { bytes: more, perm: other }) => {
                (*bytes, *perm) = ((*bytes).max(more), perm.or(other));
            }
            (Self::Symlink { target }, Self::Symlink { target: Some(other) }) => *target = Some(other),
            _ => {}
        }
    }
}

impl From<Observed> for Was {
    fn from(observed: Observed) -> Self {
        match observed {
            Observed::Directory => Self::Directory,
            Observed::File { bytes, perm } => Self::File { bytes, perm },
            Observed::Symlink => Self::Symlink { target: None },
            Observed::Target(target) => Self::Symlink { target: Some(target) },
            Observed::Read(_) => Self::Something,
        }
    }
}

fn parent(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/')?;
    (end > 0).then_some(&path[..end])
}

/// The directories that a path leads through.
pub(super) fn dirs(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(parent(path), |path| parent(path))
}

/// Operations that make a file of zeros.
pub(super) fn make_file(path: &[u8], bytes: u64, ops: &mut Vec<Op>) {
    const FILE: u32 = 0;
    ops.push(Op::create(FILE, path));
    if bytes > 0 {
        let set = SetAttr { size: Some(bytes), ..SetAttr::default() };
        ops.push(Op::SetAttr { target: Target::File(FILE), set });
    }
    ops.push(Op::Close { file: FILE });
}
