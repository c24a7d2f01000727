//! The state of a pending call, and how a server's reply advances it.

use alloc::vec::Vec;
use core::mem::take;

use bytes::Bytes;
use espalier_proto::{
    Access, Caller, Entry, Errno, Ino, Layout, Rank, Reply, Request, RequestId, StreamIo, Touched, write_list,
};

use super::data::DataLease;
use super::end::{Parked, changed_names};
use super::own::{Left, Own, Step};
use super::renames::Confirmation;
use super::{Asked, ForDoor, Sessions, Told, Waiter};
use crate::cache::{Page, Term};
use crate::{Answer, Call, Changes, Next, Sighting};

/// The client's state of one call.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// When the call began, and in which epoch.
    pub begun: u64,
    pub turn: u64,
    pub seen: Seen,
    /// The client-driven operation that the call executes, if any.
    pub own: Option<Own>,
    /// The caller has been interrupted.
    pub interrupted: bool,
    pub data: DataLease,
    pub confirmation: Confirmation,
    #[expect(dead_code, reason = "held until the call ends")]
    pub changes: Changes,
}

/// What the name's rank has returned for a call whose inode is at another rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The remote dentry, while the inode's rank is asked.
    pub sighting: Option<Sighting>,
    /// When the lease on the name ends; 0: no lease.
    pub until: u64,
    /// An inode to which the name was bound, and which the inode's rank did not have.
    pub gone: Option<Ino>,
}

impl<T> Sessions<T> {
    pub(super) fn reply(
        &mut self,
        now: u64,
        (rank, id): (Rank, RequestId),
        (lease, touched): (u64, Touched),
        result: Result<Reply, Errno>,
        told: &mut Told<T>,
    ) {
        let is_early = self.early.is_change(rank, id);
        let Some(end) = self.end(rank) else { return };
        let parked = end.parked.remove(&id);
        let is_waited_for = parked.is_some() || is_early;
        let over = end.link.answered(id, &result, is_waited_for, &mut end.out);
        let waited = over.and_then(|wait| end.waits.remove(&wait));
        // The exclusive lease counts from the same time as the reply's other leases.
        let sent = parked.as_ref().map(|parked| parked.sent).or_else(|| self.early.sent(rank, id));
        let until = sent.map_or(0, |sent| sent.saturating_add(lease));
        let alone = touched.exclusive.map(|dir| (dir, told_alone(&result)));
        let changes = lease > 0 && !touched.attrs.is_empty();
        if self.supplied(now, (rank, id), &result)
            || self.renewed(now, (rank, id), &result, (lease, &touched))
        {
            return;
        }
        self.hear_time(now, rank, &result, &touched);
        let was_told = self.early_reply(now, (rank, id), (lease, &touched), &result, told);
        if let Some(waited) = waited {
            told.answer(waited.ticket, result.map(|_| Answer::Done));
        } else if !was_told {
            self.settle(now, (rank, id), parked, (lease, touched), result, told);
        }
        if let Some((dir, inos)) = alone {
            self.cache.alone(dir, &inos, until, now);
        }
        if changes {
            self.supply(now, rank);
        }
        if was_told {
            self.go_on_behind(now, told);
        }
    }

    /// Applies a reply to the cache and to the call that waits for it, if there is one.
    fn settle(
        &mut self,
        now: u64,
        (rank, id): (Rank, RequestId),
        parked: Option<Parked<T>>,
        (lease, touched): (u64, Touched),
        mut result: Result<Reply, Errno>,
        told: &mut Told<T>,
    ) {
        let Some(end) = self.end(rank) else { return };
        let parked = match parked {
            Some(parked) if result == Ok(Reply::Waits) => return end.wait(parked),
            parked => parked,
        };
        let given_up = end.given_up.remove(&id);
        let is_doubtful =
            given_up.is_some() || result.is_err() && !(touched.attrs.is_empty() && touched.others.is_empty());
        let names = match (&given_up, &parked) {
            (Some(names), _) => names.clone(),
            (None, Some(parked)) if is_doubtful => changed_names(&parked.call),
            _ => Vec::new(),
        };
        // Without a waiting call, the time of the request is unknown. A millisecond that has begun
        // counts as passed.
        let sent = parked.as_ref().map(|parked| parked.sent);
        let lease = sent.map_or(0, |sent| lease.saturating_sub(now.saturating_sub(sent) + 1));
        let whole = match (&parked, &mut result) {
            (Some(parked), Ok(Reply::OpenedWhole(_, bytes))) => parked.call.opens().zip(Some(take(bytes))),
            _ => None,
        };
        if let Some(parked) = parked {
            if let Some(ino) = parked.call.unprivileged(&result) {
                self.cache.touched(ino);
                told.door.push(ForDoor::Changed(self.shown_all([ino].into())));
            }
            self.lead_on(now, parked, result, lease, told);
        }
        self.cache.changed(&touched, lease, now);
        if let Some((ino, bytes)) = whole {
            self.cache.learn(ino, bytes.into(), lease, now);
        }
        if given_up.is_some() {
            self.cache.distrust();
        }
        if is_doubtful {
            // No caller has been notified of these changes.
            let changed = touched.attrs.iter().map(|attr| attr.ino).chain(touched.others);
            self.invalidate(names, changed.collect(), told);
        }
    }

    /// Advances a call with a server's reply. `lease`: its remaining time in ms.
    pub(super) fn lead_on(
        &mut self,
        now: u64,
        parked: Parked<T>,
        result: Result<Reply, Errno>,
        lease: u64,
        told: &mut Told<T>,
    ) {
        let Some((parked, result, lease)) = self.confirm(now, parked, result, lease, told) else { return };
        let Some(parked) = self.go_on_with_data(now, parked, &result, lease, told) else { return };
        let seen = parked.course.seen;
        let Some(sighting) = seen.sighting else {
            let (asked, mut course) = parked.into_asked();
            let step = match course.own.take() {
                Some(own) => own.go_on(&asked.call, result),
                None => Own::begin(&asked.call, result),
            };
            return self.take_step(now, (asked, course), step, lease, told);
        };
        // The lease on the name may have ended meanwhile.
        let left = seen.until.saturating_sub(now);
        let sighting = Sighting { leased: left > 0, ..sighting };
        let next = self.client.found(&parked.call, &sighting, seen.gone == Some(sighting.ino), result);
        if let Next::Answer(result) = &next {
            let term = Term { asked: parked.course.begun, left: lease };
            self.cache.found(&parked.call, result.as_ref().ok(), term, now);
        }
        let lease = if left > 0 { lease.min(left) } else { lease };
        let (asked, mut course) = parked.into_asked();
        course.seen = Seen { gone: Some(sighting.ino), ..Seen::default() };
        self.advance(now, (asked, course), next, lease, told);
    }

    /// Executes the next step of a call, which the client may have to drive itself.
    pub(super) fn take_step(
        &mut self,
        now: u64,
        (asked, mut course): (Asked<'static, Waiter<T>>, Course),
        step: Step,
        lease: u64,
        told: &mut Told<T>,
    ) {
        let next = match step {
            Step::Ask(own, request) => {
                course.own = Some(own);
                Next::Ask(request)
            }
            Step::Data(own, delegation, work) => {
                course.own = Some(own);
                Next::Data(delegation, work)
            }
            Step::Anew(left) => {
                self.give_back(left);
                self.client.start(&asked.call)
            }
            Step::Over(result, left) => {
                self.give_back(left);
                let mut next = self.client.reply(&asked.call, result);
                if let Next::Answer(result) = &mut next {
                    let term = Term { asked: course.begun, left: lease };
                    self.cache.answered(&asked.call, result.as_ref().ok(), term, now);
                    if let Ok(listing) = result {
                        self.cache.hold_back(&asked.call, listing, now);
                    }
                }
                next
            }
        };
        self.advance(now, (asked, course), next, lease, told);
    }

    /// Advances a call until it is finished or must wait. `lease`: the remaining time of the last
    /// reply's lease, in ms.
    pub(super) fn advance(
        &mut self,
        now: u64,
        (asked, mut course): (Asked<'static, Waiter<T>>, Course),
        mut next: Next,
        lease: u64,
        told: &mut Told<T>,
    ) {
        next = self.before_answer(now, &asked.call, &mut course, next, lease > 0);
        let Asked { call_id, caller, call, ticket } = asked;
        if let Waiter::Nobody(_) = ticket {
            next.tell_that_it_is_told();
        }
        let rank = match &next {
            Next::Answer(_) | Next::Apart => Rank(0),
            Next::Ask(request) | Next::Find(request, _) | Next::Tell(request, _) => request.rank(),
            Next::Release(ino) => ino.rank(),
            Next::Stream(io) => io.rank(),
            Next::Data(delegation, _) => delegation.capability.ino.rank(),
        };
        if let Next::Find(_, sighting) = &next {
            self.cache.sighted(&call, sighting, lease, now);
            let until = if sighting.leased { now.saturating_add(lease) } else { 0 };
            course.seen = Seen { sighting: Some(*sighting), until, ..course.seen };
        }
        if let Next::Tell(Request::Release { ino }, _) | Next::Release(ino) = next {
            if self.asking.puts_off(ino) {
                return told.answer(ticket, Ok(Answer::Done));
            }
            self.closed(ino, now);
        }
        let page = Page::of(&call).filter(|page| self.may(&caller, page.dir, Access::READ, now));
        let entries = page.and_then(|page| self.cache.entries_to_ask_for(page));
        let Some(end) = self.end(rank) else {
            // Such an inode never came from a server.
            return told.answer(ticket, Err(Errno::ESTALE));
        };
        let id = match next {
            Next::Answer(mut result) => {
                if let Some(ino) = result.as_ref().ok().and_then(|answer| call.opened_to_write(answer)) {
                    self.cache.opened_to_write(ino);
                }
                let outdated = result.as_mut().ok().and_then(|answer| self.cache.as_told(answer));
                let is_lookup = matches!(
                    call,
                    Call::Request(Request::Lookup { .. } | Request::Find { .. } | Request::Parent { .. })
                );
                if let Some(ino) = outdated.filter(|_| is_lookup) {
                    self.cache.forget(ino, 1);
                    return self.ask_behind(ino, Asked { call_id, caller, call, ticket });
                }
                let lease_ms = match &mut result {
                    Ok(answer) => self.keep(now, course.turn, &call, answer, lease, told),
                    Err(_) => lease,
                };
                let result = result.map(|answer| self.shown(answer));
                return told.answer_leased(ticket, result, lease_ms);
            }
            Next::Data(delegation, work) => {
                let parked = Parked { call_id, caller, call, ticket, sent: now, course };
                return self.asking.ask(parked, delegation, work, told);
            }
            Next::Apart => {
                let asked = Asked { call_id, caller, call, ticket };
                return self.write_apart(now, (asked, course), told);
            }
            Next::Tell(request, answer) => {
                end.ask(caller, request);
                return told.answer(ticket, Ok(answer));
            }
            Next::Release(ino) => {
                end.link.release(ino, &mut end.out);
                return told.answer(ticket, Ok(Answer::Done));
            }
            Next::Ask(mut request) | Next::Find(mut request, _) => {
                if let (Request::ReadDir { limit, .. }, Some(more)) = (&mut request, entries) {
                    *limit = more.max(*limit);
                }
                end.ask(caller.clone(), request)
            }
            Next::Stream(io) => {
                let data = match (&call, io) {
                    (Call::Write { data, .. }, StreamIo::Write { .. }) => data.to_bytes(),
                    (Call::WriteList { pieces, .. }, StreamIo::WriteList { .. }) => write_list(pieces),
                    _ => Bytes::new(),
                };
                end.link.stream(io, data, &mut end.out)
            }
        };
        let interrupted = course.interrupted;
        end.parked.insert(id, Parked { call_id, caller, call, ticket, sent: now, course });
        if interrupted && let (_, Some(gone)) = end.interrupt(call_id) {
            self.give_up(gone, Errno::EINTR, told);
        }
    }

    /// Records that a caller has closed a file, if it was the last one.
    pub(super) fn closed(&mut self, ino: Ino, now: u64) {
        if !self.client.is_open(ino) {
            self.cache.closed(ino, now);
            self.keep_no_longer(ino);
        }
    }

    /// Abandons a call: returns what it has acquired, and answers the caller.
    pub(super) fn give_up(&mut self, parked: Parked<T>, errno: Errno, told: &mut Told<T>) {
        if let Some(own) = &parked.course.own {
            self.give_back(own.left());
        }
        let result = Self::abandon(&parked.course.confirmation, errno, told);
        told.answer(parked.ticket, result);
    }

    /// As [`Self::give_up`], for interrupted calls that wait for unreachable data servers.
    pub(super) fn give_up_stuck(&mut self, is_stuck: impl Fn(&Layout) -> bool, told: &mut Told<T>) {
        for parked in self.asking.give_up_stuck(is_stuck, told) {
            self.give_up(parked, Errno::EINTR, told);
        }
    }

    /// Answers lookups that wait for unreachable data servers, since the kernel locks the directory
    /// during a lookup. Exempt are files with openings: the kernel would drop pending writes beyond
    /// a size that it learns.
    pub(super) fn look_past_stuck(
        &mut self,
        now: u64,
        is_stuck: impl Fn(&Layout) -> bool,
        told: &mut Told<T>,
    ) {
        let is_wanted = |ino| !self.client.is_open(ino) && !self.cache.is_early(ino);
        for (parked, entry) in self.asking.give_up_lookups(is_stuck, is_wanted, told) {
            let term = Term { asked: parked.course.begun, left: 0 };
            let answer = Answer::Unmeasured(entry);
            self.cache.answered(&parked.call, Some(&answer), term, now);
            told.answer(parked.ticket, Ok(answer));
        }
    }

    pub(super) fn give_back(&mut self, left: Left) {
        let (Left::Open(ino)
        | Left::OpenNamed(ino)
        | Left::Lookup(ino)
        | Left::Created(ino)
        | Left::Orphan(ino)) = left
        else {
            return;
        };
        if let (Left::Created(_), Some(end)) = (&left, self.end(ino.rank())) {
            end.link.forget(ino, 1, &mut end.out);
        }
        // A pending operation may still create datafiles.
        let is_put_off = match left {
            Left::Open(_) | Left::Created(_) => self.asking.puts_off(ino),
            Left::OpenNamed(_) => {
                self.asking.is_over(ino);
                false
            }
            Left::Nothing | Left::Lookup(_) | Left::Orphan(_) => false,
        };
        let Some(end) = self.end(ino.rank()).filter(|_| !is_put_off) else { return };
        match left {
            Left::Open(_) => drop(end.ask(Caller::SERVER, Request::Release { ino })),
            Left::OpenNamed(_) | Left::Created(_) => end.link.release_made(ino, &mut end.out),
            Left::Lookup(_) => end.link.forget(ino, 1, &mut end.out),
            Left::Orphan(_) => drop(end.ask(Caller::SERVER, Request::Purge { ino, removed: false })),
            Left::Nothing => {}
        }
    }

    /// The first step of a lookup of a cached remote dentry whose inode is not cached; also returns
    /// how long the dentry is valid, in ms.
    pub(super) fn known_elsewhere(&self, now: u64, asked: &Asked<'_, Waiter<T>>) -> Option<(Next, u64)> {
        let Call::Request(Request::Lookup { dir, name }) = &asked.call else { return None };
        if !self.may(&asked.caller, *dir, Access::EXEC, now) {
            return None;
        }
        let (sighting, left) = self.cache.sighting(*dir, name, now)?;
        let find = Request::Find { ino: sighting.ino, kind: Some(sighting.kind), open: None };
        Some((Next::Find(find, sighting), left))
    }
}

/// The inodes in a reply of which this client is the sole holder, with their link counts.
fn told_alone(result: &Result<Reply, Errno>) -> Vec<(Ino, u32)> {
    let alone = |entry: &Entry| entry.alone.then_some((entry.attr.ino, entry.attr.nlink));
    match result {
        Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => alone(entry).into_iter().collect(),
        Ok(Reply::Listing { entries, .. }) => {
            entries.iter().filter_map(|dirent| dirent.entry.as_ref().and_then(alone)).collect()
        }
        _ => Vec::new(),
    }
}
