//! Coherence: several clients with caches follow the rules of docs/leases.md and change a tree at
//! random. No cache ever contains what another client has changed.

pub mod client;
pub mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::harness::{Harness, ROOT_CALLER, config};
use client::{CachingClient, Rights, ServerMessage, Thing, call_of};
use espalier_client::Users;
use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;
use fastrand::Rng;
use requests::random_request;

/// Observes the tree and caches nothing.
const OBSERVER: ClientId = ClientId(1);

/// The current tree.
pub struct CurrentTree {
    pub names: BTreeMap<(Ino, Name), Ino>,
    pub dirs: BTreeSet<Ino>,
    pub files: Vec<Ino>,
}

struct CoherenceWorld {
    fs: Harness,
    clients: Vec<CachingClient>,
    random: Rng,
    /// When each unanswered request was sent.
    sent: HashMap<u64, u64>,
    pumped: usize,
    /// Number of comparisons of a cached item with the tree.
    compared: u64,
    /// Number of requests that a cache has answered.
    from_cache: u64,
}

impl CoherenceWorld {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let config = Config {
            lease_ms: Some(*random.choice(&[2_000, 10_000]).unwrap()),
            acknowledge: *random
                .choice(&[Acknowledge::Volatile, Acknowledge::Written, Acknowledge::Durable])
                .unwrap(),
            session_ms: random.bool().then_some(u32::MAX),
            cache_bytes: if random.bool() { usize::MAX } else { 0 },
            ..config()
        };
        let mut fs = Harness::with(config);
        fs.lazy = random.bool();
        fs.shuffle = random.bool().then(|| random.fork());
        let users = |number: u64| if number.is_multiple_of(2) { Users::Report } else { Users::AtOnce };
        let clients: Vec<_> =
            (0..4).map(|number| CachingClient::new(ClientId(10 + number), users(number))).collect();
        for client in clients.iter().map(|client| client.id).chain([OBSERVER]) {
            fs.input(Input::Connect { client, leases: true, resumes: false });
        }
        Self { fs, clients, random, sent: HashMap::new(), pumped: 0, compared: 0, from_cache: 0 }
    }

    /// Executes a request at once.
    fn look(&mut self, request: Request) -> Result<Reply, Errno> {
        let (lazy, shuffle) = (std::mem::take(&mut self.fs.lazy), self.fs.shuffle.take());
        let waiting = std::mem::take(&mut self.fs.waiting);
        let id = self.fs.send_from(OBSERVER, &ROOT_CALLER, request);
        (self.fs.lazy, self.fs.shuffle, self.fs.waiting) = (lazy, shuffle, waiting);
        // Other operations may wait for the same load.
        while !self.fs.answers.contains_key(&id) && self.fs.run_one() {}
        self.fs.end_leases(OBSERVER);
        self.fs.answers.remove(&id).unwrap()
    }

    /// The tree at one instant.
    fn tree(&mut self) -> CurrentTree {
        loop {
            let changes = self.fs.meta.figures().changes;
            let tree = self.walk();
            if self.fs.meta.figures().changes == changes {
                return tree.unwrap();
            }
        }
    }

    fn walk(&mut self) -> Result<CurrentTree, Errno> {
        let mut tree = CurrentTree { names: BTreeMap::new(), dirs: [Ino::ROOT].into(), files: Vec::new() };
        let mut left = vec![Ino::ROOT];
        while let Some(dir) = left.pop() {
            for entry in self.list(dir)? {
                if entry.kind == FileType::Directory {
                    tree.dirs.insert(entry.ino);
                    left.push(entry.ino);
                } else {
                    tree.files.push(entry.ino);
                }
                tree.names.insert((dir, entry.name), entry.ino);
            }
        }
        Ok(tree)
    }

    fn list(&mut self, dir: Ino) -> Result<Vec<Dirent>, Errno> {
        match self.look(Request::ReadDir { dir, after: 0, limit: 10_000, plus: false })? {
            Reply::Listing { entries, end: true, .. } => Ok(entries),
            other => panic!("{other:?}"),
        }
    }

    /// Passes on the server's messages.
    fn pump(&mut self) {
        let now = self.fs.uptime_ms;
        for answered in self.fs.answered.split_off(self.pumped) {
            self.fs.answered.push(answered);
            let (_, id) = answered;
            self.pumped += 1;
            let (lease_ms, touched) = self.fs.leases.remove(&id).unwrap();
            let Some(result) = self.fs.answers.remove(&id) else { continue };
            let Some(sent) = self.sent.remove(&id) else { continue };
            let took = now - sent;
            assert!(took < 40_000, "an answer after {took} ms");
            let client = self.clients.iter_mut().find(|client| client.pending.contains_key(&id)).unwrap();
            client.inbox.push_back(ServerMessage::Reply { id, lease_ms, touched, result });
        }
        for revocation in std::mem::take(&mut self.fs.revocations) {
            if revocation.client == OBSERVER {
                self.fs.input(Input::Revoked { client: OBSERVER, number: revocation.number });
                continue;
            }
            let client = self.clients.iter_mut().find(|client| client.id == revocation.client).unwrap();
            client
                .inbox
                .push_back(ServerMessage::Revoke { number: revocation.number, lease: revocation.lease });
        }
    }

    fn send(&mut self, client: usize, request: Request) {
        let is_answered = !matches!(request, Request::Forget { .. });
        let now = self.fs.uptime_ms;
        let changes = self.clients[client].cache.sent(&call_of(&request), now);
        let id = self.fs.send_from(self.clients[client].id, &ROOT_CALLER, request.clone());
        if is_answered {
            self.sent.insert(id, now);
            self.clients[client].pending.insert(id, (request, now, changes));
        }
        self.pump();
    }

    /// Delivers the next message to a client, and executes what follows.
    fn deliver(&mut self, client: usize) {
        match self.clients[client].inbox.pop_front() {
            None => {}
            Some(ServerMessage::Revoke { number, lease }) => {
                self.clients[client].forget(&lease);
                self.clients[client].cache.revoke(&lease);
                let client = self.clients[client].id;
                if self.random.u8(..4) == 0 {
                    self.fs.input(Input::Blocked { client, number });
                }
                self.fs.input(Input::Revoked { client, number });
                self.pump();
            }
            Some(ServerMessage::Reply { id, lease_ms, touched, result }) => {
                let (request, sent, _changes) = self.clients[client].pending.remove(&id).unwrap();
                let is_outdated = self.clients[client].outdated.remove(&id);
                let until = if is_outdated { 0 } else { sent + u64::from(lease_ms) };
                let now = self.fs.uptime_ms;
                self.clients[client].replied(&request, &result, (now, until), &touched);
                if let (Request::Extend { ino, offset, .. }, Ok(Reply::Granted)) = (&request, &result) {
                    let bytes = vec![self.random.u8(..); self.random.usize(1..300)];
                    self.fs.disk.store().stream_write(*ino, *offset, &bytes).unwrap();
                    self.clients[client].has_written();
                }
                for request in requests::following(&mut self.random, &request, &result) {
                    self.send(client, request);
                }
            }
        }
    }

    fn step(&mut self) {
        let client = self.random.usize(..self.clients.len());
        match self.random.u32(..100) {
            0..40 if self.clients[client].pending.len() < 2 && self.is_awake(client) => {
                let tree = self.tree();
                let request = random_request(&mut self.random, &tree);
                if self.clients[client].answers(&request, self.fs.uptime_ms) {
                    self.from_cache += 1;
                } else {
                    self.send(client, request);
                }
            }
            40..75 if self.is_awake(client) => self.deliver(client),
            75..90 => {
                self.fs.run_one();
                self.pump();
            }
            90..91 => {
                let pending: Vec<u64> = self.clients[client].pending.keys().copied().collect();
                if let Some(id) = pending.into_iter().min() {
                    self.fs.input(Input::Cancel { from: self.clients[client].id, id: RequestId(id) });
                    self.pump();
                }
            }
            91..99 => {
                let ms = 1 + self.random.u64(..200);
                self.wait_ms(ms);
            }
            99 if self.clients.iter().all(|client| client.asleep_until <= self.fs.uptime_ms) => {
                self.clients[client].asleep_until = self.fs.uptime_ms + self.random.u64(..20_000);
            }
            _ => {}
        }
        self.check();
    }

    fn is_awake(&self, client: usize) -> bool {
        self.clients[client].asleep_until <= self.fs.uptime_ms
    }

    fn wait_ms(&mut self, ms: u64) {
        let before = self.fs.uptime_ms / 1_000;
        self.fs.uptime_ms += ms;
        if self.fs.uptime_ms / 1_000 > before {
            self.fs.input(Input::Tick);
            self.pump();
        }
        let now = self.fs.uptime_ms;
        assert!(self.sent.values().all(|sent| now - sent < 60_000), "a request stays unanswered");
    }

    /// Compares everything that clients may use with the tree.
    fn check(&mut self) {
        let tree = self.tree();
        let (now, changes) = (self.fs.uptime_ms, self.fs.meta.figures().changes);
        let mut inodes: HashMap<(Ino, usize), Option<Thing>> = HashMap::new();
        for client in 0..self.clients.len() {
            self.clients[client].expire(now);
            let (mut names, mut things) = self.clients[client].known(&tree, now);
            names.extend(self.clients[client].usable_names().map(|(key, ino)| (key.clone(), ino)));
            for ((dir, name), ino) in names {
                // In a removed tree, names may still be used.
                if tree.dirs.contains(&dir) {
                    let is = tree.names.get(&(dir, name.clone())).copied();
                    assert_eq!(ino, is, "{client} has cached {name:?} in {dir}");
                    self.compared += 1;
                }
            }
            things.extend(self.clients[client].usable_things().map(|(ino, thing)| (ino, thing.clone())));
            for (ino, thing) in things {
                let is_there = tree.dirs.contains(&ino) || tree.files.contains(&ino);
                if !is_there && thing.is_of_directory() {
                    continue;
                }
                let key = (ino, thing.sort());
                let is = match inodes.get(&key) {
                    Some(is) => is.clone(),
                    None => self.thing(&tree, ino, &thing),
                };
                if self.fs.meta.figures().changes != changes {
                    // The tree has changed meanwhile.
                    return;
                }
                inodes.insert(key, is.clone());
                match (&thing, &is) {
                    (Thing::Rights(cached), Some(Thing::Rights(is))) => {
                        assert!(
                            cached.holds(is),
                            "{client} has cached {cached:?} of {ino}, which has {is:?}"
                        );
                    }
                    (thing, Some(is)) => assert_eq!(thing, is, "{client} has cached {ino}"),
                    // Or it is in a removed tree, and neither is in memory.
                    (Thing::Attr(attr), None) if self.fs.config.cache_bytes > 0 => {
                        assert_eq!(attr.nlink, 0, "{client} has cached {ino}, which is gone");
                    }
                    _ => {}
                }
                self.compared += 1;
            }
        }
    }

    /// The current state of an inode; `None`: it is gone.
    fn thing(&mut self, tree: &CurrentTree, ino: Ino, like: &Thing) -> Option<Thing> {
        let request = match like {
            Thing::Attr(_) | Thing::Rights(_) => Request::GetAttr { ino },
            Thing::Bytes(_) => Request::Read { ino, offset: 0, size: 1 << 20, noatime: false },
            Thing::Listing(_) => Request::ReadDir { dir: ino, after: 0, limit: 10_000, plus: false },
            Thing::Xattrs(_) => Request::ListXattr { ino },
        };
        // An inode that nobody knows by number is found by name.
        let place = tree.names.iter().find(|(_, of)| **of == ino);
        if let Some(((dir, name), _)) = place {
            let found = self.look(Request::Lookup { dir: *dir, name: name.clone() });
            assert!(matches!(found, Ok(Reply::Entry(entry)) if entry.attr.ino == ino));
        }
        let reply = self.look(request.clone());
        if place.is_some() {
            self.fs.send_from(OBSERVER, &ROOT_CALLER, Request::Forget { ino, lookups: 1 });
        }
        match (Thing::of(&request, &reply.ok()?)?, like) {
            (Thing::Attr(attr), Thing::Rights(_)) => Some(Thing::Rights(Rights::of(&attr))),
            // The observer's lease is no part of the state.
            (Thing::Attr(attr), _) => Some(Thing::Attr(Attr { contents_leased: true, ..attr })),
            (thing, _) => Some(thing),
        }
    }
}

fn run(seed: u64) -> (u64, u64, u64) {
    let mut world = CoherenceWorld::new(seed);
    for _ in 0..3_000 {
        world.step();
    }
    // In the end all requests are answered.
    for client in &mut world.clients {
        client.asleep_until = 0;
    }
    while world.clients.iter().any(|client| !client.pending.is_empty() || !client.inbox.is_empty()) {
        for client in 0..world.clients.len() {
            world.deliver(client);
        }
        while world.fs.run_one() {
            world.pump();
        }
        world.wait_ms(100);
        world.check();
    }
    (world.fs.lazy, world.fs.shuffle) = (false, None);
    let waits = world.fs.meta.figures().lease_waits;
    for client in &world.clients {
        world.fs.end_leases(client.id);
    }
    world.fs.drain();
    // The next mount removes unused streams.
    assert_eq!(world.fs.crash().fsck(), []);
    (world.compared, waits, world.from_cache)
}

#[test]
fn cached_state_is_never_stale() {
    let (mut compared, mut waits, mut from_cache) = (0, 0, 0);
    for seed in 0..100 {
        println!("seed {seed}");
        let of_seed = run(seed);
        (compared, waits, from_cache) = (compared + of_seed.0, waits + of_seed.1, from_cache + of_seed.2);
    }
    println!("{compared} comparisons, {waits} waits, {from_cache} answers from caches");
    assert!(
        compared > 1_000_000 && waits > 3_000 && from_cache > 500,
        "too little happened: {compared} comparisons, {waits} waits, {from_cache} answers from caches"
    );
}
