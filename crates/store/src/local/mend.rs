//! Repairs a damaged store until it can be opened. Replaced parts move to a quarantine directory.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::salvage::{Salvage, salvage};
use super::streams::Streams;
use super::tables::Tables;
use super::{JOURNAL, STREAMS, StoreLock, TABLES, open_journal};
use crate::error::Context;
use crate::{Journal, JournalError, RealFile, StoreError, Superblock, SuperblockError, superblock};

pub(crate) const JOURNAL_NEW: &str = "journal.new";
pub(crate) const TABLES_NEW: &str = "tables.new";
const CACHE_BYTES: u64 = 8 << 20;

/// Parts of a store that were replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// The superblock or its copy was replaced by the other; the reason.
    pub superblock: Option<String>,
    /// The tables were damaged and rebuilt from their readable records: the reason and the result.
    pub tables: Option<(String, Salvage)>,
    /// The journal did not belong to this store and was replaced by an empty one; the reason.
    pub journal: Option<String>,
    /// The directory of streams was missing and was made.
    pub streams: bool,
}

/// Reads all tables, and replaces each part that prevents opening the store. A store without faults
/// is left unchanged. An interrupted repair can be repeated.
///
/// # Errors
/// [`StoreError::Superblock`], [`StoreError::InUse`], and those of the disk.
pub fn mend(dir: &Path, quarantine: &Path) -> Result<Mended, StoreError> {
    match superblock::read(dir) {
        Ok(_) | Err(SuperblockError::Restorable { .. }) => {}
        // Before taking the lock, which would make a file in a directory that is not a store.
        Err(error) => return Err(error.into()),
    }
    let _lock = StoreLock::take(dir)?;
    let mut mended = Mended { superblock: mend_superblock(dir, quarantine)?, ..Mended::default() };
    let superblock = superblock::read(dir)?;
    superblock.check_present(dir)?;
    let (tables, tables_new) = (dir.join(TABLES), dir.join(TABLES_NEW));
    if tables_new.exists() {
        // The new tables are complete if the old ones were already moved away.
        if tables.exists() {
            std::fs::remove_dir_all(&tables_new).context("remove", &tables_new)?;
        } else {
            std::fs::rename(&tables_new, &tables).context("rename", &tables_new)?;
        }
    }
    match Tables::open(tables.clone(), true, CACHE_BYTES).and_then(|tables| tables.verify()) {
        Err(StoreError::Corrupt { damage }) => {
            let salvaged = salvage(&tables, &tables_new)?;
            set_aside(dir, TABLES, quarantine)?;
            replace(dir, TABLES_NEW, TABLES)?;
            mended.tables = Some((damage, salvaged));
        }
        outcome => outcome?,
    }
    if !dir.join(STREAMS).is_dir() {
        Streams::create(&dir.join(STREAMS))?;
        mended.streams = true;
    }
    match open_journal(&dir.join(JOURNAL), true, superblock.tag()) {
        Ok(_) => {}
        Err(
            cause @ (StoreError::Corrupt { .. }
            | StoreError::Journal(
                JournalError::NoJournal | JournalError::Foreign | JournalError::Truncated { .. },
            )),
        ) => {
            new_journal(dir, &superblock)?;
            replace_journal(dir, quarantine)?;
            mended.journal = Some(cause.to_string());
        }
        Err(cause) => return Err(cause),
    }
    Ok(mended)
}

/// Restores the superblock from its copy, or the copy from the superblock. If both are intact but
/// differ, the journal's tag decides which one belongs to this store.
fn mend_superblock(dir: &Path, quarantine: &Path) -> Result<Option<String>, StoreError> {
    let journal = File::open(dir.join(JOURNAL)).map(RealFile).ok();
    let tag = journal.and_then(|file| Journal::open_read_only(file).ok()).map(|journal| journal.tag());
    let fits = |superblock: &Superblock| tag.is_none_or(|tag| tag == superblock.tag());
    let why = match (superblock::read(dir), superblock::read_copy(dir)) {
        (Ok(main), Ok(copy)) if main == copy => return Ok(None),
        (Ok(main), Ok(copy)) if !fits(&main) && fits(&copy) => "it belonged to another store".into(),
        (Ok(main), _) => {
            let there = dir.join(superblock::COPY).exists();
            superblock::write_copy(dir, &main)?;
            let message = "the copy of the superblock was damaged or outdated, and was rewritten";
            // Stores made by versions without a copy are not damaged.
            return Ok(there.then(|| message.into()));
        }
        (Err(SuperblockError::Restorable { why, .. }), Ok(copy)) if fits(&copy) => why,
        (Err(SuperblockError::Restorable { path, why }), _) => {
            let why = format!("{why}, and its copy is that of another store");
            return Err(SuperblockError::Damaged { path, why }.into());
        }
        (Err(error), _) => return Err(error.into()),
    };
    let copy = superblock::read_copy(dir)?;
    if dir.join(superblock::FILE).exists() {
        set_aside(dir, superblock::FILE, quarantine)?;
    }
    superblock::write(dir, &copy)?;
    Ok(Some(format!("the superblock was damaged ({why}), and was restored from its copy")))
}

/// Makes an empty journal beside the store's journal. The caller has the store open.
///
/// # Errors
/// Those of the disk.
pub fn new_journal(dir: &Path, superblock: &Superblock) -> Result<Journal<RealFile>, StoreError> {
    let path = dir.join(JOURNAL_NEW);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    Ok(Journal::create(RealFile(file.context("create", &path)?), superblock.journal_bytes, superblock.tag())?)
}

/// Replaces the store's journal by the new one and moves the old one to the quarantine.
///
/// # Errors
/// Those of the disk.
pub fn replace_journal(dir: &Path, quarantine: &Path) -> Result<(), StoreError> {
    set_aside(dir, JOURNAL, quarantine)?;
    replace(dir, JOURNAL_NEW, JOURNAL)
}

/// Moves a part of the store to the quarantine if it exists.
fn set_aside(dir: &Path, part: &str, quarantine: &Path) -> Result<(), StoreError> {
    std::fs::create_dir_all(quarantine).context("create", quarantine)?;
    let (from, to) = (dir.join(part), quarantine.join(part));
    match std::fs::rename(&from, &to) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(StoreError::io("move", &from, cause)),
        _ => sync_all([quarantine.into(), dir.join("quarantine"), dir.into()]),
    }
}

fn replace(dir: &Path, new: &str, part: &str) -> Result<(), StoreError> {
    let (from, to) = (dir.join(new), dir.join(part));
    std::fs::rename(&from, &to).context("rename", &from)?;
    sync_all([dir.into()])
}

fn sync_all<const N: usize>(dirs: [PathBuf; N]) -> Result<(), StoreError> {
    for dir in dirs {
        match File::open(&dir).and_then(|dir| dir.sync_all()) {
            // The quarantine may be outside the store's directory.
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                return Err(StoreError::io("sync", &dir, cause));
            }
            _ => {}
        }
    }
    Ok(())
}
