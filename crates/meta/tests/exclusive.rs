//! Exclusive leases: which client gets one, and which operations wait for their revocation.

use crate::harness::{self, Harness, ROOT_CALLER, name};
use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;

const TERM: u32 = 10_000;

struct TestClient {
    id: ClientId,
    next: u64,
}

impl TestClient {
    fn connect(fs: &mut Harness, number: u64) -> Self {
        let id = ClientId(100 + number);
        fs.input(Input::Connect { client: id, leases: true, resumes: false });
        Self { id, next: number << 32 }
    }

    /// A client with a pool of inode numbers, as for metadata write-back.
    fn writeback(fs: &mut Harness, number: u64) -> Self {
        let mut client = Self::connect(fs, number);
        assert!(matches!(
            client.ask(fs, Request::TakeNumbers { rank: Rank(0), count: 8 }),
            Ok(Reply::Numbers { .. })
        ));
        client
    }

    fn send(&mut self, fs: &mut Harness, request: Request) -> u64 {
        self.send_after(fs, &[], request)
    }

    /// Sends a request that follows others.
    fn send_after(&mut self, fs: &mut Harness, follows: &[u64], request: Request) -> u64 {
        self.next += 1;
        let (from, id) = (self.id, RequestId(self.next));
        let follows: Vec<_> = follows.iter().copied().map(RequestId).collect();
        let below = *follows.iter().min().unwrap_or(&id);
        fs.input(Input::Request { from, id, below, follows, caller: ROOT_CALLER, request });
        self.next
    }

    fn ask(&mut self, fs: &mut Harness, request: Request) -> Result<Reply, Errno> {
        self.ask_for(fs, request).0
    }

    /// Sends a request, and returns the directory on which the reply grants an exclusive lease. All
    /// revocations are acknowledged.
    fn ask_for(&mut self, fs: &mut Harness, request: Request) -> (Result<Reply, Errno>, Option<Ino>) {
        let id = self.send(fs, request);
        while !fs.answers.contains_key(&id) && !fs.revocations.is_empty() {
            give_up(fs);
        }
        (fs.answers.remove(&id).expect("an answer"), fs.leases[&id].1.exclusive)
    }

    fn exclusive_after(&mut self, fs: &mut Harness, request: Request) -> Option<Ino> {
        let (reply, exclusive_in) = self.ask_for(fs, request);
        reply.unwrap();
        exclusive_in
    }

    fn make(&mut self, fs: &mut Harness, dir: Ino, what: &str, node: NewNode) -> Ino {
        match self.ask(fs, create(dir, what, node)) {
            Ok(Reply::Entry(entry)) => entry.attr.ino,
            other => panic!("{other:?}"),
        }
    }
}

fn config() -> Config {
    let acknowledge = Acknowledge::Written;
    Config { session_ms: Some(60_000), lease_ms: Some(TERM), acknowledge, ..harness::config() }
}

fn fs() -> Harness {
    Harness::with(config())
}

fn create(dir: Ino, file: &str, node: NewNode) -> Request {
    let (perm, umask, open, exclusive) = (0o755, 0, None, true);
    Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None }
}

fn lookup(dir: Ino, file: &str) -> Request {
    Request::Lookup { dir, name: name(file) }
}

fn rmdir(dir: Ino, name_: &str) -> Request {
    Request::RmDir { dir, name: name(name_), time: None }
}

/// Acknowledges all revocations, and returns them.
fn give_up(fs: &mut Harness) -> Vec<(ClientId, Lease)> {
    let revocations = std::mem::take(&mut fs.revocations);
    for revocation in &revocations {
        fs.input(Input::Revoked { client: revocation.client, number: revocation.number });
    }
    revocations.into_iter().map(|revocation| (revocation.client, revocation.lease)).collect()
}

/// Two clients, and a directory on which the first has an exclusive lease.
fn exclusive_in() -> (Harness, TestClient, TestClient, Ino) {
    let mut fs = fs();
    let (mut one, other) = (TestClient::writeback(&mut fs, 1), TestClient::writeback(&mut fs, 2));
    let dir = one.make(&mut fs, Ino::ROOT, "dir", NewNode::Directory);
    assert_eq!(one.exclusive_after(&mut fs, create(dir, "file", NewNode::Regular)), Some(dir));
    fs.revocations.clear();
    (fs, one, other, dir)
}

#[test]
fn exclusive_lease_depends_on_writeback_and_not_on_acknowledgement() {
    for acknowledge in [Acknowledge::Written, Acknowledge::Durable] {
        for writeback in [true, false] {
            let mut fs = Harness::with(Config { acknowledge, writeback, ..config() });
            let mut one = TestClient::writeback(&mut fs, 1);
            let dir = one.make(&mut fs, Ino::ROOT, "dir", NewNode::Directory);
            let exclusive_in = one.exclusive_after(&mut fs, create(dir, "file", NewNode::Regular));
            assert_eq!(exclusive_in, writeback.then_some(dir), "{acknowledge:?}");
        }
    }
}

/// Asserts that a request of one client waits until the other has acknowledged the revocation of
/// its exclusive lease, which is sent once.
fn waits_for(
    fs: &mut Harness,
    (one, other): (&TestClient, &mut TestClient),
    dir: Ino,
    request: Request,
) -> Result<Reply, Errno> {
    let id = other.send(fs, request.clone());
    assert_eq!(fs.answers.get(&id), None, "{request:?}");
    let requested = give_up(fs);
    assert!(requested.contains(&(one.id, Lease::Exclusive { dir })), "{request:?}: {requested:?}");
    while !fs.revocations.is_empty() {
        give_up(fs);
    }
    fs.answers.remove(&id).expect("an answer")
}

#[test]
fn acknowledged_symlink_and_attributes_are_made_as_the_client_said() {
    let (mut fs, mut one, _, dir) = exclusive_in();
    let numbers = one.ask(&mut fs, Request::TakeNumbers { rank: Rank(0), count: 1 });
    let Ok(Reply::Numbers { first: ino, time, .. }) = numbers else { panic!("{numbers:?}") };
    let at = |seconds: i64| Time::new(time.secs + seconds, 5);
    let make = create(dir, "link", NewNode::Symlink((*b"target").into())).acknowledged(ino, at(-1));
    let made = one.ask(&mut fs, make);
    let Ok(Reply::Entry(entry)) = made else { panic!("{made:?}") };
    let attr = entry.attr;
    assert_eq!((attr.ino, attr.perm, attr.size, attr.ctime), (ino, 0o777, 6, at(-1)));
    let set = SetAttr { uid: Some(5), atime: Some(SetTime::Now), ..SetAttr::default() };
    let request = Request::SetAttr { ino, set }.acknowledged(ino, at(1));
    let Ok(Reply::Attr(changed)) = one.ask(&mut fs, request) else { panic!("no attributes") };
    assert_eq!(changed, Attr { uid: 5, atime: at(1), ctime: at(1), ..attr });
}

#[test]
fn requests_are_executed_after_those_that_they_follow() {
    let (mut fs, mut one, mut other, _) = exclusive_in();
    let shared = one.make(&mut fs, Ino::ROOT, "shared", NewNode::Directory);
    other.ask(&mut fs, lookup(Ino::ROOT, "shared")).unwrap();
    let list = Request::ReadDir { dir: shared, after: 0, limit: 10, plus: true };
    other.ask(&mut fs, list).unwrap();
    let get = || Request::GetAttr { ino: shared };
    // It waits until the other client has given up its lease on the directory's contents.
    let made = one.send(&mut fs, create(shared, "file", NewNode::Regular));
    let (follower, stranger) = (one.send_after(&mut fs, &[made], get()), one.send(&mut fs, get()));
    let last = one.send_after(&mut fs, &[made, follower], get());
    // A request that follows itself or a later one would never begin.
    let impossible = one.next + 1;
    one.send_after(&mut fs, &[impossible, impossible + 1], get());
    let sizes = |fs: &mut Harness, of: &[u64]| {
        let size = |id: &u64| match fs.answers.remove(id) {
            Some(Ok(Reply::Attr(attr))) => Some(attr.size),
            None => None,
            other => panic!("{other:?}"),
        };
        of.iter().map(size).collect::<Vec<_>>()
    };
    let all = [follower, stranger, last, impossible];
    assert_eq!(sizes(&mut fs, &all), [None, Some(0), None, Some(0)]);
    while !fs.revocations.is_empty() {
        give_up(&mut fs);
    }
    assert_eq!(sizes(&mut fs, &all), [Some(1), None, Some(1), None]);
    // One that has not arrived yet.
    let early = RequestId(one.next + 2);
    let first = one.next + 1;
    one.next += 1;
    let follower = one.send_after(&mut fs, &[first], get());
    assert_eq!((sizes(&mut fs, &[follower]), follower), (vec![None], early.0));
    one.next = first - 1;
    one.send(&mut fs, get());
    assert_eq!(sizes(&mut fs, &[first, follower]), [Some(1), Some(1)]);
    one.next = follower;
    // One that never arrives: it was refused.
    one.next += 1;
    let refused = one.send_after(&mut fs, &[follower + 1], get());
    fs.input(Input::Tick);
    assert_eq!(fs.answers.get(&refused), None);
    fs.input(Input::Tick);
    assert_eq!(fs.answers.remove(&refused), Some(Err(Errno::EAGAIN)));
    // Those that it follows may be over.
    let follower = one.send_after(&mut fs, &[made, last], get());
    assert_eq!(sizes(&mut fs, &[follower]), [Some(1)]);
}

#[test]
fn directory_made_by_writeback_is_exclusive_before_its_reply_arrives() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    let numbers = one.ask(&mut fs, Request::TakeNumbers { rank: Rank(0), count: 2 });
    let Ok(Reply::Numbers { first: sub, time, .. }) = numbers else { panic!("{numbers:?}") };
    let make = create(dir, "sub", NewNode::Directory).acknowledged(sub, time);
    let made = one.send(&mut fs, make);
    let inside = create(sub, "file", NewNode::Regular).acknowledged(Ino(sub.0 + 1), time);
    one.send_after(&mut fs, &[made], inside);
    waits_for(&mut fs, (&one, &mut other), dir, lookup(Ino::ROOT, "dir")).unwrap();
    let found = waits_for(&mut fs, (&one, &mut other), sub, lookup(dir, "sub"));
    let Ok(Reply::Entry(entry)) = found else { panic!("{found:?}") };
    assert_eq!(entry.attr.size, 1);
    // Not in a directory that others know.
    let numbers = one.ask(&mut fs, Request::TakeNumbers { rank: Rank(0), count: 1 });
    let Ok(Reply::Numbers { first, .. }) = numbers else { panic!("{numbers:?}") };
    one.ask(&mut fs, create(dir, "plain", NewNode::Directory).acknowledged(first, time)).unwrap();
    let id = other.send(&mut fs, lookup(dir, "plain"));
    assert!(fs.answers.contains_key(&id), "{:?}", fs.revocations);
}

#[test]
fn client_is_exclusive_in_unshared_directory() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    for request in [
        lookup(dir, "file"),
        lookup(dir, "absent"),
        Request::ReadDir { dir, after: 0, limit: 10, plus: true },
        Request::Unlink { dir, name: name("file"), time: None },
    ] {
        assert_eq!(one.exclusive_after(&mut fs, request.clone()), Some(dir), "{request:?}");
    }
    // Every client knows the root.
    assert_eq!(one.exclusive_after(&mut fs, create(Ino::ROOT, "file", NewNode::Regular)), None);
    waits_for(&mut fs, (&one, &mut other), dir, lookup(Ino::ROOT, "dir")).unwrap();
    assert_eq!(one.exclusive_after(&mut fs, lookup(dir, "absent")), None);
    // Until the other client has forgotten it.
    other.ask(&mut fs, Request::Forget { ino: dir, lookups: 1 }).unwrap();
    fs.uptime_ms += 60_000;
    assert_eq!(one.exclusive_after(&mut fs, create(dir, "other", NewNode::Regular)), Some(dir));
}

#[test]
fn renewal_grants_exclusive_for_unshared_files() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    let file = |at: usize| format!("file {at}");
    let files: Vec<Ino> = (0..4).map(|at| one.make(&mut fs, dir, &file(at), NewNode::Regular)).collect();
    let far = one.make(&mut fs, Ino::ROOT, "far", NewNode::Directory);
    let link = |ino, dir| Request::Link { ino, dir, name: name("link") };
    one.ask(&mut fs, link(files[1], dir)).unwrap();
    one.ask(&mut fs, link(files[2], far)).unwrap();
    one.ask(&mut fs, Request::Unlink { dir, name: name(&file(2)), time: None }).unwrap();
    // The leases have expired by then.
    fs.uptime_ms += 2 * u64::from(TERM);
    let inodes = [&[dir], &files[..]].concat();
    let renew = |exclusive_dir| Request::Renew { inodes: inodes.clone(), exclusive_dir };
    let renewed = |inodes: &[Ino]| Ok(Reply::Renewed(inodes.to_vec()));
    assert_eq!(one.ask_for(&mut fs, renew(None)), (renewed(&inodes), None));
    let (only, all) = ([dir, files[0], files[3]], Some(dir));
    assert_eq!(one.ask_for(&mut fs, renew(all)), (renewed(&only), all), "others are known elsewhere");
    assert_eq!(other.ask_for(&mut fs, renew(all)), (renewed(&[]), None), "the client knows none");
    waits_for(&mut fs, (&one, &mut other), dir, lookup(Ino::ROOT, "dir")).unwrap();
    other.ask(&mut fs, lookup(dir, &file(3))).unwrap();
    assert_eq!(one.ask_for(&mut fs, renew(all)), (renewed(&only[..2]), None));
    other.ask(&mut fs, Request::Forget { ino: dir, lookups: 1 }).unwrap();
    assert_eq!(one.ask_for(&mut fs, renew(all)), (renewed(&only[..2]), all));
    one.ask(&mut fs, Request::Forget { ino: dir, lookups: 1 }).unwrap();
    assert_eq!(
        other.ask_for(&mut fs, renew(all)),
        (renewed(&[]), None),
        "no client knows the directory, this one neither"
    );
}

#[test]
fn lookup_waits_for_exclusive_holder() {
    let looks = [
        lookup(Ino::ROOT, "dir"),
        Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: true },
        rmdir(Ino::ROOT, "dir"),
        Request::Rename {
            from_dir: Ino::ROOT,
            from: name("empty"),
            to_dir: Ino::ROOT,
            to: name("dir"),
            flags: RenameFlags::empty(),
            time: None,
        },
    ];
    for (at, look) in looks.into_iter().enumerate() {
        let (mut fs, mut one, mut other, dir) = exclusive_in();
        other.make(&mut fs, Ino::ROOT, "empty", NewNode::Directory);
        fs.revocations.clear();
        let outcome = waits_for(&mut fs, (&one, &mut other), dir, look);
        // Without the first client's file the directory would be empty.
        assert_eq!(outcome.err(), (at > 1).then_some(Errno::ENOTEMPTY), "{at}");
        let after = one.exclusive_after(&mut fs, create(dir, "again", NewNode::Regular));
        assert_eq!(after, (at > 1).then_some(dir), "{at}");
    }
}

#[test]
fn inode_found_by_its_number_revokes_the_exclusive_lease_on_its_directory() {
    let find = |ino| Request::Find { ino, kind: None, open: None };
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    let file = one.make(&mut fs, dir, "second", NewNode::Regular);
    waits_for(&mut fs, (&one, &mut other), dir, find(file)).unwrap();
    // So does the directory itself.
    let (mut fs, one, mut other, dir) = exclusive_in();
    waits_for(&mut fs, (&one, &mut other), dir, find(dir)).unwrap();
}

/// A client gets the number of a file, as NFS servers do, before the server has created the file.
#[test]
fn find_waits_for_a_creation_that_its_client_has_acknowledged() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    let numbers = one.ask(&mut fs, Request::TakeNumbers { rank: Rank(0), count: 2 });
    let Ok(Reply::Numbers { first, time, .. }) = numbers else { panic!("{numbers:?}") };
    let find = |ino| Request::Find { ino, kind: None, open: None };
    let id = other.send(&mut fs, find(first));
    assert!(!fs.answers.contains_key(&id));
    // The client sends what it has acknowledged before it acknowledges the revocation.
    let make = create(dir, "new", NewNode::Regular).acknowledged(first, time);
    let made = one.send(&mut fs, make);
    assert!(matches!(fs.answers.remove(&made), Some(Ok(Reply::Entry(entry))) if entry.attr.ino == first));
    while !fs.revocations.is_empty() {
        assert!(!fs.answers.contains_key(&id));
        give_up(&mut fs);
    }
    let found = fs.answers.remove(&id);
    assert!(matches!(found, Some(Ok(Reply::Entry(entry))) if entry.attr.ino == first), "{found:?}");
    // A number without a file revokes nothing for its own client, and ends for others.
    assert_eq!(one.ask(&mut fs, find(Ino(first.0 + 1))), Err(Errno::ESTALE));
    assert_eq!(other.ask(&mut fs, find(Ino(first.0 + 1))), Err(Errno::ESTALE));
}

#[test]
fn listing_without_attributes_adds_no_holders() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    other.ask(&mut fs, Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: false }).unwrap();
    assert!(fs.revocations.is_empty());
    assert_eq!(one.exclusive_after(&mut fs, lookup(dir, "file")), Some(dir));
}

#[test]
fn no_exclusive_lease_where_change_may_be_refused() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    // A quota revokes all exclusive leases, and prevents new ones while it is set.
    let quota = |value: &[u8]| Request::SetXattr {
        ino: Ino::ROOT,
        name: (*b"user.espalier.quota.max_files").into(),
        value: value.into(),
        mode: XattrMode::Any,
        kill_sgid: false,
    };
    waits_for(&mut fs, (&one, &mut other), dir, quota(b"100")).unwrap();
    fs.uptime_ms += 60_000;
    assert_eq!(one.exclusive_after(&mut fs, create(dir, "two", NewNode::Regular)), None);
    other.ask(&mut fs, quota(b"0")).unwrap();
    fs.uptime_ms += 60_000;
    assert_eq!(one.exclusive_after(&mut fs, create(dir, "three", NewNode::Regular)), Some(dir));
    // Clients do not know what files inherit from a default ACL.
    let acl: Vec<u8> = [
        &2u32.to_le_bytes()[..],
        &[1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 0x20, 0, 5, 0, 255, 255, 255, 255],
    ]
    .concat();
    let default = (*b"system.posix_acl_default").into();
    let (value, mode) = (acl.into(), XattrMode::Any);
    one.ask(&mut fs, Request::SetXattr { ino: dir, name: default, value, mode, kill_sgid: false }).unwrap();
    assert_eq!(one.exclusive_after(&mut fs, create(dir, "four", NewNode::Regular)), None);
}

/// Silent clients cost the term of one lease, not of one each.
#[test]
fn quota_revokes_all_exclusive_leases_at_once() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    let mut expected = vec![(one.id, Lease::Exclusive { dir })];
    for at in 0..3 {
        let dir = one.make(&mut fs, Ino::ROOT, &format!("dir {at}"), NewNode::Directory);
        assert_eq!(one.exclusive_after(&mut fs, create(dir, "file", NewNode::Regular)), Some(dir));
        expected.push((one.id, Lease::Exclusive { dir }));
    }
    fs.revocations.clear();
    let quota = Request::SetXattr {
        ino: Ino::ROOT,
        name: (*b"user.espalier.quota.max_files").into(),
        value: b"100"[..].into(),
        mode: XattrMode::Any,
        kill_sgid: false,
    };
    let id = other.send(&mut fs, quota);
    let sent = |fs: &Harness| {
        let mut sent: Vec<_> = fs.revocations.iter().map(|sent| (sent.client, sent.lease.clone())).collect();
        sent.sort_by_key(|(_, lease)| match lease {
            Lease::Exclusive { dir } => *dir,
            other => panic!("{other:?}"),
        });
        sent
    };
    assert_eq!(sent(&fs), expected);
    assert_eq!(fs.answers.get(&id), None);
    // No client acknowledges.
    fs.uptime_ms += u64::from(TERM) + 1_000;
    fs.input(Input::Tick);
    assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Done)));
}

#[test]
fn no_exclusive_lease_without_writeback() {
    let mut fs = fs();
    let mut one = TestClient::connect(&mut fs, 1);
    let dir = one.make(&mut fs, Ino::ROOT, "dir", NewNode::Directory);
    assert_eq!(one.exclusive_after(&mut fs, create(dir, "file", NewNode::Regular)), None);
}

#[test]
fn replies_mark_sole_holder_while_true() {
    let (mut fs, mut one, mut other, dir) = exclusive_in();
    let exclusive_in = |reply: Result<Reply, Errno>| match reply {
        Ok(Reply::Entry(entry)) => entry.sole_holder,
        other => panic!("{other:?}"),
    };
    assert!(exclusive_in(one.ask(&mut fs, lookup(dir, "file"))));
    waits_for(&mut fs, (&one, &mut other), dir, lookup(Ino::ROOT, "dir")).unwrap();
    assert!(!exclusive_in(other.ask(&mut fs, lookup(dir, "file"))));
    assert!(!exclusive_in(one.ask(&mut fs, lookup(dir, "file"))));
}

/// A client's lease ends with its session, and with its term.
#[test]
fn gone_client_blocks_nothing() {
    let (mut fs, one, mut other, dir) = exclusive_in();
    let id = other.send(&mut fs, lookup(Ino::ROOT, "dir"));
    for _ in 0..12 {
        fs.uptime_ms += 1000;
        fs.input(Input::Tick);
    }
    assert!(fs.answers.remove(&id).is_some_and(|answer| answer.is_ok()), "{dir} {}", one.id.0);
}

/// After a restart, a directory stays hidden until all clients that may have had an exclusive lease
/// on it have reclaimed. A client with pending operations gets its exclusive lease back.
#[test]
fn restarted_server_keeps_subtree_restriction() {
    for is_exclusive in [false, true] {
        let (mut fs, mut one, mut other, dir) = exclusive_in();
        let entry = match one.ask(&mut fs, lookup(Ino::ROOT, "dir")) {
            Ok(Reply::Entry(entry)) => entry,
            reply => panic!("{reply:?}"),
        };
        let held = Held {
            ino: dir,
            location: entry.location,
            lookups: 1,
            opens: 0,
            lookup_token: entry.reclaim_token,
            opened: 0,
            exclusive: is_exclusive,
        };
        one.ask(&mut fs, Request::Fsync { ino: dir }).unwrap();
        let mut fs = fs.crash();
        for client in [one.id, other.id] {
            fs.input(Input::Connect { client, leases: true, resumes: false });
        }
        other.ask(&mut fs, Request::Reclaim { held: Vec::new(), last: true, again: vec![] }).unwrap();
        let looks = other.send(&mut fs, lookup(Ino::ROOT, "dir"));
        assert_eq!(fs.answers.get(&looks), None, "the first may have an exclusive lease on it");
        one.ask(&mut fs, Request::Reclaim { held: vec![held], last: true, again: vec![] }).unwrap();
        assert_eq!(fs.answers.contains_key(&looks), !is_exclusive);
        if is_exclusive {
            one.make(&mut fs, dir, "pending", NewNode::Regular);
            assert_eq!(give_up(&mut fs), [(one.id, Lease::Exclusive { dir })]);
            assert!(fs.answers.contains_key(&looks));
        }
    }
}

#[test]
fn exclusive_lease_does_not_lease_other_replies() {
    let (mut fs, mut one, mut other, _) = exclusive_in();
    let dir = one.make(&mut fs, Ino::ROOT, "empty", NewNode::Directory);
    fs.revocations.clear();
    // Replies wait for a change that is being written.
    fs.lazy = true;
    one.send(&mut fs, create(Ino::ROOT, "new", NewNode::Regular));
    let listed = one.send(&mut fs, Request::ReadDir { dir, after: 0, limit: 10, plus: false });
    other.send(&mut fs, rmdir(Ino::ROOT, "empty"));
    let requested: Vec<Lease> = fs.revocations.iter().map(|revocation| revocation.lease.clone()).collect();
    assert!(
        requested.contains(&Lease::Inode { ino: dir }) && !fs.answers.contains_key(&listed),
        "{requested:?}"
    );
    while fs.run_one() {}
    assert!(matches!(fs.answers[&listed], Ok(Reply::Listing { .. })), "{:?}", fs.answers[&listed]);
    assert_eq!((fs.leases[&listed].0, fs.leases[&listed].1.exclusive), (0, None));
}
