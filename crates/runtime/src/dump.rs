//! Dumps: a whole file system as one stream, whatever store it comes from or goes to.
//!
//! A dump is a line of text and then frames: length (4 bytes), checksum (8 bytes), and an item. Items are the records of
//! the tables, then each stream with its extents, then the numbers of both.

use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use espalier_meta::Super;
use espalier_proto::{Ino, ObjectId, ObjectKind, SeekWhat, TableWrite, Time};
use espalier_store::{FormatOptions, LocalStore, Store, superblock};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::fsck::checkpoint;
use crate::volume::{OpenOptions, Volume};

const TITLE: &[u8] = b"Espalier dump, format 2\n";
/// Of a stream's extent in one frame.
const CHUNK: usize = 1 << 20;
/// Longer frames are not written, so they are damage.
const MAX_FRAME: usize = 4 << 20;
/// Records staged at a time.
const BATCH: usize = 1024;

#[derive(Debug, Serialize, Deserialize)]
enum Item {
    Head {
        label: String,
        strip_bytes: u32,
        journal_bytes: u64,
        hash_key: [u8; 16],
    },
    Record {
        object: [u8; 13],
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Stream {
        ino: Ino,
        size: u64,
        mtime: Time,
    },
    /// Of the stream before it.
    Extent {
        offset: u64,
        bytes: Vec<u8>,
    },
    End {
        records: u64,
        streams: u64,
    },
}

/// What was dumped or loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    pub records: u64,
    pub streams: u64,
}

/// Writes all of a file system that is not mounted. `progress` is told the number of records and extents so far.
pub fn dump(dir: &Path, out: &mut dyn Write, progress: impl Fn(u64)) -> Result<Dumped, Error> {
    let volume = Volume::open(dir, OpenOptions::default())?;
    let superblock = volume.superblock.clone();
    let disk = checkpoint(volume)?;
    let mut out = Frames { out, count: 0, progress: &progress };
    out.out.write_all(TITLE).map_err(write_failed)?;
    out.put(&Item::Head {
        label: superblock.label.clone(),
        strip_bytes: superblock.strip_bytes,
        journal_bytes: superblock.journal_bytes,
        hash_key: superblock.hash_key,
    })?;
    let mut dumped = Dumped::default();
    for record in disk.store.records() {
        let (object, key, value) = record?;
        out.put(&Item::Record { object: object.to_bytes(), key, value })?;
        dumped.records += 1;
    }
    for ino in disk.store.streams()? {
        let stat = disk.store.stream_stat(ino)?;
        out.put(&Item::Stream { ino, size: stat.size, mtime: stat.mtime })?;
        let mut offset = 0;
        while let Some(data) = disk.store.stream_seek(ino, offset, SeekWhat::Data)? {
            let hole = disk.store.stream_seek(ino, data, SeekWhat::Hole)?.unwrap_or(stat.size);
            offset = data;
            while offset < hole {
                let mut bytes = vec![0; CHUNK.min((hole - offset) as usize)];
                let read = disk.store.stream_read(ino, offset, &mut bytes)?;
                if read == 0 {
                    break;
                }
                bytes.truncate(read);
                out.put(&Item::Extent { offset, bytes })?;
                offset += read as u64;
            }
            if offset < hole {
                break;
            }
        }
        dumped.streams += 1;
    }
    out.put(&Item::End { records: dumped.records, streams: dumped.streams })?;
    out.out.flush().map_err(write_failed)?;
    Ok(dumped)
}

/// Makes a file system from a dump. Until all of it is there, it cannot be mounted.
pub fn load(dump: &mut dyn Read, dir: &Path, force: bool, progress: impl Fn(u64)) -> Result<Dumped, Error> {
    let mut title = vec![0; TITLE.len()];
    dump.read_exact(&mut title).map_err(|_| Error::ForeignDump)?;
    if title != TITLE {
        return Err(Error::ForeignDump);
    }
    let mut seen = Dumped::default();
    let Some(Item::Head { label, strip_bytes, journal_bytes, hash_key }) = next(dump)? else {
        return Err(Error::DamagedDump(0));
    };
    let hash_key = Some(hash_key);
    superblock::format(dir, &FormatOptions { label, strip_bytes, journal_bytes, force, hash_key })?;
    let (store, _) = LocalStore::open(dir, false)?;
    let mut batch = Vec::with_capacity(BATCH);
    let mut last = None;
    let mut current: Option<(Ino, u64, Time)> = None;
    loop {
        let so_far = seen.records + seen.streams;
        let damaged = || Error::DamagedDump(so_far);
        match next(dump)?.ok_or_else(damaged)? {
            Item::Head { .. } => return Err(damaged()),
            Item::Record { object, key, value } => {
                let object = ObjectId::from_bytes(object).ok_or_else(damaged)?;
                seen.records += 1;
                if object.kind == ObjectKind::Super {
                    last = Some(TableWrite {
                        object,
                        key,
                        value: Some(with_new_journal(&value).ok_or_else(damaged)?),
                    });
                } else {
                    batch.push(TableWrite { object, key, value: Some(value) });
                }
                if batch.len() == BATCH {
                    store.stage(std::mem::take(&mut batch))?;
                }
            }
            Item::Stream { ino, size, mtime } => {
                finish_stream(&store, current.replace((ino, size, mtime)))?;
                store.stream_create(ino)?;
                seen.streams += 1;
            }
            Item::Extent { offset, bytes } => {
                let (ino, ..) = current.ok_or_else(damaged)?;
                store.stream_write(ino, offset, &bytes)?;
            }
            Item::End { records, streams } => {
                if seen != (Dumped { records, streams }) {
                    return Err(damaged());
                }
                finish_stream(&store, current)?;
                // This one makes it a file system.
                batch.push(last.ok_or_else(damaged)?);
                store.stage(batch)?;
                store.publish()?;
                return Ok(seen);
            }
        }
        progress(seen.records + seen.streams);
    }
}

/// The record about the whole file system, for a journal that is empty.
fn with_new_journal(value: &[u8]) -> Option<Vec<u8>> {
    let mut record: Super = espalier_meta::decode(value).ok()?;
    record.journal = 0;
    record.unsettled.clear();
    record.watched.clear();
    Some(espalier_meta::encode(&record))
}

fn finish_stream(store: &LocalStore, stream: Option<(Ino, u64, Time)>) -> Result<(), Error> {
    if let Some((ino, size, mtime)) = stream {
        store.stream_truncate(ino, size)?;
        store.stream_set_mtime(ino, mtime)?;
        store.stream_sync(ino)?;
        store.stream_settle(ino)?;
    }
    Ok(())
}

struct Frames<'a> {
    out: &'a mut dyn Write,
    count: u64,
    progress: &'a dyn Fn(u64),
}

impl Frames<'_> {
    fn put(&mut self, item: &Item) -> Result<(), Error> {
        let body = espalier_meta::encode(item);
        let mut head = (body.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(&xxh3_64(&body).to_le_bytes());
        self.out.write_all(&head).and_then(|()| self.out.write_all(&body)).map_err(write_failed)?;
        self.count += 1;
        (self.progress)(self.count);
        Ok(())
    }
}

/// The next item; `None` if the dump ends here or is damaged.
fn next(dump: &mut dyn Read) -> Result<Option<Item>, Error> {
    let mut head = [0; 12];
    let mut body = Vec::new();
    let read = dump.read_exact(&mut head).and_then(|()| {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        body.resize(length.min(MAX_FRAME), 0);
        dump.read_exact(&mut body)
    });
    match read {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(source) => return Err(Error::Io { what: "cannot read the dump".into(), source }),
        Ok(()) => {}
    }
    let intact = xxh3_64(&body).to_le_bytes() == head[4..];
    Ok(if intact { espalier_meta::decode(&body).ok() } else { None })
}

fn write_failed(source: std::io::Error) -> Error {
    Error::Io { what: "cannot write the dump".into(), source }
}
