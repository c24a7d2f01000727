//! Moves of subtrees: a directory record takes the records with it that are below its names, at the
//! same rank (sevilla 2.1). Each of them is due to move when its name has moved, so that the moves
//! go from the root of the subtree down, as many at a time as other transfers.
//!
//! A nested directory stays with all below it if it is pinned to another rank, and if its names are
//! at another rank anyway. All of this is volatile: after a restart, what has not begun to move
//! stays.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Rank};
use serde::{Deserialize, Serialize};

use crate::machine::{Cx, Meta};
use crate::rank::{FragmentName, PeerAnswer, Question};
use crate::step::{Step, Stop, Wait};

/// What a requested move includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MoveScope {
    /// The names of a directory record.
    Names,
    /// The same and those of the records below it at the same rank.
    Subtree,
}

/// A move that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestedMove {
    pub(super) to: Rank,
    pub(super) scope: MoveScope,
}

impl Meta {
    /// The records at this rank of the directories among names that move with a subtree.
    pub(super) fn nested_records(&mut self, cx: &mut Cx<'_>, names: &[FragmentName]) -> Step<Vec<Ino>> {
        let mut dirs: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
        for dir in names.iter().map(|name| name.referent).filter(|referent| referent.is_dir()) {
            dirs.entry(dir.at).or_default().push(dir.ino);
        }
        let (mut records, mut waits) = (Vec::new(), false);
        for (rank, dirs) in dirs {
            let answer = match rank == self.config.rank {
                true => self.answer_records(&dirs, rank),
                false => self.query_rank(cx, rank, Question::Records { dirs, of: self.config.rank }),
            };
            match answer {
                Ok(PeerAnswer::Dirs { dirs }) => records.extend(dirs),
                Ok(_) => return Err(Errno::EIO.into()),
                Err(Stop::Wait(Wait::Peers)) => waits = true,
                Err(stop) => return Err(stop),
            }
        }
        if waits { Err(Stop::Wait(Wait::Peers)) } else { Ok(records) }
    }

    /// The records that directories of this rank have at a rank. Removed directories have none.
    pub(crate) fn answer_records(&self, dirs: &[Ino], of: Rank) -> Step<PeerAnswer> {
        let mut records = Vec::new();
        for dir in dirs {
            match self.state.dir_even_if_locked(*dir) {
                Ok(inode) => match inode.fragment_map() {
                    Some(map) => records.extend(map.fragments().map(|(_, ino)| ino)),
                    None => records.push(*dir),
                },
                Err(Stop::Fail(_)) => {}
                Err(stop) => return Err(stop),
            }
        }
        records.retain(|record| record.rank() == of);
        Ok(PeerAnswer::Dirs { dirs: records })
    }

    /// Has nested records follow a subtree to a rank, except those that are pinned.
    pub(super) fn follow(&mut self, records: &[Ino], moved: RequestedMove) {
        for record in records {
            let pin = self.state.inodes.get(record).and_then(|cached| self.pinned_rank(&cached.inode));
            if pin.is_none_or(|rank| rank == moved.to) {
                self.transfers.moves.insert(*record, moved);
                self.note_growth(*record);
            }
        }
    }
}
