//! The client's end of its session with a metadata server. It numbers requests and keeps those that have not been answered, so
//! that they are sent again after a lost connection or a server's restart and done once; and it knows what the server
//! must be told after a restart: what the client holds.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{
    Access, Caller, Entry, Errno, FromClient, Held, Home, Ino, Lock, LockOwner, Opened, Reply, Request,
    RequestId, StreamIo, Welcome,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::data_link::UNDER_WAY;
use crate::locks::{Asker, Locks, Noted};

/// The client's end of a session. See the module's description.
#[derive(Debug)]
pub struct Link {
    next: u64,
    /// What has been sent, or waits for the window, by number.
    unanswered: BTreeMap<u64, Message>,
    /// All that have smaller numbers have been sent over this connection, or are `waiting`.
    sent: u64,
    /// All that have smaller numbers have been sent at all.
    ever_sent: u64,
    /// So many numbers from the first unanswered one on may be sent.
    window: u64,
    /// Bytes of files that go with what has been sent over this connection, or with its answers.
    under_way: usize,
    /// Numbers of what waits until they are few enough. What moves no bytes goes past it.
    waiting: VecDeque<u64>,
    connected: bool,
    /// The server's incarnation that knows what is held, or is being told.
    incarnation: Option<u64>,
    /// Numbers of the requests by which it is told.
    reclaims: BTreeSet<u64>,
    /// Numbers of the requests that ask once more for locks that are waited for.
    asked_again: BTreeSet<u64>,
    /// Numbers of the requests that make locks what they were before somebody was interrupted.
    lowered: BTreeSet<u64>,
    held: HashMap<Ino, Hold, FxBuildHasher>,
    locks: Locks,
    /// Not told yet.
    forgotten: Vec<(Ino, u64)>,
    released: Vec<Ino>,
    /// Some of these the client has made step by step.
    released_made: bool,
}

#[derive(Clone, Debug)]
enum Message {
    Request(Caller, Request),
    Stream(StreamIo, Bytes),
}

impl Message {
    /// Under which number nobody is to wait any longer.
    fn stops(&self) -> Option<u64> {
        match self {
            Self::Request(_, Request::StopWaiting { wait, .. }) => Some(*wait),
            _ => None,
        }
    }

    /// Bytes of a file that go with it, or with its answer.
    fn bytes(&self) -> usize {
        match self {
            Self::Request(_, Request::Read { size, .. }) | Self::Stream(StreamIo::Read { size, .. }, _) => {
                *size as usize
            }
            Self::Request(_, Request::Write { data, .. }) | Self::Stream(_, data) => data.len(),
            Self::Request(..) => 0,
        }
    }
}

/// What the server knows the client to hold of an inode.
#[derive(Clone, Copy, Debug)]
struct Hold {
    home: Home,
    /// Where it was before that: a loss of power may have taken it back there.
    before: Option<Home>,
    lookups: u64,
    opens: u32,
    told: u64,
    opened: u64,
    /// It was opened for writing, and has been open since: that is what `opened` proves.
    writes: bool,
    /// As [`Opened::announced`].
    announced: bool,
}

/// What a session leaves when it has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Nothing that was told in it may be cached any longer: no name, and nothing of these inodes.
    pub distrust: Vec<Ino>,
    /// Of these requests nobody knows whether they were done.
    pub lost: Vec<RequestId>,
    /// Files on which the client had locks, and has none any more: others may have had them since.
    pub unlocked: Vec<Ino>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            next: 1,
            unanswered: BTreeMap::new(),
            sent: 1,
            ever_sent: 1,
            window: 1,
            under_way: 0,
            waiting: VecDeque::new(),
            connected: false,
            incarnation: None,
            reclaims: BTreeSet::new(),
            asked_again: BTreeSet::new(),
            lowered: BTreeSet::new(),
            held: HashMap::default(),
            locks: Locks::default(),
            forgotten: Vec::new(),
            released: Vec::new(),
            released_made: false,
        }
    }
}

impl Link {
    /// Forgotten inodes that are told at once.
    const FORGOTTEN: usize = 512;
    /// Held inodes in a request.
    const RECLAIMED: usize = 1024;

    /// The incarnation of the server that the session was last in; `None`: there is no session.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Asks. What is to be sent for it, now or as soon as it can be, is added to `out`.
    pub fn ask(&mut self, caller: Caller, mut request: Request, out: &mut Vec<FromClient>) -> RequestId {
        if let Request::ReadDir { limit, .. } = &mut request {
            *limit = (*limit).min(Request::MAX_ENTRIES);
        }
        // What the server takes for open it does not leave to the client to remove (carns III.A).
        if self.released_made && matches!(request, Request::Unlink { .. }) {
            self.tell_forgotten(out);
        }
        self.add(Message::Request(caller, request), out)
    }

    /// As [`Self::ask`], of a stream.
    pub fn stream(&mut self, io: StreamIo, data: Bytes, out: &mut Vec<FromClient>) -> RequestId {
        self.add(Message::Stream(io, data), out)
    }

    fn add(&mut self, message: Message, out: &mut Vec<FromClient>) -> RequestId {
        let id = self.next;
        self.next += 1;
        self.unanswered.insert(id, message);
        self.fill(out);
        RequestId(id)
    }

    /// Whether what is asked now is sent at once, unless it moves bytes and too many are under way.
    pub fn is_ready(&self) -> bool {
        self.connected && self.next < self.first().saturating_add(self.window)
    }

    /// The caller of a request no longer wants to wait. Whether the server is asked to give up; else nobody knows when it will answer.
    pub fn cancel(&mut self, id: RequestId, out: &mut Vec<FromClient>) -> bool {
        match self.unanswered.get(&id.0) {
            Some(_) if self.connected => out.push(FromClient::Cancel { id }),
            Some(Message::Request(_, Request::Lock { ino, lock, wait })) => {
                let (ino, lock, wait) = (*ino, *lock, *wait);
                if let Some(wait) = wait {
                    self.ask(Caller::SERVER, Request::StopWaiting { ino, lock, wait }, out);
                }
                self.take_back(ino, &lock, id.0, out);
            }
            _ => {}
        }
        self.connected
    }

    /// An inode that replies had named to the client `lookups` times is no longer known to it.
    pub fn forget(&mut self, ino: Ino, lookups: u64, out: &mut Vec<FromClient>) {
        self.forgotten.push((ino, lookups));
        if self.forgotten.len() >= Self::FORGOTTEN {
            self.tell_forgotten(out);
        }
    }

    /// Something is open once less, and nobody waits for the server to know.
    pub fn release(&mut self, ino: Ino, out: &mut Vec<FromClient>) {
        self.released.push(ino);
        if self.released.len() >= Self::FORGOTTEN {
            self.tell_forgotten(out);
        }
    }

    /// As [`Self::release`], of a file that the client has made step by step.
    pub fn release_made(&mut self, ino: Ino, out: &mut Vec<FromClient>) {
        self.released_made = true;
        self.release(ino, out);
    }

    /// Tells what has been forgotten and released and not told yet.
    pub fn tell_forgotten(&mut self, out: &mut Vec<FromClient>) {
        if !(self.forgotten.is_empty() && self.released.is_empty()) {
            let inodes = core::mem::take(&mut self.forgotten);
            let released = core::mem::take(&mut self.released);
            self.released_made = false;
            self.ask(Caller::SERVER, Request::ForgetAll { inodes, released }, out);
        }
    }

    /// An answer has come. What it gives is given back if nobody waits for it. Returns the number of a request for a lock that
    /// has waited, if it is this that it has waited for.
    pub fn answered(
        &mut self,
        id: RequestId,
        result: &Result<Reply, Errno>,
        is_waited_for: bool,
        out: &mut Vec<FromClient>,
    ) -> Option<u64> {
        // It may have come before.
        let message = self.unanswered.remove(&id.0)?;
        self.under_way = self.under_way.saturating_sub(message.bytes());
        self.reclaims.remove(&id.0);
        self.lowered.remove(&id.0);
        let asked_again = self.asked_again.remove(&id.0);
        self.account(&message, result);
        let mut settled = None;
        if let Message::Request(_, request) = &message {
            let asker = match (is_waited_for, asked_again) {
                (true, _) => Asker::Caller,
                (false, true) => Asker::Again,
                (false, false) => Asker::Nobody,
            };
            let Noted { over, unwanted } = self.locks.answered(request, result, asker);
            settled = over;
            if let Some(request) = unwanted {
                self.ask(Caller::SERVER, request, out);
            }
        }
        if !is_waited_for && let Ok(reply) = result {
            self.give_back(&message, reply, out);
        }
        self.fill(out);
        settled
    }

    // ---- Locks

    /// Whether an owner may have anything of a file locked. What nobody has waited for the answer to may yet be given, and is given
    /// back then.
    pub fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        let asks = |message: &Message| match message {
            Message::Request(
                _,
                Request::Lock { ino: of, lock, .. } | Request::StopWaiting { ino: of, lock, .. },
            ) => (*of, lock.owner) == (ino, owner),
            _ => false,
        };
        self.locks.has(ino, owner) || self.unanswered.values().any(asks)
    }

    /// The server has given what a request waits for under this number.
    pub fn locked(&mut self, wait: u64) {
        self.locks.granted(wait);
    }

    /// A request that waits under this number is to wait no longer. Whether [`Self::answered`] will say what has come of it; else
    /// nobody knows when the server will answer.
    pub fn stop_waiting(&mut self, wait: u64, out: &mut Vec<FromClient>) -> bool {
        if let Some((ino, lock)) = self.locks.waits_for(wait) {
            self.ask(Caller::SERVER, Request::StopWaiting { ino, lock, wait }, out);
            if !self.connected {
                self.locks.abandon(wait);
                self.take_back(ino, &lock, self.next, out);
            }
        }
        self.connected
    }

    /// Nobody wants any more what a request asks for that may be given all the same, or has been: what its owner had before that is what
    /// he is to have. `asked`: the request's number, or that of the next.
    fn take_back(&mut self, ino: Ino, lock: &Lock, asked: u64, out: &mut Vec<FromClient>) {
        let before = self.unanswered.range(..asked).filter_map(|(_, message)| match message {
            Message::Request(_, request) => Some(request),
            Message::Stream(..) => None,
        });
        for request in self.locks.without(ino, lock, before) {
            if matches!(request, Request::Lock { .. }) {
                self.lowered.insert(self.next);
            }
            self.ask(Caller::SERVER, request, out);
        }
    }

    fn give_back(&mut self, message: &Message, reply: &Reply, out: &mut Vec<FromClient>) {
        let opened = match (message, reply) {
            (_, Reply::Created(entry, _)) => Some(entry.attr.ino),
            (_, Reply::Made(made)) => Some(made.ino),
            (Message::Request(_, Request::Open { ino, .. }), Reply::Opened(_) | Reply::OpenedWhole(..)) => {
                Some(*ino)
            }
            _ => None,
        };
        if let Some(ino) = opened {
            self.ask(Caller::SERVER, Request::Release { ino }, out);
        }
        match reply {
            Reply::Entry(entry) | Reply::Created(entry, _) => self.forget(entry.attr.ino, 1, out),
            Reply::Unmeasured(told, _) => self.give_back(message, told, out),
            Reply::Orphaned(ino, _) => {
                self.ask(Caller::SERVER, Request::Purge { ino: *ino, removed: false }, out);
            }
            Reply::Listing { entries, .. } => {
                for entry in entries.iter().filter_map(|dirent| dirent.entry.as_ref()) {
                    self.forget(entry.attr.ino, 1, out);
                }
            }
            _ => {}
        }
    }

    /// Keeps account of what is held, as the server does.
    fn account(&mut self, message: &Message, result: &Result<Reply, Errno>) {
        match message {
            Message::Request(_, Request::ForgetAll { inodes, released }) => {
                for ino in released {
                    self.change(*ino, |hold| hold.opens = hold.opens.saturating_sub(1));
                }
                for (ino, lookups) in inodes {
                    self.change(*ino, |hold| hold.lookups = hold.lookups.saturating_sub(*lookups));
                }
            }
            Message::Request(_, Request::Release { ino }) => {
                self.change(*ino, |hold| hold.opens = hold.opens.saturating_sub(1));
            }
            _ => {}
        }
        match (message, result) {
            (_, Ok(Reply::Entry(entry))) => self.note(entry),
            (Message::Request(_, request), Ok(Reply::Unmeasured(told, _))) => match &**told {
                Reply::Entry(entry) => self.note(entry),
                Reply::Created(entry, opened) => {
                    self.note(entry);
                    self.note_opened(entry.attr.ino, request, opened);
                }
                _ => {}
            },
            (_, Ok(Reply::Made(made))) => {
                let home = Home::Orphan;
                let Opened { proof: opened, announced, .. } = made.opened;
                let before = None;
                let new =
                    Hold { home, before, lookups: 0, opens: 1, told: 0, opened, writes: true, announced };
                self.held.insert(made.ino, new);
            }
            (Message::Request(_, request), Ok(Reply::Created(entry, opened))) => {
                self.note(entry);
                self.note_opened(entry.attr.ino, request, opened);
            }
            (
                Message::Request(_, request @ Request::Open { ino, .. }),
                Ok(Reply::Opened(opened) | Reply::OpenedWhole(opened, _)),
            ) => {
                self.note_opened(*ino, request, opened);
            }
            (_, Ok(Reply::Listing { entries, .. })) => {
                for entry in entries.iter().filter_map(|dirent| dirent.entry.as_ref()) {
                    self.note(entry);
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, entry: &Entry) {
        let (home, before, announced) = (entry.home, None, false);
        let new = Hold { home, before, lookups: 0, opens: 0, told: 0, opened: 0, writes: false, announced };
        let hold = self.held.entry(entry.attr.ino).or_insert(new);
        if hold.home != home {
            hold.before = Some(hold.home);
        }
        (hold.home, hold.told) = (home, entry.proof);
        hold.lookups += 1;
    }

    fn note_opened(&mut self, ino: Ino, request: &Request, opened: &Opened) {
        let to_write = request.opens_for().is_some_and(|access| access.contains(Access::WRITE));
        self.change(ino, |hold| {
            hold.opens += 1;
            hold.announced = opened.announced;
            if to_write || !hold.writes {
                (hold.opened, hold.writes) = (opened.proof, to_write);
            }
        });
    }

    /// What the server knows the client to have, in the order of the inodes: how often it has been told of each, and has it open. `None` while
    /// anything is under way or still to be told.
    pub fn holdings(&self) -> Option<Vec<(Ino, u64, u32)>> {
        let is_settled = self.connected
            && self.unanswered.is_empty()
            && self.forgotten.is_empty()
            && self.released.is_empty();
        is_settled.then(|| {
            let mut held: Vec<_> =
                self.held.iter().map(|(ino, hold)| (*ino, hold.lookups, hold.opens)).collect();
            held.sort_unstable();
            held
        })
    }

    /// Whether a server that is started anew believes that a file is open.
    pub fn proves_openings(&self, ino: Ino) -> bool {
        self.held.get(&ino).is_some_and(|hold| hold.opened != 0)
    }

    /// A file is open so many times more, of which the server has not been told.
    pub fn opened(&mut self, ino: Ino, opens: u32) {
        self.change(ino, |hold| hold.opens = hold.opens.saturating_add(opens));
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Hold)) {
        if let Some(hold) = self.held.get_mut(&ino) {
            change(hold);
            hold.writes &= hold.opens > 0;
            if hold.lookups == 0 && hold.opens == 0 {
                self.held.remove(&ino);
            }
        }
    }

    /// The server has ended the session. Nothing comes of what was sent in it, as far as anybody knows; the next one is told what the client
    /// still has.
    pub fn ended(&mut self) -> Ended {
        if self.incarnation.take().is_none() {
            return Ended::default();
        }
        let mut lost = Vec::new();
        let kept = self.unanswered.split_off(&self.ever_sent);
        for id in core::mem::replace(&mut self.unanswered, kept).into_keys() {
            if !self.reclaims.contains(&id) {
                lost.push(RequestId(id));
            }
        }
        for id in core::mem::take(&mut self.lowered) {
            self.unanswered.remove(&id);
        }
        Ended { distrust: self.held.keys().copied().collect(), lost, unlocked: self.locks.lose() }
    }

    /// What is sent over a new connection, after the server has answered the first message. `early`: directories of whose changes callers
    /// have been told before the server has answered. If the server has been started anew since the last one: the inodes of which nothing
    /// that was told earlier may be cached any longer, nor any name.
    pub fn connected(
        &mut self,
        welcome: &Welcome,
        early: &BTreeSet<Ino>,
        out: &mut Vec<FromClient>,
    ) -> Option<Vec<Ino>> {
        let mut distrust = None;
        self.connected = true;
        self.window = u64::from(welcome.window).max(1);
        let before = self.incarnation.replace(welcome.incarnation);
        if before != self.incarnation {
            distrust = before.map(|_| self.held.keys().copied().collect());
            for id in core::mem::take(&mut self.reclaims) {
                self.unanswered.remove(&id);
            }
            // In a new session nobody is alone any more.
            let none = BTreeSet::new();
            self.reclaim(if before.is_some() { early } else { &none });
        }
        // That they have been given what they wait for may not have come.
        for id in core::mem::take(&mut self.asked_again) {
            self.unanswered.remove(&id);
        }
        let stopping: BTreeSet<u64> = self.unanswered.values().filter_map(Message::stops).collect();
        for request in self.locks.ask_again(&stopping) {
            self.unanswered.insert(self.next, Message::Request(Caller::SERVER, request));
            self.asked_again.insert(self.next);
            self.next += 1;
        }
        // What is held comes before what is done with it.
        (self.sent, self.under_way) = (self.first(), 0);
        self.waiting.clear();
        let reclaims: Vec<_> = self.reclaims.iter().copied().collect();
        for id in reclaims {
            self.send(id, out);
        }
        self.fill(out);
        distrust
    }

    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Makes the requests that tell what is held.
    fn reclaim(&mut self, early: &BTreeSet<Ino>) {
        let held: Vec<_> = self
            .held
            .iter()
            .flat_map(|(ino, hold)| {
                let Hold { home, before, lookups, opens, told, opened, .. } = *hold;
                let exclusive = early.contains(ino);
                let held = Held { ino: *ino, home, lookups, opens, told, opened, exclusive };
                match before.filter(|before| lookups > 1 && matches!(before, Home::Dentry { .. })) {
                    // One of the answers told that it was there.
                    Some(home) => {
                        let before = Held { home, lookups: 1, opens: 0, ..held };
                        [Some(Held { lookups: lookups - 1, ..held }), Some(before)]
                    }
                    None => [Some(held), None],
                }
            })
            .flatten()
            .collect();
        for message in self.unanswered.values() {
            if let Message::Request(_, request) = message {
                self.locks.doubt(request);
            }
        }
        let locks = self.locks.all();
        let mut requests: Vec<_> = held
            .chunks(Self::RECLAIMED)
            .map(|held| Request::Reclaim { held: held.to_vec(), last: false, again: Vec::new() })
            .chain(locks.chunks(Self::RECLAIMED).map(|locks| Request::ReclaimLocks { locks: locks.to_vec() }))
            .collect();
        let again: Vec<_> = self.unanswered.range(..self.ever_sent).map(|(id, _)| RequestId(*id)).collect();
        match requests.last_mut() {
            Some(Request::Reclaim { last, again: none, .. }) => (*last, *none) = (true, again),
            _ => requests.push(Request::Reclaim { held: Vec::new(), last: true, again }),
        }
        for request in requests {
            self.unanswered.insert(self.next, Message::Request(Caller::SERVER, request));
            self.reclaims.insert(self.next);
            self.next += 1;
        }
    }

    fn first(&self) -> u64 {
        self.unanswered.first_key_value().map_or(self.next, |(id, _)| *id)
    }

    /// Sends what the window lets through.
    fn fill(&mut self, out: &mut Vec<FromClient>) {
        if !self.connected {
            return;
        }
        while let Some(&id) = self.waiting.front()
            && self.takes(id)
        {
            self.waiting.pop_front();
            self.send(id, out);
        }
        let end = self.first().saturating_add(self.window);
        while let Some((&id, message)) = self.unanswered.range(self.sent..end).next() {
            self.sent = id + 1;
            self.ever_sent = self.ever_sent.max(self.sent);
            if message.bytes() > 0 && !(self.waiting.is_empty() && self.takes(id)) {
                self.waiting.push_back(id);
            } else if !self.reclaims.contains(&id) {
                self.send(id, out);
            }
        }
    }

    /// Whether the bytes that go with a message may be under way besides the others. One message always may.
    fn takes(&self, id: u64) -> bool {
        let bytes = self.unanswered.get(&id).map_or(0, Message::bytes);
        self.under_way == 0 || self.under_way + bytes <= UNDER_WAY
    }

    fn send(&mut self, id: u64, out: &mut Vec<FromClient>) {
        let below = RequestId(self.first());
        let message = self.unanswered.get(&id).cloned();
        self.under_way += message.as_ref().map_or(0, Message::bytes);
        let id = RequestId(id);
        let announced = |ino| self.held.get(&ino).is_some_and(|hold| hold.announced);
        out.extend(message.map(|message| match message {
            Message::Request(caller, request) => {
                let announced = request.moves().is_some_and(announced);
                FromClient::Request { id, below, announced, caller, request }
            }
            Message::Stream(io, data) => {
                FromClient::Stream { id, below, announced: announced(io.ino()), io, data }
            }
        }));
    }
}
