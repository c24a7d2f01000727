//! Persistent state of sessions: journaled, and stored in records of [`ObjectId::SESSIONS`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino, Location, ObjectId, Rank, RequestId, TableWrite};

use super::completed::CompletedOutcome;
use super::unused::Unused;
use crate::rank::{TransactionId, TransactionRecord, UsageDeltas};
use crate::record::{Corrupt, decode, encode};
use crate::snapshot::Changed;
use crate::state::{State, Track};

/// The persistent part of a session.
#[derive(Debug, Default)]
pub(crate) struct PersistedSession {
    /// Outcomes of requests that have changed something and whose answers the client may not have.
    pub completed: BTreeMap<RequestId, CompletedOutcome>,
    /// Inode numbers allocated to the client for new files.
    pub unused: Unused,
    pub track: Track,
}

/// The encoding of [`PersistedSession`].
type Record = (BTreeMap<RequestId, CompletedOutcome>, Unused);

fn parse(value: &[u8]) -> Result<Record, Corrupt> {
    decode::<Record>(value).and_then(|record| if record.1.is_sound() { Ok(record) } else { Err(Corrupt) })
}

impl State {
    pub(crate) fn apply_session(&mut self, client: ClientId, begins: bool) {
        if begins {
            self.sessions.entry(client).or_default();
            self.touch_session(client);
        } else if self.touch_session(client).is_some()
            && let Some(persisted) = self.sessions.remove(&client)
            && persisted.track.stored
        {
            let key = PersistedKey::Session(client).to_bytes();
            self.erased.push(TableWrite { object: ObjectId::SESSIONS, key, value: None });
        }
    }

    pub(crate) fn apply_completed(
        &mut self,
        client: ClientId,
        id: RequestId,
        below: RequestId,
        outcome: &CompletedOutcome,
    ) {
        if let Some(persisted) = self.touch_session(client) {
            while let Some(first) = persisted.completed.first_entry()
                && *first.key() < below
            {
                first.remove();
            }
            // The inode exists, so its number is used, if it was one of the client's.
            if let CompletedOutcome::Given { ino, .. } = outcome {
                persisted.unused.take(*ino);
            }
            persisted.completed.insert(id, outcome.clone());
        }
    }

    /// Prepares the record for a change or removal: encodes it first if the current snapshot needs
    /// its old state.
    pub(super) fn touch_session(&mut self, client: ClientId) -> Option<&mut PersistedSession> {
        let epoch = self.epoch;
        let was = self.sessions.get(&client)?.track.epoch;
        if was != epoch {
            if was != 0 {
                self.encode_session(client);
            }
            self.changed.push_back(Changed::Session(client));
        }
        let persisted = self.sessions.get_mut(&client)?;
        persisted.track.epoch = epoch;
        Some(persisted)
    }

    /// Adds the record to the current snapshot.
    pub(crate) fn encode_session(&mut self, client: ClientId) {
        let Some(persisted) = self.sessions.get_mut(&client) else { return };
        persisted.track = Track { epoch: 0, written: self.epoch - 1, stored: true };
        let (key, value) = (
            PersistedKey::Session(client).to_bytes(),
            Some(encode(&(&persisted.completed, &persisted.unused))),
        );
        self.snapshot.writes.push(TableWrite { object: ObjectId::SESSIONS, key, value });
    }

    /// Loads a record of [`ObjectId::SESSIONS`].
    pub(crate) fn loaded_session(&mut self, key: &[u8], value: &[u8]) -> Result<(), Corrupt> {
        match PersistedKey::from_bytes(key).ok_or(Corrupt)? {
            PersistedKey::Session(client) => {
                let (completed, unused) = parse(value)?;
                let persisted = PersistedSession { completed, unused, track: Track::STORED };
                self.sessions.insert(client, persisted);
                Ok(())
            }
            PersistedKey::Moved(ino) => self.loaded_moved(ino, value),
            PersistedKey::TransactionRecord(id) => self.loaded_transaction(id, value),
            PersistedKey::UsageDeltas(rank) => self.loaded_deltas(rank, value),
        }
    }

    /// Subtracts from the opens of an inode.
    pub(super) fn close(&mut self, ino: Ino, opens: u32) {
        if let Some(cached) = self.inodes.get_mut(&ino) {
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
}

impl PersistedKey {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (tag, number) = match self {
            Self::Session(client) => (b's', client.0),
            Self::Moved(ino) => (b'm', ino.0),
            Self::UsageDeltas(rank) => (b'u', rank.0.into()),
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
            _ => None,
        }
    }
}

/// The bound below which a record of [`ObjectId::SESSIONS`] has allocated inode numbers; 0 if none.
pub(crate) fn given_below(key: &[u8], value: &[u8]) -> u64 {
    match PersistedKey::from_bytes(key) {
        Some(PersistedKey::Session(_)) => parse(value).map_or(0, |(_, unused)| unused.end()),
        _ => 0,
    }
}

/// True if a record of [`ObjectId::SESSIONS`] is valid.
pub fn is_sound_record(key: &[u8], value: &[u8]) -> bool {
    match PersistedKey::from_bytes(key) {
        Some(PersistedKey::Session(_)) => parse(value).is_ok(),
        Some(PersistedKey::Moved(_)) => decode::<Location>(value).is_ok(),
        Some(PersistedKey::TransactionRecord(_)) => TransactionRecord::is_sound_record(value),
        Some(PersistedKey::UsageDeltas(_)) => decode::<UsageDeltas>(value).is_ok(),
        None => false,
    }
}
