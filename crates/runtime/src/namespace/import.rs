//! Import of a client's journal: makes a namespace of it that can be mounted, changed and merged.

use std::collections::HashMap;
use std::path::Path;

use espalier_meta::{DECOUPLE, Decouple, Inode, MergeRecord, encode};
use espalier_proto::{Errno, Ino, Name, Rank};

use super::offline::OfflineClient;
use super::{
    BigFile, ClientJournal, JournalFile, Merged, NamespaceOrigin, RootAttributes, WriteBytes, Xattrs,
    mkfs_namespace,
};
use crate::error::Error;
use crate::volume::{OpenOptions, Volume};

/// Makes the namespace of a journal in an empty directory. Its inodes are numbered from the start
/// of the provisioned range, so it can create as many more as the original could. `progress`
/// receives the number of records.
///
/// # Errors
/// Errors of making a store; [`Error::NotMerged`] if a record is invalid. No namespace is left.
pub fn import_journal(journal: &JournalFile, dir: &Path, progress: impl Fn(u64)) -> Result<(), Error> {
    let origin = journal.origin().clone();
    let Inode { uid, gid, perm, .. } = *journal.root();
    mkfs_namespace(dir, &origin, RootAttributes { uid, gid, perm })?;
    fill(journal, dir, progress).inspect_err(|_| remove(dir))
}

/// Removes a namespace that is incomplete.
fn remove(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_dir { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

fn fill(journal: &JournalFile, dir: &Path, progress: impl Fn(u64)) -> Result<(), Error> {
    let renumbered = RenumberedJournal::of(journal)?;
    // Without sessions, for which numbers would be reserved.
    let volume = Volume::open(dir, OpenOptions { memory: 128 << 20, ..OpenOptions::default() })?;
    let mut client = OfflineClient::new(vec![volume], Rank(0))?;
    let value = encode(&Decouple { id: journal.origin().decoupled.id, inodes: renumbered.inodes.max(1) });
    let failed = |errno| Error::NotMerged { path: String::new(), errno };
    client.set_xattr(Ino::ROOT, DECOUPLE.as_bytes(), &value).map_err(failed)?;
    let outcome = client.merge(&renumbered, Ino::ROOT, 0, progress);
    client.close()?;
    outcome
}

/// The records with the numbers that the new namespace gives its inodes.
struct RenumberedJournal<'a> {
    journal: &'a JournalFile,
    numbers: HashMap<Ino, Ino>,
    inodes: u64,
}

impl<'a> RenumberedJournal<'a> {
    fn of(journal: &'a JournalFile) -> Result<Self, Error> {
        let decoupled = &journal.origin().decoupled;
        // Without the rank of the server.
        let first = decoupled.first.0 - Ino::none_of(decoupled.first.rank()).0;
        let (mut numbers, mut inodes) = (HashMap::from([(Ino::ROOT, Ino::ROOT)]), 0);
        for number in 0..journal.len() {
            if let Merged::Record(MergeRecord::Create { inode, .. }) = journal.record(number)? {
                numbers.insert(inode.ino, Ino(first + inodes));
                inodes += 1;
            }
        }
        Ok(Self { journal, numbers, inodes })
    }

    fn number(&self, ino: Ino) -> Result<Ino, Error> {
        let unknown = || Error::NotMerged { path: String::new(), errno: Errno::EINVAL };
        self.numbers.get(&ino).copied().ok_or_else(unknown)
    }

    fn names(&self, names: Vec<(Ino, Name)>) -> Result<Vec<(Ino, Name)>, Error> {
        names.into_iter().map(|(dir, name)| Ok((self.number(dir)?, name))).collect()
    }
}

impl ClientJournal for RenumberedJournal<'_> {
    fn origin(&self) -> &NamespaceOrigin {
        self.journal.origin()
    }

    fn root(&self) -> &Inode {
        self.journal.root()
    }

    fn root_xattrs(&self) -> Result<Xattrs, Error> {
        self.journal.root_xattrs()
    }

    fn len(&self) -> u64 {
        self.journal.len()
    }

    fn digest(&self) -> u64 {
        self.journal.digest()
    }

    fn record(&self, number: u64) -> Result<Merged, Error> {
        Ok(match self.journal.record(number)? {
            Merged::Record(MergeRecord::Create { dir, name, mut inode, bytes, xattrs }) => {
                inode.ino = self.number(inode.ino)?;
                Merged::Record(MergeRecord::Create { dir: self.number(dir)?, name, inode, bytes, xattrs })
            }
            Merged::Record(MergeRecord::Link { ino, names, time }) => {
                let (ino, names) = (self.number(ino)?, self.names(names)?);
                Merged::Record(MergeRecord::Link { ino, names, time })
            }
            Merged::Record(MergeRecord::Finish { ino, atime, mtime, ctime, flags }) => {
                let ino = self.number(ino)?;
                Merged::Record(MergeRecord::Finish { ino, atime, mtime, ctime, flags })
            }
            // Only a sync has others.
            Merged::Record(record) => Merged::Record(record),
            Merged::Big(mut file) => {
                file.names = self.names(core::mem::take(&mut file.names))?;
                Merged::Big(file)
            }
        })
    }

    fn read_big(&self, file: &BigFile, write: &mut WriteBytes<'_>) -> Result<(), Error> {
        self.journal.read_big(file, write)
    }

    fn path_of(&self, number: u64) -> Vec<u8> {
        self.journal.path_of(number)
    }
}
