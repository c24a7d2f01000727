//! The frames of a dump: encoding, decoding and checks.

use std::io::{ErrorKind, Read};

use espalier_proto::{Ino, Rank, ServerId, Time};
use serde::{Deserialize, Serialize};

use super::order::Order;
use crate::error::Error;
use crate::framed::{FrameError, FrameReader, FrameWriter, MAX_BODY};

pub(super) const TITLE: &[u8] = b"Espalier dump, format 3\n";

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

/// Writes an item's frame.
pub(super) fn write_item(writer: &mut FrameWriter<'_>, item: &Item) -> Result<(), Error> {
    let body = espalier_meta::encode(item);
    if body.len() > MAX_BODY {
        return Err(Error::Option("a record is too long for a dump"));
    }
    writer.frame(&body).map_err(write_failed)
}

/// Reads items and checks that they are complete and in order.
pub(super) struct Reader<'a> {
    input: FrameReader<'a>,
    frames: u64,
    order: Order,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// [`Error::ForeignDump`] if the first line is not [`TITLE`]; [`Error::Io`].
    pub(super) fn begin(input: &'a mut dyn Read) -> Result<Self, Error> {
        let mut title = [0; TITLE.len()];
        match input.read_exact(&mut title) {
            Err(cause) if cause.kind() != ErrorKind::UnexpectedEof => return Err(read_failed(cause)),
            outcome => outcome.map_err(|_| Error::ForeignDump)?,
        }
        if title != TITLE {
            return Err(Error::ForeignDump);
        }
        let input = FrameReader::new(input, TITLE.len());
        Ok(Self { input, frames: 0, order: Order::default() })
    }

    /// Number of bytes up to the end of the last frame.
    pub(super) fn offset(&self) -> u64 {
        self.input.offset
    }

    /// The checksum of the last frame, which covers all frames before it.
    pub(super) fn sum(&self) -> u64 {
        self.input.sum
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
        let (offset, sum) = (self.input.offset, self.input.sum);
        self.read(offset).inspect_err(|_| (self.input.offset, self.input.sum) = (offset, sum))
    }

    fn read(&mut self, offset: u64) -> Result<Item, Error> {
        let damaged = |why| Error::DamagedDump { offset, why };
        let failed = |error| match error {
            FrameError::Damaged(why) => damaged(why),
            FrameError::Io(cause) => read_failed(cause),
        };
        self.input.read().map_err(failed)?;
        let item = espalier_meta::decode(&self.input.body)
            .map_err(|_| damaged("an item is none that this version knows"))?;
        self.order.accept(&item).map_err(damaged)?;
        if matches!(item, Item::End { .. }) && !self.input.is_end().map_err(failed)? {
            return Err(damaged("something follows its end"));
        }
        self.frames += 1;
        Ok(item)
    }
}

pub(super) fn read_failed(source: std::io::Error) -> Error {
    Error::Io { context: "cannot read the dump".into(), source }
}

pub(super) fn write_failed(source: std::io::Error) -> Error {
    Error::Io { context: "cannot write the dump".into(), source }
}
