//! What the server has of a namespace that is synced: a file in the namespace's store with the
//! steps of all syncs, by which the rest of the namespace is found after a crash.
//!
//! Invariant: a step is durable in the file before its record is sent. The server counts the
//! records that it has, so the steps after these are void: a crash of the server has lost them, or
//! they were never sent.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use espalier_meta::{Decoupled, decode, encode};
use espalier_proto::{Ino, Name, Time};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};

/// The file in the namespace's directory.
const FILE: &str = "synced";
const TITLE: &[u8] = b"Espalier namespace sync, format 1\n";
/// Steps of a frame.
const FRAME_STEPS: usize = 10_000;

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
    /// All attributes of an inode were sent.
    Update {
        ino: Ino,
        ctime: Time,
    },
}

#[derive(Serialize, Deserialize)]
enum SyncedFrame {
    Steps(Vec<SyncedStep>),
    /// Only this many of the steps before are valid.
    Rewind(u64),
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
                self.inodes.insert(*ino, SyncedInode { number, is_dir, ctime, names: Vec::new() });
                self.add_name(*ino, (*dir, name.clone()));
            }
            SyncedStep::Big { ino, names, ctime } => {
                let inode =
                    SyncedInode { number: None, is_dir: false, ctime: Some(*ctime), names: Vec::new() };
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
    /// Number of steps in the file.
    written: u64,
    pub tree: SyncedTree,
}

impl SyncedFile {
    /// Opens or creates the file in a namespace's directory, and reads what the server has.
    ///
    /// # Errors
    /// [`Error::ChangedNamespace`]: the server has more; [`Error::Io`].
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
        let (mut steps, mut offset, mut sum) = (Vec::new(), 0, 0);
        if has_title {
            let mut reader = FrameReader::new(&mut input, TITLE.len());
            offset = reader.offset;
            // A crash may have torn the end, whose records were not sent.
            while reader.read().is_ok()
                && let Ok(frame) = decode::<SyncedFrame>(&reader.body)
            {
                match frame {
                    SyncedFrame::Steps(mut more) => steps.append(&mut more),
                    SyncedFrame::Rewind(valid) => {
                        steps.truncate(usize::try_from(valid).unwrap_or(usize::MAX))
                    }
                }
                (offset, sum) = (reader.offset, reader.sum);
            }
        }
        if (steps.len() as u64) < decoupled.merged {
            return Err(Error::ChangedNamespace(dir.into()));
        }
        let (written, mut tree) = (steps.len() as u64, SyncedTree::new(decoupled));
        steps.iter().take(decoupled.merged as usize).for_each(|step| tree.apply(step));
        if offset == 0 {
            file.write_all_at(TITLE, 0).map_err(failed)?;
            offset = TITLE.len() as u64;
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        Ok(Self { file, offset, sum, written, tree })
    }

    /// Records steps after those that the server has, durably.
    pub fn append(&mut self, steps: &[SyncedStep]) -> Result<(), Error> {
        let failed = |source| Error::Io { context: "cannot record a sync".into(), source };
        let valid = self.tree.steps - steps.len() as u64;
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        writer.sum = self.sum;
        if valid < self.written {
            writer.frame(&encode(&SyncedFrame::Rewind(valid))).map_err(failed)?;
        }
        for steps in steps.chunks(FRAME_STEPS) {
            writer.frame(&encode(&SyncedFrame::Steps(steps.to_vec()))).map_err(failed)?;
        }
        self.sum = writer.sum;
        if bytes.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&bytes, self.offset).map_err(failed)?;
        self.offset += bytes.len() as u64;
        // Cuts a torn end, which could be longer.
        self.file.set_len(self.offset).and_then(|()| self.file.sync_data()).map_err(failed)?;
        self.written = self.tree.steps;
        Ok(())
    }
}
