//! Sessions: the server's state of each client. While one lasts, a request that is sent again is
//! executed once. A silent session expires, and its lookups and opens are released.
//!
//! An embedded machine ([`Config::session_ms`](crate::Config) is `None`) has no sessions.

mod audit;
mod completed;
mod data;
mod ends;
mod forwarded;
mod lifetime;
mod order;
mod persisted;
mod recall;
mod reclaim;
mod reclaim_token;
mod restart;
mod subtree;
mod unused;
mod writers;

pub use audit::Holding;
pub use completed::CompletedOutcome;
pub use persisted::is_sound_record;
pub(crate) use persisted::{PersistedKey, PersistedSession, given_below};
pub(crate) use reclaim::{Moved, Reclaimed};
pub(crate) use reclaim_token::TokenKind;
pub(crate) use unused::Unused;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    Access, Accesses, ClientId, Errno, Ino, Opened, Rank, Recall, Reply, Request, RequestId, SetAttr,
    StreamIo, Touched,
};

use crate::event::Event;
use crate::lease::PreparedGrant;
use crate::machine::Meta;
use crate::outbox::{Answered, Now, Outbox};
use crate::progress::Progress::Append;
use crate::state::FxMap;
use crate::task::Task;

/// Maximum distance of a request's number from the first unacknowledged one.
const WINDOW: u64 = 1024;
/// Maximum number of requests, reclaim requests included.
const MAX_REQUESTS: u64 = 16 * WINDOW;
/// Approximate bound on the answers stored for a client, in bytes.
const WINDOW_BYTES: usize = 1 << 20;

/// Volatile state of all sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    clients: FxMap<ClientId, SessionState>,
    /// Unlinked inodes that clients other than the unlinker still cache; they are recalled.
    pub recalls: Vec<Recall>,
    /// The clients that left most recently; empty on a single rank.
    pub left: VecDeque<ClientId>,
    /// Files that clients are making (carns III.A); nobody can have written to them.
    pub making: BTreeSet<Ino>,
    /// Files whose last name was removed by a client that removes the datafiles itself.
    pub removing: BTreeMap<Ino, ClientId>,
    /// Holds of ended sessions that remain to be released.
    abandoned: VecDeque<(Ino, Hold)>,
    /// A release of abandoned holds is in progress.
    releasing: bool,
    /// Number of sessions from before the restart that have not finished reclaiming.
    awaited: usize,
    /// Sessions as data servers know them.
    data: data::DataSessions,
    /// Uptime at which the machine started, as of its first tick; milliseconds.
    began_ms: Option<u64>,
    /// Locks on the ends of files.
    pub ends: ends::Ends,
    pub order: order::RequestOrder,
    /// All leases from before the restart have expired.
    leases_over: bool,
    /// Orphans that no client has reclaimed; freed at the end of the grace period.
    unreclaimed: BTreeSet<Ino>,
}

impl SessionTable {
    pub(crate) fn set_accesses(&mut self, client: ClientId, accesses: Accesses) {
        if let Some(session) = self.clients.get_mut(&client) {
            session.accesses = accesses;
        }
    }

    /// The client's accesses that update access times.
    pub(crate) fn accesses(&self, client: ClientId) -> Accesses {
        self.clients.get(&client).map_or(Accesses::All, |session| session.accesses)
    }
}

#[derive(Debug, Default)]
struct SessionState {
    /// Uptime at which the client was last heard; `None`: not since the restart.
    heard_ms: Option<u64>,
    /// A connection of the client waits for the journal; until then the client sends nothing.
    connecting: bool,
    /// The client has the answers to all requests before this one.
    below: RequestId,
    requests: BTreeMap<RequestId, RequestState>,
    /// Approximate size of the stored answers, in bytes.
    bytes: usize,
    held: FxMap<Ino, Hold>,
    /// The only subtree that the client may use; `None`: no restriction.
    root: Option<Ino>,
    /// The client's rights at data servers.
    reach: data::Reach,
    accesses: Accesses,
    /// The client has ended its session.
    left: bool,
    /// The client has not finished reclaiming since the restart.
    awaited: bool,
    /// For each rank that has forwarded requests: the client has the answers to all before this
    /// one.
    forwarded_below: BTreeMap<Rank, RequestId>,
    /// Holds given by answers from before the restart that the client may not have received.
    reserved: BTreeMap<RequestId, (Ino, Hold)>,
}

/// State of a request.
#[derive(Debug)]
enum RequestState {
    Running,
    /// The answer waits for the journal.
    Executed,
    Answered(Result<Reply, Errno>),
    /// The answer is not stored, since the request can be executed again. It counted lookups of
    /// these inodes.
    Rerunnable(Vec<Ino>),
}

/// A client's share of an inode's counts in [`Cached`](crate::state::Cached).
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    lookups: u64,
    opens: u32,
    /// The client has the inode open, and has opened it for writing since it was last closed.
    writes: bool,
    /// The client announces its writes to the inode.
    announces: bool,
}

impl Hold {
    const LOOKUP: Self = Self { lookups: 1, opens: 0, writes: false, announces: false };
    const OPENING: Self = Self { lookups: 0, opens: 1, writes: false, announces: false };
    const MADE: Self = Self { lookups: 0, opens: 1, writes: true, announces: false };
}

impl SessionState {
    fn hold(&mut self, ino: Ino, hold: Hold) {
        let held = self.held.entry(ino).or_default();
        held.lookups = held.lookups.saturating_add(hold.lookups);
        held.opens = held.opens.saturating_add(hold.opens);
        if hold.writes {
            // Until it receives this answer, a client that writes already does not announce.
            held.announces = hold.announces && (held.announces || !held.writes);
        }
        held.writes |= hold.writes;
    }

    fn opens(&self, ino: Ino) -> u32 {
        self.held.get(&ino).map_or(0, |hold| hold.opens)
    }

    fn writes(&self, ino: Ino) -> bool {
        self.held.get(&ino).is_some_and(|hold| hold.writes)
    }

    /// Removes at most `wanted` from the client's hold on `ino`. Returns what was removed.
    fn release_held(&mut self, ino: Ino, wanted: Hold) -> Hold {
        let Some(held) = self.held.get_mut(&ino) else { return Hold::default() };
        let (lookups, opens) = (wanted.lookups.min(held.lookups), wanted.opens.min(held.opens));
        let taken = Hold { lookups, opens, writes: held.writes, announces: held.announces };
        held.lookups -= taken.lookups;
        held.opens -= taken.opens;
        held.writes &= held.opens > 0;
        held.announces &= held.writes;
        if held.lookups == 0 && held.opens == 0 {
            self.held.remove(&ino);
        }
        taken
    }

    fn is_busy(&self) -> bool {
        self.requests.values().any(RequestState::is_under_way)
    }
}

impl RequestState {
    fn is_under_way(&self) -> bool {
        matches!(self, Self::Running | Self::Executed)
    }
}

impl Meta {
    /// Runs a client's request unless it has been executed before. A request can release only what
    /// its session holds.
    pub(crate) fn admit(
        &mut self,
        now: Now,
        task: Task,
        (below, follows): (RequestId, Vec<RequestId>),
        out: &mut Outbox,
    ) {
        let reclaims = matches!(task.request, Request::Reclaim { .. } | Request::ReclaimLocks { .. });
        if self.begin(now, (task.from, task.id), below, reclaims, out) {
            self.begin_after(now, follows, task, out);
        }
    }

    /// Begins an admitted request.
    fn begin_task(&mut self, now: Now, mut task: Task, out: &mut Outbox) {
        let (from, id) = (task.from, task.id);
        let persisted = self.state.sessions.get(&from).and_then(|persisted| persisted.completed.get(&id));
        match (persisted, &mut task.request) {
            (Some(CompletedOutcome::Appending { offset, .. }), Request::Write { data, .. }) => {
                let (offset, bytes) = (*offset, core::mem::take(data));
                task.progress = Append { offset, bytes };
            }
            (persisted, _) => task.again = persisted.cloned().map(Box::new),
        }
        if task.again.is_some() || self.take_released(now, (from, id), &mut task.request, out) {
            self.run(now, task, None, out);
        }
    }

    /// Registers a stream request, which bypasses the machine. Returns true if it must be executed
    /// now; then [`Self::end_stream`] must follow. Returns false if it has been executed or is in
    /// progress. Its answer is stored as those of requests are, but is lost when the machine ends.
    pub fn begin_stream(
        &mut self,
        now: Now,
        of: (ClientId, RequestId),
        below: RequestId,
        out: &mut Outbox,
    ) -> bool {
        self.begin(now, of, below, false, out)
    }

    /// Stores the answer of a stream request. Returns true if it must be sent to the client.
    pub fn end_stream(&mut self, of: (ClientId, RequestId), result: &Result<Reply, Errno>) -> bool {
        self.remember(of, result)
    }

    /// Registers a request. Returns true if it must be executed now; otherwise answers it, if it
    /// has an answer or cannot be executed.
    fn begin(
        &mut self,
        now: Now,
        (from, id): (ClientId, RequestId),
        below: RequestId,
        reclaims: bool,
        out: &mut Outbox,
    ) -> bool {
        let mut reply_with = |result| {
            out.replies.push(Answered { to: from, id, result, lease_ms: 0, touched: Touched::default() });
            false
        };
        let Some(session) = self.sessions.clients.get_mut(&from) else {
            return reply_with(Err(Errno::ESTALE));
        };
        (session.heard_ms, session.left) = (Some(now.uptime_ms), false);
        if session.awaited && !reclaims {
            // The request may concern an inode that the client has not reclaimed.
            return reply_with(Err(Errno::EAGAIN));
        }
        session.acknowledge(below);
        let session_below = session.below_of(id);
        if id < session_below {
            // A late duplicate: the client has its answer.
            return false;
        }
        // Reclaim requests precede older requests, and there may be many.
        let is_beyond = match id.origin() {
            _ if reclaims => session.requests.len() as u64 >= MAX_REQUESTS,
            None => id.0 - session_below.0 >= WINDOW,
            Some(_) => session.requests.range(id.first_of_origin()..id).count() as u64 >= WINDOW,
        };
        match session.requests.get_mut(&id) {
            Some(RequestState::Running | RequestState::Executed) => return false,
            Some(RequestState::Answered(result)) => return reply_with(result.clone()),
            Some(progress @ RequestState::Rerunnable(_)) => {
                if let RequestState::Rerunnable(inos) = core::mem::replace(progress, RequestState::Running) {
                    for ino in inos {
                        let released = session.release_held(ino, Hold::LOOKUP);
                        self.sessions.abandoned.push_back((ino, released));
                    }
                }
            }
            None if is_beyond || session.bytes >= WINDOW_BYTES => return reply_with(Err(Errno::EAGAIN)),
            None => drop(session.requests.insert(id, RequestState::Running)),
        }
        while let Some(first) = session.reserved.first_entry()
            && *first.key() < session.below
        {
            let (ino, hold) = first.remove();
            let unwanted = session.release_held(ino, hold);
            self.sessions.abandoned.push_back((ino, unwanted));
        }
        true
    }

    /// Removes from the session what a request releases. Answers requests that release nothing, and
    /// requests about the session itself. Returns true if the operation must run.
    fn take_released(
        &mut self,
        now: Now,
        (from, id): (ClientId, RequestId),
        request: &mut Request,
        out: &mut Outbox,
    ) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&from) else { return false };
        if let Err(errno) = session.permits((self.config.rank, self.config.ranks), request) {
            self.answer(now, (from, id), Err(errno), &PreparedGrant::default(), out);
            return false;
        }
        let result = match request {
            Request::Forget { ino, lookups } => {
                *lookups = session.release_held(*ino, Hold { lookups: *lookups, ..Hold::default() }).lookups;
                if *lookups > 0 { return true } else { Ok(Reply::Done) }
            }
            Request::ForgetAll { inodes, released } => {
                released.retain(|ino| {
                    let taken = session.release_held(*ino, Hold::OPENING);
                    if session.opens(*ino) == 0 {
                        self.locks.close(from, *ino);
                    }
                    taken.opens > 0
                });
                for (ino, lookups) in inodes.iter_mut() {
                    *lookups =
                        session.release_held(*ino, Hold { lookups: *lookups, ..Hold::default() }).lookups;
                }
                return true;
            }
            Request::Release { ino } => {
                let taken = session.release_held(*ino, Hold::OPENING);
                if session.opens(*ino) == 0 {
                    self.locks.close(from, *ino);
                }
                if taken.opens > 0 { return true } else { Ok(Reply::Done) }
            }
            Request::Reclaim { held, last, again } => {
                let result = self.reclaim(now, from, held, *last, out);
                if *last {
                    self.reclaimed_forwarded(from, again);
                    // Only requests that the client repeats may still be executed.
                    self.unlock_ends(now, |(by, id)| by == from && again.binary_search(&id).is_err(), out);
                }
                result
            }
            Request::ReclaimLocks { locks } => {
                if session.awaited {
                    self.reclaim_locks(from, locks);
                }
                Ok(Reply::Done)
            }
            // Permissions were checked at open.
            Request::Read { ino, .. }
            | Request::Write { ino, .. }
            | Request::Allocate { ino, .. }
            | Request::RemovePrivileges { ino }
            | Request::Seek { ino, .. }
            | Request::Extend { ino, .. }
            | Request::Delegate { ino, .. }
            | Request::LeaseData { ino }
            | Request::SetAttr { ino, set: SetAttr { through_handle: true, .. } }
                if session.opens(*ino) == 0 =>
            {
                Err(Errno::EBADF)
            }
            _ if request.writes().is_some_and(|ino| !session.writes(ino)) => Err(Errno::EBADF),
            // Requests that only the machine itself may issue.
            _ if request.is_internal() => Err(Errno::EINVAL),
            _ => return true,
        };
        self.answer(now, (from, id), result, &PreparedGrant::default(), out);
        false
    }

    /// Records the end of an operation: what its answer gives the client and, if it has changed
    /// anything, its outcome in the journal.
    pub(crate) fn note(&mut self, task: &Task, result: &Result<Reply, Errno>) {
        let Some(session) = self.sessions.clients.get_mut(&task.from) else { return };
        if let Some(progress) = session.requests.get_mut(&task.id) {
            *progress = RequestState::Executed;
            self.sessions.order.executed((task.from, task.id));
        }
        if task.again.is_some() {
            if let Some((ino, hold)) = session.reserved.remove(&task.id)
                && result.is_err()
            {
                let unwanted = session.release_held(ino, hold);
                self.sessions.abandoned.push_back((ino, unwanted));
            }
            return;
        }
        each_given(&task.request, result, |ino, hold| session.hold(ino, hold));
        if task.changed.is_some() || matches!(result, Ok(Reply::Forwarded { .. })) {
            let location = |ino: &Ino| self.state.inodes.get(ino).map(|cached| cached.reported_location());
            let location = if let Request::Open { ino, .. } = &task.request { location(ino) } else { None };
            if let Some(outcome) = CompletedOutcome::of(&task.request, result, location) {
                self.journal_outcome((task.from, task.id), outcome);
            }
        }
    }

    pub(crate) fn journal_outcome(&mut self, (client, id): (ClientId, RequestId), outcome: CompletedOutcome) {
        if let Some(session) = self.sessions.clients.get(&client)
            && !self.config.read_only
        {
            let below = session.below_of(id);
            self.append_loaded(&Event::Completed { client, id, below, outcome });
        }
    }

    /// Stores an answer as it leaves, until the client acknowledges it. Returns false if the
    /// session or the request has ended.
    pub(crate) fn remember(
        &mut self,
        (to, id): (ClientId, RequestId),
        result: &Result<Reply, Errno>,
    ) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&to) else { return false };
        let Some(progress) = session.requests.get_mut(&id) else { return false };
        self.sessions.order.executed((to, id));
        *progress = match result {
            // The awaited lock may have been granted meanwhile.
            Ok(Reply::Bytes(_) | Reply::Waits) => RequestState::Rerunnable(Vec::new()),
            Ok(Reply::Listing { entries, .. }) => {
                let released = entries.iter().filter(|entry| entry.entry.is_some());
                RequestState::Rerunnable(released.map(|entry| entry.ino).collect())
            }
            _ => {
                session.bytes += weight(result);
                RequestState::Answered(result.clone())
            }
        };
        session.acknowledge(session.below);
        true
    }

    /// Checks that a client has the files of a stream request open, for writing where it writes.
    ///
    /// # Errors
    /// `EBADF` if it has not.
    pub fn may_stream(&self, client: ClientId, io: &StreamIo) -> Result<(), Errno> {
        let is_open = |ino| self.opens_of(client, ino) > 0;
        let all_open = is_open(io.ino) && io.op.source().is_none_or(is_open);
        let session = self.sessions.clients.get(&client);
        let may_write = |ino| session.is_some_and(|session| session.writes(ino));
        if all_open && io.writes().is_none_or(may_write) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// True if a request of the client is in progress and will be answered.
    pub fn is_under_way(&self, client: ClientId, id: RequestId) -> bool {
        let session = self.sessions.clients.get(&client);
        session.and_then(|session| session.requests.get(&id)).is_some_and(RequestState::is_under_way)
    }

    /// True if the client has looked up the inode and not forgotten it, or it is the client's root.
    pub fn knows(&self, client: ClientId, ino: Ino) -> bool {
        let session = self.sessions.clients.get(&client);
        session.is_some_and(|session| {
            ino == session.root.unwrap_or(Ino::ROOT) || session.held.contains_key(&ino)
        })
    }

    /// The client's number of opens of an inode, as far as answers have been sent.
    pub(crate) fn opens_of(&self, client: ClientId, ino: Ino) -> u32 {
        self.sessions.clients.get(&client).map_or(0, |session| session.opens(ino))
    }
}

/// Calls `give` with what an answer gives to its client.
fn each_given(request: &Request, result: &Result<Reply, Errno>, mut give: impl FnMut(Ino, Hold)) {
    match (request, result) {
        (_, Ok(Reply::Entry(entry))) => give(entry.attr.ino, Hold::LOOKUP),
        (_, Ok(Reply::Unmeasured(released, _))) => match &**released {
            Reply::Entry(entry) => give(entry.attr.ino, Hold::LOOKUP),
            Reply::Created(entry, _) => give(entry.attr.ino, Hold { lookups: 1, ..Hold::MADE }),
            _ => {}
        },
        (_, Ok(Reply::Made(made))) => give(made.ino, Hold::MADE),
        (_, Ok(Reply::Created(entry, opened))) => {
            give(entry.attr.ino, Hold { lookups: 1, ..opening(request, opened) });
        }
        (_, Ok(Reply::Listing { entries, .. })) => {
            for entry in entries.iter().filter(|entry| entry.entry.is_some()) {
                give(entry.ino, Hold::LOOKUP);
            }
        }
        (Request::Open { ino, .. }, Ok(Reply::Opened(opened) | Reply::OpenedWhole(opened, _))) => {
            give(*ino, opening(request, opened));
        }
        // A failed release returns the hold that it took.
        (Request::Release { ino }, Err(_)) => give(*ino, Hold::OPENING),
        _ => {}
    }
}

fn opening(request: &Request, opened: &Opened) -> Hold {
    let writes = opens_to_write(request);
    Hold { writes, announces: writes && opened.shared, ..Hold::OPENING }
}

fn opens_to_write(request: &Request) -> bool {
    request.opens_for().is_some_and(|access| access.contains(Access::WRITE))
}

/// Approximate size of a stored answer, in bytes.
fn weight(result: &Result<Reply, Errno>) -> usize {
    let more = match result {
        Ok(Reply::Copied(copied)) => {
            let left: usize = copied.left.iter().map(Vec::len).sum();
            let made: usize = copied.made.iter().map(|(_, name)| name.len() + 64).sum();
            left + made
        }
        Ok(Reply::Removed { name, .. }) => name.len(),
        _ => 0,
    };
    size_of::<RequestState>() + more
}
