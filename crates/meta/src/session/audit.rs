//! What clients have of inodes is counted twice: for each of them, and for each inode. The counts must agree, or inodes that nobody has are
//! kept, or ones that somebody has are not.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino};

use super::Hold;
use crate::machine::Meta;
use crate::state::Map;

/// What a client, or all of them, have of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    pub ino: Ino,
    /// So often it has been told of it and has not forgotten it.
    pub lookups: u64,
    /// So often it has it open.
    pub opens: u32,
}

impl Meta {
    /// What a client has that has got all answers, in the order of the inodes.
    pub fn holdings(&self, client: ClientId) -> Vec<Holding> {
        let Some(session) = self.sessions.clients.get(&client) else { return Vec::new() };
        let mut held = session.held.clone();
        for (ino, unclaimed) in session.reserved.values() {
            if let Some(hold) = held.get_mut(ino) {
                hold.lookups = hold.lookups.saturating_sub(unclaimed.lookups);
                hold.opens = hold.opens.saturating_sub(unclaimed.opens);
            }
        }
        held.retain(|_, hold| hold.lookups > 0 || hold.opens > 0);
        sorted(&held)
    }

    /// What all clients have together of inodes, where other is counted, with that: lookups and opens. When no operation is under way there is none.
    pub fn miscounted(&self) -> Vec<(Holding, (u64, u32))> {
        let mut sums: Map<Ino, Hold> = Map::default();
        let held = self.sessions.clients.values().flat_map(|session| &session.held);
        for (ino, hold) in held.chain(self.sessions.abandoned.iter().map(|(ino, hold)| (ino, hold))) {
            let sum = sums.entry(*ino).or_default();
            sum.lookups += hold.lookups;
            sum.opens += hold.opens;
        }
        // What is in neither may have been removed, by a client, though others knew it (carns III.A).
        let (cached, known) = (self.state.inodes.iter(), self.state.known.iter());
        let cached = cached.map(|(ino, cached)| (*ino, cached.lookups, cached.opens));
        let counted = cached.chain(known.map(|(ino, known)| (*ino, known.lookups, 0)));
        let mut differ: Vec<_> = counted
            .filter_map(|(ino, mut lookups, mut opens)| {
                let sum = sums.get(&ino).copied().unwrap_or_default();
                let unseen = self.state.reclaimed.count(ino);
                (lookups, opens) = (lookups + unseen.0, opens + unseen.1);
                let sum = Holding { ino, lookups: sum.lookups, opens: sum.opens };
                ((sum.lookups, sum.opens) != (lookups, opens)).then_some((sum, (lookups, opens)))
            })
            .collect();
        differ.sort_unstable_by_key(|(sum, _)| sum.ino);
        differ
    }
}

fn sorted<'a>(held: impl IntoIterator<Item = (&'a Ino, &'a Hold)>) -> Vec<Holding> {
    let holding =
        |(ino, hold): (&Ino, &Hold)| Holding { ino: *ino, lookups: hold.lookups, opens: hold.opens };
    let mut held: Vec<Holding> = held.into_iter().map(holding).collect();
    held.sort_unstable_by_key(|holding| holding.ino);
    held
}
