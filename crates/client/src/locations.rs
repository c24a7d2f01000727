//! The ranks of relocated inodes, as replies have reported them; any other inode is at the rank of
//! its number. A stale location is harmless: the rank that is asked says where the inode is.

use espalier_proto::{Entry, Ino, Rank, Reply, Request};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Maximum number of locations of inodes that are not cached.
const MOST_UNUSED: usize = 1 << 14;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Locations {
    ranks: HashMap<Ino, Rank, FxBuildHasher>,
    /// Number of locations at which those of inodes that are not cached are dropped.
    limit: usize,
    /// Replies that sent a request to another rank.
    pub(crate) redirects: u64,
}

impl Locations {
    /// The rank that has an inode.
    pub fn of(&self, ino: Ino) -> Rank {
        self.ranks.get(&ino).copied().unwrap_or(ino.rank())
    }

    /// The rank that executes a request.
    pub fn of_request(&self, request: &Request) -> Rank {
        match request {
            Request::TakeNumbers { rank, .. } | Request::SyncFs { rank } => *rank,
            _ => self.of(request.ino()),
        }
    }

    pub fn learn(&mut self, ino: Ino, at: Rank) {
        if at == ino.rank() {
            self.ranks.remove(&ino);
        } else {
            self.ranks.insert(ino, at);
        }
    }

    /// Learns the locations in a reply of a rank.
    pub fn learn_from(&mut self, rank: Rank, reply: &Reply) {
        let mut entry = |entry: &Entry| {
            if entry.attr.ino.rank() != rank || !self.ranks.is_empty() {
                self.learn(entry.attr.ino, rank);
            }
        };
        match reply {
            Reply::Entry(found) | Reply::Created(found, _) => entry(found),
            Reply::Unmeasured(reply, _) => self.learn_from(rank, reply),
            Reply::Listing { entries, .. } => {
                entries.iter().filter_map(|dirent| dirent.entry.as_ref()).for_each(entry);
                for dirent in entries {
                    dirent.remote.iter().for_each(|remote| self.learn(dirent.ino, remote.at));
                }
            }
            Reply::Remote { ino, at, .. } => self.learn(*ino, *at),
            Reply::Relocated { ino, at } => {
                self.redirects += 1;
                self.learn(*ino, *at);
            }
            _ => {}
        }
    }

    /// Drops the locations of inodes that are not in use, if there are many.
    pub fn shrink(&mut self, is_used: impl Fn(Ino) -> bool) {
        if self.ranks.len() > self.limit.max(MOST_UNUSED) {
            self.ranks.retain(|ino, _| is_used(*ino));
            self.limit = 2 * self.ranks.len();
        }
    }
}
