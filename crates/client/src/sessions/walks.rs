//! Walks: callers that list directories one after another, as `find` does.
//!
//! A walk is recognised by directories that are listed in the order in which the listings of their
//! parents name them. The first pages of the next few are then requested ahead, at all ranks at the
//! same time. Such a page is cached as the rest of a listing is, under the leases of its reply, and
//! a caller gets it only while they last. A caller that comes before the reply waits for it.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{Access, Caller, Dirent, Errno, FileType, Ino, Request};

use super::call_state::CallState;
use super::{Actions, IncomingCall, Interrupt, OwnedCall, Sessions, Waiter};
use crate::cache::Page;
use crate::{Answer, Call};

/// Number of directories in a row after which next ones are fetched.
const IN_ROW: u32 = 2;
/// Number of next directories that are fetched if they are not cached.
const WINDOW: usize = 4;
/// Maximum number of pages of a walk that are requested or cached, and that no caller has read.
const MOST_AHEAD: usize = 8;
/// Maximum number of walks at a time.
const MOST_WALKS: usize = 4;
/// Maximum number of nested directories of a walk.
const MOST_LEVELS: usize = 64;
/// Maximum number of subdirectories of one directory that a walk records.
const MOST_DIRS: usize = 4096;
/// Pause in ms after which a walk is over.
const PAUSE_MS: u64 = 2000;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Walks<T> {
    /// The one that began last is at the back.
    walks: VecDeque<Walk>,
    /// Directories whose first pages are being fetched.
    requested: BTreeSet<Ino>,
    /// Calls for these pages.
    joined: Vec<OwnedCall<T>>,
    /// A walk has advanced, or more is known of the next directories.
    is_due: bool,
    counts: WalkCounts,
}

/// Numbers of first pages of directories since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCounts {
    /// Pages that were requested ahead.
    pub requested: u64,
    /// Those that callers have read.
    pub read: u64,
}

#[derive(Debug)]
struct Walk {
    caller: Caller,
    /// Maximum number of entries of a page.
    limit: u32,
    /// The directory that was listed last, at the end, and those above.
    levels: Vec<WalkLevel>,
    /// Number of directories in a row that were the next ones.
    in_row: u32,
    /// Number of pages that were fetched in vain.
    misses: u32,
    /// Directories are listed before their siblings.
    goes_deep: bool,
    ahead: Vec<DirAhead>,
    /// When the last directory was listed, in ms.
    last: u64,
}

/// A directory that was listed.
#[derive(Debug)]
struct WalkLevel {
    dir: Ino,
    /// Its subdirectories that have not been listed, in order, of entries up to this cursor.
    rest: VecDeque<Ino>,
    cursor: u64,
}

impl WalkLevel {
    fn new(dir: Ino) -> Self {
        Self { dir, rest: VecDeque::new(), cursor: 0 }
    }

    /// Adds the entries of a page; a caller may not have had room for all entries of the page
    /// before.
    fn add(&mut self, page: Page, entries: &[Dirent]) {
        if page.after == 0 {
            *self = Self::new(self.dir);
        }
        let room = MOST_DIRS.saturating_sub(self.rest.len());
        let new = entries.iter().filter(|dirent| dirent.cursor > self.cursor);
        self.rest.extend(subdirectories(new).take(room));
        self.cursor = entries.last().map_or(self.cursor, |last| last.cursor.max(self.cursor));
    }
}

/// A directory whose first page was requested, and which no caller has listed.
#[derive(Debug)]
struct DirAhead {
    dir: Ino,
    /// Its subdirectories, when the page has come.
    dirs: Vec<Ino>,
}

/// A first page to fetch.
struct WantedPage {
    /// Place of the walk that needs it.
    walk: usize,
    dir: Ino,
    caller: Caller,
    limit: u32,
}

/// A caller lists a directory.
struct DirVisit {
    caller: Caller,
    limit: u32,
    dir: Ino,
    now: u64,
}

impl Walk {
    fn new(DirVisit { caller, limit, dir, now }: DirVisit) -> Self {
        Self {
            caller,
            limit,
            levels: [WalkLevel::new(dir)].into(),
            in_row: 0,
            misses: 0,
            goes_deep: true,
            ahead: Vec::new(),
            last: now,
        }
    }

    /// Depth and position of a directory that has not been listed.
    fn find(&self, dir: Ino) -> Option<(usize, usize)> {
        let position = |level: &WalkLevel| level.rest.iter().position(|it| *it == dir);
        self.levels.iter().enumerate().rev().find_map(|(depth, level)| Some((depth, position(level)?)))
    }

    /// A caller lists the directory found at this depth and position. Returns the directories that
    /// were skipped.
    fn advance(&mut self, visit: DirVisit, (depth, position): (usize, usize)) -> Vec<Ino> {
        let DirVisit { caller, limit, dir, now } = visit;
        let is_child = self.levels.len() == depth + 1;
        let deeper = self.levels.drain(depth + 1..).flat_map(|level| level.rest);
        let mut skipped: Vec<Ino> = deeper.collect();
        self.goes_deep = is_child || self.goes_deep && skipped.is_empty();
        let is_paused = now.saturating_sub(self.last) > PAUSE_MS;
        self.in_row = if position > 0 || is_paused { 0 } else { self.in_row + 1 };
        let rest = self.levels.last_mut().map(|level| level.rest.drain(..=position));
        skipped.extend(rest.into_iter().flatten().filter(|it| *it != dir));
        if self.levels.len() == MOST_LEVELS {
            self.levels.remove(0);
        }
        self.levels.push(WalkLevel::new(dir));
        (self.caller, self.limit, self.last) = (caller, limit, now);
        skipped
    }

    /// Removes directories, and their subdirectories, from those that are fetched ahead. Returns
    /// those that were removed.
    fn drop_ahead(&mut self, mut dirs: Vec<Ino>) -> Vec<Ino> {
        let mut dropped = Vec::new();
        while let Some(dir) = dirs.pop() {
            if let Some(ahead) = self.take_ahead(dir) {
                dirs.extend(ahead.dirs);
                dropped.push(dir);
            }
        }
        dropped
    }

    fn take_ahead(&mut self, dir: Ino) -> Option<DirAhead> {
        let at = self.ahead.iter().position(|ahead| ahead.dir == dir)?;
        Some(self.ahead.swap_remove(at))
    }

    /// The next directories in order.
    fn next(&self) -> Vec<Ino> {
        let mut next = Vec::new();
        let levels = self.levels.iter().rev().skip(usize::from(!self.goes_deep));
        let mut dirs = levels.flat_map(|level| &level.rest);
        while next.len() < WINDOW
            && let Some(dir) = dirs.next()
        {
            self.add_next(*dir, &mut next);
        }
        next
    }

    fn add_next(&self, dir: Ino, next: &mut Vec<Ino>) {
        if next.len() >= WINDOW {
            return;
        }
        next.push(dir);
        let ahead = self.ahead.iter().find(|ahead| ahead.dir == dir && self.goes_deep);
        ahead.into_iter().flat_map(|ahead| &ahead.dirs).for_each(|dir| self.add_next(*dir, next));
    }

    fn is_due(&self) -> bool {
        self.in_row >= IN_ROW << self.misses.min(8) && self.ahead.len() < MOST_AHEAD
    }
}

impl<T> Walks<T> {
    /// A caller lists a directory. Returns the directories whose pages it skips.
    fn visit(&mut self, visit: DirVisit) -> Vec<Ino> {
        let is_last = |walk: &Walk| walk.levels.last().is_some_and(|level| level.dir == visit.dir);
        if self.walks.iter().any(is_last) {
            return Vec::new();
        }
        self.is_due = true;
        let found = self.walks.iter_mut().rev().find_map(|walk| {
            let found = walk.find(visit.dir)?;
            Some((walk, found))
        });
        let Some((walk, found)) = found else {
            self.walks.push_back(Walk::new(visit));
            let over = if self.walks.len() > MOST_WALKS { self.walks.pop_front() } else { None };
            return over.into_iter().flat_map(|walk| walk.ahead).map(|ahead| ahead.dir).collect();
        };
        let dir = visit.dir;
        let skipped = walk.advance(visit, found);
        walk.take_ahead(dir);
        walk.drop_ahead(skipped)
    }

    /// The walk that fetches a directory ahead.
    fn ahead(&mut self, dir: Ino) -> Option<&mut DirAhead> {
        self.walks.iter_mut().flat_map(|walk| &mut walk.ahead).find(|ahead| ahead.dir == dir)
    }

    /// The directory that was listed last was fetched in vain.
    fn missed(&mut self, dir: Ino) {
        if let Some(walk) = self.at(dir) {
            (walk.in_row, walk.misses) = (0, walk.misses + 1);
        }
    }

    /// The walk that has listed a directory last.
    fn at(&mut self, dir: Ino) -> Option<&mut Walk> {
        let is_at = |walk: &&mut Walk| walk.levels.last().is_some_and(|level| level.dir == dir);
        self.walks.iter_mut().find(is_at)
    }

    /// The first pages to fetch, each for one walk.
    fn take_wanted(&mut self) -> Vec<WantedPage> {
        if !core::mem::take(&mut self.is_due) {
            return Vec::new();
        }
        let ahead = self.walks.iter().flat_map(|walk| &walk.ahead).map(|ahead| ahead.dir);
        let mut fetched: BTreeSet<Ino> = self.requested.iter().copied().chain(ahead).collect();
        let mut wanted = Vec::new();
        for (at, walk) in self.walks.iter().enumerate().filter(|(_, walk)| walk.is_due()) {
            let new = walk.next().into_iter().filter(|dir| fetched.insert(*dir));
            let page = |dir| WantedPage { walk: at, dir, caller: walk.caller.clone(), limit: walk.limit };
            wanted.extend(new.take(MOST_AHEAD - walk.ahead.len()).map(page));
        }
        wanted
    }

    fn requests(&mut self, dir: Ino, walk: usize) {
        self.requested.insert(dir);
        let walk = self.walks.get_mut(walk);
        walk.into_iter().for_each(|walk| walk.ahead.push(DirAhead { dir, dirs: Vec::new() }));
    }
}

impl<T> Default for Walks<T> {
    fn default() -> Self {
        Self {
            walks: VecDeque::new(),
            requested: BTreeSet::new(),
            joined: Vec::new(),
            is_due: false,
            counts: WalkCounts::default(),
        }
    }
}

impl<T> Sessions<T> {
    pub fn walk_counts(&self) -> WalkCounts {
        self.walks.counts
    }

    /// The page of a listing, if it is cached and the caller certainly may read it; also returns
    /// how long it may be cached, in ms.
    pub(super) fn cached_page(&mut self, now: u64, caller: &Caller, page: Page) -> Option<(Answer, u64)> {
        if !self.may(caller, page.dir, Access::READ, now) || self.retain_known(now, page.dir) == Some(0) {
            return None;
        }
        let (answer, left) = self.cache.next_page(page, now)?;
        self.note_entries(now, page, &answer);
        Some((answer, left))
    }

    /// Takes the first call of a listing: a kernel's listings may be those of a walk. Returns the
    /// call if nothing was fetched ahead for it.
    pub(super) fn enter_listing(
        &mut self,
        now: u64,
        incoming: OwnedCall<T>,
        actions: &mut Actions<T>,
    ) -> Option<OwnedCall<T>> {
        let Some(page) = first_page(&incoming.call).filter(|_| self.cache.has_kernel()) else {
            return Some(incoming);
        };
        let dir = self.fragments.whole(page.dir);
        let was_ahead = self.walks.ahead(dir).is_some();
        let (caller, limit) = (incoming.caller.clone(), u32::try_from(page.limit).unwrap_or(u32::MAX));
        for skipped in self.walks.visit(DirVisit { caller, limit, dir, now }) {
            self.cache.drop_first_page(skipped);
        }
        if self.walks.requested.contains(&dir) {
            self.walks.joined.push(incoming);
            return None;
        }
        let rest = self.answer_ahead(now, page, incoming, actions);
        if was_ahead && rest.is_some() {
            self.walks.missed(dir);
        }
        rest
    }

    /// Answers a call with a page that was fetched ahead; returns the call if there is none.
    fn answer_ahead(
        &mut self,
        now: u64,
        page: Page,
        incoming: OwnedCall<T>,
        actions: &mut Actions<T>,
    ) -> Option<OwnedCall<T>> {
        if !self.cache.has_first_page(page) {
            return Some(incoming);
        }
        let Some((answer, left)) = self.cached_page(now, &incoming.caller, page) else {
            return Some(incoming);
        };
        self.walks.counts.read += 1;
        let answer = self.shown(now, answer);
        actions.answer_leased(incoming.ticket, Ok(answer), left);
        None
    }

    /// Records the subdirectories in a reply to a caller.
    pub(super) fn note_listed(&mut self, now: u64, call: &Call<'_>, answer: &Answer) {
        if let Some(page) = Page::of(call).filter(|_| self.cache.has_kernel()) {
            self.note_entries(now, page, answer);
        }
    }

    fn note_entries(&mut self, now: u64, page: Page, answer: &Answer) {
        let is_leased = self.cache.leased_until(page.dir) > now;
        let Some(walk) = self.walks.at(self.fragments.whole(page.dir)) else { return };
        // Pages without a lease are not cached.
        if !is_leased {
            walk.in_row = 0;
        }
        if let (Some(level), Answer::Listing { entries, .. }) = (walk.levels.last_mut(), answer) {
            level.add(page, entries);
            self.walks.is_due = true;
        }
    }

    /// Caches a page that was fetched ahead, if a walk still needs it. `lease`: the remaining
    /// time of the reply's leases, in ms.
    pub(super) fn keep_ahead(&mut self, now: u64, dir: Ino, call: &Call<'_>, answer: &Answer, lease: u64) {
        let (Some(page), Answer::Listing { entries, .. }) = (Page::of(call), answer) else { return };
        let is_joined = self.walks.joined.iter().any(|joined| self.lists(&joined.call) == Some(dir));
        let ahead = self.walks.ahead(dir);
        if lease > 0 && (is_joined || ahead.is_some()) {
            self.cache.keep_first_page(page, answer, now);
        }
        if let Some(ahead) = ahead {
            ahead.dirs = subdirectories(entries.iter()).collect();
        }
    }

    /// The directory whose first page a call requests.
    fn lists(&self, call: &Call<'_>) -> Option<Ino> {
        first_page(call).map(|page| self.fragments.whole(page.dir))
    }

    /// Continues the calls whose pages have been fetched, and fetches the next ones.
    pub(super) fn advance_walks(&mut self, now: u64, actions: &mut Actions<T>) {
        loop {
            for dir in core::mem::take(&mut actions.fetched) {
                self.continue_joined(now, dir, actions);
            }
            self.fetch_ahead(now, actions);
            if actions.fetched.is_empty() {
                return;
            }
        }
    }

    /// Continues the calls for the first page of a directory, which has been fetched if it could.
    fn continue_joined(&mut self, now: u64, dir: Ino, actions: &mut Actions<T>) {
        self.walks.requested.remove(&dir);
        self.walks.is_due = true;
        self.cache.forget(dir, 1);
        let joined = core::mem::take(&mut self.walks.joined).into_iter();
        let (joined, others): (Vec<_>, _) = joined.partition(|it| self.lists(&it.call) == Some(dir));
        self.walks.joined = others;
        for mut incoming in joined {
            self.route(&mut incoming.call);
            let left = match first_page(&incoming.call) {
                Some(page) => self.answer_ahead(now, page, incoming, actions),
                None => Some(incoming),
            };
            if let Some(incoming) = left {
                self.walks.missed(dir);
                self.enter(now, incoming, actions);
            }
        }
    }

    fn fetch_ahead(&mut self, now: u64, actions: &mut Actions<T>) {
        for WantedPage { walk, dir, caller, limit } in self.walks.take_wanted() {
            let mut call = Call::Request(Request::ReadDir { dir, after: 0, limit, plus: true });
            self.route(&mut call);
            let Some(page) = Page::of(&call) else { continue };
            let end = self.server_sessions.get(&self.rank_of(page.dir));
            let is_ready = end.is_some_and(|end| end.link.is_ready());
            if !is_ready || !self.cache.holds(dir) || self.is_blocked(now, &call) {
                continue;
            }
            self.walks.requests(dir, walk);
            self.walks.counts.requested += 1;
            self.cache.pin(dir);
            let incoming = IncomingCall { call_id: 0, caller, call, ticket: Waiter::Ahead(dir) };
            self.begin(now, incoming, CallState::default(), actions);
        }
    }

    /// Handles a signal to the caller of a call that waits for a page; `None`: there is none.
    pub(super) fn interrupt_joined(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        actions: &mut Actions<T>,
    ) -> Option<Interrupt> {
        let at = self.walks.joined.iter().position(|joined| joined.call_id == call_id)?;
        if !dies(self.walks.joined[at].caller.pid) {
            return Some(Interrupt::Survived);
        }
        let incoming = self.walks.joined.remove(at);
        actions.answer(incoming.ticket, Err(Errno::EINTR));
        Some(Interrupt::Heard)
    }
}

fn subdirectories<'a>(entries: impl Iterator<Item = &'a Dirent>) -> impl Iterator<Item = Ino> {
    entries.filter(|dirent| dirent.kind == FileType::Directory).map(|dirent| dirent.ino)
}

/// The first page of a listing with attributes.
fn first_page(call: &Call<'_>) -> Option<Page> {
    Page::of(call).filter(|page| page.plus && page.after == 0)
}
