//! Partitioned directories (wu 3.3): which fragment has a name, and what all fragments contribute
//! to the attributes of their directory.
//!
//! Frontends know only the directory. Its calls are routed to fragments before they begin, and from
//! there on a fragment is a directory like any other: it has names, leases and write-back of its
//! own. A fragment map may be outdated: the reply to a misrouted request leads to a newer one.

mod sum;

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{
    Attr, Entry, Errno, FileType, Fragments, Ino, LAST_CURSOR, Name, Rank, Reply, Request, RequestId,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::call_state::CallState;
use super::own::Left;
use super::pending_calls::{CallWait, PendingCall, Replies};
use super::{Actions, Sessions};
use crate::cache::Term;
use crate::{Answer, Call, RemoteEntry};
use sum::FragmentSum;

/// The fragment maps of directories whose inodes are cached.
#[derive(Debug, Default)]
pub(super) struct KnownFragments {
    maps: HashMap<Ino, Box<Fragments>, FxBuildHasher>,
    /// The directory of each fragment that is not the directory itself. Includes removed fragments,
    /// which calls may still name.
    dirs: HashMap<Ino, Ino, FxBuildHasher>,
    /// When the home servers of directories whose maps no lease covered were last asked, in ms.
    asked: HashMap<Ino, u64, FxBuildHasher>,
    /// Replies that sent a request to another fragment.
    redirects: u64,
}

/// Counts that concern partitioned directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// Partitioned directories whose maps are known.
    pub directories: u64,
    /// Replies since the start that sent a request to another fragment, because the map was
    /// outdated or not known yet.
    pub redirects: u64,
}

impl KnownFragments {
    /// The directory of a fragment; any other inode is returned as it is.
    pub fn whole(&self, ino: Ino) -> Ino {
        self.dirs.get(&ino).copied().unwrap_or(ino)
    }

    /// The fragments of a directory other than the directory itself.
    pub fn others(&self, dir: Ino) -> impl Iterator<Item = Ino> {
        self.maps.get(&dir).into_iter().flat_map(|fragments| fragments.map.others())
    }

    /// The fragment that has a name. `dir`: the directory, or one of its fragments.
    fn of_name(&self, dir: Ino, name: &Name) -> Ino {
        let dir = self.whole(dir);
        self.maps.get(&dir).map_or(dir, |fragments| fragments.of(name))
    }

    /// The fragment in which a listing continues after a cursor.
    pub fn of_cursor(&self, dir: Ino, after: u64) -> Ino {
        let dir = self.whole(dir);
        self.maps.get(&dir).map_or(dir, |fragments| fragments.map.fragment(after.saturating_add(1)))
    }

    /// Ignores a map that is older than the known one.
    fn learn(&mut self, fragments: Box<Fragments>) {
        let dir = fragments.map.dir();
        if self.maps.get(&dir).is_some_and(|known| known.map.version() > fragments.map.version()) {
            return;
        }
        self.dirs.extend(fragments.map.others().map(|fragment| (fragment, dir)));
        self.maps.insert(dir, fragments);
    }

    /// True if a directory's home server was not asked for a lease recently; it is now.
    fn may_ask(&mut self, dir: Ino, now: u64) -> bool {
        let may_ask = self.asked.get(&dir).is_none_or(|asked| now.saturating_sub(*asked) >= ASK_MS);
        if may_ask {
            self.asked.insert(dir, now);
        }
        may_ask
    }

    /// Drops the maps of directories at a rank that may have lost changes of them.
    pub fn distrust(&mut self, rank: Rank) {
        self.maps.retain(|dir, _| dir.rank() != rank);
    }

    /// Drops a directory's map. Returns the fragments that it has or had.
    fn forget(&mut self, dir: Ino) -> Vec<Ino> {
        self.maps.remove(&dir);
        self.asked.remove(&dir);
        if self.dirs.is_empty() {
            return Vec::new();
        }
        self.dirs.extract_if(|_, of| *of == dir).map(|(fragment, _)| fragment).collect()
    }
}

/// What a call waits for that concerns fragments.
#[derive(Debug, Default)]
pub(super) enum FragmentWait {
    #[default]
    Nothing,
    /// A newer map; the call is then routed again.
    Map,
    /// The attributes of the fragment that the call is routed to, or of its directory, with a
    /// lease.
    Entry,
    /// The attributes of a directory's fragments.
    Sum(Box<FragmentSum>),
    /// Syncs of a directory's fragments.
    Sync(Replies),
    /// The parent of the directory of which a fragment has returned this listing.
    Parent(Box<Reply>),
}

/// Minimum interval in ms between requests for a lease on a directory's map: there may be none.
const ASK_MS: u64 = 1000;

/// Maximum number of times that a call is routed again.
const MOST_ROUTES: u8 = 16;

impl<T> Sessions<T> {
    /// Names the fragments in a call instead of the directory.
    pub(super) fn route(&self, call: &mut Call<'_>) {
        let Call::Request(request) = call else { return };
        request.each_name(&mut |dir, name| *dir = self.fragments.of_name(*dir, name));
        if let Request::ReadDir { dir, after, .. } = request {
            *dir = self.fragments.of_cursor(*dir, *after);
        }
    }

    /// The fragment that certainly has a name, so that what is cached of it may be returned.
    pub(super) fn certain_fragment(&self, dir: Ino, name: &Name, now: u64) -> Option<Ino> {
        self.knows_fragments(dir, now).then(|| self.fragments.of_name(dir, name))
    }

    /// True if the client knows which hashes a directory or fragment has: the lease on the
    /// directory covers its map. An outdated map could make names appear absent that are in a new
    /// fragment.
    pub(super) fn knows_fragments(&self, dir: Ino, now: u64) -> bool {
        let dir = self.fragments.whole(dir);
        let version = self.cache.rights(dir, now).map(|attr| attr.map_version);
        match self.fragments.maps.get(&dir) {
            Some(known) => version == Some(known.map.version()),
            None => version.is_none_or(|version| version == 0),
        }
    }

    /// True if the client knows that a directory is partitioned.
    pub fn is_partitioned(&self, dir: Ino) -> bool {
        self.fragments.others(self.real(dir)).next().is_some()
    }

    pub fn fragment_counts(&self) -> FragmentCounts {
        let directories = self.fragments.maps.len() as u64;
        FragmentCounts { directories, redirects: self.fragments.redirects }
    }

    /// True for an inode, or a fragment of it, that `is_one` selects.
    pub(super) fn any_fragment(&self, ino: Ino, is_one: impl Fn(Ino) -> bool) -> bool {
        is_one(ino) || self.fragments.others(ino).any(is_one)
    }

    /// The attributes of an inode; of a partitioned directory, if those of all fragments are
    /// cached. Also returns when the first of their leases ends.
    pub(super) fn whole_attr(&self, ino: Ino, now: u64) -> Option<(Attr, u64)> {
        let mut attr = self.cache.attr(ino, now)?;
        let mut until = self.cache.leased_until(ino);
        if attr.map_version > 0 {
            let known = self.fragments.maps.get(&ino)?;
            if known.map.version() != attr.map_version {
                return None;
            }
            for fragment in known.map.others() {
                attr.add_fragment(&self.cache.attr(fragment, now)?);
                until = until.min(self.cache.leased_until(fragment));
            }
        }
        Some((attr, until))
    }

    /// Completes the attributes of partitioned directories in an answer with what is cached. Those
    /// that remain incomplete are marked as unleased, so that frontends request them.
    pub(super) fn complete_attrs(&mut self, now: u64, answer: &mut Answer) {
        let complete = |sessions: &Self, entry: &mut Entry| {
            if entry.attr.map_version == 0 {
                return true;
            }
            match sessions.whole_attr(entry.attr.ino, now) {
                Some((attr, _)) => entry.attr = attr,
                None => entry.attr_leased = false,
            }
            entry.attr_leased
        };
        match answer {
            Answer::Entry(entry) => drop(complete(self, entry)),
            Answer::Listing { entries, .. } => {
                for dirent in entries {
                    let Some(mut entry) = dirent.entry else { continue };
                    let is_complete = complete(self, &mut entry);
                    dirent.entry = is_complete.then_some(entry);
                    if !is_complete && self.cache.has_kernel() {
                        self.cache.forget(dirent.ino, 1);
                    }
                }
            }
            _ => {}
        }
    }

    /// Requests the fragment that a call is routed to, if the client does not hold it, or the
    /// directory, if the client has no lease that covers its map; otherwise returns the call.
    pub(super) fn enter_fragment(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        actions: &mut Actions<T>,
    ) -> Option<PendingCall<T>> {
        let Some(fragment) = self.routed_fragment(&mut pending.incoming.call) else { return Some(pending) };
        let dir = self.fragments.whole(fragment);
        let request = if !self.cache.holds(fragment) {
            Request::Find { ino: fragment, kind: Some(FileType::Directory), open: None }
        } else if !self.knows_fragments(dir, now) && self.fragments.may_ask(dir, now) {
            Request::GetAttr { ino: dir }
        } else {
            return Some(pending);
        };
        pending.call_state.fragment_wait = FragmentWait::Entry;
        self.ask_for(now, pending, request, actions);
        None
    }

    fn ask_for(&mut self, now: u64, pending: PendingCall<T>, request: Request, actions: &mut Actions<T>) {
        let (rank, caller) = (self.client.locations.of_request(&request), pending.incoming.caller.clone());
        let id = self.server_session(rank).ask(caller, request);
        self.await_reply(now, pending, CallWait::Reply(rank, id), actions);
    }

    /// Sends requests at the same time, and has a call wait for all of their replies.
    pub(super) fn ask_for_all(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        requests: impl Iterator<Item = Request>,
        wait: impl FnOnce(&mut CallState, Replies),
        actions: &mut Actions<T>,
    ) {
        let mut replies = self.calls.replies();
        for request in requests {
            let (rank, caller) =
                (self.client.locations.of_request(&request), pending.incoming.caller.clone());
            let id = self.server_session(rank).ask(caller, request);
            self.calls.add_reply(&mut replies, rank, id);
        }
        let call_wait = replies.wait();
        wait(&mut pending.call_state, replies);
        self.await_reply(now, pending, call_wait, actions);
    }

    /// Handles a reply that concerns fragments; otherwise returns it. `lease`: its remaining time
    /// in ms.
    pub(super) fn resume_fragments(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        result: Result<Reply, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) -> Option<(PendingCall<T>, Result<Reply, Errno>)> {
        let wait = core::mem::take(&mut pending.call_state.fragment_wait);
        let is_entry = matches!(wait, FragmentWait::Entry);
        let CallState { routes, own, name_state, .. } = &pending.call_state;
        // Otherwise an inode is gone, and the call may have changed something.
        let is_about_name = own.is_none() && name_state.remote_entry.is_none();
        let is_stale = result == Err(Errno::ESTALE) && *routes < 2 && is_about_name;
        // If the directory has been removed, the request for its map fails.
        let gone = (is_entry || is_stale)
            .then(|| self.suspect_fragment(&mut pending.incoming.call, pending.call_state.routes))
            .flatten();
        match (wait, result) {
            (FragmentWait::Parent(listing), result) => {
                return self.complete_listing(now, pending, listing, result, actions);
            }
            (FragmentWait::Sum(sum), result) => self.add_to_sum(now, pending, sum, result, lease, actions),
            // A fragment that is gone has moved its names in durable transactions.
            (FragmentWait::Sync(replies), Ok(_) | Err(Errno::ESTALE)) => {
                self.fragment_synced(now, pending, replies, actions);
            }
            (FragmentWait::Entry, Ok(Reply::Entry(entry))) => {
                let find = Request::Find { ino: entry.attr.ino, kind: Some(FileType::Directory), open: None };
                self.learn(now, &pending, find, &Answer::Entry(entry), lease);
                self.restart(now, pending, actions);
            }
            (FragmentWait::Entry, Ok(Reply::Attr(attr))) => {
                self.learn_attr(now, &pending, attr, lease);
                let known = self.fragments.maps.get(&attr.ino);
                if known.is_some_and(|known| known.map.version() != attr.map_version) {
                    self.ask_for_map(now, pending, attr.ino, actions);
                } else {
                    self.restart(now, pending, actions);
                }
            }
            (FragmentWait::Map, Err(errno)) => self.give_up(pending, errno, actions),
            // A lookup that confirms a rename is not repeated.
            (_, result) if pending.call_state.confirmation.is_confirming() => return Some((pending, result)),
            (wait, Ok(Reply::Fragments(fragments))) => {
                self.fragments.redirects += u64::from(!matches!(wait, FragmentWait::Map));
                self.fragments.learn(fragments);
                self.restart(now, pending, actions);
            }
            (_, Ok(Reply::Relocated { ino, at })) => self.repeat_at(now, pending, ino, at, actions),
            (_, Ok(Reply::Misrouted { dir })) => {
                self.fragments.redirects += 1;
                self.ask_for_map(now, pending, dir, actions);
            }
            (_, Ok(listing @ Reply::Listing { .. })) => {
                return self.resume_listing(now, pending, listing, actions);
            }
            // The parent of the inode is a fragment; the directory is the fragment's parent.
            (_, Ok(Reply::Entry(entry)))
                if entry.attr.map_version == Attr::FRAGMENT
                    && matches!(pending.incoming.call, Call::Request(Request::Parent { .. })) =>
            {
                self.give_back(Left::Lookup(entry.attr.ino));
                pending.incoming.call = Call::Request(Request::Parent { dir: entry.attr.ino });
                self.restart(now, pending, actions);
            }
            (_, Err(Errno::ESTALE | Errno::ENOENT)) if gone.is_some() => {
                let fragment = gone.unwrap_or(self.root);
                let dir = self.fragments.whole(fragment);
                self.ask_for_map(now, pending, dir, actions);
            }
            (_, result) => return Some((pending, result)),
        }
        None
    }

    /// Caches the answer to a request that was made for a call. `lease`: as for
    /// [`Self::resume_fragments`].
    pub(super) fn learn(
        &mut self,
        now: u64,
        pending: &PendingCall<T>,
        request: Request,
        answer: &Answer,
        lease: u64,
    ) {
        let term = Term { requested_at: pending.call_state.sent, left: lease };
        self.cache.answered(&Call::Request(request), Some(answer), term, now);
    }

    fn learn_attr(&mut self, now: u64, pending: &PendingCall<T>, attr: Attr, lease: u64) {
        self.learn(now, pending, Request::GetAttr { ino: attr.ino }, &Answer::Attr(attr), lease);
    }

    /// Handles a fragment's part of a listing; returns it if it is the call's answer.
    fn resume_listing(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        listing: Reply,
        actions: &mut Actions<T>,
    ) -> Option<(PendingCall<T>, Result<Reply, Errno>)> {
        let Call::Request(Request::ReadDir { dir, after, .. }) = &mut pending.incoming.call else {
            return Some((pending, Ok(listing)));
        };
        pending.call_state.lists_start |= *after == 0;
        if let Reply::Listing { entries, end: true, until, .. } = &listing
            && entries.is_empty()
            && *until > *after
            && *until < LAST_CURSOR
        {
            // The listing continues with the next fragment.
            *after = *until;
            pending.call_state.routes = 0;
            self.restart(now, pending, actions);
            return None;
        }
        // A fragment knows only the directory, and the listing begins with `..`.
        let (dir, whole) = (*dir, self.fragments.whole(*dir));
        if !pending.call_state.lists_start || whole == dir {
            return Some((pending, Ok(listing)));
        }
        pending.call_state.fragment_wait = FragmentWait::Parent(Box::new(listing));
        self.ask_for(now, pending, Request::Parent { dir: whole }, actions);
        None
    }

    /// Repeats a request that has met an inode which is at another rank.
    fn repeat_at(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        ino: Ino,
        at: Rank,
        actions: &mut Actions<T>,
    ) {
        let CallState { name_state, routes, .. } = &mut pending.call_state;
        let Some(entry) = name_state.remote_entry.filter(|entry| entry.ino == ino) else {
            return self.restart(now, pending, actions);
        };
        *routes += 1;
        if *routes > MOST_ROUTES {
            return self.give_up(pending, Errno::EIO, actions);
        }
        // The name's rank has executed its part of the call.
        let RemoteEntry { kind, cacheable, leased: name_leased, .. } = entry;
        let left = name_state.until.saturating_sub(now);
        let remote = Reply::Remote { ino, kind, at, cacheable, name_leased };
        let next = self.client.reply(&pending.incoming.call, Ok(remote));
        self.advance(now, pending, next, left, actions);
    }

    /// Handles the reply that a server has forwarded a request, whose reply another one sends.
    pub(super) fn forwarded(
        &mut self,
        now: u64,
        (rank, id): (Rank, RequestId),
        to: Ino,
        fragments: Option<Box<Fragments>>,
        actions: &mut Actions<T>,
    ) {
        let Some((caller, mut request)) = self.server_session(rank).link.forwarded(id) else { return };
        self.fragments.redirects += 1;
        if let Some(fragments) = fragments {
            self.fragments.learn(fragments);
        }
        request.each_name(&mut |dir, _| *dir = to);
        let (to, forwarded) = (to.rank(), id.forwarded_by(rank));
        let end = self.server_session(to);
        end.link.adopt(now, forwarded, (caller, request), &mut end.out);
        self.calls.forwarded((rank, id), (to, forwarded));
        if let Some(pending) = self.calls.remove(CallWait::Reply(rank, id)) {
            self.await_reply(now, pending, CallWait::Reply(to, forwarded), actions);
        }
        if let Some(reply) = self.early_replies.remove(&(to, forwarded)) {
            self.reply(now, reply, actions);
        }
    }

    /// Handles the parent of a directory, which completes a listing; returns the listing then.
    fn complete_listing(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        mut listing: Box<Reply>,
        parent: Result<Reply, Errno>,
        actions: &mut Actions<T>,
    ) -> Option<(PendingCall<T>, Result<Reply, Errno>)> {
        // If the parent's server refuses to show it, the directory stands for it.
        if let (Ok(Reply::Entry(Entry { attr, .. })), Reply::Listing { parent, .. }) = (parent, &mut *listing)
        {
            self.give_back(Left::Lookup(attr.ino));
            if attr.map_version == Attr::FRAGMENT {
                pending.call_state.fragment_wait = FragmentWait::Parent(listing);
                self.ask_for(now, pending, Request::Parent { dir: attr.ino }, actions);
                return None;
            }
            *parent = attr.ino;
        }
        Some((pending, Ok(*listing)))
    }

    /// The fragment that a call is routed to, if it is not the directory itself.
    fn routed_fragment(&self, call: &mut Call<'_>) -> Option<Ino> {
        let Call::Request(request) = call else { return None };
        let mut fragment = None;
        request.each_name(&mut |dir, _| fragment = fragment.or(Some(*dir)));
        fragment.filter(|fragment| self.fragments.dirs.contains_key(fragment))
    }

    /// A fragment that may be gone, since a call to it has failed: of a rename between two, another
    /// one with each attempt.
    fn suspect_fragment(&self, call: &mut Call<'_>, attempt: u8) -> Option<Ino> {
        let Call::Request(request) = call else { return None };
        let mut fragments = Vec::new();
        if let Request::ReadDir { dir, .. } = request {
            fragments.push(*dir);
        }
        request.each_name(&mut |dir, _| fragments.push(*dir));
        fragments.retain(|fragment| self.fragments.dirs.contains_key(fragment));
        fragments.get(usize::from(attempt) % fragments.len().max(1)).copied()
    }

    fn ask_for_map(&mut self, now: u64, mut pending: PendingCall<T>, dir: Ino, actions: &mut Actions<T>) {
        pending.call_state.fragment_wait = FragmentWait::Map;
        self.ask_for(now, pending, Request::Fragments { dir }, actions);
    }

    /// Routes a call again and starts it over.
    fn restart(&mut self, now: u64, pending: PendingCall<T>, actions: &mut Actions<T>) {
        let PendingCall { mut incoming, call_state } = pending;
        if let Some(own) = &call_state.own {
            self.give_back(own.left());
        }
        let routes = call_state.routes + 1;
        if routes > MOST_ROUTES {
            return actions.answer(incoming.ticket, Err(Errno::EIO));
        }
        self.route(&mut incoming.call);
        let Some(incoming) = self.block_call(now, incoming) else { return };
        let (interrupted, lists_start) = (call_state.interrupted, call_state.lists_start);
        drop(call_state);
        let call_state = CallState { routes, interrupted, lists_start, ..CallState::default() };
        self.begin(now, incoming, call_state, actions);
    }

    /// Forgets the fragments of directories that are not cached.
    pub(super) fn forget_fragments(&mut self, dirs: impl Iterator<Item = Ino>) {
        for dir in dirs {
            for fragment in self.fragments.forget(dir) {
                // Several calls may have requested it at the same time.
                self.cache.forget(fragment, u64::MAX);
            }
        }
    }
}
