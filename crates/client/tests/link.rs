//! The client's end of a session: transmission over connections, and reclaims after a restart.
#![allow(clippy::unwrap_used)]

use espalier_client::{Ended, Link};
use espalier_proto::{
    Access, Attr, Caller, Entry, Errno, FileType, FromClient, Held, Ino, Location, Lock, LockKind, LockOwner,
    Name, NewNode, OpenHow, Opened, Rank, Reply, Request, RequestId, ServerMap, StreamIo, Time, Welcome,
};

const HOME: Location = Location::Dentry { dir: Ino::ROOT, hash: 77 };

fn welcome(incarnation: u64) -> Welcome {
    Welcome {
        incarnation,
        window: 4,
        session_ms: 60_000,
        rank: Rank(0),
        root: Ino::ROOT,
        servers: ServerMap::NONE,
        data_pool: None,
    }
}

fn name() -> Name {
    Name::new(b"file").unwrap()
}

fn stat(ino: u64) -> Request {
    Request::GetAttr { ino: Ino(ino) }
}

/// The numbers of the requests in `out`, each with the first number whose answer is wanted.
fn numbers(out: &mut Vec<FromClient>) -> Vec<(u64, u64)> {
    let number = |message: FromClient| match message {
        FromClient::Request { id, below, .. } | FromClient::Stream { id, below, .. } => Some((id.0, below.0)),
        _ => None,
    };
    out.drain(..).filter_map(number).collect()
}

fn requests(out: &mut Vec<FromClient>) -> Vec<Request> {
    let request =
        |message| if let FromClient::Request { request, .. } = message { Some(request) } else { None };
    out.drain(..).filter_map(request).collect()
}

fn entry(ino: u64) -> Entry {
    let attr = Attr::new(Ino(ino), FileType::Regular, 0o644, Time::default());
    Entry {
        attr,
        cacheable: true,
        name_leased: true,
        attr_leased: true,
        sole_holder: false,
        location: HOME,
        reclaim_token: 5,
    }
}

fn create() -> Request {
    let how = OpenHow { access: Access::WRITE, ..OpenHow::default() };
    Request::Create {
        dir: Ino::ROOT,
        name: name(),
        node: NewNode::Regular,
        perm: 0o644,
        umask: 0,
        open: Some(how),
        exclusive: true,
        writeback: None,
    }
}

fn created(ino: u64) -> Result<Reply, Errno> {
    Ok(Reply::Created(entry(ino), Opened { reclaim_token: 6, ..Opened::default() }))
}

/// A link with its first connection.
fn connected() -> Link {
    let (mut link, mut out) = (Link::default(), Vec::new());
    assert_eq!(link.connected(&welcome(1), &[].into(), &mut out), None);
    // A new session reclaims nothing.
    assert_eq!(requests(&mut out), [Request::Reclaim { held: vec![], last: true, again: vec![] }]);
    link.answered(RequestId(1), &Ok(Reply::Done), true, &mut out);
    assert_eq!(out, []);
    link
}

#[test]
fn requests_beyond_window_wait() {
    let (mut link, mut out) = (connected(), Vec::new());
    for ino in 1..=6 {
        link.ask(Caller::SERVER, stat(ino), &mut out);
    }
    assert_eq!(numbers(&mut out), [(2, 2), (3, 2), (4, 2), (5, 2)]);
    // Only the first unanswered request moves the window.
    link.answered(RequestId(3), &Err(Errno::ENOENT), true, &mut out);
    assert_eq!(out, []);
    link.answered(RequestId(2), &Err(Errno::ENOENT), true, &mut out);
    assert_eq!(numbers(&mut out), [(6, 4), (7, 4)]);
}

#[test]
fn bytes_in_flight_are_bounded_and_other_requests_overtake() {
    let (mut link, mut out) = (connected(), Vec::new());
    let wide = Welcome { window: 64, ..welcome(1) };
    link.connected(&wide, &[].into(), &mut out);
    let sent = |out: &mut Vec<FromClient>| numbers(out).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    let ino = Ino(9);
    let read = |size| StreamIo::read(ino, 0, size);
    let write = StreamIo::write(ino, 0, 1);
    link.stream(read(6 << 20), vec![].into(), &mut out);
    link.stream(write, vec![0; 4 << 20].into(), &mut out);
    link.ask(Caller::SERVER, Request::Read { ino, offset: 0, size: 6 << 20, noatime: false }, &mut out);
    link.stream(write, vec![0; 4 << 20].into(), &mut out);
    link.ask(Caller::SERVER, stat(9), &mut out);
    link.stream(read(1), vec![].into(), &mut out);
    assert_eq!(sent(&mut out), [2, 3, 4, 6]);
    let answered = |link: &mut Link, id| {
        let mut out = Vec::new();
        link.answered(RequestId(id), &Ok(Reply::Done), true, &mut out);
        sent(&mut out)
    };
    assert_eq!(answered(&mut link, 6), []);
    assert_eq!(answered(&mut link, 3), [5]);
    assert_eq!(answered(&mut link, 2), [7]);
    link.disconnected();
    link.stream(write, vec![0; 20 << 20].into(), &mut out);
    link.connected(&wide, &[].into(), &mut out);
    assert_eq!(sent(&mut out), [4, 5, 7]);
    assert_eq!(answered(&mut link, 4), []);
    assert_eq!(answered(&mut link, 5), []);
    // A message above the limit is sent separately.
    assert_eq!(answered(&mut link, 7), [8]);
}

#[test]
fn unanswered_requests_are_resent() {
    let (mut link, mut out) = (connected(), Vec::new());
    for ino in 1..=3 {
        link.ask(Caller::SERVER, stat(ino), &mut out);
    }
    link.answered(RequestId(3), &Err(Errno::ENOENT), true, &mut out);
    link.disconnected();
    out.clear();
    // Without a connection nothing is sent, and the time of an answer is unknown.
    let late = link.ask(Caller::SERVER, stat(9), &mut out);
    assert!(!link.cancel(late, &mut out) && out.is_empty());
    assert_eq!(link.connected(&welcome(1), &[].into(), &mut out), None);
    assert_eq!(numbers(&mut out), [(2, 2), (4, 2), (5, 2)]);
    assert!(link.cancel(late, &mut out));
    assert_eq!(out, [FromClient::Cancel { id: late }]);
}

#[test]
fn restarted_server_gets_reclaims_first() {
    let (mut link, mut out) = (connected(), Vec::new());
    let id = link.ask(Caller::SERVER, create(), &mut out);
    link.answered(id, &created(5), true, &mut out);
    let id = link.ask(Caller::SERVER, Request::Lookup { dir: Ino::ROOT, name: name() }, &mut out);
    for _ in 0..2 {
        // A duplicate reply has no effect.
        link.answered(id, &Ok(Reply::Entry(entry(6))), true, &mut out);
    }
    link.ask(Caller::SERVER, stat(5), &mut out);
    link.disconnected();
    out.clear();
    let mut distrusted = link.connected(&welcome(2), &[].into(), &mut out).unwrap();
    distrusted.sort();
    assert_eq!(distrusted, [Ino(5), Ino(6)]);
    let mut sent = requests(&mut out);
    let Request::Reclaim { held, last: true, again } = &mut sent[0] else { panic!("{sent:?}") };
    assert_eq!(*again, [RequestId(4)]);
    held.sort_by_key(|held| held.ino);
    let expected = [(5, 1), (6, 0)].map(|(ino, opens)| {
        let opened = if opens > 0 { 6 } else { 0 };
        Held { ino: Ino(ino), location: HOME, lookups: 1, opens, lookup_token: 5, opened, exclusive: false }
    });
    assert_eq!(*held, expected);
    assert_eq!(sent[1..], [stat(5)]);
}

#[test]
fn reclaim_carries_write_open_token() {
    let (mut link, mut out) = (connected(), Vec::new());
    let id = link.ask(Caller::SERVER, create(), &mut out);
    link.answered(id, &created(5), true, &mut out);
    let open = |link: &mut Link, access, reclaim_token| {
        let how = OpenHow { access, ..OpenHow::default() };
        let id = link.ask(Caller::SERVER, Request::Open { ino: Ino(5), how }, &mut Vec::new());
        let opened = Opened { reclaim_token, ..Opened::default() };
        link.answered(id, &Ok(Reply::Opened(opened)), true, &mut Vec::new());
    };
    let release = |link: &mut Link| {
        let id = link.ask(Caller::SERVER, Request::Release { ino: Ino(5) }, &mut Vec::new());
        link.answered(id, &Ok(Reply::Done), true, &mut Vec::new());
    };
    let mut incarnation = 1;
    let mut proved = |link: &mut Link| {
        incarnation += 1;
        link.disconnected();
        let mut out = Vec::new();
        link.connected(&welcome(incarnation), &[].into(), &mut out);
        let Request::Reclaim { held, .. } = requests(&mut out).swap_remove(0) else { panic!() };
        held[0].opened
    };
    release(&mut link);
    open(&mut link, Access::READ, 11);
    assert_eq!(proved(&mut link), 11);
    open(&mut link, Access::WRITE, 12);
    open(&mut link, Access::READ, 11);
    assert_eq!(proved(&mut link), 12);
    (0..3).for_each(|_| release(&mut link));
    open(&mut link, Access::READ, 11);
    assert_eq!(proved(&mut link), 11, "the file was closed in between");
}

#[test]
fn released_inode_is_held_until_reply() {
    let (mut link, mut out) = (connected(), Vec::new());
    let id = link.ask(Caller::SERVER, create(), &mut out);
    link.answered(id, &created(5), true, &mut out);
    let release = link.ask(Caller::SERVER, Request::Release { ino: Ino(5) }, &mut out);
    link.forget(Ino(5), 1, &mut out);
    link.send_forgets(&mut out);
    let held = |link: &mut Link, incarnation| {
        let mut out = Vec::new();
        link.disconnected();
        link.connected(&welcome(incarnation), &[].into(), &mut out);
        let Request::Reclaim { held, .. } = requests(&mut out).swap_remove(0) else { panic!() };
        held.iter().map(|held| (held.lookups, held.opens)).collect::<Vec<_>>()
    };
    assert_eq!(held(&mut link, 2), [(1, 1)]);
    link.answered(release, &Ok(Reply::Done), false, &mut out);
    assert_eq!(held(&mut link, 3), [(1, 0)]);
    link.answered(RequestId(release.0 + 1), &Ok(Reply::Done), false, &mut out);
    assert_eq!(held(&mut link, 4), []);
}

#[test]
fn requests_of_lost_session_have_unknown_outcome() {
    let (mut link, mut out) = (connected(), Vec::new());
    for ino in 1..=5 {
        link.ask(Caller::SERVER, stat(ino), &mut out);
    }
    link.disconnected();
    out.clear();
    let ended = link.ended();
    assert_eq!((ended.distrust, ended.lost), (vec![], (2..=5).map(RequestId).collect()));
    assert_eq!((link.incarnation(), link.ended()), (None, Ended::default()));
    assert_eq!(link.connected(&welcome(1), &[].into(), &mut out), None);
    // The fifth request waited for the window.
    assert_eq!(requests(&mut out), [Request::Reclaim { held: vec![], last: true, again: vec![] }, stat(5)]);
}

/// A write that waits for the limit on bytes in flight cannot have been executed.
#[test]
fn data_that_was_never_sent_is_sent_in_the_next_session() {
    let write = StreamIo::write(Ino(9), 0, 1);
    let wide = |incarnation| Welcome { window: 64, ..welcome(incarnation) };
    for was_sent in [false, true] {
        let (mut link, mut out) = (connected(), Vec::new());
        link.connected(&wide(1), &[].into(), &mut out);
        let first = link.stream(write, vec![0; 12 << 20].into(), &mut out);
        let second = link.stream(write, vec![0; 12 << 20].into(), &mut out);
        let last = link.ask(Caller::SERVER, stat(9), &mut out);
        assert_eq!(numbers(&mut out), [(2, 2), (4, 2)]);
        if was_sent {
            link.answered(first, &Ok(Reply::Done), true, &mut out);
        }
        link.disconnected();
        link.connected(&wide(1), &[].into(), &mut out);
        link.disconnected();
        out.clear();
        let (lost, sent) = if was_sent { (second, vec![5]) } else { (first, vec![5, 3]) };
        assert_eq!(link.ended().lost, [lost, last]);
        link.connected(&wide(2), &[].into(), &mut out);
        assert_eq!(
            requests(&mut out.clone()),
            [Request::Reclaim { held: vec![], last: true, again: vec![] }]
        );
        assert_eq!(numbers(&mut out).into_iter().map(|(id, _)| id).collect::<Vec<_>>(), sent);
        // A restart of the server does not make it a repeated request, until it has been sent.
        let again = |link: &mut Link, incarnation| {
            let mut out = Vec::new();
            link.disconnected();
            link.connected(&wide(incarnation), &[].into(), &mut out);
            let Request::Reclaim { again, .. } = requests(&mut out).swap_remove(0) else { panic!() };
            again
        };
        let expected = if was_sent { vec![] } else { vec![second] };
        assert_eq!(again(&mut link, 3), expected);
    }
}

/// Other clients may have written the same bytes since.
#[test]
fn acknowledged_data_that_was_never_sent_is_lost_with_the_session() {
    let write = StreamIo { acknowledged: true, ..StreamIo::write(Ino(9), 0, 1) };
    let (mut link, mut out) = (connected(), Vec::new());
    let writes = [0, 1].map(|_| link.stream(write, vec![0; 12 << 20].into(), &mut out));
    assert_eq!(numbers(&mut out), [(2, 2)]);
    link.disconnected();
    assert_eq!(link.ended().lost, writes);
    link.connected(&welcome(2), &[].into(), &mut out);
    assert_eq!(numbers(&mut out), [(4, 4)], "only the reclaim");
}

#[test]
fn reclaim_does_not_announce_data_that_was_never_sent() {
    let write = StreamIo::write(Ino(9), 0, 1);
    let (mut link, mut out) = (connected(), Vec::new());
    let first = link.stream(write, vec![0; 12 << 20].into(), &mut out);
    link.stream(write, vec![0; 12 << 20].into(), &mut out);
    assert_eq!(numbers(&mut out), [(2, 2)]);
    link.disconnected();
    link.connected(&welcome(2), &[].into(), &mut out);
    assert_eq!(requests(&mut out), [Request::Reclaim { held: vec![], last: true, again: vec![first] }]);
}

#[test]
fn reply_without_waiter_is_released() {
    let (mut link, mut out) = (connected(), Vec::new());
    let id = link.ask(Caller::SERVER, create(), &mut out);
    out.clear();
    link.answered(id, &created(5), false, &mut out);
    link.send_forgets(&mut out);
    let expected = [
        Request::Release { ino: Ino(5) },
        Request::ForgetAll { inodes: vec![(Ino(5), 1)], released: vec![] },
    ];
    assert_eq!(requests(&mut out), expected);
}

#[test]
fn forgets_are_batched() {
    let (mut link, mut out) = (connected(), Vec::new());
    for ino in 0..511 {
        link.forget(Ino(ino), 1, &mut out);
    }
    assert_eq!(out, []);
    link.forget(Ino(511), 2, &mut out);
    let sent = requests(&mut out);
    let [Request::ForgetAll { inodes, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((inodes.len(), inodes[511]), (512, (Ino(511), 2)));
    link.send_forgets(&mut out);
    assert_eq!(out, []);
}

#[test]
fn file_made_and_removed_by_client_is_closed() {
    let (mut link, mut out) = (connected(), Vec::new());
    let unlink = || Request::Unlink { dir: Ino(1), name: Name::new(b"file").unwrap(), time: None };
    link.release(Ino(4), &mut out);
    link.ask(Caller::SERVER, unlink(), &mut out);
    link.release_made(Ino(5), &mut out);
    link.ask(Caller::SERVER, unlink(), &mut out);
    let reported = Request::ForgetAll { inodes: vec![], released: vec![Ino(4), Ino(5)] };
    assert_eq!(requests(&mut out), [unlink(), reported, unlink()]);
}

fn lock(flock: bool, kind: LockKind, (first, last): (u64, u64)) -> Lock {
    Lock { owner: LockOwner { flock, number: 1 }, kind, first, last, pid: 9 }
}

#[test]
fn failed_flock_conversion_loses_its_lock_unless_there_are_too_many() {
    let all = (0, u64::MAX);
    for (errno, keeps) in [(Errno::EAGAIN, false), (Errno::ENOLCK, true)] {
        let (mut link, mut out) = (connected(), Vec::new());
        let shared = lock(true, LockKind::Shared, all);
        let mut ask = |link: &mut Link, lock, result: Result<Reply, Errno>| {
            let request = Request::Lock { ino: Ino(5), lock, wait: None };
            let id = link.ask(Caller::SERVER, request, &mut out);
            link.answered(id, &result, true, &mut out);
        };
        ask(&mut link, shared, Ok(Reply::Done));
        ask(&mut link, lock(true, LockKind::Exclusive, all), Err(errno));
        assert_eq!(link.has_locks(Ino(5), shared.owner), keeps, "{errno:?}");
    }
}

/// The server may have released the lock before it crashed, and another client may have acquired
/// it.
#[test]
fn reclaim_omits_holds_released_by_pending_request() {
    use LockKind::{Exclusive, Shared};
    const ALL: (u64, u64) = (0, u64::MAX);
    let ask = |lock| Request::Lock { ino: Ino(2), lock, wait: None };
    let unlock = |flock, (first, last)| Request::Unlock {
        ino: Ino(2),
        owner: LockOwner { flock, number: 1 },
        first,
        last,
    };
    let cases = [
        (lock(true, Exclusive, ALL), unlock(true, ALL), vec![]),
        (lock(true, Exclusive, ALL), ask(lock(true, Shared, ALL)), vec![]),
        (lock(true, Shared, ALL), ask(lock(true, Exclusive, ALL)), vec![]),
        (lock(true, Shared, ALL), ask(lock(true, Shared, ALL)), vec![lock(true, Shared, ALL)]),
        (lock(false, Exclusive, (0, 9)), unlock(false, (5, 20)), vec![lock(false, Exclusive, (0, 4))]),
        (
            lock(false, Exclusive, (0, 9)),
            ask(lock(false, Shared, (5, 20))),
            vec![lock(false, Exclusive, (0, 4)), lock(false, Shared, (5, 9))],
        ),
        (
            lock(false, Shared, (0, 9)),
            ask(lock(false, Exclusive, (5, 20))),
            vec![lock(false, Shared, (0, 9))],
        ),
    ];
    for (held, under_way, said) in cases {
        let (mut link, mut out) = (Link::default(), Vec::new());
        link.connected(&welcome(1), &[].into(), &mut out);
        let id = link.ask(Caller::SERVER, ask(held), &mut out);
        link.answered(id, &Ok(Reply::Done), true, &mut out);
        link.ask(Caller::SERVER, under_way.clone(), &mut out);
        link.disconnected();
        out.clear();
        link.connected(&welcome(2), &[].into(), &mut out);
        let requests = requests(&mut out);
        let reported: Vec<_> = requests
            .iter()
            .filter_map(|request| match request {
                Request::ReclaimLocks { locks } => Some(locks.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let said: Vec<_> = said.into_iter().map(|lock| (Ino(2), lock)).collect();
        assert_eq!(reported, said, "{held:?}, {under_way:?}");
        assert_eq!(requests.last(), Some(&under_way), "the request is repeated");
    }
}

#[test]
fn payloads_are_announced_by_policy() {
    let ino = Ino(40);
    let how = OpenHow { access: Access::READ, ..OpenHow::default() };
    let (mut link, mut out) = (connected(), Vec::new());
    let opened = |announced| Opened { announced, reclaim_token: 6, ..Opened::default() };
    for (request, reply, announced) in [
        (create(), Reply::Created(entry(ino.0), opened(true)), true),
        (Request::Open { ino, how }, Reply::Opened(opened(false)), false),
        (Request::Open { ino, how }, Reply::Opened(opened(true)), true),
    ] {
        let id = link.ask(Caller::SERVER, request, &mut out);
        link.answered(id, &Ok(reply), true, &mut out);
        out.clear();
        let read = Request::Read { ino, offset: 0, size: 1, noatime: false };
        let write = Request::Write { ino, offset: 0, data: vec![1].into(), kill_suid_gid: false, time: None };
        let other = Request::Read { ino: Ino(41), offset: 0, size: 1, noatime: false };
        let mut ids: Vec<_> =
            [read, write, other].map(|request| link.ask(Caller::SERVER, request, &mut out)).into();
        ids.push(link.stream(StreamIo::read(ino, 0, 1), Vec::new().into(), &mut out));
        let reported: Vec<_> = out.drain(..).map(|message| message.announced()).collect();
        assert_eq!(reported, [announced, announced, false, announced]);
        for id in ids {
            link.answered(id, &Ok(Reply::Done), true, &mut out);
        }
    }
}

#[test]
fn reclaim_also_reports_previous_location() {
    let (mut link, mut out) = (connected(), Vec::new());
    for location in [HOME, Location::Table] {
        let id = link.ask(Caller::SERVER, Request::Lookup { dir: Ino::ROOT, name: name() }, &mut out);
        link.answered(id, &Ok(Reply::Entry(Entry { location, ..entry(6) })), true, &mut out);
    }
    link.disconnected();
    out.clear();
    link.connected(&welcome(2), &[].into(), &mut out);
    let Request::Reclaim { held, .. } = requests(&mut out).swap_remove(0) else { panic!() };
    let reported = |held: &Held| (held.location, held.lookups, held.opens);
    assert_eq!(held.iter().map(reported).collect::<Vec<_>>(), [(Location::Table, 1, 0), (HOME, 1, 0)]);
}

#[test]
fn server_keeps_where_it_has_forwarded_a_request_until_that_is_answered() {
    let (mut link, out) = (Link::default(), &mut Vec::new());
    link.connected(&welcome(1), &[].into(), out);
    // The request to reclaim.
    link.answered(RequestId(numbers(out)[0].0), &Ok(Reply::Done), true, out);
    let id = link.ask(Caller::SERVER, create(), out);
    assert_eq!(link.forwarded(id), Some((Caller::SERVER, create())));
    link.ask(Caller::SERVER, stat(5), out);
    assert_eq!(numbers(out), [(id.0, id.0), (id.0 + 1, id.0)]);
    // It is sent to the other server only.
    link.disconnected();
    link.connected(&welcome(1), &[].into(), out);
    assert_eq!(numbers(out), [(id.0 + 1, id.0)]);
    link.forward_ended(id.forwarded_by(Rank(0)), out);
    link.ask(Caller::SERVER, stat(6), out);
    assert_eq!(numbers(out), [(id.0 + 2, id.0 + 1)]);
}
