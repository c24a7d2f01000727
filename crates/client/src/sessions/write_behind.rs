//! Writes to streams that callers are told of before data servers have done them (write-behind): of files that nobody else knows. Who else
//! comes to know one, or is to see that it is durable, or closed, waits until they are done; and what could not be done is told then, or with the
//! next write.

use alloc::collections::BTreeMap;
use core::ops::Range;

use espalier_proto::{END, Ino};

use super::course::Course;
use super::early::{Change, What};
use super::{Asked, Sessions, Told, Waiter};
use crate::{Answer, Call, Next};

/// So many may be told and not done: as many as data servers have to do while the next ones come.
const MOST: usize = 64;
/// So many bytes of them.
const MOST_BYTES: u64 = 8 << 20;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct WriteBehind {
    /// By their numbers.
    writes: BTreeMap<u64, Write>,
    bytes: u64,
}

#[derive(Debug)]
struct Write {
    change: Change,
    bytes: Range<u64>,
}

impl WriteBehind {
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.writes.values().map(|write| &write.change)
    }

    pub fn count(&self) -> usize {
        self.writes.len()
    }

    /// Whether any is left of a file.
    pub fn is_any_of(&self, ino: Ino) -> bool {
        self.changes().any(|change| change.ino == ino)
    }

    /// Whether any is left of a file in a directory.
    pub fn is_any_in(&self, dir: Ino) -> bool {
        self.changes().any(|change| change.dir == dir)
    }

    /// The door's number of the call.
    pub fn call_of(&self, number: u64) -> Option<u64> {
        self.writes.get(&number).map(|write| write.change.call)
    }

    fn has_room(&self, length: u64) -> bool {
        self.writes.len() < MOST && self.bytes + length <= MOST_BYTES
    }

    fn overlaps(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        let overlaps = |write: &Write| {
            write.change.ino == ino && write.bytes.start < bytes.end && bytes.start < write.bytes.end
        };
        self.writes.values().any(overlaps)
    }

    fn begin(&mut self, change: Change, bytes: Range<u64>) {
        self.bytes += bytes.end - bytes.start;
        self.writes.insert(change.number, Write { change, bytes });
    }

    fn end(&mut self, number: u64) -> Option<Change> {
        let Write { change, bytes } = self.writes.remove(&number)?;
        self.bytes -= bytes.end - bytes.start;
        Some(change)
    }
}

impl<T> Sessions<T> {
    /// The directory of the file that a call writes to, and which bytes, if its caller may be told before it is done.
    fn may_be_behind(&self, now: u64, call: &Call<'_>) -> Option<(Ino, Range<u64>)> {
        let Call::Write { ino, offset, data, kill_suid_gid: false } = call else { return None };
        let end = offset.checked_add(data.len() as u64).filter(|_| *offset != END && !data.is_empty())?;
        let is_wanted = self.tells_early && self.client.is_streamed(*ino);
        let dir = self.cache.alone_dir(*ino, now).filter(|_| is_wanted)?;
        let is_ready = self.ends.get(&ino.rank())?.link.is_ready();
        // What is told of the file in other ways comes first.
        let is_plain = !self.cache.is_early(*ino) || self.early.behind.is_any_of(*ino);
        let waits = self.behind.is_any_about(*ino) || self.early.has_failed(*ino);
        (is_ready && is_plain && !waits).then_some((dir, *offset..end))
    }

    /// As [`Self::waits_for_room`], of such a write. One that is alone has room, or is too large ever to have it.
    pub(super) fn waits_for_room_behind(&self, now: u64, call: &Call<'_>) -> bool {
        let behind = &self.early.behind;
        let is_full = |(_, bytes): (Ino, Range<u64>)| !behind.has_room(bytes.end - bytes.start);
        behind.count() > 0 && self.may_be_behind(now, call).is_some_and(is_full)
    }

    /// Answers a write before data servers have done it, if that can be; returns it if not.
    pub(super) fn write_behind(
        &mut self,
        now: u64,
        asked: Asked<'static, Waiter<T>>,
        told: &mut Told<T>,
    ) -> Option<Asked<'static, Waiter<T>>> {
        let Some((dir, bytes)) = self.may_be_behind(now, &asked.call) else { return Some(asked) };
        let length = bytes.end - bytes.start;
        let Call::Write { ino, .. } = asked.call else { return Some(asked) };
        if !self.early.behind.has_room(length) || self.early.behind.overlaps(ino, &bytes) {
            return Some(asked);
        }
        let next = self.client.start(&asked.call);
        if !matches!(next, Next::Data(..) | Next::Stream(_)) {
            return Some(asked);
        }
        let Asked { call_id, caller, call, ticket } = asked;
        let change = self.early.new_change(call_id, (dir, What::Bytes), ino, now);
        let number = change.number;
        self.early.behind.begin(change, bytes);
        self.cache.written_behind(ino);
        let changes = self.cache.sent(&call, now);
        let course = Course { begun: now, turn: self.cache.turn(), changes, ..Course::default() };
        let mut answer = Answer::Written(length as u32);
        let lease_ms = self.keep(now, course.turn, &call, &mut answer, 0, told);
        told.answer_leased(ticket, Ok(answer), lease_ms);
        // No signal reaches it.
        let (call_id, ticket) = (0, Waiter::Nobody(number));
        self.advance(now, (Asked { call_id, caller, call, ticket }, course), next, 0, told);
        None
    }

    /// Takes note of what has been done, or could not be. Whether there was any.
    pub(super) fn end_behind(&mut self, told: &mut Told<T>) -> bool {
        let over = core::mem::take(&mut told.over);
        let is_any = !over.is_empty();
        for (number, failed) in over {
            let Some(change) = self.early.behind.end(number) else { continue };
            self.cache.done_behind(change.ino);
            if let Some(errno) = failed {
                self.early_failed(change, errno, told);
            }
        }
        is_any
    }

    /// As [`Self::go_on_behind`], if anything is done.
    pub(super) fn go_on_after(&mut self, now: u64, told: &mut Told<T>) {
        if self.end_behind(told) {
            self.go_on_behind(now, told);
        }
    }

    /// Whether closing a file is to wait for what has been written to it, or to tell what could not be.
    pub fn is_behind(&self, ino: Ino) -> bool {
        let ino = self.real(ino);
        self.early.behind.is_any_of(ino) || self.early.has_failed(ino)
    }
}
