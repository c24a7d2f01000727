//! Read-ahead of directory listings.
//! A client that requests the second page of a directory usually reads all of it: the cache then
//! asks the server for more entries than the page needs. It returns the surplus later, if it is
//! still valid then. It also answers the request with which a kernel finds the end of a listing,
//! and keeps first pages that were fetched ahead for a walk.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{Dirent, Entry, FileType, Ino, Location, Request};

use super::{Binding, Cache, InodeRecord, Users};
use crate::{Answer, Call};

/// Listings in progress; the last one read is at the back.
#[derive(Debug, Default)]
pub(super) struct Listings(VecDeque<Listing>);

#[derive(Debug)]
struct Listing {
    dir: Ino,
    plus: bool,
    /// Entries from the last returned page on: the caller may not have had room for all of them.
    entries: VecDeque<Dirent>,
    progress: ListingProgress,
    parent: Ino,
    /// The listing ends with these entries.
    end: bool,
    /// When the lease on the directory's contents began, as in [`InodeRecord::since`].
    since: u64,
    /// Reading ahead is worthwhile for this listing.
    asks_more: bool,
}

/// How far callers have read a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingProgress {
    /// It was fetched ahead from the beginning, and nothing has been read.
    Ahead,
    Begun,
    /// All entries have been read. With the cursor at the end.
    Ended(u64),
}

/// A requested page of a listing.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub dir: Ino,
    pub after: u64,
    pub limit: usize,
    pub plus: bool,
}

impl Page {
    pub fn of(call: &Call<'_>) -> Option<Self> {
        match *call {
            Call::Request(Request::ReadDir { dir, after, limit, plus }) => {
                Some(Self { dir, after, limit: limit as usize, plus })
            }
            _ => None,
        }
    }
}

impl Listings {
    /// Maximum number of listings in progress or fetched ahead.
    const MOST: usize = 16;

    /// The directory has changed.
    pub fn lose(&mut self, dir: Ino) {
        self.0.retain(|listing| listing.dir != dir);
    }

    /// The listing that the page continues, and the number of its entries up to the page's cursor.
    fn find(&self, page: Page) -> Option<(usize, usize)> {
        let goes_on = |listing: &Listing| {
            // A listing with attributes also has the entries without.
            if listing.dir != page.dir || page.plus && !listing.plus {
                return None;
            }
            let next = match listing.progress {
                ListingProgress::Ahead => Some(0),
                ListingProgress::Begun => None,
                ListingProgress::Ended(cursor) => Some(cursor),
            };
            if next == Some(page.after) {
                return Some(0);
            }
            let reported = listing.entries.iter().position(|dirent| dirent.cursor == page.after)?;
            Some(reported + 1)
        };
        self.0.iter().enumerate().find_map(|(at, listing)| Some((at, goes_on(listing)?)))
    }

    fn keep(&mut self, listing: Listing) {
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(listing);
    }
}

impl Cache {
    /// The number of entries to request from a server, if more than the page needs.
    pub fn entries_to_ask_for(&self, page: Page) -> Option<u32> {
        let (at, _) = self.listings.find(page)?;
        self.listings.0[at].asks_more.then_some(Request::MAX_ENTRIES)
    }

    /// The next page of a listing, if it is cached completely, and how long it may be cached, in
    /// ms.
    pub fn next_page(&mut self, page: Page, now: u64) -> Option<(Answer, u64)> {
        let (at, reported) = self.listings.find(page)?;
        let listing = &self.listings.0[at];
        let (left, end, parent) = (listing.entries.len() - reported, listing.end, listing.parent);
        let is_first = reported == 0 && left > 0;
        if left <= page.limit && !end && !is_first {
            return None;
        }
        let Some((entries, until)) = self.known_now(listing, reported, page, now) else {
            self.listings.0[at].asks_more = false;
            return None;
        };
        for dirent in entries.iter().filter(|dirent| dirent.entry.is_some()) {
            self.add_user(dirent.ino);
        }
        self.counts.hits += 1;
        if let Some(mut listing) = self.listings.0.remove(at) {
            listing.entries.drain(..reported);
            let progress = match (listing.entries.is_empty(), listing.progress) {
                (false, _) => Some(ListingProgress::Begun),
                // A kernel asks for the end of an empty listing at its beginning.
                (true, ListingProgress::Ahead) => Some(ListingProgress::Ended(0)),
                (true, _) => None,
            };
            if let Some(progress) = progress {
                self.listings.keep(Listing { progress, ..listing });
            }
        }
        Some((Answer::Listing { entries, parent, end: end && left <= page.limit }, until - now))
    }

    /// The entries of a page from `reported` on, if they are still valid, and until when.
    fn known_now(
        &self,
        listing: &Listing,
        reported: usize,
        page: Page,
        now: u64,
    ) -> Option<(Vec<Dirent>, u64)> {
        let is_valid = |dir: &&InodeRecord| dir.contents_lease > now && dir.since == listing.since;
        let dir = self.records.get(&listing.dir).filter(is_valid)?;
        let mut until = dir.contents_lease;
        let mut entries = Vec::with_capacity(page.limit.min(listing.entries.len() - reported));
        for dirent in listing.entries.iter().skip(reported).take(page.limit) {
            let mut dirent = dirent.clone();
            if !page.plus {
                (dirent.entry, dirent.remote) = (None, None);
            }
            if dirent.entry.is_some() || dirent.remote.is_some() {
                let known = self.known_entry(listing.dir, &dirent, now);
                if dirent.remote.is_none() && known.is_none() {
                    return None;
                }
                until = until.min(known.map_or(u64::MAX, |(_, lease)| lease));
                dirent.entry = known.map(|(entry, _)| entry);
            }
            entries.push(dirent);
        }
        Some((entries, until))
    }

    /// Until when a directory's entry is bound to its inode.
    fn name_until(&self, dir: Ino, dirent: &Dirent, now: u64) -> Option<u64> {
        let listed = self.records.get(&dir).filter(|record| record.lease > now)?;
        let name = listed.names.get(&dirent.name).filter(|_| !self.changing.is_named(dir, &dirent.name))?;
        let is_bound = matches!(name.at(now)?, Binding::Inode(ino, _) if ino == dirent.ino);
        is_bound.then_some(name.until.min(listed.lease))
    }

    /// The current state of a directory's entry, and until when it is valid.
    fn known_entry(&self, dir: Ino, dirent: &Dirent, now: u64) -> Option<(Entry, u64)> {
        let name_until = self.name_until(dir, dirent, now)?;
        let cacheable = self.records.get(&dir)?.is_searchable_by_all();
        let (record, attr) = self.known(dirent.ino, now).filter(|(record, _)| record.lookups > 0)?;
        let (attr, location) = (*attr, Location::Table);
        let entry = Entry {
            attr,
            cacheable,
            name_leased: true,
            attr_leased: true,
            sole_holder: false,
            location,
            reclaim_token: 0,
        };
        Some((entry, name_until.min(record.contents_lease)))
    }

    /// Withholds the entries of a reply that the call did not ask for, and records where the
    /// listing continues.
    pub fn hold_back(&mut self, call: &Call<'_>, answer: &mut Answer, now: u64) {
        let (Some(page), Answer::Listing { entries, parent, end }) = (Page::of(call), answer) else { return };
        let before = self.listings.find(page).and_then(|(at, _)| self.listings.0.remove(at));
        let surplus = entries.split_off(page.limit.min(entries.len()));
        self.take_back(&surplus);
        let is_cut = !surplus.is_empty();
        if self.users == Users::Report && self.leased_until(page.dir) > now {
            let retained: VecDeque<_> = entries.iter().cloned().chain(surplus).collect();
            let progress =
                if retained.is_empty() { ListingProgress::Ended(page.after) } else { ListingProgress::Begun };
            let asks_more = before.is_none_or(|before| before.asks_more);
            let listing = self.new_listing(page, retained, *parent, *end);
            self.listings.keep(Listing { progress, asks_more, ..listing });
        }
        *end &= !is_cut;
    }

    /// Keeps a first page that no caller has requested yet, from a reply with a lease.
    pub fn keep_first_page(&mut self, page: Page, answer: &Answer, now: u64) {
        let Answer::Listing { entries, parent, end } = answer else { return };
        let is_leased = self.users == Users::Report && self.leased_until(page.dir) > now;
        // The reply may be older than pending operations.
        if page.after > 0 || !is_leased || self.has_pending(page.dir) {
            return;
        }
        self.listings.lose(page.dir);
        let listing = self.new_listing(page, entries.iter().cloned().collect(), *parent, *end);
        self.listings.keep(listing);
    }

    /// A listing of which nothing has been read.
    fn new_listing(&self, page: Page, entries: VecDeque<Dirent>, parent: Ino, end: bool) -> Listing {
        let Page { dir, plus, .. } = page;
        let (progress, since, asks_more) = (ListingProgress::Ahead, self.lease_began(dir), true);
        Listing { dir, plus, entries, progress, parent, end, since, asks_more }
    }

    /// The epoch in which the last lease on a directory's contents began.
    fn lease_began(&self, dir: Ino) -> u64 {
        self.records.get(&dir).map_or(0, |record| record.since)
    }

    /// Drops a first page that no caller has requested.
    pub fn drop_first_page(&mut self, dir: Ino) {
        self.listings.0.retain(|listing| listing.dir != dir || listing.progress != ListingProgress::Ahead);
    }

    /// Adds a reference to an inode, which [`Self::forget`] drops.
    pub fn pin(&mut self, ino: Ino) {
        self.add_user(ino);
    }

    /// True if the first page of a listing is cached, and no caller has requested it yet.
    pub fn has_first_page(&self, page: Page) -> bool {
        let is_ahead = |(at, _): (usize, usize)| self.listings.0[at].progress == ListingProgress::Ahead;
        self.listings.find(page).is_some_and(is_ahead)
    }

    /// The inodes at other ranks that a listing names and that are not cached, with their types;
    /// `None`: it names none at other ranks.
    pub fn remote_inodes(
        &self,
        call: &Call<'_>,
        answer: &Answer,
        now: u64,
    ) -> Option<BTreeMap<Ino, FileType>> {
        let (Some(page), Answer::Listing { entries, .. }) = (Page::of(call), answer) else { return None };
        let mut remote = entries.iter().filter(|dirent| dirent.remote.is_some()).peekable();
        remote.peek()?;
        let is_known = |dirent: &Dirent| self.known_entry(page.dir, dirent, now).is_some();
        Some(remote.filter(|dirent| !is_known(dirent)).map(|dirent| (dirent.ino, dirent.kind)).collect())
    }

    /// Adds entries of inodes at other ranks to a listing: those that have come, and those that are
    /// cached. Leases on the other entries may have ended meanwhile. Returns how long the listing
    /// may be cached, in ms.
    pub fn complete_listing(
        &mut self,
        dir: Ino,
        entries: &mut [Dirent],
        mut found: BTreeMap<Ino, Entry>,
        now: u64,
    ) -> u64 {
        let mut until = u64::MAX;
        for dirent in entries {
            let known = self.known_entry(dir, dirent, now).map(|(entry, _)| entry);
            if dirent.remote.is_some() {
                dirent.entry = found.remove(&dirent.ino);
                if let (None, Some(known)) = (&dirent.entry, known) {
                    self.add_user(known.attr.ino);
                    dirent.entry = Some(known);
                }
            }
            let name_until = self.name_until(dir, dirent, now);
            let Some(entry) = &mut dirent.entry else { continue };
            let attr = self.known(dirent.ino, now).map(|(record, attr)| (*attr, record.contents_lease));
            (entry.name_leased, entry.attr_leased) = (name_until.is_some(), attr.is_some());
            entry.attr = attr.map_or(entry.attr, |(attr, _)| attr);
            let ends = name_until.into_iter().chain(attr.map(|(_, attr_until)| attr_until));
            until = ends.fold(until, u64::min);
            let attr = entry.attr;
            self.placed(&attr, dir, &dirent.name);
        }
        // Their names are held back, or have been found twice.
        if self.users == Users::Report {
            found.into_keys().for_each(|ino| self.forget(ino, 1));
        }
        if until == u64::MAX { 0 } else { until - now }
    }

    /// Users get an inode from the cache.
    fn add_user(&mut self, ino: Ino) {
        if self.users == Users::Report
            && let Some(record) = self.records.get_mut(&ino)
        {
            record.users += 1;
        }
    }

    /// Drops the lookup references of entries that are not returned to users.
    pub fn take_back(&mut self, entries: &[Dirent]) {
        if self.users == Users::Report {
            let reported = entries.iter().filter(|dirent| dirent.entry.is_some());
            reported.for_each(|dirent| self.forget(dirent.ino, 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use espalier_proto::{Lease, Name};

    use super::super::Term;
    use super::super::tests::attr;
    use super::*;

    const DIR: Ino = Ino(2);
    const LIMIT: u32 = 200;
    /// Callers have room for fewer entries than they ask for.
    const ROOM: usize = 190;
    const LEASE: u64 = 100;

    /// A server's directory by cursor, and a client that lists it.
    struct Bench {
        names: BTreeMap<u64, Name>,
        cache: Cache,
        now: u64,
        /// The limits of the requests to the server.
        requested_at: Vec<u32>,
    }

    fn list(after: u64) -> Call<'static> {
        Call::Request(Request::ReadDir { dir: DIR, after, limit: LIMIT, plus: true })
    }

    impl Bench {
        fn new(count: u64) -> Self {
            let name = |number| Name::new(format!("{number}").as_bytes()).expect("a name");
            let names = (1..=count).map(|number| (10 * number, name(number))).collect();
            Self { names, cache: Cache::new(1 << 20, Users::Report), now: 0, requested_at: Vec::new() }
        }

        fn serve(&self, after: u64, limit: u32) -> Answer {
            let mut rest = self.names.range(after + 1..);
            let dirent = |(cursor, name): (&u64, &Name)| {
                let (ino, kind) = (Ino(*cursor), FileType::Regular);
                let (attr, cacheable, location) = (attr(ino.0, kind, *cursor), true, Location::Table);
                let entry = Entry {
                    attr,
                    cacheable,
                    name_leased: true,
                    attr_leased: true,
                    sole_holder: false,
                    location,
                    reclaim_token: 0,
                };
                Dirent { name: name.clone(), ino, kind, cursor: *cursor, entry: Some(entry), remote: None }
            };
            let entries = rest.by_ref().take(limit as usize).map(dirent).collect();
            Answer::Listing { entries, parent: Ino::ROOT, end: rest.next().is_none() }
        }

        /// The entries of a page that a caller receives, and whether the page is the last.
        fn page(&mut self, after: u64) -> (Vec<Dirent>, bool) {
            let call = list(after);
            let page = Page::of(&call).expect("a page");
            let answer =
                self.cache.next_page(page, self.now).map(|(answer, _)| answer).unwrap_or_else(|| {
                    let limit = self.cache.entries_to_ask_for(page).unwrap_or(LIMIT);
                    self.requested_at.push(limit);
                    let mut answer = self.serve(after, limit);
                    self.cache.answered(
                        &call,
                        Some(&answer),
                        Term { requested_at: self.now, left: LEASE },
                        self.now,
                    );
                    self.cache.hold_back(&call, &mut answer, self.now);
                    answer
                });
            let Answer::Listing { mut entries, end, .. } = answer else { panic!("{answer:?}") };
            assert!(entries.len() <= LIMIT as usize);
            let is_last = end && entries.len() <= ROOM;
            for dirent in entries.drain(ROOM.min(entries.len())..) {
                self.cache.forget(dirent.ino, 1);
            }
            (entries, is_last)
        }

        /// Lists the rest of the directory; `then` runs after each page.
        fn list(&mut self, mut after: u64, mut then: impl FnMut(&mut Self, &[Dirent])) -> Vec<Dirent> {
            let mut all = Vec::new();
            loop {
                let (entries, is_last) = self.page(after);
                then(self, &entries);
                after = entries.last().map_or(after, |last| last.cursor);
                all.extend(entries);
                if is_last {
                    return all;
                }
            }
        }

        fn unlink(&mut self, dirent: &Dirent) {
            let call = Call::Request(Request::Unlink { dir: DIR, name: dirent.name.clone(), time: None });
            drop(self.cache.sent(&call, self.now));
            self.names.remove(&dirent.cursor);
            self.cache.answered(
                &call,
                Some(&Answer::Done),
                Term { requested_at: self.now, left: 0 },
                self.now,
            );
        }
    }

    fn names(entries: &[Dirent]) -> Vec<Name> {
        entries.iter().map(|dirent| dirent.name.clone()).collect()
    }

    #[test]
    fn a_long_listing_takes_few_messages_and_a_short_one_no_more_than_it_needs() {
        let mut bench = Bench::new(5000);
        let all = bench.list(0, |_, _| {});
        assert_eq!(names(&all), bench.names.values().cloned().collect::<Vec<_>>());
        assert_eq!(bench.requested_at, [LIMIT, 2048, 2048, 2048]);
        let mut bench = Bench::new(150);
        assert_eq!(bench.list(0, |_, _| {}).len(), 150);
        assert_eq!(bench.requested_at, [LIMIT]);
    }

    #[test]
    fn next_page_shows_changes_of_others() {
        let changes: [fn(&mut Bench); 3] = [
            |bench| {
                bench.names.remove(&9990);
                bench.cache.revoke(&Lease::Inode { ino: DIR });
            },
            |bench| {
                bench.names.remove(&9990);
                bench.cache.revoke(&Lease::Name { dir: DIR, name: Name::new(b"999").expect("a name") });
            },
            // The lease has expired.
            |bench| {
                bench.names.remove(&9990);
                bench.now += LEASE;
            },
        ];
        for change in changes {
            let mut bench = Bench::new(1000);
            bench.page(0);
            bench.page(1900);
            change(&mut bench);
            let all = bench.list(3800, |_, _| {});
            let left: Vec<_> = bench.names.range(3801..).map(|(_, name)| name.clone()).collect();
            assert_eq!(names(&all), left);
        }
        // Changed attributes are refreshed.
        let mut bench = Bench::new(1000);
        bench.page(0);
        bench.page(1900);
        let requested_at = bench.requested_at.len();
        bench.cache.revoke(&Lease::Inode { ino: Ino(3900) });
        assert_eq!(bench.page(3800).0.len(), ROOM);
        assert_eq!(bench.requested_at.len(), requested_at + 1);
    }

    #[test]
    fn removing_while_listing_needs_no_extra_page() {
        let mut bench = Bench::new(1000);
        let all = bench.list(0, |bench, page| page.iter().for_each(|dirent| bench.unlink(dirent)));
        assert_eq!((all.len(), bench.names.len()), (1000, 0));
        assert!(bench.requested_at.iter().all(|limit| *limit == LIMIT), "{:?}", bench.requested_at);
    }

    #[test]
    fn unreported_entries_are_forgotten_with_their_lease() {
        let mut bench = Bench::new(1000);
        let mut reported = Vec::new();
        for after in [0, 1900, 3800] {
            reported.extend(bench.page(after).0);
        }
        bench.cache.expire(10 * LEASE);
        let forgotten = bench.cache.forgotten();
        assert_eq!(forgotten.len(), 1000 - reported.len());
        reported.iter().for_each(|dirent| bench.cache.forget(dirent.ino, 1));
        let all = forgotten.into_iter().chain(bench.cache.forgotten());
        // The server has returned some entries twice.
        let lookups: u64 = all.map(|(_, lookups)| lookups).sum();
        assert_eq!(lookups, u64::from(LIMIT) + (1000 - 190));
    }
}
