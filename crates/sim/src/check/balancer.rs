//! Rules of balancers, whatever their policies are:
//!
//! - A balancer moves no fragment again before the dwell time since its last move is over, begins
//!   at most as many moves in a window as the limit says, and moves to other ranks that exist.
//! - A fragment arrives at other ranks no more often than by these rules: from a decision to the
//!   arrival after the next n moves passes n times the dwell time at least. This holds whatever the
//!   ranks remember of earlier moves. A fragment is a number in a directory, which stays the same
//!   while others split off and merge.
//! - No rank stops serving: when faults are over and the sessions of dead clients have ended, a
//!   call other than for a lock gets its result in time.

use std::collections::BTreeMap;

use espalier_balancer::MovePlan;
use espalier_client::Call;
use espalier_meta::{Body, DecisionRequest, Edit, PeerMessage, Question};
use espalier_proto::{Ino, Rank, Request};

use crate::balancer::BalancerSettings;
use crate::message::Message;
use crate::time::Nanos;

/// Difference of clocks that count milliseconds and run at different rates, within a run.
const CLOCKS: Nanos = Nanos(50_000_000);

/// Maximum duration of a call without faults: it waits for leases of others and for moves.
const SERVED: Nanos = Nanos(10_000_000_000);

/// A directory, and the number of its fragment.
type FragmentKey = (Ino, u16);

/// See the module description.
pub struct BalancerChecker {
    settings: BalancerSettings,
    ranks: u16,
    /// The fragment of each record that has names of another directory.
    fragments: BTreeMap<Ino, FragmentKey>,
    /// The record that has got names of a fragment last.
    records: BTreeMap<FragmentKey, Ino>,
    /// The times at which the moves of a fragment were decided.
    moved: BTreeMap<FragmentKey, Vec<Nanos>>,
    /// Records that are to move, since when.
    decided: BTreeMap<Ino, Nanos>,
    /// Calls without a result, by client and number, since when.
    pending: BTreeMap<(u32, u64), Nanos>,
    /// Time from which on no fault has effects.
    recovered: Nanos,
    /// Number of moves that balancers decided, and that began.
    pub counts: [u64; 2],
    /// The longest call since faults had no effects.
    pub longest: Nanos,
}

impl BalancerChecker {
    /// `recovered`: faults have no effects from then on.
    pub fn new(settings: BalancerSettings, ranks: u16, recovered: Nanos) -> Self {
        let (fragments, records, moved, decided, pending) = Default::default();
        let (counts, longest) = ([0; 2], Nanos::ZERO);
        Self { settings, ranks, fragments, records, moved, decided, pending, recovered, counts, longest }
    }

    pub fn invoked(&mut self, now: Nanos, client: u32, number: u64, call: &Call<'_>) {
        // A lock may be held for as long as its holder likes.
        if !matches!(call, Call::Request(Request::Lock { .. })) {
            self.pending.insert((client, number), now.max(self.recovered));
        }
    }

    pub fn answered(&mut self, now: Nanos, client: u32, number: u64) {
        if let Some(since) = self.pending.remove(&(client, number)).filter(|since| *since <= now) {
            self.longest = self.longest.max(now - since);
        }
    }

    /// A client has ended: its calls get no results.
    pub fn lost(&mut self, client: u32) {
        self.pending.retain(|(of, _), _| *of != client);
    }

    /// # Errors
    /// The broken rule.
    pub fn check_time(&self, now: Nanos) -> Result<(), String> {
        let late = self.pending.iter().find(|(_, since)| **since + SERVED < now);
        late.map_or(Ok(()), |((client, number), since)| {
            Err(format!(
                "a rank does not serve: call {number} of client {client} waits since {since} at {now}"
            ))
        })
    }

    /// A message of another rank arrives at a rank.
    ///
    /// # Errors
    /// The broken rule.
    pub fn arrives(&mut self, now: Nanos, message: &Message) -> Result<(), String> {
        let Message::Peer(PeerMessage::Ask { question: Question::Prepare { edits, .. }, .. }) = message
        else {
            return Ok(());
        };
        for edit in edits {
            if let Edit::Make { inode } = edit
                && let Body::Directory(directory) = &inode.body
                && let Some(number) = inode.fragment()
            {
                self.fragments.insert(inode.ino, (directory.parent, number));
            }
        }
        edits.iter().try_for_each(|edit| match edit {
            Edit::AcceptNames { fragment, .. } => self.arrived(now, *fragment),
            _ => Ok(()),
        })
    }

    /// A record gets names: its fragment moves or has split off, in steps, and perhaps not at the
    /// first attempt, or another one merges into it.
    fn arrived(&mut self, now: Nanos, record: Ino) -> Result<(), String> {
        let (dir, number) = *self.fragments.get(&record).unwrap_or(&(record, 0));
        let before = self.records.insert((dir, number), record).or((number == 0).then_some(dir));
        let Some(before) = before.filter(|before| *before != record) else { return Ok(()) };
        // Absent at another attempt.
        let Some(decided) = self.decided.remove(&before) else { return Ok(()) };
        let moves = self.moved.entry((dir, number)).or_default();
        moves.push(decided);
        self.counts[1] += 1;
        let dwell = self.settings.dwell;
        let last = moves.len() - 1;
        for (at, since) in moves.iter().enumerate() {
            let least = *since + Nanos(dwell.0.saturating_mul((last - at) as u64));
            if now + CLOCKS < least {
                return Err(format!(
                    "fragment {number} of directory {dir} bounces: {} moves since {since} at {now}, with a \
                     dwell time of {dwell}",
                    last - at + 1
                ));
            }
        }
        Ok(())
    }

    /// A balancer has decided.
    ///
    /// # Errors
    /// The broken rule.
    pub fn balanced(&mut self, now: Nanos, request: &DecisionRequest, plan: &MovePlan) -> Result<(), String> {
        let BalancerSettings { dwell, window, moves, .. } = self.settings;
        let is_recent = |at_ms: u64, time: Nanos| request.now_ms < at_ms.saturating_add(time.as_millis());
        let rank = request.rank;
        for planned in &plan.moves {
            let candidate = &request.candidates[planned.fragment];
            if planned.to >= self.ranks || Rank(planned.to) == rank {
                return Err(format!("rank {} moves inode {} to rank {}", rank.0, candidate.ino, planned.to));
            }
            if candidate.moved_ms.is_some_and(|at_ms| is_recent(at_ms, dwell)) {
                return Err(format!(
                    "inode {} bounces at rank {}, before {dwell} are over",
                    candidate.ino, rank.0
                ));
            }
            self.decided.entry(candidate.ino).or_insert(now);
        }
        self.counts[0] += plan.moves.len() as u64;
        let recent = request.recent_moves_ms.iter().filter(|at_ms| is_recent(**at_ms, window)).count();
        if !plan.moves.is_empty() && recent + plan.moves.len() > moves {
            return Err(format!("rank {} begins {} moves in {window}", rank.0, recent + plan.moves.len()));
        }
        Ok(())
    }
}
