//! The calls of a door, taken by a server: the client's machine, its link, and the thread-safe rest around them.
//!
//! The thread that brings a call sends what it asks of the server; the task that receives the answer leads the call on and
//! answers it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use espalier_client::{Answer, Begun, Cache, Call, Client, Link, Next};
use espalier_net::Sender;
use espalier_proto::{
    Caller, Errno, FromClient, FromServer, Ino, LockOwner, Reply, Request, RequestId, StreamIo, Touched,
    Welcome,
};

use serde::{Deserialize, Serialize};

use crate::calls::{Calls, Door, Outcome};
use crate::door::FOREVER;
use crate::groups::groups;
use crate::watch::Kind;

/// Extended attributes that kernels ask for by themselves, whoever may read them.
const ASKED_OFTEN: [&[u8]; 2] = [b"security.", b"system.posix_acl_"];

/// A door's end of a session with a server.
pub struct Remote<D: Door> {
    inner: Mutex<Inner<D::Ticket>>,
    door: D,
}

/// Messages of a session, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// Sent: what programs asked for, `forgets` excepted.
    pub requests: u64,
    /// Sent: what is no longer known, many inodes at once.
    pub forgets: u64,
    /// Sent: reads and writes of streams.
    pub streams: u64,
    /// Sent: all others.
    pub others: u64,
    /// Received.
    pub replies: u64,
    pub revocations: u64,
    pub notices: u64,
}

impl Messages {
    fn count(&mut self, message: &FromClient) {
        *match message {
            FromClient::Request { request: Request::ForgetAll { .. }, .. } => &mut self.forgets,
            FromClient::Request { .. } => &mut self.requests,
            FromClient::Stream { .. } => &mut self.streams,
            _ => &mut self.others,
        } += 1;
    }

    fn count_received(&mut self, message: &FromServer) {
        *match message {
            FromServer::Reply { .. } => &mut self.replies,
            FromServer::Revoke { .. } => &mut self.revocations,
            _ => &mut self.notices,
        } += 1;
    }
}

struct Inner<T> {
    client: Client,
    link: Link,
    cache: Cache,
    /// Since when the cache's clock runs.
    started: Instant,
    /// Calls that wait for the server, by the request's number.
    parked: HashMap<RequestId, Parked<T>>,
    /// Calls that wait for a lock, by the number under which they do.
    waits: HashMap<u64, Parked<T>>,
    /// Requests that nobody waits for any more, and that may be done all the same.
    given_up: HashSet<RequestId>,
    sender: Option<Sender<FromClient>>,
    messages: Messages,
    /// Of these the requests and what is done with streams, by [`Kind`].
    kinds: [u64; Kind::ALL.len()],
}

struct Parked<T> {
    /// The door's number of it.
    call_id: u64,
    caller: Caller,
    call: Call<'static>,
    ticket: T,
    sent: Instant,
    /// The caller does not want to wait any longer.
    interrupted: bool,
}

/// What is to be done after the lock is let go.
struct Work<T> {
    out: Vec<FromClient>,
    finished: Vec<Finished<T>>,
}

struct Finished<T> {
    ticket: T,
    result: Result<Answer, Errno>,
    lease: Duration,
}

impl<T> Finished<T> {
    fn new(ticket: T, result: Result<Answer, Errno>) -> Self {
        Self { ticket, result, lease: Duration::ZERO }
    }
}

impl<T> Default for Work<T> {
    fn default() -> Self {
        Self { out: Vec::new(), finished: Vec::new() }
    }
}

impl<D: Door> Remote<D> {
    pub fn new(door: D, cache: Cache) -> Self {
        let inner = Inner {
            client: Client::default(),
            link: Link::default(),
            cache,
            started: Instant::now(),
            parked: HashMap::new(),
            waits: HashMap::new(),
            given_up: HashSet::new(),
            sender: None,
            messages: Messages::default(),
            kinds: [0; Kind::ALL.len()],
        };
        Self { inner: Mutex::new(inner), door }
    }

    /// The incarnation of the server that the session was last in.
    pub fn incarnation(&self) -> Option<u64> {
        self.lock().ok()?.link.incarnation()
    }

    /// What has been sent and received until now.
    pub fn messages(&self) -> Messages {
        self.lock().map(|inner| inner.messages).unwrap_or_default()
    }

    /// What has been asked of the server until now, by operation.
    pub fn asked(&self) -> BTreeMap<String, u64> {
        let kinds = self.lock().map_or([0; Kind::ALL.len()], |inner| inner.kinds);
        let counts = Kind::ALL.iter().map(|kind| (kind.name().into(), kinds[*kind as usize]));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Whether there is a connection, and how many calls wait.
    pub fn state(&self) -> (bool, usize) {
        self.lock().map_or((false, 0), |inner| (inner.sender.is_some(), inner.parked.len()))
    }

    /// Looks at what is cached, at its time. `None` after a panic: what is cached cannot be trusted any more.
    pub fn cached<R>(&self, look: impl FnOnce(&mut Cache, u64) -> R) -> Option<R> {
        let mut inner = self.lock().ok()?;
        let now = inner.now();
        Some(look(&mut inner.cache, now))
    }

    /// A connection has begun.
    pub fn connected(&self, welcome: &Welcome, sender: Sender<FromClient>) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work::default();
        let Begun { distrust, lost, unlocked } = inner.link.connected(welcome, &mut work.out);
        if !unlocked.is_empty() {
            let files = unlocked.len();
            tracing::warn!(
                files,
                "the server has given up this client's locks, for it had not heard of it for too long"
            );
        }
        // Before anybody else sends: a server that was started anew wants to be told first what is held.
        inner.count(&work.out);
        tell(&sender, work.out.drain(..));
        inner.sender = Some(sender);
        for id in lost {
            inner.given_up.remove(&id);
            if let Some(parked) = inner.parked.remove(&id) {
                work.finished.push(Finished::new(parked.ticket, Err(Errno::EIO)));
            }
        }
        // What is told again does not say what it has changed.
        inner.cache.distrust();
        if let Some(inos) = distrust {
            self.door.distrust(&inos);
        }
        self.settle(inner, work);
    }

    pub fn disconnected(&self) {
        let Ok(mut inner) = self.lock() else { return };
        inner.sender = None;
        inner.link.disconnected();
    }

    /// Comes a few times a second: tells the server what it need not know at once.
    pub fn tick(&self) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work::default();
        let now = inner.now();
        inner.cache.expire(now);
        inner.give_up_forgotten(&mut work.out);
        inner.link.tell_forgotten(&mut work.out);
        self.settle(inner, work);
    }

    /// Takes what has come from the server.
    pub fn received(self: &Arc<Self>, messages: impl IntoIterator<Item = FromServer>) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work::default();
        for message in messages {
            inner.messages.count_received(&message);
            match message {
                FromServer::Reply { id, lease_ms, touched, result } => {
                    let lease = Duration::from_millis(lease_ms.into());
                    self.reply(&mut inner, &mut work, id, (lease, touched), result);
                }
                FromServer::AskGroups { id, pid } => {
                    work.out.push(FromClient::Groups { id, groups: groups(pid) });
                }
                // What was answered before must have been told before it is revoked.
                FromServer::Revoke { number, lease } => {
                    inner.cache.revoke(&lease);
                    self.settle(inner, std::mem::take(&mut work));
                    let remote = Arc::clone(self);
                    self.door.revoke(&lease, move || remote.send(FromClient::Revoked { number }));
                    let Ok(locked) = self.lock() else { return };
                    inner = locked;
                }
                FromServer::Locked { wait } => {
                    inner.link.locked(wait);
                    if let Some(parked) = inner.waits.remove(&wait) {
                        work.finished.push(Finished::new(parked.ticket, Ok(Answer::Done)));
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
        inner.give_up_forgotten(&mut work.out);
        self.settle(inner, work);
    }

    /// Tells the server that this client goes, and waits until that is sent.
    pub async fn farewell(&self) {
        let sender = self.lock().ok().and_then(|mut inner| inner.sender.take());
        if let Some(sender) = sender {
            let _ = sender.send(FromClient::Goodbye);
            let _ = sender.close().await;
        }
    }

    fn send(&self, message: FromClient) {
        let Ok(mut inner) = self.lock() else { return };
        inner.messages.count(&message);
        let sender = inner.sender.clone();
        drop(inner);
        if let Some(sender) = sender {
            tell(&sender, [message]);
        }
    }

    fn reply(
        &self,
        inner: &mut Inner<D::Ticket>,
        work: &mut Work<D::Ticket>,
        id: RequestId,
        (lease, touched): (Duration, Touched),
        result: Result<Reply, Errno>,
    ) {
        let parked = inner.parked.remove(&id);
        let over = inner.link.answered(id, &result, parked.is_some(), &mut work.out);
        if let Some(waited) = over.and_then(|wait| inner.waits.remove(&wait)) {
            work.finished.push(Finished::new(waited.ticket, result.map(|_| Answer::Done)));
            return;
        }
        let parked = match parked {
            Some(parked) if result == Ok(Reply::Waits) => {
                if let Call::Request(Request::Lock { wait: Some(wait), .. }) = parked.call {
                    if parked.interrupted {
                        inner.link.stop_waiting(wait, &mut work.out);
                    }
                    inner.waits.insert(wait, parked);
                }
                return;
            }
            parked => parked,
        };
        let now = inner.now();
        // Of what nobody waits for it is not known when it was asked.
        let sent = parked.as_ref().map(|parked| parked.sent.elapsed());
        let lease = sent.map_or(Duration::ZERO, |sent| lease.saturating_sub(sent));
        if let Some(Parked { call_id, caller, call, ticket, .. }) = parked {
            let next = inner.client.reply(&call, result);
            if let Next::Answer(result) = &next {
                inner.cache.answered(&call, result.as_ref().ok(), lease.as_millis() as u64, now);
            }
            advance(inner, work, (call_id, caller, call, ticket), next, lease);
        }
        inner.cache.changed(&touched, lease.as_millis() as u64, now);
        if inner.given_up.remove(&id) {
            // What it has changed was told to nobody.
            inner.cache.distrust();
            let changed = touched.attrs.iter().map(|attr| attr.ino).chain(touched.others);
            self.door.distrust(&changed.collect::<Vec<_>>());
        }
    }

    fn settle(&self, mut inner: MutexGuard<'_, Inner<D::Ticket>>, work: Work<D::Ticket>) {
        inner.count(&work.out);
        let sender = if work.out.is_empty() { None } else { inner.sender.clone() };
        drop(inner);
        if let Some(sender) = sender {
            tell(&sender, work.out);
        }
        for Finished { ticket, result, lease } in work.finished {
            match result {
                Ok(Answer::Bytes(bytes)) => self.door.answer(self, ticket, Ok(Outcome::Data(&bytes)), lease),
                result => self.door.answer(self, ticket, result.map(Outcome::Answer), lease),
            }
        }
    }

    /// Fails after a thread has panicked while it held the machines: what they hold cannot be trusted any more.
    fn lock(&self) -> Result<MutexGuard<'_, Inner<D::Ticket>>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }
}

impl<T> Inner<T> {
    /// In milliseconds, for the cache.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// What the cache knows no longer the server need not know to be known.
    fn give_up_forgotten(&mut self, out: &mut Vec<FromClient>) {
        for (ino, lookups) in self.cache.forgotten() {
            self.link.forget(ino, lookups, out);
        }
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

    fn count(&mut self, out: &[FromClient]) {
        for message in out {
            self.messages.count(message);
            let kind = match message {
                FromClient::Request { request, .. } => Kind::of_request(request),
                FromClient::Stream { io, .. } => Kind::of_stream(io),
                _ => continue,
            };
            self.kinds[kind.0 as usize] += 1;
        }
    }
}

/// What a lost connection does not take any more is sent again by the next.
fn tell(sender: &Sender<FromClient>, messages: impl IntoIterator<Item = FromClient>) {
    let queued = messages.into_iter().try_for_each(|message| sender.queue(message));
    if let Err(error) = queued.and_then(|()| sender.flush()) {
        tracing::debug!(%error, "a message to the server was not sent");
    }
}

/// Leads a call on until it is finished or must wait.
fn advance<T>(
    inner: &mut Inner<T>,
    work: &mut Work<T>,
    (call_id, caller, call, ticket): (u64, Caller, Call<'_>, T),
    next: Next,
    lease: Duration,
) {
    let sent = Instant::now();
    let id = match next {
        Next::Answer(result) => return work.finished.push(Finished { ticket, result, lease }),
        Next::Tell(request, answer) => {
            inner.link.ask(caller, request, &mut work.out);
            return work.finished.push(Finished::new(ticket, Ok(answer)));
        }
        Next::Release(ino) => {
            inner.link.release(ino, &mut work.out);
            return work.finished.push(Finished::new(ticket, Ok(Answer::Done)));
        }
        Next::Ask(request) => inner.link.ask(caller.clone(), request, &mut work.out),
        Next::Stream(io) => {
            let data = match (&call, io) {
                (Call::Write { data, .. }, StreamIo::Write { .. }) => data.to_vec(),
                _ => Vec::new(),
            };
            inner.link.stream(io, data, &mut work.out)
        }
    };
    inner
        .parked
        .insert(id, Parked { call_id, caller, call: call.into_owned(), ticket, sent, interrupted: false });
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
        let mut work = Work::default();
        inner.cache.sent(&call);
        let next = inner.client.start(&call);
        advance(&mut inner, &mut work, (id, caller, call, ticket), next, FOREVER);
        self.settle(inner, work);
    }

    fn forget(&self, requests: impl IntoIterator<Item = Request>) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work::default();
        for request in requests {
            if let Request::Forget { ino, lookups } = request {
                inner.cache.forget(ino, lookups);
            }
        }
        inner.give_up_forgotten(&mut work.out);
        self.settle(inner, work);
    }

    /// While there is no connection nobody can say when an answer would come.
    fn interrupt(&self, call_id: u64) -> bool {
        let Ok(mut guard) = self.lock() else { return true };
        let (mut work, inner) = (Work::default(), &mut *guard);
        let found = inner.parked.iter_mut().find(|(_, parked)| parked.call_id == call_id);
        let (is_known, gone) = if let Some((&id, parked)) = found {
            parked.interrupted = true;
            let gone = if inner.link.cancel(id, &mut work.out) { None } else { inner.parked.remove(&id) };
            inner.given_up.extend(gone.as_ref().map(|_| id));
            (true, gone)
        } else {
            let goes_on = inner.link.stop_waiting(call_id, &mut work.out);
            let is_known = inner.waits.contains_key(&call_id);
            (is_known, if goes_on { None } else { inner.waits.remove(&call_id) })
        };
        work.finished.extend(gone.map(|parked| Finished::new(parked.ticket, Err(Errno::EINTR))));
        self.settle(guard, work);
        is_known
    }

    fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        self.lock().is_ok_and(|inner| inner.link.has_locks(ino, owner))
    }

    fn unlock(&self, ino: Ino, owner: LockOwner) {
        let Ok(mut inner) = self.lock() else { return };
        let mut work = Work::default();
        let request = Request::Unlock { ino, owner, first: 0, last: u64::MAX };
        inner.link.ask(Caller::SERVER, request, &mut work.out);
        self.settle(inner, work);
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
