//! Open files of processes.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use espalier_proto::{Errno, Ino};

use super::inodes::Inodes;
use crate::source::OpenFlags;

/// Number of the open working directory of a process. Relative paths begin there; without one, at
/// the root.
pub const WORKING_DIR: u32 = u32::MAX;

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    pub(super) is_dir: bool,
    /// Offset of the next read or write.
    pub(super) offset: u64,
    /// Cursor of the last listed entry, or the end of the listing.
    pub(super) listed: ListingProgress,
}

impl OpenFile {
    /// True if the client has the file open.
    pub(super) fn is_held(&self) -> bool {
        !self.flags.contains(OpenFlags::PATH)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ListingProgress {
    UpTo(u64),
    All,
}

/// Open files, and the inodes of a recording. Threads and forked processes share them: all clones
/// refer to the same table.
#[derive(Clone, Debug, Default)]
pub struct FileTable(Rc<RefCell<Files>>);

#[derive(Debug, Default)]
struct Files {
    files: BTreeMap<u32, OpenFile>,
    /// Number of running processes.
    users: u32,
    inodes: Inodes,
}

impl FileTable {
    pub(super) fn begin(&self) {
        self.0.borrow_mut().users += 1;
    }

    /// A process ends. Returns the files left open if it was the last one.
    pub(super) fn end(&self) -> VecDeque<Ino> {
        let mut table = self.0.borrow_mut();
        table.users -= 1;
        let left = if table.users == 0 { std::mem::take(&mut table.files) } else { BTreeMap::new() };
        left.into_values().filter(|file| file.is_held()).map(|file| file.ino).collect()
    }

    /// The inodes of the replayed recording.
    pub(super) fn inodes(&self) -> RefMut<'_, Inodes> {
        RefMut::map(self.0.borrow_mut(), |table| &mut table.inodes)
    }

    pub(super) fn opened(&self, number: u32, ino: Ino, flags: OpenFlags, is_dir: bool) {
        let file = OpenFile { ino, flags, is_dir, offset: 0, listed: ListingProgress::UpTo(0) };
        self.0.borrow_mut().files.insert(number, file);
    }

    pub(super) fn get(&self, number: u32) -> Result<OpenFile, Errno> {
        self.0.borrow().files.get(&number).copied().ok_or(Errno::EBADF)
    }

    /// The directory where a path begins.
    pub(super) fn origin(&self, path: &[u8]) -> Ino {
        let working_dir = self.0.borrow().files.get(&WORKING_DIR).map(|file| file.ino);
        working_dir.filter(|_| !path.starts_with(b"/")).unwrap_or(Ino::ROOT)
    }

    pub(super) fn update(&self, number: u32, change: impl FnOnce(&mut OpenFile)) {
        if let Some(file) = self.0.borrow_mut().files.get_mut(&number) {
            change(file);
        }
    }

    pub(super) fn close(&self, number: u32) -> Option<OpenFile> {
        self.0.borrow_mut().files.remove(&number)
    }
}
