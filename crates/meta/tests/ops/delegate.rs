//! Capabilities: what clients do at data servers directly, and how that ends.

use espalier_meta::{Acknowledge, Config, Input, Io, Striping};
use espalier_proto::*;

use crate::harness::{DataServers, Harness, ROOT_CALLER, STRIP, config, name, open_how};

const SESSION_MS: u32 = 10_000;
const ONE: ClientId = ClientId(101);
const OTHER: ClientId = ClientId(102);

/// Data servers and two clients.
fn cluster() -> Harness {
    cluster_of(striping())
}

fn striping() -> Striping {
    let servers = (0..2).map(ServerId).collect();
    Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, 2).unwrap()
}

fn cluster_of(striping: Striping) -> Harness {
    let (session_ms, acknowledge) = (Some(SESSION_MS), Acknowledge::Written);
    let mut fs = Harness::with(Config { striping: Some(striping), session_ms, acknowledge, ..config() });
    fs.data = DataServers::new(2);
    connect(&mut fs);
    fs
}

fn connect(fs: &mut Harness) {
    for client in [ONE, OTHER] {
        fs.input(Input::Connect { client, leases: true, resumes: false });
    }
}

fn ask(fs: &mut Harness, client: ClientId, request: Request) -> Result<Reply, Errno> {
    let id = fs.send_from(client, &ROOT_CALLER, request);
    while !fs.answers.contains_key(&id) && fs.run_one() {}
    fs.answers.remove(&id).expect("an answer")
}

/// A striped file that the client has open.
fn big(fs: &mut Harness, client: ClientId, file: &str) -> Ino {
    let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
    let (dir, perm, umask, exclusive) = (Ino::ROOT, 0o755, 0, true);
    let create =
        Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None };
    let Ok(Reply::Created(entry, _)) = ask(fs, client, create) else { panic!("not created") };
    let write = Request::Write {
        ino: entry.attr.ino,
        offset: 0,
        data: vec![1; STRIP as usize + 1].into(),
        kill_suid_gid: false,
        time: None,
    };
    assert_eq!(ask(fs, client, write), Ok(Reply::Streamed));
    entry.attr.ino
}

fn delegate(
    fs: &mut Harness,
    client: ClientId,
    ino: Ino,
    access: Access,
) -> Result<Option<Delegation>, Errno> {
    match ask(fs, client, Request::Delegate { ino, access })? {
        Reply::Delegated(given) => Ok(given.map(|given| *given)),
        other => panic!("{other:?}"),
    }
}

/// The client need not request one, and the write by which a file outgrows its strip is part of the
/// unstuffing: two messages less.
#[test]
fn outgrowing_write_returns_capability() {
    outgrow(false);
}

#[test]
fn unprivileged_write_is_unstuffed_along() {
    outgrow(true);
}

fn outgrow(kills: bool) {
    let mut fs = cluster_of(striping().delegated());
    let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
    let (dir, perm, umask, exclusive) = (Ino::ROOT, 0o755, 0, true);
    let create =
        Request::Create { dir, name: name("file"), node, perm, umask, open, exclusive, writeback: None };
    let Ok(Reply::Created(entry, _)) = ask(&mut fs, ONE, create) else { panic!("not created") };
    let ino = entry.attr.ino;
    let mut write = |offset, byte| {
        let data = vec![byte; STRIP as usize];
        ask(&mut fs, ONE, Request::Write { ino, offset, data: data.into(), kill_suid_gid: kills, time: None })
    };
    assert_eq!(write(0, 1), Ok(Reply::Done));
    let first = match write(1, 2) {
        Ok(Reply::Outgrown(given)) => given,
        other => panic!("{other:?}"),
    };
    let Ok(Reply::Delegated(Some(second))) = write(2, 3) else { panic!("nothing was given") };
    for given in [&first, &second] {
        assert_eq!((given.capability.ino, given.capability.access), (ino, Access::WRITE));
        assert_eq!(given.layout.as_ref().map(|layout| layout.servers().len()), Some(2));
    }
    let mut expected = vec![2; STRIP as usize + 1];
    expected[0] = 1;
    assert_eq!(fs.data.read(&first.layout.unwrap(), ino), expected);
}

/// A lookup does not wait for a data server, since kernels lock the directory meanwhile.
#[test]
fn lookup_leaves_measuring_to_client() {
    let mut fs = cluster_of(striping().delegated());
    let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
    let (dir, perm, umask, exclusive) = (Ino::ROOT, 0o755, 0, true);
    let create =
        Request::Create { dir, name: name("big"), node, perm, umask, open, exclusive, writeback: None };
    let Ok(Reply::Created(entry, _)) = ask(&mut fs, ONE, create) else { panic!("not created") };
    let ino = entry.attr.ino;
    let data = vec![1; STRIP as usize + 1].into();
    let written =
        ask(&mut fs, ONE, Request::Write { ino, offset: 0, data, kill_suid_gid: false, time: None });
    assert!(matches!(written, Ok(Reply::Outgrown(_))), "{written:?}");
    assert_eq!(ask(&mut fs, ONE, Request::Release { ino }), Ok(Reply::Done));

    let lookup = Request::Lookup { dir, name: name("big") };
    let Ok(Reply::Entry(found)) = ask(&mut fs, OTHER, lookup.clone()) else { panic!("it is not measured") };
    assert_eq!((found.attr.ino, found.attr.size), (ino, STRIP + 1));
    fs.data.down = true;
    let Ok(Reply::Unmeasured(reported, given)) = ask(&mut fs, OTHER, lookup) else {
        panic!("it is measured")
    };
    assert!(matches!(*reported, Reply::Entry(entry) if entry.attr.ino == ino), "{reported:?}");
    assert_eq!((given.capability.ino, given.capability.access), (ino, Access::empty()));
}

/// Lets time pass in which only one client is heard.
fn outlast(fs: &mut Harness, heard: ClientId) {
    for _ in 0..=SESSION_MS / 1000 {
        fs.uptime_ms += 1000;
        fs.input(Input::Heard { client: heard });
        fs.input(Input::Tick);
    }
}

/// The pending request to data servers.
fn said(fs: &Harness) -> Vec<(u64, Vec<u64>)> {
    let admit = |(_, io): &(_, Io)| match io {
        Io::Admit { below, live, .. } => Some((*below, live.clone())),
        _ => None,
    };
    fs.waiting.iter().filter_map(admit).collect()
}

/// The clients that are being fenced in the data pool.
fn fenced(fs: &Harness) -> Vec<ClientId> {
    let ending = |(_, io): &(_, Io)| match io {
        Io::Admit { ending, .. } => Some(ending.clone()),
        _ => None,
    };
    fs.waiting.iter().filter_map(ending).flatten().collect()
}

/// Two clients, and a store with a data pool that both may use.
fn pool() -> Harness {
    let (session_ms, acknowledge) = (Some(SESSION_MS), Acknowledge::Durable);
    let mut fs = Harness::with(Config { data_pool: true, session_ms, acknowledge, ..config() });
    connect(&mut fs);
    fs
}

/// A client that held nothing has reclaimed after a crash.
fn reclaim(fs: &mut Harness, client: ClientId) {
    fs.next += 1000;
    fs.input(Input::Connect { client, leases: true, resumes: true });
    let (held, last, again) = (Vec::new(), true, Vec::new());
    assert_eq!(ask(fs, client, Request::Reclaim { held, last, again }), Ok(Reply::Done));
}

/// The counted size of the only file that is not empty.
fn counted(fs: &mut Harness) -> u64 {
    let (ino, name) = (Ino::ROOT, (*b"user.espalier.rbytes").into());
    match ask(fs, OTHER, Request::GetXattr { ino, name }) {
        Ok(Reply::Bytes(text)) => String::from_utf8(text.into()).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_capability_says_how_payloads_go() {
    let fs = &mut cluster();
    for (file, eager) in [("by itself", None), ("announced", Some("false")), ("eager", Some("true"))] {
        if let Some(value) = eager {
            let (name, value) = ((*b"user.espalier.eager").into(), value.as_bytes().into());
            let (ino, mode, kill_sgid) = (Ino::ROOT, XattrMode::Any, false);
            assert_eq!(
                ask(fs, ONE, Request::SetXattr { ino, name, value, mode, kill_sgid }),
                Ok(Reply::Done)
            );
        }
        let ino = big(fs, ONE, file);
        let given = delegate(fs, ONE, ino, Access::READ).unwrap().unwrap();
        assert_eq!(given.capability.announced, eager == Some("false"), "{file}");
    }
}

#[test]
fn capabilities_require_an_open_file() {
    let fs = &mut cluster();
    let ino = big(fs, ONE, "big");
    let first = delegate(fs, ONE, ino, Access::READ).unwrap().expect("it is striped");
    let Capability { ino: of, access, session, .. } = first.capability;
    assert_eq!((of, access, session, first.limited), (ino, Access::READ, 1, false));
    assert_eq!(first.layout.unwrap().servers().len(), 2);
    assert_eq!(delegate(fs, ONE, ino, Access::WRITE).unwrap().unwrap().capability.session, 1);
    assert_eq!(delegate(fs, OTHER, ino, Access::READ), Err(Errno::EBADF));
    ask(fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("big") }).unwrap();
    assert_eq!(delegate(fs, OTHER, ino, Access::READ), Err(Errno::EBADF));
    ask(fs, OTHER, Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
    assert_eq!(delegate(fs, OTHER, ino, Access::READ).unwrap().unwrap().capability.session, 2);
    // Another client's writes must not leave the file with privileges.
    let set = Request::SetXattr {
        ino,
        name: (*b"security.capability").into(),
        value: (*b"all").into(),
        mode: XattrMode::Any,
        kill_sgid: false,
    };
    assert_eq!(ask(fs, OTHER, set.clone()), Err(Errno::ETXTBSY));
    assert_eq!(ask(fs, ONE, set), Ok(Reply::Done), "the writer asks again, and the other only reads");
    let listed = |fs: &mut Harness| match ask(fs, ONE, Request::ListXattr { ino }) {
        Ok(Reply::Bytes(names)) => names.len(),
        other => panic!("{other:?}"),
    };
    delegate(fs, ONE, ino, Access::READ).unwrap();
    assert_ne!(listed(fs), 0);
    delegate(fs, ONE, ino, Access::WRITE).unwrap();
    assert_eq!(listed(fs), 0);
}

/// A client that unstuffs a file continues at once. The metadata server itself waits until the
/// event is durable.
#[test]
fn outgrown_file_is_provisional_until_durable() {
    let fs = &mut cluster();
    fs.lazy = true;
    let ino = big(fs, ONE, "big");
    let since = |fs: &mut Harness, access| {
        delegate(fs, ONE, ino, access).unwrap().expect("it is striped").capability.since
    };
    let young = since(fs, Access::WRITE);
    assert_ne!(young, 0);
    assert_eq!(since(fs, Access::READ), 0, "reading makes no datafile");
    let extend =
        Request::Extend { ino, offset: 200, length: 1, from: None, discards: false, acknowledged: false };
    let id = fs.send_from(ONE, &ROOT_CALLER, extend);
    assert!(!fs.answers.contains_key(&id));
    fs.run_until_idle();
    assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Granted)));
    assert_eq!(since(fs, Access::WRITE), 0);
}

#[test]
fn files_without_layout_use_the_local_store() {
    let fs = &mut cluster();
    let Ok(Reply::Created(entry, _)) = ask(
        fs,
        ONE,
        Request::Create {
            dir: Ino::ROOT,
            name: name("small"),
            node: NewNode::Regular,
            perm: 0o644,
            umask: 0,
            open: Some(open_how(Access::WRITE, false)),
            exclusive: true,
            writeback: None,
        },
    ) else {
        panic!("not created")
    };
    assert_eq!(delegate(fs, ONE, entry.attr.ino, Access::WRITE), Ok(None));
    // Nor need data servers learn of the end of its session.
    fs.lazy = true;
    fs.input(Input::Leave { client: ONE });
    assert_eq!(said(fs), []);
}

/// Other clients get what the session held only once no data server serves the session.
#[test]
fn a_session_ends_when_data_servers_know() {
    let fs = &mut cluster();
    let ino = big(fs, ONE, "big");
    delegate(fs, ONE, ino, Access::WRITE).unwrap();
    ask(fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("big") }).unwrap();
    ask(fs, OTHER, Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
    delegate(fs, OTHER, ino, Access::WRITE).unwrap();
    let owner = LockOwner { flock: true, number: 1 };
    let lock = Lock { owner, kind: LockKind::Exclusive, pid: 1, first: 0, last: u64::MAX };
    let request = Request::Lock { ino, lock, wait: None };
    assert_eq!(ask(fs, ONE, request.clone()), Ok(Reply::Done));
    fs.lazy = true;
    outlast(fs, OTHER);
    assert_eq!(said(fs), [(3, vec![2])]);
    assert_eq!(fs.expired, []);
    assert_eq!(ask(fs, OTHER, request.clone()), Err(Errno::EAGAIN));
    fs.run_until_idle();
    assert_eq!(fs.expired, [ONE]);
    fs.lazy = false;
    assert_eq!(ask(fs, OTHER, request), Ok(Reply::Done));
}

#[test]
fn a_client_that_comes_back_meanwhile_keeps_its_session() {
    let fs = &mut cluster();
    let ino = big(fs, ONE, "big");
    assert_eq!(delegate(fs, ONE, ino, Access::WRITE).unwrap().unwrap().capability.session, 1);
    fs.lazy = true;
    outlast(fs, OTHER);
    assert_eq!(said(fs), [(2, vec![])]);
    fs.input(Input::Heard { client: ONE });
    fs.run_until_idle();
    fs.lazy = false;
    assert_eq!(fs.expired, []);
    assert_eq!(delegate(fs, ONE, ino, Access::WRITE).unwrap().unwrap().capability.session, 2);
}

/// After a crash, no server remembers which capabilities were granted.
#[test]
fn sessions_of_before_a_restart_end_when_data_servers_know() {
    let mut fs = cluster();
    let ino = big(&mut fs, ONE, "big");
    delegate(&mut fs, ONE, ino, Access::WRITE).unwrap();
    fs.checkpoint();
    let mut fs = fs.crash();
    fs.lazy = true;
    fs.input(Input::Tick);
    outlast(&mut fs, OTHER);
    assert_eq!(said(&fs), [(1, vec![])]);
    assert!(!fs.expired.contains(&ONE));
    fs.run_until_idle();
    assert!(fs.expired.contains(&ONE));
}

#[test]
fn stream_in_data_pool_is_delegated_without_layout() {
    let fs = &mut pool();
    let ino = big(fs, ONE, "big");
    let given = delegate(fs, ONE, ino, Access::WRITE).unwrap().expect("it is in the data pool");
    let Capability { ino: of, access, session, since, .. } = given.capability;
    assert_eq!((given.layout, given.limited), (None, false));
    assert_eq!((of, access, session, since), (ino, Access::WRITE, 1, 0));
    assert_eq!(delegate(fs, ONE, ino, Access::EXEC), Ok(None), "there are no datafiles to make");
    assert_eq!(delegate(fs, OTHER, ino, Access::READ), Err(Errno::EBADF));
    ask(fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("big") }).unwrap();
    ask(fs, OTHER, Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
    assert_eq!(delegate(fs, OTHER, ino, Access::WRITE), Err(Errno::EBADF));
    assert!(delegate(fs, OTHER, ino, Access::READ).unwrap().is_some());
    // Writes in the pool would not remove it.
    let set = Request::SetXattr {
        ino,
        name: (*b"security.capability").into(),
        value: (*b"all").into(),
        mode: XattrMode::Any,
        kill_sgid: false,
    };
    assert_eq!(ask(fs, OTHER, set.clone()), Err(Errno::ETXTBSY));
    assert_eq!(ask(fs, ONE, set), Ok(Reply::Done));
    delegate(fs, ONE, ino, Access::WRITE).unwrap();
    assert_eq!(ask(fs, ONE, Request::ListXattr { ino }), Ok(Reply::Bytes(Default::default())));
    let set = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
    ask(fs, ONE, Request::SetAttr { ino, set }).unwrap();
    assert_eq!(delegate(fs, ONE, ino, Access::WRITE), Err(Errno::EPERM));
    assert!(delegate(fs, ONE, ino, Access::READ).unwrap().is_some());
}

#[test]
fn quota_limits_writes_in_data_pool() {
    let fs = &mut pool();
    let ino = big(fs, ONE, "big");
    let (name, value) = ((*b"user.espalier.quota.max_bytes").into(), (*b"1000").into());
    let (mode, kill_sgid) = (XattrMode::Any, false);
    ask(fs, ONE, Request::SetXattr { ino: Ino::ROOT, name, value, mode, kill_sgid }).unwrap();
    assert!(delegate(fs, ONE, ino, Access::WRITE).unwrap().unwrap().limited);
}

#[test]
fn right_to_write_in_data_pool_survives_a_crash_as_size_dirty() {
    let mut fs = pool();
    let ino = big(&mut fs, ONE, "big");
    // The last close ends it.
    ask(&mut fs, ONE, Request::Release { ino }).unwrap();
    for _ in 0..40 {
        for client in [ONE, OTHER] {
            fs.input(Input::Heard { client });
        }
        fs.input(Input::Tick);
    }
    fs.lazy = true;
    let open = Request::Open { ino, how: open_how(Access::WRITE, false) };
    let id = fs.send_from(ONE, &ROOT_CALLER, open);
    assert!(!fs.answers.contains_key(&id), "the file is not durably size-dirty yet");
    fs.run_until_idle();
    fs.lazy = false;
    assert!(fs.answers.remove(&id).unwrap().is_ok());
    delegate(&mut fs, ONE, ino, Access::WRITE).unwrap();
    fs.disk.store().stream_write(ino, 0, &[1; 500]).unwrap();
    fs.disk.store().stream_sync(ino).unwrap();
    let mut fs = fs.crash();
    reclaim(&mut fs, OTHER);
    assert_eq!(counted(&mut fs), 500);
}

/// Without data servers as with them: other clients get what the session held only when nothing of
/// the client's can take effect in the pool.
#[test]
fn client_is_fenced_before_its_session_ends() {
    let fs = &mut pool();
    let ino = big(fs, ONE, "big");
    delegate(fs, ONE, ino, Access::WRITE).unwrap();
    ask(fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("big") }).unwrap();
    ask(fs, OTHER, Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
    let owner = LockOwner { flock: true, number: 1 };
    let lock = Lock { owner, kind: LockKind::Exclusive, pid: 1, first: 0, last: u64::MAX };
    let request = Request::Lock { ino, lock, wait: None };
    assert_eq!(ask(fs, ONE, request.clone()), Ok(Reply::Done));
    fs.lazy = true;
    outlast(fs, OTHER);
    assert_eq!(fenced(fs), [ONE]);
    assert_eq!(ask(fs, OTHER, request.clone()), Err(Errno::EAGAIN));
    // A failed one is repeated with the next tick.
    let at = fs.waiting.iter().position(|(_, io)| matches!(io, Io::Admit { .. })).unwrap();
    let (id, _) = fs.waiting.remove(at);
    fs.input(Input::Done { id, result: Err(Errno::EIO) });
    assert_eq!(fenced(fs), []);
    fs.input(Input::Heard { client: OTHER });
    fs.input(Input::Tick);
    assert_eq!((fenced(fs), &fs.expired[..]), (vec![ONE], &[][..]));
    fs.run_until_idle();
    assert_eq!(fs.expired, [ONE]);
    fs.lazy = false;
    assert_eq!(ask(fs, OTHER, request), Ok(Reply::Done));
    // A client that leaves is no exception: the driver finds that it has unregistered.
    delegate(fs, OTHER, ino, Access::WRITE).unwrap();
    fs.lazy = true;
    fs.input(Input::Leave { client: OTHER });
    assert_eq!(fenced(fs), [OTHER]);
}

#[test]
fn client_without_delegation_is_not_fenced() {
    let fs = &mut pool();
    big(fs, ONE, "big");
    fs.lazy = true;
    fs.input(Input::Leave { client: ONE });
    assert_eq!(fenced(fs), []);
}

/// A client that is cut off from the restarted server goes on writing until it is fenced. Then the
/// file is measured, although nothing of the client's is left to close.
#[test]
fn files_of_unreclaimed_sessions_are_measured_after_fencing() {
    let mut fs = pool();
    let ino = big(&mut fs, ONE, "big");
    delegate(&mut fs, ONE, ino, Access::WRITE).unwrap();
    let mut fs = fs.crash();
    reclaim(&mut fs, OTHER);
    fs.lazy = true;
    // As long as the client may have the file open, it stays size-dirty.
    for _ in 0..40 {
        for client in [ONE, OTHER] {
            fs.input(Input::Heard { client });
        }
        fs.input(Input::Tick);
        fs.run_until_idle();
    }
    outlast(&mut fs, OTHER);
    assert_eq!(fenced(&fs), [ONE]);
    fs.disk.store().stream_write(ino, 0, &[1; 500]).unwrap();
    fs.run_until_idle();
    assert!(fs.expired.contains(&ONE));
    fs.lazy = false;
    fs.input(Input::Tick);
    assert_eq!(counted(&mut fs), 500);
}
