//! Dumps: a whole file system as one stream, whatever store it comes from or goes to.
//!
//! A dump is a line of text and then frames: length (4 bytes), checksum (8 bytes), and an item. Items are the records of
//! the tables, then each stream with its extents, then the numbers of both, all in ascending order. A frame's checksum is
//! seeded with that of the frame before it, so it stands for the whole dump up to there: no frame can be missing, be there
//! twice or come from another dump, and one number tells how much of which dump has been loaded.
//!
//! A dump says nothing but what the store holds, so what is there of an interrupted dump can be compared with the store.

mod cluster;
mod frame;
mod load;
mod order;
mod write;

use std::io::Read;
use std::ops::AddAssign;

pub use cluster::{ClusterStores, dump_cluster, load_cluster};
use frame::{Item, Reader};
pub(crate) use load::unfinished;
pub use load::{LoadOptions, load};
pub use write::{dump, resume_dump};

use crate::error::Error;

/// What was dumped, loaded or verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    pub records: u64,
    pub streams: u64,
    /// Bytes of the dump that an interrupted dump or load had dealt with; 0 if it was not resumed.
    pub resumed_at: u64,
}

impl AddAssign for Dumped {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.streams += other.streams;
        self.resumed_at += other.resumed_at;
    }
}

/// Reads a dump to its end without loading it. `progress` is told the bytes so far.
///
/// # Errors
/// [`Error::DamagedDump`] says where; [`Error::ForeignDump`]; [`Error::Io`].
pub fn verify_dump(dump: &mut dyn Read, progress: impl Fn(u64)) -> Result<Dumped, Error> {
    let mut reader = Reader::begin(dump)?;
    loop {
        if let Item::End { records, streams } = reader.next()? {
            return Ok(Dumped { records, streams, resumed_at: 0 });
        }
        progress(reader.offset());
    }
}
