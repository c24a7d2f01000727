//! Write-behind: writes to streams that are acknowledged before the data servers have executed
//! them. Eligible are files that no other client knows.
//! Revocations, syncs and closes of the file are blocked on its pending writes; an error is
//! reported then, or by the next write.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::take;
use core::ops::Range;

use bytes::Bytes;
use espalier_proto::{Caller, Errno, Ino, RangeOp, Rank};

use super::call_state::CallState;
use super::pending_calls::PendingCall;
use super::writeback::{ChangeKind, PendingOp};
use super::{Actions, IncomingCall, OwnedCall, Sessions, Waiter};
use crate::{Answer, Call, Next, Payload, RangeCall};

/// Maximum number of pending writes: enough to keep servers busy until the next ones arrive.
const MOST: usize = 64;
/// Maximum number of pending bytes.
const MOST_BYTES: u64 = 8 << 20;
/// Longest write in bytes that is gathered: the data of a longer one costs more than its message.
const SHORT: usize = 16 << 10;
/// Size in bytes at which gathered writes are sent.
const TOGETHER_BYTES: usize = 256 << 10;
/// Minimum size in bytes that a gathered piece counts, since its offset is sent, too.
const PIECE_BYTES: usize = 256;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct WriteBehind {
    /// Pending writes by number; all gathered pieces of a file are one.
    writes: BTreeMap<u64, Write>,
    files: BTreeMap<Ino, DirtyFile>,
    bytes: u64,
}

#[derive(Debug)]
struct Write {
    change: PendingOp,
    /// The pieces, each with the frontend's number of its call.
    pieces: Vec<(u64, Range<u64>)>,
    /// Unanswered requests; 0: the pieces are still being gathered.
    left: usize,
    failed: Option<Errno>,
}

/// A file with pending writes.
#[derive(Debug, Default)]
struct DirtyFile {
    /// Pending byte ranges, start to end, disjoint.
    pieces: BTreeMap<u64, u64>,
    gathered: Option<Gathered>,
}

/// Short writes to a file with other pending writes, gathered into one request. They are sent when
/// they are large enough, when something is blocked on them, or with the next tick.
#[derive(Debug)]
struct Gathered {
    number: u64,
    caller: Caller,
    call_state: CallState,
    bytes: usize,
    /// By offset.
    pieces: BTreeMap<u64, Bytes>,
}

impl WriteBehind {
    pub fn changes(&self) -> impl Iterator<Item = &PendingOp> {
        self.writes.values().map(|write| &write.change)
    }

    pub fn count(&self) -> usize {
        self.writes.len()
    }

    /// True if writes to this file are pending.
    pub fn is_any_of(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// True if writes to a file in this directory are pending.
    pub fn is_any_in(&self, dir: Ino) -> bool {
        self.changes().any(|change| change.dir == dir)
    }

    /// The frontend's number of the call.
    pub fn call_of(&self, number: u64) -> Option<u64> {
        self.writes.get(&number).map(|write| write.change.call)
    }

    /// True if the call made a write that is pending.
    pub fn is_any_by(&self, call: u64) -> bool {
        self.writes.values().flat_map(|write| &write.pieces).any(|(by, _)| *by == call)
    }

    fn has_room(&self, length: u64) -> bool {
        self.writes.len() < MOST && self.bytes + length <= MOST_BYTES
    }

    fn overlaps(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        let pieces = self.files.get(&ino).map(|file| &file.pieces);
        let before = pieces.and_then(|pieces| pieces.range(..bytes.end).next_back());
        before.is_some_and(|(_, end)| *end > bytes.start)
    }

    /// The number of the file's gathered write, if there is one.
    fn gathers(&self, ino: Ino) -> Option<u64> {
        Some(self.files.get(&ino)?.gathered.as_ref()?.number)
    }

    /// Overwrites a gathered piece of the same range; returns false if there is none.
    fn replace(&mut self, ino: Ino, call: u64, offset: u64, data: &Payload<'_>) -> bool {
        let gathered = self.files.get_mut(&ino).and_then(|file| file.gathered.as_mut());
        let Some(Gathered { number, pieces, .. }) = gathered else { return false };
        let piece = pieces.get_mut(&offset).filter(|piece| piece.len() == data.len());
        let Some((piece, write)) = piece.zip(self.writes.get_mut(number)) else { return false };
        *piece = data.to_bytes();
        // The bytes are counted already.
        write.pieces.push((call, offset..offset));
        true
    }

    fn begin(&mut self, change: PendingOp) {
        self.files.entry(change.ino).or_default();
        let write = Write { change, pieces: Vec::new(), left: 0, failed: None };
        self.writes.insert(write.change.number, write);
    }

    /// Adds a piece to a pending write.
    fn add(&mut self, number: u64, call: u64, bytes: Range<u64>) {
        let Some(write) = self.writes.get_mut(&number) else { return };
        let Some(file) = self.files.get_mut(&write.change.ino) else { return };
        self.bytes += bytes.end - bytes.start;
        file.pieces.insert(bytes.start, bytes.end);
        write.pieces.push((call, bytes));
    }

    /// Records that the write was sent as this many requests.
    fn send(&mut self, number: u64, requests: usize) {
        if let Some(write) = self.writes.get_mut(&number) {
            write.left = requests;
        }
    }

    /// Handles the reply to a request. Returns the operation and its error if this was the last
    /// reply.
    fn end(&mut self, number: u64, failed: Option<Errno>) -> Option<(PendingOp, Option<Errno>)> {
        let write = self.writes.get_mut(&number)?;
        write.failed = write.failed.or(failed);
        if write.left > 1 {
            write.left -= 1;
            return None;
        }
        let Write { change, pieces, failed, .. } = self.writes.remove(&number)?;
        let file = self.files.get_mut(&change.ino)?;
        for (_, bytes) in pieces {
            file.pieces.remove(&bytes.start);
            self.bytes -= bytes.end - bytes.start;
        }
        if file.pieces.is_empty() {
            self.files.remove(&change.ino);
        }
        Some((change, failed))
    }

    /// Takes the gathered pieces of the files that `of` selects.
    fn take_gathered(&mut self, of: impl Fn(Ino) -> bool) -> Vec<(Ino, Gathered)> {
        let gathered =
            |(ino, file): (&Ino, &mut DirtyFile)| Some((*ino, file.gathered.take_if(|_| of(*ino))?));
        self.files.iter_mut().filter_map(gathered).collect()
    }
}

impl<T> Sessions<T> {
    /// The file's directory and the byte range, if the call is a write that is eligible for
    /// write-behind.
    fn may_write_behind(&self, now: u64, call: &Call<'_>) -> Option<(Ino, Range<u64>)> {
        let Call::Range(RangeCall { ino, op, kill_suid_gid: false, .. }) = *call else { return None };
        let RangeOp::Write { offset, length: 1.. } = op else { return None };
        let end = offset.checked_add(call.data().len() as u64).filter(|_| !op.is_append())?;
        // An announcement must precede the answer to the caller.
        let is_wanted = self.uses_writeback && self.client.is_streamed(ino) && !self.client.announces(ino);
        let (dir, _) = self.cache.sole_holder_dir(ino).filter(|(_, until)| is_wanted && *until > now)?;
        let is_ready = self.server_sessions.get(&self.rank_of(ino))?.link.is_ready();
        // Other pending operations on the file come first.
        let is_plain = !self.cache.has_pending(ino) || self.writeback.write_behind.is_any_of(ino);
        let waits = self.calls.is_any_blocked_about(ino) || self.writeback.has_failed(ino);
        (is_ready && is_plain && !waits).then_some((dir, offset..end))
    }

    /// As [`Self::waits_for_writeback_room`], for writes to streams. A write without others pending
    /// does not wait, however long it is.
    pub(super) fn waits_for_write_behind_room(&self, now: u64, call: &Call<'_>) -> bool {
        let write_behind = &self.writeback.write_behind;
        let is_full = |(_, bytes): (Ino, Range<u64>)| !write_behind.has_room(bytes.end - bytes.start);
        write_behind.count() > 0 && self.may_write_behind(now, call).is_some_and(is_full)
    }

    /// Acknowledges a write before the data servers execute it, if it is eligible; otherwise
    /// returns it.
    pub(super) fn write_behind(
        &mut self,
        now: u64,
        incoming: OwnedCall<T>,
        actions: &mut Actions<T>,
    ) -> Option<OwnedCall<T>> {
        if let Call::Range(RangeCall { ino, op: RangeOp::Write { .. }, .. }) = incoming.call
            && self.uses_writeback
            && self.client.is_streamed(ino)
        {
            self.renew_exclusive(now, ino);
        }
        let Some((dir, bytes)) = self.may_write_behind(now, &incoming.call) else { return Some(incoming) };
        let Call::Range(RangeCall { ino, ref data, .. }) = incoming.call else { return Some(incoming) };
        let (offset, length) = (bytes.start, data.len());
        let next = self.client.start(&incoming.call);
        if !matches!(next, Next::Data(..) | Next::Stream(_)) {
            return Some(incoming);
        }
        let write_behind = &mut self.writeback.write_behind;
        let gathers = write_behind.is_any_of(ino) && length <= SHORT;
        let replaces = gathers && write_behind.replace(ino, incoming.call_id, offset, data);
        if !replaces && (!write_behind.has_room(length as u64) || write_behind.overlaps(ino, &bytes)) {
            return Some(incoming);
        }
        let IncomingCall { call_id, caller, call, ticket } = incoming;
        let changes = self.cache.sent(&call, now);
        let call_state = CallState { begun: now, epoch: self.cache.epoch(), changes, ..CallState::default() };
        let mut answer = Answer::Written(length as u32);
        let lease_ms = self.retain_pages(now, call_state.epoch, &call, &mut answer, 0, actions);
        actions.answer_leased(ticket, Ok(answer), lease_ms);
        if replaces {
            return None;
        }
        let number = self.writeback.write_behind.gathers(ino).filter(|_| gathers).unwrap_or_else(|| {
            let change = self.writeback.new_change(call_id, dir, ChangeKind::Bytes, ino, now);
            let number = change.number;
            self.writeback.write_behind.begin(change);
            self.cache.begin_write_behind(ino);
            number
        });
        self.writeback.write_behind.add(number, call_id, bytes);
        match call {
            Call::Range(RangeCall { data, .. }) if gathers => {
                let (bytes, pieces) = (0, BTreeMap::new());
                let new = Gathered { number, caller, call_state, bytes, pieces };
                self.gather(ino, new, offset, data.to_bytes(), actions);
            }
            call => {
                // A long write is sent at once and in order, so that the server can write out a
                // sequential file before its end.
                self.send_gathered(|of| of == ino, actions);
                self.writeback.write_behind.send(number, 1);
                let pending = PendingCall::acknowledged(number, caller, call, call_state);
                self.advance(now, pending, next, 0, actions);
            }
        }
        None
    }

    /// Gathers a piece with those before it, or in `new` if it is the first.
    fn gather(&mut self, ino: Ino, new: Gathered, offset: u64, piece: Bytes, actions: &mut Actions<T>) {
        let Some(file) = self.writeback.write_behind.files.get_mut(&ino) else { return };
        let gathered = file.gathered.get_or_insert(new);
        gathered.bytes += piece.len().max(PIECE_BYTES);
        gathered.pieces.insert(offset, piece);
        if gathered.bytes >= TOGETHER_BYTES {
            self.send_gathered(|of| of == ino, actions);
        }
    }

    /// Sends the gathered writes that something is blocked on.
    pub(super) fn send_wanted(&mut self, actions: &mut Actions<T>) {
        let is_wanted = |ino| !self.revocations.is_empty() || self.calls.is_any_blocked_on(ino);
        let wanted = self.writeback.write_behind.take_gathered(is_wanted);
        self.send_lists(wanted, actions);
    }

    /// Sends the gathered writes of the files that `of` selects.
    pub(super) fn send_gathered(&mut self, of: impl Fn(Ino) -> bool, actions: &mut Actions<T>) {
        let gathered = self.writeback.write_behind.take_gathered(of);
        self.send_lists(gathered, actions);
    }

    fn send_lists(&mut self, lists: Vec<(Ino, Gathered)>, actions: &mut Actions<T>) {
        for (ino, gathered) in lists {
            let Gathered { number, caller, call_state, pieces, .. } = gathered;
            self.writeback.write_behind.send(number, 1);
            let pieces: Vec<_> = pieces.into_iter().collect();
            let Some((op, data)) = RangeOp::list(&pieces) else { continue };
            let (data, noatime, kill_suid_gid) = (Payload::Shared(data), false, false);
            let call = Call::Range(RangeCall { ino, op, data, noatime, kill_suid_gid });
            let next = self.client.start(&call);
            // The lease of the reply counts from the beginning of the first write.
            let begun = call_state.begun;
            let pending = PendingCall::acknowledged(number, caller, call, call_state);
            self.advance(begun, pending, next, 0, actions);
        }
    }

    /// Sends the pieces of a list one by one, because each needs permission or the
    /// file is stuffed again.
    pub(super) fn write_apart(&mut self, now: u64, pending: PendingCall<T>, actions: &mut Actions<T>) {
        let PendingCall { incoming, call_state } = pending;
        let Call::Range(RangeCall { ino, op, data: Payload::Shared(list), .. }) = incoming.call else {
            return actions.answer(incoming.ticket, Err(Errno::EIO));
        };
        let (Ok(pieces), Waiter::Acknowledged(number)) = (op.pieces(&list), &incoming.ticket) else {
            return actions.answer(incoming.ticket, Err(Errno::EIO));
        };
        let number = *number;
        let CallState { begun, epoch, .. } = call_state;
        self.writeback.write_behind.send(number, pieces.len());
        for (offset, piece) in pieces {
            let call = Call::write(ino, offset, list.slice_ref(piece).into(), false);
            let changes = self.cache.sent(&call, now);
            let call_state = CallState { begun, epoch, changes, ..CallState::default() };
            let next = self.client.start(&call);
            let pending = PendingCall::acknowledged(number, incoming.caller.clone(), call, call_state);
            self.advance(now, pending, next, 0, actions);
        }
    }

    /// Handles the end of a session: gathered writes that were not sent fail.
    pub(super) fn lose_gathered(&mut self, rank: Rank, actions: &mut Actions<T>) {
        let locations = &self.client.locations;
        let lost = self.writeback.write_behind.take_gathered(|ino| locations.of(ino) == rank);
        actions.over.extend(lost.into_iter().map(|(_, gathered)| (gathered.number, Some(Errno::EIO))));
    }

    /// Processes finished writes; returns true if there were any.
    pub(super) fn complete_write_behind(&mut self, actions: &mut Actions<T>) -> bool {
        let over = take(&mut actions.over);
        let is_any = !over.is_empty();
        for (number, failed) in over {
            let Some((change, failed)) = self.writeback.write_behind.end(number, failed) else { continue };
            self.cache.end_write_behind(change.ino);
            if let Some(errno) = failed {
                self.pending_failed(change, errno, actions);
            }
        }
        is_any
    }

    /// As [`Self::resume_blocked`], if a write has finished.
    pub(super) fn resume_after_write_behind(&mut self, now: u64, actions: &mut Actions<T>) {
        if self.complete_write_behind(actions) {
            self.resume_blocked(now, actions);
        }
    }

    /// True if a close of the file must wait for its pending writes, or report an error.
    pub fn has_write_behind(&self, ino: Ino) -> bool {
        let ino = self.real(ino);
        self.writeback.write_behind.is_any_of(ino) || self.writeback.has_failed(ino)
    }
}
