//! Audit of reference counts. Lookups and opens are counted per client and per inode. The two must
//! agree; otherwise inodes without holders stay, or inodes with holders are freed.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino};

use super::Hold;
use crate::machine::Meta;
use crate::state::FxMap;

/// The holds of one client, or of all, on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    pub ino: Ino,
    /// Lookups that have not been forgotten.
    pub lookups: u64,
    /// Number of opens.
    pub opens: u32,
}

impl Meta {
    /// The holds of a client that has received all answers, in the order of inode numbers.
    pub fn holdings(&self, client: ClientId) -> Vec<Holding> {
        let Some(session) = self.sessions.clients.get(&client) else { return Vec::new() };
        let mut held = session.held.clone();
        for (ino, unreclaimed) in session.reserved.values() {
            if let Some(hold) = held.get_mut(ino) {
                hold.lookups = hold.lookups.saturating_sub(unreclaimed.lookups);
                hold.opens = hold.opens.saturating_sub(unreclaimed.opens);
            }
        }
        held.retain(|_, hold| hold.lookups > 0 || hold.opens > 0);
        sorted(&held)
    }

    /// Inodes whose sessions' holds differ from their own counts, each with the sum over the
    /// sessions and the inode's lookups and opens. Empty when no operation is in progress.
    pub fn miscounted(&self) -> Vec<(Holding, (u64, u32))> {
        let mut sums: FxMap<Ino, Hold> = FxMap::default();
        let held = self.sessions.clients.values().flat_map(|session| &session.held);
        for (ino, hold) in held.chain(self.sessions.abandoned.iter().map(|(ino, hold)| (ino, hold))) {
            let sum = sums.entry(*ino).or_default();
            sum.lookups += hold.lookups;
            sum.opens += hold.opens;
        }
        // Skips inodes in neither table: a client may have removed one that others knew (carns
        // III.A).
        let (cached, known) = (self.state.inodes.sorted(), self.state.known.iter());
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
