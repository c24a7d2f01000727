//! Recordings of `espalier mount --record FILE`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use espalier_proto::{FileType, Ino, Name, Request, SetAttr};
use espalier_recording::{Inode, Line, RecordedRequest};

use super::order::{self, Timed};
use super::{Act, BadLine, Expected, RecordedOp, Trace, before, lines};
use crate::Nanos;
use crate::source::{Op, RecordedCall, Target};

pub(super) fn parse(text: &str) -> Result<Trace, BadLine> {
    // By process: its entries, and the end of the last one.
    let mut processes: BTreeMap<u32, (Vec<Timed>, Nanos)> = BTreeMap::new();
    let (mut tree, mut skipped) = (EarlierTree::default(), BTreeMap::new());
    for (number, text) in lines(text) {
        let line = Line::parse(text).map_err(|error| BadLine::new(number, error.to_string()))?;
        if line.lost > 0 {
            *skipped.entry("calls that were not recorded".to_string()).or_default() += line.lost;
        }
        tree.see(&line);
        let Line { at, took, pid, uid, gid, recorded, observed, .. } = line;
        if let Some(reason) = is_skipped(&recorded) {
            *skipped.entry(reason.to_string()).or_default() += 1;
            continue;
        }
        let (begun, ended) = (Nanos(at), Nanos(at) + Nanos(took));
        let expected = observed.error.map_or(Expected::Success, Expected::Error);
        let act = Act::Do(Op::Recorded(Rc::new(RecordedCall { uid, gid, recorded, observed })), expected);
        let (entries, last) = processes.entry(pid).or_default();
        let entry = RecordedOp { line: number, pause: begun - *last, act, after: Vec::new() };
        *last = ended.max(*last);
        entries.push(Timed { entry, begun, ended, observed: None });
    }
    let processes = processes.into_values().map(|(entries, _)| entries).collect();
    Ok(order::finish(processes, tree.into_ops(&mut skipped), skipped))
}

/// Kind of a call that depends on state outside the recording, and is skipped.
fn is_skipped(recorded: &RecordedRequest) -> Option<&'static str> {
    match recorded {
        RecordedRequest::Request(Request::CopyTree(_)) => Some("steps of copying a tree"),
        RecordedRequest::Request(
            Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::StopWaiting { .. },
        ) => Some("locks"),
        _ => None,
    }
}

/// The files that existed before: names that calls found and had not made.
#[derive(Debug, Default)]
struct EarlierTree {
    names: BTreeMap<(Ino, Name), Ino>,
    inodes: BTreeMap<Ino, Inode>,
    targets: BTreeMap<Ino, Vec<u8>>,
    /// Names that calls have created or removed.
    changed: BTreeSet<(Ino, Name)>,
    made: BTreeSet<Ino>,
}

impl EarlierTree {
    fn see(&mut self, line: &Line) {
        let (RecordedRequest::Request(request), observed) = (&line.recorded, &line.observed) else { return };
        if observed.error.is_some() {
            return;
        }
        match (request, observed.inode) {
            (Request::Lookup { dir, name }, Some(inode)) => self.found(*dir, name, inode),
            (Request::ReadDir { dir, .. }, _) => {
                observed.entries.iter().for_each(|(name, inode)| self.found(*dir, name, *inode));
            }
            // A create that is not exclusive may have opened an existing file.
            (Request::Create { dir, name, .. }, Some(inode)) if !self.inodes.contains_key(&inode.ino) => {
                self.made.insert(inode.ino);
                self.changed.insert((*dir, name.clone()));
            }
            (Request::TmpFile { .. }, Some(inode)) => drop(self.made.insert(inode.ino)),
            (
                Request::Link { dir, name, .. }
                | Request::Unlink { dir, name, .. }
                | Request::RmDir { dir, name, .. },
                _,
            ) => drop(self.changed.insert((*dir, name.clone()))),
            (Request::Rename { from_dir, from, to_dir, to, .. }, _) => {
                self.changed.insert((*from_dir, from.clone()));
                self.changed.insert((*to_dir, to.clone()));
            }
            (Request::ReadLink { ino }, _) => {
                if let Some(target) = &observed.target {
                    self.targets.insert(*ino, target.clone());
                }
            }
            _ => {}
        }
    }

    fn found(&mut self, dir: Ino, name: &Name, inode: Inode) {
        let place = (dir, name.clone());
        if !self.changed.contains(&place) && !self.made.contains(&inode.ino) {
            self.names.entry(place).or_insert(inode.ino);
            self.inodes.entry(inode.ino).or_insert(inode);
        }
    }

    /// Operations that make the files and map the recording's root.
    fn into_ops(self, skipped: &mut BTreeMap<String, u64>) -> Vec<Op> {
        let mut dirs: BTreeMap<Ino, (Ino, &Name)> = BTreeMap::new();
        for ((dir, name), ino) in &self.names {
            dirs.entry(*ino).or_insert((*dir, name));
        }
        let path = |dir: Ino, name: &Name| -> Option<Vec<u8>> {
            let (mut names, mut ino) = (vec![name], dir);
            while ino != Ino::ROOT {
                let (parent, name) = dirs.get(&ino).filter(|_| names.len() <= dirs.len())?;
                names.push(name);
                ino = *parent;
            }
            Some(names.into_iter().rev().flat_map(|name| [b"/".as_slice(), name].concat()).collect())
        };
        // Parents come before their entries.
        let paths: BTreeMap<Vec<u8>, Ino> =
            self.names.iter().filter_map(|((dir, name), ino)| Some((path(*dir, name)?, *ino))).collect();
        let mut first: BTreeMap<Ino, Vec<u8>> = BTreeMap::new();
        let mut ops = Vec::new();
        for (path, ino) in paths {
            if let Some(from) = first.get(&ino) {
                ops.push(Op::Link { from: from.clone(), to: path });
                continue;
            }
            let Some(inode) = self.inodes.get(&ino) else { continue };
            match inode.kind {
                FileType::Directory => ops.push(Op::mkdir(path.clone())),
                FileType::Regular => before::make_file(&path, inode.size, &mut ops),
                FileType::Symlink => {
                    let target = self.targets.get(&ino).cloned().unwrap_or_else(|| b"unknown".to_vec());
                    ops.push(Op::Symlink { target, path: path.clone() });
                }
                FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
                    *skipped
                        .entry("devices, fifos and sockets that had been there".to_string())
                        .or_default() += 1;
                    continue;
                }
            }
            let perm = Some(inode.perm).filter(|_| inode.kind != FileType::Symlink);
            let set = SetAttr { perm, uid: Some(inode.uid), gid: Some(inode.gid), ..SetAttr::default() };
            ops.push(Op::SetAttr { target: Target::Link(path.clone()), set });
            first.insert(ino, path);
        }
        ops.push(Op::Enter { path: b"/".to_vec() });
        ops
    }
}
