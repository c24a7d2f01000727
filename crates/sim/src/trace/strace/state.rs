//! State of descriptors and working directories while a log is parsed.

use std::collections::BTreeMap;
use std::path::Path;

use super::line::{Call, Returned, StraceEvent, unescape};
use crate::trace::BadLine;

/// A descriptor.
#[derive(Clone, Debug)]
pub(super) struct Descriptor {
    /// Number of the open file, which duplicated and inherited descriptors share.
    pub(super) file: u32,
    pub(super) path: Vec<u8>,
    pub(super) ends_at_exec: bool,
}

/// Descriptors and working directory, shared by threads.
#[derive(Clone, Debug, Default)]
struct Table {
    descriptors: BTreeMap<i64, Descriptor>,
    dir: Option<Vec<u8>>,
}

/// A child process.
#[derive(Clone, Copy, Debug)]
struct ChildProcess {
    parent: u32,
    shares_files: bool,
}

#[derive(Debug)]
pub(super) struct StraceState {
    root: Vec<u8>,
    children: BTreeMap<u32, ChildProcess>,
    tables: Vec<Table>,
    /// Table of each process.
    of: BTreeMap<u32, usize>,
    /// Number of descriptors of each file, in all processes.
    held: BTreeMap<u32, u32>,
    files: u32,
    skipped: BTreeMap<String, u64>,
}

/// The location that a path or a descriptor refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Located {
    Path(Vec<u8>),
    File(u32),
    /// Not replayed.
    Outside,
}

/// An argument that is a descriptor, or the working directory.
struct DirArgument {
    number: Option<i64>,
    path: Option<Vec<u8>>,
}

/// File systems without persistent files.
const VIRTUAL: [&[u8]; 3] = [b"/proc", b"/sys", b"/dev"];

impl StraceState {
    /// `events`: the log, searched for children: a child may appear before its parent's call has
    /// returned.
    pub(super) fn new(root: &Path, events: &[StraceEvent]) -> Result<Self, BadLine> {
        let mut children = BTreeMap::new();
        for event in events {
            let StraceEvent::Call(call) = event else { continue };
            if matches!(call.name.as_str(), "clone" | "clone3" | "fork" | "vfork")
                && let (arguments, Returned::Value(child)) = call.parse()?
            {
                let shares_files = arguments.iter().any(|argument| argument.contains("CLONE_FILES"));
                let child = u32::try_from(child).map_err(|_| call.bad("it returned no process"))?;
                children.insert(child, ChildProcess { parent: call.pid, shares_files });
            }
        }
        let root = normal(root.as_os_str().as_encoded_bytes());
        let root = root.strip_suffix(b"/").map(<[u8]>::to_vec).unwrap_or(root);
        let (tables, of, held) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { root, children, tables, of, held, files: 0, skipped: BTreeMap::new() })
    }

    pub(super) fn skip(&mut self, reason: impl Into<String>) {
        *self.skipped.entry(reason.into()).or_default() += 1;
    }

    pub(super) fn into_skipped(self) -> BTreeMap<String, u64> {
        self.skipped
    }

    pub(super) fn parent(&self, pid: u32) -> Option<u32> {
        self.children.get(&pid).map(|child| child.parent)
    }

    fn table_number(&mut self, pid: u32) -> usize {
        if let Some(number) = self.of.get(&pid) {
            return *number;
        }
        let child = self.children.get(&pid).copied();
        let number = match child.and_then(|child| Some((child, *self.of.get(&child.parent)?))) {
            Some((child, parent)) if child.shares_files => parent,
            inherited => {
                let table = inherited.map(|(_, parent)| self.tables[parent].clone()).unwrap_or_default();
                for descriptor in table.descriptors.values() {
                    *self.held.entry(descriptor.file).or_default() += 1;
                }
                self.tables.push(table);
                self.tables.len() - 1
            }
        };
        self.of.insert(pid, number);
        number
    }

    fn table(&mut self, pid: u32) -> &mut Table {
        let number = self.table_number(pid);
        &mut self.tables[number]
    }

    /// A process exits. Its files stay open until all processes that share them have exited.
    pub(super) fn exit(&mut self, pid: u32) {
        if let Some(number) = self.of.remove(&pid)
            && !self.of.values().any(|other| *other == number)
        {
            let table = std::mem::take(&mut self.tables[number]);
            for descriptor in table.descriptors.into_values() {
                self.release_file(descriptor.file);
            }
        }
    }

    /// Drops a descriptor. Returns true if it was the last one of the file.
    fn release_file(&mut self, file: u32) -> bool {
        let Some(held) = self.held.get_mut(&file) else { return false };
        *held -= 1;
        let is_last = *held == 0;
        if is_last {
            self.held.remove(&file);
        }
        is_last
    }

    /// The number of the next file to be opened.
    pub(super) fn next_file(&mut self) -> u32 {
        self.files += 1;
        self.files
    }

    pub(super) fn opened(&mut self, pid: u32, number: i64, descriptor: Descriptor) {
        *self.held.entry(descriptor.file).or_default() += 1;
        if let Some(old) = self.table(pid).descriptors.insert(number, descriptor) {
            // The log lacks the close of the old descriptor, or `dup2` closed it.
            self.release_file(old.file);
        }
    }

    pub(super) fn descriptor(&mut self, pid: u32, number: i64) -> Option<&mut Descriptor> {
        self.table(pid).descriptors.get_mut(&number)
    }

    /// Closes a descriptor. Returns the file if it was its last one.
    pub(super) fn closed(&mut self, pid: u32, number: i64) -> Option<u32> {
        let descriptor = self.table(pid).descriptors.remove(&number)?;
        self.release_file(descriptor.file).then_some(descriptor.file)
    }

    pub(super) fn executed(&mut self, pid: u32) {
        let table = self.table(pid);
        let ending: Vec<i64> = table
            .descriptors
            .iter()
            .filter(|(_, descriptor)| descriptor.ends_at_exec)
            .map(|(number, _)| *number)
            .collect();
        for number in ending {
            self.closed(pid, number);
        }
    }

    pub(super) fn set_working_dir(&mut self, pid: u32, dir: Vec<u8>) {
        self.table(pid).dir = Some(dir);
    }

    /// The absolute path on the traced machine.
    pub(super) fn absolute(
        &mut self,
        call: &Call,
        dir: Option<&str>,
        path: &[u8],
    ) -> Result<Vec<u8>, BadLine> {
        let reported = dir.map(|dir| self.dir_argument(call, dir)).transpose()?;
        if path.starts_with(b"/") {
            return Ok(normal(path));
        }
        let base = match reported {
            Some(DirArgument { path: Some(path), .. }) => Some(path),
            Some(DirArgument { number: Some(number), .. }) => {
                self.descriptor(call.pid, number).map(|descriptor| descriptor.path.clone())
            }
            _ => self.table(call.pid).dir.clone(),
        };
        let base = base.ok_or_else(|| {
            call.bad("the directory of this path is unknown: use `strace -y`, which prints it, and trace from the start")
        })?;
        Ok(normal(&[&base, b"/".as_slice(), path].concat()))
    }

    fn dir_argument(&mut self, call: &Call, argument: &str) -> Result<DirArgument, BadLine> {
        let (number, path) =
            descriptor(argument).ok_or_else(|| call.bad(format!("`{argument}` is no descriptor")))?;
        // The annotation shows the working directory.
        if let (None, Some(path)) = (number, &path) {
            self.set_working_dir(call.pid, path.clone());
        }
        Ok(DirArgument { number, path })
    }

    /// The location of a path in the replay.
    pub(super) fn located(
        &mut self,
        call: &Call,
        dir: Option<&str>,
        path: &[u8],
    ) -> Result<Located, BadLine> {
        let own =
            [b"/proc/self/fd/".as_slice(), b"/dev/fd/"].into_iter().find_map(|dir| path.strip_prefix(dir));
        if let Some(number) = own.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok()) {
            return Ok(self.file(call.pid, number));
        }
        let path = self.absolute(call, dir, path)?;
        Ok(self.inside(&path).map_or(Located::Outside, Located::Path))
    }

    pub(super) fn file(&mut self, pid: u32, number: i64) -> Located {
        self.descriptor(pid, number).map_or(Located::Outside, |descriptor| Located::File(descriptor.file))
    }

    /// The path in the replay, if it is below the replayed directory.
    fn inside(&self, path: &[u8]) -> Option<Vec<u8>> {
        let is_below =
            |dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        if !is_below(&self.root) || VIRTUAL.iter().any(|dir| is_below(dir)) {
            return None;
        }
        let rest = &path[self.root.len()..];
        Some(if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() })
    }
}

/// Number and annotation of a descriptor argument; no number for the working directory.
pub(super) fn descriptor(argument: &str) -> Option<(Option<i64>, Option<Vec<u8>>)> {
    let (number, path) = match argument.split_once('<') {
        Some((number, rest)) => (number, Some(unescape(&rest[..rest.find('>')?])?)),
        None => (argument, None),
    };
    let path = path.filter(|path| path.starts_with(b"/"));
    if number == "AT_FDCWD" {
        return Some((None, path));
    }
    Some((Some(number.parse().ok()?), path))
}

/// The absolute path without `.` and `..`; symbolic links are unknown here.
fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut all: Vec<u8> = names.iter().flat_map(|name| [b"/".as_slice(), name].concat()).collect();
    if all.is_empty() || path.ends_with(b"/") {
        all.push(b'/');
    }
    all
}
