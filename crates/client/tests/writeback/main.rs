//! Metadata write-back: operations acknowledged before the server has applied them.

mod data;
mod delegated_open;
mod known_names;
mod reads;
mod renames;
mod renewal;
mod world;
mod write_behind;

use espalier_client::{Actions, Answer, Call, FrontendEvent, Interrupt};
use espalier_proto::{
    Access, Attr, Caller, Errno, FileType, Ino, InodeFlags, Name, NewNode, OpenHow, Opened, RangeOp, Rank,
    Reply, Request, RequestId, SeekWhat, SetAttr, SetTime, Time, Touched, WritebackCreate,
};

use world::*;

#[test]
fn a_file_is_made_at_once_as_the_server_will_say() {
    let mut world = ClientWorld::new();
    world.now += 2500;
    // A kernel looks the name up first.
    let call = world.call(lookup("new"));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Absent { .. }))));
    let call = world.call(create("new", true));
    let Some(Ok(Answer::Created(reported, opening))) = world.answer(call) else {
        panic!("{:?}", world.frontend)
    };
    let time = Time::new(502, 499_000_000);
    let expected = Attr { perm: 0o644, ..attr(Ino(FIRST), FileType::Regular, 0) };
    let expected = Attr { atime: time, mtime: time, ctime: time, btime: time, ..expected };
    assert_eq!((reported.attr, opening.ino), (expected, Ino(FIRST)));
    let (id, _, request) = world.last();
    let writeback = Some(WritebackCreate { ino: Ino(FIRST), time });
    assert!(matches!(request, Request::Create { writeback: it, .. } if it == writeback));
    // The cache has the state that was acknowledged.
    assert_eq!(world.size_of_dir(), Some(3));
    let call = world.call(lookup("new"));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Entry(entry))) if entry.attr == expected));
    world.made(id, FIRST, 3);
    assert!(world.frontend.is_empty(), "{:?}", world.frontend);
    assert_eq!(world.size_of_dir(), Some(3));
    // The kernel forgets the file and looks it up again.
    world.sessions.forget(Ino(FIRST), 2);
    let call = world.call(lookup("new"));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Entry(_)))));
}

#[test]
fn reported_ctime_never_goes_back() {
    let mut world = ClientWorld::new();
    let reported_at = |world: &mut ClientWorld, ctime: Time, file: &str| {
        world.call(lookup("old"));
        // The server decides about flags.
        let set = SetAttr { flags: Some(InodeFlags::NOATIME), ..SetAttr::default() };
        world.call(Request::SetAttr { ino: Ino(11), set });
        let (id, ..) = world.last();
        let attr = Attr { ctime, ..attr(Ino(11), FileType::Regular, 0) };
        world.reply(id, Touched::default(), Ok(Reply::Attr(attr)));
        let call = world.call(create(file, false));
        match world.answer(call) {
            Some(Ok(Answer::Entry(entry))) => entry.attr.ctime,
            other => panic!("{other:?}"),
        }
    };
    // The server's clock is ahead of the estimate.
    let ahead = Time::new(500, 400_000_000);
    assert_eq!(reported_at(&mut world, ahead, "a"), ahead.next());
    // A time of a wrong clock is ignored.
    assert_eq!(reported_at(&mut world, Time::new(600, 0), "b"), ahead.next().next());
}

#[test]
fn reported_ctime_never_goes_back_when_the_clock_is_read_again() {
    let mut world = ClientWorld::new();
    let mut reported = Time::default();
    for entries in 3.. {
        let call = world.call(create(&entries.to_string(), false));
        let Some(Ok(Answer::Entry(entry))) = world.answer(call) else { panic!("{:?}", world.frontend) };
        assert!(entry.attr.ctime >= reported);
        reported = entry.attr.ctime;
        let refill = world.sent.iter().find(|(.., request)| matches!(request, Request::TakeNumbers { .. }));
        if let Some((id, ..)) = refill.cloned() {
            let (first, time) = (Ino(FIRST + 1000), Time::new(499, 500_000_000));
            let numbers = Reply::Numbers { first, count: 100, time, strip: STRIP, accesses: true };
            world.reply(id, Touched::default(), Ok(numbers));
            break;
        }
        world.made(world.last().0, entry.attr.ino.0, entries);
    }
    let call = world.call(create("last", false));
    let Some(Ok(Answer::Entry(entry))) = world.answer(call) else { panic!("{:?}", world.frontend) };
    assert_eq!(entry.attr.ctime, reported.next());
}

#[test]
fn latest_time_is_reported_to_another_server_before_a_change_there() {
    let mut world = ClientWorld::of_two_ranks();
    let far = Rank(1);
    let make_far = |world: &mut ClientWorld, file: &str| {
        let Request::Create { node, perm, umask, open, exclusive, .. } = create(file, false) else {
            panic!()
        };
        let dir = Ino(1 << 48 | 7);
        let request =
            Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None };
        assert!(!world.is_answered(request.clone()));
        assert_eq!(world.last().2, request);
    };
    make_far(&mut world, "a");
    assert_eq!(world.clocks, [], "no change has a time yet");
    assert!(world.is_answered(create("b", false)));
    world.made(world.last().0, FIRST, 3);
    assert!(!world.is_answered(Request::GetAttr { ino: Ino(1 << 48 | 8) }));
    assert_eq!(world.clocks, [], "a read changes nothing");
    for file in ["c", "d"] {
        make_far(&mut world, file);
        assert_eq!(world.clocks, [(far, Time::new(500, 0))], "once");
    }
    world.now += 1000;
    assert!(world.is_answered(create("e", false)));
    world.made(world.last().0, FIRST + 1, 4);
    world.now += 1000;
    make_far(&mut world, "f");
    assert_eq!(world.clocks.len(), 1, "the server's clock is past it");
}

#[test]
fn replies_older_than_pending_operations_are_ignored() {
    let mut world = ClientWorld::new();
    for file in ["a", "b", "c"] {
        assert!(world.is_answered(create(file, false)));
    }
    world.tick();
    let ids: Vec<RequestId> = world.sent.iter().map(|(id, ..)| *id).collect();
    assert_eq!(world.size_of_dir(), Some(5));
    world.made(ids[0], FIRST, 3);
    assert_eq!(world.size_of_dir(), Some(5));
    world.made(ids[1], FIRST + 1, 4);
    world.made(ids[2], FIRST + 2, 5);
    assert_eq!(world.size_of_dir(), Some(5));
}

#[test]
fn operations_during_a_pending_one_are_sent_in_one_batch() {
    let mut world = ClientWorld::new();
    let names = |world: &ClientWorld| -> Vec<Name> {
        let name = |request: &Request| match request {
            Request::Create { name, .. } => Some(name.clone()),
            _ => None,
        };
        world.sent.iter().filter_map(|(_, _, request)| name(request)).collect()
    };
    for file in ["a", "b", "c"] {
        assert!(world.is_answered(create(file, false)));
    }
    assert_eq!(names(&world), [name("a")]);
    world.made(world.last().0, FIRST, 3);
    assert_eq!(names(&world), [name("b"), name("c")]);
    // A call is blocked on all of them.
    assert!(world.is_answered(create("d", false)));
    assert_eq!(names(&world).len(), 2);
    let sync = world.call(Request::Fsync { ino: DIR });
    assert_eq!(names(&world), [name("b"), name("c"), name("d")]);
    for made in 1..4 {
        world.made(world.sent[0].0, FIRST + made, 3 + made);
    }
    let (id, _, request) = world.last();
    assert_eq!(request, Request::Fsync { ino: DIR });
    world.reply(id, Touched::default(), Ok(Reply::Done));
    assert!(world.answer(sync).is_some());
    // A large batch is sent.
    for number in 0..17 {
        assert!(world.is_answered(create(&number.to_string(), false)));
    }
    assert_eq!(names(&world).len(), 17);
    assert!(world.is_answered(create("last", false)));
    assert_eq!(names(&world).len(), 17);
    // The next connection sends what the lost one has not, once.
    world.connect(1, true);
    assert_eq!(names(&world).len(), 18);
}

#[test]
fn acknowledged_state_is_known_without_reply() {
    let mut world = ClientWorld::new();
    for file in ["a", "b"] {
        assert!(world.is_answered(create(file, false)));
    }
    world.tick();
    let ids: Vec<RequestId> = world.sent.iter().map(|(id, ..)| *id).collect();
    // By the time its reply leaves, the server has applied the other create.
    let touched = Touched { exclusive: Some(DIR), others: vec![DIR], ..Touched::default() };
    let made = Attr { perm: 0o644, ..attr(Ino(FIRST), FileType::Regular, 0) };
    world.reply(ids[0], touched.clone(), Ok(Reply::Entry(entry(made, true))));
    assert_eq!(world.size_of_dir(), Some(4));
    assert!(world.is_answered(create("c", false)));
    world.tick();
    let (last, ..) = world.last();
    world.made(ids[1], FIRST + 1, 4);
    // No operation is pending.
    let made = Attr { perm: 0o644, ..attr(Ino(FIRST + 2), FileType::Regular, 0) };
    world.reply(last, touched, Ok(Reply::Entry(entry(made, true))));
    assert_eq!(world.size_of_dir(), None);
}

type WorldEvent = fn(&mut ClientWorld);

#[test]
fn uncertain_permission_waits_for_server() {
    let cases: [(&str, WorldEvent); 6] = [
        ("the lease was given back", |world| world.revoke(3)),
        ("the lease is over", |world| world.now += u64::from(TERM)),
        ("the server's clock was asked for long ago", |world| {
            world.now += 55_000;
            world.list();
            world.now += 6_000;
        }),
        ("there is no connection", |world| world.sessions.disconnected(RANK)),
        ("the directory's rights are about to change", |world| {
            world.call(Request::SetAttr { ino: DIR, set: Default::default() });
        }),
        ("the directory may be removed", |world| {
            world.call(Request::RmDir { dir: Ino::ROOT, name: name("dir"), time: None });
        }),
    ];
    for (why, happens) in cases {
        let mut world = ClientWorld::new();
        happens(&mut world);
        assert!(!world.is_answered(create("new", false)), "{why}");
    }
    let mut world = ClientWorld::without_numbers(true);
    assert!(!world.is_answered(create("new", false)), "the pool of inode numbers is empty");
    let mut world = ClientWorld::new();
    assert!(!world.is_answered(create("old", false)), "the name exists");
    let mut world = ClientWorld::new();
    world.call(make("pipe", NewNode::Fifo));
    let (pipe, dir) = (attr(Ino(13), FileType::Fifo, 0), attr(DIR, FileType::Directory, 3));
    let touched = Touched { attrs: vec![dir], others: vec![], exclusive: Some(DIR), spreads_dirs: true };
    world.reply(world.last().0, touched, Ok(Reply::Entry(entry(pipe, true))));
    assert!(world.is_answered(create("new", false)));
    assert!(!world.is_answered(make("sub", NewNode::Directory)), "the server chooses its rank");
    for ((uid, gid), may) in [((0, 5), true), ((5, 5), false)] {
        let mut world = ClientWorld::new();
        let call = world.call_as(user(uid, gid), Call::Request(create(&uid.to_string(), false)));
        assert_eq!(world.answer(call).is_some(), may, "{uid}");
    }
}

#[test]
fn certain_permission_is_answered_from_cache_without_kernel() {
    let mut world = ClientWorld::of(false);
    let is_answered = |world: &mut ClientWorld, caller: Caller, request: Request| {
        let call = world.call_as(caller, Call::Request(request));
        world.answer(call).is_some()
    };
    // Everyone may search the directory; only the superuser may create files.
    assert!(
        is_answered(&mut world, user(7, 7), lookup("old"))
            && is_answered(&mut world, user(7, 7), lookup("none"))
    );
    assert!(is_answered(&mut world, user(0, 0), create("new", false)));
    let (id, ..) = world.last();
    let restricted = Attr { perm: 0o710, uid: 5, gid: 6, ..attr(DIR, FileType::Directory, 3) };
    let made = Attr { perm: 0o644, ..attr(Ino(FIRST), FileType::Regular, 0) };
    let touched = Touched { attrs: vec![restricted], exclusive: Some(DIR), ..Touched::default() };
    world.reply(id, touched, Ok(Reply::Entry(entry(made, true))));
    let list = || Request::ReadDir { dir: DIR, after: 0, limit: 10, plus: true };
    for (caller, reported) in
        [(user(5, 7), true), (user(7, 6), true), (user(7, 7), false), (user(0, 0), false)]
    {
        assert_eq!(is_answered(&mut world, caller.clone(), lookup("old")), reported, "{caller:?}");
        assert!(!is_answered(&mut world, caller, list()));
    }
    // A kernel may not return this to other callers.
    let call = world.call_as(user(5, 7), Call::Request(lookup("old")));
    let cacheable = |answer| match answer {
        Some(Ok(Answer::Entry(entry))) => Some(entry.cacheable),
        _ => None,
    };
    assert_eq!(cacheable(world.answer(call)), Some(false));
    assert!(!is_answered(&mut world, user(7, 7), create("his", false)));
}

#[test]
fn writeback_can_be_turned_off() {
    let mut world = ClientWorld::new();
    world.sessions.wait_for_servers();
    assert!(!world.is_answered(create("new", true)) && !world.is_answered(unlink("old")));
    let mut world = ClientWorld::without_numbers(true);
    world.sessions.wait_for_servers();
    world.call(make("fifo", NewNode::Fifo));
    let (id, ..) = world.last();
    let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, 2)], ..Touched::default() };
    let fifo = entry(attr(Ino(12), FileType::Fifo, 0), true);
    world.reply(id, Touched { exclusive: Some(DIR), ..touched }, Ok(Reply::Entry(fifo)));
    assert!(world.sent.is_empty(), "no inode numbers are requested");
}

#[test]
fn dependent_call_waits_for_pending_operation() {
    let mut world = ClientWorld::new();
    let made = world.call(create("new", true));
    assert!(world.answer(made).is_some());
    let (id, ..) = world.last();
    let ino = Ino(FIRST);
    let calls = [
        Call::range(ino, RangeOp::Seek { offset: 0, what: SeekWhat::Hole }, false),
        Call::Request(Request::Fsync { ino: DIR }),
        Call::Request(Request::SetXattr {
            ino,
            name: (*b"user.x").into(),
            value: (*b"1").into(),
            mode: espalier_proto::XattrMode::Any,
            kill_sgid: false,
        }),
        Call::Request(unlink("new")),
        Call::Release { ino },
    ];
    for call in calls {
        let call = world.call_as(user(0, 0), call);
        assert!(world.answer(call).is_none());
    }
    assert_eq!(world.sent.len(), 1, "{:?}", world.sent);
    // Other calls are not blocked.
    assert!(world.is_answered(create("other", false)));
    world.call(make("dir", NewNode::Directory));
    assert_eq!(world.sent.len(), 3);
    world.made(id, FIRST, 3);
    let kinds: Vec<_> = world.sent.iter().map(|(_, _, request)| core::mem::discriminant(request)).collect();
    assert!(world.sent.iter().any(|(_, _, request)| matches!(request, Request::Seek { .. })), "{kinds:?}");
    assert!(world.sent.iter().any(|(_, _, request)| matches!(request, Request::Fsync { .. })), "{kinds:?}");
}

#[test]
fn attributes_are_set_at_once_and_in_order() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    assert!(world.is_written(write(FIRST, 0, b"data")));
    let ino = Ino(FIRST);
    let chown = SetAttr { uid: Some(5), gid: Some(6), through_handle: true, ..SetAttr::default() };
    let utimes = SetAttr { mtime: Some(SetTime::To(Time::new(3, 0))), ..SetAttr::default() };
    for set in [chown, utimes] {
        assert!(world.is_answered(Request::SetAttr { ino, set }));
    }
    let call = world.call(Request::GetAttr { ino });
    let Some(Ok(Answer::Attr(reported))) = world.answer(call) else { panic!("{:?}", world.frontend) };
    assert_eq!((reported.uid, reported.gid, reported.size, reported.mtime), (5, 6, 4, Time::new(3, 0)));
    assert_eq!(world.sent.len(), 1, "{:?}", world.sent);
    let (made, ..) = world.last();
    world.made(made, FIRST, 3);
    let time = Some(Time::new(500, 0));
    let [chown, utimes] = [SetAttr { through_handle: false, ..chown }, utimes]
        .map(|set| Request::SetAttr { ino, set: SetAttr { time, ..set } });
    let [(written, _, Request::Write { .. }), (owned, _, first), (id, _, second)] = &world.sent[..] else {
        panic!("{:?}", world.sent)
    };
    assert_eq!((first, second), (&chown, &utimes));
    let (written, owned, id) = (*written, *owned, *id);
    // Each follows the one before.
    let follows = [written, owned, id].map(|id| world.follows[&id].clone());
    assert_eq!(follows, [[made], [written], [owned]]);
    world.reply(written, Touched::default(), Ok(Reply::Done));
    world.reply(owned, Touched::default(), Ok(Reply::Attr(reported)));
    // A failure is reported once, and the kernel forgets the attributes.
    world.reply(id, Touched::default(), Err(Errno::EROFS));
    let is_failure = |event: &FrontendEvent<u64>| matches!(event, FrontendEvent::Failed { ino: of, errno: Errno::EROFS, .. } if *of == ino);
    assert!(world.frontend.iter().any(is_failure), "{:?}", world.frontend);
    assert!(!world.is_answered(Request::GetAttr { ino }));
}

#[test]
fn attributes_are_set_by_server_if_others_may_know_the_file() {
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let chmod = Request::SetAttr { ino: Ino(11), set };
    assert!(ClientWorld::new().is_answered(chmod.clone()), "the file is known only to this client");
    let cases: [(&str, WorldEvent); 3] = [
        ("the lease was given back", |world| world.revoke(3)),
        ("the lease is over", |world| world.now += u64::from(TERM)),
        ("a name is about to be added", |world| {
            world.call(Request::Link { ino: Ino(11), dir: DIR, name: name("other") });
        }),
    ];
    for (why, happens) in cases {
        let mut world = ClientWorld::new();
        happens(&mut world);
        assert!(!world.is_answered(chmod.clone()), "{why}");
    }
    let mut world = ClientWorld::new();
    let dir = Request::SetAttr { ino: DIR, set };
    assert!(!world.is_answered(dir), "a directory");
}

#[test]
fn symlink_is_acknowledged_at_once() {
    let mut world = ClientWorld::new();
    let target = NewNode::Symlink((*b"target").into());
    let made = world.call(make("link", target));
    let Some(Ok(Answer::Entry(reported))) = world.answer(made) else { panic!("{:?}", world.frontend) };
    let time = Time::new(500, 0);
    let expected = Attr { perm: 0o777, ..attr(Ino(FIRST), FileType::Symlink, 6) };
    assert_eq!(
        reported.attr,
        Attr { atime: time, mtime: time, ctime: time, btime: time, blocks: 0, ..expected }
    );
    assert!(!world.is_answered(Request::ReadLink { ino: Ino(FIRST) }), "the server has it first");
    assert_eq!(world.sent.len(), 1, "{:?}", world.sent);
}

#[test]
fn directory_and_its_entries_are_made_at_once() {
    let mut world = ClientWorld::new();
    let made = world.call(make("sub", NewNode::Directory));
    let Some(Ok(Answer::Entry(reported))) = world.answer(made) else { panic!("{:?}", world.frontend) };
    let sub = Ino(FIRST);
    let time = Time::new(500, 0);
    let expected = Attr { perm: 0o644, nlink: 2, ..attr(sub, FileType::Directory, 0) };
    let expected = Attr { atime: time, mtime: time, ctime: time, btime: time, ..expected };
    assert_eq!(reported.attr, expected);
    let call = world.call(Request::GetAttr { ino: DIR });
    let Some(Ok(Answer::Attr(parent))) = world.answer(call) else { panic!("{:?}", world.frontend) };
    assert_eq!((parent.nlink, parent.size), (2, 3), "one subdirectory more");
    let (id, _, request) = world.last();
    let writeback = Some(WritebackCreate { ino: sub, time });
    assert!(matches!(request, Request::Create { writeback: it, .. } if it == writeback));

    let inside = |mut request: Request, dir: Ino| {
        request.each_inode(&mut |ino| *ino = dir);
        request
    };
    // It is known to be empty except for what is pending.
    let file = Ino(FIRST + 1);
    assert!(world.is_answered(inside(lookup("a"), sub)));
    assert!(world.is_answered(inside(create("a", true), sub)));
    assert!(world.is_written(write(file.0, 0, b"bytes")));
    assert!(world.is_answered(inside(make("b", NewNode::Directory), sub)));
    let deep = Ino(FIRST + 2);
    assert!(world.is_answered(inside(create("c", false), deep)));
    let utimes = SetAttr { mtime: Some(SetTime::To(Time::new(3, 0))), ..SetAttr::default() };
    assert!(world.is_answered(Request::SetAttr { ino: sub, set: utimes }));
    assert!(world.is_answered(inside(create("d", false), sub)));
    let list = Request::ReadDir { dir: sub, after: 0, limit: 10, plus: true };
    assert!(!world.is_answered(list), "the server has it first");
    let sent: Vec<_> = world.sent.iter().map(|(id, ..)| *id).collect();
    let [mkdir, in_sub, bytes, made_deep, in_deep, utimes, last] = sent[..] else { panic!("{sent:?}") };
    let follows = |id| world.follows[&id].clone();
    assert_eq!([in_sub, made_deep].map(follows), [[mkdir], [mkdir]]);
    assert_eq!([bytes, in_deep].map(follows), [[in_sub], [made_deep]]);
    assert_eq!(follows(utimes), [in_sub, made_deep, mkdir], "they would change its times");
    assert_eq!(follows(last), [mkdir, utimes]);
    // The reply is older than what is pending.
    let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, 3)], ..Touched::default() };
    world.reply(id, Touched { exclusive: Some(DIR), ..touched }, Ok(Reply::Entry(entry(expected, true))));
    assert_eq!(world.size_of(sub), Some(3));
    assert!(world.is_answered(inside(create("e", false), sub)));
    // If it fails, calls ask the server again.
    let other = world.call(make("other", NewNode::Directory));
    assert!(world.answer(other).is_some());
    let (id, ..) = world.last();
    world.reply(id, Touched::default(), Err(Errno::ENOSPC));
    assert!(!world.is_answered(inside(create("f", false), Ino(FIRST + 5))));
}

#[test]
fn a_directory_is_removed_at_once_if_it_is_empty() {
    let rmdir = || Request::RmDir { dir: DIR, name: name("sub"), time: None };
    let sub = Ino(FIRST);
    // The other fragments may have entries.
    for (size, map_version) in [(0, 0), (1, 0), (0, 1)] {
        let mut world = ClientWorld::new();
        assert!(world.is_answered(make("sub", NewNode::Directory)));
        let (id, ..) = world.last();
        assert!(!world.is_answered(rmdir()), "its creation is pending");
        let parent = Attr { nlink: 3, ..attr(DIR, FileType::Directory, 3) };
        let touched = |parent| Touched { attrs: vec![parent], exclusive: Some(DIR), ..Touched::default() };
        let made = entry(Attr { nlink: 2, map_version, ..attr(sub, FileType::Directory, size) }, true);
        // The blocked call resumes.
        world.reply(id, touched(parent), Ok(Reply::Entry(made)));
        let is_answered = (size, map_version) == (0, 0);
        assert_eq!(world.frontend.len(), usize::from(is_answered), "{size}: {:?}", world.frontend);
        let (id, _, request) = world.last();
        let time = is_answered.then(|| Time::new(500, 0));
        assert_eq!(request, Request::RmDir { dir: DIR, name: name("sub"), time });
        if is_answered {
            let call = world.call(Request::GetAttr { ino: DIR });
            let Some(Ok(Answer::Attr(reported))) = world.answer(call) else { panic!("{:?}", world.frontend) };
            assert_eq!((reported.nlink, reported.size), (2, 2), "one subdirectory less");
            assert!(world.is_answered(lookup("sub")), "the name is absent");
        }
        world.reply(id, touched(Attr { nlink: 2, ..attr(DIR, FileType::Directory, 2) }), Ok(Reply::Done));
        assert_eq!(world.size_of_dir(), Some(2));
    }
}

#[test]
fn a_directory_that_is_made_at_once_inherits_a_group() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("file", false)));
    let (id, ..) = world.last();
    let parent = Attr { perm: 0o2777, gid: 7, ..attr(DIR, FileType::Directory, 3) };
    let made = entry(Attr { perm: 0o644, ..attr(Ino(FIRST), FileType::Regular, 0) }, true);
    let touched = Touched { attrs: vec![parent], exclusive: Some(DIR), ..Touched::default() };
    world.reply(id, touched, Ok(Reply::Entry(made)));
    for (node, perm) in [(NewNode::Directory, 0o2644), (NewNode::Regular, 0o644)] {
        let call = world.call_as(user(5, 6), Call::Request(make(&format!("{perm}"), node)));
        let Some(Ok(Answer::Entry(reported))) = world.answer(call) else { panic!("{:?}", world.frontend) };
        assert_eq!((reported.attr.perm, reported.attr.uid, reported.attr.gid), (perm, 5, 7));
    }
}

#[test]
fn revocation_is_acknowledged_after_pending_operations() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", false)));
    let (id, ..) = world.last();
    world.revoke(3);
    assert_eq!(world.revoked, []);
    assert!(!world.is_answered(create("other", false)));
    world.made(id, FIRST, 3);
    assert_eq!(world.revoked, [3]);
    world.revoke(4);
    assert_eq!(world.revoked, [3, 4], "nothing is pending");
}

#[test]
fn a_name_is_removed_at_once_and_older_answers_do_not_bring_it_back() {
    let mut world = ClientWorld::new();
    let listing = Request::ReadDir { dir: DIR, after: 0, limit: 5, plus: true };
    world.call(listing);
    let (lists, ..) = world.last();
    let call = world.call(unlink("old"));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Done))));
    let (id, _, request) = world.last();
    assert!(matches!(request, Request::Unlink { time: Some(_), .. }));
    assert_eq!(world.size_of_dir(), Some(1));
    world.reply_listing(lists);
    let call = world.call(lookup("old"));
    assert!(!matches!(world.answer(call), Some(Ok(Answer::Entry(_)))));
    let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, 1)], ..Touched::default() };
    world.reply(id, Touched { exclusive: Some(DIR), ..touched }, Ok(Reply::Done));
    assert_eq!(world.size_of_dir(), Some(1));
    let call = world.call(lookup("old"));
    assert!(!matches!(world.answer(call), Some(Ok(Answer::Entry(_)))));
}

#[test]
fn open_or_shared_file_is_not_removed_by_writeback() {
    let mut world = ClientWorld::new();
    let how = OpenHow { access: Access::READ, ..OpenHow::default() };
    world.call(Request::Open { ino: Ino(11), how });
    let (id, ..) = world.last();
    let opened = Opened { reclaim_token: 3, ..Opened::default() };
    world.reply(id, Touched::default(), Ok(Reply::Opened(opened)));
    assert!(!world.is_answered(unlink("old")), "it is open");

    let mut world = ClientWorld::new();
    world.revoke(3);
    // Another client may have looked it up meanwhile, though the directory is exclusive again.
    world.call(make("pipe", NewNode::Fifo));
    let (id, ..) = world.last();
    let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, 3)], ..Touched::default() };
    let pipe = entry(attr(Ino(13), FileType::Fifo, 0), true);
    world.reply(id, Touched { exclusive: Some(DIR), ..touched }, Ok(Reply::Entry(pipe)));
    assert!(world.is_answered(unlink("pipe")));
    assert!(!world.is_answered(unlink("old")), "another client may know it");
}

#[test]
fn fsync_reports_failed_pending_operation() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    let (id, ..) = world.last();
    world.reply(id, Touched::default(), Err(Errno::ENOSPC));
    let reported = &world.frontend[..];
    assert!(
        matches!(
            reported,
            [FrontendEvent::Distrust { .. }, FrontendEvent::Failed { errno: Errno::ENOSPC, .. }]
        ),
        "{reported:?}"
    );
    assert!(!world.is_answered(lookup("new")), "the binding is unknown");
    for (ino, errno) in [(DIR, Some(Errno::ENOSPC)), (DIR, None), (Ino(FIRST), Some(Errno::ENOSPC))] {
        let call = world.call(Request::Fsync { ino });
        assert_eq!(world.answer(call).map(|answer| answer.expect_err("a failure")), errno);
    }
}

#[test]
fn reconnecting_resends_pending_operations() {
    for (incarnation, resumed) in [(1, true), (2, true), (2, false)] {
        let mut world = ClientWorld::new();
        assert!(world.is_answered(create("new", true)));
        let (id, ..) = world.last();
        world.held.clear();
        world.connect(incarnation, resumed);
        let is_again = world.sent.iter().any(|(sent, _, request)| {
            *sent == id && matches!(request, Request::Create { writeback: Some(_), .. })
        });
        let is_failed = world
            .frontend
            .iter()
            .any(|reported| matches!(reported, FrontendEvent::Failed { errno: Errno::EIO, .. }));
        assert_eq!((is_again, is_failed), (resumed, !resumed), "{incarnation}");
        let is_sole_holder = world.held.iter().any(|held| held.ino == DIR && held.exclusive);
        assert_eq!(
            is_sole_holder,
            incarnation == 2 && resumed,
            "a restarted server learns of the exclusive lease"
        );
    }
}

#[test]
fn caller_blocked_on_pending_operation_can_be_interrupted() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    let call = world.call(Request::GetXattr { ino: Ino(FIRST), name: (*b"user.x").into() });
    let mut actions = Actions::default();
    assert_eq!(world.sessions.interrupt(call, |_| false, |_| false, &mut actions), Interrupt::Survived);
    assert_eq!(world.sessions.interrupt(call, |_| true, |_| false, &mut actions), Interrupt::Heard);
    assert!(matches!(actions.frontend[..], [FrontendEvent::Answer { result: Err(Errno::EINTR), .. }]));
}

/// The kernel looks up the directory before each file, and closes each file.
#[test]
fn the_third_file_in_a_new_directory_is_made_at_once() {
    let mut world = ClientWorld::without_numbers(true);
    let new = Ino(20);
    let in_new = |file: &str| match create(file, true) {
        Request::Create { name, node, perm, umask, open, exclusive, writeback, .. } => {
            Request::Create { dir: new, name, node, perm, umask, open, exclusive, writeback }
        }
        other => other,
    };
    world.call(Request::Create {
        dir: DIR,
        name: name("new"),
        node: NewNode::Directory,
        perm: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    });
    let (id, ..) = world.last();
    world.reply(id, Touched::default(), Ok(Reply::Entry(entry(attr(new, FileType::Directory, 0), true))));
    for (at, file) in ["a", "b", "c", "d"].into_iter().enumerate() {
        world.frontend.clear();
        let call = world.call(Request::Lookup { dir: new, name: name(file) });
        assert!(matches!(world.answer(call), Some(Ok(Answer::Absent { .. }))), "{file}");
        let call = world.call(Request::GetAttr { ino: new });
        assert!(world.answer(call).is_some(), "{file}");
        let call = world.call(in_new(file));
        assert_eq!(world.answer(call).is_some(), at > 1, "{file}");
        let made = world.sent.iter().find(|(_, _, request)| matches!(request, Request::Create { .. }));
        let (id, ..) = made.cloned().expect("the create is sent");
        let ino = if at > 1 { FIRST + at as u64 - 2 } else { 50 + at as u64 };
        let touched =
            Touched { attrs: vec![attr(new, FileType::Directory, at as u64 + 1)], ..Touched::default() };
        let how = Opened { reclaim_token: 3, ..Opened::default() };
        let made = Attr { perm: 0o644, ..attr(Ino(ino), FileType::Regular, 0) };
        let touched = Touched { exclusive: (at > 0).then_some(new), ..touched };
        world.reply(id, touched, Ok(Reply::Created(entry(made, true), how)));
        world.call_as(user(0, 0), Call::Release { ino: Ino(ino) });
        let takes = world.sent.iter().find(|(_, _, request)| matches!(request, Request::TakeNumbers { .. }));
        if let Some((id, ..)) = takes.cloned() {
            world.reply(id, Touched::default(), Ok(numbers()));
        }
    }
}

#[test]
fn a_new_file_is_written_at_once_and_in_order() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    let (made, ..) = world.last();
    world.now += 1500;
    assert!(world.is_written(write(FIRST, 0, b"some")));
    assert!(world.is_written(write(FIRST, espalier_proto::END, b" bytes")));
    assert_eq!((world.size_of(Ino(FIRST)), world.sent.len()), (Some(10), 1));
    world.made(made, FIRST, 3);
    let time = Some(Time::new(501, 499_000_000));
    let [(first, _, Request::Write { offset: 0, time: sent, .. }), (second, ..)] = world.sent[..] else {
        panic!("{:?}", world.sent)
    };
    assert_eq!(sent, time);
    assert_eq!((&world.follows[&first][..], &world.follows[&second][..]), (&[made][..], &[first][..]));
    assert_eq!(world.size_of(Ino(FIRST)), Some(10), "as acknowledged");
    let call = world.call(lookup("new"));
    let Some(Ok(Answer::Entry(reported))) = world.answer(call) else { panic!("{:?}", world.frontend) };
    assert_eq!((reported.attr.size, reported.attr.blocks, Some(reported.attr.mtime)), (10, 1, time));
    world.reply(first, Touched::default(), Ok(Reply::Done));
    let Some((id, espalier_proto::END, _)) = world.last_write() else { panic!("{:?}", world.sent) };
    let sync = world.call(Request::Fsync { ino: Ino(FIRST) });
    assert_eq!(world.sent.len(), 1, "the second write waits");
    let written = Attr { size: 10, ..attr(Ino(FIRST), FileType::Regular, 0) };
    world.reply(id, Touched { attrs: vec![written], ..Touched::default() }, Ok(Reply::Done));
    let (id, _, request) = world.last();
    assert_eq!(request, Request::Fsync { ino: Ino(FIRST) });
    world.reply(id, Touched::default(), Ok(Reply::Done));
    assert!(matches!(world.answer(sync), Some(Ok(Answer::Done))));
    assert_eq!(world.sessions.unanswered_changes(), 0);
}

#[test]
fn new_file_is_closed_and_removed_after_its_writes() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    let (made, ..) = world.last();
    assert!(world.is_written(write(FIRST, 0, b"bytes")));
    let call = world.call_as(user(0, 0), Call::Release { ino: Ino(FIRST) });
    assert!(world.answer(call).is_some());
    world.revoke(3);
    world.made(made, FIRST, 3);
    let unlink = world.call(unlink("new"));
    assert!(world.answer(unlink).is_none());
    let (id, ..) = world.last_write().expect("the write is sent");
    assert_eq!((&world.revoked[..], world.sent.len()), (&[][..], 1), "others would see it without its bytes");
    world.reply(id, Touched::default(), Ok(Reply::Done));
    assert_eq!(world.revoked, [3]);
    let mut actions = Actions::default();
    world.sessions.tick(world.now, |_| false, &mut actions);
    world.take(actions);
    let requests: Vec<_> = world.sent.iter().map(|(_, _, request)| request.clone()).collect();
    let [Request::Unlink { .. }, Request::ForgetAll { released, .. }] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert_eq!(released, &[Ino(FIRST)]);
}

#[test]
fn only_small_writes_to_unshared_new_files_are_acknowledged_at_once() {
    let cases: [(&str, WorldEvent, Call<'_>); 6] = [
        ("it outgrows the strip", |_| (), write(FIRST, 96, b"bytes")),
        ("it has been there before", |_| (), write(11, 0, b"bytes")),
        ("others may know it", |world| world.revoke(3), write(FIRST, 0, b"bytes")),
        ("the lease is over", |world| world.now += u64::from(TERM), write(FIRST, 0, b"bytes")),
        (
            "it is truncated before",
            |world| {
                let set = espalier_proto::SetAttr { size: Some(0), ..Default::default() };
                world.call(Request::SetAttr { ino: Ino(FIRST), set });
            },
            write(FIRST, 0, b"bytes"),
        ),
        (
            "it is closed, and may be open elsewhere",
            |world| {
                world.call_as(user(0, 0), Call::Release { ino: Ino(FIRST) });
            },
            write(FIRST, 0, b"bytes"),
        ),
    ];
    for (why, happens, write) in cases {
        let mut world = ClientWorld::new();
        assert!(world.is_answered(create("new", true)));
        happens(&mut world);
        assert!(!world.is_written(write), "{why}");
    }
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    assert!(world.is_written(write(FIRST, 95, b"bytes")), "it fits exactly");
}

#[test]
fn fsync_reports_failed_write_behind() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    let (made, ..) = world.last();
    assert!(world.is_written(write(FIRST, 0, b"bytes")));
    world.made(made, FIRST, 3);
    let (id, ..) = world.last_write().expect("the write is sent");
    world.reply(id, Touched::default(), Err(Errno::EIO));
    let reported = &world.frontend[..];
    assert!(
        matches!(reported, [FrontendEvent::Distrust { .. }, FrontendEvent::Failed { name: None, .. }]),
        "{reported:?}"
    );
    for (ino, errno) in [(DIR, None), (Ino(FIRST), Some(Errno::EIO)), (Ino(FIRST), None)] {
        let call = world.call(Request::Fsync { ino });
        assert_eq!(world.answer(call).map(|answer| answer.expect_err("a failure")), errno);
    }
}

#[test]
fn pending_write_is_resent_or_lost_with_session() {
    for (incarnation, resumed) in [(1, true), (2, true), (2, false)] {
        let mut world = ClientWorld::new();
        assert!(world.is_answered(create("new", true)));
        let (made, ..) = world.last();
        assert!(world.is_written(write(FIRST, 0, b"one")));
        assert!(world.is_written(write(FIRST, 3, b"two")));
        world.made(made, FIRST, 3);
        world.held.clear();
        world.connect(incarnation, resumed);
        let failed =
            world.frontend.iter().filter(|reported| matches!(reported, FrontendEvent::Failed { .. })).count();
        assert_eq!((world.last_write().is_some(), failed), (resumed, if resumed { 0 } else { 2 }));
        let is_sole_holder = world.held.iter().any(|held| held.ino == DIR && held.exclusive);
        assert_eq!(
            is_sole_holder,
            incarnation == 2 && resumed,
            "others would see the file without its bytes"
        );
        assert_eq!(world.sessions.unanswered_changes(), if resumed { 2 } else { 0 });
    }
}

#[test]
fn blocked_call_ignores_later_operations() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("a", false)));
    let (first, ..) = world.last();
    let listing = Request::ReadDir { dir: DIR, after: 0, limit: 5, plus: true };
    world.call(Request::Fsync { ino: DIR });
    world.call(listing.clone());
    assert!(world.is_answered(create("b", false)));
    assert_eq!(world.sent.len(), 2);
    world.made(first, FIRST, 3);
    let requests: Vec<_> = world.sent.iter().map(|(_, _, request)| request.clone()).collect();
    assert_eq!(requests[1..], [Request::Fsync { ino: DIR }, listing]);
    // The attributes of the directory in an older reply are corrected.
    let call = world.call(Request::Lookup { dir: Ino::ROOT, name: name("other") });
    let (id, ..) = world.last();
    world.reply(id, Touched::default(), Ok(Reply::Entry(entry(attr(DIR, FileType::Directory, 3), true))));
    let Some(Ok(Answer::Entry(reported))) = world.answer(call) else { panic!("{:?}", world.frontend) };
    assert_eq!(reported.attr.size, 4);
}

#[test]
fn unknown_attributes_are_requested_once_after_all_replies() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("a", false)));
    let (first, ..) = world.last();
    // The attributes of an inode that is about to change are not cached.
    world.call(make("pipe", NewNode::Fifo));
    let call = world.call(Request::GetAttr { ino: DIR });
    assert!(world.answer(call).is_none());
    assert_eq!(world.sent.len(), 2, "a reply would predate the acknowledged state");
    world.made(first, FIRST, 3);
    assert_eq!(world.last().2, Request::GetAttr { ino: DIR });
}

#[test]
fn full_server_queues_new_requests() {
    const MOST: usize = 64;
    let mut world = ClientWorld::new();
    for n in 0..MOST {
        assert!(world.is_answered(create(&format!("n{n}"), false)));
    }
    let first = world.sent.first().expect("an operation is sent").0;
    let [next, after] = ["next", "after"].map(|file| world.call(create(file, true)));
    // An operation of the batch is not sent earlier because of a dependent call, which may depend
    // on another.
    assert!(world.answer(next).is_none() && world.sent.len() == MOST - 15);
    world.made(first, FIRST, 3);
    // The create was acknowledged by write-back.
    let ino = FIRST + MOST as u64;
    assert!(
        matches!(world.answer(next), Some(Ok(Answer::Created(reported, _))) if reported.attr.ino == Ino(ino))
    );
    assert!(
        matches!(world.last().2, Request::Create { writeback: Some(WritebackCreate { ino: it, .. }), .. } if it == Ino(ino))
    );
    assert!(world.answer(after).is_none() && world.sent.len() == MOST);
    // A write to it must wait for room as well.
    let written = world.call_as(user(0, 0), write(ino, 0, b"four"));
    let ids: Vec<RequestId> = world.sent.iter().map(|(id, ..)| *id).collect();
    world.made(ids[0], FIRST + 1, 4);
    assert!(world.answer(after).is_some() && world.answer(written).is_none());
    world.made(ids[1], FIRST + 2, 5);
    assert!(matches!(world.answer(written), Some(Ok(Answer::Written(4)))));
    assert_eq!(world.size_of_dir(), Some(2 + MOST as u64 + 2));
}
