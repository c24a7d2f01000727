//! The order of pending operations: those that depend on each other are sent without waiting for
//! replies, and each request names those that it follows.

use alloc::vec::Vec;

use espalier_proto::{Caller, Rank, Request, RequestId};

use super::{ChangeKind, PendingOp, Writeback};
use crate::sessions::Sessions;

/// An operation that waits for earlier ones at other ranks.
#[derive(Debug)]
pub(super) struct Unsent {
    pub change: PendingOp,
    caller: Caller,
    request: Request,
}

impl PendingOp {
    /// True if the server must execute this operation before `later`: both are on the same inode,
    /// or one changes names in a directory that the other one is on.
    fn precedes(&self, later: &Self) -> bool {
        let is_named = self.changes_names() && self.dir == later.ino;
        let is_in = later.changes_names() && self.ino == later.dir;
        self.number < later.number && (self.ino == later.ino || is_named || is_in)
    }

    fn changes_names(&self) -> bool {
        matches!(self.change_kind, ChangeKind::Name(_) | ChangeKind::Rename(_))
    }
}

impl Writeback {
    /// The sent operations that `change` follows, or `None` if another rank executes one of them.
    fn leaders(&self, rank: Rank, change: &PendingOp) -> Option<Vec<RequestId>> {
        let (mut leaders, mut last) = (Vec::new(), None);
        for ((at, id), earlier) in self.changes.iter().filter(|(_, earlier)| earlier.precedes(change)) {
            if *at != rank {
                return None;
            }
            // Those on one inode follow each other.
            if earlier.ino == change.ino { last = Some(*id) } else { leaders.push(*id) }
        }
        leaders.extend(last);
        Some(leaders)
    }
}

impl<T> Sessions<T> {
    /// Sends an operation, to be executed after the earlier ones on its inode and directory. It is
    /// queued if another rank executes these.
    pub(super) fn send_in_order(&mut self, change: PendingOp, caller: Caller, request: Request) {
        self.writeback.give_time(self.rank_of_change(&change), &change, &request);
        self.writeback.unsent.push_back(Unsent { change, caller, request });
        self.send_queued(None);
    }

    /// The rank that executes an operation.
    fn rank_of_change(&self, change: &PendingOp) -> Rank {
        if change.changes_names() { change.dir.rank() } else { self.rank_of(change.ino) }
    }

    /// Sends the queued operations that none at another rank precedes. `now`: the time, if they
    /// were made earlier.
    pub(super) fn send_queued(&mut self, now: Option<u64>) {
        let mut at = 0;
        while let Some(Unsent { change, .. }) = self.writeback.unsent.get(at) {
            let rank = self.rank_of_change(change);
            let is_first = !self.writeback.unsent.range(..at).any(|earlier| earlier.change.precedes(change));
            let Some(follows) = self.writeback.leaders(rank, change).filter(|_| is_first) else {
                at += 1;
                continue;
            };
            let Some(Unsent { mut change, caller, request }) = self.writeback.unsent.remove(at) else {
                return;
            };
            change.sent = now.unwrap_or(change.sent);
            self.writeback.give_time(rank, &change, &request);
            let id = self.server_session(rank).ask_after(follows, caller, request);
            self.writeback.changes.insert((rank, id), change);
        }
    }
}
