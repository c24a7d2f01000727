//! A driver of the machine for tests: it does one I/O at a time, on any store, and can make any of
//! them fail.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

mod datafiles;
mod disk;
mod faults;
mod files;
mod ranks;

use std::collections::HashMap;

use espalier_meta::{
    Answered, Atime, Config, DecisionRequest, Finding, Input, Io, IoDone, IoId, Meta, Now, Outbox,
    PeerMessage, Revocation,
};
use espalier_proto::*;

pub use datafiles::DataServers;
pub use disk::{Engine, TestDisk};
pub use faults::{everywhere, under_faults};
pub use files::open_how;
pub use ranks::Ranks;

/// The failure of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not executed.
    Fails(Errno),
    /// It is executed, but reported as failed.
    SeemsToFail(Errno),
    /// It is not executed, nor is anything after it.
    Crash,
    /// It is executed, and the caller of the last request receives a signal meanwhile.
    Interrupts,
}

/// Selects records.
pub type Selection = fn(&TableWrite) -> bool;

pub struct Harness {
    pub meta: Meta,
    pub disk: TestDisk,
    pub data: DataServers,
    pub now: Time,
    pub uptime_ms: u64,
    pub config: Config,
    /// Answers by request.
    pub answers: HashMap<u64, Result<Reply, Errno>>,
    /// Pending I/O.
    pub waiting: Vec<(IoId, Io)>,
    /// Journal and checkpoint I/O and requests to data servers stay in `waiting` until
    /// [`Self::run_until_idle`].
    pub lazy: bool,
    /// Recalls sent to clients.
    pub recalled: Vec<Recall>,
    /// By request: for how many milliseconds the answer may be cached, and the touched inodes.
    pub leases: HashMap<u64, (u32, Touched)>,
    /// Revocations sent to clients.
    pub revocations: Vec<Revocation>,
    /// Change notifications sent to clients.
    pub changed: Vec<Ino>,
    /// Granted locks that had been waited for.
    pub locked: Vec<(ClientId, u64)>,
    /// Results of session requests.
    pub connected: Vec<ClientId>,
    pub refused: Vec<(ClientId, Errno)>,
    pub entered: Vec<(ClientId, Result<(), Errno>)>,
    pub expired: Vec<ClientId>,
    /// Recipients of answers, each with the request.
    pub answered: Vec<(ClientId, u64)>,
    /// Warnings for the log.
    pub warnings: Vec<String>,
    /// Messages to other ranks.
    pub peers: Vec<(Rank, PeerMessage)>,
    /// Decisions of the balancer that the test makes.
    pub decisions: Vec<(IoId, DecisionRequest)>,
    /// Answers with sessions of several clients, whose request numbers may be equal.
    pub replies: Option<Vec<Answered>>,
    /// Number of inputs that follow before the driver does any I/O.
    pub queued: usize,
    /// All I/O stays in `waiting` until an answer is awaited, and is then done in random order.
    pub shuffle: Option<fastrand::Rng>,
    /// Number of I/Os so far.
    pub count: u64,
    /// The I/O that fails, and how.
    pub fault: Option<(u64, Fault)>,
    /// Checkpoints lack these records, as if their changes were not marked.
    pub unmarked: Option<Selection>,
    dead: bool,
    /// Number of the last request.
    pub next: u64,
}

pub const ROOT_CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1, groups: None };

/// A user in a group of the same number; its process is also in group 1000 + `uid`.
pub fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, pid: uid, groups: None }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Size of a strip in bytes.
pub const STRIP: u64 = 64;

pub fn config() -> Config {
    Config { atime: Atime::Never, reserve: 0, split_names: 3, ..Config::new([7; 16], STRIP as u32, 2 << 20) }
}

impl Harness {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: Config) -> Self {
        Self::on(Engine::Memory, config)
    }

    pub fn on(engine: Engine, config: Config) -> Self {
        Self::recover(TestDisk::new(engine, &config), config)
    }

    pub fn recover(mut disk: TestDisk, config: Config) -> Self {
        let meta = disk.recover(&config);
        Self {
            meta,
            disk,
            data: DataServers::default(),
            now: Time::new(1000, 0),
            uptime_ms: 0,
            config,
            answers: HashMap::new(),
            waiting: Vec::new(),
            lazy: false,
            recalled: Vec::new(),
            leases: HashMap::new(),
            revocations: Vec::new(),
            changed: Vec::new(),
            locked: Vec::new(),
            connected: Vec::new(),
            refused: Vec::new(),
            entered: Vec::new(),
            expired: Vec::new(),
            answered: Vec::new(),
            warnings: Vec::new(),
            peers: Vec::new(),
            decisions: Vec::new(),
            replies: None,
            queued: 0,
            shuffle: None,
            count: 0,
            fault: None,
            unmarked: None,
            dead: false,
            next: 0,
        }
    }

    /// True after a crash.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Crashes the machine, and mounts the file system again.
    pub fn crash(self) -> Self {
        Self { data: self.data, ..Self::recover(self.disk.crash(), self.config) }
    }

    /// Mounts the tables without the journal.
    pub fn without_journal(self) -> Self {
        let mut disk = self.disk.crash();
        disk.forget_journal();
        Self::recover(disk, self.config)
    }

    pub fn ask(&mut self, request: Request) -> Result<Reply, Errno> {
        self.ask_as(&ROOT_CALLER, request)
    }

    pub fn ask_as(&mut self, caller: &Caller, request: Request) -> Result<Reply, Errno> {
        let id = self.send(caller, request);
        while !self.answers.contains_key(&id) && self.shuffle.is_some() && self.run_one() {}
        if self.dead {
            return Err(Errno::EIO);
        }
        self.answers.remove(&id).expect("an answer")
    }

    /// Sends a request whose answer may come later.
    pub fn send(&mut self, caller: &Caller, request: Request) -> u64 {
        self.send_from(ClientId(1), caller, request)
    }

    pub fn send_from(&mut self, from: ClientId, caller: &Caller, request: Request) -> u64 {
        self.next += 1;
        let id = self.next;
        self.now.nanos += 1;
        self.input(Input::Request {
            from,
            id: RequestId(id),
            below: RequestId(id),
            follows: Vec::new(),
            caller: caller.clone(),
            request,
        });
        id
    }

    pub fn input(&mut self, input: Input) {
        if self.dead {
            return;
        }
        let mut out = Outbox::default();
        self.meta.on(self.circumstances(), input, &mut out);
        self.take(out);
    }

    /// Ends a client's leases, as the end of its session does.
    pub fn end_leases(&mut self, client: ClientId) {
        let mut out = Outbox::default();
        self.meta.drop_leases(self.circumstances(), client, &mut out);
        self.take(out);
    }

    fn circumstances(&self) -> Now {
        Now { time: self.now, uptime_ms: self.uptime_ms, queued: self.queued }
    }

    fn take(&mut self, mut out: Outbox) {
        self.recalled.extend(out.recalls);
        self.changed.extend(out.changed);
        self.locked.extend(out.locked);
        self.connected.extend(out.connected);
        self.refused.extend(out.refused);
        self.entered.extend(out.entered);
        self.expired.extend(out.expired);
        self.revocations.extend(out.revocations);
        self.peers.extend(out.peers);
        self.warnings.extend(out.warnings);
        if let Some(replies) = &mut self.replies {
            replies.extend(out.replies);
            out.replies = Vec::new();
        }
        for reply in out.replies {
            self.answered.push((reply.to, reply.id.0));
            self.leases.insert(reply.id.0, (reply.lease_ms, reply.touched));
            self.answers.insert(reply.id.0, reply.result);
        }
        for (id, io) in out.io {
            if let Io::Decide(request) = io {
                self.decisions.push((id, *request));
                continue;
            }
            let later = matches!(
                io,
                Io::Journal { .. }
                    | Io::Sync
                    | Io::Stage { .. }
                    | Io::Publish { .. }
                    | Io::Rest
                    | Io::WriteDelay
                    | Io::Admit { .. }
            );
            if self.shuffle.is_some() || (self.lazy && later) {
                self.waiting.push((id, io));
            } else {
                self.perform(id, io);
            }
        }
    }

    fn perform(&mut self, id: IoId, io: Io) {
        let fault = self.fault.filter(|(at, _)| *at == self.count).map(|(_, fault)| fault);
        self.count += 1;
        if self.dead || fault == Some(Fault::Crash) {
            self.dead = true;
            return;
        }
        if fault == Some(Fault::Interrupts) {
            self.input(Input::Cancel { from: ClientId(1), id: RequestId(self.next) });
        }
        let publishes = matches!(io, Io::Publish { .. });
        let result = match fault {
            Some(Fault::Fails(errno)) => Err(errno),
            Some(Fault::SeemsToFail(errno)) => self.execute(io).and(Err(errno)),
            _ => self.execute(io),
        };
        let is_published = publishes && result.is_ok();
        self.input(Input::Done { id, result });
        if is_published {
            self.check_written_records();
        }
    }

    /// Checks that the store has all records that are in memory and count as written.
    fn check_written_records(&mut self) {
        for TableWrite { object, key, value } in self.meta.written_records() {
            let stored = self.disk.store().get(object, &key).unwrap();
            assert!(stored == value, "a change of {object:?} was not marked: {key:?}");
        }
    }

    fn execute(&mut self, io: Io) -> Result<IoDone, Errno> {
        match io {
            Io::Stage { writes } if self.unmarked.is_some() => {
                let is_unmarked =
                    |write: &&TableWrite| write.value.is_some() && self.unmarked.is_some_and(|it| it(write));
                let writes = writes.iter().filter(|write| !is_unmarked(write)).cloned().collect();
                self.disk.execute(Io::Stage { writes })
            }
            Io::Stream(call, layouts) if !layouts.is_empty() => self.data.call(&call, &layouts),
            io => self.disk.execute(io),
        }
    }

    /// Completes waiting I/O, and what follows from it.
    pub fn run_until_idle(&mut self) {
        let (lazy, shuffle) = (std::mem::take(&mut self.lazy), self.shuffle.take());
        for (id, io) in std::mem::take(&mut self.waiting) {
            self.perform(id, io);
        }
        (self.lazy, self.shuffle) = (lazy, shuffle);
    }

    /// Completes one waiting I/O: the first, or a random one. Returns false if there is none.
    pub fn run_one(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let at = self.shuffle.as_mut().map_or(0, |random| random.usize(..self.waiting.len()));
        let (id, io) = self.waiting.remove(at);
        self.perform(id, io);
        true
    }

    pub fn checkpoint(&mut self) {
        // One tick more than a checkpoint needs to start: failed steps are retried.
        for _ in 0..=30 {
            self.input(Input::Tick);
        }
    }

    /// Writes everything out.
    pub fn drain(&mut self) {
        self.run_until_idle();
        for _ in 0..3 {
            self.input(Input::Drain);
        }
        assert!(self.meta.is_idle(), "something still waits: {:?}", self.meta);
    }

    /// Makes a checkpoint, and checks the tables as fsck does.
    pub fn fsck(&mut self) -> Vec<Finding> {
        self.drain();
        self.disk.check(&self.config)
    }
}
