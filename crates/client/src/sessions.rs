//! The client of a cluster: sessions with all metadata servers, the cache, and pending calls. It
//! advances each call to its answer across lost connections and server restarts.

mod actions;
mod blocked;
mod call_state;
mod data;
mod delegated_open;
mod entry;
mod fragments;
mod known_names;
mod listings;
mod own;
mod pending_calls;
mod releases;
mod renames;
mod renewal;
mod revocations;
mod rights;
mod root;
mod walks;
mod write_behind;
mod writeback;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{
    Access, Attr, Caller, Errno, FromClient, FromServer, Ino, Layout, Lease, LockOwner, Name, RangeOp, Rank,
    Recall, Request, RequestId, RevocationId, Welcome,
};

use crate::cache::{ACLS, Page};
use crate::{Answer, Binding, Cache, Call, Client, Ended, Link, RangeCall};
use call_state::ServerReply;
use delegated_open::DelegatedOpens;
use fragments::KnownFragments;
use known_names::NameListings;
use pending_calls::{CallWait, PendingCalls};
use releases::DeferredReleases;
use renewal::Renewal;
use revocations::DeferredRevocation;
use walks::Walks;
use writeback::Writeback;

pub use actions::{Actions, DataOperation, DataOutcome, FrontendEvent, Interrupt};
pub use fragments::FragmentCounts;
pub use walks::WalkCounts;

/// Extended attributes that kernels request themselves, independent of read permission.
const KERNEL_XATTRS: [&[u8]; 2] = [b"security.", ACLS];

/// The client's sessions. See the module's documentation. Times are milliseconds of a monotonic
/// clock.
#[derive(Debug)]
pub struct Sessions<T> {
    client: Client,
    cache: Cache,
    /// Sessions with the servers that have been needed so far.
    server_sessions: BTreeMap<Rank, ServerSession>,
    /// Those that may have messages to send.
    unsent: BTreeSet<Rank>,
    ranks: usize,
    /// The inode that the frontend calls [`Ino::ROOT`]: a restricted client's root is a subtree.
    root: Ino,
    /// A kernel checks search and read permission before it makes a call.
    is_checked: bool,
    /// Write-back is enabled.
    uses_writeback: bool,
    fragments: KnownFragments,
    calls: PendingCalls<T>,
    /// Replies to forwarded requests that have overtaken the message that they are forwarded.
    early_replies: BTreeMap<(Rank, RequestId), ServerReply>,
    writeback: Writeback,
    releases: DeferredReleases,
    revocations: Vec<DeferredRevocation>,
    delegated_opens: DelegatedOpens,
    walks: Walks<T>,
    renewal: Renewal,
    name_listings: NameListings,
    /// The names last removed or renamed by callers: the kernel knows of these changes, and may
    /// have bound a name again.
    vacated: VecDeque<(Ino, Name)>,
}

/// The client's session with one server.
#[derive(Debug, Default)]
struct ServerSession {
    link: Link,
    /// Messages to send.
    out: Vec<FromClient>,
}

impl ServerSession {
    fn ask(&mut self, caller: Caller, request: Request) -> RequestId {
        self.link.ask(caller, request, &mut self.out)
    }

    fn ask_after(&mut self, follows: Vec<RequestId>, caller: Caller, request: Request) -> RequestId {
        self.link.ask_after(follows, caller, request, &mut self.out)
    }
}

/// A call from the frontend.
#[derive(Debug)]
pub struct IncomingCall<'a, T> {
    /// Unique among unanswered calls, and not 0.
    pub call_id: u64,
    pub caller: Caller,
    pub call: Call<'a>,
    /// Identifies the call to the frontend.
    pub ticket: T,
}

/// A call that can be stored.
type OwnedCall<T> = IncomingCall<'static, Waiter<T>>;

/// Maximum number of names in [`Sessions::vacated`].
const VACATED: usize = 256;

/// The receiver of a call's result.
#[derive(Debug)]
enum Waiter<T> {
    /// A call of the frontend, with its ticket.
    Frontend(T),
    /// No one: the caller was answered by write-back. With the number of the pending operation.
    Acknowledged(u64),
    /// No one yet: the first page of this directory's listing is fetched ahead.
    Ahead(Ino),
}

impl<T> Sessions<T> {
    /// `ranks`: number of metadata servers. `is_checked`: a kernel checks search and read
    /// permission of directories; otherwise the cache answers only where permission is certain.
    pub fn new(cache: Cache, ranks: usize, is_checked: bool) -> Self {
        Self {
            client: Client { is_served: true, ..Client::default() },
            cache,
            server_sessions: BTreeMap::new(),
            unsent: BTreeSet::new(),
            ranks,
            root: Ino::ROOT,
            is_checked,
            uses_writeback: true,
            fragments: KnownFragments::default(),
            calls: PendingCalls::default(),
            early_replies: BTreeMap::new(),
            writeback: Writeback::default(),
            releases: DeferredReleases::default(),
            revocations: Vec::new(),
            delegated_opens: DelegatedOpens::default(),
            walks: Walks::default(),
            renewal: Renewal::default(),
            name_listings: NameListings::default(),
            vacated: VecDeque::new(),
        }
    }

    /// Disables write-back: all calls wait for servers.
    pub fn wait_for_servers(&mut self) {
        self.uses_writeback = false;
    }

    /// Sets whether this client can read and write the data pool of the servers' store directly.
    ///
    /// The frontend calls this when it has opened the pool under an address that a server can fence
    /// and has registered the address, and again each time it has done so anew. Operations that
    /// were requested before ([`Actions::data`]) must not be executed under a later address, since
    /// the server that permitted them may have ended the session and fenced the earlier address:
    /// their outcome is [`DataOutcome::Stale`].
    pub fn set_data_pool(&mut self, is_usable: bool) {
        self.client.set_data_pool(is_usable);
    }

    /// Sets [`Welcome::root`], before the first call.
    pub fn set_root(&mut self, root: Ino) {
        self.root = root;
    }

    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Number of metadata servers, as far as this client has heard.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Takes note of metadata servers that have joined the cluster.
    fn learn_ranks(&mut self, ranks: usize) {
        self.ranks = self.ranks.max(ranks);
    }

    /// The servers that have been needed so far, in order of rank.
    pub fn needed(&self) -> impl ExactSizeIterator<Item = Rank> {
        self.server_sessions.keys().copied()
    }

    /// The server incarnation of the present session; `None`: no session.
    pub fn incarnation(&self, rank: Rank) -> Option<u64> {
        self.server_sessions.get(&rank)?.link.incarnation()
    }

    /// See [`Link::holdings`](crate::Link::holdings).
    pub fn holdings(&self, rank: Rank) -> Option<Vec<(Ino, u64, u32)>> {
        self.server_sessions.get(&rank)?.link.holdings()
    }

    /// Number of calls that wait for a server.
    pub fn waiting(&self, rank: Rank) -> usize {
        self.calls.count(rank)
    }

    /// The frontend's number of the call that made this request.
    pub fn call_of(&self, rank: Rank, id: RequestId) -> Option<u64> {
        self.calls.waiting(rank, id).map(|pending| pending.incoming.call_id).filter(|call_id| *call_id > 0)
    }

    /// As [`Self::call_of`], for requests to data servers ([`DataOperation::number`]).
    pub fn call_of_data(&self, number: u64) -> Option<u64> {
        let pending = self.calls.get(CallWait::Data(number))?;
        match pending.incoming.ticket {
            Waiter::Frontend(_) => Some(pending.incoming.call_id),
            Waiter::Acknowledged(change) => self.writeback.write_behind.call_of(change),
            Waiter::Ahead(_) => None,
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
                let dir = self.certain_fragment(self.real(*dir), name, now)?;
                if !self.may(caller, dir, Access::EXEC, now) {
                    return None;
                }
                self.cache.look_up(dir, name, now)?
            }
            Call::Range(RangeCall { ino, op: RangeOp::Read { offset, size }, .. }) => {
                let ino = self.real(*ino);
                let answer = Answer::Bytes(self.cache.read(ino, *offset, *size, now)?.into());
                (answer, self.retain_known(now, ino).unwrap_or(0))
            }
            Call::Request(Request::GetAttr { ino }) => {
                let (attr, until) = self.whole_attr(self.real(*ino), now)?;
                self.cache.hit();
                (Answer::Attr(attr), until - now)
            }
            Call::Request(Request::ReadDir { dir, after, .. }) => {
                let dir = self.fragments.of_cursor(self.real(*dir), *after);
                let page = Page { dir, ..Page::of(call)? };
                // It advances a walk.
                if self.cache.has_first_page(page) {
                    return None;
                }
                self.cached_page(now, caller, page)?
            }
            Call::Request(Request::GetXattr { ino, name })
                if KERNEL_XATTRS.iter().any(|often| name.starts_with(often))
                    && self.cache.has_no_xattrs(self.real(*ino), now) =>
            {
                return Some((Err(Errno::ENODATA), 0));
            }
            _ => return None,
        };
        Some((Ok(self.shown(now, answer)), left))
    }

    /// The binding of a name, if cached.
    pub fn name(&self, dir: Ino, name: &Name, now: u64) -> Option<Binding> {
        self.cache.name(self.certain_fragment(self.real(dir), name, now)?, name, now)
    }

    /// The attributes of an inode, if cached and valid.
    pub fn attr(&self, ino: Ino, now: u64) -> Option<Attr> {
        Some(Attr { ino, ..self.whole_attr(self.real(ino), now)?.0 })
    }

    /// True if the client has a lease on this inode.
    pub fn is_leased(&self, ino: Ino, now: u64) -> bool {
        self.cache.is_leased(self.real(ino), now)
    }

    /// Starts a call that [`Self::answer`] cannot answer.
    pub fn call(&mut self, now: u64, incoming: IncomingCall<'_, T>, actions: &mut Actions<T>) {
        let IncomingCall { call_id, caller, call, ticket } = incoming;
        // The data to write is copied here, and shared from here on.
        let mut incoming: OwnedCall<T> =
            IncomingCall { call_id, caller, call: call.into_owned(), ticket: Waiter::Frontend(ticket) };
        if let Call::Request(request) = &mut incoming.call
            && self.root != Ino::ROOT
        {
            request.each_inode(&mut |ino| *ino = self.real(*ino));
        }
        self.route(&mut incoming.call);
        if let Call::Request(Request::RmDir { .. } | Request::Rename { .. }) = incoming.call {
            self.vacated.extend(pending_calls::changed_names(&incoming.call));
            self.vacated.drain(..self.vacated.len().saturating_sub(VACATED));
        }
        if let Some(incoming) = self.enter_listing(now, incoming, actions) {
            self.enter(now, incoming, actions);
        }
        self.advance_walks(now, actions);
        self.say(actions);
    }

    /// Callers have forgotten `lookups` references to an inode.
    pub fn forget(&mut self, ino: Ino, lookups: u64) {
        self.cache.forget(ino, lookups);
    }

    /// Notifies servers of inodes that were forgotten.
    pub fn send_forgets(&mut self, actions: &mut Actions<T>) {
        self.give_up_forgotten();
        self.say(actions);
    }

    /// Handles a signal to a call's caller. `dies`: true for a thread that the signal ends.
    /// `is_stuck`: true if a data server of such a layout is unreachable.
    pub fn interrupt(
        &mut self,
        call_id: u64,
        dies: impl Fn(u32) -> bool,
        is_stuck: impl Fn(&Layout) -> bool,
        actions: &mut Actions<T>,
    ) -> Interrupt {
        let interrupt = self.interrupt_call(call_id, dies, actions);
        self.give_up_stuck(is_stuck, actions);
        self.say(actions);
        interrupt
    }

    /// True if an owner may have locks on a file.
    pub fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        let ino = self.real(ino);
        self.server_sessions.get(&self.rank_of(ino)).is_some_and(|end| end.link.has_locks(ino, owner))
    }

    /// Releases all locks of an owner on a file; no caller waits for it.
    pub fn unlock(&mut self, ino: Ino, owner: LockOwner, actions: &mut Actions<T>) {
        let ino = self.real(ino);
        let request = Request::Unlock { ino, owner, first: 0, last: u64::MAX };
        self.server_session(self.rank_of(ino)).ask(Caller::SERVER, request);
        self.say(actions);
    }

    /// The frontend has executed a [`FrontendEvent::Revoke`].
    pub fn revoked(&mut self, rank: Rank, number: RevocationId, actions: &mut Actions<T>) {
        if self.is_given_up(rank, number) {
            actions.send.push((rank, FromClient::Revoked { number }));
        }
    }

    /// Reports that a [`FrontendEvent::Revoke`] of a name waits for a pending call of the frontend
    /// that has the name's directory locked. The server may fail that call with `ESTALE` before it
    /// has changed anything; its caller must look its names up again.
    pub fn blocked(&mut self, rank: Rank, number: RevocationId, actions: &mut Actions<T>) {
        actions.send.push((rank, FromClient::Blocked { number }));
    }

    /// Answers a [`FrontendEvent::Groups`].
    pub fn groups(&mut self, rank: Rank, id: RequestId, groups: Arc<[u32]>, actions: &mut Actions<T>) {
        actions.send.push((rank, FromClient::Groups { id, groups }));
    }

    // ---- Messages of servers

    /// Handles a new connection to a server.
    pub fn connected(&mut self, now: u64, rank: Rank, welcome: &Welcome, actions: &mut Actions<T>) {
        self.client.can_ask_data_servers = !welcome.servers.data.is_empty();
        if self.root != welcome.root {
            // Another directory has taken its place.
            let names = self.cache.leased_names(|dir| dir == self.root);
            self.invalidate(names, [self.root].into(), actions);
            self.root = welcome.root;
        }
        let writeback = self.writeback.dirs();
        let goes_on = self.incarnation(rank) == Some(welcome.incarnation);
        let delegated_opens: Vec<_> = if goes_on {
            Vec::new()
        } else {
            self.client.forget_pool_delegations();
            self.delegated_opens.forgotten(rank, &self.client.locations).collect()
        };
        self.learn_ranks(welcome.servers.ranks.len());
        let end = self.server_session(rank);
        delegated_opens.into_iter().for_each(|(ino, opens)| end.link.opened(ino, opens));
        let distrust = end.link.connected(welcome, &writeback, &mut end.out);
        end.link.send_adopted(now, &mut end.out);
        self.distrust(rank, distrust, actions);
        // The leases that stood for these opens are lost.
        self.announce_opens(now, |locations, ino, _| locations.of(ino) == rank);
        self.say(actions);
    }

    /// Handles the refusal of a connection because the session has ended. The next connection
    /// starts a new session.
    pub fn ended(&mut self, now: u64, rank: Rank, actions: &mut Actions<T>) {
        let Ended { distrust, lost, unlocked } = self.server_session(rank).link.ended();
        self.client.forget_pool_delegations();
        self.early_replies.retain(|(of, id), _| *of != rank && id.origin() != Some(rank));
        for id in &lost {
            if let Some(origin) = id.origin().filter(|origin| self.server_sessions.contains_key(origin)) {
                let end = self.server_session(origin);
                end.link.forward_ended(*id, &mut end.out);
            }
        }
        if !unlocked.is_empty() {
            actions.frontend.push(FrontendEvent::Unlocked(unlocked.len()));
        }
        let failed = self.calls.lose((rank, &self.client.locations), &lost, actions);
        self.lose_pending(rank, &lost, actions);
        self.lose_renewals(rank);
        self.lose_name_listings(rank);
        self.distrust(rank, Some(distrust), actions);
        for pending in failed {
            let is_lookup = matches!(pending.incoming.call, Call::Request(Request::Lookup { .. }));
            if is_lookup && pending.call_state.own.is_none() && !pending.call_state.interrupted {
                // It has changed nothing, and a kernel detaches mounts on a name whose lookup
                // fails.
                self.enter_unblocked(now, pending.incoming, actions);
            } else if pending.call_state.listing.is_some() {
                self.answer_incomplete(now, pending, actions);
            } else {
                self.give_up(pending, Errno::EIO, actions);
            }
        }
        self.advance_walks(now, actions);
        self.say(actions);
    }

    /// Invalidates what a rank has returned: the server may not revoke it, or its repeated replies
    /// do not list the changes. `forgotten`: the inodes that a restarted server does not know.
    fn distrust(&mut self, rank: Rank, forgotten: Option<Vec<Ino>>, actions: &mut Actions<T>) {
        if let Some(inos) = forgotten {
            self.revocations.retain(|revocation| revocation.rank != rank);
            let names = self.cache.leased_names(|dir| dir.rank() == rank);
            // The kernel invalidates single names with their directories locked, as a pending
            // change has them: meanwhile the restarted server would let other clients change these
            // names.
            if self.has_pending_change() {
                actions.frontend.push(FrontendEvent::DistrustNames);
            }
            self.invalidate(names, inos, actions);
        }
        self.cache.distrust_rank(rank, &self.client.locations);
        self.fragments.distrust(rank);
        self.forget_seen(|dir| dir.rank() == rank);
    }

    /// True if a call that makes or removes a name waits for a server.
    fn has_pending_change(&mut self) -> bool {
        let is_change = |call: &Call<'_>| matches!(call, Call::Request(it) if it.changed_dirs()[0].is_some());
        self.calls.requests().any(|pending| is_change(&pending.incoming.call))
    }

    /// Makes the frontend drop its cached state of names and inodes.
    fn invalidate(&self, mut names: Vec<(Ino, Name)>, inos: Vec<Ino>, actions: &mut Actions<T>) {
        names.iter_mut().for_each(|(dir, _)| *dir = self.shown_as(*dir));
        actions.frontend.push(FrontendEvent::Distrust { names, inos: self.shown_all(inos) });
    }

    pub fn disconnected(&mut self, rank: Rank) {
        if let Some(end) = self.server_sessions.get_mut(&rank) {
            end.link.disconnected();
            // It is repeated over the next connection.
            end.out.clear();
        }
    }

    /// Called several times per second. `is_stuck`: as in [`Self::interrupt`].
    pub fn tick(&mut self, now: u64, is_stuck: impl Fn(&Layout) -> bool, actions: &mut Actions<T>) {
        self.announce_expiring(now);
        self.renew_leases(now, actions);
        self.cache.expire(now);
        self.answer_late_listings(now, actions);
        self.give_up_forgotten();
        self.resume_blocked(now, actions);
        self.send_gathered(|_| true, actions);
        for (rank, end) in &mut self.server_sessions {
            // Including lingering messages, since the reply that they wait for may be late.
            actions.send.extend(end.out.drain(..).map(|message| (*rank, message)));
            end.link.send_forgets(&mut end.out);
            end.link.send_adopted(now, &mut end.out);
            if !end.out.is_empty() {
                self.unsent.insert(*rank);
            }
        }
        self.release_unused(now);
        self.look_past_stuck(now, &is_stuck, actions);
        self.give_up_stuck(is_stuck, actions);
        self.advance_walks(now, actions);
        self.say(actions);
    }

    /// Processes a message of a server.
    pub fn received(&mut self, now: u64, rank: Rank, message: FromServer, actions: &mut Actions<T>) {
        self.cache.next_epoch();
        match message {
            FromServer::Reply { id, lease_ms, touched, result, .. } => {
                let reply = ServerReply { rank, id, lease: lease_ms.into(), touched, result };
                self.reply(now, reply, actions);
                self.give_up_forgotten();
            }
            FromServer::AskGroups { id, pid } => {
                actions.frontend.push(FrontendEvent::Groups { rank, id, pid })
            }
            FromServer::Revoke { number, lease } => self.lease_revoked(now, rank, number, lease, actions),
            FromServer::Locked { wait } => {
                self.server_session(rank).link.locked(wait);
                if let Some(pending) = self.calls.remove(CallWait::Lock(rank, wait)) {
                    actions.answer(pending.incoming.ticket, Ok(Answer::Done));
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
                actions.frontend.push(FrontendEvent::Recall { recalls, removed });
            }
            FromServer::Changed(inos) => {
                inos.iter().for_each(|ino| self.cache.touched(*ino));
                actions.frontend.push(FrontendEvent::Changed(self.shown_all(inos)));
            }
            FromServer::Servers(servers) => self.learn_ranks(servers.ranks.len()),
        }
        self.resume_after_write_behind(now, actions);
        self.advance_walks(now, actions);
        self.say(actions);
    }

    fn lease_revoked(
        &mut self,
        now: u64,
        rank: Rank,
        number: RevocationId,
        lease: Lease,
        actions: &mut Actions<T>,
    ) {
        let is_own = match lease {
            Lease::Unannounced { ino } => {
                self.client.announce(ino, self.cache.epoch());
                return self.revoked(rank, number, actions);
            }
            Lease::Data { ino } => {
                self.cache.lose_data(ino);
                false
            }
            Lease::Contents { dir } => {
                self.cache.revoke(&lease);
                self.defer_revocation(rank, number, dir);
                false
            }
            Lease::Name { dir: ino, .. } | Lease::Inode { ino } | Lease::Exclusive { dir: ino } => {
                self.cache.revoke(&lease);
                self.forget_seen(|dir| dir == ino);
                self.announce_delegated(now, ino);
                self.defer_revocation(rank, number, ino);
                self.is_renamed_to(&lease)
            }
        };
        let lease = match lease {
            // Callers cache nothing under this lease.
            Lease::Exclusive { .. } | Lease::Unannounced { .. } => {
                return self.revoked(rank, number, actions);
            }
            Lease::Name { dir, name } => Lease::Name { dir: self.shown_as(dir), name },
            Lease::Inode { ino } => Lease::Inode { ino: self.shown_as(ino) },
            Lease::Contents { dir } => Lease::Contents { dir: self.shown_as(dir) },
            Lease::Data { ino } => Lease::Data { ino: self.shown_as(ino) },
        };
        actions.frontend.push(FrontendEvent::Revoke { rank, number, lease, is_own });
    }

    /// Handles the outcome of an operation of [`Actions::data`].
    pub fn data_completed(&mut self, now: u64, number: u64, outcome: DataOutcome, actions: &mut Actions<T>) {
        // The call may have been abandoned meanwhile.
        let Some(mut pending) = self.calls.remove(CallWait::Data(number)) else { return };
        let Some(delegation) = pending.call_state.delegation.take() else { return };
        match outcome {
            DataOutcome::Done(result) => self.resume_call(now, pending, result, 0, actions),
            DataOutcome::Stale => match pending.call_state.own.take() {
                Some(own) => {
                    let step = own.stale(&pending.incoming.call);
                    self.take_step(now, pending, step, 0, actions);
                }
                None => {
                    let next = self.client.stale(&pending.incoming.call, &delegation);
                    self.advance(now, pending, next, 0, actions);
                }
            },
        }
        self.resume_after_write_behind(now, actions);
        self.say(actions);
    }

    // ---- Output

    /// The rank that has an inode, as far as replies have said.
    pub fn rank_of(&self, ino: Ino) -> Rank {
        self.client.locations.of(ino)
    }

    /// The session with the server of a rank, which another server may have named before this
    /// client has heard of it.
    fn server_session(&mut self, rank: Rank) -> &mut ServerSession {
        self.learn_ranks(usize::from(rank.0) + 1);
        self.unsent.insert(rank);
        self.server_sessions.entry(rank).or_default()
    }

    /// Emits the queued messages to servers, except those that may linger for a batch.
    fn say(&mut self, actions: &mut Actions<T>) {
        self.complete_write_behind(actions);
        self.send_wanted(actions);
        for rank in core::mem::take(&mut self.unsent) {
            if self.server_sessions.get(&rank).is_some_and(|end| self.may_linger(rank, end)) {
                self.unsent.insert(rank);
            } else if let Some(end) = self.server_sessions.get_mut(&rank) {
                actions.send.extend(end.out.drain(..).map(|message| (rank, message)));
            }
        }
    }

    /// Makes servers drop lookup counts of evicted inodes.
    fn give_up_forgotten(&mut self) {
        let forgotten = self.cache.forgotten();
        self.forget_fragments(forgotten.iter().map(|(ino, _)| *ino));
        for (ino, lookups) in forgotten.into_iter().chain(self.cache.forgotten()) {
            let end = self.server_session(self.rank_of(ino));
            end.link.forget(ino, lookups, &mut end.out);
        }
        self.client.locations.shrink(|ino| self.cache.holds(ino));
    }

    /// Ends leases on remote dentries in these directories for pending calls.
    fn forget_seen(&mut self, is_one: impl Fn(Ino) -> bool) {
        // A cluster with one rank has no remote dentries.
        if self.ranks > 1 {
            for pending in self.calls.requests() {
                let name_state = &mut pending.call_state.name_state;
                if name_state.remote_entry.is_some_and(|remote_entry| is_one(remote_entry.dir)) {
                    name_state.until = 0;
                }
            }
        }
    }
}
