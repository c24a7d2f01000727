//! Commit coalescing (carns III.C): decides when events are appended to the journal, when it is
//! synced, and when replies may leave (see [`Acknowledge`]; no other module decides that).
//!
//! - Under low load each operation that must be durable is committed at once. When requests queue
//!   up (low watermark), commits are delayed until enough operations wait (high watermark) or the
//!   queue has drained. No timer is involved; events that no operation waits for are committed once
//!   a second.
//! - With [`Acknowledge::Volatile`], a frame is written without a sync a few milliseconds later
//!   ([`Io::WriteDelay`](crate::Io)), so the end of the process loses no more than that.
//! - With [`Acknowledge::Written`], syncs run beside frames: an operation that waits for a sync
//!   does not block others.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno, Ino, Position, Rank, Reply, RequestId};

use crate::event::Event;
use crate::lease::PreparedGrant;
use crate::rank::{PeerMessage, TransactionId};

/// When a change is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// When it is made: for a client that ends with the process.
    Volatile,
    /// When it is in the journal's file: a power failure may lose the last second, the end of the
    /// process loses nothing. Replies to requests that changed nothing wait too, since they may
    /// expose changes.
    Written,
    /// When it is durable.
    Durable,
}

/// A message or grant that is held back until a certain event is durable or written.
#[derive(Debug)]
// Nearly all are replies.
#[allow(clippy::large_enum_variant)]
pub(crate) enum HeldOutput {
    Reply(ClientId, RequestId, Result<Reply, Errno>, PreparedGrant),
    /// Resume an operation.
    Task(u64),
    /// Remove the stream of an orphan. If the event that removed its last name were lost, the
    /// stream would be missing.
    RemoveStream(Ino),
    /// Mark the stream of an unstuffed file as final.
    FinaliseStream(Ino),
    /// Report a session that has started or resumed, or has failed to.
    Session(ClientId, Result<(), Errno>),
    /// Send a message to another rank.
    Peer(Rank, PeerMessage),
    /// Announce a committed transaction to its participants.
    Committed(TransactionId),
    /// Continue with the pool: datafiles may be made or used.
    Pool,
}

/// State of the delay between the first event of a frame that no operation waits for and its
/// writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteDelay {
    Idle,
    Running,
    Over,
}

#[derive(Debug)]
pub(crate) struct Journal {
    /// Events not handed to the driver, after those of `changes`.
    frame: Vec<u8>,
    /// Frames of changes that are committed separately, with their last events.
    changes: VecDeque<(Vec<u8>, u64)>,
    /// Size of `changes` in bytes.
    bytes_of_changes: usize,
    /// Memory of an earlier frame for reuse: new memory costs a page fault per page.
    spare: Vec<u8>,
    /// Sequence number of the last event in `frame`.
    last: u64,
    /// The frame that the driver is appending.
    in_flight: Option<InFlight>,
    /// A sync beside frames, of all events up to this one, is in progress.
    syncing: Option<u64>,
    /// A sync beside frames is needed.
    sync_due: bool,
    write_delay: WriteDelay,
    acknowledge: Acknowledge,
    /// All events up to this one are durable.
    pub durable: u64,
    /// All events up to this one are durable, or written to the journal's file.
    written: u64,
    /// The coalescing queue: what waits for its event to be durable, by event.
    held: VecDeque<(u64, HeldOutput)>,
    /// Output that waits for its event to be written.
    unwritten: VecDeque<(u64, HeldOutput)>,
    /// End of the journal, as reported by the driver.
    pub end: Position,
    pub used: u64,
    capacity: u64,
    low_watermark: usize,
    high_watermark: usize,
    /// Events have been appended since the last sync.
    unsynced: bool,
    /// Set permanently when the journal could not be written.
    pub broken: Option<Errno>,
    /// Number of syncs requested, and of replies that have waited for one.
    pub syncs: u64,
    pub synced_replies: u64,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    last: u64,
    sync: bool,
    bytes: u64,
}

impl Journal {
    /// Size in bytes at which a frame is handed to the driver; bounds memory.
    const FRAME_BYTES: usize = 512 * 1024;
    /// Reserve in bytes for the additions of an operation and of the driver's framing.
    const RESERVE: u64 = 1024 * 1024;

    pub(crate) fn new(
        sequence: u64,
        end: Position,
        used: u64,
        capacity: u64,
        watermarks: (usize, usize),
        acknowledge: Acknowledge,
    ) -> Self {
        Self {
            frame: Vec::new(),
            changes: VecDeque::new(),
            bytes_of_changes: 0,
            spare: Vec::new(),
            last: sequence,
            in_flight: None,
            syncing: None,
            sync_due: false,
            write_delay: WriteDelay::Idle,
            acknowledge,
            durable: sequence,
            written: sequence,
            held: VecDeque::new(),
            unwritten: VecDeque::new(),
            end,
            used,
            capacity,
            low_watermark: watermarks.0,
            high_watermark: watermarks.1,
            unsynced: false,
            broken: None,
            syncs: 0,
            synced_replies: 0,
        }
    }

    pub(crate) fn append(&mut self, sequence: u64, event: &Event) {
        if self.frame.is_empty() {
            self.frame.extend_from_slice(&sequence.to_le_bytes());
        }
        event.encode(&mut self.frame);
        self.last = sequence;
        self.unsynced = true;
    }

    /// Sets the watermarks. Changes already separated into frames of their own stay so.
    pub(crate) fn set_watermarks(&mut self, (low, high): (usize, usize)) {
        (self.low_watermark, self.high_watermark) = (low, high);
    }

    /// Holds back a reply until it may leave; returns it if it may leave at once. `until`: the
    /// reply claims that everything up to this event is durable. If that fails, the reply becomes
    /// an error. `coalescing`: as for [`Self::hold_change`].
    pub(crate) fn hold_answer(
        &mut self,
        until: u64,
        answer: HeldOutput,
        coalescing: Option<bool>,
    ) -> Option<HeldOutput> {
        if until > self.durable {
            if self.broken.is_some() {
                return fail(answer, Errno::EIO);
            }
            self.hold_change(until, answer, coalescing);
            None
        } else if self.acknowledge == Acknowledge::Written {
            self.hold_written(answer)
        } else {
            Some(answer)
        }
    }

    /// Holds something back until all events so far are written. Returns it if they are, or never
    /// will be.
    pub(crate) fn hold_written(&mut self, held: HeldOutput) -> Option<HeldOutput> {
        if self.last == self.written || self.broken.is_some() {
            return Some(held);
        }
        self.unwritten.push_back((self.last, held));
        None
    }

    /// As [`Self::hold`], for a change that consists of the events so far and may get a commit of
    /// its own. `coalescing`: whether the change shares commits; `None`: as the watermarks
    /// determine.
    pub(crate) fn hold_change(&mut self, until: u64, held: HeldOutput, coalescing: Option<bool>) {
        self.hold(until, held);
        let is_exclusive = !coalescing.unwrap_or(self.high_watermark > 1);
        if is_exclusive
            && self.acknowledge == Acknowledge::Durable
            && until == self.last
            && !self.frame.is_empty()
        {
            let change = core::mem::replace(&mut self.frame, core::mem::take(&mut self.spare));
            self.bytes_of_changes += change.len();
            self.changes.push_back((change, self.last));
        }
    }

    /// Holds something back until all events up to `until` are durable.
    pub(crate) fn hold(&mut self, until: u64, held: HeldOutput) {
        let at = self.held.partition_point(|(sequence, _)| *sequence <= until);
        self.held.insert(at, (until, held));
    }

    /// The last event that is durable, may become so before the next is appended, or will be
    /// reported as durable to a waiting operation.
    pub(crate) fn durable_bound(&self) -> u64 {
        let held = self.held.back().map_or(0, |(sequence, _)| *sequence);
        let under_way = self.in_flight.map_or(0, |frame| frame.last).max(self.syncing.unwrap_or(0));
        self.durable.max(held).max(under_way)
    }

    /// True if another event fits. Otherwise writers wait until a checkpoint has trimmed the
    /// journal.
    pub(crate) fn has_room(&self) -> bool {
        self.pending_bytes() + Self::RESERVE <= self.capacity
    }

    /// True if a checkpoint is due.
    pub(crate) fn is_half_full(&self) -> bool {
        self.pending_bytes() > self.capacity / 2
    }

    fn pending_bytes(&self) -> u64 {
        self.used + self.in_flight.map_or(0, |frame| frame.bytes) + self.bytes() as u64
    }

    /// Size of the events not handed out, in bytes.
    fn bytes(&self) -> usize {
        self.bytes_of_changes + self.frame.len()
    }

    /// The frame to append, and whether to sync after it. `queued`: length of the scheduling queue.
    pub(crate) fn next_frame(&mut self, queued: usize, flush: bool) -> Option<(Vec<u8>, bool)> {
        if self.in_flight.is_some() || self.broken.is_some() {
            return None;
        }
        let waiting = self.held.len();
        let coalesced = waiting > 0 && (queued < self.low_watermark || waiting >= self.high_watermark);
        let mut sync = coalesced || !self.changes.is_empty() || (flush && self.unsynced);
        let is_full = self.bytes() >= Self::FRAME_BYTES;
        let is_awaited = !self.unwritten.is_empty() && queued == 0;
        let is_delay_over = self.write_delay == WriteDelay::Over;
        if is_delay_over {
            self.write_delay = WriteDelay::Idle;
        }
        if self.acknowledge == Acknowledge::Written {
            self.sync_due |= core::mem::take(&mut sync);
            if self.frame.is_empty() || !(self.sync_due || is_awaited || is_full) {
                return None;
            }
        } else {
            // Here only new sessions wait for a write.
            sync |= is_awaited;
            let is_due = is_full || (is_delay_over && !self.frame.is_empty());
            if !sync && !is_due {
                return None;
            }
        }
        let (frame, last) = self.take_frame();
        self.in_flight = Some(InFlight { last, sync, bytes: frame.len() as u64 });
        self.unsynced &= !sync || last < self.last;
        self.syncs += u64::from(sync);
        Some((frame, sync))
    }

    /// Starts the delay after which the current frame is written even if no operation waits for it.
    /// Returns false if no delay starts.
    pub(crate) fn begin_write_delay(&mut self) -> bool {
        let is_volatile = self.acknowledge == Acknowledge::Volatile && self.broken.is_none();
        let begins = is_volatile && self.write_delay == WriteDelay::Idle && !self.frame.is_empty();
        if begins {
            self.write_delay = WriteDelay::Running;
        }
        begins
    }

    pub(crate) fn end_write_delay(&mut self) {
        self.write_delay = WriteDelay::Over;
    }

    /// Takes all events not handed out, or those of one separate change, with the last event's
    /// number.
    fn take_frame(&mut self) -> (Vec<u8>, u64) {
        if let Some((change, last)) = self.changes.pop_front() {
            self.bytes_of_changes -= change.len();
            return (change, last);
        }
        (core::mem::replace(&mut self.frame, core::mem::take(&mut self.spare)), self.last)
    }

    /// Returns what waits for events that are already durable, as the removal of a stream does if
    /// its file lost its name long before it was closed.
    pub(crate) fn due(&mut self) -> Vec<HeldOutput> {
        if self.broken.is_some() { Vec::new() } else { self.release(self.durable) }
    }

    /// Returns true if everything written is to be synced.
    pub(crate) fn next_sync(&mut self) -> bool {
        let first = self.held.front().map_or(0, |(sequence, _)| *sequence);
        let is_busy = self.syncing.is_some() || self.broken.is_some();
        if is_busy || !self.sync_due || first > self.written {
            return false;
        }
        self.sync_due = false;
        self.unsynced = self.written < self.last;
        if self.written <= self.durable {
            return false;
        }
        self.syncing = Some(self.written);
        self.syncs += 1;
        true
    }

    /// Completes a sync beside frames. Returns what it releases.
    pub(crate) fn synced(&mut self, result: Result<(), Errno>) -> Vec<HeldOutput> {
        match (self.syncing.take(), result) {
            (Some(sequence), Ok(())) => self.release(sequence),
            (None, Ok(())) => Vec::new(),
            (_, Err(errno)) => self.fail(errno),
        }
    }

    fn fail(&mut self, errno: Errno) -> Vec<HeldOutput> {
        self.broken = Some(errno);
        let held = self.held.drain(..).chain(self.unwritten.drain(..));
        held.filter_map(|(_, held)| fail(held, errno)).collect()
    }

    /// Takes back the memory of a frame.
    pub(crate) fn recycle(&mut self, mut frame: Vec<u8>) {
        frame.clear();
        if frame.capacity() > self.spare.capacity() && frame.capacity() <= 2 * Self::FRAME_BYTES {
            self.spare = frame;
        }
    }

    /// Completes the frame in flight. Returns what it releases.
    pub(crate) fn appended(&mut self, result: Result<(Position, u64), Errno>) -> Vec<HeldOutput> {
        let Some(frame) = self.in_flight.take() else { return Vec::new() };
        match result {
            Ok((end, used)) => {
                (self.end, self.used) = (end, used);
                let mut released = self.release_written(frame.last);
                if frame.sync {
                    released.append(&mut self.release(frame.last));
                }
                released
            }
            Err(errno) => self.fail(errno),
        }
    }

    /// Handles a durable checkpoint that contains all events up to `sequence`. Returns what it
    /// releases.
    pub(crate) fn checkpointed(&mut self, sequence: u64, used: u64) -> Vec<HeldOutput> {
        self.used = used;
        let mut released = self.release_written(sequence);
        released.append(&mut self.release(sequence));
        released
    }

    fn release_written(&mut self, written: u64) -> Vec<HeldOutput> {
        self.written = self.written.max(written);
        let free = self.unwritten.partition_point(|(sequence, _)| *sequence <= self.written);
        self.unwritten.drain(..free).map(|(_, held)| held).collect()
    }

    fn release(&mut self, durable: u64) -> Vec<HeldOutput> {
        self.durable = self.durable.max(durable);
        let free = self.held.partition_point(|(sequence, _)| *sequence <= self.durable);
        let released: Vec<_> = self.held.drain(..free).map(|(_, held)| held).collect();
        self.synced_replies +=
            released.iter().filter(|held| matches!(held, HeldOutput::Reply(..))).count() as u64;
        released
    }

    /// Output that waits for the frame in flight.
    pub(crate) fn held_by_frame(&self) -> impl Iterator<Item = &HeldOutput> {
        let (last, synced) = self.in_flight.map_or((0, 0), |it| (it.last, if it.sync { it.last } else { 0 }));
        up_to(&self.unwritten, last).chain(up_to(&self.held, synced))
    }

    /// Output that waits for the sync in progress beside frames.
    pub(crate) fn held_by_sync(&self) -> impl Iterator<Item = &HeldOutput> {
        up_to(&self.held, self.syncing.unwrap_or(0))
    }

    /// True if everything is written and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        let is_waited_for = !self.held.is_empty() || !self.unwritten.is_empty();
        let is_idle = self.in_flight.is_none() && self.syncing.is_none();
        self.broken.is_some() || (is_idle && !self.unsynced && !is_waited_for)
    }
}

fn up_to(held: &VecDeque<(u64, HeldOutput)>, last: u64) -> impl Iterator<Item = &HeldOutput> {
    held.iter().take_while(move |(sequence, _)| *sequence <= last).map(|(_, held)| held)
}

/// Fails what waits for durability: nothing is acknowledged, and nothing is done that relies on it.
fn fail(held: HeldOutput, errno: Errno) -> Option<HeldOutput> {
    match held {
        HeldOutput::Reply(from, id, _, grant) => {
            Some(HeldOutput::Reply(from, id, Err(errno), grant.voided()))
        }
        HeldOutput::Session(client, _) => Some(HeldOutput::Session(client, Err(errno))),
        // The operation finds the journal broken.
        HeldOutput::Task(_) => Some(held),
        HeldOutput::RemoveStream(_)
        | HeldOutput::FinaliseStream(_)
        | HeldOutput::Peer(..)
        | HeldOutput::Committed(_)
        | HeldOutput::Pool => None,
    }
}

#[cfg(test)]
mod tests {
    use espalier_proto::{ClientId, Position, RequestId};

    use super::*;

    fn journal() -> Journal {
        Journal::new(0, Position(0), 0, 64 << 20, (1, 8), Acknowledge::Durable)
    }

    fn change(journal: &mut Journal, sequence: u64) {
        journal.append(sequence, &Event::Purge { ino: Ino(sequence) });
        journal.hold(
            sequence,
            HeldOutput::Reply(ClientId(1), RequestId(sequence), Ok(Reply::Done), PreparedGrant::default()),
        );
    }

    #[test]
    fn at_low_load_each_operation_is_committed_at_once() {
        let mut journal = journal();
        for sequence in 1..=3 {
            change(&mut journal, sequence);
            assert!(matches!(journal.next_frame(0, false), Some((_, true))));
            assert_eq!(journal.appended(Ok((Position(sequence * 10), 10))).len(), 1);
        }
    }

    #[test]
    fn above_the_low_watermark_commits_wait_for_the_high_one() {
        let mut journal = journal();
        for sequence in 1..=7 {
            change(&mut journal, sequence);
            assert_eq!(journal.next_frame(5, false), None);
        }
        change(&mut journal, 8);
        assert!(matches!(journal.next_frame(5, false), Some((_, true))));
        assert_eq!(journal.appended(Ok((Position(100), 100))).len(), 8);
        assert_eq!((journal.syncs, journal.synced_replies), (1, 8));
    }

    #[test]
    fn drained_queue_flushes_deferred_events() {
        let mut journal = journal();
        change(&mut journal, 1);
        assert_eq!(journal.next_frame(3, false), None);
        assert!(journal.next_frame(0, false).is_some());
    }

    #[test]
    fn operations_during_a_sync_share_the_next_one() {
        let mut journal = journal();
        change(&mut journal, 1);
        assert!(journal.next_frame(0, false).is_some());
        change(&mut journal, 2);
        change(&mut journal, 3);
        assert_eq!(journal.next_frame(0, false), None, "one frame at a time");
        assert_eq!(journal.appended(Ok((Position(10), 10))).len(), 1);
        assert!(journal.next_frame(0, false).is_some());
        assert_eq!(journal.appended(Ok((Position(20), 20))).len(), 2);
    }

    #[test]
    fn watermarks_change_while_commits_are_put_off() {
        let mut journal = journal();
        let change = |journal: &mut Journal, sequence| {
            journal.append(sequence, &Event::Purge { ino: Ino(sequence) });
            let reply = HeldOutput::Reply(
                ClientId(1),
                RequestId(sequence),
                Ok(Reply::Done),
                PreparedGrant::default(),
            );
            assert!(journal.hold_answer(sequence, reply, None).is_none());
        };
        let answers = |journal: &mut Journal| {
            assert!(matches!(journal.next_frame(0, false), Some((_, true))));
            journal.appended(Ok((Position(10), 10))).len()
        };
        (1..=3).for_each(|sequence| change(&mut journal, sequence));
        assert!(journal.next_frame(5, false).is_none(), "delayed");
        journal.set_watermarks((1, 1));
        (4..=5).for_each(|sequence| change(&mut journal, sequence));
        assert_eq!(answers(&mut journal), 4, "delayed changes go with the next commit");
        assert_eq!(answers(&mut journal), 1);
        (6..=7).for_each(|sequence| change(&mut journal, sequence));
        journal.set_watermarks((1, 8));
        (8..=9).for_each(|sequence| change(&mut journal, sequence));
        assert_eq!([(); 3].map(|()| answers(&mut journal)), [1, 1, 2]);
    }

    #[test]
    fn only_coalescing_changes_share_a_commit() {
        for watermarks in [(1, 8), (1, 1)] {
            let mut journal = Journal::new(0, Position(0), 0, 64 << 20, watermarks, Acknowledge::Durable);
            for (sequence, coalescing) in [(1, true), (2, true), (3, false), (4, false), (5, true), (6, true)]
            {
                journal.append(sequence, &Event::Purge { ino: Ino(sequence) });
                journal.hold_change(sequence, HeldOutput::Pool, Some(coalescing));
            }
            // A commit includes all events before it, and a commit that is not shared is not
            // delayed.
            for released in [3, 1] {
                assert!(matches!(journal.next_frame(5, false), Some((_, true))));
                assert_eq!(journal.appended(Ok((Position(10), 10))).len(), released);
            }
            assert_eq!(journal.next_frame(5, false).is_none(), watermarks == (1, 8), "delayed");
            if watermarks == (1, 8) {
                assert!(matches!(journal.next_frame(0, false), Some((_, true))));
            }
            assert_eq!(journal.appended(Ok((Position(10), 10))).len(), 2);
        }
    }

    #[test]
    fn without_coalescing_each_operation_has_a_commit_of_its_own() {
        let mut journal = Journal::new(0, Position(0), 0, 64 << 20, (1, 1), Acknowledge::Durable);
        let reply =
            |id| HeldOutput::Reply(ClientId(1), RequestId(id), Ok(Reply::Done), PreparedGrant::default());
        for sequence in [1, 3, 5] {
            journal.append(sequence, &Event::Purge { ino: Ino(sequence) });
            journal.append(sequence + 1, &Event::Purge { ino: Ino(sequence + 1) });
            assert!(journal.hold_answer(sequence + 1, reply(sequence), None).is_none());
        }
        // This one has changed nothing, and waits for the last change.
        assert!(journal.hold_answer(6, reply(7), None).is_none());
        let mut whole = Vec::new();
        for (first, answers) in [(1_u64, 1), (3, 1), (5, 2)] {
            let Some((frame, sync)) = journal.next_frame(9, false) else { panic!("a frame of {first}") };
            assert!(sync && frame[..8] == first.to_le_bytes(), "{frame:?}");
            whole.extend_from_slice(&frame[8..]);
            assert_eq!(journal.appended(Ok((Position(first), 10))).len(), answers);
        }
        let mut events = Vec::new();
        (1..=6).for_each(|ino| Event::Purge { ino: Ino(ino) }.encode(&mut events));
        assert_eq!(whole, events);
        assert!(journal.next_frame(0, true).is_none() && journal.is_idle());
    }

    #[test]
    fn peer_request_has_its_own_commit() {
        let mut journal = Journal::new(0, Position(0), 0, 64 << 20, (1, 1), Acknowledge::Durable);
        for sequence in 1..=4 {
            journal.append(sequence, &Event::Purge { ino: Ino(sequence) });
            // Like a participant's part, or an event that no request has caused.
            if sequence <= 2 {
                journal.hold_change(sequence, HeldOutput::Pool, None);
            } else {
                journal.hold(sequence, HeldOutput::Pool);
            }
        }
        for released in [1, 1, 2] {
            assert!(matches!(journal.next_frame(0, false), Some((_, true))));
            assert_eq!(journal.appended(Ok((Position(10), 10))).len(), released);
        }
    }

    #[test]
    fn volatile_changes_are_written_without_a_sync_after_the_delay() {
        let mut journal = Journal::new(0, Position(0), 0, 64 << 20, (1, 8), Acknowledge::Volatile);
        let purge = |journal: &mut Journal, ino| journal.append(ino, &Event::Purge { ino: Ino(ino) });
        assert!(!journal.begin_write_delay(), "nothing to write");
        purge(&mut journal, 1);
        assert!(journal.begin_write_delay());
        assert!(!journal.begin_write_delay(), "one delay at a time");
        assert_eq!(journal.next_frame(0, false), None);
        purge(&mut journal, 2);
        journal.end_write_delay();
        assert!(matches!(journal.next_frame(0, false), Some((_, false))));
        purge(&mut journal, 3);
        assert!(journal.begin_write_delay());
        journal.end_write_delay();
        assert_eq!(journal.next_frame(0, false), None, "one frame at a time");
        assert!(journal.appended(Ok((Position(10), 10))).is_empty());
        assert!(matches!(journal.next_frame(0, false), Some((_, false))));
        assert!(journal.appended(Ok((Position(20), 20))).is_empty());
        assert_eq!(journal.durable, 0);
        assert!(!journal.is_idle());
        assert!(
            matches!(journal.next_frame(0, true), Some((frame, true)) if frame.is_empty()),
            "the tick syncs"
        );
        assert!(journal.appended(Ok((Position(20), 20))).is_empty());
        assert_eq!(journal.durable, 3);
        assert!(journal.is_idle());
    }

    #[test]
    fn frame_written_by_concurrent_sync_is_not_rewritten() {
        let mut journal = Journal::new(0, Position(0), 0, 64 << 20, (1, 8), Acknowledge::Volatile);
        change(&mut journal, 1);
        assert!(journal.begin_write_delay());
        assert!(matches!(journal.next_frame(0, false), Some((_, true))));
        assert_eq!(journal.appended(Ok((Position(10), 10))).len(), 1);
        journal.end_write_delay();
        assert_eq!(journal.next_frame(0, false), None);
        journal.append(2, &Event::Purge { ino: Ino(2) });
        assert_eq!(journal.next_frame(0, false), None, "the frame has a delay of its own");
        assert!(journal.begin_write_delay());
    }

    #[test]
    fn acknowledging_journal_begins_no_write_delay() {
        for acknowledge in [Acknowledge::Written, Acknowledge::Durable] {
            let mut journal = Journal::new(0, Position(0), 0, 64 << 20, (1, 8), acknowledge);
            journal.append(1, &Event::Purge { ino: Ino(1) });
            assert!(!journal.begin_write_delay(), "{acknowledge:?}");
        }
    }

    #[test]
    fn broken_journal_fails_waiting_operations() {
        let mut journal = journal();
        change(&mut journal, 1);
        assert!(journal.next_frame(0, false).is_some());
        let failed = journal.appended(Err(Errno::EIO));
        assert!(matches!(failed[..], [HeldOutput::Reply(_, _, Err(Errno::EIO), _)]));
        assert_eq!(journal.next_frame(0, true), None);
    }

    #[test]
    fn a_full_journal_pushes_back() {
        let mut journal = Journal { capacity: 2 << 20, ..journal() };
        assert!(journal.has_room() && !journal.is_half_full());
        journal.frame = alloc::vec![0; (1 << 20) + 1];
        assert!(!journal.has_room() && journal.is_half_full());
    }
}
