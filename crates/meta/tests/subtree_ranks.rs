//! A client restricted to a subtree that spans several ranks reaches nothing else, whatever it
//! requests of which rank.

use crate::harness::{self, Harness, ROOT_CALLER, name, open_how};
use espalier_meta::{Acknowledge, Config, Input, PeerMessage};
use espalier_proto::*;

const ADMIN: ClientId = ClientId(100);
const GUEST: ClientId = ClientId(101);
const DIRECTORY: FileType = FileType::Directory;

/// Ranks whose messages arrive at once.
struct Ranks {
    hosts: Vec<Harness>,
    next: u64,
    /// `Some`: decisions of transactions wait here instead of arriving.
    decisions: Option<Vec<(Rank, Rank, PeerMessage)>>,
}

impl Ranks {
    fn new() -> Self {
        let config = |rank| Config {
            session_ms: Some(60_000),
            acknowledge: Acknowledge::Written,
            rank: Rank(rank),
            ranks: 3,
            ..harness::config()
        };
        let hosts = (0..3).map(|rank| Harness::with(config(rank))).collect();
        let mut ranks = Self { hosts, next: 0, decisions: None };
        for rank in 0..3 {
            ranks.connect(rank, ADMIN);
            ranks.connect(rank, GUEST);
        }
        ranks
    }

    fn connect(&mut self, rank: usize, client: ClientId) {
        self.hosts[rank].input(Input::Connect { client, leases: false, resumes: false });
        self.hosts[rank].run_until_idle();
    }

    fn deliver(&mut self) {
        loop {
            let mut is_idle = true;
            for from in 0..self.hosts.len() {
                self.hosts[from].run_until_idle();
                for (to, message) in std::mem::take(&mut self.hosts[from].peers) {
                    is_idle = false;
                    let is_decision = matches!(message, PeerMessage::Finish { .. });
                    if let Some(decisions) = self.decisions.as_mut().filter(|_| is_decision) {
                        decisions.push((Rank(from as u16), to, message));
                        continue;
                    }
                    self.hosts[to.0 as usize].input(Input::Peer { from: Rank(from as u16), message });
                }
            }
            if is_idle {
                return;
            }
        }
    }

    /// Restricts the guest at each rank. Returns its root at each.
    fn enter(&mut self, path: &[&str]) -> Vec<Result<Ino, Errno>> {
        let path: Box<[Name]> = path.iter().map(|text| name(text)).collect();
        let enter = |rank: usize| {
            self.hosts[rank].input(Input::Enter { client: GUEST, path: path.clone() });
            self.deliver();
            let (client, entered) = self.hosts[rank].entered.pop().unwrap();
            assert_eq!((client, self.hosts[rank].entered.len()), (GUEST, 0));
            entered.map(|()| self.hosts[rank].meta.root_of(GUEST).unwrap())
        };
        (0..3).map(enter).collect()
    }

    fn ask_at(&mut self, rank: Rank, from: ClientId, request: Request) -> Result<Reply, Errno> {
        self.next += 1;
        let (id, at) = (RequestId(self.next), usize::from(rank.0));
        self.hosts[at].input(Input::Request {
            from,
            id,
            below: id,
            follows: Vec::new(),
            caller: ROOT_CALLER,
            request,
        });
        self.deliver();
        self.hosts[at].answers.remove(&self.next).expect("an answer")
    }

    /// Follows a reply to the rank that it names, as an honest client does.
    fn ask(&mut self, from: ClientId, request: Request) -> Result<Reply, Errno> {
        match self.ask_at(request.rank(), from, request)? {
            Reply::Remote { ino, kind, .. } => self.ask(from, find(ino, kind)),
            reply => Ok(reply),
        }
    }

    fn make(&mut self, from: ClientId, dir: Ino, file: &str, node: NewNode) -> Ino {
        let (name, open, exclusive) = (name(file), None, true);
        match self.ask(
            from,
            Request::Create { dir, name, node, perm: 0o777, umask: 0, open, exclusive, writeback: None },
        ) {
            Ok(Reply::Entry(entry)) => entry.attr.ino,
            other => panic!("{file}: {other:?}"),
        }
    }

    /// Makes a directory at a given rank.
    fn mkdir_at(&mut self, rank: u16, dir: Ino, file: &str) -> Ino {
        loop {
            let ino = self.make(ADMIN, dir, file, NewNode::Directory);
            if ino.rank() == Rank(rank) {
                return ino;
            }
            self.ask(ADMIN, Request::RmDir { dir, name: name(file), time: None }).unwrap();
        }
    }

    fn find_name(&mut self, dir: Ino, file: &str) -> Result<Ino, Errno> {
        match self.ask(GUEST, Request::Lookup { dir, name: name(file) })? {
            Reply::Entry(entry) => Ok(entry.attr.ino),
            other => panic!("{other:?}"),
        }
    }

    fn rename(&mut self, client: ClientId, from: (Ino, &str), to: (Ino, &str)) -> Result<Reply, Errno> {
        let ((from_dir, from), (to_dir, to)) = ((from.0, name(from.1)), (to.0, name(to.1)));
        self.ask(
            client,
            Request::Rename { from_dir, from, to_dir, to, flags: RenameFlags::empty(), time: None },
        )
    }
}

fn find(ino: Ino, kind: FileType) -> Request {
    Request::Find { ino, kind: Some(kind), open: None }
}

fn link(ino: Ino, dir: Ino, file: &str) -> Request {
    Request::Link { ino, dir, name: name(file) }
}

/// The tree: `root`, at rank 1, is `/outer/a`, where `outer` is at rank 2.
struct SubtreeTree {
    outer: Ino,
    root: Ino,
    /// Directories in `root`, one per rank.
    inside: [Ino; 3],
    /// Directories in the namespace's root, one per rank, each with a file.
    outside: [Ino; 3],
    secrets: [Ino; 3],
}

fn plant(fs: &mut Ranks) -> SubtreeTree {
    let outer = fs.mkdir_at(2, Ino::ROOT, "outer");
    let root = fs.mkdir_at(1, outer, "a");
    let inside = [0, 1, 2].map(|rank| fs.mkdir_at(rank, root, &format!("in{rank}")));
    let outside = [0, 1, 2].map(|rank| fs.mkdir_at(rank, Ino::ROOT, &format!("out{rank}")));
    let secrets = outside.map(|dir| fs.make(ADMIN, dir, "secret", NewNode::Regular));
    assert_eq!(fs.enter(&["outer", "a"]), [Ok(root); 3]);
    SubtreeTree { outer, root, inside, outside, secrets }
}

#[test]
fn a_restricted_client_uses_all_ranks_below_its_root() {
    let fs = &mut Ranks::new();
    let SubtreeTree { root, inside, .. } = plant(fs);
    for (rank, dir) in inside.into_iter().enumerate() {
        assert_eq!(fs.find_name(root, &format!("in{rank}")), Ok(dir));
        let file = fs.make(GUEST, dir, "file", NewNode::Regular);
        assert_eq!(file.rank(), Rank(rank as u16));
    }
    // At whichever rank these are made.
    for number in 0..6 {
        let dir = fs.make(GUEST, inside[0], &format!("{number}"), NewNode::Directory);
        fs.make(GUEST, dir, "deep", NewNode::Directory);
    }
    let moved = fs.find_name(inside[1], "file").unwrap();
    fs.rename(GUEST, (inside[1], "file"), (inside[2], "moved")).unwrap();
    fs.rename(GUEST, (inside[0], "0"), (root, "up")).unwrap();
    fs.ask(GUEST, link(moved, inside[0], "linked")).unwrap();
    fs.ask(GUEST, link(moved, root, "linked")).unwrap();
    fs.ask(GUEST, Request::Unlink { dir: inside[2], name: name("moved"), time: None }).unwrap();
    // Another session of it finds the file by its remaining name, at another rank.
    fs.ask(GUEST, Request::Unlink { dir: root, name: name("linked"), time: None }).unwrap();
    for rank in 0..3 {
        fs.hosts[rank].input(Input::Leave { client: GUEST });
        fs.connect(rank, GUEST);
    }
    assert_eq!(fs.enter(&["outer", "a"]), [Ok(root); 3]);
    assert_eq!(fs.find_name(root, "in0"), Ok(inside[0]));
    assert_eq!(fs.find_name(inside[0], "linked"), Ok(moved));
    let how = open_how(Access::READ, false);
    let open = Request::Find { ino: inside[2], kind: Some(DIRECTORY), open: None };
    fs.ask(GUEST, open).unwrap();
    let file = fs.find_name(inside[2], "file").unwrap();
    let found = fs.ask(GUEST, Request::Find { ino: file, kind: Some(FileType::Regular), open: Some(how) });
    assert!(matches!(found, Ok(Reply::Created(..))), "{found:?}");
    // The parent is not disclosed.
    let listing = fs.ask(GUEST, Request::ReadDir { dir: root, after: 0, limit: 99, plus: true });
    assert!(matches!(listing, Ok(Reply::Listing { parent, .. }) if parent == root), "{listing:?}");
}

#[test]
fn a_new_directory_is_found_before_its_rank_learns_the_decision() {
    let fs = &mut Ranks::new();
    let SubtreeTree { root, inside, .. } = plant(fs);
    fs.find_name(root, "in0").unwrap();
    let make = |fs: &mut Ranks, number: u32| {
        let node = NewNode::Directory;
        let (dir, name, open) = (inside[0], name(&format!("new{number}")), None);
        let made = Request::Create {
            dir,
            name,
            node,
            perm: 0o777,
            umask: 0,
            open,
            exclusive: true,
            writeback: None,
        };
        fs.ask_at(Rank(0), GUEST, made)
    };
    fs.decisions = Some(Vec::new());
    let remote = (0..9).find_map(|number| match make(fs, number) {
        Ok(Reply::Remote { ino, .. }) => Some(ino),
        _ => None,
    });
    let made = remote.expect("a directory at another rank");
    let request = find(made, DIRECTORY);
    let (id, at) = (RequestId(1_000), usize::from(made.rank().0));
    fs.hosts[at].input(Input::Request {
        from: GUEST,
        id,
        below: id,
        follows: Vec::new(),
        caller: ROOT_CALLER,
        request,
    });
    fs.deliver();
    assert!(!fs.hosts[at].answers.contains_key(&1_000), "{:?}", fs.hosts[at].answers);
    for (from, to, message) in fs.decisions.take().unwrap() {
        fs.hosts[usize::from(to.0)].input(Input::Peer { from, message });
    }
    fs.deliver();
    let found = fs.hosts[at].answers.remove(&1_000);
    assert!(matches!(&found, Some(Ok(Reply::Entry(entry))) if entry.attr.ino == made), "{found:?}");
}

#[test]
fn nothing_outside_is_reached_by_its_number() {
    let fs = &mut Ranks::new();
    let SubtreeTree { outer, root, inside, outside, secrets } = plant(fs);
    for (rank, dir) in inside.into_iter().enumerate() {
        fs.find_name(root, &format!("in{rank}")).unwrap();
        fs.make(GUEST, dir, "file", NewNode::Regular);
    }
    let dirs = [Ino::ROOT, outer].into_iter().chain(outside);
    for ino in dirs.chain(secrets).chain([1, 2].map(|rank| Ino(Ino::none_of(Rank(rank)).0 + 999))) {
        let stale = |fs: &mut Ranks, rank, request: Request| {
            let reply = fs.ask_at(rank, GUEST, request.clone());
            assert_eq!(reply, Err(Errno::ESTALE), "{request:?} at {rank}");
        };
        let how = Some(open_how(Access::READ, false));
        for kind in [None, Some(DIRECTORY), Some(FileType::Regular)] {
            stale(fs, ino.rank(), Request::Find { ino, kind, open: None });
            stale(fs, ino.rank(), Request::Find { ino, kind, open: how });
        }
        stale(fs, ino.rank(), Request::GetAttr { ino });
        stale(fs, ino.rank(), Request::Lookup { dir: ino, name: name("secret") });
        // A request to one rank may name an inode of another.
        for (rank, dir) in inside.into_iter().enumerate() {
            let (rank, flags, new) = (Rank(rank as u16), RenameFlags::empty(), || name("new"));
            stale(fs, rank, link(ino, dir, "new"));
            let (from, to) = ((dir, name("file")), (ino, new()));
            stale(
                fs,
                rank,
                Request::Rename { from_dir: from.0, from: from.1, to_dir: to.0, to: to.1, flags, time: None },
            );
            stale(fs, rank, link(dir, ino, "new"));
            stale(fs, rank, Request::GetAttr { ino });
        }
        let (from, to) = ((ino, name("secret")), (inside[0], name("new")));
        let rename = Request::Rename {
            from_dir: from.0,
            from: from.1,
            to_dir: to.0,
            to: to.1,
            flags: RenameFlags::empty(),
            time: None,
        };
        stale(fs, ino.rank(), rename);
    }
    // Other clients are not restricted.
    fs.ask(ADMIN, find(secrets[1], FileType::Regular)).unwrap();
    fs.ask(ADMIN, link(secrets[1], outside[2], "linked")).unwrap();
    // The guest may use a name inside.
    fs.ask(ADMIN, link(secrets[1], inside[2], "linked")).unwrap();
    assert_eq!(fs.find_name(inside[2], "linked"), Ok(secrets[1]));
}

#[test]
fn inode_moved_out_of_subtree_is_reached_only_by_holds() {
    let fs = &mut Ranks::new();
    let SubtreeTree { root, inside, outside, .. } = plant(fs);
    assert_eq!(fs.find_name(root, "in2"), Ok(inside[2]));
    let (near, far) = (fs.mkdir_at(2, inside[2], "near"), fs.mkdir_at(0, inside[2], "far"));
    let file = fs.make(ADMIN, far, "file", NewNode::Regular);
    fs.rename(ADMIN, (root, "in2"), (outside[1], "in2")).unwrap();
    // As with one rank: the guest may use what it holds, and what it finds from there.
    assert_eq!(fs.find_name(inside[2], "near"), Ok(near));
    // Another rank does not know of the hold.
    assert_eq!(fs.find_name(inside[2], "far"), Err(Errno::ESTALE));
    assert_eq!(fs.ask(GUEST, find(file, FileType::Regular)), Err(Errno::ESTALE));
    assert_eq!(fs.ask(GUEST, link(file, inside[2], "file")), Err(Errno::ESTALE));
    fs.find_name(root, "in0").unwrap();
    fs.make(GUEST, inside[0], "file", NewNode::Regular);
    assert_eq!(fs.rename(GUEST, (inside[0], "file"), (inside[2], "file")), Err(Errno::ESTALE));
    let forget = Request::ForgetAll { inodes: vec![(inside[2], 9), (near, 9)], released: vec![] };
    fs.ask_at(Rank(2), GUEST, forget).unwrap();
    for ino in [inside[2], near] {
        assert_eq!(fs.ask(GUEST, find(ino, DIRECTORY)), Err(Errno::ESTALE));
        assert_eq!(fs.ask(GUEST, Request::GetAttr { ino }), Err(Errno::ESTALE));
    }
    fs.rename(ADMIN, (outside[1], "in2"), (inside[0], "back")).unwrap();
    assert_eq!(fs.find_name(inside[0], "back"), Ok(inside[2]));
    assert_eq!(fs.find_name(inside[2], "far"), Ok(far));
}

#[test]
fn a_root_is_a_directory_wherever_it_lies() {
    let fs = &mut Ranks::new();
    let SubtreeTree { root, inside, outside, .. } = plant(fs);
    assert_eq!(fs.enter(&["outer", "none"]), [Err(Errno::ENOENT); 3]);
    assert_eq!(fs.enter(&["out1", "secret"]), [Err(Errno::ENOTDIR); 3]);
    assert_eq!(fs.enter(&["out2", "secret", "more"]), [Err(Errno::ENOTDIR); 3]);
    // A different root: what is held from the old one stays reachable until it is forgotten.
    fs.find_name(root, "in0").unwrap();
    assert_eq!(fs.enter(&["out0"]), [Ok(outside[0]); 3]);
    fs.find_name(outside[0], "secret").unwrap();
    assert_eq!(fs.ask(GUEST, Request::GetAttr { ino: root }), Err(Errno::ESTALE));
    fs.ask(GUEST, Request::GetAttr { ino: inside[0] }).unwrap();
    assert_eq!(fs.ask(GUEST, find(inside[1], DIRECTORY)), Err(Errno::ESTALE));
}

#[test]
fn of_many_names_one_inside_will_do() {
    let fs = &mut Ranks::new();
    let SubtreeTree { root, inside, secrets, .. } = plant(fs);
    for number in 0..1200 {
        let dir = fs.mkdir_at(0, Ino::ROOT, &format!("{number}"));
        fs.ask(ADMIN, link(secrets[2], dir, "linked")).unwrap();
    }
    assert_eq!(fs.find_name(root, "in1"), Ok(inside[1]));
    assert_eq!(fs.ask(GUEST, find(secrets[2], FileType::Regular)), Err(Errno::ESTALE));
    // It has the largest inode number.
    let dir = fs.mkdir_at(2, inside[1], "last");
    assert_eq!(fs.find_name(inside[1], "last"), Ok(dir));
    fs.ask(ADMIN, link(secrets[2], dir, "linked")).unwrap();
    assert_eq!(fs.ask(GUEST, link(secrets[2], inside[1], "another")).map(drop), Ok(()));
    assert_eq!(fs.find_name(dir, "linked"), Ok(secrets[2]));
}
