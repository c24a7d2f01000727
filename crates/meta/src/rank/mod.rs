//! Ranks: several metadata servers that share one namespace (docs/ranks.md).
//!
//! An operation that needs other ranks sends them requests (`coordinator.rs`), waits as it does for
//! a load, and starts over with their answers. Requests of other ranks (`participant.rs`) run like
//! operations. A single rank uses none of this.

mod check;
mod coordinator;
mod edit;
mod location;
mod lock;
mod message;
mod ops;
mod participant;
mod persisted;
mod usage_deltas;

pub(crate) use check::{FragmentCheck, LocationCheck, RemoteNames};
pub(crate) use coordinator::Coordinator;
pub(crate) use edit::Part;
pub use edit::{Edit, FragmentName};
pub(crate) use location::FreedNumbers;
pub use location::{Relocation, WholeFile};
pub(crate) use lock::TransactionLocks;
pub(crate) use message::Age;
pub use message::{PeerAnswer, PeerMessage, Question, TransactionId, Vote};
pub(crate) use ops::RenamePlan;
pub(crate) use participant::PeerRequest;
pub(crate) use persisted::TransactionState;
pub(crate) use usage_deltas::{UsageDeltas, reconcile, uncounted};

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::Rank;

use crate::event::Event;
use crate::journal::HeldOutput;
use crate::lease::LeaseKey;
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::state::FxMap;
use crate::task::Task;

/// Volatile state of a rank's communication with other ranks.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// The sequence number of this incarnation's [`Event::Began`].
    began: Option<u64>,
    /// The last transaction number used.
    number: u64,
    /// Operations that have sent a request or await the durability of their own decision, by
    /// transaction.
    asking: BTreeMap<TransactionId, u64>,
    /// Running requests of other ranks.
    peer_requests: BTreeMap<(Rank, TransactionId), u64>,
    /// Operations that wait for answers.
    unanswered: BTreeSet<u64>,
    /// Operations blocked on locks of prepared transactions.
    locked_out: BTreeSet<u64>,
    /// Grant barriers of prepared transactions.
    barriers: FxMap<TransactionId, Vec<LeaseKey>>,
    /// Decisions carried out for other ranks, acknowledged when these events are durable.
    acknowledgements: VecDeque<(u64, Rank, TransactionId)>,
    /// Durably committed transactions, with the ranks that have not carried out their parts.
    unfinished: BTreeMap<TransactionId, BTreeMap<Rank, Vote>>,
    outgoing: Vec<(Rank, PeerMessage)>,
    /// Messages of this rank to itself.
    own: VecDeque<PeerMessage>,
    /// Locks of this rank's own operations have been released.
    unfrozen: bool,
    /// See [`Meta::never_freeze`].
    never_freezes: bool,
    /// Offset of the rank at which the last directory was made.
    last_home: u16,
}

impl Ranks {
    /// Removes the waiting operation that `is_target` selects.
    pub(crate) fn stop_waiting(&mut self, is_target: impl Fn(&u64) -> bool) -> Option<u64> {
        let number = self.unanswered.iter().chain(&self.locked_out).copied().find(is_target)?;
        self.unanswered.remove(&number);
        self.locked_out.remove(&number);
        Some(number)
    }

    /// The operation that has sent a request.
    pub(crate) fn requester(&self, id: TransactionId) -> Option<u64> {
        self.asking.get(&id).copied()
    }

    /// True if an operation waits for other ranks.
    pub(crate) fn is_waiting(&self, number: &u64) -> bool {
        self.unanswered.contains(number) || self.locked_out.contains(number)
    }
}

impl Meta {
    pub(crate) fn send_to_rank(&mut self, to: Rank, message: PeerMessage) {
        if to == self.config.rank {
            self.ranks.own.push_back(message);
        } else {
            self.ranks.outgoing.push((to, message));
        }
    }

    fn send_to_rank_when_durable(&mut self, to: Rank, message: PeerMessage) {
        if self.state.sequence <= self.journal.durable {
            self.send_to_rank(to, message);
        } else if self.journal.broken.is_none() {
            let is_part = matches!(message, PeerMessage::Answer { .. });
            let (until, held) = (self.state.sequence, HeldOutput::Peer(to, message));
            if is_part {
                self.journal.hold_change(until, held, self.config.policy.coalescing());
            } else {
                self.journal.hold(until, held);
            }
        }
    }

    /// Moves the messages for other ranks to the outbox, after an input.
    pub(crate) fn send_to_ranks(&mut self, now: Now, out: &mut Outbox) {
        if core::mem::take(&mut self.ranks.unfrozen) {
            self.resume_locked_out(now, out);
        }
        while let Some(message) = self.ranks.own.pop_front() {
            self.peer(now, self.config.rank, message, out);
        }
        while let Some((sequence, rank, id)) = self.ranks.acknowledgements.front().copied()
            && sequence <= self.journal.durable
        {
            self.ranks.acknowledgements.pop_front();
            self.send_to_rank(rank, PeerMessage::Finished { id });
        }
        out.peers.append(&mut self.ranks.outgoing);
    }

    pub(crate) fn peer(&mut self, now: Now, from: Rank, message: PeerMessage, out: &mut Outbox) {
        match message {
            PeerMessage::Ask { id, caller, question } => {
                self.begin_peer_request(now, PeerRequest::Answer { from, id, question }, caller, out);
            }
            PeerMessage::Answer { id, answer } => self.answered(now, from, id, answer, out),
            // Only the coordinator decides.
            PeerMessage::Finish { id, .. } if id.rank != from => {}
            PeerMessage::Finish { id, vote } => {
                let prepared = self.state.prepared(id).map(|(_, vote)| vote);
                if prepared.is_some() && (vote.is_none() || vote == prepared) {
                    let participant = PeerRequest::Decide { from, id, commit: vote.is_some() };
                    self.begin_peer_request(now, participant, espalier_proto::Caller::SERVER, out);
                } else if vote.is_some() {
                    let done = self.state.sequence;
                    self.ranks.acknowledgements.push_back((done, from, id));
                } else {
                    self.cancel_peer_request((from, id));
                }
            }
            PeerMessage::Finished { id } => self.finished(from, id),
            PeerMessage::Inquire { id, vote } => self.inquired(from, id, vote),
            PeerMessage::Usage { last, changes, about } => {
                let participant = PeerRequest::Count { from, last, changes, about };
                self.begin_peer_request(now, participant, espalier_proto::Caller::SERVER, out);
            }
            PeerMessage::Left { clients } => self.left_other_rank(now, &clients, out),
            PeerMessage::Counted { last, limits } => self.usage_counted(from, last, limits),
            PeerMessage::Forward { client, id, below, caller, request, time } => {
                self.note_change_time(now.time, time);
                self.admit_forwarded(now, Task::new(client, id, caller, request), below, out);
            }
            PeerMessage::Heartbeat { load, policy } => self.heartbeat(from, load, policy),
            PeerMessage::Freed { inodes } => self.freed(from, inodes),
            PeerMessage::FreedAcknowledged { inodes } => self.freed_acknowledged(from, inodes),
        }
    }

    /// Resends what may have been lost when the connection to a rank was.
    pub(crate) fn peer_connected(&mut self, rank: Rank) {
        self.ask_again(rank);
        self.hasten_transfers();
        let unfinished = self.ranks.unfinished.iter();
        let votes = unfinished.filter_map(|(id, ranks)| Some((*id, *ranks.get(&rank)?)));
        for (id, vote) in votes.collect::<Vec<_>>() {
            self.send_to_rank(rank, PeerMessage::Finish { id, vote: Some(vote) });
        }
        self.inquire(|coordinator| coordinator == rank);
        if !self.sessions.left.is_empty() {
            let clients = self.sessions.left.iter().copied().collect();
            self.send_to_rank(rank, PeerMessage::Left { clients });
        }
    }

    /// Handles a rank that will never decide its transactions: what it has prepared here is
    /// presumed aborted.
    pub(crate) fn peer_lost(&mut self, now: Now, rank: Rank, out: &mut Outbox) {
        for id in self.prepared_for(rank).map(|(id, _)| id).collect::<Vec<_>>() {
            self.peer(now, rank, PeerMessage::Finish { id, vote: None }, out);
        }
        for id in self.unfinished_at(rank).collect::<Vec<_>>() {
            self.finished(rank, id);
        }
    }

    /// Parts prepared here for a coordinator, with their edits. Only the coordinator knows whether
    /// they are committed.
    pub fn prepared_for(&self, coordinator: Rank) -> impl Iterator<Item = (TransactionId, &[Edit])> {
        self.state.transactions.sorted().filter_map(move |(id, state)| match &**state {
            TransactionState::Prepared(part, _) if id.rank == coordinator => {
                Some((*id, part.edits.as_slice()))
            }
            _ => None,
        })
    }

    /// Committed transactions of this rank of which another rank has not acknowledged its part.
    pub fn unfinished_at(&self, rank: Rank) -> impl Iterator<Item = TransactionId> {
        self.ranks.unfinished.iter().filter(move |(_, ranks)| ranks.contains_key(&rank)).map(|(id, _)| *id)
    }

    /// Asks coordinators for the decisions of prepared transactions.
    pub(crate) fn inquire(&mut self, of: impl Fn(Rank) -> bool) {
        let prepared = self.state.transactions.sorted().filter_map(|(id, state)| match **state {
            TransactionState::Prepared(_, vote) if of(id.rank) => Some((*id, vote)),
            _ => None,
        });
        for (id, vote) in prepared.collect::<Vec<_>>() {
            self.send_to_rank(id.rank, PeerMessage::Inquire { id, vote });
        }
    }

    /// Answers another rank's inquiry about a transaction of this rank.
    fn inquired(&mut self, from: Rank, id: TransactionId, vote: Vote) {
        let unfinished = self.ranks.unfinished.get(&id);
        let is_open = self.ranks.asking.contains_key(&id) || self.state.committed(id).is_some();
        if unfinished.is_none() && is_open {
            // The transaction is undecided, or its decision is not durable yet.
            return;
        }
        // Presumed abort: an unknown transaction is aborted.
        let vote = unfinished.and_then(|ranks| ranks.get(&from).copied()).filter(|its| *its == vote);
        self.send_to_rank(from, PeerMessage::Finish { id, vote });
    }

    /// Has the participants carry out a transaction whose decision is durable.
    pub(crate) fn committed_durably(&mut self, id: TransactionId) {
        let ranks: Vec<(Rank, Vote)> = self.state.committed(id).unwrap_or_default().to_vec();
        for (rank, vote) in &ranks {
            self.send_to_rank(*rank, PeerMessage::Finish { id, vote: Some(*vote) });
        }
        self.ranks.unfinished.insert(id, ranks.into_iter().collect());
    }

    fn finished(&mut self, from: Rank, id: TransactionId) {
        let Some(ranks) = self.ranks.unfinished.get_mut(&id) else { return };
        ranks.remove(&from);
        if ranks.is_empty() {
            self.ranks.unfinished.remove(&id);
            self.append_loaded(&Event::Forgotten { id });
        }
    }

    /// Restores prepared and committed transactions after a restart.
    pub(crate) fn recover_transactions(&mut self) {
        let mut prepared = Vec::new();
        for (id, state) in self.state.transactions.sorted() {
            match &**state {
                TransactionState::Prepared(part, _) => prepared.push((part.age(*id), part.edits.clone())),
                TransactionState::Committed(ranks) => {
                    self.ranks.unfinished.insert(*id, ranks.iter().copied().collect());
                }
            }
        }
        for (age, edits) in prepared {
            self.state.lock(age, &edits);
        }
    }

    /// Resumes the operations blocked on locks that have been released.
    fn resume_locked_out(&mut self, now: Now, out: &mut Outbox) {
        for number in core::mem::take(&mut self.ranks.locked_out) {
            self.resume(now, number, out);
        }
    }

    /// Number of transactions that have not ended at this rank.
    pub fn open_transactions(&self) -> usize {
        self.state.transactions.len()
    }
}
