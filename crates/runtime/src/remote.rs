//! Executes a frontend's calls on a cluster: the client's state machine with its lock and
//! connections.
//!
//! The thread that makes a call sends its first request; the task that receives a reply advances
//! the call and answers it. `direct.rs` handles data servers.

mod direct;
mod line;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use espalier_client::{Actions, Answer, Cache, Call, FrontendEvent, IncomingCall, Interrupt, Sessions};
use espalier_net::Sender;
use espalier_proto::{
    Caller, Errno, FromClient, FromServer, Ino, Layout, LockOwner, Rank, Request, RequestId, Welcome,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::caller::groups;
use crate::calls::{CallOutcome, Calls, Frontend};
use crate::data::ClientPool;
use crate::servers::{Servers, rank_count};
use crate::tracer::{NodeId, Tracer, place_of};
use crate::watch::Kind;
use direct::Direct;
pub use line::Messages;
use line::ServerLine;

/// Time limit at unmount for pending write-back operations. Without a connection no session lasts
/// longer.
const PATIENCE: Duration = Duration::from_secs(60);
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);
/// Time limit for ending the sessions at the servers.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A frontend's sessions with the metadata servers of a cluster.
pub struct Remote<D: Frontend> {
    /// Held while a server's messages are processed; acquired before `inner`. It keeps the replies
    /// of two ranks about a name and its inode together, before either can be revoked.
    receiving: Mutex<()>,
    inner: Mutex<Inner<Called<D::Ticket>>>,
    frontend: D,
    tracer: Arc<Tracer>,
    direct: Direct,
    /// Number of metadata servers, as far as this client has heard.
    ranks: watch::Sender<usize>,
    own: Weak<Self>,
}

/// A call: its number, and the frontend's ticket.
#[derive(Debug)]
pub struct Called<T> {
    id: u64,
    ticket: T,
}

/// State of a session with a server.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SessionState {
    pub connected: bool,
    /// Number of calls that wait for the server.
    pub waiting: usize,
    pub messages: Messages,
}

/// Messages to send, and the connections to send them over.
struct Addressed {
    messages: Vec<(Rank, FromClient)>,
    senders: SmallVec<[(Rank, Sender<FromClient>); 1]>,
}

struct Inner<T> {
    sessions: Sessions<T>,
    /// Origin of the machine's clock.
    started: Instant,
    /// Connections by rank, of those that were heard of.
    lines: Vec<ServerLine>,
    /// Operations on data servers in progress, by number.
    tasks: HashMap<u64, AbortHandle>,
}

impl<D: Frontend> Remote<D> {
    /// Creates the sessions for the cluster of the server that sent `first`. Requests to data
    /// servers use `servers`, in tasks of the current runtime. `pool`: the data pool, if this
    /// client uses it.
    pub fn new(
        frontend: D,
        cache: Cache,
        servers: &Servers,
        first: &Welcome,
        pool: Option<ClientPool>,
    ) -> Arc<Self> {
        let ranks = rank_count(first);
        let mut sessions = Sessions::new(cache, ranks, frontend.is_checked());
        if !frontend.uses_writeback() {
            sessions.wait_for_servers();
        }
        sessions.set_root(first.root);
        sessions.set_data_pool(pool.is_some());
        let inner = Inner {
            sessions,
            started: Instant::now(),
            lines: (0..ranks).map(|_| ServerLine::default()).collect(),
            tasks: HashMap::new(),
        };
        let tracer = Tracer::new(place_of(servers.client));
        let direct = Direct::new(servers, pool, &tracer);
        Arc::new_cyclic(|own| Self {
            receiving: Mutex::default(),
            inner: Mutex::new(inner),
            frontend,
            tracer,
            direct,
            ranks: watch::Sender::new(ranks),
            own: Weak::clone(own),
        })
    }

    /// The number of metadata servers, and each change of it.
    pub fn ranks_heard(&self) -> watch::Receiver<usize> {
        self.ranks.subscribe()
    }

    /// The server incarnation of the present session; `None`: no session.
    pub fn incarnation(&self, rank: Rank) -> Option<u64> {
        self.lock().ok()?.sessions.incarnation(rank)
    }

    /// State of the sessions, by rank.
    pub fn sessions(&self) -> Vec<SessionState> {
        let Ok(inner) = self.lock() else { return Vec::new() };
        let state = |(number, line): (usize, &ServerLine)| SessionState {
            connected: line.sender.is_some(),
            waiting: inner.sessions.waiting(Rank(number as u16)),
            messages: line.messages,
        };
        inner.lines.iter().enumerate().map(state).collect()
    }

    /// Counts of messages sent and received.
    pub fn messages(&self) -> Messages {
        self.sessions().iter().fold(Messages::default(), |sum, session| sum.plus(session.messages))
    }

    /// Counts of requests to servers, by operation.
    pub fn asked(&self) -> BTreeMap<String, u64> {
        let Ok(inner) = self.lock() else { return BTreeMap::new() };
        let count = |kind: &Kind| inner.lines.iter().map(|line| line.kinds[*kind as usize]).sum();
        let counts = Kind::ALL.iter().map(|kind| (kind.name().into(), count(kind)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Accesses the cache at the present time. `None` after a panic: the cache is unreliable then.
    pub fn cached<R>(&self, look: impl FnOnce(&mut Sessions<Called<D::Ticket>>, u64) -> R) -> Option<R> {
        let mut inner = self.lock().ok()?;
        let now = inner.now();
        Some(look(&mut inner.sessions, now))
    }

    /// Handles a new connection to a server.
    pub fn connected(&self, rank: Rank, welcome: &Welcome, sender: Sender<FromClient>) {
        let _receive_guard = self.receive();
        let Ok(mut inner) = self.lock() else { return };
        self.direct.learn(&welcome.servers);
        let mut actions = Actions::default();
        let now = inner.now();
        inner.sessions.connected(now, rank, welcome, &mut actions);
        if let Some(line) = inner.lines.get_mut(usize::from(rank.0)) {
            line.sender = Some(sender);
        }
        // Before other threads send: a restarted server must receive the reclaims first.
        send(inner.address(&mut actions, &self.tracer));
        self.carry_out(inner, actions);
    }

    /// Handles the end of a session by the server.
    pub fn ended(&self, rank: Rank) {
        let _receive_guard = self.receive();
        self.with_machine(|sessions, now, actions| sessions.ended(now, rank, actions));
    }

    pub fn disconnected(&self, rank: Rank) {
        let Ok(mut inner) = self.lock() else { return };
        if let Some(line) = inner.lines.get_mut(usize::from(rank.0)) {
            line.sender = None;
        }
        inner.sessions.disconnected(rank);
    }

    /// Called several times per second: sends notifications that were queued.
    pub fn tick(&self) {
        self.with_machine(|sessions, now, actions| sessions.tick(now, self.is_stuck(), actions));
    }

    /// Processes messages from a server.
    pub fn received(&self, rank: Rank, messages: impl IntoIterator<Item = FromServer>) {
        let _receive_guard = self.receive();
        let Ok(mut inner) = self.lock() else { return };
        let (mut actions, now) = (Actions::default(), inner.now());
        for message in messages {
            if let Some(line) = inner.lines.get_mut(usize::from(rank.0)) {
                line.count_received(&message);
            }
            if let FromServer::Reply { id, .. } = &message {
                self.tracer.end(self.tracer.request_id(NodeId::Rank(rank.0), id.0));
            }
            inner.sessions.received(now, rank, message, &mut actions);
        }
        self.carry_out(inner, actions);
    }

    /// Waits for pending write-back operations, and ends the sessions.
    pub async fn close(&self) {
        let left = || self.cached(|sessions, _| sessions.unanswered_changes()).unwrap_or(0);
        let drained = async {
            while left() > 0 {
                tokio::time::sleep(DRAIN_INTERVAL).await;
            }
        };
        if tokio::time::timeout(PATIENCE, drained).await.is_err() {
            tracing::error!(
                changes = left(),
                "acknowledged operations were not confirmed by any server and may be lost"
            );
        }
        if tokio::time::timeout(CLOSE_LIMIT, self.end_sessions()).await.is_err() {
            tracing::warn!("cannot end the session at a server; it will expire");
        }
    }

    async fn end_sessions(&self) {
        self.direct.close().await;
        let senders = self.lock().map(|mut inner| {
            inner.lines.iter_mut().filter_map(|line| line.sender.take()).collect::<Vec<_>>()
        });
        let senders = senders.unwrap_or_default();
        for sender in &senders {
            let _ = sender.send(FromClient::Goodbye);
        }
        for sender in senders {
            let _ = sender.close().await;
        }
    }

    fn with_machine<R>(
        &self,
        run: impl FnOnce(&mut Sessions<Called<D::Ticket>>, u64, &mut Actions<Called<D::Ticket>>) -> R,
    ) -> Option<R> {
        let mut inner = self.lock().ok()?;
        let (mut actions, now) = (Actions::default(), inner.now());
        let result = run(&mut inner.sessions, now, &mut actions);
        self.carry_out(inner, actions);
        Some(result)
    }

    /// Executes the actions.
    fn carry_out(
        &self,
        mut inner: MutexGuard<'_, Inner<Called<D::Ticket>>>,
        mut actions: Actions<Called<D::Ticket>>,
    ) {
        let ranks = inner.sessions.ranks();
        if ranks > inner.lines.len() {
            inner.lines.resize_with(ranks, ServerLine::default);
            self.ranks.send_replace(ranks);
        }
        // Attributes are invalidated before the call continues and before its answer.
        for event in &actions.frontend {
            match event {
                FrontendEvent::Changed(inos) => self.frontend.changed(inos),
                FrontendEvent::PrivilegesRemoved(ino) => self.frontend.privileges_removed(*ino),
                _ => {}
            }
        }
        let addressed = inner.address(&mut actions, &self.tracer);
        self.ask_data_servers(&mut inner, actions.data);
        for number in actions.abandoned {
            if let Some(task) = inner.tasks.remove(&number) {
                task.abort();
            }
        }
        drop(inner);
        send(addressed);
        actions.frontend.into_iter().for_each(|event| self.notify_frontend(event));
    }

    fn notify_frontend(&self, event: FrontendEvent<Called<D::Ticket>>) {
        match event {
            FrontendEvent::Answer { ticket: Called { id, ticket }, result, lease_ms } => {
                self.tracer.end(self.tracer.served(self.tracer.place(), id));
                self.answer(ticket, result, lease_ms);
            }
            FrontendEvent::Revoke { rank, number, lease, is_own } => {
                let (remote, other) = (Weak::clone(&self.own), Weak::clone(&self.own));
                let blocked = move || {
                    if let Some(remote) = other.upgrade() {
                        remote.with_machine(|sessions, _, actions| sessions.blocked(rank, number, actions));
                    }
                };
                self.frontend.revoke(&lease, is_own, blocked, move || {
                    if let Some(remote) = remote.upgrade() {
                        remote.with_machine(|sessions, _, actions| sessions.revoked(rank, number, actions));
                    }
                });
            }
            FrontendEvent::DistrustNames => self.frontend.distrust_names(),
            FrontendEvent::Distrust { names, inos } => self.frontend.distrust(names, &inos),
            FrontendEvent::Recall { recalls, removed } => self.frontend.recall(&recalls, &removed),
            // Handled above.
            FrontendEvent::Changed(_) | FrontendEvent::PrivilegesRemoved(_) => {}
            FrontendEvent::Groups { rank, id, pid } => self.send_groups(rank, id, pid),
            FrontendEvent::Failed { dir, name: Some(name), errno, .. } => tracing::warn!(
                dir = dir.0,
                name = %String::from_utf8_lossy(&name),
                %errno,
                "an acknowledged create or remove has failed"
            ),
            FrontendEvent::Failed { ino, name: None, errno, .. } => tracing::warn!(
                ino = ino.0,
                %errno,
                "an acknowledged write has failed"
            ),
            FrontendEvent::Unlocked(files) => tracing::warn!(
                files,
                "the server has dropped this client's locks, because the session timed out"
            ),
        }
    }

    fn answer(&self, ticket: D::Ticket, result: Result<Answer, Errno>, lease_ms: u64) {
        let lease = Duration::from_millis(lease_ms);
        match result {
            Ok(Answer::Bytes(bytes)) => {
                self.frontend.answer(self, ticket, Ok(CallOutcome::Data(&bytes)), lease)
            }
            result => self.frontend.answer(self, ticket, result.map(CallOutcome::Answer), lease),
        }
    }

    fn send_groups(&self, rank: Rank, id: RequestId, pid: u32) {
        let groups = groups(pid);
        self.with_machine(|sessions, _, actions| sessions.groups(rank, id, groups, actions));
    }

    fn is_stuck(&self) -> impl Fn(&Layout) -> bool {
        |layout| self.direct.is_stuck(layout)
    }

    /// Ignores poisoning: the mutex guards no data that a panic could leave inconsistent.
    fn receive(&self) -> MutexGuard<'_, ()> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails after a panic under the lock: the machine's state is unreliable then.
    fn lock(&self) -> Result<MutexGuard<'_, Inner<Called<D::Ticket>>>, Errno> {
        self.inner.lock().map_err(|_| Errno::EIO)
    }
}

impl<T> Inner<T> {
    /// The machine's clock, in ms.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Collects the messages to send and their connections.
    fn address(&mut self, actions: &mut Actions<T>, tracer: &Tracer) -> Addressed {
        let (messages, mut senders) = (mem::take(&mut actions.send), SmallVec::<[(Rank, _); 1]>::new());
        for (rank, message) in &messages {
            let Some(line) = self.lines.get_mut(usize::from(rank.0)) else { continue };
            line.count_sent(message);
            if let (true, Some((id, kind))) = (tracer.is_on(), message.asks()) {
                let call = self.sessions.call_of(*rank, id).map(|call| tracer.served(tracer.place(), call));
                let id = tracer.request_id(NodeId::Rank(rank.0), id.0);
                tracer.begin(id, kind.name(), || call.into_iter().collect());
            }
            if let Some(sender) = &line.sender
                && senders.iter().all(|(to, _)| to != rank)
            {
                senders.push((*rank, sender.clone()));
            }
        }
        Addressed { messages, senders }
    }
}

/// Messages that a lost connection does not accept are repeated over the next.
fn send(Addressed { messages, senders }: Addressed) {
    let lost = |error| tracing::debug!(%error, "cannot send a message to a server");
    for (rank, message) in messages {
        if let Some((_, sender)) = senders.iter().find(|(to, _)| *to == rank) {
            sender.queue(message).unwrap_or_else(lost);
        }
    }
    for (_, sender) in senders {
        sender.flush().unwrap_or_else(lost);
    }
}

impl<D: Frontend> Calls<D> for Remote<D> {
    fn call(&self, id: u64, caller: Caller, call: Call<'_>, ticket: D::Ticket) {
        // Delivering a listing locks the machine; meanwhile no other message may be processed.
        let receiving = matches!(call, Call::Request(Request::ReadDir { .. })).then(|| self.receive());
        let mut inner = match self.lock() {
            Ok(inner) => inner,
            Err(errno) => return self.frontend.answer(self, ticket, Err(errno), Duration::ZERO),
        };
        let mut now = inner.now();
        let called = self.tracer.served(self.tracer.place(), id);
        self.tracer.begin(called, call.kind().name(), Vec::new);
        let mut answered = inner.sessions.answer(now, &caller, &call);
        if answered.is_none() && inner.sessions.rights_of_contended(now, &call).is_some() {
            // Looking the caller up may sleep.
            drop(inner);
            let only_checks = self.frontend.only_checks(&caller);
            inner = match self.lock() {
                Ok(inner) => inner,
                Err(errno) => return self.frontend.answer(self, ticket, Err(errno), Duration::ZERO),
            };
            now = inner.now();
            let attr = inner.sessions.rights_of_contended(now, &call).filter(|_| only_checks);
            answered = attr.map(|attr| (Ok(Answer::Attr(attr)), 0));
        }
        if let Some((answer, lease_ms)) = answered {
            self.tracer.end(called);
            // Under the lock, so that it cannot be revoked before it is answered. Exempt are reads,
            // which may be repeated, and whose revocation waits for the page that they fill.
            if receiving.is_some() || matches!(answer, Ok(Answer::Bytes(_))) {
                drop(inner);
            }
            return self.answer(ticket, answer, lease_ms);
        }
        let mut actions = Actions::default();
        inner.sessions.call(
            now,
            IncomingCall { call_id: id, caller, call, ticket: Called { id, ticket } },
            &mut actions,
        );
        self.carry_out(inner, actions);
    }

    fn ranks(&self) -> usize {
        // Ranks that have never connected have acknowledged nothing.
        let last = self.lock().ok().and_then(|inner| inner.sessions.needed().last());
        last.map_or(0, |rank| usize::from(rank.0) + 1)
    }

    fn forget(&self, requests: impl IntoIterator<Item = Request>) {
        self.with_machine(|sessions, _, actions| {
            for request in requests {
                if let Request::Forget { ino, lookups } = request {
                    sessions.forget(ino, lookups);
                }
            }
            sessions.send_forgets(actions);
        });
    }

    fn interrupt(&self, call_id: u64, dies: impl Fn(u32) -> bool) -> Interrupt {
        self.with_machine(|sessions, _, actions| sessions.interrupt(call_id, dies, self.is_stuck(), actions))
            .unwrap_or(Interrupt::Heard)
    }

    fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        self.lock().is_ok_and(|inner| inner.sessions.has_locks(ino, owner))
    }

    fn must_flush(&self, ino: Ino, owner: LockOwner) -> bool {
        self.lock()
            .is_ok_and(|inner| inner.sessions.has_locks(ino, owner) || inner.sessions.has_write_behind(ino))
    }

    fn unlock(&self, ino: Ino, owner: LockOwner) {
        self.with_machine(|sessions, _, actions| sessions.unlock(ino, owner, actions));
    }

    fn stream_file(&self, _: Ino) -> Option<Arc<File>> {
        None
    }

    fn pass_through(&self) {}

    fn without_passthrough(&self, _: Ino) {}

    fn open_dir(&self, dir: Ino) -> Option<bool> {
        self.cached(|sessions, now| sessions.open_dir(now, dir)).flatten()
    }

    fn close_dir(&self, dir: Ino) {
        self.cached(|sessions, _| sessions.close_dir(dir));
    }

    fn frontend(&self) -> &D {
        &self.frontend
    }
}
