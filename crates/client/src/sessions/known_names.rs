//! Listings in the background, for absent names.
//! A client creates files in a directory without a message for each only if it knows all names in
//! it. In a directory under an exclusive lease that it has neither made nor listed, it asks for one
//! absent name after another. It then requests the names, page by page.

use alloc::collections::BTreeMap;

use espalier_proto::{Caller, Ino, Rank, Reply, Request, RequestId};

use super::Sessions;
use super::call_state::ServerReply;
use crate::cache::Term;
use crate::{Answer, Call};

/// Number of absent names after which a page is requested: both cost a server about the same.
const ABSENT_PER_PAGE: u32 = 8;
/// Maximum number of directories whose absent names are counted.
const MOST_COUNTED: usize = 64;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct NameListings {
    /// Absent names that servers were asked for since the last page, per directory or fragment.
    absent: BTreeMap<Ino, u32>,
    requested: BTreeMap<(Rank, RequestId), NamePage>,
}

/// A page that was requested.
#[derive(Debug)]
struct NamePage {
    dir: Ino,
    /// The cursor before its first name.
    after: u64,
    /// When it was requested, in ms.
    sent: u64,
}

impl<T> Sessions<T> {
    /// Records that a server was asked for a name and did not have it.
    pub(super) fn note_absent(&mut self, now: u64, caller: &Caller, dir: Ino) {
        let listings = &mut self.name_listings;
        let Some(after) = self.cache.names_to_list(dir, now).filter(|_| self.uses_writeback) else {
            listings.absent.remove(&dir);
            return;
        };
        if listings.absent.len() >= MOST_COUNTED && !listings.absent.contains_key(&dir) {
            listings.absent.clear();
        }
        let count = listings.absent.entry(dir).or_default();
        *count += 1;
        if *count < ABSENT_PER_PAGE || listings.requested.values().any(|page| page.dir == dir) {
            return;
        }
        *count = 0;
        let rank = self.rank_of(dir);
        let request = Request::ReadDir { dir, after, limit: Request::MAX_ENTRIES, plus: false };
        let id = self.server_session(rank).ask(caller.clone(), request);
        self.name_listings.requested.insert((rank, id), NamePage { dir, after, sent: now });
    }

    /// Handles the reply with a page of names; returns false if the request is none.
    pub(super) fn names_received(&mut self, now: u64, reply: &ServerReply) -> bool {
        let Some(page) = self.name_listings.requested.remove(&(reply.rank, reply.id)) else { return false };
        if let Ok(Reply::Listing { entries, parent, end, .. }) = &reply.result {
            let NamePage { dir, after, sent } = page;
            // The names of a fragment are complete at its own end.
            let answer = Answer::Listing { entries: entries.clone(), parent: *parent, end: *end };
            let term = Term { requested_at: sent, left: reply.lease_left(Some(sent), now) };
            let call = Call::Request(Request::ReadDir { dir, after, limit: 0, plus: false });
            self.cache.answered(&call, Some(&answer), term, now);
        }
        true
    }

    /// Handles the end of a session.
    pub(super) fn lose_name_listings(&mut self, rank: Rank) {
        self.name_listings.requested.retain(|(of, _), _| *of != rank);
    }
}
