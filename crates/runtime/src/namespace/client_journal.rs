//! A client's journal: the sequence of records that merges a namespace, from its store or from a
//! file, and the batches in which a server or a store receives them.

use std::path::Path;

use espalier_meta::{Change, Decoupled, Inode, MergeBatch, MergeEnd, MergeRecord, encode};
use espalier_proto::Ino;

use super::{BigFile, JournalFile, Merged, Namespace, NamespaceOrigin, Xattrs};
use crate::error::Error;

/// Bounds of a batch: encoded bytes, records, and open files.
const BATCH_BYTES: usize = 60 << 10;
const BATCH_RECORDS: usize = 1024;
const BATCH_FILES: usize = 64;

/// Receives parts of a big file: offset and bytes.
pub type WriteBytes<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + 'a;

/// The records of a namespace.
pub trait ClientJournal: Send + Sync {
    fn origin(&self) -> &NamespaceOrigin;

    /// The root directory of the namespace.
    fn root(&self) -> &Inode;

    /// The extended attributes of the root directory, ACLs included.
    ///
    /// # Errors
    /// [`Error::Store`].
    fn root_xattrs(&self) -> Result<Xattrs, Error>;

    /// Number of records.
    fn len(&self) -> u64;

    /// [`MergeBatch::digest`].
    fn digest(&self) -> u64;

    /// The record with this number.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::DamagedJournal`]; [`Error::Unmergeable`] for a record that no
    /// batch can hold.
    fn record(&self, number: u64) -> Result<Merged, Error>;

    /// Passes the bytes of a big file, without its holes, to `write`.
    ///
    /// # Errors
    /// As [`Self::record`], and those of `write`.
    fn read_big(&self, file: &BigFile, write: &mut WriteBytes<'_>) -> Result<(), Error>;

    /// The path of the record's inode below the root, for messages.
    fn path_of(&self, number: u64) -> Vec<u8>;

    /// Number of records that a directory must have merged before: those of earlier syncs.
    fn first(&self) -> u64 {
        0
    }

    /// [`MergeBatch::base`].
    fn base(&self) -> u64 {
        0
    }

    /// True if a directory that refuses a record has others than this journal continues: late
    /// requests of a killed mount, or those before a loss of power.
    fn is_outdated(&self, decoupled: &Decoupled) -> bool {
        let Decoupled { merged, digest, shows, .. } = *decoupled;
        let has_own = merged >= self.first() && digest == self.digest();
        let has_base = merged == self.first() && (merged == 0 || digest == self.base());
        (shows || self.first() > 0) && !has_own && !has_base
    }

    /// True for a namespace sync, which leaves the directory decoupled.
    fn is_sync(&self) -> bool {
        false
    }

    /// The records that follow those of earlier syncs; `None` if there was none, so the journal's
    /// own records are merged.
    ///
    /// # Errors
    /// [`Error::ChangedNamespace`] if the directory has merged more than was sent;
    /// [`Error::Unmergeable`]; [`Error::Io`].
    fn rest(&self, _: &Decoupled) -> Result<Option<Box<dyn ClientJournal + '_>>, Error> {
        Ok(None)
    }

    fn is_empty(&self) -> bool {
        self.len() == self.first()
    }

    /// The attributes that the decoupled directory gets at the end.
    fn root_change(&self) -> Change {
        let Inode { perm, uid, gid, atime, mtime, .. } = *self.root();
        Change {
            perm: Some(perm),
            uid: Some(uid),
            gid: Some(gid),
            atime: Some(atime),
            mtime: Some(mtime),
            ..Change::default()
        }
    }

    /// Checks that a directory is decoupled for this namespace, and the namespace unchanged since
    /// its merge began. `name`: of the namespace.
    ///
    /// # Errors
    /// [`Error::OtherNamespace`], [`Error::ChangedNamespace`].
    fn check_origin(&self, decoupled: &Decoupled, name: &Path) -> Result<(), Error> {
        if decoupled.id != self.origin().decoupled.id {
            return Err(Error::OtherNamespace(name.into()));
        }
        if decoupled.merged > self.first() && decoupled.digest != self.digest() {
            return Err(Error::ChangedNamespace(name.into()));
        }
        Ok(())
    }
}

/// Opens a client's journal: the directory of a namespace, or an exported file.
///
/// # Errors
/// As [`Namespace::open`] and [`JournalFile::open`].
pub fn open_client_journal(path: &Path) -> Result<Box<dyn ClientJournal>, Error> {
    if path.is_dir() { Ok(Box::new(Namespace::open(path)?)) } else { Ok(Box::new(JournalFile::open(path)?)) }
}

/// Consecutive records, with the files that their links name.
pub struct OutgoingBatch<F> {
    /// The number of the record after these.
    pub next: u64,
    /// Encoded for [`espalier_meta::MERGE`].
    pub value: Vec<u8>,
    /// They stay open until the server has named them.
    pub files: Vec<F>,
}

/// The records from `at` on that fit into a batch, at the end with the end of the merge. `upload`
/// writes a big file to a file without a name.
///
/// # Errors
/// Those of the journal and of `upload`.
pub fn next_batch<F, E: From<Error>>(
    journal: &dyn ClientJournal,
    at: u64,
    mut upload: impl FnMut(&BigFile) -> Result<(F, Ino), E>,
) -> Result<OutgoingBatch<F>, E> {
    let (mut records, mut files, mut bytes) = (Vec::new(), Vec::new(), 0);
    for number in at..journal.len() {
        if records.len() >= BATCH_RECORDS || files.len() >= BATCH_FILES {
            break;
        }
        let record = match journal.record(number)? {
            Merged::Record(record) => record,
            Merged::Big(file) => {
                let file = *file;
                let (opened, ino) = upload(&file)?;
                files.push(opened);
                MergeRecord::Link { ino, names: file.names, time: file.inode.ctime }
            }
        };
        let length = encode(&record).len();
        if bytes + length > BATCH_BYTES && !records.is_empty() {
            break;
        }
        bytes += length;
        records.push(record);
    }
    let (next, all) = (at + records.len() as u64, journal.len());
    let end =
        (next == all && !journal.is_sync()).then(|| MergeEnd { records: all, change: journal.root_change() });
    let value = encode(&MergeBatch {
        id: journal.origin().decoupled.id,
        digest: journal.digest(),
        base: journal.base(),
        after: at,
        records,
        shows: journal.is_sync(),
        end,
    });
    Ok(OutgoingBatch { next, value, files })
}
