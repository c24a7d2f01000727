//! Several metadata servers that share one tree: docs/ranks.md says how.
//!
//! An operation that needs others asks them (`agree.rs`) as it would ask for a load, and starts over when they have answered. What
//! others want of this rank (`errand.rs`) is run as operations are. A machine that is alone has none of this.

mod agree;
mod check;
mod edit;
mod errand;
mod kept;
mod lock;
mod message;
mod ops;
mod tally;

pub(crate) use agree::Dealings;
pub(crate) use check::Elsewhere;
pub use edit::Edit;
pub(crate) use edit::Part;
pub(crate) use errand::Errand;
pub(crate) use kept::Transaction;
pub(crate) use lock::Locks;
pub(crate) use message::Age;
pub use message::{Answer, PeerMessage, Question, TransactionId, Vote};
pub(crate) use tally::Tally;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::Rank;

use crate::event::Event;
use crate::journal::Held;
use crate::lease::Key;
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::state::Map;
use kept::What;

/// What the machine has with other ranks, and forgets when it ends.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// The sequence number of this incarnation's [`Event::Began`].
    began: Option<u64>,
    /// The last number given out.
    number: u64,
    /// The operations that have asked something, or wait for a decision of their own.
    asking: BTreeMap<TransactionId, u64>,
    /// What is being done for others.
    errands: BTreeMap<(Rank, TransactionId), u64>,
    /// Operations that wait for answers.
    unanswered: BTreeSet<u64>,
    /// Operations that wait for locks.
    locked_out: BTreeSet<u64>,
    /// What clients may not cache while it is prepared.
    claims: Map<TransactionId, Vec<Key>>,
    /// What has been done for others, and is to be acknowledged when these events are durable.
    acknowledgements: VecDeque<(u64, Rank, TransactionId)>,
    /// Committed, durably: which ranks have not carried out their parts yet.
    unfinished: BTreeMap<TransactionId, BTreeMap<Rank, Vote>>,
    outgoing: Vec<(Rank, PeerMessage)>,
    /// To itself.
    own: VecDeque<PeerMessage>,
    /// Where the last directory was made.
    last_home: u16,
}

impl Ranks {
    /// Of the operations that wait for others, the one of which this is so waits no longer.
    pub(crate) fn stop_waiting(&mut self, is_it: impl Fn(&u64) -> bool) -> Option<u64> {
        let number = self.unanswered.iter().chain(&self.locked_out).copied().find(is_it)?;
        self.unanswered.remove(&number);
        self.locked_out.remove(&number);
        Some(number)
    }

    /// The operation that has asked that.
    pub(crate) fn asker(&self, id: TransactionId) -> Option<u64> {
        self.asking.get(&id).copied()
    }

    /// Whether an operation waits for other ranks.
    pub(crate) fn is_waiting(&self, number: &u64) -> bool {
        self.unanswered.contains(number) || self.locked_out.contains(number)
    }
}

impl Meta {
    pub(crate) fn tell_rank(&mut self, to: Rank, message: PeerMessage) {
        if to == self.config.rank {
            self.ranks.own.push_back(message);
        } else {
            self.ranks.outgoing.push((to, message));
        }
    }

    fn tell_rank_when_durable(&mut self, to: Rank, message: PeerMessage) {
        if self.state.sequence <= self.journal.durable {
            self.tell_rank(to, message);
        } else if self.journal.broken.is_none() {
            let is_part = matches!(message, PeerMessage::Answer { .. });
            let (until, held) = (self.state.sequence, Held::Peer(to, message));
            if is_part {
                self.journal.hold_change(until, held, self.config.policy.coalescing());
            } else {
                self.journal.hold(until, held);
            }
        }
    }

    /// After an input: what goes to other ranks.
    pub(crate) fn send_to_ranks(&mut self, now: Now, out: &mut Outbox) {
        while let Some(message) = self.ranks.own.pop_front() {
            self.peer(now, self.config.rank, message, out);
        }
        while let Some((sequence, rank, id)) = self.ranks.acknowledgements.front().copied()
            && sequence <= self.journal.durable
        {
            self.ranks.acknowledgements.pop_front();
            self.tell_rank(rank, PeerMessage::Finished { id });
        }
        out.peers.append(&mut self.ranks.outgoing);
    }

    pub(crate) fn peer(&mut self, now: Now, from: Rank, message: PeerMessage, out: &mut Outbox) {
        match message {
            PeerMessage::Ask { id, caller, question } => {
                self.begin_errand(now, Errand::Answer { from, id, question }, caller, out);
            }
            PeerMessage::Answer { id, answer } => self.answered(now, from, id, answer, out),
            PeerMessage::Finish { id, vote } => {
                let prepared = self.state.prepared(id).map(|(_, vote)| vote);
                if prepared.is_some() && (vote.is_none() || vote == prepared) {
                    let errand = Errand::Decide { from, id, commit: vote.is_some() };
                    self.begin_errand(now, errand, espalier_proto::Caller::SERVER, out);
                } else if vote.is_some() {
                    let done = self.state.sequence;
                    self.ranks.acknowledgements.push_back((done, from, id));
                } else {
                    self.give_up_errand((from, id));
                }
            }
            PeerMessage::Finished { id } => self.finished(from, id),
            PeerMessage::Inquire { id, vote } => self.inquired(from, id, vote),
            PeerMessage::Usage { last, changes, about } => {
                let errand = Errand::Count { from, last, changes, about };
                self.begin_errand(now, errand, espalier_proto::Caller::SERVER, out);
            }
            PeerMessage::Left { clients } => self.left_elsewhere(now, &clients, out),
            PeerMessage::Counted { last, limits } => self.usage_counted(from, last, limits),
        }
    }

    /// What was sent to a rank may be lost.
    pub(crate) fn peer_connected(&mut self, rank: Rank) {
        self.ask_again(rank);
        let unfinished = self.ranks.unfinished.iter();
        let votes = unfinished.filter_map(|(id, ranks)| Some((*id, *ranks.get(&rank)?)));
        for (id, vote) in votes.collect::<Vec<_>>() {
            self.tell_rank(rank, PeerMessage::Finish { id, vote: Some(vote) });
        }
        self.inquire(|coordinator| coordinator == rank);
        if !self.sessions.left.is_empty() {
            let clients = self.sessions.left.iter().copied().collect();
            self.tell_rank(rank, PeerMessage::Left { clients });
        }
    }

    /// Nobody will say any more what becomes of what a rank has had prepared here: that is presumed aborted, as if it said so.
    pub(crate) fn peer_lost(&mut self, now: Now, rank: Rank, out: &mut Outbox) {
        for id in self.prepared_for(rank).map(|(id, _)| id).collect::<Vec<_>>() {
            self.peer(now, rank, PeerMessage::Finish { id, vote: None }, out);
        }
        for id in self.unfinished_at(rank).collect::<Vec<_>>() {
            self.finished(rank, id);
        }
    }

    /// What is prepared here, with the changes that would be made: whether they are, that rank alone knows.
    pub fn prepared_for(&self, coordinator: Rank) -> impl Iterator<Item = (TransactionId, &[Edit])> {
        self.state.transactions.iter().filter_map(move |(id, it)| match &it.what {
            What::Prepared(part, _) if id.rank == coordinator => Some((*id, part.edits.as_slice())),
            _ => None,
        })
    }

    /// Transactions of this rank's, committed, of which another has not said that it has carried out its part.
    pub fn unfinished_at(&self, rank: Rank) -> impl Iterator<Item = TransactionId> {
        self.ranks.unfinished.iter().filter(move |(_, ranks)| ranks.contains_key(&rank)).map(|(id, _)| *id)
    }

    /// Asks what becomes of what is prepared.
    pub(crate) fn inquire(&mut self, of: impl Fn(Rank) -> bool) {
        let prepared = self.state.transactions.iter().filter_map(|(id, it)| match it.what {
            What::Prepared(_, vote) if of(id.rank) => Some((*id, vote)),
            _ => None,
        });
        for (id, vote) in prepared.collect::<Vec<_>>() {
            self.tell_rank(id.rank, PeerMessage::Inquire { id, vote });
        }
    }

    /// Another rank wants to know what has become of a transaction of this one.
    fn inquired(&mut self, from: Rank, id: TransactionId, vote: Vote) {
        let unfinished = self.ranks.unfinished.get(&id);
        let is_open = self.ranks.asking.contains_key(&id) || self.state.committed(id).is_some();
        if unfinished.is_none() && is_open {
            // It is not decided yet, or not durably.
            return;
        }
        // What nobody knows is aborted.
        let vote = unfinished.and_then(|ranks| ranks.get(&from).copied()).filter(|its| *its == vote);
        self.tell_rank(from, PeerMessage::Finish { id, vote });
    }

    /// A transaction of this rank's is durable: the others may carry out their parts.
    pub(crate) fn committed_durably(&mut self, id: TransactionId) {
        let ranks: Vec<(Rank, Vote)> = self.state.committed(id).unwrap_or_default().to_vec();
        for (rank, vote) in &ranks {
            self.tell_rank(*rank, PeerMessage::Finish { id, vote: Some(*vote) });
        }
        self.ranks.unfinished.insert(id, ranks.into_iter().collect());
    }

    fn finished(&mut self, from: Rank, id: TransactionId) {
        let Some(ranks) = self.ranks.unfinished.get_mut(&id) else { return };
        ranks.remove(&from);
        if ranks.is_empty() {
            self.ranks.unfinished.remove(&id);
            // It needs nothing that would have to be loaded.
            let _ = self.append(&Event::Forgotten { id });
        }
    }

    /// After a restart: takes up what there was.
    pub(crate) fn recover_transactions(&mut self) {
        let mut prepared = Vec::new();
        for (id, it) in &self.state.transactions {
            match &it.what {
                What::Prepared(part, _) => prepared.push((part.age(*id), part.edits.clone())),
                What::Committed(ranks) => {
                    self.ranks.unfinished.insert(*id, ranks.iter().copied().collect());
                }
            }
        }
        for (age, edits) in prepared {
            self.state.lock(age, &edits);
        }
    }

    /// Locks have gone: whoever wants what was locked tries again.
    fn resume_locked_out(&mut self, now: Now, out: &mut Outbox) {
        for number in core::mem::take(&mut self.ranks.locked_out) {
            self.resume(now, number, out);
        }
    }

    /// Transactions that have not come to their end here.
    pub fn open_transactions(&self) -> usize {
        self.state.transactions.len()
    }
}
