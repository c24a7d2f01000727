//! The client of a cluster: sessions with all metadata servers, the cache, and pending calls. It
//! advances each call to its answer across lost connections and server restarts.

mod asking;
mod behind;
mod course;
mod data;
mod early;
mod end;
mod kept;
mod own;
mod quiet;
mod renames;
mod rights;
mod root;
mod told;
mod write_behind;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{
    Access, Attr, Caller, Errno, FromClient, FromServer, Ino, Layout, Lease, LockOwner, Name, Rank, Reads,
    Recall, Request, RequestId, Welcome,
};

use crate::cache::Page;
use crate::{Answer, Binding, Cache, Call, Client, Ended};
use asking::Asking;
use behind::Behind;
use course::Course;
use early::Early;
use end::End;
use kept::Kept;
use quiet::Quiet;

pub use asking::Outcome;
pub use told::{DataAsk, ForDoor, Interrupt, Told};

/// Extended attributes that kernels request themselves, independent of read permission.
const ASKED_OFTEN: [&[u8]; 2] = [b"security.", b"system.posix_acl_"];

/// The client's sessions. See the module's documentation. Times are milliseconds of a monotonic
/// clock.
#[derive(Debug)]
pub struct Sessions<T> {
    client: Client,
    cache: Cache,
    /// Sessions with the servers that have been needed so far.
    ends: BTreeMap<Rank, End<T>>,
    ranks: usize,
    /// The inode that the frontend calls [`Ino::ROOT`]: a restricted client's root is a subtree.
    root: Ino,
    /// A kernel checks search and read permission before it makes a call.
    is_checked: bool,
    /// Write-back is enabled.
    tells_early: bool,
    /// Calls that wait for data servers.
    asking: Asking<T>,
    early: Early,
    behind: Behind<T>,
    quiet: Quiet,
    kept: Kept,
    /// The names last removed or renamed by callers: the kernel knows of these changes, and may
    /// have bound a name again.
    vacated: VecDeque<(Ino, Name)>,
}

/// A call from the frontend.
#[derive(Debug)]
pub struct Asked<'a, T> {
    /// Unique among unanswered calls, and not 0.
    pub call_id: u64,
    pub caller: Caller,
    pub call: Call<'a>,
    /// Identifies the call to the frontend.
    pub ticket: T,
}

/// Maximum number of names in [`Sessions::vacated`].
const VACATED: usize = 256;

/// The receiver of a call's result.
#[derive(Debug)]
enum Waiter<T> {
    /// A call of the frontend, with its ticket.
    Door(T),
    /// No one: the caller was answered early. With the number of the pending operation.
    Nobody(u64),
}

impl<T> Sessions<T> {
    /// `ranks`: number of metadata servers. `is_checked`: a kernel checks search and read
    /// permission of directories; otherwise the cache answers only where permission is certain.
    pub fn new(cache: Cache, ranks: usize, is_checked: bool) -> Self {
        let (client, asking) = (Client { is_served: true, ..Client::default() }, Asking::default());
        let (ends, root) = (BTreeMap::new(), Ino::ROOT);
        let (early, behind, quiet, kept) =
            (Early::default(), Behind::default(), Quiet::default(), Kept::default());
        let tells_early = true;
        Self {
            client,
            cache,
            ends,
            ranks,
            root,
            is_checked,
            tells_early,
            asking,
            early,
            behind,
            quiet,
            kept,
            vacated: VecDeque::new(),
        }
    }

    /// Disables write-back: all calls wait for servers.
    pub fn wait_for_servers(&mut self) {
        self.tells_early = false;
    }

    /// Sets [`Welcome::root`], before the first call.
    pub fn set_root(&mut self, root: Ino) {
        self.root = root;
    }

    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Number of metadata servers.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The servers that have been needed so far, in order of rank.
    pub fn needed(&self) -> impl ExactSizeIterator<Item = Rank> {
        self.ends.keys().copied()
    }

    /// The server incarnation of the present session; `None`: no session.
    pub fn incarnation(&self, rank: Rank) -> Option<u64> {
        self.ends.get(&rank)?.link.incarnation()
    }

    /// See [`Link::holdings`](crate::Link::holdings).
    pub fn holdings(&self, rank: Rank) -> Option<Vec<(Ino, u64, u32)>> {
        self.ends.get(&rank)?.link.holdings()
    }

    /// Number of calls that wait for a server.
    pub fn waiting(&self, rank: Rank) -> usize {
        self.ends.get(&rank).map_or(0, |end| end.parked.len())
    }

    /// The frontend's number of the call that made this request.
    pub fn call_of(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.ends.get(&rank)?.parked.get(&id).map(|parked| parked.call_id)
    }

    /// As [`Self::call_of`], for requests to data servers ([`DataAsk::number`]).
    pub fn call_of_data(&self, number: u64) -> Option<u64> {
        let parked = self.asking.waits(number)?;
        match parked.ticket {
            Waiter::Door(_) => Some(parked.call_id),
            Waiter::Nobody(change) => self.early.behind.call_of(change),
        }
    }

    // ---- Calls of the frontend

    /// Answers a call from the cache. Also returns how long the answer may be cached, in ms. No
    /// other input may precede the delivery of the answer, since it may revoke the lease.
    pub fn answer(
        &mut self,
        now: u64,
        caller: &Caller,
        call: &Call<'_>,
    ) -> Option<(Result<Answer, Errno>, u64)> {
        let (answer, left) = match call {
            Call::Request(Request::Lookup { dir, name }) => {
                let dir = self.real(*dir);
                if !self.may(caller, dir, Access::EXEC, now) {
                    return None;
                }
                self.cache.look_up(dir, name, now)?
            }
            Call::Read { ino, offset, size, .. } => {
                let ino = self.real(*ino);
                let answer = Answer::Bytes(self.cache.read(ino, *offset, *size, now)?.into());
                (answer, self.keep_known(now, ino).unwrap_or(0))
            }
            Call::Request(Request::GetAttr { ino }) => self.cache.get_attr(self.real(*ino), now)?,
            Call::Request(Request::ReadDir { dir, .. }) => {
                let dir = self.real(*dir);
                if !self.may(caller, dir, Access::READ, now) || self.keep_known(now, dir) == Some(0) {
                    return None;
                }
                self.cache.next_page(Page { dir, ..Page::of(call)? }, now)?
            }
            Call::Request(Request::GetXattr { ino, name })
                if ASKED_OFTEN.iter().any(|often| name.starts_with(often))
                    && self.cache.is_bare(self.real(*ino), now) =>
            {
                return Some((Err(Errno::ENODATA), 0));
            }
            _ => return None,
        };
        Some((Ok(self.shown(answer)), left))
    }

    /// The binding of a name, if cached.
    pub fn name(&self, dir: Ino, name: &Name, now: u64) -> Option<Binding> {
        self.cache.name(self.real(dir), name, now)
    }

    /// The attributes of an inode, if cached and valid.
    pub fn attr(&self, ino: Ino, now: u64) -> Option<Attr> {
        Some(Attr { ino, ..self.cache.attr(self.real(ino), now)? })
    }

    /// True if the client has a lease on this inode.
    pub fn is_leased(&self, ino: Ino, now: u64) -> bool {
        self.cache.is_leased(self.real(ino), now)
    }

    /// Starts a call that [`Self::answer`] cannot answer.
    pub fn call(&mut self, now: u64, asked: Asked<'_, T>, told: &mut Told<T>) {
        let Asked { call_id, caller, call, ticket } = asked;
        // The data to write is copied here, and shared from here on.
        let mut asked = Asked { call_id, caller, call: call.into_owned(), ticket: Waiter::Door(ticket) };
        if let Call::Request(request) = &mut asked.call
            && self.root != Ino::ROOT
        {
            request.each_inode(&mut |ino| *ino = self.real(*ino));
        }
        if let Call::Request(Request::RmDir { .. } | Request::Rename { .. }) = asked.call {
            self.vacated.extend(end::changed_names(&asked.call));
            self.vacated.drain(..self.vacated.len().saturating_sub(VACATED));
        }
        self.take(now, asked, told);
        self.say(told);
    }

    fn take(&mut self, now: u64, asked: Asked<'static, Waiter<T>>, told: &mut Told<T>) {
        if self.close_quietly(now, &asked.call) {
            return told.answer(asked.ticket, Ok(Answer::Done));
        }
        let Some(asked) = self.tell_early(now, asked, told) else { return };
        self.tell_quiet_of(now, &asked.call);
        if self.close_early(&asked.call, now) {
            return told.answer(asked.ticket, Ok(Answer::Done));
        }
        let Some(asked) = self.keep_behind(now, asked) else { return };
        self.take_after(now, asked, told);
    }

    /// Starts a call that is not blocked on pending operations.
    fn take_after(&mut self, now: u64, mut asked: Asked<'static, Waiter<T>>, told: &mut Told<T>) {
        if let Some(errno) = self.early_error(&asked.call) {
            // The file is closed nevertheless.
            if let Call::Request(request @ Request::Unlock { ino, .. }) = &asked.call
                && let Some(end) = self.end(ino.rank())
            {
                end.ask(asked.caller, request.clone());
            }
            return told.answer(asked.ticket, Err(errno));
        }
        if let Call::Request(Request::Open { ino, how }) = &mut asked.call
            && how.reads == Reads::Whole
            && self.cache.content(*ino, now).is_some()
        {
            how.reads = Reads::Client;
        }
        let confirmation = self.confirmation(&asked.call, now);
        let changes = self.cache.sent(&asked.call, now);
        let turn = self.cache.turn();
        let course = Course { begun: now, turn, changes, confirmation, ..Course::default() };
        let known =
            self.known_elsewhere(now, &asked).or_else(|| Some((self.lease_first(now, &asked.call)?, 0)));
        let (next, lease) = known.unwrap_or_else(|| (self.client.start(&asked.call), 0));
        self.advance(now, (asked, course), next, lease, told);
    }

    /// Callers have forgotten `lookups` references to an inode.
    pub fn forget(&mut self, ino: Ino, lookups: u64) {
        self.cache.forget(ino, lookups);
    }

    /// Notifies servers of inodes that were forgotten.
    pub fn tell_forgotten(&mut self, told: &mut Told<T>) {
        self.give_up_forgotten();
        self.say(told);
    }

    /// Handles a signal to a call's caller. `dies`: true for a thread that the signal ends.
    /// `is_stuck`: true if a data server of such a layout is unreachable.
    pub fn interrupt(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        is_stuck: impl Fn(&Layout) -> bool,
        told: &mut Told<T>,
    ) -> Interrupt {
        for end in self.ends.values_mut() {
            if end.outlives(call_id, &dies) {
                return Interrupt::Survived;
            }
            if let (true, gone) = end.interrupt(call_id) {
                if let Some(parked) = gone {
                    self.give_up(parked, Errno::EINTR, told);
                }
                self.say(told);
                return Interrupt::Heard;
            }
        }
        if let Some(interrupt) = self.interrupt_behind(call_id, &dies, told) {
            self.say(told);
            return interrupt;
        }
        let interrupt = self.asking.interrupt(call_id, dies);
        self.give_up_stuck(is_stuck, told);
        self.say(told);
        interrupt
    }

    /// True if an owner may have locks on a file.
    pub fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        let ino = self.real(ino);
        self.ends.get(&ino.rank()).is_some_and(|end| end.link.has_locks(ino, owner))
    }

    /// Releases all locks of an owner on a file; no caller waits for it.
    pub fn unlock(&mut self, ino: Ino, owner: LockOwner, told: &mut Told<T>) {
        let ino = self.real(ino);
        if let Some(end) = self.end(ino.rank()) {
            end.ask(Caller::SERVER, Request::Unlock { ino, owner, first: 0, last: u64::MAX });
        }
        self.say(told);
    }

    /// The frontend has executed a [`ForDoor::Revoke`].
    pub fn revoked(&mut self, rank: Rank, number: u64, told: &mut Told<T>) {
        if self.is_given_up(rank, number) {
            told.send.push((rank, FromClient::Revoked { number }));
        }
    }

    /// Reports that a [`ForDoor::Revoke`] of a name waits for a pending call of the frontend that has
    /// the name's directory locked. The server may fail that call with `ESTALE` before it has changed
    /// anything; its caller must look its names up again.
    pub fn blocked(&mut self, rank: Rank, number: u64, told: &mut Told<T>) {
        told.send.push((rank, FromClient::Blocked { number }));
    }

    /// Answers a [`ForDoor::Groups`].
    pub fn groups(&mut self, rank: Rank, id: RequestId, groups: Arc<[u32]>, told: &mut Told<T>) {
        told.send.push((rank, FromClient::Groups { id, groups }));
    }

    // ---- Messages of servers

    /// Handles a new connection to a server.
    pub fn connected(&mut self, now: u64, rank: Rank, welcome: &Welcome, told: &mut Told<T>) {
        self.client.can_ask_data_servers = !welcome.servers.data.is_empty();
        if self.root != welcome.root {
            // Another directory has taken its place.
            let names = self.cache.leased_names(|dir| dir == self.root);
            self.invalidate(names, [self.root].into(), told);
            self.root = welcome.root;
        }
        let early = self.early.dirs();
        let goes_on = self.incarnation(rank) == Some(welcome.incarnation);
        let quiet: Vec<_> = if goes_on { Vec::new() } else { self.quiet.forgotten(rank).collect() };
        let Some(end) = self.end(rank) else { return };
        quiet.into_iter().for_each(|(ino, opens)| end.link.opened(ino, opens));
        let distrust = end.link.connected(welcome, &early, &mut end.out);
        self.distrust(rank, distrust, told);
        // The leases that stood for these opens are lost.
        self.tell_openings(now, |ino, _| ino.rank() == rank);
        self.say(told);
    }

    /// Handles the refusal of a connection because the session has ended. The next connection
    /// starts a new session.
    pub fn ended(&mut self, now: u64, rank: Rank, told: &mut Told<T>) {
        let Some(end) = self.end(rank) else { return };
        let Ended { distrust, lost, unlocked } = end.link.ended();
        if !unlocked.is_empty() {
            told.door.push(ForDoor::Unlocked(unlocked.len()));
        }
        let mut failed = Vec::new();
        for id in &lost {
            end.given_up.remove(id);
            failed.extend(end.parked.remove(id));
        }
        self.lose_early(rank, &lost, told);
        self.lose_renewals(rank);
        self.distrust(rank, Some(distrust), told);
        failed.append(&mut self.asking.lose(rank, told));
        for parked in failed {
            let is_lookup = matches!(parked.call, Call::Request(Request::Lookup { .. }));
            if is_lookup && parked.course.own.is_none() && !parked.course.interrupted {
                // It has changed nothing, and a kernel detaches mounts on a name whose lookup
                // fails.
                self.take_after(now, parked.into_asked().0, told);
            } else {
                self.give_up(parked, Errno::EIO, told);
            }
        }
        self.say(told);
    }

    /// Invalidates what a rank has returned: the server may not revoke it, or its repeated replies
    /// do not list the changes. `forgotten`: the inodes that a restarted server does not know.
    fn distrust(&mut self, rank: Rank, forgotten: Option<Vec<Ino>>, told: &mut Told<T>) {
        if let Some(inos) = forgotten {
            self.behind.forget_revoked(rank);
            let names = self.cache.leased_names(|dir| dir.rank() == rank);
            self.invalidate(names, inos, told);
        }
        self.cache.distrust_rank(rank);
        self.forget_seen(|dir| dir.rank() == rank);
    }

    /// Makes the frontend drop its cached state of names and inodes.
    fn invalidate(&self, mut names: Vec<(Ino, Name)>, inos: Vec<Ino>, told: &mut Told<T>) {
        names.iter_mut().for_each(|(dir, _)| *dir = self.shown_as(*dir));
        told.door.push(ForDoor::Distrust { names, inos: self.shown_all(inos) });
    }

    pub fn disconnected(&mut self, rank: Rank) {
        if let Some(end) = self.ends.get_mut(&rank) {
            end.link.disconnected();
            // It is repeated over the next connection.
            end.out.clear();
        }
    }

    /// Called several times per second. `is_stuck`: as in [`Self::interrupt`].
    pub fn tick(&mut self, now: u64, is_stuck: impl Fn(&Layout) -> bool, told: &mut Told<T>) {
        self.tell_quiet_in_time(now);
        self.renew_kept(now, told);
        self.cache.expire(now);
        self.give_up_forgotten();
        self.go_on_behind(now, told);
        self.send_gathered(|_| true, told);
        for (rank, end) in &mut self.ends {
            // Including lingering messages, since the reply that they wait for may be late.
            told.send.extend(end.out.drain(..).map(|message| (*rank, message)));
            end.link.tell_forgotten(&mut end.out);
        }
        for ino in self.asking.released() {
            if let Some(end) = self.end(ino.rank()) {
                end.ask(Caller::SERVER, Request::Release { ino });
            }
            self.closed(ino, now);
        }
        self.look_past_stuck(now, &is_stuck, told);
        self.give_up_stuck(is_stuck, told);
        self.say(told);
    }

    /// Processes a message of a server.
    pub fn received(&mut self, now: u64, rank: Rank, message: FromServer, told: &mut Told<T>) {
        self.cache.next_turn();
        let Some(end) = self.end(rank) else { return };
        match message {
            FromServer::Reply { id, lease_ms, touched, result, .. } => {
                self.reply(now, (rank, id), (lease_ms.into(), touched), result, told);
                self.give_up_forgotten();
            }
            FromServer::AskGroups { id, pid } => told.door.push(ForDoor::Groups { rank, id, pid }),
            FromServer::Revoke { number, lease: Lease::Quiet { ino } } => {
                self.client.announce(ino, self.cache.turn());
                self.revoked(rank, number, told);
            }
            FromServer::Revoke { number, lease: Lease::Data { ino } } => {
                self.cache.lose_data(ino);
                let lease = Lease::Data { ino: self.shown_as(ino) };
                told.door.push(ForDoor::Revoke { rank, number, lease, is_own: false });
            }
            FromServer::Revoke { number, lease } => {
                self.cache.revoke(&lease);
                let (Lease::Name { dir, .. }
                | Lease::Inode { ino: dir }
                | Lease::Data { ino: dir }
                | Lease::Quiet { ino: dir }
                | Lease::Exclusive { dir }) = lease;
                self.forget_seen(|seen| seen == dir);
                self.tell_quiet(now, dir);
                self.revoke_early(rank, number, dir);
                if let Lease::Exclusive { .. } = lease {
                    // Callers cache nothing under this lease.
                    self.revoked(rank, number, told);
                    return self.say(told);
                }
                let is_own = self.is_renamed_to(&lease);
                let lease = match lease {
                    Lease::Name { dir, name } => Lease::Name { dir: self.shown_as(dir), name },
                    Lease::Inode { ino } => Lease::Inode { ino: self.shown_as(ino) },
                    Lease::Data { ino } => Lease::Data { ino: self.shown_as(ino) },
                    Lease::Exclusive { .. } | Lease::Quiet { .. } => lease,
                };
                told.door.push(ForDoor::Revoke { rank, number, lease, is_own });
            }
            FromServer::Locked { wait } => {
                end.link.locked(wait);
                if let Some(parked) = end.waits.remove(&wait) {
                    told.answer(parked.ticket, Ok(Answer::Done));
                }
            }
            FromServer::Recall(recalls) => {
                let removed = recalls.iter().filter(|recall| recall.dir.is_none());
                let removed = removed.filter_map(|recall| self.cache.removed_from(recall.ino, now));
                let removed = removed.filter(|place| !self.vacated.contains(place));
                let removed = removed.map(|(dir, name)| (self.shown_as(dir), name)).collect();
                recalls.iter().for_each(|recall| self.cache.recall(recall.ino));
                self.give_up_forgotten();
                let recall =
                    |recall: Recall| Recall { dir: recall.dir.map(|dir| self.shown_as(dir)), ..recall };
                let recalls = recalls.into_iter().map(recall).collect();
                told.door.push(ForDoor::Recall { recalls, removed });
            }
            FromServer::Changed(inos) => {
                inos.iter().for_each(|ino| self.cache.touched(*ino));
                told.door.push(ForDoor::Changed(self.shown_all(inos)));
            }
        }
        self.go_on_after(now, told);
        self.say(told);
    }

    /// Handles the outcome of requests to data servers.
    pub fn data_came(&mut self, now: u64, number: u64, outcome: Outcome, told: &mut Told<T>) {
        // The call may have been abandoned meanwhile.
        let Some((parked, delegation)) = self.asking.came(number) else { return };
        match outcome {
            Outcome::Done(result) => self.lead_on(now, parked, result, 0, told),
            Outcome::Stale => {
                let (asked, mut course) = parked.into_asked();
                if let Some(own) = course.own.take() {
                    let step = own.stale(&asked.call);
                    self.take_step(now, (asked, course), step, 0, told);
                } else {
                    let next = self.client.stale(&asked.call, &delegation);
                    self.advance(now, (asked, course), next, 0, told);
                }
            }
        }
        self.go_on_after(now, told);
        self.say(told);
    }

    // ---- Output

    fn end(&mut self, rank: Rank) -> Option<&mut End<T>> {
        (usize::from(rank.0) < self.ranks).then(|| self.ends.entry(rank).or_default())
    }

    /// Emits the queued messages to servers, except those that may linger for a batch.
    fn say(&mut self, told: &mut Told<T>) {
        self.end_behind(told);
        self.send_wanted(told);
        let mut ends = core::mem::take(&mut self.ends);
        for (rank, end) in &mut ends {
            if !self.may_linger(*rank, end) {
                told.send.extend(end.out.drain(..).map(|message| (*rank, message)));
            }
        }
        self.ends = ends;
    }

    /// Tells servers to drop lookup counts of evicted inodes.
    fn give_up_forgotten(&mut self) {
        for (ino, lookups) in self.cache.forgotten() {
            if let Some(end) = self.end(ino.rank()) {
                end.link.forget(ino, lookups, &mut end.out);
            }
        }
    }

    /// Ends leases on remote dentries in these directories for pending calls.
    fn forget_seen(&mut self, is_one: impl Fn(Ino) -> bool) {
        // A cluster with one rank has no remote dentries.
        if self.ranks > 1 {
            for parked in self.ends.values_mut().flat_map(|end| end.parked.values_mut()) {
                if parked.course.seen.sighting.is_some_and(|sighting| is_one(sighting.dir)) {
                    parked.course.seen.until = 0;
                }
            }
        }
    }
}
