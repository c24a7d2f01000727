//! The frames of a dump: encoding, decoding and checks.

use std::io::{ErrorKind, Read, Write};

use espalier_proto::{Ino, Rank, ServerId, Time};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::order::Order;
use crate::error::Error;

pub(super) const TITLE: &[u8] = b"Espalier dump, format 3\n";
/// Format 2: as the present format, but checksums are not seeded.
const TITLE_2: &[u8] = b"Espalier dump, format 2\n";
/// Length and checksum.
const HEADER_BYTES: usize = 12;
/// Maximum size of a frame in bytes. The longest record belongs to a file with names in many
/// directories; this suffices for millions.
const MAX_FRAME: usize = 64 << 20;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Item {
    Head(Head),
    Record {
        object: [u8; 13],
        key: Vec<u8>,
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    Stream {
        ino: Ino,
        size: u64,
        mtime: Time,
    },
    /// A part of the preceding stream.
    Extent {
        offset: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    End {
        records: u64,
        streams: u64,
    },
    /// After the head: the store is one of several.
    Part(StoreRole),
}

/// The store's place in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StoreRole {
    Rank { rank: Rank, ranks: u16 },
    Data(ServerId),
}

/// The dumped file system and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) label: String,
    pub(super) strip_bytes: u32,
    pub(super) journal_bytes: u64,
    pub(super) hash_key: [u8; 16],
}

/// Writes frames in sequence.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut dyn Write,
    /// Checksum of the previous frame.
    pub(super) sum: u64,
    pub(super) offset: u64,
}

impl Writer<'_> {
    pub(super) fn title(&mut self) -> Result<(), Error> {
        self.write(TITLE)
    }

    pub(super) fn frame(&mut self, item: &Item) -> Result<(), Error> {
        let body = espalier_meta::encode(item);
        if body.len() > MAX_FRAME {
            return Err(Error::Option("a record is too long for a dump"));
        }
        self.sum = xxh3_64_with_seed(&body, self.sum);
        self.write(&(body.len() as u32).to_le_bytes())?;
        self.write(&self.sum.to_le_bytes())?;
        self.write(&body)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(write_failed)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// Reads items and checks that they are complete and in order.
pub(super) struct Reader<'a> {
    input: &'a mut dyn Read,
    body: Vec<u8>,
    offset: u64,
    sum: u64,
    seeded: bool,
    frames: u64,
    order: Order,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// [`Error::ForeignDump`] if the first line is not that of a supported format; [`Error::Io`].
    pub(super) fn begin(input: &'a mut dyn Read) -> Result<Self, Error> {
        let mut title = [0; TITLE.len()];
        match input.read_exact(&mut title) {
            Err(cause) if cause.kind() != ErrorKind::UnexpectedEof => return Err(read_failed(cause)),
            outcome => outcome.map_err(|_| Error::ForeignDump)?,
        }
        if title != TITLE && title != TITLE_2 {
            return Err(Error::ForeignDump);
        }
        let (offset, seeded) = (TITLE.len() as u64, title == TITLE);
        Ok(Self { input, body: Vec::new(), offset, sum: 0, seeded, frames: 0, order: Order::default() })
    }

    /// Number of bytes up to the end of the last frame.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The checksum of the last frame, which covers all frames before it.
    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    /// Number of frames read.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// The next item. It must not be called after the last item.
    ///
    /// # Errors
    /// [`Error::DamagedDump`]: the frame at [`Self::offset`] is incomplete or misplaced;
    /// [`Error::Io`].
    pub(super) fn next(&mut self) -> Result<Item, Error> {
        let offset = self.offset;
        let damaged = |why| Error::DamagedDump { offset, why };
        let mut header = [0; HEADER_BYTES];
        if !self.fill(&mut header)? {
            return Err(damaged("it was cut off"));
        }
        let [a, b, c, d, sum @ ..] = header;
        let (length, sum) = (u32::from_le_bytes([a, b, c, d]) as usize, u64::from_le_bytes(sum));
        if length > MAX_FRAME {
            return Err(damaged("a length cannot be"));
        }
        self.body.clear();
        // Missing bytes take no memory.
        (&mut *self.input).take(length as u64).read_to_end(&mut self.body).map_err(read_failed)?;
        if self.body.len() < length {
            return Err(damaged("it was cut off"));
        }
        let seeded = xxh3_64_with_seed(&self.body, self.sum);
        if sum != if self.seeded { seeded } else { xxh3_64(&self.body) } {
            return Err(damaged("a checksum is wrong"));
        }
        let item = espalier_meta::decode(&self.body)
            .map_err(|_| damaged("an item is none that this version knows"))?;
        self.order.accept(&item).map_err(damaged)?;
        if matches!(item, Item::End { .. }) && self.fill(&mut [0])? {
            return Err(damaged("something follows its end"));
        }
        self.offset += (HEADER_BYTES + length) as u64;
        self.sum = seeded;
        self.frames += 1;
        Ok(item)
    }

    /// True if there were enough bytes to fill the buffer.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, Error> {
        match self.input.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(cause) if cause.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(cause) => Err(read_failed(cause)),
        }
    }
}

pub(super) fn read_failed(source: std::io::Error) -> Error {
    Error::Io { context: "cannot read the dump".into(), source }
}

pub(super) fn write_failed(source: std::io::Error) -> Error {
    Error::Io { context: "cannot write the dump".into(), source }
}
