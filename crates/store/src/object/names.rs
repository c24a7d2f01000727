//! Names of the objects of one rank: its number, a letter for their purpose, and numbers.

use espalier_proto::{ClientId, Ino, Rank};

/// The superblock of the namespace.
pub(crate) const SUPERBLOCK: &str = "superblock";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Names(pub Rank);

impl Names {
    /// State of the tables: the shard map, and an unfinished checkpoint.
    pub fn head(self) -> String {
        format!("{}.head", self.0)
    }

    /// The lock of the rank, and who holds it.
    pub fn lock(self) -> String {
        format!("{}.lock", self.0)
    }

    /// The rank whose lock has this name.
    pub fn rank_of_lock(name: &str) -> Option<Rank> {
        name.strip_suffix(".lock").and_then(|rank| rank.parse().ok()).map(Rank)
    }

    /// The provisional streams.
    pub fn provisional(self) -> String {
        format!("{}.new", self.0)
    }

    pub fn shard(self, shard: u64) -> String {
        format!("{}.t.{shard:08x}", self.0)
    }

    /// A part of the redo record of a checkpoint.
    pub fn redo(self, checkpoint: u64, part: u32) -> String {
        format!("{}.redo.{}.{part:06x}", self.0, checkpoint % 2)
    }

    pub fn journal(self, chunk: u64) -> String {
        format!("{}.j.{chunk:06x}", self.0)
    }

    /// Start of the names of the streams' objects.
    pub fn streams(self) -> String {
        format!("{}.s.", self.0)
    }

    pub fn stream(self, ino: Ino, chunk: u64) -> String {
        format!("{}.s.{:016x}.{chunk:x}", self.0, ino.0)
    }

    /// Which objects of a stream there may be, besides the first.
    pub fn stream_head(self, ino: Ino) -> String {
        format!("{}.s.{:016x}.head", self.0, ino.0)
    }

    /// The address of a client that writes streams itself.
    pub fn client(client: ClientId) -> String {
        format!("client.{:x}", client.0)
    }

    /// True for a name of [`Self::client`].
    pub fn is_of_client(name: &str) -> bool {
        name.starts_with("client.")
    }

    /// The stream whose first object has this name.
    pub fn stream_of(self, name: &str) -> Option<Ino> {
        let number = name.strip_prefix(&self.streams())?.strip_suffix(".0")?;
        u64::from_str_radix(number, 16).ok().map(Ino)
    }

    /// True for the name of an object of a stream of any rank.
    pub fn is_of_stream(name: &str) -> bool {
        Self::is_ours(name) && name.split('.').nth(1) == Some("s")
    }

    /// True for the name of an object of any rank.
    pub fn is_ours(name: &str) -> bool {
        let rank = name.split_once('.').map(|(rank, _)| rank);
        name == SUPERBLOCK || rank.is_some_and(|rank| rank.parse::<u16>().is_ok())
    }
}
