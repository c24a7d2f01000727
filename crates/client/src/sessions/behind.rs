//! What waits until changes are answered that callers have been told of: calls that depend on them, files that have been closed,
//! and leases that servers want back.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Errno, FromClient, Ino, Name, Rank, Request};

use super::early::Early;
use super::{Asked, Sessions, Told, Waiter};
use crate::cache::Subject;
use crate::{Binding, Cache, Call, Interrupt};

/// See the module's description.
#[derive(Debug)]
pub(super) struct Behind<T> {
    /// In their order.
    calls: VecDeque<Kept<T>>,
    /// New files that have been closed.
    closed: Vec<Ino>,
    revoked: Vec<Revoked>,
}

/// A call that is kept back.
#[derive(Debug)]
struct Kept<T> {
    asked: Asked<'static, Waiter<T>>,
    why: Why,
    /// The number of the last change that had been told when it came.
    last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It could be told early if fewer changes were under way.
    Room,
    /// It depends on one that is not answered.
    Change,
    /// So it does, as its answer has shown, for it tells of this inode.
    Inode(Ino),
}

/// A lease that a server wants back.
#[derive(Debug)]
struct Revoked {
    rank: Rank,
    number: u64,
    ino: Ino,
    /// The door has given it up.
    by_door: bool,
}

impl<T> Default for Behind<T> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), closed: Vec::new(), revoked: Vec::new() }
    }
}

impl<T> Behind<T> {
    /// Whether nobody waits for any one change: who waits for room has it when what has been sent is answered.
    pub fn is_patient(&self) -> bool {
        self.revoked.is_empty() && self.calls.iter().all(|kept| kept.why == Why::Room)
    }

    /// Whether anything waits for what is written to a file, or may.
    pub fn is_any_for(&self, ino: Ino) -> bool {
        let may_be = |call: &Call<'_>| call.stream().is_none_or(|of| of == ino);
        !self.revoked.is_empty()
            || self.calls.iter().any(|kept| kept.why == Why::Room || may_be(&kept.asked.call))
    }

    /// Whether a call waits that is about an inode, if only by what it was answered.
    pub fn is_any_about(&self, ino: Ino) -> bool {
        self.calls
            .iter()
            .any(|kept| kept.why == Why::Inode(ino) || is_about(&kept.asked.call, |it| it == ino))
    }

    /// Whether a call waits that may change what a name stands for.
    pub fn is_any_named(&self, dir: Ino, name: &Name) -> bool {
        let mut subjects = self.calls.iter().map(|kept| Subject::of(&kept.asked.call));
        subjects.any(|subject| subject.is_change && subject.names().any(|it| it == (dir, name)))
    }

    /// What was wanted back by a server that has begun anew is not any more.
    pub fn forget_revoked(&mut self, rank: Rank) {
        self.revoked.retain(|revoked| revoked.rank != rank);
    }
}

impl<T> Sessions<T> {
    /// Keeps a call back if it depends on what was told and is not answered.
    pub(super) fn keep_behind(
        &mut self,
        now: u64,
        asked: Asked<'static, Waiter<T>>,
    ) -> Option<Asked<'static, Waiter<T>>> {
        let last = self.early.last();
        let Some(why) = self.comes_behind(now, &asked.call, last) else { return Some(asked) };
        self.behind.calls.push_back(Kept { asked, why, last });
        None
    }

    /// Has a call asked once more when all is answered that was told of an inode.
    pub(super) fn ask_behind(&mut self, ino: Ino, asked: Asked<'static, Waiter<T>>) {
        self.behind.calls.push_back(Kept { asked, why: Why::Inode(ino), last: self.early.last() });
    }

    /// Whether a call waits for its turn to be told early, or depends on any change up to one that is not answered. Changes that are told
    /// later it does not wait for, lest it waits for ever.
    fn comes_behind(&self, now: u64, call: &Call<'_>, last: u64) -> Option<Why> {
        if self.waits_for_room(now, call) {
            return Some(Why::Room);
        }
        self.depends(now, call, last).then_some(Why::Change)
    }

    fn depends(&self, now: u64, call: &Call<'_>, last: u64) -> bool {
        if !self.early.is_any_left(last, |_, _| true) {
            return false;
        }
        let is_left = |of: Ino| {
            self.cache.is_early(of) && self.early.is_any_left(last, |dir, ino| dir == of || ino == of)
        };
        // The server does not know it yet.
        let is_new = |of: Ino| self.cache.is_early(of) && self.early.is_any_left(last, |_, ino| ino == of);
        // `unknown`: whether it may be anything that a name stands for of which nothing is known.
        let is_named = |dir: Ino, name: &Name, unknown: bool| {
            self.cache.is_early_name(dir, name)
                || match self.cache.name(dir, name, now) {
                    Some(Binding::Inode(ino, _)) => is_left(ino),
                    Some(Binding::Absent) => false,
                    None => unknown,
                }
        };
        match call {
            Call::Request(request) => match request {
                // Everything that was done before is to be durable, or is about to be counted, copied or removed; but not what others
                // have written to streams, where a data server may be away.
                Request::Fsync { ino } => {
                    self.early.is_any_left_of(last, |of| of == *ino || *ino == self.root)
                }
                Request::StatFs { .. } => self.early.is_any_left_of(last, |_| false),
                Request::CopyTree(_) | Request::RemoveTree { .. } | Request::SyncFs { .. } => true,
                // They are not known, so that nothing more is told early of it; and an answer that came before all is answered would not be
                // believed.
                Request::GetAttr { ino } => self.cache.is_early(*ino),
                // Of what is found so callers are told what they have been told.
                Request::Lookup { dir, name } => is_new(*dir) || is_named(*dir, name, false),
                Request::Create { dir, name, .. }
                | Request::Unlink { dir, name, .. }
                | Request::RmDir { dir, name, .. } => is_named(*dir, name, true),
                Request::Link { ino, dir, name } => is_left(*ino) || is_named(*dir, name, true),
                Request::Rename { from_dir, from, to_dir, to, .. } => {
                    is_named(*from_dir, from, true) || is_named(*to_dir, to, true)
                }
                _ => is_about(call, is_left),
            },
            call => is_about(call, is_left),
        }
    }

    /// A new file is closed, of which the server is told when it has made it. Whether that is so.
    pub(super) fn close_early(&mut self, call: &Call<'_>, now: u64) -> bool {
        let Call::Release { ino } = *call else { return false };
        self.early.closed(ino);
        // Data servers may want another capability, as long as they write: the file is open until then.
        let is_quick = !self.behind.is_any_about(ino) && !self.early.behind.is_any_of(ino);
        let is_early = is_quick && self.cache.is_early(ino);
        if is_early {
            let _ = self.client.start(call);
            self.closed(ino, now);
            self.behind.closed.push(ino);
        }
        is_early
    }

    /// Something that was told has been answered: what waits for that goes on.
    pub(super) fn go_on_behind(&mut self, now: u64, told: &mut Told<T>) {
        for ino in self.behind.closed.extract_if(.., |ino| !self.cache.is_early(*ino)).collect::<Vec<_>>() {
            if let Some(end) = self.end(ino.rank()) {
                end.link.release(ino, &mut end.out);
            }
        }
        let (cache, early) = (&self.cache, &self.early);
        let is_due = |revoked: &mut Revoked| revoked.by_door && !is_needed(cache, early, revoked.ino);
        for Revoked { rank, number, .. } in self.behind.revoked.extract_if(.., is_due) {
            told.send.push((rank, FromClient::Revoked { number }));
        }
        for Kept { asked, why, last } in core::mem::take(&mut self.behind.calls) {
            let Some(asked) = self.tell_early(now, asked, told) else { continue };
            let still = |ino| self.early.is_any_left(last, |dir, of| [dir, of].contains(&ino)).then_some(why);
            let why = match why {
                Why::Inode(ino) => still(ino),
                Why::Room | Why::Change => self.comes_behind(now, &asked.call, last),
            };
            match why {
                Some(why) => self.behind.calls.push_back(Kept { asked, why, last }),
                None => self.take_after(now, asked, told),
            }
        }
    }

    /// As [`Sessions::interrupt`], of calls that are kept back.
    pub(super) fn interrupt_behind(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        told: &mut Told<T>,
    ) -> Option<Interrupt> {
        let at = self.behind.calls.iter().position(|kept| kept.asked.call_id == call_id)?;
        if !self.behind.calls.get(at).is_some_and(|kept| dies(kept.asked.caller.pid)) {
            return Some(Interrupt::Survived);
        }
        let Kept { asked, .. } = self.behind.calls.remove(at)?;
        told.answer(asked.ticket, Err(Errno::EINTR));
        Some(Interrupt::Heard)
    }

    /// A server wants a lease back: it gets it when what was told under it is answered.
    pub(super) fn revoke_early(&mut self, rank: Rank, number: u64, ino: Ino) {
        let is_known = |revoked: &Revoked| (revoked.rank, revoked.number) == (rank, number);
        let is_needed = is_needed(&self.cache, &self.early, ino);
        if is_needed && !self.behind.revoked.iter().any(is_known) {
            self.behind.revoked.push(Revoked { rank, number, ino, by_door: false });
        }
    }

    /// The door has given up a lease. Whether the server is to be told so now.
    pub(super) fn is_given_up(&mut self, rank: Rank, number: u64) -> bool {
        let is_it = |revoked: &Revoked| (revoked.rank, revoked.number) == (rank, number);
        let Some(at) = self.behind.revoked.iter().position(is_it) else { return true };
        let revoked = self.behind.revoked.get_mut(at);
        if let Some(revoked) = revoked.filter(|revoked| is_needed(&self.cache, &self.early, revoked.ino)) {
            revoked.by_door = true;
            return false;
        }
        self.behind.revoked.swap_remove(at);
        true
    }
}

/// Whether something has been told, and is not done, under the lease on an inode, or because it lies in that directory.
fn is_needed(cache: &Cache, early: &Early, ino: Ino) -> bool {
    cache.is_early(ino) || early.behind.is_any_in(ino)
}

/// Whether a call is about such an inode, which it names by its number.
pub(super) fn is_about(call: &Call<'_>, mut is_one: impl FnMut(Ino) -> bool) -> bool {
    match call {
        Call::Request(request) => {
            let mut is_any = false;
            request.clone().each_inode(&mut |ino| is_any |= is_one(*ino));
            is_any
        }
        Call::Copy { from, to, .. } => is_one(*from) || is_one(*to),
        Call::Read { ino, .. }
        | Call::Write { ino, .. }
        | Call::WriteList { ino, .. }
        | Call::Allocate { ino, .. }
        | Call::Seek { ino, .. }
        | Call::Release { ino } => is_one(*ino),
    }
}
