//! Walks of trees by a kernel: the next directories are fetched ahead.

use std::collections::{BTreeMap, BTreeSet};

use espalier_client::{
    Actions, Answer, Cache, Call, FrontendEvent, IncomingCall, Interrupt, Sessions, Users,
};
use espalier_proto::{
    Attr, Caller, Dirent, Entry, Errno, FileType, FromClient, FromServer, Ino, LAST_CURSOR, Lease, Location,
    Name, NewNode, Rank, RemoteName, Reply, Request, RequestId, RevocationId, ServerMap, Time, Touched,
    Welcome,
};

const RANKS: u16 = 3;
const LEASE_MS: u32 = 60_000;
const ROOM: u32 = 100;
const PAUSE_MS: u64 = 3000;

/// A cluster's tree, and the client of a mount.
struct WalkedTree {
    sessions: Sessions<u64>,
    /// The entries of directories, in order.
    tree: BTreeMap<Ino, Vec<Ino>>,
    /// Requests without a reply.
    requests: Vec<(Rank, RequestId, Request)>,
    answers: Vec<(u64, Result<Answer, Errno>)>,
    /// First pages that were requested.
    listed: Vec<Ino>,
    /// Number of round trips that callers have waited for.
    waits: usize,
    /// Lookups that the kernel knows.
    known: Vec<Ino>,
    lease_ms: u32,
    calls: u64,
    now: u64,
}

impl WalkedTree {
    fn new(tree: BTreeMap<Ino, Vec<Ino>>, lease_ms: u32) -> Self {
        let mut mount = Self {
            sessions: Sessions::new(Cache::new(1000, Users::Report), RANKS.into(), true),
            tree,
            requests: Vec::new(),
            answers: Vec::new(),
            listed: Vec::new(),
            waits: 0,
            known: Vec::new(),
            lease_ms,
            calls: 0,
            now: 0,
        };
        for rank in (0..RANKS).map(Rank) {
            let (servers, root) = (ServerMap::NONE, Ino::ROOT);
            let welcome = Welcome {
                incarnation: 1,
                window: 64,
                session_ms: 60_000,
                rank,
                root,
                servers,
                data_pool: None,
            };
            let mut actions = Actions::default();
            mount.sessions.connected(0, rank, &welcome, &mut actions);
            mount.take(actions);
        }
        mount.call(Request::GetAttr { ino: Ino::ROOT });
        mount.round_trip();
        mount.answers.clear();
        mount
    }

    /// A root with subdirectories at all ranks, each of which has two files.
    fn flat(dirs: u64) -> Self {
        let numbers: Vec<Ino> = (1..=dirs).map(|number| ino(number, true)).collect();
        let files = |dir: Ino| (1..=2).map(|at| Ino(dir.0 & !0xffff | at)).collect();
        let mut tree: BTreeMap<Ino, Vec<Ino>> = numbers.iter().map(|dir| (*dir, files(*dir))).collect();
        tree.insert(Ino::ROOT, numbers);
        Self::new(tree, LEASE_MS)
    }

    fn dirs(&self) -> Vec<Ino> {
        self.tree[&Ino::ROOT].clone()
    }

    fn call(&mut self, request: Request) -> u64 {
        self.calls += 1;
        let (caller, call) = (Caller::SERVER, Call::Request(request));
        if let Some((result, _)) = self.sessions.answer(self.now, &caller, &call) {
            self.answers.push((self.calls, result));
            return self.calls;
        }
        let incoming = IncomingCall { call_id: self.calls, caller, call, ticket: self.calls };
        let mut actions = Actions::default();
        self.sessions.call(self.now, incoming, &mut actions);
        self.take(actions);
        self.calls
    }

    fn take(&mut self, actions: Actions<u64>) {
        for (rank, message) in actions.send {
            let FromClient::Request { id, request, .. } = message else { continue };
            match &request {
                Request::Reclaim { .. } => self.receive_reply(rank, id, Ok(Reply::Done)),
                Request::TakeNumbers { .. } => {}
                _ => {
                    if let Request::ReadDir { dir, after: 0, .. } = request {
                        self.listed.push(dir);
                    }
                    self.requests.push((rank, id, request));
                }
            }
        }
        for event in actions.frontend {
            if let FrontendEvent::Answer { ticket, result, .. } = event {
                self.answers.push((ticket, result));
            }
        }
    }

    fn receive(&mut self, rank: Rank, message: FromServer) {
        let mut actions = Actions::default();
        self.sessions.received(self.now, rank, message, &mut actions);
        self.take(actions);
    }

    fn receive_reply(&mut self, rank: Rank, id: RequestId, result: Result<Reply, Errno>) {
        let (touched, lease_ms) = (Touched::default(), self.lease_ms);
        self.receive(rank, FromServer::Reply { id, lease_ms, announced: false, touched, result });
    }

    /// Replies to all requests.
    fn round_trip(&mut self) {
        for (rank, id, request) in std::mem::take(&mut self.requests) {
            let reply = self.reply(rank, &request);
            self.receive_reply(rank, id, reply);
        }
    }

    fn reply(&self, rank: Rank, request: &Request) -> Result<Reply, Errno> {
        assert_eq!(request.ino().rank(), rank);
        Ok(match request {
            Request::GetAttr { ino } => Reply::Attr(attr(*ino)),
            Request::Find { ino, .. } => Reply::Entry(entry(*ino)),
            Request::ReadDir { dir, after, plus, .. } => {
                let entries =
                    self.tree.get(dir).ok_or(Errno::ESTALE)?.iter().map(|ino| dirent(*dir, *ino, *plus));
                let entries = entries.filter(|dirent| dirent.cursor > *after).collect();
                Reply::Listing { entries, parent: Ino::ROOT, end: true, until: LAST_CURSOR }
            }
            Request::ForgetAll { .. } => Reply::Done,
            other => panic!("{other:?}"),
        })
    }

    /// The answer to a call, which may have to wait.
    fn answer(&mut self, call: u64) -> Result<Answer, Errno> {
        loop {
            if let Some(at) = self.answers.iter().position(|(of, _)| *of == call) {
                return self.answers.remove(at).1;
            }
            assert!(!self.requests.is_empty(), "nothing can answer call {call}");
            self.waits += 1;
            self.round_trip();
        }
    }

    /// Lists a directory as a kernel does, which asks for its end, too. Returns its entries.
    fn list(&mut self, dir: Ino) -> Vec<Ino> {
        let call = self.call(Request::ReadDir { dir, after: 0, limit: ROOM, plus: true });
        let Ok(Answer::Listing { entries, .. }) = self.answer(call) else { panic!("no listing") };
        self.known.extend(entries.iter().filter(|it| it.entry.is_some()).map(|dirent| dirent.ino));
        let after = entries.last().map_or(0, |last| last.cursor);
        let call = self.call(Request::ReadDir { dir, after, limit: ROOM, plus: after == 0 });
        let Ok(Answer::Listing { entries: rest, .. }) = self.answer(call) else { panic!("no listing") };
        assert!(rest.is_empty(), "{rest:?}");
        entries.into_iter().map(|dirent| dirent.ino).collect()
    }

    /// Lists all directories below one, each before its siblings.
    fn walk(&mut self, dir: Ino) {
        let entries = self.list(dir);
        assert_eq!(entries, self.tree[&dir]);
        for ino in entries {
            if is_dir(ino) {
                self.walk(ino);
            }
        }
    }

    /// Lists the root and its first two directories; the next four are then being fetched ahead.
    fn begin_walk(&mut self) {
        self.list(Ino::ROOT);
        let dirs = self.dirs();
        self.list(dirs[0]);
        let call = self.call(Request::ReadDir { dir: dirs[1], after: 0, limit: ROOM, plus: true });
        let is_own = |(_, _, request): &(Rank, RequestId, Request)| request.ino() == dirs[1];
        let ahead = self.requests.extract_if(.., |request| !is_own(request)).collect();
        let Ok(Answer::Listing { entries, .. }) = self.answer(call) else { panic!("no listing") };
        self.known.extend(entries.iter().map(|dirent| dirent.ino));
        self.requests = ahead;
        let requested: BTreeSet<Ino> = self.requests.iter().map(|(_, _, request)| request.ino()).collect();
        assert_eq!(requested, dirs[2..6].iter().copied().collect());
    }

    fn revoke(&mut self, lease: Lease) {
        let rank = match lease {
            Lease::Contents { dir } | Lease::Name { dir, .. } => dir.rank(),
            Lease::Inode { ino } => ino.rank(),
            _ => unreachable!(),
        };
        self.receive(rank, FromServer::Revoke { number: RevocationId(1), lease });
    }

    /// The lookups that servers count when the kernel has forgotten all, and leases are over.
    fn held_at_rest(&mut self) -> Vec<(Ino, u64, u32)> {
        self.round_trip();
        for ino in std::mem::take(&mut self.known) {
            self.sessions.forget(ino, 1);
        }
        for ms in [u64::from(2 * LEASE_MS), 1] {
            self.now += ms;
            let mut actions = Actions::default();
            self.sessions.tick(self.now, |_| false, &mut actions);
            self.take(actions);
        }
        self.round_trip();
        (0..RANKS).flat_map(|rank| self.sessions.holdings(Rank(rank)).expect("all are answered")).collect()
    }
}

/// The number of a directory or file; the rank follows from it.
fn ino(number: u64, is_dir: bool) -> Ino {
    Ino((number % u64::from(RANKS)) << 48 | number << 16 | u64::from(!is_dir))
}

fn is_dir(ino: Ino) -> bool {
    ino.0 & 0xffff == 0 || ino == Ino::ROOT
}

fn kind(ino: Ino) -> FileType {
    if is_dir(ino) { FileType::Directory } else { FileType::Regular }
}

fn name(ino: Ino) -> Name {
    Name::new(format!("name{}", ino.0).as_bytes()).expect("a name")
}

fn attr(ino: Ino) -> Attr {
    Attr { nlink: 2, size: 1, ..Attr::new(ino, kind(ino), 0o755, Time::new(1, 0)) }
}

fn entry(ino: Ino) -> Entry {
    Entry {
        attr: attr(ino),
        cacheable: true,
        name_leased: true,
        attr_leased: true,
        sole_holder: false,
        location: Location::Table,
        reclaim_token: 1,
    }
}

/// An entry of a directory; its attributes are with it if its inode is at the same rank.
fn dirent(dir: Ino, ino: Ino, plus: bool) -> Dirent {
    let (name, kind, cursor) = (name(ino), kind(ino), (ino.0 << 16 >> 16) + 3);
    let is_here = ino.rank() == dir.rank();
    let remote = RemoteName { at: ino.rank(), cacheable: true, name_leased: true };
    let remote = (plus && !is_here).then_some(remote);
    Dirent { name, ino, kind, cursor, entry: (plus && is_here).then(|| entry(ino)), remote }
}

/// Requests that were made more than once.
fn repeated(listed: &[Ino]) -> Vec<Ino> {
    let mut seen = BTreeSet::new();
    listed.iter().copied().filter(|dir| !seen.insert(*dir)).collect()
}

#[test]
fn walk_waits_for_one_directory_in_four() {
    let mut mount = WalkedTree::flat(40);
    mount.walk(Ino::ROOT);
    assert_eq!(mount.listed.len(), 41);
    assert_eq!(repeated(&mount.listed), []);
    // The root, the entries at other ranks in it, two directories, and one in four of the rest.
    assert!(mount.waits <= 4 + 38 / 4, "{} waits", mount.waits);
    assert_eq!(mount.held_at_rest(), []);
}

#[test]
fn replies_of_pages_in_flight_are_waited_for_once() {
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    let third = mount.dirs()[2];
    let call = mount.call(Request::ReadDir { dir: third, after: 0, limit: ROOM, plus: true });
    assert!(mount.answers.is_empty());
    assert!(matches!(mount.answer(call), Ok(Answer::Listing { entries, .. }) if entries.len() == 2));
    assert_eq!(repeated(&mount.listed), []);
}

#[test]
fn walk_of_nested_directories_fetches_first_children_ahead() {
    // Three levels, of four directories each.
    let mut tree = BTreeMap::new();
    let mut number = 0;
    let mut level = vec![Ino::ROOT];
    for _ in 0..3 {
        let mut below = Vec::new();
        for dir in level {
            let dirs: Vec<Ino> = (0..4)
                .map(|_| {
                    number += 1;
                    ino(number, true)
                })
                .collect();
            below.extend(dirs.clone());
            tree.insert(dir, dirs);
        }
        level = below;
    }
    tree.extend(level.into_iter().map(|dir| (dir, Vec::new())));
    let mut mount = WalkedTree::new(tree, LEASE_MS);
    mount.walk(Ino::ROOT);
    assert_eq!(repeated(&mount.listed), []);
    assert_eq!(mount.listed.len(), 1 + 4 + 16 + 64);
    assert!(mount.waits < 40, "{} waits for {} directories", mount.waits, mount.listed.len());
    assert_eq!(mount.held_at_rest(), []);
}

#[test]
fn walks_of_the_same_directories_request_each_page_once() {
    let mut mount = WalkedTree::flat(10);
    let (dirs, below) = (mount.dirs(), [21, 24].map(|number| ino(number, true)));
    mount.tree.insert(dirs[2], below.into());
    mount.tree.extend(below.map(|dir| (dir, Vec::new())));
    mount.begin_walk();
    // A second walk is at the third directory when the page of that arrives for the first walk,
    // which then needs those of its subdirectories.
    let list = |dir| Request::ReadDir { dir, after: 0, limit: ROOM, plus: true };
    let ahead = std::mem::take(&mut mount.requests);
    let call = mount.call(list(Ino::ROOT));
    mount.answer(call).expect("a listing");
    mount.requests.extend(ahead);
    let call = mount.call(list(dirs[2]));
    for _ in 0..10 {
        mount.round_trip();
    }
    assert!(matches!(mount.answer(call), Ok(Answer::Listing { entries, .. }) if entries.len() == 2));
    assert!(below.iter().all(|dir| mount.listed.contains(dir)), "{:?}", mount.listed);
    assert_eq!((repeated(&mount.listed), mount.requests.len()), (vec![Ino::ROOT], 0));
}

#[test]
fn listing_without_a_walk_fetches_nothing_ahead() {
    let mut mount = WalkedTree::flat(20);
    let dirs = mount.dirs();
    mount.list(Ino::ROOT);
    mount.list(dirs[0]);
    // Out of order.
    for at in [5, 3, 9, 8, 12] {
        mount.list(dirs[at]);
    }
    assert_eq!((mount.listed.len(), mount.requests.len()), (7, 0));
    // In order, but after pauses.
    for dir in &dirs[13..17] {
        mount.now += PAUSE_MS;
        mount.list(*dir);
    }
    assert_eq!((mount.listed.len(), mount.requests.len()), (11, 0));
}

#[test]
fn client_without_leases_fetches_nothing_ahead() {
    let mut mount = WalkedTree::flat(10);
    mount.lease_ms = 0;
    mount.walk(Ino::ROOT);
    assert_eq!(mount.listed.len(), 11);
    assert_eq!(repeated(&mount.listed), []);
}

#[test]
fn pages_that_no_caller_reads_are_given_back() {
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    assert_eq!(mount.held_at_rest(), []);
    // A caller that skips some.
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    mount.round_trip();
    mount.list(mount.dirs()[8]);
    assert_eq!(mount.listed.len(), 1 + 2 + 4 + 1);
    assert_eq!(mount.held_at_rest(), []);
}

#[test]
fn revoked_page_is_requested_again() {
    let leases: [fn(Ino) -> Lease; 4] = [
        |dir| Lease::Contents { dir },
        |dir| Lease::Inode { ino: dir },
        |dir| Lease::Inode { ino: Ino(dir.0 | 1) },
        |dir| Lease::Name { dir, name: name(Ino(dir.0 | 1)) },
    ];
    for lease in leases {
        let mut mount = WalkedTree::flat(10);
        mount.begin_walk();
        mount.round_trip();
        let third = mount.dirs()[2];
        mount.revoke(lease(third));
        mount.tree.insert(third, vec![Ino(third.0 | 7)]);
        assert_eq!(mount.list(third), [Ino(third.0 | 7)]);
        assert_eq!(repeated(&mount.listed), [third]);
    }
}

#[test]
fn page_from_before_a_gap_in_the_lease_is_not_used() {
    let mut mount = WalkedTree::flat(10);
    let third = mount.dirs()[2];
    mount.tree.insert(third, Vec::new());
    mount.begin_walk();
    mount.round_trip();
    // Nothing is revoked when the lease is over; another client changes the directory meanwhile.
    mount.now += u64::from(2 * LEASE_MS);
    let file = Ino(third.0 | 7);
    mount.tree.insert(third, vec![file]);
    let call = mount.call(Request::GetAttr { ino: third });
    mount.answer(call).expect("attributes");
    assert_eq!(mount.list(third), [file]);
}

#[test]
fn page_without_a_lease_is_requested_again_by_the_caller_that_waits_for_it() {
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    let third = mount.dirs()[2];
    let call = mount.call(Request::ReadDir { dir: third, after: 0, limit: ROOM, plus: true });
    mount.lease_ms = 0;
    mount.round_trip();
    // Another client may have changed it before the call.
    assert!(mount.answers.is_empty());
    mount.tree.insert(third, vec![Ino(third.0 | 7)]);
    assert!(matches!(mount.answer(call), Ok(Answer::Listing { entries, .. }) if entries.len() == 1));
    assert_eq!(repeated(&mount.listed), [third]);
}

#[test]
fn own_changes_make_fetched_pages_obsolete() {
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    mount.round_trip();
    let (third, new) = (mount.dirs()[2], Ino(mount.dirs()[2].0 | 7));
    let (node, open, writeback) = (NewNode::Regular, None, None);
    let (perm, umask, exclusive) = (0o644, 0, true);
    mount.call(Request::Create {
        dir: third,
        name: name(new),
        node,
        perm,
        umask,
        open,
        exclusive,
        writeback,
    });
    let (rank, id, _) = mount.requests.remove(0);
    mount.receive_reply(rank, id, Ok(Reply::Entry(entry(new))));
    mount.tree.insert(third, vec![new]);
    assert_eq!(mount.list(third), [new]);
}

#[test]
fn signal_ends_the_wait_for_a_page() {
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    let third = mount.dirs()[2];
    let call = mount.call(Request::ReadDir { dir: third, after: 0, limit: ROOM, plus: true });
    let mut actions = Actions::default();
    assert_eq!(mount.sessions.interrupt(call, |_| false, |_| false, &mut actions), Interrupt::Survived);
    assert_eq!(mount.sessions.interrupt(call, |_| true, |_| false, &mut actions), Interrupt::Heard);
    mount.take(actions);
    assert_eq!(mount.answer(call).err(), Some(Errno::EINTR));
    assert_eq!(mount.held_at_rest(), []);
}

#[test]
fn caller_that_waits_for_a_page_gets_the_error_of_its_own_request() {
    let mut mount = WalkedTree::flat(10);
    mount.begin_walk();
    let third = mount.dirs()[2];
    let call = mount.call(Request::ReadDir { dir: third, after: 0, limit: ROOM, plus: true });
    let rank = third.rank();
    mount.requests.retain(|(of, _, _)| *of != rank);
    mount.sessions.disconnected(rank);
    let mut actions = Actions::default();
    mount.sessions.ended(mount.now, rank, &mut actions);
    mount.take(actions);
    assert!(mount.answers.is_empty(), "it is repeated over the next connection");
    let (servers, root) = (ServerMap::NONE, Ino::ROOT);
    let welcome =
        Welcome { incarnation: 2, window: 64, session_ms: 60_000, rank, root, servers, data_pool: None };
    let mut actions = Actions::default();
    mount.sessions.connected(mount.now, rank, &welcome, &mut actions);
    mount.take(actions);
    mount.tree.remove(&third);
    let at = mount.requests.iter().position(|(_, _, request)| request.ino() == third).expect("a request");
    let (rank, id, _) = mount.requests.remove(at);
    mount.receive_reply(rank, id, Err(Errno::ESTALE));
    assert_eq!(mount.answer(call).err(), Some(Errno::ESTALE));
}
