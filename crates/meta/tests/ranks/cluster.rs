//! A cluster of machines and clients. Messages may be delayed, lost with their connection, or
//! duplicated, and machines may crash between any two steps.

use std::collections::{BTreeMap, VecDeque};

use espalier_client::Link;
use espalier_meta::{Acknowledge, Check, Config, Finding, Input, PeerMessage};
use espalier_proto::*;
use fastrand::Rng;

use super::cache::Cache;
use super::model::TreeModel;
use crate::harness::{Harness, ROOT_CALLER, Selection, config, name};

/// The kind of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Never,
    /// The end of a process.
    Process,
    /// A power failure, with durable acknowledgement.
    Power,
    /// A power failure that may lose acknowledged operations, but never a part of one.
    PowerUnsynced,
}

pub struct ClusterOptions {
    pub seed: u64,
    pub ranks: u16,
    pub clients: usize,
    pub operations: usize,
    pub crash: Crash,
    /// Connections break, and messages are duplicated.
    pub losses: bool,
    pub evicting: bool,
    /// Nearly all operations move directories.
    pub moving: bool,
    /// Clients cache replies.
    pub leases: bool,
    /// Records that checkpoints lack.
    pub unmarked: Option<Selection>,
}

const LEASE_MS: u32 = 3000;

struct Host {
    fs: Harness,
    incarnation: u64,
}

/// A client's connection to a rank.
struct RankConnection {
    link: Link,
    up: bool,
    to_server: VecDeque<FromClient>,
    to_client: VecDeque<FromServer>,
    /// The client waits for the server's greeting.
    greeting: bool,
}

struct RankClient {
    id: ClientId,
    lines: Vec<RankConnection>,
    /// The current operation: its number and request, the rank it was sent to, and the request
    /// number there.
    outstanding: Option<(u64, Request, Rank, RequestId)>,
    /// Requests to send next.
    next: VecDeque<Request>,
    /// Known directories and files.
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    cache: Cache,
    /// Step at which the current operation started.
    since: u64,
}

pub struct RankCluster {
    setting: ClusterOptions,
    random: Rng,
    hosts: Vec<Host>,
    clients: Vec<RankClient>,
    /// Messages between ranks.
    wires: BTreeMap<(u16, u16), VecDeque<PeerMessage>>,
    /// Disconnected pairs of ranks, the smaller first.
    cut: Vec<(u16, u16)>,
    model: TreeModel,
    operation: u64,
    uptime_ms: u64,
    /// Number of operations answered without a message.
    pub cached: usize,
    left: usize,
    /// Answers are not compared: the changes that they reported may be lost.
    is_vague: bool,
}

impl RankCluster {
    pub fn new(setting: ClusterOptions) -> Self {
        let mut random = Rng::with_seed(setting.seed);
        let acknowledge =
            if setting.crash == Crash::Power { Acknowledge::Durable } else { Acknowledge::Written };
        let host = |rank| {
            let config = Config {
                session_ms: Some(u32::MAX),
                lease_ms: setting.leases.then_some(LEASE_MS),
                acknowledge,
                rank: Rank(rank),
                ranks: setting.ranks,
                cache_bytes: if setting.evicting { 0 } else { usize::MAX },
                ..config()
            };
            let mut fs = Harness::with(config);
            fs.unmarked = setting.unmarked;
            prepare(&mut fs, &mut random);
            Host { fs, incarnation: 1 }
        };
        let hosts: Vec<Host> = (0..setting.ranks).map(host).collect();
        let line = |_| RankConnection {
            link: Link::default(),
            up: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            greeting: false,
        };
        let client = |number| RankClient {
            id: ClientId(100 + number as u64),
            lines: (0..setting.ranks).map(line).collect(),
            outstanding: None,
            next: VecDeque::new(),
            dirs: vec![Ino::ROOT],
            files: Vec::new(),
            cache: Cache::default(),
            since: 0,
        };
        let clients = (0..setting.clients).map(client).collect();
        let mut cut = Vec::new();
        for a in 0..setting.ranks {
            cut.extend((a + 1..setting.ranks).map(|b| (a, b)));
        }
        Self {
            left: setting.operations,
            setting,
            random,
            hosts,
            clients,
            wires: BTreeMap::new(),
            cut,
            model: TreeModel::new(),
            operation: 0,
            uptime_ms: 0,
            cached: 0,
            is_vague: false,
        }
    }

    /// Moves two directories at different ranks into each other at the same time.
    pub fn move_into_each_other(mut self) {
        let shift = self.random.u8(..8);
        for number in 0..shift {
            self.mkdir(Ino::ROOT, &format!("shift{number}"));
        }
        let (a, b) = (self.mkdir(Ino::ROOT, "a"), self.mkdir(Ino::ROOT, "b"));
        let (x, y) = (self.mkdir(a, "x"), self.mkdir(b, "y"));
        let (p, q) = (self.mkdir(x, "p"), self.mkdir(y, "q"));
        let rename = |from_dir, from: &str, to_dir| {
            let (from, to, flags) = (name(from), name("z"), RenameFlags::empty());
            Request::Rename { from_dir, from, to_dir, to, flags, time: None }
        };
        self.ask(0, rename(a, "x", q));
        self.ask(1, rename(b, "y", p));
        self.run();
    }

    fn mkdir(&mut self, dir: Ino, file: &str) -> Ino {
        let (perm, umask, open, exclusive) = (0o755, 0, None, true);
        let node = NewNode::Directory;
        self.ask_now(
            0,
            Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None },
        );
        let Some(Request::Find { ino, .. }) = self.clients[0].next.pop_front() else {
            return *self.clients[0].dirs.last().unwrap();
        };
        self.ask_now(0, Request::Find { ino, kind: Some(FileType::Directory), open: None });
        ino
    }

    /// Executes all operations, finishes those in progress, and checks everything.
    pub fn run(mut self) -> usize {
        let mut steps = 0;
        while self.left > 0 || self.clients.iter().any(|client| client.outstanding.is_some()) {
            self.step();
            steps += 1;
            assert!(steps < 400_000, "seed {}: operations do not end", self.setting.seed);
        }
        self.quiesce();
        self.read_all();
        for client in &self.clients {
            for host in &mut self.hosts {
                host.fs.input(Input::Leave { client: client.id });
            }
        }
        self.quiesce();
        if self.random.bool() {
            self.run_until_counted();
        }
        assert_eq!(self.fsck(), [], "seed {}", self.setting.seed);
        self.cached
    }

    fn step(&mut self) {
        let ranks = self.setting.ranks;
        match self.random.u32(..100) {
            0..30 => {
                let host = self.random.usize(..self.hosts.len());
                self.hosts[host].fs.run_one();
            }
            30..60 => self.deliver_between_ranks(),
            60..85 => self.deliver_to_or_from_client(),
            85..93 => self.begin_operation(),
            93..95 => self.connect_ranks(),
            95..97 => self.connect_clients(),
            97 => {
                let host = self.random.usize(..self.hosts.len());
                self.tick(host);
            }
            98 if self.setting.losses && self.random.u8(..4) == 0 => {
                if self.random.bool() {
                    let (a, b) = (self.random.u16(..ranks), self.random.u16(..ranks));
                    self.cut(a, b);
                } else {
                    let (client, rank) =
                        (self.random.usize(..self.clients.len()), self.random.usize(..ranks as usize));
                    self.hang_up(client, rank);
                }
            }
            99 if self.setting.crash != Crash::Never && self.random.u8(..3) == 0 => {
                let rank = self.random.u16(..ranks);
                self.crash(rank);
            }
            _ => {}
        }
        self.collect();
    }

    // ---- Background activity

    fn tick(&mut self, host: usize) {
        self.uptime_ms += 100;
        let fs = &mut self.hosts[host].fs;
        fs.uptime_ms = self.uptime_ms;
        fs.now.nanos += 1_000_000;
        fs.input(Input::Tick);
    }

    fn deliver_between_ranks(&mut self) {
        let full: Vec<_> =
            self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(pair, _)| *pair).collect();
        let Some((from, to)) = self.random.choice(full) else { return };
        let wire = self.wires.get_mut(&(from, to)).unwrap();
        let message = wire.pop_front().unwrap();
        if self.setting.losses && self.random.u8(..8) == 0 {
            let at = self.random.usize(..=wire.len());
            wire.insert(at, message.clone());
        }
        self.hosts[to as usize].fs.input(Input::Peer { from: Rank(from), message });
    }

    fn deliver_to_or_from_client(&mut self) {
        let (client, rank) = (self.random.usize(..self.clients.len()), self.random.usize(..self.hosts.len()));
        let line = &mut self.clients[client].lines[rank];
        if self.random.bool() {
            if let Some(message) = line.to_server.pop_front() {
                self.take_from_client(client, rank, message);
            }
        } else if let Some(message) = line.to_client.pop_front() {
            self.take_from_server(client, rank, message);
        }
    }

    fn take_from_client(&mut self, client: usize, rank: usize, message: FromClient) {
        let from = self.clients[client].id;
        let fs = &mut self.hosts[rank].fs;
        match message {
            FromClient::Request { id, below, caller, request, .. } => {
                fs.now.nanos += 1;
                fs.input(Input::Request { from, id, below, follows: Vec::new(), caller, request });
            }
            FromClient::Revoked { number } => fs.input(Input::Revoked { client: from, number }),
            _ => unreachable!(),
        }
    }

    fn take_from_server(&mut self, client: usize, rank: usize, message: FromServer) {
        let it = &mut self.clients[client];
        match message {
            FromServer::Reply { id, lease_ms, touched, result, .. } => {
                let outstanding =
                    it.outstanding.take_if(|(_, _, at, number)| (at.0 as usize, *number) == (rank, id));
                let mut out = Vec::new();
                it.lines[rank].link.answered(id, &result, outstanding.is_some(), &mut out);
                it.lines[rank].to_server.extend(out);
                if let Some((operation, request, ..)) = outstanding {
                    let attrs = touched.attrs.iter().map(|attr| attr.ino);
                    let touched: Vec<Ino> = attrs.chain(touched.others.iter().copied()).collect();
                    it.cache.forget(&request, &touched);
                    if let (1.., Ok(reply)) = (lease_ms, &result) {
                        it.cache.learn(&request, reply, it.since + u64::from(lease_ms));
                    }
                    self.ended(client, operation, request, result);
                }
            }
            FromServer::Revoke { number, lease } => {
                it.cache.give_up(&lease);
                it.lines[rank].to_server.push_back(FromClient::Revoked { number });
            }
            _ => {}
        }
    }

    /// Passes on the machines' outputs.
    fn collect(&mut self) {
        for rank in 0..self.hosts.len() {
            let fs = &mut self.hosts[rank].fs;
            for (to, message) in std::mem::take(&mut fs.peers) {
                let pair = (rank as u16, to.0);
                if !self.cut.contains(&sorted(pair)) {
                    self.wires.entry(pair).or_default().push_back(message);
                }
            }
            for reply in fs.replies.replace(Vec::new()).unwrap() {
                let Some(it) = self.clients.iter_mut().find(|it| it.id == reply.to) else { continue };
                let line = &mut it.lines[rank];
                if line.up {
                    let (id, lease_ms, touched, result) =
                        (reply.id, reply.lease_ms, reply.touched, reply.result);
                    let announced = false;
                    line.to_client.push_back(FromServer::Reply { id, lease_ms, announced, touched, result });
                }
            }
            for revocation in std::mem::take(&mut fs.revocations) {
                let it = self.clients.iter_mut().find(|it| it.id == revocation.client).unwrap();
                let line = &mut it.lines[rank];
                if line.up {
                    let (number, lease) = (revocation.number, revocation.lease);
                    line.to_client.push_back(FromServer::Revoke { number, lease });
                }
            }
            for (client, errno) in std::mem::take(&mut fs.refused) {
                // Only a power failure can make a session unknown.
                assert_eq!((self.setting.crash, errno), (Crash::PowerUnsynced, Errno::ESTALE));
                let it = self.clients.iter_mut().find(|it| it.id == client).unwrap();
                let line = &mut it.lines[rank];
                line.greeting = false;
                it.cache.distrust(rank);
                for id in line.link.ended().lost {
                    if it
                        .outstanding
                        .as_ref()
                        .is_some_and(|(_, _, at, number)| (at.0 as usize, *number) == (rank, id))
                    {
                        it.outstanding = None;
                    }
                }
            }
            for client in std::mem::take(&mut fs.connected) {
                let it = self.clients.iter_mut().find(|it| it.id == client).unwrap();
                let line = &mut it.lines[rank];
                if std::mem::take(&mut line.greeting) {
                    line.up = true;
                    let welcome = Welcome {
                        incarnation: self.hosts[rank].incarnation,
                        window: 64,
                        session_ms: u32::MAX,
                        rank: Rank(rank as u16),
                        root: Ino::ROOT,
                        servers: ServerMap::NONE,
                        data_pool: None,
                    };
                    let mut out = Vec::new();
                    if line.link.connected(&welcome, &[].into(), &mut out).is_some() {
                        it.cache.distrust(rank);
                    }
                    line.to_server.extend(out);
                }
            }
        }
    }

    // ---- Connections and crashes

    fn connect_ranks(&mut self) {
        if self.cut.is_empty() {
            return;
        }
        let (a, b) = self.cut.swap_remove(self.random.usize(..self.cut.len()));
        self.hosts[a as usize].fs.input(Input::PeerConnected { rank: Rank(b) });
        self.hosts[b as usize].fs.input(Input::PeerConnected { rank: Rank(a) });
    }

    fn cut(&mut self, a: u16, b: u16) {
        if a != b && !self.cut.contains(&sorted((a, b))) {
            self.cut.push(sorted((a, b)));
            self.wires.remove(&(a, b));
            self.wires.remove(&(b, a));
        }
    }

    fn connect_clients(&mut self) {
        let (client, rank) = (self.random.usize(..self.clients.len()), self.random.usize(..self.hosts.len()));
        self.connect_client(client, rank);
    }

    fn connect_client(&mut self, client: usize, rank: usize) {
        let line = &mut self.clients[client].lines[rank];
        if !line.up && !line.greeting {
            line.greeting = true;
            let resumes = line.link.incarnation().is_some();
            let client = self.clients[client].id;
            self.hosts[rank].fs.input(Input::Connect { client, leases: true, resumes });
        }
    }

    fn hang_up(&mut self, client: usize, rank: usize) {
        let line = &mut self.clients[client].lines[rank];
        (line.up, line.greeting) = (false, false);
        line.to_client.clear();
        line.to_server.clear();
        line.link.disconnected();
    }

    fn crash(&mut self, rank: u16) {
        for other in 0..self.setting.ranks {
            self.cut(rank, other);
        }
        for client in 0..self.clients.len() {
            self.hang_up(client, rank as usize);
        }
        let mut host = self.hosts.remove(rank as usize);
        match self.setting.crash {
            Crash::Process => host.fs.disk.sync_journal(),
            Crash::PowerUnsynced => self.is_vague = true,
            Crash::Never | Crash::Power => {}
        }
        let (now, uptime_ms) = (host.fs.now, host.fs.uptime_ms);
        let mut fs = host.fs.crash();
        (fs.now, fs.uptime_ms) = (now, uptime_ms);
        prepare(&mut fs, &mut self.random);
        self.hosts.insert(rank as usize, Host { fs, incarnation: host.incarnation + 1 });
    }

    // ---- Operations

    fn begin_operation(&mut self) {
        let client = self.random.usize(..self.clients.len());
        if self.clients[client].outstanding.is_some() || self.left == 0 {
            return;
        }
        let request = match self.clients[client].next.pop_front() {
            Some(request) => request,
            None => {
                self.left -= 1;
                self.random_request(client)
            }
        };
        self.ask(client, request);
    }

    fn ask(&mut self, client: usize, request: Request) {
        self.operation += 1;
        if !self.is_vague {
            self.model.begins(self.operation, request.clone());
        }
        let (rank, mut out) = (request.rank(), Vec::new());
        let it = &mut self.clients[client];
        it.since = self.uptime_ms;
        if let Some(reply) = it.cache.answer(&request, self.uptime_ms) {
            self.cached += 1;
            return self.ended(client, self.operation, request, Ok(reply));
        }
        let line = &mut it.lines[rank.0 as usize];
        let id = line.link.ask(ROOT_CALLER, request.clone(), &mut out);
        line.to_server.extend(out);
        it.outstanding = Some((self.operation, request, rank, id));
    }

    fn ended(&mut self, client: usize, operation: u64, request: Request, result: Result<Reply, Errno>) {
        if !self.is_vague {
            let (seed, model) = (self.setting.seed, &mut self.model);
            assert!(model.ends(operation, &result), "seed {seed}: {request:?} is answered {result:?}");
        }
        let it = &mut self.clients[client];
        match &result {
            Ok(Reply::Entry(entry)) => {
                let is_dir = entry.attr.kind == FileType::Directory;
                let known = if is_dir { &mut it.dirs } else { &mut it.files };
                if !known.contains(&entry.attr.ino) {
                    known.push(entry.attr.ino);
                }
            }
            Ok(Reply::Remote { ino, kind, .. }) => {
                it.next.push_back(Request::Find { ino: *ino, kind: Some(*kind), open: None });
            }
            _ => {}
        }
    }

    fn random_request(&mut self, client: usize) -> Request {
        let (random, RankClient { dirs, files, .. }) = (&mut self.random, &self.clients[client]);
        let any_dir = |random: &mut Rng, dirs: &[Ino]| {
            // Recent directories are more interesting than those that are gone.
            let newest = dirs.len().saturating_sub(6);
            if random.u8(..3) == 0 {
                dirs[random.usize(..dirs.len())]
            } else {
                dirs[random.usize(newest..dirs.len())]
            }
        };
        let (dir, other) = (any_dir(random, dirs), any_dir(random, dirs));
        let any_name = |random: &mut Rng| Name::new(&[b'a' + random.u8(..3)]).unwrap();
        let (name, new) = (any_name(random), any_name(random));
        let ino = if random.bool() { dir } else { random.choice(files).copied().unwrap_or(dir) };
        let create = |node| Request::Create {
            dir,
            name: name.clone(),
            node,
            perm: 0o755,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        };
        let kind = match self.setting.moving {
            true if dirs.len() > 3 && random.u8(..10) > 0 => 62,
            true if random.bool() => 0,
            _ => random.u32(..100),
        };
        match kind {
            0..25 => create(NewNode::Directory),
            25..35 => create(NewNode::Regular),
            35..45 => Request::Link { ino, dir, name },
            45..52 => Request::Unlink { dir, name, time: None },
            52..62 => Request::RmDir { dir, name, time: None },
            62..85 => {
                let flags = match random.u8(..6) {
                    0 | 1 => RenameFlags::EXCHANGE,
                    2 => RenameFlags::NOREPLACE,
                    _ => RenameFlags::empty(),
                };
                Request::Rename { from_dir: dir, from: name, to_dir: other, to: new, flags, time: None }
            }
            85..91 if self.setting.leases && random.bool() => {
                let cached = self.clients[client].cache.names.keys().min().cloned();
                let (dir, name) = cached.unwrap_or((dir, name));
                Request::Lookup { dir, name }
            }
            85..91 => Request::Lookup { dir, name },
            91..95 => Request::ReadDir { dir, after: 0, limit: 100, plus: random.bool() },
            95..98 => Request::GetAttr { ino },
            // By a file handle.
            _ => Request::Find { ino, kind: None, open: None },
        }
    }

    // ---- The end

    fn connect_all(&mut self) {
        while !self.cut.is_empty() {
            self.connect_ranks();
        }
        for client in 0..self.clients.len() {
            (0..self.hosts.len()).for_each(|rank| self.connect_client(client, rank));
        }
    }

    /// Runs until nothing is in progress.
    fn quiesce(&mut self) {
        for _ in 0..400 {
            self.connect_all();
            self.collect();
            for pair in self.wires.keys().copied().collect::<Vec<_>>() {
                while let Some(message) = self.wires.get_mut(&pair).and_then(VecDeque::pop_front) {
                    self.hosts[pair.1 as usize].fs.input(Input::Peer { from: Rank(pair.0), message });
                }
            }
            for client in 0..self.clients.len() {
                for rank in 0..self.hosts.len() {
                    while let Some(message) = self.clients[client].lines[rank].to_server.pop_front() {
                        self.take_from_client(client, rank, message);
                    }
                    while let Some(message) = self.clients[client].lines[rank].to_client.pop_front() {
                        self.take_from_server(client, rank, message);
                    }
                }
            }
            for host in 0..self.hosts.len() {
                while self.hosts[host].fs.run_one() {}
                self.tick(host);
                while self.hosts[host].fs.run_one() {}
            }
            self.collect();
            let is_over = self.hosts.iter().all(|host| host.fs.meta.open_transactions() == 0)
                && self
                    .wires
                    .values()
                    .flatten()
                    .all(|message| matches!(message, PeerMessage::Heartbeat { .. }))
                && self.clients.iter().all(|client| client.outstanding.is_none())
                && self
                    .clients
                    .iter()
                    .all(|it| it.lines.iter().all(|line| line.up && line.to_server.is_empty()));
            if is_over {
                return;
            }
        }
        let open: Vec<_> = self.hosts.iter().map(|host| host.fs.meta.open_transactions()).collect();
        let outstanding: Vec<_> = self.clients.iter().map(|client| &client.outstanding).collect();
        panic!("seed {}: transactions stay open: {open:?}; unanswered: {outstanding:?}", self.setting.seed);
    }

    /// Runs until all ranks have counted all usage. `fsck` takes uncounted deltas into account.
    fn run_until_counted(&mut self) {
        for _ in 0..100 {
            if self.hosts.iter().all(|host| host.fs.meta.unsent_usage() == 0) {
                return;
            }
            self.quiesce();
        }
        panic!("seed {}: ranks go on telling each other of usage", self.setting.seed);
    }

    fn ask_now(&mut self, client: usize, request: Request) {
        self.ask(client, request);
        self.quiesce();
    }

    /// Checks that the final state matches some order of the operations.
    fn read_all(&mut self) {
        if self.is_vague {
            return;
        }
        for client in 0..self.clients.len() {
            for dir in self.clients[client].dirs.clone() {
                self.ask_now(client, Request::ReadDir { dir, after: 0, limit: 100, plus: false });
                self.ask_now(client, Request::GetAttr { ino: dir });
            }
            for ino in self.clients[client].files.clone() {
                self.ask_now(client, Request::GetAttr { ino });
            }
        }
    }

    fn fsck(&mut self) -> Vec<Finding> {
        let mut checks = Vec::new();
        for host in &mut self.hosts {
            for _ in 0..3 {
                host.fs.input(Input::Drain);
                host.fs.run_until_idle();
                while host.fs.run_one() {}
            }
            assert!(host.fs.meta.is_idle(), "something still waits: {:?}", host.fs.meta);
            checks.push(host.fs.disk.checked(&host.fs.config));
        }
        Check::finish_all(checks)
    }
}

/// All I/O waits, and completes in any order.
fn prepare(fs: &mut Harness, random: &mut Rng) {
    fs.run_until_idle();
    fs.shuffle = Some(random.fork());
    fs.replies = Some(Vec::new());
    // Clocks differ.
    fs.now.secs = 1000 + random.i64(..3);
}

fn sorted((a, b): (u16, u16)) -> (u16, u16) {
    (a.min(b), a.max(b))
}
