//! Listings with attributes that name inodes at other ranks.

use espalier_client::{Actions, Answer, Cache, Call, FrontendEvent, IncomingCall, Sessions, Users};
use espalier_proto::{
    Attr, Caller, Dirent, Entry, Errno, FileType, FromClient, FromServer, Ino, LAST_CURSOR, Lease, Location,
    Name, Rank, RemoteName, Reply, Request, RequestId, RevocationId, ServerMap, Time, Touched, Welcome,
};

const HERE: Ino = Ino(9);
const FAR: [Ino; 2] = [Ino(1 << 48 | 5), Ino(1 << 48 | 6)];
const OTHER: Ino = Ino(2 << 48 | 5);
const LEASE_MS: u32 = 60_000;

/// The client of a mount, with the requests that it has sent. The root is leased.
struct Machine {
    sessions: Sessions<u64>,
    requests: Vec<(Rank, RequestId, Request)>,
    answers: Vec<(Result<Answer, Errno>, u64)>,
    calls: u64,
    now: u64,
}

impl Machine {
    fn new() -> Self {
        let sessions = Sessions::new(Cache::new(1000, Users::Report), 3, true);
        let mut machine = Self { sessions, requests: Vec::new(), answers: Vec::new(), calls: 0, now: 0 };
        (0..3).for_each(|rank| machine.connect(Rank(rank)));
        machine.call(Request::GetAttr { ino: Ino::ROOT });
        machine.reply_to(Ino::ROOT, Ok(Reply::Attr(attr(Ino::ROOT))));
        machine.answer().expect("attributes");
        machine
    }

    fn connect(&mut self, rank: Rank) {
        let (servers, root) = (ServerMap::NONE, Ino::ROOT);
        let welcome =
            Welcome { incarnation: 1, window: 64, session_ms: 60_000, rank, root, servers, data_pool: None };
        let mut actions = Actions::default();
        self.sessions.connected(self.now, rank, &welcome, &mut actions);
        self.take(actions);
        let is_reclaim = |request: &Request| matches!(request, Request::Reclaim { .. });
        let reclaim = self.requests.extract_if(.., |(_, _, request)| is_reclaim(request)).next();
        reclaim.into_iter().for_each(|(rank, id, _)| self.receive_reply(rank, id, Ok(Reply::Done)));
    }

    fn call(&mut self, request: Request) {
        self.calls += 1;
        let (caller, call) = (Caller::SERVER, Call::Request(request));
        assert!(self.sessions.answer(self.now, &caller, &call).is_none(), "nothing is cached");
        let incoming = IncomingCall { call_id: self.calls, caller, call, ticket: self.calls };
        let mut actions = Actions::default();
        self.sessions.call(self.now, incoming, &mut actions);
        self.take(actions);
    }

    /// Lists the root, which has names at these ranks besides [`HERE`].
    fn list(&mut self, remote: &[Ino]) {
        self.call(Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 100, plus: true });
        let here = Dirent { entry: Some(entry(HERE)), remote: None, ..remote_dirent(HERE) };
        let entries = [here].into_iter().chain(remote.iter().map(|ino| remote_dirent(*ino))).collect();
        let listing = Reply::Listing { entries, parent: Ino::ROOT, end: true, until: LAST_CURSOR };
        self.reply_to(Ino::ROOT, Ok(listing));
    }

    fn take(&mut self, actions: Actions<u64>) {
        for (rank, message) in actions.send {
            if let FromClient::Request { id, request, .. } = message
                && !matches!(request, Request::TakeNumbers { .. })
            {
                self.requests.push((rank, id, request));
            }
        }
        for event in actions.frontend {
            if let FrontendEvent::Answer { result, lease_ms, .. } = event {
                self.answers.push((result, lease_ms));
            }
        }
    }

    /// The inodes that are requested with `Find`.
    fn finds(&self) -> Vec<Ino> {
        let find = |request: &Request| match request {
            Request::Find { ino, kind: Some(FileType::Directory), open: None } => Some(*ino),
            _ => None,
        };
        let mut found: Vec<_> = self.requests.iter().filter_map(|(_, _, request)| find(request)).collect();
        found.sort_unstable();
        found
    }

    /// Replies to the request about an inode.
    fn reply_to(&mut self, ino: Ino, result: Result<Reply, Errno>) {
        let at = self.requests.iter().position(|(_, _, request)| request.ino() == ino).expect("a request");
        let (rank, id, _) = self.requests.remove(at);
        assert_eq!(rank, ino.rank());
        self.receive_reply(rank, id, result);
    }

    fn receive_reply(&mut self, rank: Rank, id: RequestId, result: Result<Reply, Errno>) {
        let touched = Touched::default();
        self.receive(rank, FromServer::Reply { id, lease_ms: LEASE_MS, announced: false, touched, result });
    }

    fn found(&mut self, ino: Ino) {
        self.reply_to(ino, Ok(Reply::Entry(entry(ino))));
    }

    fn receive(&mut self, rank: Rank, message: FromServer) {
        let mut actions = Actions::default();
        self.sessions.received(self.now, rank, message, &mut actions);
        self.take(actions);
    }

    fn tick(&mut self, ms: u64) {
        self.now += ms;
        let mut actions = Actions::default();
        self.sessions.tick(self.now, |_| false, &mut actions);
        self.take(actions);
    }

    fn answer(&mut self) -> Result<Answer, Errno> {
        assert_eq!(self.answers.len(), 1);
        self.answers.remove(0).0
    }

    /// The entries with attributes in the only answer, and the others, by number.
    fn listed(&mut self) -> (Vec<Entry>, Vec<Ino>) {
        let Ok(Answer::Listing { entries, .. }) = self.answer() else { panic!("no listing") };
        let (with, without): (Vec<_>, Vec<_>) = entries.into_iter().partition(|it| it.entry.is_some());
        let with = with.into_iter().filter_map(|dirent| dirent.entry).collect();
        (with, without.into_iter().map(|dirent| dirent.ino).collect())
    }

    /// The lookups that servers count, when the kernel has forgotten those in `answered` and the
    /// servers have acknowledged that.
    fn held_without(&mut self, answered: &[Entry]) -> Vec<(Ino, u64, u32)> {
        answered.iter().for_each(|entry| self.sessions.forget(entry.attr.ino, 1));
        self.tick(u64::from(2 * LEASE_MS));
        self.tick(1);
        while let Some((_, _, request)) = self.requests.first() {
            assert!(matches!(request, Request::ForgetAll { .. }), "{request:?}");
            let ino = request.ino();
            self.reply_to(ino, Ok(Reply::Done));
        }
        (0..3).flat_map(|rank| self.sessions.holdings(Rank(rank)).expect("all are answered")).collect()
    }
}

fn name(ino: Ino) -> Name {
    Name::new(format!("name{}", ino.0).as_bytes()).expect("a name")
}

fn attr(ino: Ino) -> Attr {
    Attr { nlink: 2, size: 1, ..Attr::new(ino, FileType::Directory, 0o755, Time::new(1, 0)) }
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

fn remote_dirent(ino: Ino) -> Dirent {
    let remote = Some(RemoteName { at: ino.rank(), cacheable: true, name_leased: true });
    let kind = FileType::Directory;
    Dirent { name: name(ino), ino, kind, cursor: ino.0, entry: None, remote }
}

#[test]
fn entries_of_other_ranks_are_requested_together_and_cached() {
    let mut machine = Machine::new();
    machine.list(&[FAR[0], FAR[1], OTHER]);
    assert_eq!(machine.finds(), [FAR[0], FAR[1], OTHER]);
    machine.found(OTHER);
    machine.found(FAR[1]);
    assert!(machine.answers.is_empty());
    machine.found(FAR[0]);
    assert!(machine.answers[0].1 > 0, "the listing is leased");
    let (entries, without) = machine.listed();
    assert_eq!((entries.len(), without), (4, Vec::new()));
    assert!(entries.iter().all(|entry| entry.name_leased && entry.attr_leased));
    let lookup = Call::Request(Request::Lookup { dir: Ino::ROOT, name: name(OTHER) });
    let (cached, _) = machine.sessions.answer(1, &Caller::SERVER, &lookup).expect("the name is cached");
    assert!(matches!(cached, Ok(Answer::Entry(cached)) if cached.attr == attr(OTHER)));
    // Cached entries are not requested again.
    machine.list(&[FAR[0], FAR[1], OTHER]);
    assert_eq!(machine.finds(), []);
    let (again, without) = machine.listed();
    assert_eq!((again.len(), without), (4, Vec::new()));
    let all: Vec<_> = entries.into_iter().chain(again).chain([entry(OTHER)]).collect();
    assert_eq!(machine.held_without(&all), []);
}

#[test]
fn entry_that_another_rank_does_not_have_stays_without_attributes() {
    let mut machine = Machine::new();
    machine.list(&FAR);
    machine.reply_to(FAR[0], Err(Errno::ESTALE));
    machine.found(FAR[1]);
    let (entries, without) = machine.listed();
    assert_eq!((entries.len(), without), (2, [FAR[0]].into()));
    assert_eq!(machine.held_without(&entries), []);
}

#[test]
fn listing_does_not_wait_for_a_rank_that_is_down() {
    let mut machine = Machine::new();
    machine.sessions.disconnected(FAR[0].rank());
    machine.list(&[FAR[0], OTHER]);
    assert_eq!(machine.finds(), [OTHER]);
    machine.found(OTHER);
    let (entries, without) = machine.listed();
    assert_eq!((entries.len(), without), (2, [FAR[0]].into()));
}

#[test]
fn listing_does_not_wait_long_for_a_slow_rank_and_returns_late_lookups() {
    let mut machine = Machine::new();
    machine.list(&[FAR[0], OTHER]);
    machine.found(OTHER);
    machine.tick(100);
    assert!(machine.answers.is_empty());
    machine.tick(500);
    let (entries, without) = machine.listed();
    assert_eq!((entries.len(), without), (2, [FAR[0]].into()));
    machine.found(FAR[0]);
    assert_eq!(machine.held_without(&entries), []);
}

#[test]
fn entry_whose_lease_ends_while_the_listing_waits_is_not_cached() {
    for lease in [Lease::Name { dir: Ino::ROOT, name: name(HERE) }, Lease::Inode { ino: HERE }] {
        let mut machine = Machine::new();
        machine.list(&[OTHER]);
        machine.receive(Rank(0), FromServer::Revoke { number: RevocationId(1), lease: lease.clone() });
        machine.found(OTHER);
        let (entries, _) = machine.listed();
        let is_leased = |ino| {
            let entry = entries.iter().find(|entry| entry.attr.ino == ino).expect("an entry");
            [entry.name_leased, entry.attr_leased]
        };
        assert_eq!(is_leased(OTHER), [true; 2]);
        let is_name = matches!(lease, Lease::Name { .. });
        assert_eq!(is_leased(HERE), [!is_name, is_name], "{lease:?}");
    }
}

#[test]
fn interrupted_listing_returns_all_lookups() {
    let mut machine = Machine::new();
    machine.list(&[FAR[0], OTHER]);
    machine.found(OTHER);
    machine.sessions.disconnected(FAR[0].rank());
    let mut actions = Actions::default();
    machine.sessions.interrupt(machine.calls, |_| true, |_| false, &mut actions);
    machine.take(actions);
    assert_eq!(machine.answer().err(), Some(Errno::EINTR));
    machine.requests.clear();
    // The request is sent again, since its outcome is unknown.
    machine.connect(FAR[0].rank());
    assert_eq!(machine.finds(), [FAR[0]]);
    machine.found(FAR[0]);
    assert_eq!(machine.held_without(&[]), []);
}

#[test]
fn listing_outlives_the_session_with_another_rank() {
    let mut machine = Machine::new();
    machine.list(&[FAR[0], FAR[1], OTHER]);
    machine.found(OTHER);
    machine.sessions.disconnected(FAR[0].rank());
    let mut actions = Actions::default();
    machine.sessions.ended(machine.now, FAR[0].rank(), &mut actions);
    machine.take(actions);
    let (entries, without) = machine.listed();
    assert_eq!((entries.len(), without), (2, FAR.into()));
}
