//! `load`: creates a file system from a dump. Loaded data is made durable periodically, with a
//! record of the progress; the file system becomes valid at the end.

use std::io::Read;
use std::path::Path;

use espalier_meta::Super;
use espalier_proto::{Ino, ObjectId, TableWrite, Time};
use espalier_store::{FormatOptions, LocalOptions, Store, Superblock};
use serde::{Deserialize, Serialize};

use super::Dumped;
use super::frame::{Head, Item, Reader, StoreRole};
use crate::data::is_data_store;
use crate::error::Error;
use crate::location::{OpenedStore, StoreLocation};
use crate::volume::check_sizes;

/// Cache for table blocks, which only maintenance reads, in bytes.
const CACHE_BYTES: u64 = 8 << 20;
/// Maximum number of streams that are synced together.
const STREAMS: usize = 4096;
/// Key of the progress record, beside the record that makes the store valid.
const PROGRESS: &[u8] = b"load";

/// Options of a load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Overwrite an existing store.
    pub force: bool,
    /// Continue an interrupted load, if there is one.
    pub resume: bool,
    /// Bytes of the dump between two syncs; they are in memory until then, records two or three
    /// times.
    pub interval: u64,
    /// As [`MkfsOptions::data_pool`](crate::MkfsOptions::data_pool).
    pub data_pool: Option<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { force: false, resume: false, interval: 64 << 20, data_pool: None }
    }
}

/// The durable part of a load.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct LoadProgress {
    frames: u64,
    /// Checksum of the first frame.
    head: u64,
    /// Checksum of the last frame, which covers all frames before it.
    sum: u64,
}

/// Creates a file system from a dump; it cannot be mounted until the load is complete. `progress`
/// receives the number of bytes.
///
/// # Errors
/// [`Error::DamagedDump`], [`Error::ForeignDump`] and disk errors: the load can be resumed.
/// [`Error::OtherDump`], [`Error::Loaded`], [`Error::NoLoad`], [`Error::OtherDataPool`]: this dump
/// cannot be resumed there, and nothing was changed. [`Error::PartDump`].
pub fn load(
    dump: &mut dyn Read,
    location: impl Into<StoreLocation>,
    options: &LoadOptions,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    let dump = Dump::begin(dump)?;
    if dump.part().is_some() {
        return Err(Error::PartDump);
    }
    let location = location.into();
    let found = match options.resume {
        true => {
            if let Some(superblock) = location.find_superblock()? {
                location.check_data_pool(&superblock, options.data_pool.as_deref())?;
            }
            resume(&location, &dump)?
        }
        false => None,
    };
    let (store, done) = match found {
        Some(found) => found,
        None => {
            let data_pool = options.data_pool.clone();
            (make(&location, FormatOptions { data_pool, ..dump.format(options.force) })?, dump.first)
        }
    };
    dump.load_into(store, done, options.interval, &progress)
}

/// A dump whose head has been read.
pub(super) struct Dump<'a> {
    reader: Reader<'a>,
    head: Head,
    /// End of the head.
    begun: u64,
    first: LoadProgress,
    /// The item after the head, if it is complete.
    next: Result<Item, Error>,
}

impl<'a> Dump<'a> {
    pub fn begin(input: &'a mut dyn Read) -> Result<Self, Error> {
        let mut reader = Reader::begin(input)?;
        let Item::Head(head) = reader.next()? else { return Err(Error::ForeignDump) };
        let first = LoadProgress { frames: reader.frames(), head: reader.sum(), sum: reader.sum() };
        let begun = reader.offset();
        let next = reader.next();
        Ok(Self { reader, head, begun, first, next })
    }

    pub fn part(&self) -> Option<StoreRole> {
        if let Ok(Item::Part(part)) = self.next { Some(part) } else { None }
    }

    /// The format of the store to create.
    pub fn format(&self, force: bool) -> FormatOptions {
        let Head { label, strip_bytes, journal_bytes, hash_key } = self.head.clone();
        let hash_key = Some(hash_key);
        FormatOptions { label, strip_bytes, journal_bytes, force, hash_key, ..FormatOptions::default() }
    }

    /// The progress of a load that has not begun.
    pub fn nothing(&self) -> LoadProgress {
        self.first
    }

    /// Loads everything after `done`.
    pub fn load_into(
        self,
        store: Box<dyn Store>,
        done: LoadProgress,
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
            let now = LoadProgress { frames: reader.frames(), head: first.head, sum: reader.sum() };
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

/// Creates an empty store.
pub(super) fn make(location: &StoreLocation, format: FormatOptions) -> Result<Box<dyn Store>, Error> {
    check_sizes(format.strip_bytes, format.journal_bytes)?;
    location.format(&format)?;
    Ok(open(location)?.store)
}

/// Creates an empty store and records which dump is loaded into it.
pub(super) fn prepare(
    location: &StoreLocation,
    format: FormatOptions,
    nothing: LoadProgress,
) -> Result<(), Error> {
    Loader::of(make(location, format)?).save(nothing)
}

fn open(location: &StoreLocation) -> Result<OpenedStore, Error> {
    let options = LocalOptions { cache_bytes: CACHE_BYTES, ..LocalOptions::default() };
    location.open(options)
}

/// A store whose load was interrupted, and how far the load got.
pub(super) type ResumedLoad = (Box<dyn Store>, LoadProgress);

/// Opens a store with an interrupted load, and returns its progress. `None`: there is no store yet.
pub(super) fn resume(location: &StoreLocation, dump: &Dump<'_>) -> Result<Option<ResumedLoad>, Error> {
    let Dump { head, first, .. } = dump;
    if location.find_superblock()?.is_none() {
        return Ok(None);
    }
    let OpenedStore { superblock, store, .. } = open(location)?;
    if store.get(ObjectId::SUPER, b"")?.is_some() {
        return Err(Error::Loaded(location.name()));
    }
    let no_load = || Error::NoLoad(location.name());
    let progress = match store.get(ObjectId::SUPER, PROGRESS)? {
        Some(value) => espalier_meta::decode(&value).map_err(|_| no_load())?,
        // The load was interrupted before the first record of progress.
        None if store.records().next().is_none() && superblock.hash_key == head.hash_key => *first,
        None => return Err(no_load()),
    };
    if progress.head != first.head { Err(Error::OtherDump) } else { Ok(Some((store, progress))) }
}

/// As [`resume`], for a data server's store. `None`: it was started with another dump, or is
/// complete, which cannot be distinguished.
pub(super) fn resume_data(location: &StoreLocation, dump: &Dump<'_>) -> Result<Option<ResumedLoad>, Error> {
    let store = open(location)?.store;
    let progress = store.get(ObjectId::SUPER, PROGRESS)?;
    let progress = progress.and_then(|value| espalier_meta::decode::<LoadProgress>(&value).ok());
    Ok(progress.filter(|progress| progress.head == dump.first.head).map(|progress| (store, progress)))
}

/// Why a store without its first record is not a file system.
pub(crate) fn unfinished(store: &dyn Store, superblock: &Superblock, name: &Path) -> Result<Error, Error> {
    Ok(match store.get(ObjectId::SUPER, PROGRESS)? {
        Some(_) => Error::Loading(name.into()),
        None if is_data_store(superblock) => Error::Datafiles(name.into()),
        None => Error::Unfinished(name.into()),
    })
}

struct Loader {
    store: Box<dyn Store>,
    /// Complete streams that are not durable yet.
    unsynced: Vec<Ino>,
    /// The stream being written, with its final size and mtime.
    current: Option<(Ino, u64, Time)>,
    /// The record that makes the store valid.
    last: Option<Vec<u8>>,
    /// The store is one of several.
    is_part: bool,
}

impl Loader {
    fn of(store: Box<dyn Store>) -> Self {
        Self { store, unsynced: Vec::new(), current: None, last: None, is_part: false }
    }

    /// Stores an item. If it is `durable` already, records only the state that later items depend
    /// on.
    fn take(&mut self, item: Item, durable: bool) -> Result<(), Error> {
        match item {
            Item::Record { object, value, .. } if object == ObjectId::SUPER.to_bytes() => {
                self.last = Super::parse(&value).map(|record| with_new_journal(record, self.is_part));
            }
            Item::Record { object, key, value } if !durable => {
                // The reader admits no other objects.
                if let Some(object) = ObjectId::from_bytes(object) {
                    self.store.stage(vec![TableWrite { object, key, value: Some(value) }])?;
                }
            }
            Item::Stream { ino, size, mtime } => {
                if !durable {
                    self.finish_stream()?;
                    // Remove a leftover of the interruption, so that the name of the new stream is
                    // synced.
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

    /// Makes everything durable, with the progress.
    fn save(&mut self, progress: LoadProgress) -> Result<(), Error> {
        if let Some((ino, ..)) = self.current {
            self.store.stream_sync(ino)?;
        }
        self.publish(vec![super_write(PROGRESS, Some(espalier_meta::encode(&progress)))])?;
        while self.store.maintain()? {}
        Ok(())
    }

    /// Makes everything durable, and the store valid.
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

/// The superblock record for an empty journal. `is_part`: transactions with data servers have to be
/// finalised.
fn with_new_journal(record: Super, is_part: bool) -> Vec<u8> {
    let clean = Super { journal: 0, ..record };
    let clean = match is_part {
        true => clean,
        false => Super { provisional: Vec::new(), size_dirty: Vec::new(), ..clean },
    };
    clean.encode()
}
