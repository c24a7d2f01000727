//! A client of a cluster: a session with each metadata server, what they have told, and the calls that wait for them. It leads each
//! call of its door to its answer, whatever becomes of connections and servers meanwhile.

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

/// Extended attributes that kernels ask for by themselves, whoever may read them.
const ASKED_OFTEN: [&[u8]; 2] = [b"security.", b"system.posix_acl_"];

/// A client's sessions. See the module's description. Times are milliseconds of one clock that nobody sets.
#[derive(Debug)]
pub struct Sessions<T> {
    client: Client,
    cache: Cache,
    /// With those that have been needed yet.
    ends: BTreeMap<Rank, End<T>>,
    ranks: usize,
    /// What the door calls [`Ino::ROOT`]: servers may have restricted this client to a subtree.
    root: Ino,
    /// A kernel has checked that callers may search and list what they ask for.
    is_checked: bool,
    /// Callers are told of changes before servers have made them, where nobody else can see the difference.
    tells_early: bool,
    /// Calls that wait for data servers.
    asking: Asking<T>,
    early: Early,
    behind: Behind<T>,
    quiet: Quiet,
    kept: Kept,
    /// Names of which callers have removed or moved what was there, the last ones: their kernel knows that,
    /// and may have something else there by now.
    vacated: VecDeque<(Ino, Name)>,
}

/// A call as it comes from the door.
#[derive(Debug)]
pub struct Asked<'a, T> {
    /// Not 0, and unlike that of any other call that has not been answered.
    pub call_id: u64,
    pub caller: Caller,
    pub call: Call<'a>,
    /// What the door needs to answer it.
    pub ticket: T,
}

/// [`Sessions::vacated`] names at most.
const VACATED: usize = 256;

/// Who waits for what comes of a call.
#[derive(Debug)]
enum Waiter<T> {
    /// With what the door needs to answer it.
    Door(T),
    /// Nobody: the caller has been told that it is done. With the change's number.
    Nobody(u64),
}

impl<T> Sessions<T> {
    /// Of a cluster with so many metadata servers. `is_checked`: callers may search and list the directories that they ask for, as a kernel
    /// has checked; without it they are told what others have been told only where it is certain that they may.
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

    /// From now on callers wait for servers with all changes.
    pub fn wait_for_servers(&mut self) {
        self.tells_early = false;
    }

    /// What [`Welcome::root`] says, before the first call.
    pub fn set_root(&mut self, root: Ino) {
        self.root = root;
    }

    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// How many metadata servers there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The servers of which anything has been wanted yet, in order.
    pub fn needed(&self) -> impl ExactSizeIterator<Item = Rank> {
        self.ends.keys().copied()
    }

    /// The incarnation of the server that the session was last in; `None`: there is no session.
    pub fn incarnation(&self, rank: Rank) -> Option<u64> {
        self.ends.get(&rank)?.link.incarnation()
    }

    /// See [`Link::holdings`](crate::Link::holdings).
    pub fn holdings(&self, rank: Rank) -> Option<Vec<(Ino, u64, u32)>> {
        self.ends.get(&rank)?.link.holdings()
    }

    /// Calls that wait for a server.
    pub fn waiting(&self, rank: Rank) -> usize {
        self.ends.get(&rank).map_or(0, |end| end.parked.len())
    }

    /// The door's number of the call that has asked a server that.
    pub fn call_of(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.ends.get(&rank)?.parked.get(&id).map(|parked| parked.call_id)
    }

    /// The same of what data servers are asked ([`DataAsk::number`]).
    pub fn call_of_data(&self, number: u64) -> Option<u64> {
        let parked = self.asking.waits(number)?;
        match parked.ticket {
            Waiter::Door(_) => Some(parked.call_id),
            Waiter::Nobody(change) => self.early.behind.call_of(change),
        }
    }

    // ---- What the door wants

    /// Answers a call from what is known, with for how many milliseconds that may be cached: before anything else is given to the
    /// machine, since that may revoke it.
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

    /// What a name stands for, if that is known.
    pub fn name(&self, dir: Ino, name: &Name, now: u64) -> Option<Binding> {
        self.cache.name(self.real(dir), name, now)
    }

    /// An inode's attributes, if they are known.
    pub fn attr(&self, ino: Ino, now: u64) -> Option<Attr> {
        Some(Attr { ino, ..self.cache.attr(self.real(ino), now)? })
    }

    /// Whether there is a lease on an inode.
    pub fn is_leased(&self, ino: Ino, now: u64) -> bool {
        self.cache.is_leased(self.real(ino), now)
    }

    /// Takes a call that [`Self::answer`] has no answer to.
    pub fn call(&mut self, now: u64, asked: Asked<'_, T>, told: &mut Told<T>) {
        let Asked { call_id, caller, call, ticket } = asked;
        // What it writes is copied here, and all that keeps or sends it has a share.
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

    /// Takes a call when all is answered that it depends on.
    fn take_after(&mut self, now: u64, mut asked: Asked<'static, Waiter<T>>, told: &mut Told<T>) {
        if let Some(errno) = self.early_error(&asked.call) {
            // It is closed all the same.
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

    /// Callers have forgotten what replies have told them of an inode so many times.
    pub fn forget(&mut self, ino: Ino, lookups: u64) {
        self.cache.forget(ino, lookups);
    }

    /// Tells servers what is known no longer.
    pub fn tell_forgotten(&mut self, told: &mut Told<T>) {
        self.give_up_forgotten();
        self.say(told);
    }

    /// A signal has come to the caller of a call. `dies`: whether a thread of that number is about to end. `is_stuck`: whether some of
    /// the data servers of such a file cannot be reached.
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

    /// Whether an owner has locked anything of a file.
    pub fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        let ino = self.real(ino);
        self.ends.get(&ino.rank()).is_some_and(|end| end.link.has_locks(ino, owner))
    }

    /// Unlocks all that an owner has locked of a file. Nobody waits for it.
    pub fn unlock(&mut self, ino: Ino, owner: LockOwner, told: &mut Told<T>) {
        let ino = self.real(ino);
        if let Some(end) = self.end(ino.rank()) {
            end.ask(Caller::SERVER, Request::Unlock { ino, owner, first: 0, last: u64::MAX });
        }
        self.say(told);
    }

    /// What a [`ForDoor::Revoke`] was for is cached no longer.
    pub fn revoked(&mut self, rank: Rank, number: u64, told: &mut Told<T>) {
        if self.is_given_up(rank, number) {
            told.send.push((rank, FromClient::Revoked { number }));
        }
    }

    /// The name of a [`ForDoor::Revoke`] cannot be given up, because its directory is locked for a pending call of the frontend. That
    /// call may fail with `ESTALE`, having changed nothing: its caller is to look its names up again.
    pub fn blocked(&mut self, rank: Rank, number: u64, told: &mut Told<T>) {
        told.send.push((rank, FromClient::Blocked { number }));
    }

    /// The groups that a [`ForDoor::Groups`] has asked for.
    pub fn groups(&mut self, rank: Rank, id: RequestId, groups: Arc<[u32]>, told: &mut Told<T>) {
        told.send.push((rank, FromClient::Groups { id, groups }));
    }

    // ---- What servers say

    /// A connection to a server has begun.
    pub fn connected(&mut self, now: u64, rank: Rank, welcome: &Welcome, told: &mut Told<T>) {
        self.client.can_ask_data_servers = !welcome.servers.data.is_empty();
        if self.root != welcome.root {
            // Another directory has come to its place.
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
        // Nothing stands for them any more.
        self.tell_openings(now, |ino, _| ino.rank() == rank);
        self.say(told);
    }

    /// A server has ended the session, and refuses the connection for it. The next one begins another.
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
                // It has changed nothing, and a kernel detaches what is mounted on a name whose lookup fails.
                self.take_after(now, parked.into_asked().0, told);
            } else {
                self.give_up(parked, Errno::EIO, told);
            }
        }
        self.say(told);
    }

    /// What a server has told is cached no longer: it does not know of it any more if it has forgotten what it told of these inodes, and
    /// what it tells again does not say what it has changed.
    fn distrust(&mut self, rank: Rank, forgotten: Option<Vec<Ino>>, told: &mut Told<T>) {
        if let Some(inos) = forgotten {
            self.behind.forget_revoked(rank);
            let names = self.cache.leased_names(|dir| dir.rank() == rank);
            self.invalidate(names, inos, told);
        }
        self.cache.distrust_rank(rank);
        self.forget_seen(|dir| dir.rank() == rank);
    }

    /// Has the door drop what it has cached of names and inodes.
    fn invalidate(&self, mut names: Vec<(Ino, Name)>, inos: Vec<Ino>, told: &mut Told<T>) {
        names.iter_mut().for_each(|(dir, _)| *dir = self.shown_as(*dir));
        told.door.push(ForDoor::Distrust { names, inos: self.shown_all(inos) });
    }

    pub fn disconnected(&mut self, rank: Rank) {
        if let Some(end) = self.ends.get_mut(&rank) {
            end.link.disconnected();
            // It is said again.
            end.out.clear();
        }
    }

    /// Comes a few times a second. `is_stuck`: as in [`Self::interrupt`].
    pub fn tick(&mut self, now: u64, is_stuck: impl Fn(&Layout) -> bool, told: &mut Told<T>) {
        self.tell_quiet_in_time(now);
        self.renew_kept(now, told);
        self.cache.expire(now);
        self.give_up_forgotten();
        self.go_on_behind(now, told);
        self.send_gathered(|_| true, told);
        for (rank, end) in &mut self.ends {
            // What lingers, too: what has been sent before may wait for long.
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

    /// Takes what has come from a server.
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
                    // Callers cache nothing by it.
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

    /// Data servers have done what they were asked under that number, or want another capability.
    pub fn data_came(&mut self, now: u64, number: u64, outcome: Outcome, told: &mut Told<T>) {
        // It may have been given up just now.
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

    // ---- What is left

    fn end(&mut self, rank: Rank) -> Option<&mut End<T>> {
        (usize::from(rank.0) < self.ranks).then(|| self.ends.entry(rank).or_default())
    }

    /// Has what there is to say to servers sent, but for what may wait.
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

    /// What the cache knows no longer the servers need not know to be known.
    fn give_up_forgotten(&mut self) {
        for (ino, lookups) in self.cache.forgotten() {
            if let Some(end) = self.end(ino.rank()) {
                end.link.forget(ino, lookups, &mut end.out);
            }
        }
    }

    /// There are no leases any more on names in these directories.
    fn forget_seen(&mut self, is_one: impl Fn(Ino) -> bool) {
        // A cluster with one rank has none.
        if self.ranks > 1 {
            for parked in self.ends.values_mut().flat_map(|end| end.parked.values_mut()) {
                if parked.course.seen.sighting.is_some_and(|sighting| is_one(sighting.dir)) {
                    parked.course.seen.until = 0;
                }
            }
        }
    }
}
