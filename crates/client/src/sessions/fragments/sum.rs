//! What all fragments of a directory contribute: the sum of their attributes, and their syncs.
//!
//! The fragments are requested at the same time. Attributes without leases are requested in rounds,
//! until two rounds find the same: then they were all valid at one time between the rounds.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Attr, Entry, Errno, Ino, Reply, Request};

use super::FragmentWait;
use crate::sessions::call_state::CallState;
use crate::sessions::pending_calls::{PendingCall, Replies};
use crate::sessions::{Actions, Sessions};
use crate::{Answer, Call};

/// The attributes of a directory's fragments, in progress.
#[derive(Debug)]
pub(in crate::sessions) struct FragmentSum {
    /// The answer, with the attributes of the first fragment.
    answer: Answer,
    /// The directory and its other fragments, as the map of this version has them.
    fragments: Vec<Ino>,
    version: u32,
    /// The attributes of the fragments in this round, as far as they are known. Those of the
    /// directory itself come first.
    parts: Vec<Option<Attr>>,
    /// Those of the last round.
    before: Vec<Option<Attr>>,
    rounds: u8,
    /// A server does not have a fragment: it has merged, or the directory has been removed.
    lacks_fragment: bool,
    /// The replies of this round; `None`: the map is requested.
    replies: Option<Replies>,
}

/// Maximum number of rounds of a sum; then the directory changes all the time.
const MOST_ROUNDS: u8 = 8;

impl FragmentSum {
    fn dir(&self) -> Option<Attr> {
        self.parts.first().copied().flatten()
    }

    fn total(&self) -> Option<Attr> {
        let mut total = self.dir()?;
        self.parts[1..].iter().flatten().for_each(|part| total.add_fragment(part));
        Some(total)
    }
}

impl<T> Sessions<T> {
    /// Completes an answer with the attributes of a partitioned directory; returns it when it is
    /// complete. `lease`: as for [`Self::finish`].
    pub(in crate::sessions) fn sum_fragments(
        &mut self,
        now: u64,
        pending: PendingCall<T>,
        result: Result<Answer, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) -> Option<(PendingCall<T>, Result<Answer, Errno>, u64)> {
        let is_stat = matches!(pending.incoming.call, Call::Request(Request::GetAttr { .. }));
        let attr = match &result {
            // The kernel requests the attributes when it needs them.
            Ok(Answer::Attr(attr)) if attr.map_version > 0 && !is_stat => return Some((pending, result, 0)),
            Ok(Answer::Attr(attr)) => attr,
            // A kernel requests the attributes of an unleased entry when it needs them.
            Ok(Answer::Entry(entry)) if !self.cache.has_kernel() => &entry.attr,
            _ => return Some((pending, result, lease)),
        };
        if attr.map_version == 0 || pending.call_state.has_all_fragments {
            return Some((pending, result, lease));
        }
        let (dir, version, parts) = (attr.ino, attr.map_version, [Some(*attr)].into());
        let sum = Box::new(FragmentSum {
            answer: result.ok()?,
            fragments: self.all_fragments(dir),
            version,
            parts,
            before: Vec::new(),
            rounds: 0,
            lacks_fragment: false,
            replies: None,
        });
        if self.fragments.maps.get(&dir).is_some_and(|known| known.map.version() == version) {
            self.request_parts(now, pending, sum, actions);
        } else {
            self.request_map_for_sum(now, pending, sum, actions);
        }
        None
    }

    fn all_fragments(&self, dir: Ino) -> Vec<Ino> {
        core::iter::once(dir).chain(self.fragments.others(dir)).collect()
    }

    fn request_map_for_sum(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        mut sum: Box<FragmentSum>,
        actions: &mut Actions<T>,
    ) {
        let dir = sum.fragments[0];
        sum.replies = None;
        pending.call_state.fragment_wait = FragmentWait::Sum(sum);
        self.ask_for(now, pending, Request::Fragments { dir }, actions);
    }

    /// Requests what a round lacks, all at the same time.
    fn request_parts(
        &mut self,
        now: u64,
        pending: PendingCall<T>,
        mut sum: Box<FragmentSum>,
        actions: &mut Actions<T>,
    ) {
        let unknown = &sum.fragments[sum.parts.len()..];
        let mut known: Vec<_> = unknown.iter().map(|ino| self.cache.attr(*ino, now)).collect();
        sum.parts.append(&mut known);
        let lacking = sum.fragments.iter().zip(&sum.parts).filter(|(_, part)| part.is_none());
        let requests: Vec<_> = lacking.map(|(ino, _)| Request::GetAttr { ino: *ino }).collect();
        if requests.is_empty() {
            return self.end_round(now, pending, sum, actions);
        }
        let wait = |call_state: &mut CallState, replies| {
            sum.replies = Some(replies);
            call_state.fragment_wait = FragmentWait::Sum(sum);
        };
        self.ask_for_all(now, pending, requests.into_iter(), wait, actions);
    }

    /// Adds a reply to a sum. `lease`: as for [`Self::resume_fragments`].
    pub(super) fn add_to_sum(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        mut sum: Box<FragmentSum>,
        result: Result<Reply, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) {
        match (result, &mut sum.replies) {
            (Ok(Reply::Fragments(fragments)), None) => {
                sum.version = fragments.map.version();
                self.fragments.learn(fragments);
                sum.fragments = self.all_fragments(sum.fragments[0]);
                return self.request_parts(now, pending, sum, actions);
            }
            (Ok(Reply::Attr(attr)), Some(_)) => {
                self.learn_attr(now, &pending, attr, lease);
                let place = sum.fragments.iter().position(|ino| *ino == attr.ino);
                if let Some(part) = place.and_then(|at| sum.parts.get_mut(at)) {
                    *part = Some(attr);
                }
            }
            (Err(Errno::ESTALE), Some(_)) => sum.lacks_fragment = true,
            (result, _) => {
                let errno = result.err().unwrap_or(Errno::EIO);
                return self.finish(now, pending, Err(errno), 0, actions);
            }
        }
        let Some(replies) = sum.replies.as_mut() else { return };
        if replies.came() {
            return self.end_round(now, pending, sum, actions);
        }
        let wait = replies.wait();
        pending.call_state.fragment_wait = FragmentWait::Sum(sum);
        self.calls.insert(wait, pending);
    }

    /// Answers the call, or begins another round.
    fn end_round(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        mut sum: Box<FragmentSum>,
        actions: &mut Actions<T>,
    ) {
        let Some(dir) = sum.dir() else { return self.finish(now, pending, Err(Errno::ESTALE), 0, actions) };
        let leased = self.whole_attr(dir.ino, now);
        let is_removed = dir.nlink == 0;
        let is_outdated = sum.lacks_fragment || dir.map_version != sum.version;
        let is_sum = !is_outdated && sum.parts == sum.before;
        if leased.is_some() || is_sum || is_removed || sum.rounds == MOST_ROUNDS {
            let (attr, until) = leased.unwrap_or_else(|| (sum.total().unwrap_or(dir), 0));
            pending.call_state.has_all_fragments = true;
            let FragmentSum { mut answer, .. } = *sum;
            if let Answer::Attr(whole) | Answer::Entry(Entry { attr: whole, .. }) = &mut answer {
                *whole = attr;
            }
            return self.finish(now, pending, Ok(answer), until.saturating_sub(now), actions);
        }
        sum.rounds += 1;
        if is_outdated {
            sum.before.clear();
            // Attributes from before the merge, the removal or the map belong to no later round.
            let is_news = dir.map_version > sum.version && !sum.lacks_fragment;
            sum.parts.truncate(usize::from(is_news));
            sum.lacks_fragment = false;
            return self.request_map_for_sum(now, pending, sum, actions);
        }
        sum.before = core::mem::take(&mut sum.parts);
        self.request_parts(now, pending, sum, actions);
    }

    // ---- Syncs of all fragments

    /// Has the ranks of a directory's fragments sync after the directory's own; returns the answer
    /// when all have.
    pub(in crate::sessions) fn sync_fragments(
        &mut self,
        now: u64,
        pending: PendingCall<T>,
        result: Result<Answer, Errno>,
        actions: &mut Actions<T>,
    ) -> Option<(PendingCall<T>, Result<Answer, Errno>)> {
        let fragments: Vec<Ino> = match &pending.incoming.call {
            Call::Request(Request::Fsync { ino })
                if result.is_ok() && !pending.call_state.has_all_fragments =>
            {
                self.fragments.others(*ino).collect()
            }
            _ => Vec::new(),
        };
        if fragments.is_empty() {
            return Some((pending, result));
        }
        let requests = fragments.into_iter().map(|ino| Request::Fsync { ino });
        let wait = |call_state: &mut CallState, replies| {
            call_state.fragment_wait = FragmentWait::Sync(replies);
        };
        self.ask_for_all(now, pending, requests, wait, actions);
        None
    }

    pub(super) fn fragment_synced(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        mut replies: Replies,
        actions: &mut Actions<T>,
    ) {
        if replies.came() {
            pending.call_state.has_all_fragments = true;
            return self.finish(now, pending, Ok(Answer::Done), 0, actions);
        }
        let wait = replies.wait();
        pending.call_state.fragment_wait = FragmentWait::Sync(replies);
        self.calls.insert(wait, pending);
    }
}
