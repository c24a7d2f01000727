//! Repeats reads that overlap a write of the same mount in range and time.
//!
//! The kernel writes into cached pages and then sends the data without these pages' locks. If it
//! drops such a page in between, as when it learns of a new mtime, the next reader requests the
//! page. A reply from before the write would become the page that all later readers see.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_client::{Call, Interrupt};
use espalier_proto::{Caller, Errno, Ino};
use rustix::param::page_size;

use super::{Form, FuseFrontend, Ticket, dies};
use crate::calls::Calls;

/// A read that may have to be repeated.
#[derive(Clone)]
pub(super) struct Read {
    pub(super) unique: u64,
    pub(super) caller: Caller,
    pub(super) ino: Ino,
    pub(super) offset: u64,
    pub(super) size: u32,
    pub(super) noatime: bool,
}

/// Pending reads and writes by file. `T`: the parameters that repeat a read.
pub(super) struct Overlaps<T>(Mutex<HashMap<Ino, Busy<T>>>);

struct Busy<T> {
    writes: Vec<(u64, Range<u64>)>,
    reads: Vec<Reading<T>>,
}

struct Reading<T> {
    unique: u64,
    pages: Range<u64>,
    /// A write was pending at some time since the read was sent.
    stale: bool,
    /// The read is answered and waits for the end of such writes.
    waiting: Option<T>,
}

/// The treatment of the answer to a read.
#[derive(Debug, PartialEq, Eq)]
enum ReadDecision<T> {
    Answer(T),
    Reread(T),
    Wait,
}

impl<T> Overlaps<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Busy<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write begins. `length`: `None` if it may end anywhere.
    pub(super) fn write(&self, ino: Ino, unique: u64, offset: u64, length: Option<u64>) {
        let pages = pages(offset, length);
        let mut all = self.lock();
        let busy = all.entry(ino).or_default();
        for read in busy.reads.iter_mut().filter(|read| overlap(&read.pages, &pages)) {
            read.stale = true;
        }
        busy.writes.push((unique, pages));
    }

    /// A write has ended; returns the reads to repeat.
    fn written(&self, ino: Ino, unique: u64) -> Vec<T> {
        let mut all = self.lock();
        let Some(busy) = all.get_mut(&ino) else { return Vec::new() };
        busy.writes.retain(|(write, _)| *write != unique);
        let Busy { writes, reads } = busy;
        let mut ready = Vec::new();
        for read in reads.iter_mut().filter(|read| !is_written(writes, &read.pages)) {
            if let Some(ticket) = read.waiting.take() {
                read.stale = false;
                ready.push(ticket);
            }
        }
        drop_idle(&mut all, ino);
        ready
    }

    /// A read begins.
    pub(super) fn read(&self, ino: Ino, unique: u64, offset: u64, length: u64) {
        let pages = pages(offset, Some(length));
        let mut all = self.lock();
        let busy = all.entry(ino).or_default();
        let stale = is_written(&busy.writes, &pages);
        busy.reads.push(Reading { unique, pages, stale, waiting: None });
    }

    /// A read is answered.
    fn answered(&self, ino: Ino, unique: u64, ticket: T) -> ReadDecision<T> {
        let mut all = self.lock();
        let Some(busy) = all.get_mut(&ino) else { return ReadDecision::Answer(ticket) };
        let Some(at) = busy.reads.iter().position(|read| read.unique == unique) else {
            return ReadDecision::Answer(ticket);
        };
        let read = &mut busy.reads[at];
        if is_written(&busy.writes, &read.pages) {
            read.waiting = Some(ticket);
            return ReadDecision::Wait;
        }
        if std::mem::take(&mut read.stale) {
            return ReadDecision::Reread(ticket);
        }
        busy.reads.swap_remove(at);
        drop_idle(&mut all, ino);
        ReadDecision::Answer(ticket)
    }

    /// The caller of a waiting read has received a signal. Returns the read's ticket if the signal
    /// ends the caller.
    fn interrupt(&self, unique: u64, dies: impl FnOnce(&T) -> bool) -> Option<Option<T>> {
        let mut all = self.lock();
        let is_waiting_read = |read: &Reading<T>| read.unique == unique && read.waiting.is_some();
        let (ino, busy) = all.iter_mut().find(|(_, busy)| busy.reads.iter().any(is_waiting_read))?;
        let (ino, at) = (*ino, busy.reads.iter().position(is_waiting_read)?);
        if !busy.reads[at].waiting.as_ref().is_some_and(dies) {
            return Some(None);
        }
        let read = busy.reads.swap_remove(at);
        drop_idle(&mut all, ino);
        Some(read.waiting)
    }
}

impl<T> Default for Overlaps<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Default for Busy<T> {
    fn default() -> Self {
        Self { writes: Vec::new(), reads: Vec::new() }
    }
}

impl FuseFrontend {
    /// Handles the answer to a read or write; returns the ticket if the answer is final.
    pub(super) fn complete_overlaps(&self, calls: &impl Calls<Self>, ticket: Ticket) -> Option<Ticket> {
        let again = match ticket.form {
            Form::Write { ino, unique, .. } => {
                for ticket in self.overlaps.written(ino, unique) {
                    read_again(calls, ticket);
                }
                return Some(ticket);
            }
            Form::Read(ref read) => self.overlaps.answered(read.ino, read.unique, ticket),
            _ => return Some(ticket),
        };
        match again {
            ReadDecision::Answer(ticket) => return Some(ticket),
            ReadDecision::Reread(ticket) => read_again(calls, ticket),
            ReadDecision::Wait => {}
        }
        None
    }

    pub(super) fn interrupt(&self, calls: &impl Calls<Self>, unique: u64) -> Interrupt {
        let dies_of_it = |ticket: &Ticket| matches!(&ticket.form, Form::Read(read) if dies(read.caller.pid));
        match self.overlaps.interrupt(unique, dies_of_it) {
            Some(Some(ticket)) => {
                ticket.reply.error(Errno::EINTR.raw());
                Interrupt::Heard
            }
            Some(None) => Interrupt::Survived,
            None => calls.interrupt(unique, dies),
        }
    }
}

fn read_again(calls: &impl Calls<FuseFrontend>, ticket: Ticket) {
    if let Form::Read(read) = &ticket.form {
        let Read { unique, ref caller, ino, offset, size, noatime } = **read;
        calls.call(unique, caller.clone(), Call::read(ino, offset, size, noatime), ticket);
    }
}

fn is_written(writes: &[(u64, Range<u64>)], pages: &Range<u64>) -> bool {
    writes.iter().any(|(_, written)| overlap(written, pages))
}

fn drop_idle<T>(all: &mut HashMap<Ino, Busy<T>>, ino: Ino) {
    if all.get(&ino).is_some_and(|busy| busy.writes.is_empty() && busy.reads.is_empty()) {
        all.remove(&ino);
    }
}

/// The bytes of the pages of a range.
fn pages(offset: u64, length: Option<u64>) -> Range<u64> {
    let page = page_size() as u64;
    let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
    offset / page * page..end.checked_next_multiple_of(page).unwrap_or(u64::MAX)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(2);

    #[test]
    fn read_waits_for_overlapping_write_and_is_repeated() {
        let overlaps = Overlaps::default();
        overlaps.read(FILE, 1, 0, 100);
        overlaps.write(FILE, 2, 200, Some(1));
        overlaps.read(FILE, 3, 300, 1);
        assert_eq!(overlaps.answered(FILE, 1, "first"), ReadDecision::Wait);
        assert_eq!(overlaps.written(FILE, 2), ["first"]);
        assert_eq!(overlaps.answered(FILE, 1, "first"), ReadDecision::Answer("first"));
        assert_eq!(overlaps.answered(FILE, 3, "second"), ReadDecision::Reread("second"), "it may be stale");
        assert_eq!(overlaps.answered(FILE, 3, "second"), ReadDecision::Answer("second"));
        assert!(overlaps.lock().is_empty());
    }

    #[test]
    fn a_read_waits_for_the_last_of_several_writes() {
        let overlaps = Overlaps::default();
        overlaps.write(FILE, 1, 0, Some(10));
        overlaps.write(FILE, 2, 0, None);
        overlaps.read(FILE, 3, 1 << 30, 1);
        overlaps.read(FILE, 4, 0, 1);
        assert_eq!(overlaps.answered(FILE, 3, "far"), ReadDecision::Wait);
        assert_eq!(overlaps.answered(FILE, 4, "near"), ReadDecision::Wait);
        assert_eq!(overlaps.written(FILE, 2), ["far"]);
        assert_eq!(overlaps.written(FILE, 1), ["near"]);
    }

    #[test]
    fn reads_of_other_pages_are_answered_at_once() {
        let (overlaps, page) = (Overlaps::default(), page_size() as u64);
        overlaps.write(FILE, 1, page, Some(page));
        for (unique, ino, offset) in [(2, FILE, 0), (3, FILE, 2 * page), (4, Ino(3), page)] {
            overlaps.read(ino, unique, offset, page);
            assert_eq!(overlaps.answered(ino, unique, unique), ReadDecision::Answer(unique));
        }
    }

    #[test]
    fn caller_waiting_for_write_can_be_killed() {
        let overlaps = Overlaps::default();
        overlaps.write(FILE, 1, 0, Some(1));
        overlaps.read(FILE, 2, 0, 1);
        assert_eq!(overlaps.interrupt(2, |_| true), None, "the call itself is interrupted");
        assert_eq!(overlaps.answered(FILE, 2, "read"), ReadDecision::Wait);
        assert_eq!(overlaps.interrupt(2, |_| false), Some(None));
        assert_eq!(overlaps.interrupt(2, |_| true), Some(Some("read")));
        assert!(overlaps.written(FILE, 1).is_empty());
        assert!(overlaps.lock().is_empty());
    }
}
