//! What the server has of a namespace that is synced: a file in the namespace's store with the
//! plans of all syncs, by which the rest of the namespace is found after a crash.
//!
//! A plan is a sequence of steps that follow the first ones of an earlier plan. Invariant: a step
//! is durable in the file before its record is sent. The server has the number of its records and
//! the digest of the plan that the last one belongs to. A request of a killed mount may arrive
//! after a later plan was made, so plans stay in the file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use espalier_meta::{Decoupled, decode, encode};
use espalier_proto::{Ino, Name, Time};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::Error;
use crate::framed::{FrameError, FrameReader, FrameWriter};

/// The file in the namespace's directory.
const FILE: &str = "synced";
const TITLE: &[u8] = b"Espalier namespace sync, format 2\n";
/// Steps of a frame, which has room for this many of the longest ones.
const FRAME_STEPS: usize = 1000;

/// The effect of a record. Inodes have the namespace's own numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SyncedStep {
    /// `number`: the server's.
    Create {
        ino: Ino,
        number: Ino,
        dir: Ino,
        name: Name,
        is_dir: bool,
        ctime: Time,
    },
    /// A big file, to which the server has given a number.
    Big {
        ino: Ino,
        names: Vec<(Ino, Name)>,
        ctime: Time,
    },
    Link {
        ino: Ino,
        names: Vec<(Ino, Name)>,
    },
    Remove {
        dir: Ino,
        name: Name,
    },
    Move {
        from: (Ino, Name),
        to: (Ino, Name),
    },
    /// All attributes of an inode were sent, except its flags.
    Update {
        ino: Ino,
        ctime: Time,
    },
    /// The times of an inode were sent. `flags`: it has flags at the server.
    Finish {
        ino: Ino,
        ctime: Time,
        flags: bool,
    },
    /// The flags of an inode were removed.
    ClearFlags {
        ino: Ino,
    },
}

/// Identifies a plan.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct PlanHead {
    /// Number of records before those of the plan.
    pub first: u64,
    /// Digest of the plan that these belong to; 0 without any.
    pub base: u64,
    pub digest: u64,
}

impl PlanHead {
    pub fn of(first: u64, base: u64, steps: &[SyncedStep]) -> Self {
        Self { first, base, digest: xxh3_64_with_seed(&encode(&(base, steps)), first) }
    }
}

#[derive(Serialize, Deserialize)]
enum SyncedFrame {
    Plan(PlanHead),
    /// Steps of the last plan.
    Steps(Vec<SyncedStep>),
}

/// A plan, as far as it is recorded.
struct RecordedPlan {
    head: PlanHead,
    steps: Vec<SyncedStep>,
}

impl RecordedPlan {
    /// Number of records up to its end.
    fn end(&self) -> u64 {
        self.head.first + self.steps.len() as u64
    }
}

/// The steps of the first `merged` records, the last of which belongs to a plan with this digest;
/// `None` if they are not recorded.
fn steps_before(mut plans: &[RecordedPlan], merged: u64, digest: u64) -> Option<Vec<SyncedStep>> {
    let (mut parts, mut end, mut digest) = (Vec::new(), merged, digest);
    while end > 0 {
        let has_end =
            |plan: &RecordedPlan| plan.head.digest == digest && (plan.head.first..=plan.end()).contains(&end);
        let at = plans.iter().rposition(has_end)?;
        let RecordedPlan { head, steps } = &plans[at];
        parts.push(&steps[..(end - head.first) as usize]);
        (end, digest) = (head.first, head.base);
        plans = &plans[..at];
    }
    parts.reverse();
    Some(parts.concat())
}

/// An inode that the server has.
#[derive(Debug)]
pub(super) struct SyncedInode {
    /// The server's number; `None` for a big file.
    pub number: Option<Ino>,
    pub is_dir: bool,
    /// The ctime in the namespace when its attributes were sent; `None` for a directory whose names
    /// have changed since, and so its times at the server.
    pub ctime: Option<Time>,
    /// It has flags at the server, which prevent changes.
    pub flags: bool,
    pub names: Vec<(Ino, Name)>,
}

/// The tree that the server has.
#[derive(Debug)]
pub(super) struct SyncedTree {
    pub inodes: HashMap<Ino, SyncedInode>,
    pub names: HashMap<(Ino, Name), Ino>,
    /// Number of records.
    pub steps: u64,
    /// The lowest of the server's numbers that may be used, in each half of the range.
    pub next: Ino,
    pub next_spare: Ino,
    /// The first number of the upper half.
    middle: Ino,
}

impl SyncedTree {
    fn new(decoupled: &Decoupled) -> Self {
        let (first, middle) = (decoupled.first, Ino(decoupled.first.0 + decoupled.inodes / 2));
        let (inodes, names) = (HashMap::new(), HashMap::new());
        Self { inodes, names, steps: 0, next: first, next_spare: middle, middle }
    }

    /// True if the server has a directory.
    pub fn has_dir(&self, dir: Ino) -> bool {
        dir == Ino::ROOT || self.inodes.contains_key(&dir)
    }

    pub fn apply(&mut self, step: &SyncedStep) {
        self.steps += 1;
        match step {
            SyncedStep::Create { ino, number, dir, name, is_dir, ctime } => {
                let next = if *number < self.middle { &mut self.next } else { &mut self.next_spare };
                *next = Ino(number.0 + 1);
                let (number, is_dir, ctime) = (Some(*number), *is_dir, (!*is_dir).then_some(*ctime));
                let names = Vec::new();
                self.inodes.insert(*ino, SyncedInode { number, is_dir, ctime, flags: false, names });
                self.add_name(*ino, (*dir, name.clone()));
            }
            SyncedStep::Big { ino, names, ctime } => {
                let (number, ctime) = (None, Some(*ctime));
                let inode = SyncedInode { number, is_dir: false, ctime, flags: false, names: Vec::new() };
                self.inodes.insert(*ino, inode);
                names.iter().for_each(|name| self.add_name(*ino, name.clone()));
            }
            SyncedStep::Link { ino, names } => {
                names.iter().for_each(|name| self.add_name(*ino, name.clone()));
            }
            SyncedStep::Remove { dir, name } => {
                self.take_name(&(*dir, name.clone()), true);
            }
            SyncedStep::Move { from, to } => {
                self.take_name(to, true);
                if let Some(ino) = self.take_name(from, false) {
                    self.add_name(ino, to.clone());
                }
            }
            SyncedStep::Update { ino, ctime } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.ctime = Some(*ctime);
                }
            }
            SyncedStep::Finish { ino, ctime, flags } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    (inode.ctime, inode.flags) = (Some(*ctime), *flags);
                }
            }
            SyncedStep::ClearFlags { ino } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.flags = false;
                }
            }
        }
    }

    fn names_changed(&mut self, dir: Ino) {
        if let Some(dir) = self.inodes.get_mut(&dir) {
            dir.ctime = None;
        }
    }

    fn add_name(&mut self, ino: Ino, name: (Ino, Name)) {
        self.names_changed(name.0);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.names.push(name.clone());
            self.names.insert(name, ino);
        }
    }

    /// Removes a name, and with `forget` an inode without a name.
    fn take_name(&mut self, name: &(Ino, Name), forget: bool) -> Option<Ino> {
        let ino = self.names.remove(name)?;
        self.names_changed(name.0);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.names.retain(|one| one != name);
            if forget && inode.names.is_empty() {
                self.inodes.remove(&ino);
            }
        }
        Some(ino)
    }
}

/// The open file, and the tree that it describes.
#[derive(Debug)]
pub(super) struct SyncedFile {
    file: File,
    /// End of the last valid frame, and its checksum.
    offset: u64,
    sum: u64,
    /// Digest of the plan that the last record of the tree belongs to.
    pub digest: u64,
    pub tree: SyncedTree,
}

impl SyncedFile {
    /// Opens or creates the file in a namespace's directory, and reads what the server has.
    ///
    /// # Errors
    /// [`Error::ChangedNamespace`]: the server has records that are not in the file; [`Error::Io`].
    pub fn open(dir: &Path, decoupled: &Decoupled) -> Result<Self, Error> {
        let path = dir.join(FILE);
        let failed = |source| Error::Io { context: format!("cannot use {}", path.display()), source };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed)?;
        let (mut input, mut title) = (BufReader::new(&file), [0; TITLE.len()]);
        let has_title = match input.read_exact(&mut title) {
            Err(cause) if cause.kind() == ErrorKind::UnexpectedEof => false,
            read => read.map(|()| title == TITLE).map_err(failed)?,
        };
        let (mut plans, mut offset, mut sum) = (Vec::<RecordedPlan>::new(), 0, 0);
        if has_title {
            let mut reader = FrameReader::new(&mut input, TITLE.len());
            offset = reader.offset;
            loop {
                match reader.read() {
                    Ok(()) => {}
                    // A crash may have torn the end, whose records were not sent.
                    Err(FrameError::Damaged(_)) => break,
                    Err(FrameError::Io(source)) => return Err(failed(source)),
                }
                match (decode::<SyncedFrame>(&reader.body), plans.last_mut()) {
                    (Ok(SyncedFrame::Plan(head)), _) => plans.push(RecordedPlan { head, steps: Vec::new() }),
                    (Ok(SyncedFrame::Steps(mut more)), Some(plan)) => plan.steps.append(&mut more),
                    _ => break,
                }
                (offset, sum) = (reader.offset, reader.sum);
            }
        }
        let (merged, digest) = (decoupled.merged, decoupled.digest);
        let steps =
            steps_before(&plans, merged, digest).ok_or_else(|| Error::ChangedNamespace(dir.into()))?;
        let mut tree = SyncedTree::new(decoupled);
        steps.iter().for_each(|step| tree.apply(step));
        if offset == 0 {
            file.write_all_at(TITLE, 0).map_err(failed)?;
            offset = TITLE.len() as u64;
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        Ok(Self { file, offset, sum, digest, tree })
    }

    /// True if the tree is that which the server has.
    pub fn is_current(&self, decoupled: &Decoupled) -> bool {
        let is_digest = decoupled.merged == 0 || self.digest == decoupled.digest;
        self.tree.steps == decoupled.merged && is_digest
    }

    /// Records steps of the last plan durably. `head`: they begin a plan.
    pub fn append(&mut self, head: Option<PlanHead>, steps: &[SyncedStep]) -> Result<(), Error> {
        let failed = |source| Error::Io { context: "cannot record a sync".into(), source };
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        writer.sum = self.sum;
        if let Some(head) = head {
            writer.frame(&encode(&SyncedFrame::Plan(head))).map_err(failed)?;
        }
        for steps in steps.chunks(FRAME_STEPS) {
            writer.frame(&encode(&SyncedFrame::Steps(steps.to_vec()))).map_err(failed)?;
        }
        let sum = writer.sum;
        self.file.write_all_at(&bytes, self.offset).map_err(failed)?;
        let end = self.offset + bytes.len() as u64;
        // Cuts a torn end, which could be longer.
        self.file.set_len(end).and_then(|()| self.file.sync_data()).map_err(failed)?;
        (self.offset, self.sum) = (end, sum);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(count: u64) -> Vec<SyncedStep> {
        (0..count).map(|ino| SyncedStep::Update { ino: Ino(ino), ctime: Time::new(0, 0) }).collect()
    }

    #[test]
    fn steps_are_those_of_the_plan_that_the_server_has() {
        let plan = |first, base, digest, count| RecordedPlan {
            head: PlanHead { first, base, digest },
            steps: steps(count),
        };
        // The second one was never sent in full, and the third follows the first.
        let plans = [plan(0, 0, 1, 5), plan(3, 1, 2, 4), plan(2, 1, 3, 2), plan(4, 3, 4, 1)];
        let found = |merged, digest| steps_before(&plans, merged, digest).map(|steps| steps.len());
        for (merged, digest) in [(0, 0), (0, 9), (5, 1), (3, 2), (7, 2), (2, 3), (4, 3), (5, 4), (4, 4)] {
            assert_eq!(found(merged, digest), Some(merged as usize), "{merged} of {digest}");
        }
        for (merged, digest) in [(6, 1), (2, 2), (8, 2), (5, 3), (1, 3), (1, 0), (1, 9), (6, 4)] {
            assert_eq!(found(merged, digest), None, "{merged} of {digest}");
        }
        let all = [steps(2), steps(2), steps(1)].concat();
        assert_eq!(steps_before(&plans, 5, 4), Some(all));
    }
}
