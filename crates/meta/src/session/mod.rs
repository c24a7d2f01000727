//! Sessions: what a server knows of each of its clients. While one lasts, a request that is sent again is done once, and
//! what the client knows and has open stays; when nothing has been heard of the client for a while, all that is given up.
//!
//! An embedded machine ([`Config::session_ms`](crate::Config) is `None`) has none of this: its client ends with it.

mod audit;
mod completed;
mod data;
mod ends;
mod kept;
mod proof;
mod recall;
mod reclaim;
mod restart;
mod subtree;
mod unused;
mod writers;

pub use audit::Holding;
pub use completed::Outcome;
pub use kept::is_kept;
pub(crate) use kept::{Kept, KeptKey, given_below};
pub(crate) use proof::Proven;
pub(crate) use reclaim::Reclaimed;
pub(crate) use unused::Unused;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use espalier_proto::{
    Access, Accesses, Caller, ClientId, DataRequest, Errno, Ino, Opened, Recall, Reply, Request, RequestId,
    SetAttr, StreamIo, Touched,
};

use crate::event::Event;
use crate::io::Purpose;
use crate::journal::Held;
use crate::lease::Promise;
use crate::machine::Meta;
use crate::outbox::{Answered, Now, Outbox};
use crate::progress::Progress::Append;
use crate::state::Map;
use crate::task::Task;
use crate::trash::ITSELF;

/// Sessions at a time.
const MAX_SESSIONS: usize = DataRequest::MAX_SESSIONS;
/// So far may the number of a request be beyond that of the first whose answer the client has not acknowledged.
const WINDOW: u64 = 1024;
/// With those that tell what the client has.
const MAX_REQUESTS: u64 = 16 * WINDOW;
/// What the answers that are kept for a client may take, about, in bytes.
const WINDOW_BYTES: usize = 1 << 20;
/// So many clients that have left are remembered, to be told to other ranks.
const MOST_LEFT: usize = 4096;
/// Inodes of expired sessions that are released at a time: bounds how long operations wait behind it.
const RELEASE: usize = 128;

/// What the machine knows of its clients and forgets when it ends.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    clients: Map<ClientId, Session>,
    /// Without a name, and known to others than have taken the last one: they may forget them.
    pub recalls: Vec<Recall>,
    /// The last clients that have left, where there are other ranks.
    pub left: VecDeque<ClientId>,
    /// Files that clients are making, and that nobody can have written to.
    pub making: BTreeSet<Ino>,
    /// Files of which these clients have taken the last name, and which they remove themselves.
    pub removing: BTreeMap<Ino, ClientId>,
    /// What is still to be released of what expired sessions held.
    abandoned: VecDeque<(Ino, Hold)>,
    /// That is under way.
    releasing: bool,
    /// Sessions that were there when the machine began, and have not said all that they have.
    awaited: usize,
    /// What is to be said to data servers.
    data: data::Sessions,
    /// When the machine began, as far as it has been told.
    began_ms: Option<u64>,
    /// Who may change where files end.
    pub ends: ends::Ends,
    /// Whatever clients were told before the machine began they no longer use.
    leases_over: bool,
    /// What has no name, and nobody that has said so has it: to be freed when all have said what they have.
    unclaimed: BTreeSet<Ino>,
}

impl Sessions {
    pub(crate) fn set_accesses(&mut self, client: ClientId, accesses: Accesses) {
        if let Some(session) = self.clients.get_mut(&client) {
            session.accesses = accesses;
        }
    }

    /// Which accesses of a client's change access times.
    pub(crate) fn accesses(&self, client: ClientId) -> Accesses {
        self.clients.get(&client).map_or(Accesses::All, |session| session.accesses)
    }
}

#[derive(Debug, Default)]
struct Session {
    /// When it was last heard of; `None`: not since the machine started.
    heard_ms: Option<u64>,
    /// It has the answers to all requests before this one.
    below: RequestId,
    requests: BTreeMap<RequestId, Progress>,
    /// What the answers that are kept take.
    bytes: usize,
    held: Map<Ino, Hold>,
    /// It may use what is below this directory only.
    root: Option<Ino>,
    /// What data servers may do for it.
    reach: data::Reach,
    accesses: Accesses,
    /// The client has gone.
    left: bool,
    /// It has not said all that it has since the machine began.
    awaited: bool,
    /// What answers gave that were journaled before the machine began, and that the client may not have got.
    reserved: BTreeMap<RequestId, (Ino, Hold)>,
}

/// What has become of a request.
#[derive(Debug)]
enum Progress {
    Running,
    Answered(Result<Reply, Errno>),
    /// Its answer told much and changed nothing: it can be executed again. These were then counted as known.
    Told(Vec<Ino>),
}

/// What a client has of an inode: its share of what [`Cached`](crate::state::Cached) counts.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    lookups: u64,
    opens: u32,
    /// It was opened for writing, and has been open since.
    writes: bool,
    /// Its client announces what it writes to it.
    announces: bool,
}

impl Hold {
    const LOOKUP: Self = Self { lookups: 1, opens: 0, writes: false, announces: false };
    const OPENING: Self = Self { lookups: 0, opens: 1, writes: false, announces: false };
    const MADE: Self = Self { lookups: 0, opens: 1, writes: true, announces: false };
}

impl Session {
    fn hold(&mut self, ino: Ino, hold: Hold) {
        let held = self.held.entry(ino).or_default();
        held.lookups = held.lookups.saturating_add(hold.lookups);
        held.opens = held.opens.saturating_add(hold.opens);
        if hold.writes {
            // A client that has it open for writing already may not have got this answer yet.
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

    /// Takes away as much of what it has of an inode, or what there is.
    fn let_go(&mut self, ino: Ino, wanted: Hold) -> Hold {
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
        self.requests.values().any(|progress| matches!(progress, Progress::Running))
    }

    /// The client has these answers.
    fn acknowledge(&mut self, below: RequestId) {
        self.below = self.below.max(below);
        while let Some(first) = self.requests.first_entry()
            && *first.key() < self.below
            && !matches!(first.get(), Progress::Running)
        {
            if let Progress::Answered(result) = first.remove() {
                self.bytes -= weight(&result);
            }
        }
    }
}

impl Meta {
    /// A request of a client comes: it is run, unless it has been before. What it releases the client must have.
    pub(crate) fn admit(&mut self, now: Now, mut task: Task, below: RequestId, out: &mut Outbox) {
        let (from, id) = (task.from, task.id);
        let reclaims = matches!(task.request, Request::Reclaim { .. } | Request::ReclaimLocks { .. });
        if !self.begin(now, (from, id), below, reclaims, out) {
            return;
        }
        let kept = self.state.sessions.get(&from).and_then(|kept| kept.completed.get(&id));
        match (kept, &mut task.request) {
            (Some(Outcome::Appending { offset, .. }), Request::Write { data, .. }) => {
                let (offset, bytes) = (*offset, core::mem::take(data));
                task.progress = Append { offset, bytes };
            }
            (kept, _) => task.again = kept.cloned().map(Box::new),
        }
        if task.again.is_some() || self.claim(now, (from, id), &mut task.request, out) {
            self.run(now, task, None, out);
        }
    }

    /// A client asks for something to be done with a stream, which the machine has no part in. Whether it is to be done now: if
    /// so, [`Self::end_stream`] must follow. It is not if it has been done, or is being done; what it came to is kept as
    /// for requests, but not when the machine ends.
    pub fn begin_stream(
        &mut self,
        now: Now,
        of: (ClientId, RequestId),
        below: RequestId,
        out: &mut Outbox,
    ) -> bool {
        self.begin(now, of, below, false, out)
    }

    /// Something has been done with a stream. Whether the client is to be told.
    pub fn end_stream(&mut self, of: (ClientId, RequestId), result: &Result<Reply, Errno>) -> bool {
        self.remember(of, result)
    }

    /// Whether a request is to be executed now. It is answered if it has been, or cannot be.
    fn begin(
        &mut self,
        now: Now,
        (from, id): (ClientId, RequestId),
        below: RequestId,
        reclaims: bool,
        out: &mut Outbox,
    ) -> bool {
        let mut tell = |result| {
            out.replies.push(Answered { to: from, id, result, lease_ms: 0, touched: Touched::default() });
            false
        };
        let Some(session) = self.sessions.clients.get_mut(&from) else { return tell(Err(Errno::ESTALE)) };
        (session.heard_ms, session.left) = (Some(now.uptime_ms), false);
        if session.awaited && !reclaims {
            // It has not said what it has, and what it asks may be about.
            return tell(Err(Errno::EAGAIN));
        }
        session.acknowledge(below);
        if id < session.below {
            // A copy that was long under way: nobody waits for it any more.
            return false;
        }
        // What reclaims comes before older requests, and may be much.
        let is_beyond = match reclaims {
            true => session.requests.len() as u64 >= MAX_REQUESTS,
            false => id.0 - session.below.0 >= WINDOW,
        };
        match session.requests.get_mut(&id) {
            Some(Progress::Running) => return false,
            Some(Progress::Answered(result)) => return tell(result.clone()),
            Some(progress @ Progress::Told(_)) => {
                if let Progress::Told(inos) = core::mem::replace(progress, Progress::Running) {
                    for ino in inos {
                        let told = session.let_go(ino, Hold::LOOKUP);
                        self.sessions.abandoned.push_back((ino, told));
                    }
                }
            }
            None if is_beyond || session.bytes >= WINDOW_BYTES => return tell(Err(Errno::EAGAIN)),
            None => drop(session.requests.insert(id, Progress::Running)),
        }
        while let Some(first) = session.reserved.first_entry()
            && *first.key() < session.below
        {
            let (ino, hold) = first.remove();
            let unwanted = session.let_go(ino, hold);
            self.sessions.abandoned.push_back((ino, unwanted));
        }
        true
    }

    /// Takes from a client what a request of it is going to release. If that is nothing, it is answered, as are requests about
    /// the session itself.
    fn claim(
        &mut self,
        now: Now,
        (from, id): (ClientId, RequestId),
        request: &mut Request,
        out: &mut Outbox,
    ) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&from) else { return false };
        if let Err(errno) = session.permits((self.config.rank, self.config.ranks), request) {
            self.answer(now, (from, id), Err(errno), &Promise::default(), out);
            return false;
        }
        let result = match request {
            Request::Forget { ino, lookups } => {
                *lookups = session.let_go(*ino, Hold { lookups: *lookups, ..Hold::default() }).lookups;
                if *lookups > 0 { return true } else { Ok(Reply::Done) }
            }
            Request::ForgetAll { inodes, released } => {
                released.retain(|ino| {
                    let taken = session.let_go(*ino, Hold::OPENING);
                    if session.opens(*ino) == 0 {
                        self.locks.close(from, *ino);
                    }
                    taken.opens > 0
                });
                for (ino, lookups) in inodes.iter_mut() {
                    *lookups = session.let_go(*ino, Hold { lookups: *lookups, ..Hold::default() }).lookups;
                }
                return true;
            }
            Request::Release { ino } => {
                let taken = session.let_go(*ino, Hold::OPENING);
                if session.opens(*ino) == 0 {
                    self.locks.close(from, *ino);
                }
                if taken.opens > 0 { return true } else { Ok(Reply::Done) }
            }
            Request::Reclaim { held, last, again } => {
                let result = self.reclaim(now, from, held, *last, out);
                if *last {
                    // What it does not wait for any more, and has not been begun since, comes to nothing.
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
            // Who may was checked when it was opened.
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
            // The machine asks this of itself alone.
            Request::Sweep | Request::Enter { .. } | Request::Recount { .. } | Request::Place { .. } => {
                Err(Errno::EINVAL)
            }
            _ => return true,
        };
        self.answer(now, (from, id), result, &Promise::default(), out);
        false
    }

    /// An operation has come to its end: notes what its answer gives to the client, and if it has changed anything, in the
    /// journal, that it has been done.
    pub(crate) fn note(&mut self, task: &Task, result: &Result<Reply, Errno>) {
        let Some(session) = self.sessions.clients.get_mut(&task.from) else { return };
        if task.again.is_some() {
            if let Some((ino, hold)) = session.reserved.remove(&task.id)
                && result.is_err()
            {
                let unwanted = session.let_go(ino, hold);
                self.sessions.abandoned.push_back((ino, unwanted));
            }
            return;
        }
        each_given(&task.request, result, |ino, hold| session.hold(ino, hold));
        if task.changed {
            let home = |ino: &Ino| self.state.inodes.get(ino).map(|cached| cached.told_home());
            let home = if let Request::Open { ino, .. } = &task.request { home(ino) } else { None };
            if let Some(outcome) = Outcome::of(&task.request, result, home) {
                self.journal_outcome((task.from, task.id), outcome);
            }
        }
    }

    /// Notes in the journal what a request has come to.
    pub(crate) fn journal_outcome(&mut self, (client, id): (ClientId, RequestId), outcome: Outcome) {
        if let Some(session) = self.sessions.clients.get(&client)
            && !self.config.read_only
        {
            let below = session.below;
            // It needs nothing that would have to be loaded.
            let _ = self.append(&Event::Completed { client, id, below, outcome });
        }
    }

    /// An answer leaves: it is kept until the client has it. Whether there is anybody to be told.
    pub(crate) fn remember(
        &mut self,
        (to, id): (ClientId, RequestId),
        result: &Result<Reply, Errno>,
    ) -> bool {
        let Some(session) = self.sessions.clients.get_mut(&to) else { return false };
        let Some(progress) = session.requests.get_mut(&id) else { return false };
        *progress = match result {
            // What was waited for may have come since.
            Ok(Reply::Bytes(_) | Reply::Waits) => Progress::Told(Vec::new()),
            Ok(Reply::Listing { entries, .. }) => {
                let told = entries.iter().filter(|entry| entry.entry.is_some());
                Progress::Told(told.map(|entry| entry.ino).collect())
            }
            _ => {
                session.bytes += weight(result);
                Progress::Answered(result.clone())
            }
        };
        session.acknowledge(session.below);
        true
    }

    // ---- Beginning and ending

    /// A client that has a session, as far as it knows (`resumes`), gets no new one: if it did not hear of that, it would not know the next
    /// time that it is another one, and would have done once more what was done in the first.
    pub(crate) fn connect(
        &mut self,
        now: Now,
        client: ClientId,
        (leases, resumes): (bool, bool),
        out: &mut Outbox,
    ) {
        if self.config.session_ms.is_none() {
            return;
        }
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            (session.heard_ms, session.left) = (Some(now.uptime_ms), false);
            self.want_leases(client, leases);
            return self.connect_when_written(client, out);
        }
        if resumes {
            return out.refused.push((client, Errno::ESTALE));
        }
        if client == ITSELF {
            return out.refused.push((client, Errno::EINVAL));
        }
        if self.sessions.clients.len() >= MAX_SESSIONS {
            return out.refused.push((client, Errno::ENFILE));
        }
        if self.journal.broken.is_some() {
            return out.refused.push((client, Errno::EIO));
        }
        let session = Session { heard_ms: Some(now.uptime_ms), ..Session::default() };
        self.sessions.clients.insert(client, session);
        self.sessions.left.retain(|left| *left != client);
        self.want_leases(client, leases);
        self.journal_session(client, true);
        self.connect_when_written(client, out);
    }

    fn connect_when_written(&mut self, client: ClientId, out: &mut Outbox) {
        let held = Held::Session(client, Ok(()));
        if let Some(Held::Session(client, result)) = self.journal.hold_written(held) {
            self.connected(client, result, out);
        }
    }

    /// A session is in the journal, or cannot get there.
    pub(crate) fn connected(&mut self, client: ClientId, result: Result<(), Errno>, out: &mut Outbox) {
        match result {
            Ok(()) => out.connected.push(client),
            Err(errno) => out.refused.push((client, errno)),
        }
    }

    pub(crate) fn heard(&mut self, now: Now, client: ClientId) {
        if let Some(session) = self.sessions.clients.get_mut(&client) {
            session.heard_ms = Some(now.uptime_ms);
        }
    }

    /// A client goes, and needs nothing any more of what it holds.
    pub(crate) fn leave(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let Some(session) = self.sessions.clients.get_mut(&client) else { return };
        session.left = true;
        if self.config.ranks > 1 {
            self.sessions.left.push_back(client);
            if self.sessions.left.len() > MOST_LEFT {
                self.sessions.left.pop_front();
            }
        }
        // What is under way ends first: its outcome would be nobody's.
        if !session.is_busy() && self.end_session(now, client, out) {
            self.release_abandoned_soon(now, out);
        }
    }

    /// Clients have left another rank: those that were to say here what they have will not.
    pub(crate) fn left_elsewhere(&mut self, now: Now, clients: &[ClientId], out: &mut Outbox) {
        for client in clients {
            if self.sessions.clients.get(client).is_some_and(|session| session.awaited) {
                self.leave(now, *client, out);
            }
        }
    }

    /// Whether it has ended: before, data servers are to do nothing for the client any more.
    fn end_session(&mut self, now: Now, client: ClientId, out: &mut Outbox) -> bool {
        if !self.is_cut_off(client, out) {
            return false;
        }
        let Some(session) = self.sessions.clients.remove(&client) else { return false };
        self.sessions.abandoned.extend(session.held);
        let removing = self.sessions.removing.extract_if(.., |_, by| *by == client);
        // Whoever forgets it then sees to what is left of it.
        self.sessions.abandoned.extend(removing.map(|(ino, _)| (ino, Hold::LOOKUP)));
        self.journal_session(client, false);
        self.drop_leases(now, client, out);
        self.locks.end(client);
        self.unlock_ends(now, |(by, _)| by == client, out);
        if session.awaited {
            self.await_no_more(now, out);
        }
        true
    }

    /// Whether a client may do this with streams: it must have the files open.
    ///
    /// # Errors
    /// `EBADF` if it has not.
    pub fn may_stream(&self, client: ClientId, io: &StreamIo) -> Result<(), Errno> {
        let is_open = |ino| self.opens_of(client, ino) > 0;
        let all_open = match *io {
            StreamIo::Read { ino, .. }
            | StreamIo::Write { ino, .. }
            | StreamIo::WriteList { ino, .. }
            | StreamIo::Allocate { ino, .. }
            | StreamIo::Seek { ino, .. } => is_open(ino),
            StreamIo::Copy { from, to, .. } => is_open(from) && is_open(to),
        };
        let session = self.sessions.clients.get(&client);
        let may_write = |ino| session.is_some_and(|session| session.writes(ino));
        if all_open && io.writes().is_none_or(may_write) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Whether a request of a client's is to be answered some time.
    pub fn is_under_way(&self, client: ClientId, id: RequestId) -> bool {
        let session = self.sessions.clients.get(&client);
        session
            .and_then(|session| session.requests.get(&id))
            .is_some_and(|it| matches!(it, Progress::Running))
    }

    /// Whether a client has been told of an inode and has not forgotten it.
    pub fn knows(&self, client: ClientId, ino: Ino) -> bool {
        let session = self.sessions.clients.get(&client);
        session.is_some_and(|session| {
            ino == session.root.unwrap_or(Ino::ROOT) || session.held.contains_key(&ino)
        })
    }

    /// How often a client has an inode open, as far as answers have been given.
    pub(crate) fn opens_of(&self, client: ClientId, ino: Ino) -> u32 {
        self.sessions.clients.get(&client).map_or(0, |session| session.opens(ino))
    }

    fn journal_session(&mut self, client: ClientId, begins: bool) {
        if !self.config.read_only {
            // It needs nothing that would have to be loaded.
            let _ = self.append(&Event::Session { client, begins });
        }
    }

    /// Ends the sessions of which nothing has been heard for too long.
    pub(crate) fn expire(&mut self, now: Now, out: &mut Outbox) {
        let Some(limit) = self.config.session_ms else { return };
        self.wait_for_leases(now, out);
        let mut expired: Vec<ClientId> = Vec::new();
        for (client, session) in &mut self.sessions.clients {
            let heard = *session.heard_ms.get_or_insert(now.uptime_ms);
            if session.left || now.uptime_ms.saturating_sub(heard) > limit.into() {
                expired.push(*client);
            }
        }
        expired.sort_unstable();
        for client in expired {
            self.give_up_groups(now, client, out);
            // What is under way ends first: its outcome would be nobody's.
            let is_quiet = self.sessions.clients.get(&client).is_some_and(|session| !session.is_busy());
            if is_quiet && self.end_session(now, client, out) {
                out.expired.push(client);
            }
        }
        self.release_abandoned_soon(now, out);
    }

    /// A client that is gone does not tell its callers' groups any more: they have none.
    fn give_up_groups(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let is_asked = |purpose: &Purpose| match purpose {
            Purpose::Groups(number) => self.tasks.get(number).is_some_and(|task| task.from == client),
            _ => false,
        };
        let asked = self.io.iter().filter(|(_, purpose)| is_asked(purpose)).map(|(id, _)| *id);
        for id in asked.collect::<Vec<_>>() {
            self.done(now, id, Err(Errno::EIO), out);
        }
    }

    fn release_abandoned_soon(&mut self, now: Now, out: &mut Outbox) {
        if !self.sessions.releasing {
            self.release_abandoned(now, out);
        }
    }

    /// Releases some of what was abandoned, as if the client had.
    pub(crate) fn release_abandoned(&mut self, now: Now, out: &mut Outbox) {
        let count = self.sessions.abandoned.len().min(RELEASE);
        for (ino, Hold { lookups, opens, .. }) in self.sessions.abandoned.drain(..count).collect::<Vec<_>>() {
            if lookups > 0 {
                let request = Request::Forget { ino, lookups };
                self.run(now, Task::new(ITSELF, RequestId(0), Caller::SERVER, request), None, out);
            }
            if opens > 0 {
                // The last one counts what was written.
                self.state.close(ino, opens - 1);
                let request = Request::Release { ino };
                self.run(now, Task::new(ITSELF, RequestId(0), Caller::SERVER, request), None, out);
            }
        }
        self.sessions.releasing = !self.sessions.abandoned.is_empty();
        if self.sessions.releasing {
            self.rest_abandoned(out);
        }
    }
}

/// What an answer gives to the client that gets it.
fn each_given(request: &Request, result: &Result<Reply, Errno>, mut give: impl FnMut(Ino, Hold)) {
    match (request, result) {
        (_, Ok(Reply::Entry(entry))) => give(entry.attr.ino, Hold::LOOKUP),
        (_, Ok(Reply::Unmeasured(told, _))) => match &**told {
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
        // A release that has failed gives back what was taken for it.
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

/// What an answer takes of memory, about, in bytes.
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
    size_of::<Progress>() + more
}
