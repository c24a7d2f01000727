//! Persistent state of transactions: prepared parts, and decisions that participants have not all
//! carried out. It is journaled, and stored in records beside those of sessions.

use alloc::vec::Vec;

use espalier_proto::{FileType, Ino, ObjectId, Rank};
use serde::{Deserialize, Serialize};

use super::edit::{Edit, Part};
use super::message::{Age, TransactionId, Vote};
use crate::record::{Corrupt, decode, encode};
use crate::session::PersistedKey;
use crate::state::State;
use crate::table::Record;

/// The record of a transaction, which never changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum TransactionState {
    /// A part prepared for another rank, or a lock on moving directories.
    Prepared(Part, Vote),
    /// A decision of this rank, with the participants that have yet to carry out their parts.
    Committed(Vec<(Rank, Vote)>),
}

impl Record for TransactionState {
    type Key = TransactionId;

    fn place(id: TransactionId) -> (ObjectId, Vec<u8>) {
        PersistedKey::TransactionRecord(id).place()
    }

    fn encode(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        decode(value)
    }
}

impl Part {
    pub(crate) fn age(&self, id: TransactionId) -> Age {
        Age { since: self.since, id }
    }

    /// The inode that the part creates.
    fn made(&self) -> Option<Ino> {
        self.edits
            .iter()
            .find_map(|edit| if let Edit::Make { inode } = edit { Some(inode.ino) } else { None })
    }

    /// The files that the part gives to other ranks.
    pub(crate) fn given(&self) -> Vec<Ino> {
        let given = self.edits.iter().filter_map(|edit| match edit {
            Edit::GiveFiles { inodes, .. } => Some(inodes),
            _ => None,
        });
        given.flatten().copied().collect()
    }

    /// The inode that is made or linked.
    pub(crate) fn named(&self) -> Option<(Ino, FileType)> {
        self.edits.iter().find_map(|edit| match edit {
            Edit::Make { inode } => Some((inode.ino, inode.kind)),
            Edit::Link { ino, found, .. } => Some((*ino, found.as_ref()?.0)),
            _ => None,
        })
    }
}

impl State {
    pub(crate) fn prepared(&self, id: TransactionId) -> Option<(&Part, Vote)> {
        match &**self.transactions.get(&id)? {
            TransactionState::Prepared(part, vote) => Some((part, *vote)),
            TransactionState::Committed(_) => None,
        }
    }

    pub(crate) fn committed(&self, id: TransactionId) -> Option<&[(Rank, Vote)]> {
        match &**self.transactions.get(&id)? {
            TransactionState::Committed(ranks) => Some(ranks),
            TransactionState::Prepared(..) => None,
        }
    }

    pub(crate) fn apply_prepared(&mut self, id: TransactionId, part: &Part) {
        if let Some(ino) = part.made() {
            // The number is never reused, whatever the decision.
            self.numbers.note_used(ino.0 + 1);
        }
        let state = TransactionState::Prepared(part.clone(), self.sequence);
        self.transactions.insert(id, state, &mut self.changes);
    }

    pub(crate) fn apply_committed(&mut self, id: TransactionId, part: &Part, ranks: &[(Rank, Vote)]) {
        self.apply_edits(part);
        if !ranks.is_empty() {
            let state = TransactionState::Committed(ranks.to_vec());
            self.transactions.insert(id, state, &mut self.changes);
        }
    }

    pub(crate) fn forget_transaction(&mut self, id: TransactionId) {
        self.transactions.remove(id, &mut self.changes);
    }
}
