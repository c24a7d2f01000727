//! The calls of a door, taken by a cluster's metadata servers: the client's machine, its end of a session with each server, and the
//! thread-safe rest around them.
//!
//! The thread that brings a call sends what it asks of a server; the task that receives the answer leads the call on and
//! answers it. `direct.rs` has what is asked of data servers.

mod direct;
mod end;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use espalier_client::{Answer, Begun, Cache, Call, Client, Next, Sighting};
use espalier_net::Sender;
use espalier_proto::{
    Caller, Errno, FromClient, FromServer, Ino, Lease, LockOwner, Rank, Reply, Request, RequestId, StreamIo,
    Touched, Welcome,
};

use serde::{Deserialize, Serialize};

use crate::caller::groups;
use crate::calls::{Calls, Door, Interrupt, Outcome};
use crate::door::FOREVER;
use crate::servers::Servers;
use crate::watch::Kind;
use direct::{Asking, Direct};
pub use end::Messages;
use end::{End, Finished, Parked, Seen, tell};

/// Extended attributes that kernels ask for by themselves, whoever may read them.
const ASKED_OFTEN: [&[u8]; 2] = [b"security.", b"system.posix_acl_"];

/// A door's sessions with the metadata servers of a cluster.
pub struct Remote<D: Door> {
    /// Held while what a server has sent is taken, before `inner`: what one tells of a name, and another of its inode, is told
    /// together, and must be before either is revoked.
    receiving: Mutex<()>,
    inner: Mutex<Inner<D::Ticket>>,
    door: D,
    direct: Direct,
    own: Weak<Self>,
}

/// How a session with a server is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SessionState {
    pub connected: bool,
    /// Calls that wait for the server.
    pub waiting: usize,
    pub messages: Messages,
}

struct Inner<T> {
    client: Client,
    cache: Cache,
    /// Since when the cache's clock runs.
    started: Instant,
    /// By rank.
    ends: Vec<End<T>>,
    /// Calls that wait for data servers.
    asking: Asking<T>,
}

/// A call as it comes from the door.
struct Asked<'a, T> {
    call_id: u64,
    caller: Caller,
    call: Call<'a>,
    ticket: T,
    interrupted: bool,
}

impl<D: Door> Remote<D> {
    /// Of a cluster with so many metadata servers. `servers`: as who data servers are asked, in tasks of this thread's runtime.
    pub fn new(door: D, cache: Cache, servers: &Servers, ranks: usize) -> Arc<Self> {
        let inner = Inner {
            client: Client::default(),
            cache,
            started: Instant::now(),
            ends: (0..ranks).map(|_| End::default()).collect(),
            asking: Asking::default(),
        };
        let (receiving, inner, direct) = (Mutex::default(), Mutex::new(inner), Direct::new(servers));
        Arc::new_cyclic(|own| Self { receiving, inner, door, direct, own: Weak::clone(own) })
    }

    /// The incarnation of the server that the session was last in.
    pub fn incarnation(&self, rank: Rank) -> Option<u64> {
        self.lock().ok()?.end(rank)?.link.incarnation()
    }

    /// How the sessions are, by rank.
    pub fn sessions(&self) -> Vec<SessionState> {
        let state = |end: &End<D::Ticket>| SessionState {
            connected: end.sender.is_some(),
            waiting: end.parked.len(),
            messages: end.messages,
        };
        self.lock().map(|inner| inner.ends.iter().map(state).collect()).unwrap_or_default()
    }

    /// What has been sent and received until now.
    pub fn messages(&self) -> Messages {
        self.sessions().iter().fold(Messages::default(), |sum, session| sum.plus(session.messages))
    }

    /// What has been asked of servers until now, by operation.
    pub fn asked(&self) -> BTreeMap<String, u64> {
        let Ok(inner) = self.lock() else { return BTreeMap::new() };
        let count = |kind: &Kind| inner.ends.iter().map(|end| end.kinds[*kind as usize]).sum();
        let counts = Kind::ALL.iter().map(|kind| (kind.name().into(), count(kind)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Looks at what is cached, at its time. `None` after a panic: what is cached cannot be trusted any more.
    pub fn cached<R>(&self, look: impl FnOnce(&mut Cache, u64) -> R) -> Option<R> {
        let mut inner = self.lock().ok()?;
        let now = inner.now();
        Some(look(&mut inner.cache, now))
    }

    /// A connection to a server has begun.
    pub fn connected(&self, rank: Rank, welcome: &Welcome, sender: Sender<FromClient>) {
        let _turn = self.receive();
        let Ok(mut inner) = self.lock() else { return };
        self.direct.learn(&welcome.servers);
        inner.client.can_ask_data_servers = !welcome.servers.data.is_empty();
        let mut finished = Vec::new();
        let Some(end) = inner.end(rank) else { return };
        let Begun { distrust, lost, unlocked } = end.link.connected(welcome, &mut end.out);
        if !unlocked.is_empty() {
            let files = unlocked.len();
            tracing::warn!(
                files,
                "the server has given up this client's locks, for it had not heard of it for too long"
            );
        }
        end.sender = Some(sender);
        // Before anybody else sends: a server that was started anew wants to be told first what is held.
        if let Some((sender, out)) = end.take_out() {
            tell(&sender, out);
        }
        let is_lost = distrust.is_some() && !welcome.resumed;
        for id in lost {
            end.given_up.remove(&id);
            if let Some(parked) = end.parked.remove(&id) {
                finished.push(Finished::new(parked.ticket, Err(Errno::EIO)));
            }
        }
        if is_lost {
            finished.extend(inner.asking.lose(rank));
        }
        // What is told again does not say what it has changed.
        inner.cache.distrust_rank(rank);
        inner.forget_seen(|dir| dir.rank() == rank);
        if let Some(inos) = distrust {
            self.door.distrust(&inos);
        }
        self.settle(inner, finished);
    }

    pub fn disconnected(&self, rank: Rank) {
        let Ok(mut inner) = self.lock() else { return };
        if let Some(end) = inner.end(rank) {
            end.sender = None;
            end.link.disconnected();
        }
    }

    /// Comes a few times a second: tells servers what they need not know at once.
    pub fn tick(&self) {
        let Ok(mut inner) = self.lock() else { return };
        let now = inner.now();
        inner.cache.expire(now);
        inner.give_up_forgotten();
        for end in &mut inner.ends {
            end.link.tell_forgotten(&mut end.out);
        }
        inner.release_put_off();
        let finished = self.give_up_stuck(&mut inner);
        self.settle(inner, finished);
    }

    /// Takes what has come from a server.
    pub fn received(self: &Arc<Self>, rank: Rank, messages: impl IntoIterator<Item = FromServer>) {
        let _turn = self.receive();
        let Ok(mut inner) = self.lock() else { return };
        let mut finished = Vec::new();
        for message in messages {
            let Some(end) = inner.end(rank) else { return };
            end.messages.count_received(&message);
            match message {
                FromServer::Reply { id, lease_ms, touched, result } => {
                    let lease = Duration::from_millis(lease_ms.into());
                    self.reply(&mut inner, &mut finished, (rank, id), (lease, touched), result);
                }
                FromServer::AskGroups { id, pid } => {
                    end.out.push(FromClient::Groups { id, groups: groups(pid) });
                }
                // What was answered before must have been told before it is revoked.
                FromServer::Revoke { number, lease } => {
                    inner.cache.revoke(&lease);
                    let (Lease::Name { dir, .. } | Lease::Inode { ino: dir }) = lease;
                    inner.forget_seen(|seen| seen == dir);
                    let is_own = inner.moves(&lease);
                    self.settle(inner, std::mem::take(&mut finished));
                    let remote = Arc::clone(self);
                    self.door
                        .revoke(&lease, is_own, move || remote.send(rank, FromClient::Revoked { number }));
                    let Ok(locked) = self.lock() else { return };
                    inner = locked;
                }
                FromServer::Locked { wait } => {
                    end.link.locked(wait);
                    if let Some(parked) = end.waits.remove(&wait) {
                        finished.push(Finished::new(parked.ticket, Ok(Answer::Done)));
                    }
                }
                FromServer::Recall(recalls) => {
                    recalls.iter().for_each(|recall| inner.cache.recall(recall.ino));
                    self.door.recall(&recalls);
                }
                FromServer::Changed(inos) => {
                    inos.iter().for_each(|ino| inner.cache.touched(*ino));
                    self.door.changed(&inos);
                }
            }
        }
        inner.give_up_forgotten();
        self.settle(inner, finished);
    }

    /// Tells the servers that this client goes, and waits until that is sent.
    pub async fn farewell(&self) {
        self.direct.close();
        let senders = self
            .lock()
            .map(|mut inner| inner.ends.iter_mut().filter_map(|end| end.sender.take()).collect::<Vec<_>>());
        let senders = senders.unwrap_or_default();
        for sender in &senders {
            let _ = sender.send(FromClient::Goodbye);
        }
        for sender in senders {
            let _ = sender.close().await;
        }
    }

    fn send(&self, rank: Rank, message: FromClient) {
        let Ok(mut inner) = self.lock() else { return };
        if let Some(end) = inner.end(rank) {
            end.out.push(message);
        }
        self.settle(inner, Vec::new());
    }

    fn reply(
        &self,
        inner: &mut Inner<D::Ticket>,
        finished: &mut Vec<Finished<D::Ticket>>,
        (rank, id): (Rank, RequestId),
        (lease, touched): (Duration, Touched),
        result: Result<Reply, Errno>,
    ) {
        let Some(end) = inner.end(rank) else { return };
        let parked = end.parked.remove(&id);
        let over = end.link.answered(id, &result, parked.is_some(), &mut end.out);
        if let Some(waited) = over.and_then(|wait| end.waits.remove(&wait)) {
            finished.push(Finished::new(waited.ticket, result.map(|_| Answer::Done)));
            return;
        }
        let parked = match parked {
            Some(parked) if result == Ok(Reply::Waits) => {
                if let Call::Request(Request::Lock { wait: Some(wait), .. }) = parked.call {
                    if parked.interrupted {
                        end.link.stop_waiting(wait, &mut end.out);
                    }
                    end.waits.insert(wait, parked);
                }
                return;
            }
            parked => parked,
        };
        let given_up = end.given_up.remove(&id);
        let now = inner.now();
        // Of what nobody waits for it is not known when it was asked.
        let sent = parked.as_ref().map(|parked| parked.sent.elapsed());
        let lease = sent.map_or(Duration::ZERO, |sent| lease.saturating_sub(sent));
        if let Some(parked) = parked {
            inner.lead_on(finished, parked, result, lease);
        }
        inner.cache.changed(&touched, lease.as_millis() as u64, now);
        if given_up {
            // What it has changed was told to nobody.
            inner.cache.distrust();
            let changed = touched.attrs.iter().map(|attr| attr.ino).chain(touched.others);
            self.door.distrust(&changed.collect::<Vec<_>>());
        }
    }

    fn settle(&self, mut inner: MutexGuard<'_, Inner<D::Ticket>>, finished: Vec<Finished<D::Ticket>>) {
        let out: Vec<_> = inner.ends.iter_mut().filter_map(End::take_out).collect();
        self.ask_data_servers(&mut inner);
        drop(inner);
        for (sender, messages) in out {
            tell(&sender, messages);
        }
        for Finished { ticket, result, lease } in finished {
            match result {
                Ok(Answer::Bytes(bytes)) => self.door.answer(self, ticket, Ok(Outcome::Data(&bytes)), lease),
                result => self.door.answer(self, ticket, result.map(Outcome::Answer), lease),
            }
        }
    }

    /// It guards nothing that a panic could have left half done.
    fn receive(&self) -> MutexGuard<'_, ()> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails after a thread has panicked while it held the machines: what they hold cannot be trusted any more.
    fn lock(&self) -> Result<MutexGuard<'_, Inner<D::Ticket>>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }
}

impl<T> Inner<T> {
    fn end(&mut self, rank: Rank) -> Option<&mut End<T>> {
        self.ends.get_mut(usize::from(rank.0))
    }

    /// In milliseconds, for the cache.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
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
        if self.ends.len() > 1 {
            for parked in self.ends.iter_mut().flat_map(|end| end.parked.values_mut()) {
                if parked.seen.sighting.is_some_and(|sighting| is_one(sighting.dir)) {
                    parked.seen.until = 0;
                }
            }
        }
    }

    /// Whether a lease is on a name that a call under way moves: then one rank has asked for this on behalf of another.
    fn moves(&self, lease: &Lease) -> bool {
        let Lease::Name { dir, name } = lease else { return false };
        let mut calls = self.ends.iter().flat_map(|end| end.parked.values()).map(|parked| &parked.call);
        calls.any(|call| match call {
            Call::Request(Request::Rename { from_dir, from, to_dir, to, .. }) => {
                [(from_dir, from), (to_dir, to)].contains(&(dir, name))
            }
            _ => false,
        })
    }

    /// The answer to a call that needs no message, and how long it may be cached.
    fn answer_from_cache(
        &mut self,
        call: &Call<'_>,
        shares_names: bool,
    ) -> Option<(Result<Answer, Errno>, Duration)> {
        let now = self.now();
        let (answer, left) = match call {
            Call::Request(Request::Lookup { dir, name }) if shares_names => {
                self.cache.look_up(*dir, name, now)?
            }
            Call::Request(Request::GetAttr { ino }) => self.cache.get_attr(*ino, now)?,
            Call::Request(Request::GetXattr { ino, name })
                if ASKED_OFTEN.iter().any(|often| name.starts_with(often))
                    && self.cache.is_bare(*ino, now) =>
            {
                return Some((Err(Errno::ENODATA), Duration::ZERO));
            }
            _ => return None,
        };
        Some((Ok(answer), Duration::from_millis(left)))
    }

    /// The first step of a call for a name that is known to stand for an inode at another rank, of which nothing is known; and for how
    /// long the name is known.
    fn known_elsewhere(&self, call: &Call<'_>) -> Option<(Next, Duration)> {
        let Call::Request(Request::Lookup { dir, name }) = call else { return None };
        let (sighting, left) = self.cache.sighting(*dir, name, self.now())?;
        let find = Request::Find { ino: sighting.ino, kind: sighting.kind, open: None };
        Some((Next::Find(find, sighting), Duration::from_millis(left)))
    }

    /// A call goes on with a server's reply. `lease`: what is left of it.
    fn lead_on(
        &mut self,
        finished: &mut Vec<Finished<T>>,
        parked: Parked<T>,
        result: Result<Reply, Errno>,
        lease: Duration,
    ) {
        let Parked { call_id, caller, call, ticket, seen, interrupted, .. } = parked;
        let (now, lease_ms) = (self.now(), lease.as_millis() as u64);
        let asked = |call| Asked { call_id, caller, call, ticket, interrupted };
        let Some(sighting) = seen.sighting else {
            let next = self.client.reply(&call, result);
            if let Next::Answer(result) = &next {
                self.cache.answered(&call, result.as_ref().ok(), lease_ms, now);
            }
            return self.advance(finished, asked(call), next, lease, seen);
        };
        // The lease on the name may have ended since.
        let left = seen.until.saturating_sub(now);
        let sighting = Sighting { leased: left > 0, ..sighting };
        let next = self.client.found(&call, &sighting, seen.gone == Some(sighting.ino), result);
        if let Next::Answer(result) = &next {
            self.cache.found(result.as_ref().ok(), lease_ms, now);
        }
        let lease = if left > 0 { lease.min(Duration::from_millis(left)) } else { lease };
        let seen = Seen { gone: Some(sighting.ino), ..Seen::default() };
        self.advance(finished, asked(call), next, lease, seen);
    }

    /// Leads a call on until it is finished or must wait. `lease`: of what has been told last.
    fn advance(
        &mut self,
        finished: &mut Vec<Finished<T>>,
        asked: Asked<'_, T>,
        next: Next,
        lease: Duration,
        mut seen: Seen,
    ) {
        let Asked { call_id, caller, call, ticket, interrupted } = asked;
        let rank = match &next {
            Next::Answer(_) => Rank(0),
            Next::Ask(request) | Next::Find(request, _) | Next::Tell(request, _) => request.rank(),
            Next::Release(ino) => ino.rank(),
            Next::Stream(io) => io.rank(),
            Next::Data(delegation, _) => delegation.capability.ino.rank(),
        };
        if let Next::Find(_, sighting) = &next {
            let (now, left) = (self.now(), lease.as_millis() as u64);
            self.cache.sighted(&call, sighting, left, now);
            let until = if sighting.leased { now.saturating_add(left) } else { 0 };
            seen = Seen { sighting: Some(*sighting), until, ..seen };
        }
        if let Next::Tell(Request::Release { ino }, _) | Next::Release(ino) = next
            && self.asking.puts_off(ino)
        {
            return finished.push(Finished::new(ticket, Ok(Answer::Done)));
        }
        let sent = Instant::now();
        let Some(end) = self.end(rank) else {
            // No server has told of such an inode.
            return finished.push(Finished::new(ticket, Err(Errno::ESTALE)));
        };
        let id = match next {
            Next::Answer(result) => return finished.push(Finished { ticket, result, lease }),
            Next::Data(delegation, io) => {
                end.messages.data += 1;
                let call = call.into_owned();
                let parked = Parked { call_id, caller, call, ticket, sent, seen, interrupted };
                return self.asking.park(parked, delegation, io);
            }
            Next::Tell(request, answer) => {
                end.ask(caller, request);
                return finished.push(Finished::new(ticket, Ok(answer)));
            }
            Next::Release(ino) => {
                end.link.release(ino, &mut end.out);
                return finished.push(Finished::new(ticket, Ok(Answer::Done)));
            }
            Next::Ask(request) | Next::Find(request, _) => end.ask(caller.clone(), request),
            Next::Stream(io) => {
                let data = match (&call, io) {
                    (Call::Write { data, .. }, StreamIo::Write { .. }) => data.to_vec(),
                    _ => Vec::new(),
                };
                end.link.stream(io, data, &mut end.out)
            }
        };
        let call = call.into_owned();
        end.parked.insert(id, Parked { call_id, caller, call, ticket, sent, seen, interrupted });
        if interrupted {
            let (_, gone) = end.interrupt(call_id);
            finished.extend(gone.map(|parked| Finished::new(parked.ticket, Err(Errno::EINTR))));
        }
    }
}

impl<D: Door> Calls<D> for Remote<D> {
    fn call(&self, id: u64, caller: Caller, call: Call<'_>, ticket: D::Ticket) {
        let mut inner = match self.lock() {
            Ok(inner) => inner,
            Err(errno) => return self.door.answer(self, ticket, Err(errno), Duration::ZERO),
        };
        if let Some((answer, lease)) = inner.answer_from_cache(&call, self.door.shares_names()) {
            // Under the lock: nothing of it can be revoked before it is told.
            return self.door.answer(self, ticket, answer.map(Outcome::Answer), lease);
        }
        let mut finished = Vec::new();
        inner.cache.sent(&call);
        let known = if self.door.shares_names() { inner.known_elsewhere(&call) } else { None };
        let (next, lease) = known.unwrap_or_else(|| (inner.client.start(&call), FOREVER));
        let asked = Asked { call_id: id, caller, call, ticket, interrupted: false };
        inner.advance(&mut finished, asked, next, lease, Seen::default());
        self.settle(inner, finished);
    }

    fn forget(&self, requests: impl IntoIterator<Item = Request>) {
        let Ok(mut inner) = self.lock() else { return };
        for request in requests {
            if let Request::Forget { ino, lookups } = request {
                inner.cache.forget(ino, lookups);
            }
        }
        inner.give_up_forgotten();
        self.settle(inner, Vec::new());
    }

    fn interrupt(&self, call_id: u64, dies: impl Fn(u32) -> bool) -> Interrupt {
        let Ok(mut inner) = self.lock() else { return Interrupt::Heard };
        for end in &mut inner.ends {
            if end.outlives(call_id, &dies) {
                return Interrupt::Survived;
            }
            if let (true, gone) = end.interrupt(call_id) {
                let gone = gone.map(|parked| Finished::new(parked.ticket, Err(Errno::EINTR)));
                self.settle(inner, gone.into_iter().collect());
                return Interrupt::Heard;
            }
        }
        let interrupt = inner.asking.interrupt(call_id, dies);
        let finished = self.give_up_stuck(&mut inner);
        self.settle(inner, finished);
        interrupt
    }

    fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        let inner = self.lock();
        inner.is_ok_and(|mut inner| inner.end(ino.rank()).is_some_and(|end| end.link.has_locks(ino, owner)))
    }

    fn unlock(&self, ino: Ino, owner: LockOwner) {
        let Ok(mut inner) = self.lock() else { return };
        if let Some(end) = inner.end(ino.rank()) {
            end.unlock(ino, owner);
        }
        self.settle(inner, Vec::new());
    }

    fn stream_file(&self, _: Ino) -> Option<Arc<File>> {
        None
    }

    fn pass_through(&self) {}

    fn without_passthrough(&self, _: Ino) {}

    fn door(&self) -> &D {
        &self.door
    }
}
