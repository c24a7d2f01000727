//! The open files of a process.

use std::collections::{BTreeMap, VecDeque};

use espalier_proto::{Errno, Ino};

use crate::source::OpenFlags;

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    pub(super) is_dir: bool,
    /// Where reading and writing go on.
    pub(super) offset: u64,
    /// The last entry that was listed, or that there are no more.
    pub(super) listed: Listed,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Listed {
    UpTo(u64),
    All,
}

#[derive(Debug, Default)]
pub(super) struct Files(BTreeMap<u32, OpenFile>);

impl Files {
    pub(super) fn opened(&mut self, number: u32, ino: Ino, flags: OpenFlags, is_dir: bool) {
        let file = OpenFile { ino, flags, is_dir, offset: 0, listed: Listed::UpTo(0) };
        self.0.insert(number, file);
    }

    pub(super) fn get(&mut self, number: u32) -> Result<&mut OpenFile, Errno> {
        self.0.get_mut(&number).ok_or(Errno::EBADF)
    }

    pub(super) fn close(&mut self, number: u32) -> Option<Ino> {
        self.0.remove(&number).map(|file| file.ino)
    }

    pub(super) fn close_all(&mut self) -> VecDeque<Ino> {
        std::mem::take(&mut self.0).into_values().map(|file| file.ino).collect()
    }
}
