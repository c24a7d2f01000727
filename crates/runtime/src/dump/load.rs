//! `load`: makes a file system from a dump. What has been loaded is made durable now and then, with a record that says how much
//! of which dump that is; there is no file system before all of it is there.

use std::io::Read;
use std::path::Path;

use espalier_meta::Super;
use espalier_proto::{Ino, ObjectId, TableWrite, Time};
use espalier_store::{FormatOptions, LocalOptions, LocalStore, Store, SuperblockError, superblock};
use serde::{Deserialize, Serialize};

use super::Dumped;
use super::frame::{Head, Item, Part, Reader};
use crate::data::is_data_store;
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
pub(super) struct Progress {
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
/// [`Error::NoLoad`]: it cannot be resumed with this dump, there, and nothing was changed; [`Error::PartDump`].
pub fn load(
    dump: &mut dyn Read,
    dir: &Path,
    options: &LoadOptions,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    let dump = Dump::begin(dump)?;
    if dump.part().is_some() {
        return Err(Error::PartDump);
    }
    let found = if options.resume { resume(dir, &dump)? } else { None };
    let (store, done) = match found {
        Some(found) => found,
        None => (make(dir, dump.format(options.force))?, dump.first),
    };
    dump.load_into(store, done, options.interval, &progress)
}

/// A dump, of which the beginning has been read.
pub(super) struct Dump<'a> {
    reader: Reader<'a>,
    head: Head,
    /// Where that ends.
    begun: u64,
    first: Progress,
    /// What follows on the head, if that is whole.
    next: Result<Item, Error>,
}

impl<'a> Dump<'a> {
    pub fn begin(input: &'a mut dyn Read) -> Result<Self, Error> {
        let mut reader = Reader::begin(input)?;
        let Item::Head(head) = reader.next()? else { return Err(Error::ForeignDump) };
        let first = Progress { frames: reader.frames(), head: reader.sum(), sum: reader.sum() };
        let begun = reader.offset();
        let next = reader.next();
        Ok(Self { reader, head, begun, first, next })
    }

    pub fn part(&self) -> Option<Part> {
        if let Ok(Item::Part(part)) = self.next { Some(part) } else { None }
    }

    /// How an empty store is made to load it into.
    pub fn format(&self, force: bool) -> FormatOptions {
        let Head { label, strip_bytes, journal_bytes, hash_key } = self.head.clone();
        let hash_key = Some(hash_key);
        FormatOptions { label, strip_bytes, journal_bytes, force, hash_key, ..FormatOptions::default() }
    }

    /// Nothing of it is loaded yet.
    pub fn nothing(&self) -> Progress {
        self.first
    }

    /// Loads what is not `done`.
    pub fn load_into(
        self,
        store: LocalStore,
        done: Progress,
        interval: u64,
        progress: &dyn Fn(u64),
    ) -> Result<Dumped, Error> {
        let is_part = self.part().is_some();
        let mut loader = Loader { is_part, ..Loader::of(store) };
        loader.save(done)?;
        let Self { mut reader, begun, first, next, .. } = self;
        let mut item = next?;
        let (mut saved, mut resumed_at) = (begun, 0);
        loop {
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
                if reader.offset() - saved >= interval || loader.unsynced.len() >= STREAMS {
                    loader.save(now)?;
                    saved = reader.offset();
                }
            }
            progress(reader.offset());
            item = reader.next()?;
        }
    }
}

/// Makes an empty store to load into.
pub(super) fn make(dir: &Path, format: FormatOptions) -> Result<LocalStore, Error> {
    check_sizes(format.strip_bytes, format.journal_bytes)?;
    superblock::format(dir, &format)?;
    open(dir)
}

/// Makes an empty store of which it is known that a dump is to be loaded into it.
pub(super) fn prepare(dir: &Path, format: FormatOptions, nothing: Progress) -> Result<(), Error> {
    Loader::of(make(dir, format)?).save(nothing)
}

fn open(dir: &Path) -> Result<LocalStore, Error> {
    let options = LocalOptions { cache_bytes: CACHE_BYTES, ..LocalOptions::default() };
    Ok(LocalStore::open_with(dir, options)?.0)
}

/// Opens a store that was being loaded, and says how far. `None`: there is no store yet.
pub(super) fn resume(dir: &Path, dump: &Dump<'_>) -> Result<Option<(LocalStore, Progress)>, Error> {
    let Dump { head, first, .. } = dump;
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
        None if store.records().next().is_none() && superblock.hash_key == head.hash_key => *first,
        None => return Err(no_load()),
    };
    if progress.head != first.head { Err(Error::OtherDump) } else { Ok(Some((store, progress))) }
}

/// As [`resume`], of a data server's store: `None` if it was not begun with this dump, or is done, which nothing tells apart.
pub(super) fn resume_data(dir: &Path, dump: &Dump<'_>) -> Result<Option<(LocalStore, Progress)>, Error> {
    let store = open(dir)?;
    let progress = store.get(ObjectId::SUPER, PROGRESS)?;
    let progress = progress.and_then(|value| espalier_meta::decode::<Progress>(&value).ok());
    Ok(progress.filter(|progress| progress.head == dump.first.head).map(|progress| (store, progress)))
}

/// Why a store without its first record is no file system.
pub(crate) fn unfinished(store: &LocalStore, dir: &Path) -> Result<Error, Error> {
    Ok(match store.get(ObjectId::SUPER, PROGRESS)? {
        Some(_) => Error::Loading(dir.into()),
        None if is_data_store(store.superblock()) => Error::Datafiles(dir.into()),
        None => Error::Unfinished(dir.into()),
    })
}

struct Loader {
    store: LocalStore,
    /// Complete, but not yet durable.
    unsynced: Vec<Ino>,
    /// The stream that is being written, the size and the time that it will have.
    current: Option<(Ino, u64, Time)>,
    /// The record that makes it a file system.
    last: Option<Vec<u8>>,
    /// It is one of several.
    is_part: bool,
}

impl Loader {
    fn of(store: LocalStore) -> Self {
        Self { store, unsynced: Vec::new(), current: None, last: None, is_part: false }
    }

    /// Stores an item; of one that is `durable` already, it only notes what that says about those that follow.
    fn take(&mut self, item: Item, durable: bool) -> Result<(), Error> {
        match item {
            Item::Record { object, value, .. } if object == ObjectId::SUPER.to_bytes() => {
                self.last = Super::parse(&value).map(|record| with_new_journal(record, self.is_part));
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
            Item::Head(_) | Item::Part(_) | Item::Record { .. } | Item::Extent { .. } | Item::End { .. } => {}
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

/// The record about the whole file system, for a journal that is empty. `is_part`: what is not settled with data servers is to be.
fn with_new_journal(record: Super, is_part: bool) -> Vec<u8> {
    let settled = Super { journal: 0, ..record };
    let settled = match is_part {
        true => settled,
        false => Super { unsettled: Vec::new(), watched: Vec::new(), ..settled },
    };
    settled.encode()
}
