//! Persistent state of sessions: journaled, and stored in records of [`ObjectId::SESSIONS`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino, ObjectId, Rank, RequestId};
use serde::{Deserialize, Serialize};

use super::completed::CompletedOutcome;
use super::reclaim::Moved;
use super::unused::Unused;
use crate::rank::{FreedNumbers, TransactionId, TransactionState, UsageDeltas};
use crate::record::{Corrupt, decode, encode};
use crate::state::State;
use crate::table::Record;

/// The persistent part of a session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PersistedSession {
    /// Outcomes of requests that have changed something and whose answers the client may not have.
    pub completed: BTreeMap<RequestId, CompletedOutcome>,
    /// Inode numbers allocated to the client for new files.
    pub unused: Unused,
}

impl Record for PersistedSession {
    type Key = ClientId;

    fn place(client: ClientId) -> (ObjectId, Vec<u8>) {
        PersistedKey::Session(client).place()
    }

    fn encode(&self) -> Option<Vec<u8>> {
        Some(encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        let session: Self = decode(value)?;
        if session.unused.is_sound() { Ok(session) } else { Err(Corrupt) }
    }
}

impl State {
    pub(crate) fn apply_session(&mut self, client: ClientId, begins: bool) {
        if begins {
            self.sessions.insert(client, PersistedSession::default(), &mut self.changes);
        } else {
            self.sessions.remove(client, &mut self.changes);
        }
    }

    pub(crate) fn apply_completed(
        &mut self,
        client: ClientId,
        id: RequestId,
        below: RequestId,
        outcome: &CompletedOutcome,
    ) {
        self.sessions.change(client, &mut self.changes, |session| {
            session.completed.extract_if(below.first_of_origin()..below, |_, _| true).for_each(drop);
            // The inode exists, so its number is used, if it was one of the client's.
            if let CompletedOutcome::Given { ino, .. } = outcome {
                session.unused.take(*ino);
            }
            session.completed.insert(id, outcome.clone());
        });
    }

    /// Loads a record of [`ObjectId::SESSIONS`].
    pub(crate) fn loaded_session(&mut self, key: &[u8], value: &[u8]) -> Result<(), Corrupt> {
        match PersistedKey::from_bytes(key).ok_or(Corrupt)? {
            PersistedKey::Session(client) => self.sessions.load(client, value),
            PersistedKey::Moved(ino) => self.moved.load(ino, value),
            PersistedKey::TransactionRecord(id) => self.transactions.load(id, value),
            PersistedKey::UsageDeltas(rank) => self.usage_deltas.load(rank, value),
            PersistedKey::FreedNumbers(home) => self.freed.load(home, value),
        }
    }

    /// Subtracts from the opens of an inode.
    pub(super) fn close(&mut self, ino: Ino, opens: u32) {
        if let Some(cached) = self.inodes.untracked(&ino) {
            cached.opens = cached.opens.saturating_sub(opens);
        } else {
            self.reclaimed.give_up(ino, 0, opens);
        }
    }
}

/// The keys of [`ObjectId::SESSIONS`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum PersistedKey {
    /// The persistent part of a session.
    Session(ClientId),
    /// The location of an inode that clients know by an older one.
    Moved(Ino),
    /// A prepared part or an unfinished decision of a transaction between ranks.
    TransactionRecord(TransactionId),
    /// Usage deltas exchanged with another rank.
    UsageDeltas(Rank),
    /// Removed inodes whose home is another rank.
    FreedNumbers(Rank),
}

impl PersistedKey {
    /// The record's object, and its key there.
    pub(crate) fn place(self) -> (ObjectId, Vec<u8>) {
        (ObjectId::SESSIONS, self.to_bytes())
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (tag, number) = match self {
            Self::Session(client) => (b's', client.0),
            Self::Moved(ino) => (b'm', ino.0),
            Self::UsageDeltas(rank) => (b'u', rank.0.into()),
            Self::FreedNumbers(home) => (b'f', home.0.into()),
            Self::TransactionRecord(id) => {
                let mut key = Vec::with_capacity(19);
                key.push(b't');
                key.extend_from_slice(&id.began.to_be_bytes());
                key.extend_from_slice(&id.number.to_be_bytes());
                key.extend_from_slice(&id.rank.0.to_be_bytes());
                return key;
            }
        };
        let mut key = Vec::with_capacity(9);
        key.push(tag);
        key.extend_from_slice(&number.to_be_bytes());
        key
    }

    pub(crate) fn from_bytes(key: &[u8]) -> Option<Self> {
        let (tag, number) = key.split_first()?;
        if *tag == b't' {
            let (began, rest) = number.split_first_chunk()?;
            let (number, rank) = rest.split_first_chunk()?;
            let (began, number) = (u64::from_be_bytes(*began), u64::from_be_bytes(*number));
            let rank = Rank(u16::from_be_bytes(rank.try_into().ok()?));
            return Some(Self::TransactionRecord(TransactionId { began, number, rank }));
        }
        let number = u64::from_be_bytes(number.try_into().ok()?);
        match tag {
            b's' => Some(Self::Session(ClientId(number))),
            b'm' => Some(Self::Moved(Ino(number))),
            b'u' => Some(Self::UsageDeltas(Rank(number.try_into().ok()?))),
            b'f' => Some(Self::FreedNumbers(Rank(number.try_into().ok()?))),
            _ => None,
        }
    }
}

/// The bound below which a record of [`ObjectId::SESSIONS`] has allocated inode numbers; 0 if none.
pub(crate) fn given_below(key: &[u8], value: &[u8]) -> u64 {
    match PersistedKey::from_bytes(key) {
        Some(PersistedKey::Session(_)) => {
            PersistedSession::decode(value).map_or(0, |session| session.unused.end())
        }
        _ => 0,
    }
}

/// True if a record of [`ObjectId::SESSIONS`] is valid.
pub fn is_sound_record(key: &[u8], value: &[u8]) -> bool {
    match PersistedKey::from_bytes(key) {
        Some(PersistedKey::Session(_)) => PersistedSession::decode(value).is_ok(),
        Some(PersistedKey::Moved(_)) => Moved::decode(value).is_ok(),
        Some(PersistedKey::TransactionRecord(_)) => TransactionState::decode(value).is_ok(),
        Some(PersistedKey::UsageDeltas(_)) => UsageDeltas::decode(value).is_ok(),
        Some(PersistedKey::FreedNumbers(_)) => FreedNumbers::decode(value).is_ok(),
        None => false,
    }
}
