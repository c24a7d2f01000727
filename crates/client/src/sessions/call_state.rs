//! The state of a pending call, and how a server's reply advances it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::take;

use espalier_proto::{
    Access, Caller, Delegation, Entry, Errno, Ino, Layout, Rank, Reply, Request, RequestId, Touched,
};

use super::data::DataLease;
use super::fragments::FragmentWait;
use super::listings::IncompleteListing;
use super::own::{Left, Own, OwnCallStep};
use super::pending_calls::{CallWait, PendingCall, changed_names};
use super::renames::Confirmation;
use super::{Actions, DataOperation, FrontendEvent, OwnedCall, Sessions, Waiter};
use crate::cache::{Page, Term};
use crate::{Answer, Call, Changes, Next, RemoteEntry, Work};

/// The client's state of one call.
#[derive(Debug, Default)]
pub(super) struct CallState {
    /// When the call began, and in which epoch.
    pub begun: u64,
    pub epoch: u64,
    /// When its last request was sent.
    pub sent: u64,
    pub name_state: NameState,
    /// The client-driven operation that the call executes, if any.
    pub own: Option<Own>,
    /// The caller has been interrupted.
    pub interrupted: bool,
    /// The delegation of the operation on data servers or in the data pool that the call waits for.
    pub delegation: Option<Arc<Delegation>>,
    /// [`PoolAccess::epoch`](crate::delegated::PoolAccess) when a delegation was last requested.
    pub pool_epoch: u64,
    pub data: DataLease,
    pub confirmation: Confirmation,
    pub fragment_wait: FragmentWait,
    /// A listing that waits for other ranks.
    pub listing: Option<Box<IncompleteListing>>,
    /// Number of times that the call has been routed again.
    pub routes: u8,
    /// A listing that began with the first fragment, which is empty.
    pub lists_start: bool,
    /// All fragments of the directory have contributed to the answer.
    pub has_all_fragments: bool,
    #[expect(dead_code, reason = "held until the call ends")]
    pub changes: Changes,
}

/// The reply of the name's rank for a call whose inode is at another rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameState {
    /// The remote dentry, while the inode's rank is asked.
    pub remote_entry: Option<RemoteEntry>,
    /// When the lease on the name ends; 0: no lease.
    pub until: u64,
    /// An inode to which the name was bound, and which the inode's rank did not have.
    pub gone: Option<Ino>,
}

/// A server's reply to a request.
#[derive(Debug)]
pub(super) struct ServerReply {
    pub rank: Rank,
    pub id: RequestId,
    /// The term of the reply's leases, from when the request was sent, in ms.
    pub lease: u64,
    pub touched: Touched,
    pub result: Result<Reply, Errno>,
}

impl ServerReply {
    /// How long the leases last, in ms; without the time of the request there are none. A
    /// millisecond that has begun counts as passed.
    pub fn lease_left(&self, sent: Option<u64>, now: u64) -> u64 {
        sent.map_or(0, |sent| self.lease.saturating_sub(now.saturating_sub(sent) + 1))
    }
}

impl<T> Sessions<T> {
    pub(super) fn reply(&mut self, now: u64, reply: ServerReply, actions: &mut Actions<T>) {
        let (rank, id) = (reply.rank, reply.id);
        if let Ok(Reply::Forwarded { to, fragments }) = reply.result {
            return self.forwarded(now, (rank, id), to, fragments, actions);
        }
        if let Some(origin) = id.origin() {
            let is_early = !self.server_session(rank).link.has_adopted(id);
            let end = self.server_session(origin);
            if is_early {
                if end.link.may_have_forwarded(id) {
                    self.early_replies.insert((rank, id), reply);
                }
                return;
            }
            end.link.forward_ended(id, &mut end.out);
        }
        if let Ok(reply) = &reply.result {
            self.client.locations.learn_from(rank, reply);
        }
        let pending = self.calls.replied(rank, id);
        let is_waited_for = pending.is_some() || self.writeback.is_change(rank, id);
        let end = self.server_session(rank);
        let over = end.link.answered(id, &reply.result, is_waited_for, &mut end.out);
        let waited = over.and_then(|wait| self.calls.remove(CallWait::Lock(rank, wait)));
        // The exclusive lease counts from the same time as the reply's other leases.
        let sent = pending.as_ref().map(|pending| pending.call_state.sent);
        let sent = sent.or_else(|| self.writeback.sent(rank, id));
        let until = sent.map_or(0, |sent| sent.saturating_add(reply.lease));
        let Touched { exclusive, spreads_dirs, .. } = reply.touched;
        let grant = Touched { exclusive, spreads_dirs, ..Touched::default() };
        let sole_held = exclusive.map(|_| sole_held_inodes(&reply.result)).unwrap_or_default();
        let changes = reply.lease > 0 && !reply.touched.attrs.is_empty();
        if self.numbers_received(now, &reply) || self.renewed(now, &reply) || self.names_received(now, &reply)
        {
            return;
        }
        self.hear_time(now, &reply);
        let was_acknowledged = self.pending_reply(now, &reply, actions);
        if let Some(waited) = waited {
            actions.answer(waited.incoming.ticket, reply.result.map(|_| Answer::Done));
        } else if !was_acknowledged {
            self.complete_call(now, reply, pending, actions);
        }
        self.cache.grant_exclusive(&grant, &sole_held, until, now);
        if changes {
            self.number_pool(now, rank);
        }
        if was_acknowledged {
            self.resume_blocked(now, actions);
        }
    }

    /// Applies a reply to the cache and to the call that waits for it, if there is one.
    fn complete_call(
        &mut self,
        now: u64,
        reply: ServerReply,
        pending: Option<PendingCall<T>>,
        actions: &mut Actions<T>,
    ) {
        let lease = reply.lease_left(pending.as_ref().map(|pending| pending.call_state.sent), now);
        let ServerReply { rank, id, touched, mut result, .. } = reply;
        let pending = match pending {
            Some(pending) if result == Ok(Reply::Waits) => return self.wait_for_lock(rank, pending),
            pending => pending,
        };
        let given_up = self.calls.remove_abandoned(rank, id);
        let is_doubtful =
            given_up.is_some() || result.is_err() && !(touched.attrs.is_empty() && touched.others.is_empty());
        let names = match (&given_up, &pending) {
            (Some(names), _) => names.clone(),
            (None, Some(pending)) if is_doubtful => changed_names(&pending.incoming.call),
            _ => Vec::new(),
        };
        let whole = match (&pending, &mut result) {
            (Some(pending), Ok(Reply::OpenedWhole(_, bytes))) => {
                pending.incoming.call.opens().zip(Some(take(bytes)))
            }
            _ => None,
        };
        if let Some(pending) = pending {
            if let Some(ino) = pending.incoming.call.unprivileged(&result) {
                self.cache.touched(ino);
                actions.frontend.push(FrontendEvent::PrivilegesRemoved(self.shown_as(ino)));
            }
            self.resume_call(now, pending, result, lease, actions);
        }
        self.cache.changed(&touched, lease, now);
        if let Some((ino, bytes)) = whole {
            self.cache.learn(ino, bytes.into(), lease, now);
        }
        if given_up.is_some() {
            self.cache.distrust();
        }
        if is_doubtful {
            // No caller has been notified of these changes.
            let changed = touched.attrs.iter().map(|attr| attr.ino).chain(touched.others);
            self.invalidate(names, changed.collect(), actions);
        }
    }

    /// Handles the reply that a call must wait for a lock.
    fn wait_for_lock(&mut self, rank: Rank, pending: PendingCall<T>) {
        let Call::Request(Request::Lock { wait: Some(wait), .. }) = pending.incoming.call else { return };
        if pending.call_state.interrupted {
            let end = self.server_session(rank);
            end.link.stop_waiting(wait, &mut end.out);
        }
        self.calls.insert(CallWait::Lock(rank, wait), pending);
    }

    /// Advances a call with a server's reply. `lease`: its remaining time in ms.
    pub(super) fn resume_call(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        result: Result<Reply, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) {
        if let Some(listing) = pending.call_state.listing.take() {
            return self.add_to_listing(now, pending, listing, result, lease, actions);
        }
        // A listing that waited for its parent may be older than replies that came meanwhile.
        let is_late = matches!(pending.call_state.fragment_wait, FragmentWait::Parent(_));
        let lease = if is_late { 0 } else { lease };
        let Some((pending, result)) = self.resume_fragments(now, pending, result, lease, actions) else {
            return;
        };
        let Some((pending, result, lease)) = self.confirm(now, pending, result, lease, actions) else {
            return;
        };
        let Some(mut pending) = self.resume_with_data(now, pending, &result, lease, actions) else { return };
        let PendingCall { incoming, call_state } = &mut pending;
        let name_state = call_state.name_state;
        let Some(remote_entry) = name_state.remote_entry else {
            let step = match call_state.own.take() {
                Some(own) => own.advance(&incoming.call, result),
                None => Own::begin(&incoming.call, result),
            };
            return self.take_step(now, pending, step, lease, actions);
        };
        // The lease on the name may have ended meanwhile.
        let left = name_state.until.saturating_sub(now);
        let remote_entry = RemoteEntry { leased: left > 0, ..remote_entry };
        let next = self.client.found(
            &incoming.call,
            &remote_entry,
            name_state.gone == Some(remote_entry.ino),
            result,
        );
        if let Next::Answer(result) = &next {
            let term = Term { requested_at: call_state.begun, left: lease };
            self.cache.found(&incoming.call, result.as_ref().ok(), term, now);
        }
        let lease = if left > 0 { lease.min(left) } else { lease };
        call_state.name_state = NameState { gone: Some(remote_entry.ino), ..NameState::default() };
        self.advance(now, pending, next, lease, actions);
    }

    /// Executes the next step of a call, which the client may have to drive itself.
    pub(super) fn take_step(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        step: OwnCallStep,
        lease: u64,
        actions: &mut Actions<T>,
    ) {
        let PendingCall { incoming, call_state } = &mut pending;
        let mut remote = None;
        let next = match step {
            OwnCallStep::Ask(own, request) => {
                call_state.own = Some(own);
                Next::Ask(request)
            }
            OwnCallStep::Data(own, delegation, work) => {
                call_state.own = Some(own);
                Next::Data(delegation, work)
            }
            OwnCallStep::Anew(left) => {
                self.give_back(left);
                self.client.start(&incoming.call)
            }
            OwnCallStep::Over(result, left) => {
                self.give_back(left);
                let is_outdated = matches!(&result, Ok(Reply::Delegated(Some(given)))
                    if given.layout.is_none() && call_state.pool_epoch < self.client.data_pool.epoch);
                let mut next = if is_outdated {
                    // The server may have ended the session that this is for, and fenced the
                    // address under which the client used the pool before.
                    self.client.start(&incoming.call)
                } else {
                    self.client.reply(&incoming.call, result)
                };
                if let Next::Answer(result) = &mut next {
                    let term = Term { requested_at: call_state.begun, left: lease };
                    self.cache.answered(&incoming.call, result.as_ref().ok(), term, now);
                    if let Some(dir) = absent_in(&incoming.call, result) {
                        self.note_absent(now, &incoming.caller, dir);
                    }
                    if let Ok(listing) = result {
                        remote = self.cache.remote_inodes(&incoming.call, listing, now);
                        match incoming.ticket {
                            Waiter::Ahead(dir) => self.keep_ahead(now, dir, &incoming.call, listing, lease),
                            _ => self.cache.hold_back(&incoming.call, listing, now),
                        }
                    }
                }
                next
            }
        };
        match (remote, next) {
            (Some(remote), Next::Answer(Ok(listing))) => {
                self.request_remote_entries(now, pending, listing, remote, actions);
            }
            (_, next) => self.advance(now, pending, next, lease, actions),
        }
    }

    /// Advances a call until it is finished or must wait. `lease`: the remaining time of the last
    /// reply's lease, in ms.
    pub(super) fn advance(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        next: Next,
        lease: u64,
        actions: &mut Actions<T>,
    ) {
        let PendingCall { incoming, call_state } = &mut pending;
        let mut next = self.before_answer(now, &incoming.call, call_state, next, lease > 0);
        if let Waiter::Acknowledged(_) = incoming.ticket {
            next.mark_acknowledged();
        }
        if let Next::Find(_, remote_entry) = &next {
            self.cache.remote_found(&incoming.call, remote_entry, lease, now);
            call_state.name_state.remote_entry = Some(*remote_entry);
            call_state.name_state.until = if remote_entry.leased { now.saturating_add(lease) } else { 0 };
        }
        if let Next::Notify(Request::Release { ino }, _) | Next::Release(ino) = next {
            if self.releases.defer(ino) {
                return actions.answer(pending.incoming.ticket, Ok(Answer::Done));
            }
            self.closed(ino, now);
        }
        if let Next::Ask(Request::Delegate { .. }) = next {
            call_state.pool_epoch = self.client.data_pool.epoch;
        }
        let page =
            Page::of(&incoming.call).filter(|page| self.may(&incoming.caller, page.dir, Access::READ, now));
        let entries = page.and_then(|page| self.cache.entries_to_ask_for(page));
        let rank = next.rank(&self.client.locations);
        if let Next::Ask(request) | Next::Find(request, _) = &next {
            self.report_time(now, request);
        }
        let end = self.server_session(rank);
        let id = match next {
            Next::Answer(result) => return self.finish(now, pending, result, lease, actions),
            Next::Data(delegation, work) => return self.ask_data_servers(pending, delegation, work, actions),
            Next::Apart => return self.write_apart(now, pending, actions),
            Next::Notify(request, answer) => {
                end.ask(pending.incoming.caller, request);
                return actions.answer(pending.incoming.ticket, Ok(answer));
            }
            Next::Release(ino) => {
                end.link.release(ino, &mut end.out);
                return actions.answer(pending.incoming.ticket, Ok(Answer::Done));
            }
            Next::Ask(mut request) | Next::Find(mut request, _) => {
                if let (Request::ReadDir { limit, .. }, Some(more)) = (&mut request, entries) {
                    *limit = more.max(*limit);
                }
                end.ask(incoming.caller.clone(), request)
            }
            Next::Stream(io) => end.link.stream(io, incoming.call.bytes_to_write(), &mut end.out),
        };
        self.await_reply(now, pending, CallWait::Reply(rank, id), actions);
    }

    /// Has a call wait for the reply to a request sent now.
    pub(super) fn await_reply(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        wait: CallWait,
        actions: &mut Actions<T>,
    ) {
        pending.call_state.sent = now;
        let is_interrupted = pending.call_state.interrupted;
        self.calls.insert(wait, pending);
        if is_interrupted {
            self.cancel(wait, actions);
        }
    }

    /// Starts a call's operation on data servers or in the data pool.
    fn ask_data_servers(
        &mut self,
        pending: PendingCall<T>,
        delegation: Arc<Delegation>,
        work: Work,
        actions: &mut Actions<T>,
    ) {
        if delegation.layout.is_none() && !matches!(work, Work::Stream(_)) {
            // There are no datafiles to make or to measure.
            return self.give_up(pending, Errno::EIO, actions);
        }
        let data = pending.incoming.call.bytes_to_write();
        let held = self.releases.hold(delegation.capability.ino, &work);
        let number = self.calls.insert_data(pending, Arc::clone(&delegation));
        actions.data.push(DataOperation { number, delegation, work, data, held });
    }

    /// Answers a caller, unless pending operations on the inode in the answer come first, or other
    /// fragments of a directory. `lease`: the remaining time of the answer's lease in ms.
    pub(super) fn finish(
        &mut self,
        now: u64,
        pending: PendingCall<T>,
        result: Result<Answer, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) {
        let Some((pending, result)) = self.sync_fragments(now, pending, result, actions) else { return };
        let Some((pending, mut result, lease)) = self.sum_fragments(now, pending, result, lease, actions)
        else {
            return;
        };
        let PendingCall { incoming, call_state } = pending;
        if let (Waiter::Ahead(_), Ok(Answer::Listing { entries, .. })) = (&incoming.ticket, &result) {
            self.cache.take_back(entries);
            return actions.answer(incoming.ticket, result);
        }
        if let Some(ino) = result.as_ref().ok().and_then(|answer| incoming.call.opened_to_write(answer)) {
            self.cache.opened_to_write(ino);
        }
        let outdated = result.as_mut().ok().and_then(|answer| self.cache.apply_pending(answer));
        let is_lookup = matches!(
            incoming.call,
            Call::Request(Request::Lookup { .. } | Request::Find { .. } | Request::Parent { .. })
        );
        if let Some(ino) = outdated.filter(|_| is_lookup) {
            self.cache.forget(ino, 1);
            return self.retry_when_unblocked(ino, incoming);
        }
        if let Ok(answer) = &result {
            self.note_listed(now, &incoming.call, answer);
        }
        let lease_ms = match &mut result {
            Ok(answer) => self.retain_pages(now, call_state.epoch, &incoming.call, answer, lease, actions),
            Err(_) => lease,
        };
        let result = result.map(|answer| self.shown(now, answer));
        actions.answer_leased(incoming.ticket, result, lease_ms);
    }

    /// Records that a caller has closed a file, if it was the last one.
    pub(super) fn closed(&mut self, ino: Ino, now: u64) {
        if !self.client.is_open(ino) {
            self.cache.closed(ino, now);
            self.stop_renewing(ino);
        }
    }

    /// Abandons a call: returns what it has acquired, and answers the caller.
    pub(super) fn give_up(&mut self, pending: PendingCall<T>, errno: Errno, actions: &mut Actions<T>) {
        if let Some(own) = &pending.call_state.own {
            self.give_back(own.left());
        }
        if let Some(listing) = &pending.call_state.listing {
            self.give_back_listing(listing);
        }
        let result = Self::abandon(&pending.call_state.confirmation, errno, actions);
        actions.answer(pending.incoming.ticket, result);
    }

    /// As [`Self::give_up`], for interrupted calls that wait for unreachable data servers, or for
    /// the data pool, of which the client does not know whether it answers.
    pub(super) fn give_up_stuck(&mut self, is_stuck: impl Fn(&Layout) -> bool, actions: &mut Actions<T>) {
        let is_one = |pending: &PendingCall<T>, delegation: &Delegation| {
            pending.call_state.interrupted && delegation.layout.as_deref().is_none_or(&is_stuck)
        };
        for pending in self.calls.take_data(is_one, actions) {
            self.give_up(pending, Errno::EINTR, actions);
        }
    }

    /// Answers lookups that wait for unreachable data servers, since the kernel locks the directory
    /// during a lookup. Exempt are files with openings: the kernel would drop pending writes beyond
    /// a size that it learns.
    pub(super) fn look_past_stuck(
        &mut self,
        now: u64,
        is_stuck: impl Fn(&Layout) -> bool,
        actions: &mut Actions<T>,
    ) {
        let is_wanted = |ino| !self.client.is_open(ino) && !self.cache.has_pending(ino);
        let is_one = |pending: &PendingCall<T>, delegation: &Delegation| {
            pending.unmeasured_entry().is_some_and(|entry| is_wanted(entry.attr.ino))
                && delegation.layout.as_deref().is_some_and(&is_stuck)
        };
        for pending in self.calls.take_data(is_one, actions) {
            let Some(entry) = pending.unmeasured_entry() else { continue };
            let PendingCall { incoming, call_state } = pending;
            let term = Term { requested_at: call_state.begun, left: 0 };
            let answer = Answer::Unmeasured(entry);
            self.cache.answered(&incoming.call, Some(&answer), term, now);
            actions.answer(incoming.ticket, Ok(answer));
        }
    }

    pub(super) fn give_back(&mut self, left: Left) {
        let (Left::Open(ino)
        | Left::OpenNamed(ino)
        | Left::Lookup(ino)
        | Left::Created(ino)
        | Left::Orphan(ino)) = left
        else {
            return;
        };
        if let Left::Created(_) = &left {
            let end = self.server_session(self.rank_of(ino));
            end.link.forget(ino, 1, &mut end.out);
        }
        // A pending operation may still create datafiles.
        let is_put_off = match left {
            Left::Open(_) | Left::Created(_) => self.releases.defer(ino),
            Left::OpenNamed(_) => {
                self.releases.end_use(ino);
                false
            }
            Left::Nothing | Left::Lookup(_) | Left::Orphan(_) => false,
        };
        if is_put_off {
            return;
        }
        let end = self.server_session(self.rank_of(ino));
        match left {
            Left::Open(_) => drop(end.ask(Caller::SERVER, Request::Release { ino })),
            Left::OpenNamed(_) | Left::Created(_) => end.link.release_made(ino, &mut end.out),
            Left::Lookup(_) => end.link.forget(ino, 1, &mut end.out),
            Left::Orphan(_) => drop(end.ask(Caller::SERVER, Request::Purge { ino, removed: false })),
            Left::Nothing => {}
        }
    }

    /// The first step of a lookup of a cached remote dentry whose inode is not cached; also returns
    /// how long the dentry is valid, in ms.
    pub(super) fn known_remote(&self, now: u64, incoming: &OwnedCall<T>) -> Option<(Next, u64)> {
        let Call::Request(Request::Lookup { dir, name }) = &incoming.call else { return None };
        if !self.may(&incoming.caller, *dir, Access::EXEC, now) {
            return None;
        }
        let (remote_entry, left) = self.cache.remote_entry(*dir, name, now)?;
        let find = Request::Find { ino: remote_entry.ino, kind: Some(remote_entry.kind), open: None };
        Some((Next::Find(find, remote_entry), left))
    }
}

/// The directory in which a call's name was absent.
fn absent_in(call: &Call<'_>, result: &Result<Answer, Errno>) -> Option<Ino> {
    match (call, result) {
        (Call::Request(Request::Lookup { dir, .. }), Ok(Answer::Absent { .. }))
        | (Call::Request(Request::Create { dir, .. }), Ok(Answer::Created(..) | Answer::Entry(_))) => {
            Some(*dir)
        }
        _ => None,
    }
}

/// The inodes in a reply of which this client is the sole holder, with their link counts.
fn sole_held_inodes(result: &Result<Reply, Errno>) -> Vec<(Ino, u32)> {
    let sole_holder = |entry: &Entry| entry.sole_holder.then_some((entry.attr.ino, entry.attr.nlink));
    match result {
        Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => sole_holder(entry).into_iter().collect(),
        Ok(Reply::Listing { entries, .. }) => {
            entries.iter().filter_map(|dirent| dirent.entry.as_ref().and_then(sole_holder)).collect()
        }
        _ => Vec::new(),
    }
}
