//! Dumps: a whole file system as one byte stream, independent of the store.
//!
//! A dump is a line of text followed by frames: length (4 bytes), checksum (8 bytes), and an item.
//! Items are the records of the tables, then each stream with its extents, then the counts of both,
//! all in ascending order. A frame's checksum is seeded with that of the previous frame. So it
//! covers the dump up to there: frames cannot be missing, repeated or taken from another dump, and
//! one number identifies the loaded part of a dump.
//!
//! A dump contains only what the store contains, so an interrupted dump can be compared with the
//! store.

mod cluster;
mod frame;
mod load;
mod order;
mod write;

use std::io::Read;
use std::ops::AddAssign;

pub use cluster::{ClusterStores, dump_cluster, dump_shared, load_cluster, load_shared};
use frame::{Item, Reader};
pub(crate) use load::unfinished;
pub use load::{LoadOptions, load};
pub use write::{dump, resume_dump};

use crate::error::Error;

/// Counts of a dump, load or verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    pub records: u64,
    pub streams: u64,
    /// Bytes that the interrupted dump or load had processed; 0 if it was not resumed.
    pub resumed_at: u64,
}

impl AddAssign for Dumped {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.streams += other.streams;
        self.resumed_at += other.resumed_at;
    }
}

/// Reads a dump to its end without loading it. `progress` receives the number of bytes.
///
/// # Errors
/// [`Error::DamagedDump`] with the position; [`Error::ForeignDump`]; [`Error::Io`].
pub fn verify_dump(dump: &mut dyn Read, progress: impl Fn(u64)) -> Result<Dumped, Error> {
    let mut reader = Reader::begin(dump)?;
    loop {
        if let Item::End { records, streams } = reader.next()? {
            return Ok(Dumped { records, streams, resumed_at: 0 });
        }
        progress(reader.offset());
    }
}
