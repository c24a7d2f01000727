//! Leases: what a client may cache, and how another client's change affects it.

use crate::harness::{self, Harness, ROOT_CALLER, config, name};
use espalier_meta::{Acknowledge, Atime, Config, Input};
use espalier_proto::*;

const A: ClientId = ClientId(10);
const B: ClientId = ClientId(11);
const C: ClientId = ClientId(12);
const TERM: u32 = 10_000;

fn leased() -> Harness {
    Harness::with(Config { lease_ms: Some(TERM), ..config() })
}

/// The result of a request, and for how many milliseconds it may be cached.
fn ask(fs: &mut Harness, client: ClientId, request: Request) -> (Result<Reply, Errno>, u32) {
    let id = fs.send_from(client, &ROOT_CALLER, request);
    (fs.answers.remove(&id).unwrap(), fs.leases[&id].0)
}

fn make(fs: &mut Harness, client: ClientId, dir: Ino, file: &str, node: NewNode) -> Ino {
    let id = fs.send_from(client, &ROOT_CALLER, create(dir, file, node));
    match fs.answers.remove(&id).unwrap().unwrap() {
        Reply::Entry(entry) => entry.attr.ino,
        other => panic!("{other:?}"),
    }
}

fn create(dir: Ino, file: &str, node: NewNode) -> Request {
    Request::Create {
        dir,
        name: name(file),
        node,
        perm: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    }
}

fn lookup(dir: Ino, file: &str) -> Request {
    Request::Lookup { dir, name: name(file) }
}

fn chmod(ino: Ino, perm: u32) -> Request {
    Request::SetAttr { ino, set: SetAttr { perm: Some(perm), ..SetAttr::default() } }
}

fn getattr(ino: Ino) -> Request {
    Request::GetAttr { ino }
}

/// Acknowledges all revocations, and returns them.
fn answer_all(fs: &mut Harness) -> Vec<(ClientId, Lease)> {
    let revocations = std::mem::take(&mut fs.revocations);
    for revocation in &revocations {
        fs.input(Input::Revoked { client: revocation.client, number: revocation.number });
    }
    revocations.into_iter().map(|revocation| (revocation.client, revocation.lease)).collect()
}

/// Makes names of the root contended: one client looks up names that the other is about to create.
fn fight(fs: &mut Harness) {
    for new in 0..4 {
        let new = format!("{} {new}", fs.uptime_ms);
        assert_eq!(ask(fs, B, lookup(Ino::ROOT, &new)), (Ok(Reply::Absent { cacheable: true }), TERM));
        fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, &new, NewNode::Regular));
        answer_all(fs);
    }
}

fn tick(fs: &mut Harness, ms: u64) {
    fs.uptime_ms += ms;
    fs.input(Input::Tick);
}

#[test]
fn the_only_client_needs_no_leases() {
    let mut fs = Harness::new();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    assert!(matches!(
        ask(&mut fs, A, lookup(Ino::ROOT, "file")),
        (Ok(Reply::Entry(Entry { cacheable: true, name_leased: true, attr_leased: true, .. })), 0)
    ));
    assert!(ask(&mut fs, B, chmod(file, 0o600)).0.is_ok());
    assert_eq!((fs.revocations.len(), fs.meta.figures().leases_given), (0, 0));
}

/// A lease holder may have the file open without the server's knowledge.
#[test]
fn opening_for_write_revokes_leases_of_others() {
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), session_ms: Some(60_000), ..config() });
    for client in [A, B] {
        fs.input(Input::Connect { client, leases: true, resumes: false });
    }
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    let open = |access| Request::Open { ino: file, how: OpenHow { access, ..OpenHow::default() } };
    for access in [Access::READ, Access::WRITE] {
        assert_eq!(ask(&mut fs, A, getattr(file)).1, TERM);
        let id = fs.send_from(B, &ROOT_CALLER, open(access));
        let is_revoked = !fs.revocations.is_empty();
        assert_eq!((is_revoked, fs.answers.contains_key(&id)), (access == Access::WRITE, !is_revoked));
        // Its reports until then count.
        if is_revoked {
            assert!(ask(&mut fs, A, open(Access::READ)).0.is_ok());
            assert_eq!(answer_all(&mut fs), [(A, Lease::Inode { ino: file })]);
            let opened = fs.answers.remove(&id);
            assert!(matches!(opened, Some(Ok(Reply::Opened(Opened { shared: true, .. })))), "{opened:?}");
        }
    }
}

/// Like PVFS clients, which trust their caches for a fixed time.
#[test]
fn client_without_leases_blocks_nothing() {
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), session_ms: Some(60_000), ..config() });
    fs.input(Input::Connect { client: A, leases: false, resumes: false });
    fs.input(Input::Connect { client: B, leases: true, resumes: false });
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    let id = fs.send_from(A, &ROOT_CALLER, lookup(Ino::ROOT, "file"));
    assert!(matches!(
        fs.answers.remove(&id).unwrap(),
        Ok(Reply::Entry(Entry { name_leased: false, attr_leased: false, .. }))
    ));
    let id = fs.send_from(
        A,
        &ROOT_CALLER,
        Request::Rename {
            from_dir: Ino::ROOT,
            from: name("file"),
            to_dir: Ino::ROOT,
            to: name("moved"),
            flags: RenameFlags::empty(),
            time: None,
        },
    );
    assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Done)));
    // Touched inodes come without attributes, which would need leases.
    let (lease_ms, touched) = &fs.leases[&id];
    assert!(*lease_ms == 0 && touched.attrs.is_empty() && touched.others.contains(&Ino::ROOT));
    assert_eq!(ask(&mut fs, A, getattr(file)).1, 0);
    assert!(ask(&mut fs, B, chmod(file, 0o600)).0.is_ok());
    assert_eq!(fs.revocations.len(), 0);
    // A client may change its mind.
    fs.input(Input::Connect { client: A, leases: true, resumes: false });
    assert_eq!(ask(&mut fs, A, getattr(file)).1, TERM);
    fs.send_from(B, &ROOT_CALLER, chmod(file, 0o644));
    assert_eq!(answer_all(&mut fs), [(A, Lease::Inode { ino: file })]);
}

/// A kernel caches the new name of what it has moved.
#[test]
fn rename_grants_lease_on_new_name() {
    let mut fs = leased();
    let rename = |from, to, flags| Request::Rename {
        from_dir: Ino::ROOT,
        from: name(from),
        to_dir: Ino::ROOT,
        to: name(to),
        flags,
        time: None,
    };
    let unlink = |file| Request::Unlink { dir: Ino::ROOT, name: name(file), time: None };
    for fought_over in [false, true] {
        for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
            make(&mut fs, B, Ino::ROOT, "from", NewNode::Regular);
            make(&mut fs, B, Ino::ROOT, "to", NewNode::Regular);
            if fought_over {
                fight(&mut fs);
                assert_eq!(ask(&mut fs, A, lookup(Ino::ROOT, "other")).1, 0);
            }
            answer_all(&mut fs);
            let renamed = fs.send_from(A, &ROOT_CALLER, rename("from", "to", flags));
            answer_all(&mut fs);
            assert_eq!(fs.answers.remove(&renamed), Some(Ok(Reply::Done)));
            assert_eq!(fs.leases[&renamed].0, TERM);
            let names = if flags.is_empty() { vec!["to"] } else { vec!["to", "from"] };
            for file in names {
                let removed = fs.send_from(B, &ROOT_CALLER, unlink(file));
                let revoked = answer_all(&mut fs);
                let lease = Lease::Name { dir: Ino::ROOT, name: name(file) };
                assert!(revoked.contains(&(A, lease)), "{file}, {flags:?}: {revoked:?}");
                assert_eq!(fs.answers.remove(&removed), Some(Ok(Reply::Done)));
            }
            fs.uptime_ms += 100_000;
        }
    }
}

#[test]
fn leases_of_others_are_revoked_before_change() {
    let mut fs = leased();
    let dir = make(&mut fs, A, Ino::ROOT, "dir", NewNode::Directory);
    let file = make(&mut fs, A, dir, "file", NewNode::Regular);
    fs.uptime_ms += 100_000;
    let requests: Vec<(Request, Vec<Request>, Vec<Lease>)> = vec![
        (chmod(file, 0o640), vec![getattr(file)], vec![Lease::Inode { ino: file }]),
        (
            Request::Write {
                ino: file,
                offset: 0,
                data: b"bytes"[..].into(),
                kill_suid_gid: false,
                time: None,
            },
            vec![Request::Read { ino: file, offset: 0, size: 10, noatime: false }],
            vec![Lease::Inode { ino: file }],
        ),
        (
            create(dir, "new", NewNode::Regular),
            vec![lookup(dir, "new"), Request::ReadDir { dir, after: 0, limit: 100, plus: false }],
            vec![Lease::Name { dir, name: name("new") }, Lease::Contents { dir }],
        ),
        (
            Request::Link { ino: file, dir, name: name("link") },
            vec![lookup(dir, "link"), getattr(file)],
            vec![Lease::Name { dir, name: name("link") }, Lease::Inode { ino: file }],
        ),
        (
            Request::Rename {
                from_dir: dir,
                from: name("link"),
                to_dir: Ino::ROOT,
                to: name("moved"),
                flags: RenameFlags::empty(),
                time: None,
            },
            vec![lookup(dir, "link"), lookup(Ino::ROOT, "moved"), getattr(Ino::ROOT)],
            vec![
                Lease::Name { dir, name: name("link") },
                Lease::Name { dir: Ino::ROOT, name: name("moved") },
                Lease::Contents { dir: Ino::ROOT },
                Lease::Inode { ino: file },
            ],
        ),
        (
            Request::Unlink { dir, name: name("file"), time: None },
            vec![lookup(dir, "file")],
            vec![Lease::Name { dir, name: name("file") }, Lease::Inode { ino: file }],
        ),
        (
            Request::SetXattr {
                ino: dir,
                name: b"user.x".as_slice().into(),
                value: b"1".as_slice().into(),
                mode: XattrMode::Any,
                kill_sgid: false,
            },
            vec![Request::ListXattr { ino: dir }],
            vec![Lease::Inode { ino: dir }],
        ),
        (
            Request::RemoveTree { dir },
            vec![lookup(Ino::ROOT, "dir")],
            vec![Lease::Name { dir: Ino::ROOT, name: name("dir") }, Lease::Inode { ino: dir }],
        ),
    ];
    for (change, cached, expected) in requests {
        // Nothing is contended.
        tick(&mut fs, 1_000_000);
        for request in cached {
            assert_eq!(ask(&mut fs, B, request.clone()).1, TERM, "{request:?}");
        }
        let id = fs.send_from(A, &ROOT_CALLER, change.clone());
        assert!(!fs.answers.contains_key(&id), "{change:?} waits");
        let leases: Vec<_> = answer_all(&mut fs).into_iter().collect();
        for lease in &expected {
            assert!(leases.contains(&(B, lease.clone())), "{change:?}: {lease:?} in {leases:?}");
        }
        assert_eq!(leases.len(), expected.len(), "{change:?}: {leases:?}");
        assert!(matches!(fs.answers.remove(&id), Some(Ok(_))), "{change:?}");
        assert_eq!(answer_all(&mut fs), []);
    }
    assert_eq!(fs.fsck(), []);
}

#[test]
fn contended_contents_leave_permissions_leased() {
    let mut fs = leased();
    let has_contents =
        |reply: &Result<Reply, Errno>| matches!(reply, Ok(Reply::Attr(Attr { contents_leased: true, .. })));
    for new in 0..4 {
        let (reply, term) = ask(&mut fs, B, getattr(Ino::ROOT));
        assert!(has_contents(&reply) && term == TERM);
        fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, &format!("{new}"), NewNode::Regular));
        assert_eq!(answer_all(&mut fs), [(B, Lease::Contents { dir: Ino::ROOT })]);
    }
    let (reply, term) = ask(&mut fs, B, getattr(Ino::ROOT));
    assert!(!has_contents(&reply) && term == TERM);
    fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, "more", NewNode::Regular));
    assert_eq!(answer_all(&mut fs), [], "no lease covers the contents");
    fs.send_from(A, &ROOT_CALLER, chmod(Ino::ROOT, 0o711));
    assert_eq!(answer_all(&mut fs), [(B, Lease::Inode { ino: Ino::ROOT })]);
    tick(&mut fs, 2_000);
    assert!(has_contents(&ask(&mut fs, B, getattr(Ino::ROOT)).0), "the suspension is over");
}

#[test]
fn changer_keeps_leases_and_gets_new_attributes() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    assert_eq!(ask(&mut fs, A, lookup(Ino::ROOT, "file")).1, TERM);
    assert!(ask(&mut fs, A, chmod(file, 0o600)).0.is_ok());
    let id =
        fs.send_from(A, &ROOT_CALLER, Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None });
    assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Done)));
    assert_eq!((fs.revocations.len(), fs.leases[&id].0), (0, TERM));
    let root = ask(&mut fs, A, getattr(Ino::ROOT)).0.unwrap();
    let touched = &fs.leases[&id].1;
    assert_eq!((touched.attrs.len(), &touched.others[..]), (2, &[][..]));
    assert_eq!(Reply::Attr(touched.attrs[0]), root);
    assert_eq!((touched.attrs[1].ino, touched.attrs[1].nlink), (file, 0));
}

#[test]
fn change_reply_is_leased_only_while_current() {
    let acknowledge = Acknowledge::Written;
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), acknowledge, ..config() });
    fs.lazy = true;
    // The answer to the first request waits for the journal, and the second arrives before it
    // leaves.
    let first = fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, "first", NewNode::Regular));
    let second = fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, "second", NewNode::Regular));
    while fs.run_one() {}
    let reported = |id| {
        let (lease, touched): &(u32, Touched) = &fs.leases[&id];
        (*lease, touched.attrs.iter().map(|attr| attr.ino).collect::<Vec<_>>(), touched.others.clone())
    };
    assert_eq!(reported(first), (TERM, vec![], vec![Ino::ROOT]));
    assert_eq!(reported(second), (TERM, vec![Ino::ROOT], vec![]));
}

#[test]
fn silent_client_is_waited_for_until_its_lease_ends() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    assert_eq!(ask(&mut fs, B, getattr(file)).1, TERM);
    let id = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    for _ in 0..10 {
        tick(&mut fs, 1_000);
        assert!(!fs.answers.contains_key(&id));
    }
    tick(&mut fs, 1_000);
    assert!(matches!(fs.answers.remove(&id), Some(Ok(_))));
    // Revocations are resent, since messages may be lost; a late acknowledgement has no effect.
    let revoked = answer_all(&mut fs);
    assert!(
        revoked.len() > 1 && revoked.iter().all(|revoked| *revoked == (B, Lease::Inode { ino: file })),
        "{revoked:?}"
    );
    let figures = fs.meta.figures();
    assert_eq!((figures.leases_revoked, figures.leases_unanswered, figures.lease_waits), (1, 1, 1));
}

#[test]
fn only_revoked_client_can_acknowledge() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    ask(&mut fs, B, getattr(file)).0.unwrap();
    let id = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    let number = fs.revocations[0].number;
    fs.input(Input::Revoked { client: A, number });
    fs.input(Input::Revoked { client: B, number: RevocationId(number.0 + 1) });
    assert!(!fs.answers.contains_key(&id));
    fs.input(Input::Revoked { client: B, number });
    assert!(fs.answers.contains_key(&id));
    fs.input(Input::Revoked { client: B, number });
}

#[test]
fn waiting_change_blocks_conflicting_grants() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    assert_eq!(ask(&mut fs, B, getattr(file)).1, TERM);
    let id = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    for client in [A, B, ClientId(12)] {
        assert!(matches!(ask(&mut fs, client, getattr(file)), (Ok(Reply::Attr(_)), 0)), "{client:?}");
    }
    assert_eq!(answer_all(&mut fs).len(), 1);
    assert!(fs.answers.contains_key(&id));
    assert_eq!(ask(&mut fs, B, getattr(file)).1, TERM);
}

#[test]
fn mutual_cached_changes_do_not_deadlock() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    for client in [A, B] {
        assert_eq!(ask(&mut fs, client, getattr(file)).1, TERM);
    }
    let first = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    let second = fs.send_from(B, &ROOT_CALLER, chmod(file, 0o644));
    assert_eq!(answer_all(&mut fs).len(), 2);
    assert!(fs.answers.contains_key(&first) && fs.answers.contains_key(&second));
}

#[test]
fn a_waiting_change_can_be_interrupted_and_has_changed_nothing() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    let (Ok(Reply::Attr(before)), TERM) = ask(&mut fs, B, getattr(file)) else { panic!() };
    let id = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    fs.input(Input::Cancel { from: A, id: RequestId(id) });
    assert_eq!(fs.answers.remove(&id), Some(Err(Errno::EINTR)));
    // The revocation is still unacknowledged: its acknowledgement would end a new lease too.
    assert_eq!(ask(&mut fs, B, getattr(file)), (Ok(Reply::Attr(before)), 0));
    assert_eq!(answer_all(&mut fs).len(), 1);
    assert_eq!(ask(&mut fs, B, getattr(file)), (Ok(Reply::Attr(before)), TERM));
}

#[test]
fn a_client_whose_session_ends_is_not_waited_for() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    ask(&mut fs, B, getattr(file)).0.unwrap();
    let id = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    assert!(!fs.answers.contains_key(&id));
    fs.end_leases(B);
    assert!(fs.answers.contains_key(&id));
    fs.revocations.clear();
    ask(&mut fs, A, chmod(file, 0o640)).0.unwrap();
    assert_eq!(fs.revocations, []);
    // The client may come back.
    assert_eq!(ask(&mut fs, B, getattr(file)).1, TERM);
    fs.send_from(A, &ROOT_CALLER, chmod(file, 0o600));
    assert_eq!(answer_all(&mut fs).len(), 1);
}

#[test]
fn lease_begins_with_its_reply_unless_reply_is_stale() {
    let mut fs =
        Harness::with(Config { lease_ms: Some(TERM), acknowledge: Acknowledge::Durable, ..config() });
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    fs.end_leases(A);
    fs.lazy = true;
    let first = fs.send_from(B, &ROOT_CALLER, chmod(file, 0o600));
    let second = fs.send_from(A, &ROOT_CALLER, chmod(file, 0o640));
    assert!(!fs.answers.contains_key(&first));
    fs.uptime_ms += 5_000;
    while fs.run_one() {}
    assert_eq!((fs.leases[&first].0, fs.leases[&second].0), (0, TERM));
    assert_eq!(fs.revocations, [], "no lease had been granted");
    // The lease lasts one term from then.
    let third = fs.send_from(B, &ROOT_CALLER, chmod(file, 0o600));
    for _ in 0..10 {
        tick(&mut fs, 1_000);
        while fs.run_one() {}
        assert!(!fs.answers.contains_key(&third));
    }
    tick(&mut fs, 1_000);
    while fs.run_one() {}
    assert!(fs.answers.contains_key(&third));
}

#[test]
fn contended_names_are_not_leased_for_a_while() {
    let mut fs = leased();
    let file = make(&mut fs, A, Ino::ROOT, "file", NewNode::Regular);
    fight(&mut fs);
    assert_eq!(ask(&mut fs, B, lookup(Ino::ROOT, "other")), (Ok(Reply::Absent { cacheable: true }), 0));
    let (Ok(Reply::Entry(entry)), TERM) = ask(&mut fs, B, lookup(Ino::ROOT, "file")) else { panic!() };
    assert_eq!((entry.attr.ino, entry.name_leased, entry.attr_leased), (file, false, true));
    tick(&mut fs, 1_000);
    let (Ok(Reply::Entry(entry)), TERM) = ask(&mut fs, B, lookup(Ino::ROOT, "file")) else { panic!() };
    assert!(entry.name_leased);
}

#[test]
fn a_big_file_that_may_be_written_to_is_not_leased() {
    let mut fs = leased();
    let file = fs.file("big", &[1; 2 * harness::STRIP as usize]);
    fs.end_leases(ClientId(1));
    let how = |access| Request::Open { ino: file, how: harness::open_how(access, false) };
    assert_eq!(ask(&mut fs, B, getattr(file)).1, TERM, "no client has it open");
    let id = fs.send_from(A, &ROOT_CALLER, how(Access::WRITE));
    assert!(!fs.answers.contains_key(&id), "it waits for the other");
    assert_eq!(answer_all(&mut fs).len(), 1);
    assert!(fs.answers.contains_key(&id));
    assert_eq!(ask(&mut fs, B, getattr(file)).1, 0);
    ask(&mut fs, A, Request::Release { ino: file }).0.unwrap();
    assert_eq!(ask(&mut fs, B, getattr(file)).1, TERM);
    assert_eq!(ask(&mut fs, B, how(Access::READ)).1, TERM, "readers may cache it");
}

#[test]
fn open_reply_says_whether_file_is_shared() {
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), session_ms: Some(60_000), ..config() });
    for client in [ClientId(1), A, B] {
        fs.input(Input::Connect { client, leases: true, resumes: false });
    }
    let (big, small) = (fs.file("big", &[1; 2 * harness::STRIP as usize]), fs.file("small", &[1]));
    let unshared = fs.file("alone", &[1]);
    fs.end_leases(ClientId(1));
    let mut is_shared = |client, file, access| {
        let open = Request::Open { ino: file, how: harness::open_how(access, false) };
        let id = fs.send_from(client, &ROOT_CALLER, open);
        answer_all(&mut fs);
        let Some(Ok(Reply::Opened(opened))) = fs.answers.remove(&id) else { panic!() };
        opened.shared
    };
    assert_eq!([0; 2].map(|_| is_shared(A, unshared, Access::WRITE)), [false; 2]);
    for file in [big, small] {
        assert!(!is_shared(A, file, Access::READ));
        assert!(!is_shared(B, file, Access::READ), "no client writes to it");
        assert!(is_shared(B, file, Access::WRITE), "A has it open");
        assert!(is_shared(A, file, Access::READ), "B writes to it");
    }
}

#[test]
fn stream_reply_from_before_change_is_not_leased() {
    let mut fs = leased();
    let file = fs.file("big", &[1; 2 * harness::STRIP as usize]);
    fs.end_leases(ClientId(1));
    ask(&mut fs, A, Request::Open { ino: file, how: harness::open_how(Access::WRITE, false) }).0.unwrap();
    fs.shuffle = Some(fastrand::Rng::with_seed(1));
    let id = fs.send_from(B, &ROOT_CALLER, getattr(file));
    // Its size is being queried while the last writer writes and closes it.
    fs.disk.store().stream_write(file, 0, &[2; 3 * harness::STRIP as usize]).unwrap();
    let (waiting, shuffle) = (std::mem::take(&mut fs.waiting), fs.shuffle.take());
    ask(&mut fs, A, Request::Release { ino: file }).0.unwrap();
    (fs.waiting, fs.shuffle) = (waiting, shuffle);
    while fs.run_one() {}
    assert!(matches!(fs.answers.remove(&id), Some(Ok(_))));
    assert_eq!(fs.leases[&id].0, 0);
}

#[test]
fn there_are_only_so_many_leases() {
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), most_leases: 10, ..config() });
    let files: Vec<_> =
        (0..20).map(|i| make(&mut fs, A, Ino::ROOT, &format!("{i}"), NewNode::Regular)).collect();
    fs.uptime_ms += 100_000;
    tick(&mut fs, 0);
    assert_eq!(fs.meta.figures().leases_held, 0);
    let given = files.iter().filter(|file| ask(&mut fs, B, getattr(**file)).1 == TERM).count();
    assert_eq!((given, fs.meta.figures().leases_held), (10, 10));
    tick(&mut fs, 20_000);
    assert_eq!(ask(&mut fs, B, getattr(files[19])).1, TERM, "leases are available again");
}

#[test]
fn opening_small_file_returns_content_and_counts_as_access() {
    let mut fs = Harness::with(Config {
        lease_ms: Some(TERM),
        session_ms: Some(60_000),
        atime: Atime::Relative,
        ..config()
    });
    for (client, leases) in [(ClientId(1), true), (A, true), (B, false)] {
        fs.input(Input::Connect { client, leases, resumes: false });
    }
    let (small, large) = (fs.file("small", b"01234"), fs.file("large", &[1; harness::STRIP as usize + 1]));
    fs.end_leases(ClientId(1));
    let mut open = |client, ino, how| {
        let before = fs.attr_of(ino).atime;
        fs.end_leases(ClientId(1));
        let (reply, lease) = ask(&mut fs, client, Request::Open { ino, how });
        let (opened, whole) = match reply.unwrap() {
            Reply::Opened(opened) => (opened, None),
            Reply::OpenedWhole(opened, bytes) => (opened, Some(bytes)),
            other => panic!("{other:?}"),
        };
        ask(&mut fs, client, Request::Release { ino }).0.unwrap();
        let is_accessed = fs.attr_of(ino).atime > before;
        fs.end_leases(ClientId(1));
        assert_eq!(opened.accessed, is_accessed);
        (whole, is_accessed, lease > 0)
    };
    let how = |reads| OpenHow { reads, ..harness::open_how(Access::READ, false) };
    let bytes = Some(b"01234"[..].into());
    assert_eq!(open(A, small, how(Reads::Server)), (None, false, true), "the read to come is the access");
    assert_eq!(open(B, small, how(Reads::Whole)), (None, true, false), "this client may not cache");
    assert_eq!(open(A, small, how(Reads::Whole)), (bytes, false, true), "it was accessed just now");
    let written = OpenHow { access: Access::READ | Access::WRITE, ..how(Reads::Whole) };
    assert_eq!(open(A, small, written).0, None);
    assert_eq!(open(A, small, OpenHow { truncate: true, ..how(Reads::Whole) }).0, None);
    assert_eq!(open(A, small, how(Reads::Client)), (None, true, true), "it was changed since");
    assert_eq!(open(A, large, how(Reads::Whole)), (None, true, true));
}

/// Two clients whose kernels have one directory locked, each for a call that waits for the other's
/// lease on a name.
#[test]
fn one_call_of_clients_that_block_each_other_is_refused() {
    let mut fs = leased();
    for (client, other) in [(A, "made by B"), (B, "made by A")] {
        assert_eq!(
            ask(&mut fs, client, lookup(Ino::ROOT, other)),
            (Ok(Reply::Absent { cacheable: true }), TERM)
        );
    }
    let by_a = fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, "made by A", NewNode::Regular));
    let by_b = fs.send_from(B, &ROOT_CALLER, create(Ino::ROOT, "made by B", NewNode::Regular));
    assert!(!fs.answers.contains_key(&by_a) && !fs.answers.contains_key(&by_b));
    let revocations = std::mem::take(&mut fs.revocations);
    let of_a = revocations.iter().find(|it| it.client == A).unwrap().number;
    let of_b = revocations.iter().find(|it| it.client == B).unwrap().number;
    // A report about another client's revocation has no effect.
    fs.input(Input::Blocked { client: A, number: of_b });
    fs.input(Input::Blocked { client: B, number: of_a });
    assert!(!fs.answers.contains_key(&by_a) && !fs.answers.contains_key(&by_b));
    // B may only be slow.
    fs.input(Input::Blocked { client: A, number: of_a });
    assert!(!fs.answers.contains_key(&by_a) && !fs.answers.contains_key(&by_b));
    fs.input(Input::Blocked { client: B, number: of_b });
    assert_eq!(fs.answers.remove(&by_b), Some(Err(Errno::ESTALE)));
    // B acknowledges soon, which resumes A's call.
    fs.input(Input::Blocked { client: A, number: of_a });
    assert!(!fs.answers.contains_key(&by_a));
    fs.input(Input::Revoked { client: B, number: of_b });
    assert!(matches!(fs.answers.remove(&by_a), Some(Ok(Reply::Entry(_)))));
    // Nothing has been made for B; its kernel repeats the call, which is not refused again.
    assert_eq!(ask(&mut fs, B, lookup(Ino::ROOT, "made by B")).0, Ok(Reply::Absent { cacheable: true }));
    assert_eq!(ask(&mut fs, B, lookup(Ino::ROOT, "others")).0, Ok(Reply::Absent { cacheable: true }));
    let again = fs.send_from(B, &ROOT_CALLER, create(Ino::ROOT, "made by B", NewNode::Regular));
    fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, "others", NewNode::Regular));
    let of_b = fs.revocations.iter().find(|it| it.client == B).unwrap().number;
    fs.input(Input::Blocked { client: A, number: of_a });
    fs.input(Input::Blocked { client: B, number: of_b });
    assert!(!fs.answers.contains_key(&again));
    fs.input(Input::Revoked { client: A, number: of_a });
    answer_all(&mut fs);
    assert!(matches!(fs.answers.remove(&again), Some(Ok(Reply::Entry(_)))));
}

#[test]
fn call_that_waits_for_a_slow_client_is_not_refused() {
    let mut fs = leased();
    for client in [A, B] {
        ask(&mut fs, client, lookup(Ino::ROOT, "file")).0.unwrap();
    }
    let by_a = fs.send_from(A, &ROOT_CALLER, create(Ino::ROOT, "file", NewNode::Regular));
    fs.send_from(C, &ROOT_CALLER, create(Ino::ROOT, "file", NewNode::Regular));
    let of_a = fs.revocations.iter().find(|it| it.client == A).unwrap().number;
    fs.input(Input::Blocked { client: A, number: of_a });
    assert!(!fs.answers.contains_key(&by_a), "B is not blocked");
    let of_b = fs.revocations.iter().find(|it| it.client == B).unwrap().number;
    fs.input(Input::Revoked { client: B, number: of_b });
    fs.input(Input::Revoked { client: A, number: of_a });
    assert!(matches!(fs.answers.remove(&by_a), Some(Ok(Reply::Entry(_)))));
}
