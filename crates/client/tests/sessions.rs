//! Calls through sessions with servers: caching, and loss of connections.

use std::sync::Arc;

use espalier_client::{
    Actions, Answer, Cache, Call, DataOutcome, FrontendEvent, IncomingCall, Interrupt, Sessions, Users,
};
use espalier_proto::{
    Access, Attr, Caller, Capability, Delegation, Distribution, Entry, Errno, FileType, FromClient,
    FromServer, Ino, Layout, Lease, Location, Lock, LockKind, LockOwner, Name, Rank, Recall, RenameFlags,
    Reply, Request, RequestId, RevocationId, ServerId, ServerMap, SetAttr, Time, Touched, Welcome,
};

const NEAR: Rank = Rank(0);
const FAR: Rank = Rank(1);
const THERE: Ino = Ino(1 << 48 | 7);

/// Sessions with two ranks; tickets are numbers.
fn sessions() -> Sessions<u64> {
    let mut sessions = Sessions::new(Cache::new(1000, Users::AtOnce), 2, true);
    connect(&mut sessions, NEAR, 1);
    connect(&mut sessions, FAR, 1);
    sessions
}

fn connect(sessions: &mut Sessions<u64>, rank: Rank, incarnation: u64) -> Actions<u64> {
    connect_below(Ino::ROOT, sessions, rank, incarnation)
}

fn connect_below(root: Ino, sessions: &mut Sessions<u64>, rank: Rank, incarnation: u64) -> Actions<u64> {
    let mut actions = Actions::default();
    let servers = ServerMap::NONE;
    let welcome =
        Welcome { incarnation, window: 64, session_ms: 60_000, rank, root, servers, data_pool: None };
    sessions.connected(0, rank, &welcome, &mut actions);
    actions
}

fn name() -> Name {
    Name::new(b"a").expect("a name")
}

fn lookup() -> Call<'static> {
    Call::Request(Request::Lookup { dir: Ino::ROOT, name: name() })
}

fn entry(ino: Ino) -> Entry {
    let attr = Attr::new(ino, FileType::Regular, 0o644, Time::new(1, 0));
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

fn reply(id: RequestId, lease_ms: u32, result: Result<Reply, Errno>) -> FromServer {
    FromServer::Reply { id, lease_ms, announced: false, touched: Touched::default(), result }
}

/// Makes a call that is not answered at once; returns the last request for it.
fn call(sessions: &mut Sessions<u64>, now: u64, ticket: u64, call: Call<'static>) -> (Rank, RequestId) {
    assert!(sessions.answer(now, &Caller::SERVER, &call).is_none(), "nothing is cached");
    let mut actions = Actions::default();
    let incoming = IncomingCall { call_id: ticket, caller: Caller::SERVER, call, ticket };
    sessions.call(now, incoming, &mut actions);
    sent(&actions)
}

fn sent(actions: &Actions<u64>) -> (Rank, RequestId) {
    match &actions.send[..] {
        [.., (rank, FromClient::Request { id, .. })] => (*rank, *id),
        other => panic!("{other:?}"),
    }
}

/// Names in the root are cached only while the root itself is leased.
fn lease_root(sessions: &mut Sessions<u64>) {
    let get_attr = Call::Request(Request::GetAttr { ino: Ino::ROOT });
    let (rank, id) = call(sessions, 0, 0, get_attr);
    let attr = Attr { kind: FileType::Directory, ..entry(Ino::ROOT).attr };
    sessions.received(0, rank, reply(id, 60_000, Ok(Reply::Attr(attr))), &mut Actions::default());
}

#[test]
fn lease_begins_at_request_and_ends_at_revocation() {
    let mut sessions = sessions();
    lease_root(&mut sessions);
    let (rank, id) = call(&mut sessions, 1000, 1, lookup());
    let mut actions = Actions::default();
    sessions.received(1400, rank, reply(id, 1000, Ok(Reply::Entry(entry(Ino(9))))), &mut actions);
    let [FrontendEvent::Answer { ticket: 1, result: Ok(Answer::Entry(_)), lease_ms: 500..=600 }] =
        &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
    assert!(matches!(
        sessions.answer(1900, &Caller::SERVER, &lookup()),
        Some((Ok(Answer::Entry(_)), 1..=100))
    ));
    assert!(sessions.answer(2001, &Caller::SERVER, &lookup()).is_none(), "1000 ms after the request");
    let lease = Lease::Name { dir: Ino::ROOT, name: name() };
    let mut actions = Actions::default();
    sessions.received(1500, rank, FromServer::Revoke { number: RevocationId(3), lease }, &mut actions);
    assert!(matches!(
        actions.frontend[..],
        [FrontendEvent::Revoke { rank: NEAR, number: RevocationId(3), is_own: false, .. }]
    ));
    assert!(actions.send.is_empty(), "the frontend has not given it up");
    assert!(sessions.answer(1500, &Caller::SERVER, &lookup()).is_none());
    sessions.revoked(rank, RevocationId(3), &mut actions);
    assert!(matches!(actions.send[..], [(NEAR, FromClient::Revoked { number: RevocationId(3) })]));
}

#[test]
fn call_that_needs_a_rank_that_has_just_joined_waits_for_its_server() {
    let mut sessions = sessions();
    let (rank, id) = call(&mut sessions, 0, 1, lookup());
    let (joined, ino, kind) = (Rank(2), Ino(2 << 48 | 7), FileType::Regular);
    let remote = Reply::Remote { ino, kind, at: joined, cacheable: true, name_leased: true };
    let mut actions = Actions::default();
    sessions.received(1, rank, reply(id, 1000, Ok(remote)), &mut actions);
    assert!(actions.frontend.is_empty() && sessions.needed().any(|rank| rank == joined));
    assert_eq!(sessions.ranks(), 3);
    let (rank, id) = sent(&connect(&mut sessions, joined, 1));
    assert_eq!(rank, joined);
    sessions.received(2, rank, reply(id, 1000, Ok(Reply::Entry(entry(ino)))), &mut actions);
    let [FrontendEvent::Answer { ticket: 1, result: Ok(Answer::Entry(found)), .. }] = &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
    assert_eq!(found.attr.ino, ino);
    let ranks = vec![String::new(); 5];
    let servers = FromServer::Servers(ServerMap { ranks, ..ServerMap::NONE });
    sessions.received(3, NEAR, servers, &mut actions);
    assert_eq!(sessions.ranks(), 5);
}

fn rename(to_dir: Ino) -> Call<'static> {
    let (from_dir, flags) = (Ino::ROOT, RenameFlags::empty());
    Call::Request(Request::Rename { from_dir, from: name(), to_dir, to: name(), flags, time: None })
}

fn revoke(sessions: &mut Sessions<u64>, rank: Rank, dir: Ino) -> Actions<u64> {
    let mut actions = Actions::default();
    let lease = Lease::Name { dir, name: name() };
    sessions.received(1, rank, FromServer::Revoke { number: RevocationId(3), lease }, &mut actions);
    actions
}

#[test]
fn only_the_new_name_of_a_rename_between_ranks_is_revoked_from_its_own_client() {
    for (to_dir, (rank, dir), expected) in [
        (Ino::ROOT, (NEAR, Ino::ROOT), false),
        (THERE, (NEAR, Ino::ROOT), false),
        (THERE, (FAR, THERE), true),
    ] {
        let mut sessions = sessions();
        call(&mut sessions, 0, 1, rename(to_dir));
        let actions = revoke(&mut sessions, rank, dir);
        let [FrontendEvent::Revoke { is_own, .. }] = &actions.frontend[..] else {
            panic!("{:?}", actions.frontend)
        };
        assert_eq!(*is_own, expected, "{to_dir:?} {dir:?}");
    }
}

/// Renames a leased name to another rank; the reply has no lease. Returns the number of the lookup
/// of the new name.
fn renamed_without_lease(sessions: &mut Sessions<u64>) -> RequestId {
    lease_root(sessions);
    let (rank, id) = call(sessions, 0, 1, lookup());
    sessions.received(0, rank, reply(id, 60_000, Ok(Reply::Entry(entry(Ino(9))))), &mut Actions::default());
    let (rank, id) = call(sessions, 0, 2, rename(THERE));
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 0, Ok(Reply::Done)), &mut actions);
    assert!(actions.frontend.is_empty(), "{:?}", actions.frontend);
    let [(FAR, FromClient::Request { id, request, .. })] = &actions.send[..] else {
        panic!("{:?}", actions.send)
    };
    assert_eq!(*request, Request::Lookup { dir: THERE, name: name() });
    *id
}

#[test]
fn a_rename_without_a_lease_is_answered_once_the_new_name_has_one() {
    let mut sessions = sessions();
    let id = renamed_without_lease(&mut sessions);
    let mut actions = Actions::default();
    sessions.received(0, FAR, reply(id, 1000, Ok(Reply::Entry(entry(Ino(9))))), &mut actions);
    let [FrontendEvent::Answer { ticket: 2, result: Ok(Answer::Done), lease_ms: 900..=1000 }] =
        &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
}

#[test]
fn a_rename_whose_new_name_may_be_another_inode_distrusts_all_names_first() {
    for result in [Ok(Reply::Entry(entry(Ino(10)))), Err(Errno::ENOENT)] {
        let mut sessions = sessions();
        let id = renamed_without_lease(&mut sessions);
        let mut actions = Actions::default();
        sessions.received(0, FAR, reply(id, 1000, result), &mut actions);
        let [
            FrontendEvent::DistrustNames,
            FrontendEvent::Answer { ticket: 2, result: Ok(Answer::Done), lease_ms: 0 },
        ] = &actions.frontend[..]
        else {
            panic!("{:?}", actions.frontend)
        };
    }
}

#[test]
fn a_rename_whose_new_name_gets_no_lease_is_answered_without_one() {
    let mut sessions = sessions();
    let id = renamed_without_lease(&mut sessions);
    let unleased = Entry { name_leased: false, ..entry(Ino(9)) };
    let mut actions = Actions::default();
    sessions.received(0, FAR, reply(id, 1000, Ok(Reply::Entry(unleased))), &mut actions);
    let [FrontendEvent::Answer { ticket: 2, result: Ok(Answer::Done), lease_ms: 0 }] = &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
}

#[test]
fn a_rename_that_is_done_succeeds_though_the_session_ends_before_its_lookup() {
    let mut sessions = sessions();
    renamed_without_lease(&mut sessions);
    sessions.disconnected(FAR);
    let mut actions = Actions::default();
    sessions.ended(0, FAR, &mut actions);
    let frontend = actions.frontend.iter().filter(|it| !matches!(it, FrontendEvent::Distrust { .. }));
    let [FrontendEvent::DistrustNames, FrontendEvent::Answer { ticket: 2, result: Ok(Answer::Done), .. }] =
        &frontend.collect::<Vec<_>>()[..]
    else {
        panic!("{:?}", actions.frontend)
    };
}

#[test]
fn a_rename_that_fails_after_its_new_name_was_revoked_distrusts_all_names() {
    for is_revoked in [false, true] {
        let mut sessions = sessions();
        let (rank, id) = call(&mut sessions, 0, 1, rename(THERE));
        if is_revoked {
            revoke(&mut sessions, FAR, THERE);
        }
        let mut actions = Actions::default();
        sessions.received(0, rank, reply(id, 0, Err(Errno::EEXIST)), &mut actions);
        assert_eq!(matches!(actions.frontend[0], FrontendEvent::DistrustNames), is_revoked);
    }
}

#[test]
fn name_revoked_during_lookup_is_not_cached() {
    for is_revoked in [false, true] {
        let mut sessions = sessions();
        lease_root(&mut sessions);
        let (rank, id) = call(&mut sessions, 0, 1, lookup());
        let (kind, cacheable, name_leased) = (FileType::Regular, true, true);
        let remote = Reply::Remote { ino: THERE, kind, at: FAR, cacheable, name_leased };
        let mut actions = Actions::default();
        sessions.received(0, rank, reply(id, 1000, Ok(remote)), &mut actions);
        let (far, find) = sent(&actions);
        assert_eq!((rank, far), (NEAR, FAR));
        if is_revoked {
            let lease = Lease::Name { dir: Ino::ROOT, name: name() };
            sessions.received(1, NEAR, FromServer::Revoke { number: RevocationId(3), lease }, &mut actions);
        }
        let mut actions = Actions::default();
        sessions.received(2, FAR, reply(find, 1000, Ok(Reply::Entry(entry(THERE)))), &mut actions);
        let [FrontendEvent::Answer { result: Ok(Answer::Entry(found)), .. }] = &actions.frontend[..] else {
            panic!()
        };
        assert_eq!(found.name_leased, !is_revoked);
        assert_eq!(sessions.answer(3, &Caller::SERVER, &lookup()).is_none(), is_revoked);
    }
}

#[test]
fn requests_follow_an_inode_to_the_rank_that_has_it() {
    let mut sessions = sessions();
    let get = || Call::Request(Request::GetAttr { ino: THERE });
    let (rank, id) = call(&mut sessions, 0, 1, get());
    assert_eq!(rank, FAR, "the home of the number");
    let mut actions = Actions::default();
    let relocated = |at| Ok(Reply::Relocated { ino: THERE, at });
    sessions.received(1, rank, reply(id, 0, relocated(NEAR)), &mut actions);
    let (rank, id) = sent(&actions);
    assert_eq!((rank, actions.frontend.len()), (NEAR, 0));
    let mut actions = Actions::default();
    sessions.received(2, rank, reply(id, 0, Ok(Reply::Attr(entry(THERE).attr))), &mut actions);
    assert!(matches!(actions.frontend[..], [FrontendEvent::Answer { result: Ok(Answer::Attr(_)), .. }]));
    assert_eq!(sessions.rank_of(THERE), NEAR);
    // It is at home again: the outdated location leads there.
    let (rank, id) = call(&mut sessions, 3, 2, get());
    assert_eq!(rank, NEAR);
    let mut actions = Actions::default();
    sessions.received(4, rank, reply(id, 0, relocated(FAR)), &mut actions);
    assert_eq!((sent(&actions).0, sessions.rank_of(THERE)), (FAR, FAR));
}

#[test]
fn request_is_not_sent_in_circles() {
    let mut sessions = sessions();
    let (mut rank, mut id) = call(&mut sessions, 0, 1, Call::Request(Request::GetAttr { ino: THERE }));
    for _ in 0..100 {
        let mut actions = Actions::default();
        let at = if rank == NEAR { FAR } else { NEAR };
        sessions.received(1, rank, reply(id, 0, Ok(Reply::Relocated { ino: THERE, at })), &mut actions);
        if !actions.frontend.is_empty() {
            let answer = &actions.frontend[..];
            assert!(matches!(answer, [FrontendEvent::Answer { result: Err(Errno::EIO), .. }]), "{answer:?}");
            return;
        }
        (rank, id) = sent(&actions);
    }
    panic!("there is no end");
}

#[test]
fn remote_inode_that_has_moved_is_found_and_the_name_is_not_requested_again() {
    let mut sessions = sessions();
    lease_root(&mut sessions);
    let link = Request::Link { ino: THERE, dir: Ino::ROOT, name: name() };
    let (rank, id) = call(&mut sessions, 0, 1, Call::Request(link));
    let (kind, cacheable, name_leased) = (FileType::Regular, true, true);
    let remote = Reply::Remote { ino: THERE, kind, at: FAR, cacheable, name_leased };
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 1000, Ok(remote)), &mut actions);
    let (far, find) = sent(&actions);
    let mut actions = Actions::default();
    let relocated = Reply::Relocated { ino: THERE, at: NEAR };
    sessions.received(1, far, reply(find, 0, Ok(relocated)), &mut actions);
    assert!(matches!(
        actions.send[..],
        [(NEAR, FromClient::Request { request: Request::Find { ino: THERE, .. }, .. })]
    ));
    let (near, find) = sent(&actions);
    let mut actions = Actions::default();
    sessions.received(2, near, reply(find, 1000, Ok(Reply::Entry(entry(THERE)))), &mut actions);
    let [FrontendEvent::Answer { result: Ok(Answer::Entry(found)), .. }] = &actions.frontend[..] else {
        panic!("{:?}", actions.frontend)
    };
    assert!(found.name_leased);
    // Notifications about the inode go to the rank that has it.
    let mut actions = Actions::default();
    sessions.cache().recall(THERE);
    sessions.send_forgets(&mut actions);
    sessions.tick(3, |_| false, &mut actions);
    let is_forget = |message: &FromClient| {
        matches!(
            message,
            FromClient::Request { request: Request::ForgetAll { .. } | Request::Forget { .. }, .. }
        )
    };
    let forgets: Vec<Rank> =
        actions.send.iter().filter(|(_, message)| is_forget(message)).map(|(rank, _)| *rank).collect();
    assert_eq!(forgets, [NEAR]);
}

#[test]
fn lost_session_fails_uncertain_calls_after_distrust() {
    let mut sessions = sessions();
    let mkdir = Request::Unlink { dir: Ino::ROOT, name: name(), time: None };
    call(&mut sessions, 0, 1, Call::Request(mkdir));
    sessions.disconnected(NEAR);
    let mut actions = Actions::default();
    sessions.ended(0, NEAR, &mut actions);
    assert_eq!(sessions.incarnation(NEAR), None);
    let [FrontendEvent::Distrust { .. }, FrontendEvent::Answer { ticket: 1, result: Err(Errno::EIO), .. }] =
        &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
}

#[test]
fn reply_after_interrupt_is_not_cached() {
    let mut sessions = sessions();
    let (rank, id) = call(&mut sessions, 0, 1, lookup());
    sessions.disconnected(NEAR);
    let mut actions = Actions::default();
    let survives = sessions.interrupt(1, |_| false, |_| false, &mut actions);
    assert_eq!((survives, actions.frontend.len()), (Interrupt::Survived, 0));
    assert_eq!(sessions.interrupt(1, |_| true, |_| false, &mut actions), Interrupt::Heard);
    assert!(matches!(
        actions.frontend[..],
        [FrontendEvent::Answer { ticket: 1, result: Err(Errno::EINTR), .. }]
    ));
    assert_eq!(sessions.interrupt(1, |_| true, |_| false, &mut actions), Interrupt::Unknown);
    let actions = connect(&mut sessions, NEAR, 1);
    assert_eq!(sent(&actions), (rank, id), "it is sent again, since its outcome is unknown");
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 1000, Ok(Reply::Entry(entry(Ino(9))))), &mut actions);
    assert!(matches!(actions.frontend[..], [FrontendEvent::Distrust { .. }]), "{:?}", actions.frontend);
    assert!(sessions.answer(1, &Caller::SERVER, &lookup()).is_none());
}

#[test]
fn any_signal_ends_the_wait_for_a_lock() {
    for is_connected in [true, false] {
        let (mut sessions, mut actions) = (sessions(), Actions::default());
        let owner = LockOwner { flock: false, number: 1 };
        let lock = Lock { owner, kind: LockKind::Exclusive, first: 0, last: 9, pid: 9 };
        let request = Request::Lock { ino: Ino(5), lock, wait: Some(1) };
        let (rank, id) = call(&mut sessions, 0, 1, Call::Request(request));
        sessions.received(0, rank, reply(id, 0, Ok(Reply::Waits)), &mut actions);
        assert_eq!((sessions.waiting(rank), actions.frontend.len()), (0, 0));
        if !is_connected {
            sessions.disconnected(rank);
        }
        assert_eq!(sessions.interrupt(1, |_| false, |_| false, &mut actions), Interrupt::Heard);
        if is_connected {
            assert!(actions.frontend.is_empty(), "the server may have granted it");
            let (rank, id) = sent(&actions);
            sessions.received(0, rank, reply(id, 0, Err(Errno::EINTR)), &mut actions);
        }
        let [FrontendEvent::Answer { ticket: 1, result: Err(Errno::EINTR), .. }] = actions.frontend[..]
        else {
            panic!("{:?}", actions.frontend)
        };
        assert_eq!(sessions.interrupt(1, |_| true, |_| false, &mut actions), Interrupt::Unknown);
    }
}

/// A `getattr` that waits for data servers.
fn measuring(sessions: &mut Sessions<u64>) -> u64 {
    let (rank, id) = call(sessions, 0, 1, Call::Request(Request::GetAttr { ino: Ino(7) }));
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 0, unmeasured(Reply::Attr(entry(Ino(7)).attr))), &mut actions);
    actions.data[0].number
}

#[test]
fn fatal_signal_ends_a_call_when_a_data_server_is_unreachable() {
    let (mut sessions, mut actions) = (sessions(), Actions::default());
    let number = measuring(&mut sessions);
    assert_eq!(sessions.interrupt(1, |_| false, |_| true, &mut actions), Interrupt::Survived);
    assert_eq!(sessions.interrupt(1, |_| true, |_| false, &mut actions), Interrupt::Heard);
    assert!(actions.frontend.is_empty(), "the data servers will answer");
    sessions.tick(0, |_| true, &mut actions);
    assert_eq!(actions.abandoned, [number]);
    let [FrontendEvent::Answer { ticket: 1, result: Err(Errno::EINTR), .. }] = actions.frontend[..] else {
        panic!("{:?}", actions.frontend)
    };
}

#[test]
fn end_of_a_session_fails_calls_that_wait_for_data_servers() {
    let (mut sessions, mut actions) = (sessions(), Actions::default());
    let number = measuring(&mut sessions);
    sessions.ended(0, FAR, &mut actions);
    assert!(actions.abandoned.is_empty(), "the other server's capabilities are valid");
    sessions.ended(0, NEAR, &mut actions);
    assert_eq!((&actions.abandoned[..], sessions.call_of_data(number)), (&[number][..], None));
    let [.., FrontendEvent::Answer { ticket: 1, result: Err(Errno::EIO), .. }] = actions.frontend[..] else {
        panic!("{:?}", actions.frontend)
    };
}

#[test]
fn a_lookup_survives_the_end_of_its_session() {
    let mut sessions = sessions();
    let (rank, lost) = call(&mut sessions, 0, 1, lookup());
    sessions.disconnected(NEAR);
    let mut actions = Actions::default();
    sessions.ended(0, NEAR, &mut actions);
    assert!(matches!(actions.frontend[..], [FrontendEvent::Distrust { .. }]), "{:?}", actions.frontend);
    let actions = connect(&mut sessions, NEAR, 1);
    let (again, id) = sent(&actions);
    assert_eq!(again, rank);
    assert_ne!(id, lost);
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 1000, Ok(Reply::Entry(entry(Ino(9))))), &mut actions);
    assert!(matches!(
        actions.frontend[..],
        [FrontendEvent::Answer { ticket: 1, result: Ok(Answer::Entry(_)), .. }]
    ));
}

#[test]
fn the_name_of_a_removed_directory_is_dropped() {
    let kinds = [(FileType::Directory, vec![(Ino::ROOT, name())]), (FileType::Regular, vec![])];
    for (kind, names) in kinds {
        let mut sessions = sessions();
        lease_root(&mut sessions);
        let (rank, id) = call(&mut sessions, 0, 1, lookup());
        let found = Entry { attr: Attr { kind, ..entry(Ino(9)).attr }, ..entry(Ino(9)) };
        sessions.received(0, rank, reply(id, 10_000, Ok(Reply::Entry(found))), &mut Actions::default());
        let mut actions = Actions::default();
        let recall = Recall { ino: Ino(9), dir: None, name: None };
        sessions.received(1, rank, FromServer::Recall(vec![recall]), &mut actions);
        let [FrontendEvent::Recall { removed, .. }] = &actions.frontend[..] else {
            panic!("{:?}", actions.frontend)
        };
        assert_eq!(*removed, names);
    }
}

#[test]
fn restart_of_a_server_distrusts_the_names_that_it_has_leased() {
    let mut sessions = sessions();
    lease_root(&mut sessions);
    let (rank, id) = call(&mut sessions, 0, 1, lookup());
    sessions.received(0, rank, reply(id, 10_000, Ok(Reply::Entry(entry(Ino(9))))), &mut Actions::default());
    let names_of = |actions: Actions<u64>| {
        actions.frontend.into_iter().filter_map(|it| match it {
            FrontendEvent::Distrust { names, inos } => Some((names, inos.contains(&Ino(9)))),
            _ => None,
        })
    };
    sessions.disconnected(FAR);
    let actions = connect(&mut sessions, FAR, 2);
    assert_eq!(names_of(actions).collect::<Vec<_>>(), [(vec![], false)], "the other server's are leased");
    sessions.disconnected(NEAR);
    let actions = connect(&mut sessions, NEAR, 2);
    assert_eq!(names_of(actions).collect::<Vec<_>>(), [(vec![(Ino::ROOT, name())], true)]);
}

#[test]
fn restart_during_a_change_distrusts_all_names() {
    for is_changing in [false, true] {
        let mut sessions = sessions();
        lease_root(&mut sessions);
        if is_changing {
            let unlink = Request::Unlink { dir: Ino::ROOT, name: name(), time: None };
            call(&mut sessions, 0, 1, Call::Request(unlink));
        }
        sessions.disconnected(NEAR);
        let actions = connect(&mut sessions, NEAR, 2);
        assert_eq!(matches!(actions.frontend[0], FrontendEvent::DistrustNames), is_changing);
    }
}

#[test]
fn names_that_a_call_without_a_caller_has_changed_are_distrusted() {
    let mut sessions = sessions();
    let unlink = Call::Request(Request::Unlink { dir: Ino::ROOT, name: name(), time: None });
    let (rank, id) = call(&mut sessions, 0, 1, unlink);
    sessions.disconnected(NEAR);
    assert_eq!(sessions.interrupt(1, |_| true, |_| false, &mut Actions::default()), Interrupt::Heard);
    connect(&mut sessions, NEAR, 1);
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 1000, Ok(Reply::Done)), &mut actions);
    let [FrontendEvent::Distrust { names, .. }] = &actions.frontend[..] else {
        panic!("{:?}", actions.frontend)
    };
    assert_eq!(names[..], [(Ino::ROOT, name())]);
}

#[test]
fn root_at_another_rank_is_root_to_the_frontend() {
    let mut sessions = Sessions::new(Cache::new(1000, Users::AtOnce), 2, true);
    sessions.set_root(THERE);
    connect_below(THERE, &mut sessions, NEAR, 1);
    connect_below(THERE, &mut sessions, FAR, 1);
    let get_attr = || Call::Request(Request::GetAttr { ino: Ino::ROOT });
    let mut actions = Actions::default();
    let incoming = IncomingCall { call_id: 1, caller: Caller::SERVER, call: get_attr(), ticket: 1 };
    sessions.call(0, incoming, &mut actions);
    let [(FAR, FromClient::Request { id, request: Request::GetAttr { ino: THERE }, .. })] = actions.send[..]
    else {
        panic!("{:?}", actions.send)
    };
    let attr = Attr { kind: FileType::Directory, ..entry(THERE).attr };
    let mut actions = Actions::default();
    sessions.received(0, FAR, reply(id, 60_000, Ok(Reply::Attr(attr))), &mut actions);
    let is_root =
        |answer: &Result<Answer, Errno>| matches!(answer, Ok(Answer::Attr(attr)) if attr.ino == Ino::ROOT);
    assert!(
        matches!(&actions.frontend[..], [FrontendEvent::Answer { result, .. }] if is_root(result)),
        "{:?}",
        actions.frontend
    );
    let (known, _) = sessions.answer(1, &Caller::SERVER, &get_attr()).expect("leased");
    assert!(is_root(&known), "{known:?}");
    assert_eq!(sessions.attr(Ino::ROOT, 1).map(|attr| attr.ino), Some(Ino::ROOT));
    assert!(sessions.is_leased(Ino::ROOT, 1));
    // The lease on a name in the root is granted and revoked under the frontend's number.
    let (rank, id) = call(&mut sessions, 2, 2, lookup());
    assert_eq!(rank, FAR);
    let found = reply(id, 1000, Ok(Reply::Entry(entry(Ino(THERE.0 + 1)))));
    sessions.received(2, FAR, found, &mut Actions::default());
    assert!(sessions.answer(3, &Caller::SERVER, &lookup()).is_some());
    let mut actions = Actions::default();
    let lease = Lease::Name { dir: THERE, name: name() };
    sessions.received(3, FAR, FromServer::Revoke { number: RevocationId(1), lease }, &mut actions);
    let lease = Lease::Name { dir: Ino::ROOT, name: name() };
    assert!(
        matches!(&actions.frontend[..], [FrontendEvent::Revoke { lease: of, .. }] if *of == lease),
        "{:?}",
        actions.frontend
    );
    assert!(sessions.answer(4, &Caller::SERVER, &lookup()).is_none());
    let mut actions = Actions::default();
    sessions.received(4, FAR, FromServer::Changed(vec![THERE, Ino(9)]), &mut actions);
    assert!(
        matches!(&actions.frontend[..], [FrontendEvent::Changed(inos)] if inos[..] == [Ino::ROOT, Ino(9)])
    );
    // Another directory takes its place: cached names in the root are invalid.
    let actions = connect_below(Ino(5), &mut sessions, NEAR, 2);
    assert!(
        actions
            .frontend
            .iter()
            .any(|it| matches!(it, FrontendEvent::Distrust { inos, .. } if inos.contains(&Ino::ROOT)))
    );
    assert_eq!(call(&mut sessions, 5, 3, get_attr()).0, NEAR);
}

/// The reply for inode 7 whose size and times the data servers have.
fn unmeasured(actions: Reply) -> Result<Reply, Errno> {
    let (ino, access, server, seal) = (Ino(7), Access::empty(), ServerId(0), [0; 32]);
    let (incarnation, session, since, announced) = (1, 1, 0, false);
    let capability = Capability { ino, access, server, incarnation, session, since, announced, seal };
    let layout = Layout::new(Distribution::SimpleStripe { strip: 64 }, vec![server]).expect("a layout");
    let delegation = Delegation { layout: Some(Arc::new(layout)), capability, limited: false };
    Ok(Reply::Unmeasured(Box::new(actions), Box::new(delegation)))
}

#[test]
fn lookup_answers_without_unreachable_data_servers() {
    let mut sessions = sessions();
    let (rank, id) = call(&mut sessions, 0, 1, lookup());
    let found = Entry { attr: Attr { streamed: true, ..entry(Ino(7)).attr }, ..entry(Ino(7)) };
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 60_000, unmeasured(Reply::Entry(found))), &mut actions);
    let [ask] = &actions.data[..] else { panic!("{:?}", actions.data) };
    let number = ask.number;

    let mut actions = Actions::default();
    sessions.tick(0, |_| false, &mut actions);
    assert!(actions.frontend.is_empty(), "the data servers are reachable");
    sessions.tick(0, |layout| layout.servers() == [ServerId(0)], &mut actions);
    let [FrontendEvent::Answer { ticket: 1, result: Ok(Answer::Unmeasured(entry)), lease_ms: 0 }] =
        &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
    assert_eq!(entry.attr.ino, Ino(7));
    assert_eq!(actions.abandoned, [number]);
    assert_eq!(sessions.attr(Ino(7), 0), None, "its attributes are not cached");

    // If the data servers want another capability, the file is looked up again; the server may have
    // measured it by then.
    let (rank, id) = call(&mut sessions, 0, 2, lookup());
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 60_000, unmeasured(Reply::Entry(found))), &mut actions);
    let (number, mut actions) = (actions.data[0].number, Actions::default());
    sessions.data_completed(0, number, DataOutcome::Stale, &mut actions);
    let (rank, id) = sent(&actions);
    assert!(actions.send.iter().any(|(_, message)| {
        matches!(message, FromClient::Request { request: Request::Lookup { .. }, .. })
    }));
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 0, Ok(Reply::Entry(found))), &mut actions);
    assert!(
        matches!(
            &actions.frontend[..],
            [FrontendEvent::Answer { ticket: 2, result: Ok(Answer::Entry(_)), .. }]
        ),
        "{:?}",
        actions.frontend
    );

    // A `getattr` waits.
    let (rank, id) = call(&mut sessions, 0, 3, Call::Request(Request::GetAttr { ino: Ino(7) }));
    let mut actions = Actions::default();
    sessions.received(0, rank, reply(id, 60_000, unmeasured(Reply::Attr(found.attr))), &mut actions);
    sessions.tick(0, |_| true, &mut actions);
    assert!(actions.frontend.is_empty() && actions.abandoned.is_empty(), "{actions:?}");
}

#[test]
fn change_is_not_repeated_while_measuring() {
    let mut sessions = sessions();
    let ino = Ino(7);
    let unmeasured = |attr| unmeasured(Reply::Attr(attr));
    let data =
        |actions: &Actions<u64>| actions.data.last().map(|ask| ask.number).expect("data servers are asked");

    let perm = Some(0o600);
    let set = SetAttr { perm, ..SetAttr::default() };
    let (rank, id) = call(&mut sessions, 0, 1, Call::Request(Request::SetAttr { ino, set }));
    let (mut actions, changed) = (Actions::default(), Attr { perm: 0o600, ..entry(ino).attr });
    sessions.received(0, rank, reply(id, 0, unmeasured(changed)), &mut actions);
    let (number, mut actions) = (data(&actions), Actions::default());
    sessions.data_completed(0, number, DataOutcome::Stale, &mut actions);
    assert!(
        matches!(
            actions.send[..],
            [(_, FromClient::Request { request: Request::GetAttr { ino: Ino(7) }, .. })]
        ),
        "{:?}",
        actions.send
    );

    // Another client has changed the file since, which does not affect this call.
    let ((rank, id), mut actions) = (sent(&actions), Actions::default());
    sessions.received(0, rank, reply(id, 0, unmeasured(Attr { perm: 0o777, ..changed })), &mut actions);
    let (number, mut actions) = (data(&actions), Actions::default());
    let measured = Attr { size: 64, ..changed };
    sessions.data_completed(0, number, DataOutcome::Done(Ok(Reply::Attr(measured))), &mut actions);
    let [FrontendEvent::Answer { ticket: 1, result: Ok(Answer::Attr(attr)), .. }] = &actions.frontend[..]
    else {
        panic!("{:?}", actions.frontend)
    };
    assert_eq!(*attr, measured);
}
