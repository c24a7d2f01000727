//! Listings with attributes: the entries whose inodes are at other ranks.
//!
//! These ranks are asked for all of them at the same time, each as after a lookup. The listing does
//! not wait for a rank that is down or slow: callers look up entries without attributes.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{Entry, Errno, FileType, Ino, Reply, Request};

use super::call_state::CallState;
use super::pending_calls::{PendingCall, Replies};
use super::{Actions, Sessions};
use crate::Answer;
use crate::cache::Page;

/// Maximum time that a listing waits for other ranks, in ms.
const PATIENCE_MS: u64 = 500;

/// A listing that waits for entries of other ranks.
#[derive(Debug)]
pub(super) struct IncompleteListing {
    /// The answer without these entries. The cache has it already.
    answer: Answer,
    /// Those that have come.
    found: BTreeMap<Ino, Entry>,
    replies: Replies,
}

impl<T> Sessions<T> {
    /// Requests the entries of these inodes for a listing. Answers the call when they have come.
    pub(super) fn request_remote_entries(
        &mut self,
        now: u64,
        pending: PendingCall<T>,
        answer: Answer,
        remote: BTreeMap<Ino, FileType>,
        actions: &mut Actions<T>,
    ) {
        let may_be_up = |ino: Ino| {
            let end = self.server_sessions.get(&self.rank_of(ino));
            // A server that was not needed so far may be up.
            end.is_none_or(|end| end.link.is_connected())
        };
        let remote = remote.into_iter().filter(|(ino, _)| may_be_up(*ino));
        let requests: Vec<_> =
            remote.map(|(ino, kind)| Request::Find { ino, kind: Some(kind), open: None }).collect();
        if requests.is_empty() || pending.call_state.interrupted {
            return self.answer_listing(now, pending, answer, BTreeMap::new(), actions);
        }
        let wait = |call_state: &mut CallState, replies| {
            let listing = IncompleteListing { answer, found: BTreeMap::new(), replies };
            call_state.listing = Some(Box::new(listing));
        };
        self.ask_for_all(now, pending, requests.into_iter(), wait, actions);
    }

    /// Adds a reply to a listing. `lease`: its remaining time in ms.
    pub(super) fn add_to_listing(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        mut listing: Box<IncompleteListing>,
        result: Result<Reply, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) {
        if let Ok(Reply::Entry(entry)) = result {
            let find = Request::Find { ino: entry.attr.ino, kind: None, open: None };
            self.learn(now, &pending, find, &Answer::Entry(entry), lease);
            listing.found.insert(entry.attr.ino, entry);
        }
        if listing.replies.came() {
            let IncompleteListing { answer, found, .. } = *listing;
            return self.answer_listing(now, pending, answer, found, actions);
        }
        let wait = listing.replies.wait();
        pending.call_state.listing = Some(listing);
        self.calls.insert(wait, pending);
    }

    fn answer_listing(
        &mut self,
        now: u64,
        pending: PendingCall<T>,
        mut answer: Answer,
        found: BTreeMap<Ino, Entry>,
        actions: &mut Actions<T>,
    ) {
        let lease = match (Page::of(&pending.incoming.call), &mut answer) {
            (Some(page), Answer::Listing { entries, .. }) => {
                self.cache.complete_listing(page.dir, entries, found, now)
            }
            _ => 0,
        };
        self.finish(now, pending, Ok(answer), lease, actions);
    }

    /// Answers listings that have waited long for other ranks.
    pub(super) fn answer_late_listings(&mut self, now: u64, actions: &mut Actions<T>) {
        for pending in self.calls.take_listings(|sent| now >= sent + PATIENCE_MS) {
            self.answer_incomplete(now, pending, actions);
        }
    }

    /// Answers a listing without waiting for further replies: these return what they have acquired.
    pub(super) fn answer_incomplete(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        actions: &mut Actions<T>,
    ) {
        let Some(listing) = pending.call_state.listing.take() else { return };
        let IncompleteListing { answer, found, .. } = *listing;
        self.answer_listing(now, pending, answer, found, actions);
    }

    /// Returns the lookups of a listing that no caller gets.
    pub(super) fn give_back_listing(&mut self, listing: &IncompleteListing) {
        let Answer::Listing { entries, .. } = &listing.answer else { return };
        self.cache.take_back(entries);
        if self.cache.has_kernel() {
            listing.found.keys().for_each(|ino| self.cache.forget(*ino, 1));
        }
    }
}
