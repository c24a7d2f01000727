//! `load`: makes a file system from a dump. What has been loaded is made durable now and then, with a record that says how much
//! of which dump that is; there is no file system before all of it is there.

use std::io::Read;
use std::path::Path;

use espalier_meta::Super;
use espalier_proto::{Ino, ObjectId, TableWrite, Time};
use espalier_store::{FormatOptions, LocalOptions, LocalStore, Store, SuperblockError, superblock};
use serde::{Deserialize, Serialize};

use super::Dumped;
use super::frame::{Head, Item, Reader};
use crate::error::Error;
use crate::volume::check_sizes;

/// For blocks of the tables, which only their upkeep reads.
const CACHE_BYTES: u64 = 8 << 20;
/// Streams that are synced together, at most.
const STREAMS: usize = 4096;
/// Where the record of progress is kept, beside the one that makes the store a file system.
const PROGRESS: &[u8] = b"load";

/// How a dump is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Even where there is a store already, which is lost.
    pub force: bool,
    /// Go on with a load that was interrupted, if there is one.
    pub resume: bool,
    /// Bytes of the dump after which progress is made durable; until then they are in memory, records twice or three times.
    pub interval: u64,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { force: false, resume: false, interval: 64 << 20 }
    }
}

/// How much of which dump is durable.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Progress {
    frames: u64,
    /// The checksum of the first frame.
    head: u64,
    /// The checksum of the last frame, which stands for all before it.
    sum: u64,
}

/// Makes a file system from a dump. Until all of it is there, it cannot be mounted. `progress` is told the bytes so far.
///
/// # Errors
/// [`Error::DamagedDump`], [`Error::ForeignDump`], those of the disk: it can be resumed. [`Error::OtherDump`], [`Error::Loaded`],
/// [`Error::NoLoad`]: it cannot be resumed with this dump, there, and nothing was changed.
pub fn load(
    dump: &mut dyn Read,
    dir: &Path,
    options: &LoadOptions,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    let mut reader = Reader::begin(dump)?;
    let Item::Head(head) = reader.next()? else { return Err(Error::ForeignDump) };
    let first = Progress { frames: reader.frames(), head: reader.sum(), sum: reader.sum() };
    let found = if options.resume { resume(dir, &head, first)? } else { None };
    let (store, done) = match found {
        Some(found) => found,
        None => (make(dir, head, options.force)?, first),
    };
    let mut loader = Loader { store, unsynced: Vec::new(), current: None, last: None };
    loader.save(done)?;
    let (mut saved, mut resumed_at) = (reader.offset(), 0);
    loop {
        let item = reader.next()?;
        let now = Progress { frames: reader.frames(), head: first.head, sum: reader.sum() };
        if now.frames <= done.frames {
            if (now.frames == done.frames && now.sum != done.sum) || matches!(item, Item::End { .. }) {
                return Err(Error::OtherDump);
            }
            loader.take(item, true)?;
            (saved, resumed_at) = (reader.offset(), reader.offset());
        } else if let Item::End { records, streams } = item {
            loader.finish()?;
            return Ok(Dumped { records, streams, resumed_at });
        } else {
            loader.take(item, false)?;
            if reader.offset() - saved >= options.interval || loader.unsynced.len() >= STREAMS {
                loader.save(now)?;
                saved = reader.offset();
            }
        }
        progress(reader.offset());
    }
}

/// Makes an empty store to load into.
fn make(dir: &Path, head: Head, force: bool) -> Result<LocalStore, Error> {
    let Head { label, strip_bytes, journal_bytes, hash_key } = head;
    check_sizes(strip_bytes, journal_bytes)?;
    let hash_key = Some(hash_key);
    let format =
        FormatOptions { label, strip_bytes, journal_bytes, force, hash_key, ..FormatOptions::default() };
    superblock::format(dir, &format)?;
    open(dir)
}

fn open(dir: &Path) -> Result<LocalStore, Error> {
    let options = LocalOptions { cache_bytes: CACHE_BYTES, ..LocalOptions::default() };
    Ok(LocalStore::open_with(dir, options)?.0)
}

/// Opens a store that was being loaded, and says how far. `None`: there is no store yet.
fn resume(dir: &Path, head: &Head, first: Progress) -> Result<Option<(LocalStore, Progress)>, Error> {
    let superblock = match superblock::read(dir) {
        Ok(superblock) => superblock,
        Err(SuperblockError::NoDirectory(_) | SuperblockError::NoStore(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let store = open(dir)?;
    if store.get(ObjectId::SUPER, b"")?.is_some() {
        return Err(Error::Loaded(dir.into()));
    }
    let no_load = || Error::NoLoad(dir.into());
    let progress = match store.get(ObjectId::SUPER, PROGRESS)? {
        Some(value) => espalier_meta::decode(&value).map_err(|_| no_load())?,
        // It was interrupted before anything was saved.
        None if store.records().next().is_none() && superblock.hash_key == head.hash_key => first,
        None => return Err(no_load()),
    };
    if progress.head != first.head { Err(Error::OtherDump) } else { Ok(Some((store, progress))) }
}

/// Why a store without its first record is no file system.
pub(crate) fn unfinished(store: &LocalStore, dir: &Path) -> Result<Error, Error> {
    let loading = store.get(ObjectId::SUPER, PROGRESS)?.is_some();
    Ok(if loading { Error::Loading(dir.into()) } else { Error::Unfinished(dir.into()) })
}

struct Loader {
    store: LocalStore,
    /// Complete, but not yet durable.
    unsynced: Vec<Ino>,
    /// The stream that is being written, the size and the time that it will have.
    current: Option<(Ino, u64, Time)>,
    /// The record that makes it a file system.
    last: Option<Vec<u8>>,
}

impl Loader {
    /// Stores an item; of one that is `durable` already, it only notes what that says about those that follow.
    fn take(&mut self, item: Item, durable: bool) -> Result<(), Error> {
        match item {
            Item::Record { object, value, .. } if object == ObjectId::SUPER.to_bytes() => {
                self.last = Super::parse(&value).map(with_new_journal);
            }
            Item::Record { object, key, value } if !durable => {
                // The reader lets no other through.
                if let Some(object) = ObjectId::from_bytes(object) {
                    self.store.stage(vec![TableWrite { object, key, value: Some(value) }])?;
                }
            }
            Item::Stream { ino, size, mtime } => {
                if !durable {
                    self.finish_stream()?;
                    // What is left from before an interruption goes, so that it is the new one whose name is synced.
                    self.store.stream_remove(ino)?;
                    self.store.stream_truncate(ino, 0)?;
                }
                self.current = Some((ino, size, mtime));
            }
            Item::Extent { offset, bytes } if !durable => {
                if let Some((ino, ..)) = self.current {
                    self.store.stream_write(ino, offset, &bytes)?;
                }
            }
            Item::Head(_) | Item::Record { .. } | Item::Extent { .. } | Item::End { .. } => {}
        }
        Ok(())
    }

    fn finish_stream(&mut self) -> Result<(), Error> {
        if let Some((ino, size, mtime)) = self.current.take() {
            self.store.stream_truncate(ino, size)?;
            self.store.stream_set_mtime(ino, mtime)?;
            self.unsynced.push(ino);
        }
        Ok(())
    }

    /// Makes all durable, and that it is.
    fn save(&mut self, progress: Progress) -> Result<(), Error> {
        if let Some((ino, ..)) = self.current {
            self.store.stream_sync(ino)?;
        }
        self.publish(vec![super_write(PROGRESS, Some(espalier_meta::encode(&progress)))])?;
        while self.store.maintain()? {}
        Ok(())
    }

    /// Makes all durable, and a file system of it.
    fn finish(&mut self) -> Result<(), Error> {
        self.finish_stream()?;
        let last = self.last.take();
        self.publish(vec![super_write(PROGRESS, None), super_write(b"", last)])
    }

    fn publish(&mut self, last: Vec<TableWrite>) -> Result<(), Error> {
        for ino in self.unsynced.drain(..) {
            self.store.stream_sync(ino)?;
        }
        self.store.stage(last)?;
        Ok(self.store.publish()?)
    }
}

fn super_write(key: &[u8], value: Option<Vec<u8>>) -> TableWrite {
    TableWrite { object: ObjectId::SUPER, key: key.to_vec(), value }
}

/// The record about the whole file system, for a journal that is empty.
fn with_new_journal(record: Super) -> Vec<u8> {
    Super { journal: 0, unsettled: Vec::new(), watched: Vec::new(), ..record }.encode()
}
