//! `dump`: writes the contents of a store, or the missing part of an interrupted dump.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use espalier_meta::Super;
use espalier_proto::{Ino, ObjectId, SeekWhat};
use espalier_store::{Store, Superblock};

use super::Dumped;
use super::frame::{Head, Item, Reader, StoreRole, TITLE, read_failed, write_failed, write_item};
use crate::disk::Disk;
use crate::error::Error;
use crate::framed::FrameWriter;
use crate::fsck::checkpoint;
use crate::location::StoreLocation;
use crate::volume::{OpenOptions, Volume};

/// Maximum bytes of a stream in one frame.
const CHUNK: usize = 1 << 20;

/// The store to dump; all its contents are in its tables and streams.
pub(super) struct DumpSource<'a> {
    pub superblock: &'a Superblock,
    pub part: Option<StoreRole>,
    pub store: &'a dyn Store,
}

/// Writes a file system that is not mounted. `progress` receives the number of bytes.
///
/// # Errors
/// Errors of opening the store; [`Error::Io`] if the dump cannot be written.
pub fn dump(
    location: impl Into<StoreLocation>,
    out: &mut dyn Write,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    let (superblock, disk) = open(&location.into())?;
    begin(&DumpSource { superblock: &superblock, part: None, store: disk.store.as_ref() }, out, &progress)
}

/// Completes an interrupted dump: compares the existing part with the store, truncates an
/// incomplete frame, and writes the rest. `file` must be open for reading and writing. `progress`
/// receives the number of bytes.
///
/// # Errors
/// As [`dump`]; [`Error::ForeignDump`], [`Error::OtherDump`] and [`Error::Changed`] leave the file
/// unchanged.
pub fn resume_dump(
    location: impl Into<StoreLocation>,
    file: &File,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    let (superblock, disk) = open(&location.into())?;
    resume(&DumpSource { superblock: &superblock, part: None, store: disk.store.as_ref() }, file, &progress)
}

fn open(location: &StoreLocation) -> Result<(Superblock, Arc<Disk>), Error> {
    let volume = Volume::open(location, OpenOptions::read_once())?;
    volume.require_whole(&location.name())?;
    Ok((volume.superblock.clone(), checkpoint(volume)?))
}

pub(super) fn begin(
    source: &DumpSource<'_>,
    out: &mut dyn Write,
    progress: &dyn Fn(u64),
) -> Result<Dumped, Error> {
    let mut writer = FrameWriter::new(out);
    writer.write(TITLE).map_err(write_failed)?;
    Sink { writer, partial: None, resumed_at: 0, progress, is_part: source.part.is_some() }.fill(source)
}

pub(super) fn resume(source: &DumpSource<'_>, file: &File, progress: &dyn Fn(u64)) -> Result<Dumped, Error> {
    let mut start = Vec::new();
    let mut input = file;
    input.rewind().map_err(read_failed)?;
    input.take(TITLE.len() as u64).read_to_end(&mut start).map_err(read_failed)?;
    input.rewind().map_err(read_failed)?;
    let mut out = BufWriter::new(file);
    if start.len() < TITLE.len() && TITLE.starts_with(&start) {
        return begin(source, &mut out, progress);
    }
    if start != TITLE {
        return Err(Error::ForeignDump);
    }
    let mut input = BufReader::new(file);
    let reader = Reader::begin(&mut input)?;
    let writer = FrameWriter { offset: reader.offset(), ..FrameWriter::new(&mut out) };
    let partial = Some(Partial { file, reader, ahead: None });
    Sink { writer, partial, resumed_at: 0, progress, is_part: source.part.is_some() }.fill(source)
}

/// The destination of items.
struct Sink<'a> {
    writer: FrameWriter<'a>,
    /// Set while an existing part of the dump is compared.
    partial: Option<Partial<'a>>,
    resumed_at: u64,
    progress: &'a dyn Fn(u64),
    /// The store is one of several.
    is_part: bool,
}

/// The existing part of an interrupted dump.
struct Partial<'a> {
    file: &'a File,
    reader: Reader<'a>,
    ahead: Option<Item>,
}

impl Partial<'_> {
    /// `None`: the next frame is incomplete.
    fn peek(&mut self) -> Result<Option<&Item>, Error> {
        if self.ahead.is_none() {
            self.ahead = match self.reader.next() {
                Ok(item) => Some(item),
                Err(Error::DamagedDump { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(self.ahead.as_ref())
    }
}

/// True if both are the superblock record of a rank that was only started and stopped in between,
/// which updates the record and skips inode numbers.
fn is_same_tree(one: &Item, other: &Item) -> bool {
    let tree = |item: &Item| match item {
        Item::Record { object, value, .. } if *object == ObjectId::SUPER.to_bytes() => {
            Some(Super { next_ino: 0, sequence: 0, journal: 0, ..Super::parse(value)? }.encode())
        }
        _ => None,
    };
    tree(one).is_some_and(|one| tree(other) == Some(one))
}

impl Sink<'_> {
    fn fill(mut self, source: &DumpSource<'_>) -> Result<Dumped, Error> {
        let DumpSource { superblock, part, store } = source;
        self.put(Item::Head(Head {
            label: superblock.label.clone(),
            strip_bytes: superblock.strip_bytes,
            journal_bytes: superblock.journal_bytes,
            hash_key: superblock.hash_key,
        }))?;
        if let Some(part) = part {
            self.put(Item::Part(*part))?;
        }
        let (mut records, mut streams) = (0, 0);
        for record in store.records() {
            let (object, key, value) = record?;
            if object == ObjectId::SUPER && !key.is_empty() {
                // The journal position of the tables concerns only this store.
                continue;
            }
            self.put(Item::Record { object: object.to_bytes(), key, value })?;
            records += 1;
        }
        for ino in store.streams()? {
            self.stream(*store, ino)?;
            streams += 1;
        }
        self.put(Item::End { records, streams })?;
        self.writer.out.flush().map_err(write_failed)?;
        let resumed_at = if self.partial.is_some() { self.writer.offset } else { self.resumed_at };
        Ok(Dumped { records, streams, resumed_at })
    }

    fn stream(&mut self, store: &dyn Store, ino: Ino) -> Result<(), Error> {
        let stat = store.stream_stat(ino)?;
        self.put(Item::Stream { ino, size: stat.size, mtime: stat.mtime })?;
        let Some(mut offset) = self.extents()? else { return Ok(()) };
        while let Some(data) = store.stream_seek(ino, offset, SeekWhat::Data)? {
            let hole = store.stream_seek(ino, data, SeekWhat::Hole)?.unwrap_or(stat.size).min(stat.size);
            offset = data;
            while offset < hole {
                let mut bytes = vec![0; CHUNK.min((hole - offset) as usize)];
                let read = store.stream_read(ino, offset, &mut bytes)?;
                if read == 0 {
                    return Ok(());
                }
                bytes.truncate(read);
                self.put(Item::Extent { offset, bytes })?;
                offset += read as u64;
            }
        }
        Ok(())
    }

    fn put(&mut self, item: Item) -> Result<(), Error> {
        match &mut self.partial {
            None => write_item(&mut self.writer, &item)?,
            Some(partial) => match partial.peek()? {
                Some(there) if *there == item || self.is_part && is_same_tree(there, &item) => self.retain(),
                Some(Item::Head(_)) => return Err(Error::OtherDump),
                Some(_) => return Err(Error::Changed),
                None => {
                    self.cut()?;
                    write_item(&mut self.writer, &item)?;
                }
            },
        }
        (self.progress)(self.writer.offset);
        Ok(())
    }

    /// Skips the existing extents of a stream; returns the end of the last one, or `None` at
    /// another item. They match the store, since the stream's size and mtime are unchanged.
    ///
    /// The extents are not compared, because the page cache determines if allocated space without
    /// data counts as a hole.
    fn extents(&mut self) -> Result<Option<u64>, Error> {
        let mut end = 0;
        while let Some(partial) = &mut self.partial {
            match partial.peek()? {
                Some(Item::Extent { offset, bytes }) => end = offset + bytes.len() as u64,
                Some(_) => return Ok(None),
                None => break,
            }
            self.retain();
            (self.progress)(self.writer.offset);
        }
        Ok(Some(end))
    }

    /// Keeps the frame.
    fn retain(&mut self) {
        if let Some(partial) = &mut self.partial {
            partial.ahead = None;
            (self.writer.sum, self.writer.offset) = (partial.reader.sum(), partial.reader.offset());
        }
    }

    /// Truncates the file here; frames are written from here on.
    fn cut(&mut self) -> Result<(), Error> {
        if let Some(Partial { mut file, .. }) = self.partial.take() {
            self.resumed_at = self.writer.offset;
            file.set_len(self.writer.offset).map_err(write_failed)?;
            file.seek(SeekFrom::Start(self.writer.offset)).map_err(write_failed)?;
        }
        Ok(())
    }
}
