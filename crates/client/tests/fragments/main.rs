//! Calls on a partitioned directory, which frontends see as one.

mod sums;

use std::collections::VecDeque;

use espalier_client::{Actions, Answer, Cache, Call, FrontendEvent, IncomingCall, Sessions, Users};
use espalier_proto::{
    Attr, Caller, Dirent, Entry, Errno, FileType, FragmentMap, Fragments, FromClient, FromServer, Ino,
    LAST_CURSOR, Lease, Location, Name, Rank, RenameFlags, Reply, Request, RequestId, RevocationId,
    ServerMap, Time, Touched, Welcome, name_hash,
};

const DIR: Ino = Ino(20);
const ONE: Ino = Ino(1 << 48 | 5);
const TWO: Ino = Ino(2 << 48 | 5);
const FILE: Ino = Ino(1 << 48 | 9);
const KEY: [u8; 16] = [7; 16];
const LEASE_MS: u32 = 60_000;

/// The client, with the requests that it has sent.
struct Machine {
    sessions: Sessions<u64>,
    requests: VecDeque<(Rank, RequestId, Request)>,
    answers: Vec<(Result<Answer, Errno>, u64)>,
    calls: u64,
    /// When replies arrive, in ms.
    now: u64,
}

impl Machine {
    fn new() -> Self {
        let mut sessions = Sessions::new(Cache::new(1000, Users::AtOnce), 3, true);
        for rank in [0, 1, 2].map(Rank) {
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
            sessions.connected(0, rank, &welcome, &mut Actions::default());
        }
        Self { sessions, requests: VecDeque::new(), answers: Vec::new(), calls: 0, now: 0 }
    }

    /// A client that knows a map with these fragments besides the first, and holds them.
    fn with_map(numbers: &[usize]) -> Self {
        let mut machine = Self::new();
        for number in core::iter::once(&0).chain(numbers) {
            let file = name_in(&map(numbers), *number);
            machine.call(lookup(&file));
            while let Some((_, request)) = machine.sent() {
                let reply = match request {
                    Request::Lookup { dir: DIR, .. } if *number > 0 => fragments(numbers),
                    Request::Lookup { .. } => Reply::Absent { cacheable: false },
                    Request::Find { ino, .. } => Reply::Entry(entry(fragment(ino, 0, 2))),
                    // There is no lease on the directory.
                    Request::GetAttr { ino } => Reply::Attr(part(ino, version(numbers), 0, 2)),
                    other => panic!("{other:?}"),
                };
                machine.reply(0, Ok(reply));
            }
            assert!(matches!(machine.answer(), Ok(Answer::Absent { .. })));
        }
        machine
    }

    fn call(&mut self, request: Request) {
        let call = Call::Request(request);
        assert!(self.sessions.answer(self.now, &Caller::SERVER, &call).is_none(), "nothing is cached");
        self.calls += 1;
        let incoming = IncomingCall { call_id: self.calls, caller: Caller::SERVER, call, ticket: self.calls };
        let mut actions = Actions::default();
        self.sessions.call(self.now, incoming, &mut actions);
        self.take(actions);
    }

    fn take(&mut self, actions: Actions<u64>) {
        for (rank, message) in actions.send {
            // A client that makes changes fetches inode numbers in the background.
            if let FromClient::Request { id, request, .. } = message
                && !matches!(request, Request::TakeNumbers { .. })
            {
                self.requests.push_back((rank, id, request));
            }
        }
        for event in actions.frontend {
            if let FrontendEvent::Answer { result, lease_ms, .. } = event {
                self.answers.push((result, lease_ms));
            }
        }
    }

    /// The oldest request that has no reply, with its rank.
    fn sent(&self) -> Option<(u16, Request)> {
        self.requests.front().map(|(rank, _, request)| (rank.0, request.clone()))
    }

    /// Replies to the oldest request.
    fn reply(&mut self, lease_ms: u32, result: Result<Reply, Errno>) {
        self.reply_touching(lease_ms, Touched::default(), result);
    }

    fn reply_touching(&mut self, lease_ms: u32, touched: Touched, result: Result<Reply, Errno>) {
        let (rank, id, _) = self.requests.pop_front().expect("a request");
        self.reply_to((rank, id), lease_ms, touched, result);
    }

    fn reply_to(
        &mut self,
        (rank, id): (Rank, RequestId),
        lease_ms: u32,
        touched: Touched,
        result: Result<Reply, Errno>,
    ) {
        let mut actions = Actions::default();
        let message = FromServer::Reply { id, lease_ms, announced: false, touched, result };
        self.sessions.received(self.now, rank, message, &mut actions);
        self.take(actions);
    }

    /// Expects a request, and replies to it without a lease.
    fn expect(&mut self, request: Request, result: Result<Reply, Errno>) {
        assert_eq!(self.sent(), Some((request.rank().0, request)));
        self.reply(0, result);
    }

    /// The answer to the only call.
    fn answer(&mut self) -> Result<Answer, Errno> {
        assert_eq!((self.requests.len(), self.answers.len()), (0, 1));
        self.answers.remove(0).0
    }

    /// The number and the size that a frontend gets.
    fn attr(&mut self) -> (Ino, u64, u32) {
        let Ok(Answer::Attr(attr)) = self.answer() else { panic!() };
        (attr.ino, attr.size, attr.nlink)
    }
}

fn map(numbers: &[usize]) -> FragmentMap {
    let mut map = FragmentMap::new(DIR, 3);
    for number in numbers {
        let first = *map.to_cede(*number).start();
        map.cede(*number, [DIR, ONE, TWO][*number], first);
    }
    map
}

fn fragments(numbers: &[usize]) -> Reply {
    reply_with(map(numbers))
}

/// The map after the last of these fragments has merged.
fn merged(numbers: &[usize]) -> FragmentMap {
    let mut map = map(numbers);
    map.give_back(numbers[numbers.len() - 1], u64::MAX);
    map
}

fn reply_with(map: FragmentMap) -> Reply {
    Reply::Fragments(Box::new(Fragments { map, name_key: KEY }))
}

/// A name with hashes of a fragment.
fn name_in(map: &FragmentMap, number: usize) -> Name {
    let names = (0..).map(|at| Name::new(format!("name{at}").as_bytes()).expect("a name"));
    names.into_iter().find(|name| map.number(name_hash(&KEY, name)) == number).expect("a name")
}

fn lookup(name: &Name) -> Request {
    Request::Lookup { dir: DIR, name: name.clone() }
}

fn lookup_in(dir: Ino, name: &Name) -> Request {
    Request::Lookup { dir, name: name.clone() }
}

fn find(ino: Ino) -> Request {
    Request::Find { ino, kind: Some(FileType::Directory), open: None }
}

/// The attributes of a directory record.
fn part(ino: Ino, map_version: u32, size: u64, nlink: u32) -> Attr {
    Attr { nlink, size, map_version, ..Attr::new(ino, FileType::Directory, 0o755, Time::new(1, 0)) }
}

fn fragment(ino: Ino, size: u64, nlink: u32) -> Attr {
    part(ino, Attr::FRAGMENT, size, nlink)
}

fn entry(attr: Attr) -> Entry {
    Entry {
        attr,
        cacheable: true,
        name_leased: true,
        attr_leased: true,
        sole_holder: false,
        location: Location::Table,
        reclaim_token: 1,
    }
}

fn file() -> Entry {
    entry(Attr { kind: FileType::Regular, ..part(FILE, 0, 0, 1) })
}

#[test]
fn call_for_a_name_goes_to_the_fragment_that_has_it() {
    let mut machine = Machine::new();
    let name = name_in(&map(&[1]), 1);
    machine.call(lookup(&name));
    machine.expect(lookup(&name), Ok(fragments(&[1])));
    // Later replies may concern the fragment only if the client holds it.
    machine.expect(find(ONE), Ok(Reply::Entry(entry(fragment(ONE, 1, 2)))));
    // Replies are cached if a lease covers the map.
    machine.expect(Request::GetAttr { ino: DIR }, Ok(Reply::Attr(part(DIR, version(&[1]), 1, 2))));
    machine.expect(lookup_in(ONE, &name), Ok(Reply::Entry(file())));
    assert!(matches!(machine.answer(), Ok(Answer::Entry(found)) if found.attr.ino == FILE));
    // From here on the client knows the map.
    machine.call(Request::Unlink { dir: DIR, name: name.clone(), time: None });
    machine.expect(Request::Unlink { dir: ONE, name, time: None }, Ok(Reply::Done));
    assert!(matches!(machine.answer(), Ok(Answer::Done)));
}

#[test]
fn rename_names_the_fragments_of_both_names() {
    let mut machine = Machine::with_map(&[1, 2]);
    let [from, to] = [1, 2].map(|number| name_in(&map(&[1, 2]), number));
    let flags = RenameFlags::empty();
    let rename = |from_dir, to_dir| Request::Rename {
        from_dir,
        from: from.clone(),
        to_dir,
        to: to.clone(),
        flags,
        time: None,
    };
    machine.call(rename(DIR, DIR));
    machine.expect(rename(ONE, TWO), Ok(Reply::Done));
}

#[test]
fn rename_to_a_fragment_that_is_gone_asks_for_the_maps_of_both_directories() {
    const OTHER: Ino = Ino(21);
    let [gone, present] = [Ino(1 << 48 | 6), Ino(2 << 48 | 6)];
    let mut map_of_other = FragmentMap::new(OTHER, 3);
    let first = *map_of_other.to_cede(1).start();
    map_of_other.cede(1, gone, first);
    let [from, to] = [name_in(&map(&[1]), 1), name_in(&map_of_other, 1)];
    let reply = |map: &FragmentMap| Reply::Fragments(Box::new(Fragments { map: map.clone(), name_key: KEY }));

    let mut machine = Machine::with_map(&[1]);
    machine.call(Request::Lookup { dir: OTHER, name: to.clone() });
    while let Some((_, request)) = machine.sent() {
        let reply = match request {
            Request::Lookup { dir: OTHER, .. } => reply(&map_of_other),
            Request::Lookup { .. } => Reply::Absent { cacheable: false },
            Request::Find { ino, .. } => Reply::Entry(entry(fragment(ino, 0, 2))),
            Request::GetAttr { ino } => Reply::Attr(part(ino, map_of_other.version(), 0, 2)),
            other => panic!("{other:?}"),
        };
        machine.reply(0, Ok(reply));
    }
    assert!(matches!(machine.answer(), Ok(Answer::Absent { .. })));

    let rename = |from_dir, to_dir| Request::Rename {
        from_dir,
        from: from.clone(),
        to_dir,
        to: to.clone(),
        flags: RenameFlags::empty(),
        time: None,
    };
    machine.call(rename(DIR, OTHER));
    machine.expect(rename(ONE, gone), Err(Errno::ESTALE));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1])));
    machine.expect(rename(ONE, gone), Err(Errno::ESTALE));
    map_of_other.move_to(1, present, first);
    machine.expect(Request::Fragments { dir: OTHER }, Ok(reply(&map_of_other)));
    machine.expect(rename(ONE, present), Ok(Reply::Done));
    assert!(matches!(machine.answer(), Ok(Answer::Done)));
}

#[test]
fn misrouted_call_asks_the_home_server_for_the_map() {
    let mut machine = Machine::with_map(&[1]);
    let before = machine.sessions.fragment_counts();
    assert_eq!((before.directories, before.redirects), (1, 1));
    // Fragment 0 has split: 2 has taken names of it. Fragment 1 does not know of that.
    let [one, two] = [1, 2].map(|number| name_in(&map(&[1, 2]), number));
    machine.call(lookup(&one));
    machine.expect(lookup_in(ONE, &one), Ok(Reply::Misrouted { dir: DIR }));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1, 2])));
    machine.expect(lookup_in(ONE, &one), Ok(Reply::Entry(file())));
    assert!(machine.answer().is_ok());
    machine.call(lookup(&two));
    machine.expect(find(TWO), Ok(Reply::Entry(entry(fragment(TWO, 1, 2)))));
    machine.expect(lookup_in(TWO, &two), Ok(Reply::Absent { cacheable: true }));
    assert!(matches!(machine.answer(), Ok(Answer::Absent { .. })));
    // A requested map is no redirect.
    assert_eq!(machine.sessions.fragment_counts().redirects, 2);
}

#[test]
fn older_map_does_not_replace_the_known_one() {
    let mut machine = Machine::with_map(&[1, 2]);
    let two = name_in(&map(&[1, 2]), 2);
    machine.call(lookup(&two));
    // From a server that has not heard of the last split.
    machine.expect(lookup_in(TWO, &two), Ok(fragments(&[1])));
    machine.expect(lookup_in(TWO, &two), Ok(Reply::Absent { cacheable: true }));
    assert!(matches!(machine.answer(), Ok(Answer::Absent { .. })));
}

#[test]
fn call_that_is_always_misrouted_fails() {
    let mut machine = Machine::with_map(&[1]);
    machine.call(lookup(&name_in(&map(&[1]), 1)));
    for _ in 0..100 {
        match machine.sent() {
            Some((_, Request::Fragments { .. })) => machine.reply(0, Ok(fragments(&[1]))),
            Some(_) => machine.reply(0, Ok(Reply::Misrouted { dir: DIR })),
            None => break,
        }
    }
    assert_eq!(machine.answer().err(), Some(Errno::EIO));
}

#[test]
fn calls_that_name_a_removed_fragment_are_routed_by_the_present_map() {
    let mut machine = Machine::with_map(&[1]);
    let name = name_in(&map(&[1]), 1);
    machine.call(lookup(&name));
    machine.call(lookup(&name));
    machine.expect(lookup_in(ONE, &name), Err(Errno::ESTALE));
    let second = machine.requests.pop_front().expect("a request");
    machine.expect(Request::Fragments { dir: DIR }, Ok(reply_with(merged(&[1]))));
    machine.expect(lookup(&name), Err(Errno::ENOENT));
    assert_eq!(machine.answer().err(), Some(Errno::ENOENT));
    machine.requests.push_back(second);
    machine.expect(lookup_in(ONE, &name), Err(Errno::ESTALE));
    machine.expect(Request::Fragments { dir: DIR }, Ok(reply_with(merged(&[1]))));
    machine.expect(lookup(&name), Err(Errno::ENOENT));
    assert_eq!(machine.answer().err(), Some(Errno::ENOENT));
}

fn get_attr(ino: Ino) -> Request {
    Request::GetAttr { ino }
}

fn read_dir(dir: Ino, after: u64) -> Request {
    Request::ReadDir { dir, after, limit: 100, plus: false }
}

fn listing(names: &[&Name], end: bool, until: u64) -> Reply {
    let dirent = |name: &&Name| Dirent {
        name: (*name).clone(),
        ino: FILE,
        kind: FileType::Regular,
        cursor: name_hash(&KEY, name),
        entry: None,
        remote: None,
    };
    Reply::Listing { entries: names.iter().map(dirent).collect(), parent: Ino::ROOT, end, until }
}

/// The names, the last cursor, and whether the listing is over.
fn page(machine: &mut Machine) -> (Vec<Name>, u64, bool) {
    let Ok(Answer::Listing { entries, end, .. }) = machine.answer() else { panic!() };
    let cursor = entries.last().map_or(0, |entry| entry.cursor);
    (entries.into_iter().map(|entry| entry.name).collect(), cursor, end)
}

#[test]
fn listing_continues_with_the_next_fragment() {
    let mut machine = Machine::with_map(&[1, 2]);
    let map = map(&[1, 2]);
    let [zero, one] = [0, 1].map(|number| name_in(&map, number));
    let end_of = |number| *map.hashes(map.ino(number).expect("a fragment")).end();
    machine.call(read_dir(DIR, 0));
    machine.expect(read_dir(DIR, 0), Ok(listing(&[&zero], true, end_of(0))));
    assert_eq!(page(&mut machine), (vec![zero], end_of(0), false));
    // In the order of hashes fragment 2 is between 0 and 1. It is empty.
    machine.call(read_dir(DIR, end_of(0)));
    machine.expect(read_dir(TWO, end_of(0)), Ok(listing(&[], true, end_of(2))));
    machine.expect(read_dir(ONE, end_of(2)), Ok(listing(&[&one], false, end_of(1))));
    assert_eq!(page(&mut machine), (vec![one.clone()], name_hash(&KEY, &one), false));
    machine.call(read_dir(DIR, name_hash(&KEY, &one)));
    assert!(end_of(1) >= LAST_CURSOR);
    machine.expect(read_dir(ONE, name_hash(&KEY, &one)), Ok(listing(&[], true, end_of(1))));
    assert_eq!(page(&mut machine), (vec![], 0, true));
}

#[test]
fn listing_of_a_moved_directory_begins_with_its_parent() {
    let mut machine = Machine::with_map(&[]);
    machine.call(read_dir(DIR, 0));
    let mut moved = map(&[]);
    moved.move_to(0, TWO, 0);
    let reply = Reply::Fragments(Box::new(Fragments { map: moved, name_key: KEY }));
    machine.expect(read_dir(DIR, 0), Ok(reply));
    let name = name_in(&map(&[]), 0);
    machine.expect(read_dir(TWO, 0), Ok(listing(&[&name], true, LAST_CURSOR)));
    let parent = Request::Parent { dir: DIR };
    machine.expect(parent, Ok(Reply::Entry(entry(part(Ino(5), 0, 0, 3)))));
    let Ok(Answer::Listing { entries, parent, end: true }) = machine.answer() else { panic!() };
    assert_eq!((entries.len(), parent), (1, Ino(5)));
}

#[test]
fn listing_of_a_fragment_that_is_gone_goes_on_where_its_names_are() {
    let mut machine = Machine::with_map(&[1]);
    let mut moved = map(&[1]);
    let first = *moved.hashes(ONE).start();
    moved.move_to(1, TWO, first);
    let name = name_in(&map(&[1]), 1);
    machine.call(read_dir(DIR, first));
    machine.expect(read_dir(ONE, first), Err(Errno::ESTALE));
    let reply = Reply::Fragments(Box::new(Fragments { map: moved, name_key: KEY }));
    machine.expect(Request::Fragments { dir: DIR }, Ok(reply));
    machine.expect(read_dir(TWO, first), Ok(listing(&[&name], true, LAST_CURSOR)));
    assert_eq!(page(&mut machine).0, [name]);
}

#[test]
fn listing_goes_on_in_a_fragment_that_has_split_off() {
    let mut machine = Machine::with_map(&[1]);
    let (zero, two) = (name_in(&map(&[1, 2]), 0), name_in(&map(&[1, 2]), 2));
    let end = *map(&[1, 2]).hashes(DIR).end();
    machine.call(read_dir(DIR, 0));
    machine.expect(read_dir(DIR, 0), Ok(listing(&[&zero], true, end)));
    assert_eq!(page(&mut machine), (vec![zero], end, false));
    machine.call(read_dir(DIR, end));
    machine.expect(read_dir(DIR, end), Ok(fragments(&[1, 2])));
    machine.expect(read_dir(TWO, end), Ok(listing(&[&two], true, *map(&[1, 2]).hashes(TWO).end())));
    assert_eq!(page(&mut machine).0, [two]);
}

/// Leases the directory, and the absence of a name.
fn with_absent_name(map_version: u32, name: &Name) -> Machine {
    let mut machine = Machine::new();
    machine.call(get_attr(DIR));
    machine.reply(LEASE_MS, Ok(Reply::Attr(part(DIR, map_version, 0, 2))));
    machine.answer().expect("attributes");
    machine.call(lookup(name));
    machine.reply(LEASE_MS, Ok(Reply::Absent { cacheable: true }));
    machine.answer().expect("an answer");
    assert!(machine.sessions.answer(1, &Caller::SERVER, &Call::Request(lookup(name))).is_some());
    machine
}

#[test]
fn outdated_map_makes_no_name_absent() {
    let name = name_in(&map(&[1]), 1);
    let mut machine = with_absent_name(0, &name);
    // Another reply mentions the directory, which has split: its map is not known.
    machine.call(get_attr(Ino::ROOT));
    let touched = Touched { attrs: vec![part(DIR, 1, 0, 2)], ..Touched::default() };
    machine.reply_touching(LEASE_MS, touched, Ok(Reply::Attr(part(Ino::ROOT, 0, 1, 3))));
    machine.answer().expect("attributes");
    assert_eq!(machine.sessions.name(DIR, &name, 1), None);
    machine.call(lookup(&name));
    machine.expect(lookup(&name), Ok(fragments(&[1])));
    machine.expect(find(ONE), Ok(Reply::Entry(entry(fragment(ONE, 1, 2)))));
    machine.expect(lookup_in(ONE, &name), Ok(Reply::Entry(file())));
    assert!(matches!(machine.answer(), Ok(Answer::Entry(_))));
}

#[test]
fn cached_name_is_not_used_while_the_directory_may_have_another_map() {
    let mut machine = Machine::with_map(&[1]);
    let name = name_in(&map(&[1]), 1);
    for attr in [part(DIR, 1, 0, 2), fragment(ONE, 1, 2)] {
        if machine.requests.is_empty() {
            machine.call(get_attr(DIR));
        }
        assert_eq!(machine.sent().map(|(_, request)| request), Some(get_attr(attr.ino)));
        machine.reply(LEASE_MS, Ok(Reply::Attr(attr)));
    }
    machine.attr();
    machine.call(lookup(&name));
    machine.reply(LEASE_MS, Ok(Reply::Entry(file())));
    machine.answer().expect("an entry");
    assert!(machine.sessions.name(DIR, &name, 1).is_some());
    let (number, lease) = (RevocationId(1), Lease::Inode { ino: DIR });
    machine.sessions.received(1, Rank(0), FromServer::Revoke { number, lease }, &mut Actions::default());
    assert_eq!(machine.sessions.name(DIR, &name, 1), None);
    assert!(machine.sessions.answer(1, &Caller::SERVER, &Call::Request(lookup(&name))).is_none());
}

#[test]
fn frontend_gives_up_leases_of_a_fragment_as_those_of_the_directory() {
    let mut machine = Machine::with_map(&[1]);
    let name = name_in(&map(&[1]), 1);
    let named = |dir| Lease::Name { dir, name: name.clone() };
    for (lease, shown) in [
        (named(ONE), named(DIR)),
        (Lease::Inode { ino: ONE }, Lease::Inode { ino: DIR }),
        (Lease::Contents { dir: ONE }, Lease::Contents { dir: DIR }),
        (named(DIR), named(DIR)),
    ] {
        let mut actions = Actions::default();
        let revoke = FromServer::Revoke { number: RevocationId(1), lease };
        machine.sessions.received(1, Rank(1), revoke, &mut actions);
        let [FrontendEvent::Revoke { lease, .. }] = &actions.frontend[..] else {
            panic!("{:?}", actions.frontend)
        };
        assert_eq!(*lease, shown);
    }
}

// ---- Requests that servers forward

impl Machine {
    /// A client that knows the map, and a call for a name in fragment 2 that it sends to fragment
    /// 0, since that has split meanwhile. Returns the name, and the number that the call's request
    /// gets.
    fn with_forwarded(now: u64) -> (Self, Name, RequestId) {
        let mut machine = Self::with_map(&[1]);
        machine.now = now;
        let file = name_in(&map(&[1, 2]), 2);
        machine.call(Request::Unlink { dir: DIR, name: file.clone(), time: None });
        let (rank, id, _) = machine.requests[0].clone();
        assert_eq!(rank, Rank(0));
        let Reply::Fragments(fragments) = fragments(&[1, 2]) else { unreachable!() };
        machine.reply(0, Ok(Reply::Forwarded { to: TWO, fragments: Some(fragments) }));
        (machine, file, id.forwarded_by(rank))
    }

    /// A reply that the client has not asked this rank for.
    fn receive(&mut self, rank: Rank, id: RequestId, result: Result<Reply, Errno>) {
        let mut actions = Actions::default();
        let touched = Touched::default();
        let message = FromServer::Reply { id, lease_ms: 0, announced: false, touched, result };
        self.sessions.received(self.now, rank, message, &mut actions);
        self.take(actions);
    }

    fn reconnect(&mut self, rank: Rank) {
        let (servers, root, incarnation) = (ServerMap::NONE, Ino::ROOT, 1);
        let welcome =
            Welcome { incarnation, window: 64, session_ms: 60_000, rank, root, servers, data_pool: None };
        let mut actions = Actions::default();
        self.sessions.disconnected(rank);
        self.sessions.connected(0, rank, &welcome, &mut actions);
        self.take(actions);
        self.requests.retain(|(_, _, request)| matches!(request, Request::Unlink { .. }));
    }
}

#[test]
fn reply_to_a_forwarded_request_comes_from_another_server() {
    let (mut machine, file, id) = Machine::with_forwarded(1000);
    assert_eq!(machine.sent(), None);
    machine.receive(Rank(2), id, Ok(Reply::Done));
    assert!(matches!(machine.answer(), Ok(Answer::Done)));
    assert_eq!(machine.sessions.fragment_counts().redirects, 2);
    // The map has come with the reply.
    machine.call(lookup(&file));
    machine.expect(find(TWO), Ok(Reply::Entry(entry(fragment(TWO, 1, 2)))));
    machine.expect(Request::GetAttr { ino: DIR }, Ok(Reply::Attr(part(DIR, version(&[1, 2]), 1, 2))));
    machine.expect(lookup_in(TWO, &file), Ok(Reply::Absent { cacheable: true }));
}

#[test]
fn reply_to_a_forwarded_request_may_be_early() {
    let mut machine = Machine::with_map(&[1]);
    machine.now = 1000;
    let file = name_in(&map(&[1, 2]), 2);
    machine.call(Request::Unlink { dir: DIR, name: file, time: None });
    let (rank, id, _) = machine.requests[0].clone();
    machine.receive(Rank(2), id.forwarded_by(rank), Ok(Reply::Done));
    assert!(machine.answers.is_empty());
    machine.reply(0, Ok(Reply::Forwarded { to: TWO, fragments: None }));
    assert!(matches!(machine.answer(), Ok(Answer::Done)));
    // One that nobody waits for.
    machine.receive(Rank(2), id.forwarded_by(rank), Ok(Reply::Done));
    assert!(machine.answers.is_empty());
}

#[test]
fn forwarded_request_is_repeated_where_it_went() {
    let (mut machine, file, id) = Machine::with_forwarded(999);
    let unlink = Request::Unlink { dir: TWO, name: file, time: None };
    // It may have arrived before the client's session began.
    assert_eq!(machine.requests.pop_front(), Some((Rank(2), id, unlink.clone())));
    let tick = |machine: &mut Machine, now| {
        let mut actions = Actions::default();
        machine.sessions.tick(now, |_| false, &mut actions);
        machine.take(actions);
        machine.requests.retain(|(_, _, request)| matches!(request, Request::Unlink { .. }));
        machine.requests.pop_front()
    };
    assert_eq!(tick(&mut machine, 1998), None);
    // Or been lost.
    assert_eq!(tick(&mut machine, 1999), Some((Rank(2), id, unlink.clone())));
    // Or the connection with the reply.
    machine.reconnect(Rank(0));
    assert_eq!(machine.sent(), None);
    machine.reconnect(Rank(2));
    assert_eq!(machine.requests.pop_front(), Some((Rank(2), id, unlink)));
    machine.receive(Rank(2), id, Ok(Reply::Done));
    machine.receive(Rank(2), id, Ok(Reply::Done));
    assert!(matches!(machine.answer(), Ok(Answer::Done)));
    machine.reconnect(Rank(2));
    assert_eq!(machine.sent(), None);
}

#[test]
fn forwarded_request_is_lost_with_the_session_of_the_server_that_executes_it() {
    let (mut machine, _, _) = Machine::with_forwarded(1000);
    let mut actions = Actions::default();
    machine.sessions.ended(0, Rank(2), &mut actions);
    machine.take(actions);
    assert!(matches!(machine.answer(), Err(Errno::EIO)));
}

// ---- Leases on maps

#[test]
fn directory_without_a_lease_is_asked_once_a_second() {
    let mut machine = Machine::with_map(&[1]);
    let file = name_in(&map(&[1]), 1);
    // Without the lease nothing in the directory is answered from the cache.
    for (now, asks) in [(5000, true), (5999, false), (6000, true)] {
        machine.now = now;
        machine.call(lookup(&file));
        if asks {
            machine.expect(Request::GetAttr { ino: DIR }, Ok(Reply::Attr(part(DIR, version(&[1]), 1, 2))));
        }
        machine.expect(lookup_in(ONE, &file), Ok(Reply::Absent { cacheable: false }));
        assert!(machine.answer().is_ok());
    }
    // A newer map is fetched at once.
    machine.now = 7000;
    machine.call(lookup(&file));
    machine.expect(Request::GetAttr { ino: DIR }, Ok(Reply::Attr(part(DIR, version(&[1, 2]), 1, 2))));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1, 2])));
    machine.expect(lookup_in(ONE, &file), Ok(Reply::Absent { cacheable: false }));
    assert!(machine.answer().is_ok());
}

fn version(numbers: &[usize]) -> u32 {
    map(numbers).version()
}
