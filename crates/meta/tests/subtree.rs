//! A client restricted to a subtree reaches nothing else, whatever it requests.

use crate::harness::{self, Engine, Harness, ROOT_CALLER, name, open_how};
use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;

const ADMIN: ClientId = ClientId(100);
const GUEST: ClientId = ClientId(101);

struct SubtreeWorld {
    fs: Harness,
    next: u64,
}

impl SubtreeWorld {
    fn ask(&mut self, from: ClientId, request: Request) -> Result<Reply, Errno> {
        self.next += 1;
        let id = RequestId(self.next);
        self.fs.input(Input::Request {
            from,
            id,
            below: id,
            follows: Vec::new(),
            caller: ROOT_CALLER,
            request,
        });
        self.fs.run_until_idle();
        self.fs.answers.remove(&self.next).unwrap()
    }

    fn find(&mut self, from: ClientId, dir: Ino, file: &str) -> Entry {
        match self.ask(from, Request::Lookup { dir, name: name(file) }) {
            Ok(Reply::Entry(entry)) => entry,
            other => panic!("{file}: {other:?}"),
        }
    }

    fn make(&mut self, dir: Ino, file: &str, node: NewNode) -> Entry {
        let (perm, umask, open, exclusive) = (0o777, 0, None, true);
        match self.ask(
            ADMIN,
            Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None },
        ) {
            Ok(Reply::Entry(entry)) => entry,
            other => panic!("{file}: {other:?}"),
        }
    }

    fn connect(&mut self, client: ClientId) {
        self.fs.input(Input::Connect { client, leases: true, resumes: false });
        self.fs.run_until_idle();
    }

    fn enter(&mut self, path: &[&str]) -> Result<(), Errno> {
        self.connect(GUEST);
        self.fs.entered.clear();
        self.fs.input(Input::Enter { client: GUEST, path: path.iter().map(|text| name(text)).collect() });
        self.fs.run_until_idle();
        assert_eq!((self.fs.entered.len(), self.fs.entered[0].0), (1, GUEST));
        self.fs.entered[0].1
    }
}

fn config() -> Config {
    Config { session_ms: Some(60_000), acknowledge: Acknowledge::Written, ..harness::config() }
}

/// All requests about one inode, or two.
fn requests(ino: Ino, within: Ino) -> Vec<Request> {
    let file = || name("x");
    let how = open_how(Access::READ, false);
    let (node, exclusive) = (NewNode::Regular, true);
    let lock = Lock {
        owner: LockOwner { flock: true, number: 1 },
        kind: LockKind::Shared,
        first: 0,
        last: u64::MAX,
        pid: 1,
    };
    let flags = RenameFlags::empty();
    let value: Box<[u8]> = [1].into();
    let xattr: Box<[u8]> = b"user.x".as_slice().into();
    let (mode, level) = (XattrMode::Any, CopyLevel { from: ino, to: within, after: 0 });
    vec![
        Request::Lookup { dir: ino, name: file() },
        Request::GetAttr { ino },
        Request::Parent { dir: ino },
        Request::SetAttr { ino, set: SetAttr { perm: Some(0), ..SetAttr::default() } },
        Request::ReadLink { ino },
        Request::Create {
            dir: ino,
            name: file(),
            node,
            perm: 0,
            umask: 0,
            open: Some(how),
            exclusive,
            writeback: None,
        },
        Request::TmpFile { dir: ino, perm: 0, umask: 0 },
        Request::Link { ino, dir: within, name: file() },
        Request::Link { ino: within, dir: ino, name: file() },
        Request::Unlink { dir: ino, name: file(), time: None },
        Request::RmDir { dir: ino, name: file(), time: None },
        Request::Rename { from_dir: ino, from: file(), to_dir: within, to: file(), flags, time: None },
        Request::Rename { from_dir: within, from: name("dir"), to_dir: ino, to: file(), flags, time: None },
        Request::Open { ino, how },
        Request::Read { ino, offset: 0, size: 1, noatime: false },
        Request::Write { ino, offset: 0, data: vec![1].into(), kill_suid_gid: false, time: None },
        Request::Allocate { ino, offset: 0, length: 1, mode: AllocateMode::empty() },
        Request::Seek { ino, offset: 0, what: SeekWhat::Data },
        Request::Fsync { ino },
        Request::ReadDir { dir: ino, after: 0, limit: 10, plus: true },
        Request::Access { ino, want: Access::READ },
        Request::SetXattr { ino, name: xattr.clone(), value, mode, kill_sgid: false },
        Request::GetXattr { ino, name: xattr.clone() },
        Request::ListXattr { ino },
        Request::RemoveXattr { ino, name: xattr },
        Request::StatFs { ino },
        Request::Extend { ino, offset: 0, length: 1, from: None, discards: false, acknowledged: false },
        Request::Extend {
            ino: within,
            offset: 0,
            length: 1,
            from: Some((ino, 0)),
            discards: false,
            acknowledged: false,
        },
        Request::RemoveTree { dir: ino },
        Request::CopyTree(CopyTree { levels: vec![level], preserve: false, umask: 0 }),
        Request::Lock { ino, lock, wait: None },
        Request::TestLock { ino, lock },
    ]
}

#[test]
fn restricted_client_reaches_only_entries_below_its_root() {
    let mut world = SubtreeWorld { fs: Harness::on(Engine::Local, config()), next: 0 };
    world.connect(ADMIN);
    let projects = world.make(Ino::ROOT, "projects", NewNode::Directory).attr.ino;
    let root = world.make(projects, "a", NewNode::Directory).attr.ino;
    let dir = world.make(root, "dir", NewNode::Directory).attr.ino;
    let secret = world.make(Ino::ROOT, "secret", NewNode::Directory);
    let file = world.make(secret.attr.ino, "x", NewNode::Regular);
    assert_eq!(world.enter(&["projects", "none"]), Err(Errno::ENOENT));
    assert_eq!(world.enter(&["secret", "x"]), Err(Errno::ENOTDIR));
    assert_eq!(world.enter(&["projects", "a"]), Ok(()));
    assert_eq!(world.fs.meta.root_of(GUEST), Some(root));
    let outside = [Ino::ROOT, projects, secret.attr.ino, file.attr.ino, Ino(1 << 40)];
    let refused = |world: &mut SubtreeWorld, inos: &[Ino]| {
        for request in inos.iter().flat_map(|ino| requests(*ino, root)) {
            assert_eq!(world.ask(GUEST, request.clone()), Err(Errno::ESTALE), "{request:?}");
        }
    };
    refused(&mut world, &outside);
    // A directory inside is unreachable too until it has been looked up.
    refused(&mut world, &[dir]);
    assert_eq!(world.find(GUEST, root, "dir").attr.ino, dir);
    // File handles reach what is inside.
    let by_number = |ino| Request::Find { ino, kind: None, open: None };
    for ino in outside {
        assert_eq!(world.ask(GUEST, by_number(ino)), Err(Errno::ESTALE), "{ino}");
    }
    let deep = world.make(dir, "deep", NewNode::Directory).attr.ino;
    for (request, ino) in [
        (by_number(deep), deep),
        (Request::Parent { dir: deep }, dir),
        (Request::Parent { dir }, root),
        (Request::Parent { dir: root }, root),
        (by_number(root), root),
    ] {
        let reply = world.ask(GUEST, request.clone());
        assert!(matches!(&reply, Ok(Reply::Entry(entry)) if entry.attr.ino == ino), "{request:?}: {reply:?}");
    }
    world.ask(ADMIN, Request::RmDir { dir, name: name("deep"), time: None }).unwrap();
    world.ask(GUEST, Request::ReadDir { dir, after: 0, limit: 10, plus: true }).unwrap();
    let (flags, to) = (RenameFlags::empty(), name("moved"));
    let rename = Request::Rename { from_dir: root, from: name("dir"), to_dir: root, to, flags, time: None };
    world.ask(GUEST, rename).unwrap();
    assert_eq!(world.ask(GUEST, Request::RemoveTree { dir: root }), Err(Errno::EBUSY));
    let level = CopyLevel { from: dir, to: root, after: 0 };
    let copy = CopyTree { levels: vec![level], preserve: false, umask: 0 };
    assert_eq!(world.ask(GUEST, Request::CopyTree(copy)), Err(Errno::EOPNOTSUPP));
    // It may use a name that another client makes inside.
    let link = Request::Link { ino: file.attr.ino, dir: root, name: name("linked") };
    world.ask(ADMIN, link).unwrap();
    let found = world.find(GUEST, root, "linked");
    assert_eq!(found.attr.ino, file.attr.ino);
    world.ask(GUEST, Request::GetAttr { ino: found.attr.ino }).unwrap();
    world.ask(GUEST, Request::ForgetAll { inodes: vec![(found.attr.ino, 1)], released: vec![] }).unwrap();
    refused(&mut world, &outside);

    // After a restart it holds what it can prove.
    let own = world.find(GUEST, root, "moved");
    let has = |entry: &Entry, lookup_token| Held {
        ino: entry.attr.ino,
        location: entry.location,
        lookups: 1,
        opens: 1,
        lookup_token,
        opened: lookup_token,
        exclusive: false,
    };
    world.fs = world.fs.crash();
    world.connect(ADMIN);
    world.ask(ADMIN, Request::Reclaim { held: vec![], last: true, again: vec![] }).unwrap();
    world.connect(GUEST);
    assert_eq!(world.enter(&["projects", "a"]), Ok(()));
    let held =
        vec![has(&own, own.reclaim_token), has(&secret, secret.reclaim_token), has(&file, own.reclaim_token)];
    world.ask(GUEST, Request::Reclaim { held, last: true, again: vec![] }).unwrap();
    refused(&mut world, &outside);
    world.ask(GUEST, Request::GetAttr { ino: own.attr.ino }).unwrap();
    world.ask(GUEST, Request::GetAttr { ino: root }).unwrap();
    // Other clients are not restricted, nor is the machine.
    let enter = Request::Enter { client: ADMIN, path: [name("secret")].into() };
    assert_eq!(world.ask(GUEST, enter), Err(Errno::EINVAL));
    world.ask(ADMIN, Request::GetAttr { ino: Ino::ROOT }).unwrap();
    assert_eq!(world.fs.fsck(), []);
}
