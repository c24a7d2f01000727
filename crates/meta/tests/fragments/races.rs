//! Operations on a directory while it splits, and crashes during changes of all fragments.

use std::collections::BTreeMap;

use super::routed::*;
use crate::harness::{Harness, ROOT_CALLER, Ranks, config, name};
use espalier_meta::{Acknowledge, Config, Input, PeerMessage, Revocation};
use espalier_proto::*;
use fastrand::Rng;

/// A request in progress: its rank, its number there, and the request before it was routed.
struct Sent(usize, u64, Request);

impl Routed {
    fn send(&mut self, request: Request) -> Sent {
        let mut routed = request.clone();
        self.route(&mut routed);
        let at = usize::from(routed.rank().0);
        Sent(at, self.fs.0[at].send(&ROOT_CALLER, routed), request)
    }

    fn finish(&mut self) {
        self.fs.deliver();
        for _ in 0..20 {
            self.fs.tick();
        }
    }

    /// The reply to a request; routes it again if needed.
    fn reply(&mut self, Sent(at, id, request): Sent) -> Result<Reply, Errno> {
        match self.fs.0[at].answers.remove(&id).unwrap_or_else(|| panic!("no answer: {request:?}")) {
            Ok(Reply::Fragments(_) | Reply::Misrouted { .. } | Reply::Relocated { .. }) => self.ask(request),
            reply => reply,
        }
    }

    /// Delivers messages in any order that connections permit.
    fn deliver_shuffled(&mut self, random: &mut Rng, messages: usize) {
        for _ in 0..messages {
            let full: Vec<usize> = (0..4).filter(|rank| !self.fs.0[*rank].peers.is_empty()).collect();
            let Some(from) = random.choice(full) else { return };
            let peers = &mut self.fs.0[from].peers;
            let to = peers[random.usize(..peers.len())].0;
            let first = peers.iter().position(|(other, _)| *other == to).unwrap();
            let (_, message) = peers.remove(first);
            self.fs.0[usize::from(to.0)].input(Input::Peer { from: Rank(from as u16), message });
        }
    }

    /// Delivers messages in any order that connections permit, and completes I/O in any order.
    fn deliver_between_io(&mut self, random: &mut Rng, steps: usize) {
        for _ in 0..steps {
            let waits = |host: &Harness| !host.waiting.is_empty();
            let busy: Vec<usize> = (0..4).filter(|rank| waits(&self.fs.0[*rank])).collect();
            match random.choice(busy) {
                Some(rank) if random.bool() => drop(self.fs.0[rank].run_one()),
                None if self.fs.0.iter().all(|host| host.peers.is_empty()) => return,
                _ => self.deliver_shuffled(random, 1),
            }
        }
    }

    /// Delivers this many messages. Returns true if there are fewer.
    fn deliver_some(&mut self, messages: usize) -> bool {
        (0..messages).any(|_| !self.fs.deliver_one())
    }
}

#[test]
fn operations_are_done_once_while_the_directory_splits() {
    for seed in 0..600 {
        let random = &mut Rng::with_seed(seed);
        let (servers, messages) = (if seed % 2 == 0 { b"1" } else { b"2" }, random.usize(..120));
        let (mut fs, dir, mut files) = if seed % 3 == 0 { full_dir_on_disk() } else { full_dir() };
        let far = fs.fs.mkdir_at(3, Ino::ROOT, "other", 0o777);
        fs.make_files(far, &names("far", 4));
        let linked = fs.make(far, "again", NewNode::Regular);
        fs.ask(set_xattr(dir, "user.espalier.dir_servers", servers)).unwrap();
        fs.map(dir);
        let rename = |from: (Ino, &str), to: (Ino, &str)| Request::Rename {
            from_dir: from.0,
            from: name(from.1),
            to_dir: to.0,
            to: name(to.1),
            flags: RenameFlags::empty(),
            time: None,
        };
        let mut requests = vec![
            unlink(dir, "file3"),
            unlink(dir, "linked"),
            rmdir(dir, "dir2"),
            rename((dir, "file4"), (dir, "file-four")),
            rename((dir, "dir4"), (dir, "dir-four")),
            rename((dir, "file5"), (far, "file5")),
            rename((dir, "dir5"), (far, "dir5")),
            rename((far, "far0"), (dir, "file6")),
            Request::Link { ino: linked, dir, name: name("again") },
            set_perm(dir, 0o711),
            Request::ReadDir { dir, after: 0, limit: 100, plus: true },
            Request::GetAttr { ino: dir },
        ];
        files.retain(|file| {
            !["file3", "linked", "dir2", "file4", "dir4", "file5", "dir5"].contains(&&file[..])
        });
        files.extend(["file-four", "dir-four", "again"].map(String::from));
        for new in names("new", 6) {
            requests.push(create(dir, &new, NewNode::Regular));
            requests.push(create(dir, &format!("dir-{new}"), NewNode::Directory));
            files.extend([format!("dir-{new}"), new]);
        }
        let split = fs.send(set_xattr(dir, "user.espalier.dir_split", b"4"));
        fs.deliver_shuffled(random, messages);
        random.shuffle(&mut requests);
        let sent: Vec<Sent> = requests.into_iter().map(|request| fs.send(request)).collect();
        fs.deliver_shuffled(random, usize::MAX);
        fs.finish();
        fs.reply(split).unwrap();
        for request in sent {
            let text = format!("seed {seed}: {:?}", request.2);
            let reply = fs.reply(request);
            assert!(reply.is_ok(), "{text}: {reply:?}");
        }
        assert_eq!(fs.map(dir).fragments().count(), 4);
        fs.assert_names(dir, &files);
        for (_, fragment) in fs.map(dir).fragments() {
            assert_eq!(fs.fs.attr(fragment).perm, 0o711, "seed {seed}");
        }
        fs.fs.fsck();
    }
}

#[test]
fn split_survives_crashes_of_several_ranks() {
    for seed in 0..300 {
        let random = &mut Rng::with_seed(seed);
        let (mut fs, dir, mut files) = if seed % 2 == 0 { full_dir_on_disk() } else { full_dir() };
        let split = set_xattr(dir, "user.espalier.dir_split", b"4");
        fs.send(split.clone());
        for _ in 0..3 {
            let messages = random.usize(..40);
            fs.deliver_shuffled(random, messages);
            fs.fs.crash(random.u16(..RANKS), random.bool());
        }
        fs.finish();
        fs.assert_names(dir, &files);
        fs.ask(split).unwrap();
        files.push("last".into());
        fs.make(dir, "last", NewNode::Regular);
        assert_eq!(fs.map(dir).fragments().count(), 4, "seed {seed}");
        fs.assert_names(dir, &files);
        fs.fs.fsck();
    }
}

#[test]
fn new_fragment_prepares_a_step_of_a_split_only_after_the_step_before() {
    let (mut fs, dir, files) = full_dir();
    let (home, new) = (usize::from(HOME), Rank(HOME + 1));
    fs.send(set_xattr(dir, "user.espalier.dir_split", b"4"));
    let mut late = Vec::new();
    for _ in 0..200 {
        // A decision leaves when it is durable; the questions of the next step may overtake it.
        let is_late = |it: &mut (Rank, PeerMessage)| {
            it.0 == new && matches!(it.1, PeerMessage::Finish { vote: Some(_), .. })
        };
        late.extend(fs.fs.0[home].peers.extract_if(.., is_late));
        fs.fs.deliver_one();
    }
    assert_eq!(late.len(), 1);
    assert_eq!(fs.fs.0[usize::from(new.0)].meta.prepared_for(Rank(HOME)).count(), 1);
    fs.fs.0[home].peers.append(&mut late);
    fs.finish();
    assert_eq!(fs.map(dir).fragments().count(), 4);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn usage_reaches_a_new_fragment_before_the_decision_that_makes_it() {
    // The inodes of its names are at another rank.
    let (mut fs, dir) = Routed::with_dir();
    let far = fs.fs.mkdir_at(3, Ino::ROOT, "far", 0o777);
    let files = names("file", 12);
    for file in &files {
        let ino = fs.make(far, file, NewNode::Regular);
        let linked = fs.ask(Request::Link { ino, dir, name: name(file) });
        assert_eq!(fs.fs.found(linked).unwrap().nlink, 2);
    }
    (0..RANKS).for_each(|rank| drop(fs.ask(Request::SyncFs { rank: Rank(rank) }).unwrap()));
    fs.fs.send_usage();
    let expected = fs.fs.usage(dir);
    let (home, new) = (usize::from(HOME), Rank(HOME + 1));
    fs.send(set_xattr(dir, "user.espalier.dir_split", b"4"));
    let mut late = Vec::new();
    for round in 0..3 {
        for _ in 0..100 {
            let is_late = |it: &mut (Rank, PeerMessage)| {
                it.0 == new && matches!(it.1, PeerMessage::Finish { vote: Some(_), .. })
            };
            late.extend(fs.fs.0[home].peers.extract_if(.., is_late));
            fs.fs.deliver_one();
        }
        assert!(round > 0 || !late.is_empty(), "the split has begun");
        // It sends the new fragment what that counts of them.
        fs.fs.0[3].input(Input::Tick);
    }
    fs.fs.0[home].peers.append(&mut late);
    fs.finish();
    fs.settle();
    fs.fs.send_usage();
    assert_eq!(fs.fs.usage(dir), expected);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn steps_of_a_split_are_made_in_order_whenever_records_are_loaded() {
    for seed in 0..200 {
        let random = &mut Rng::with_seed(seed);
        let (mut fs, dir, mut files) = full_dir_on_disk();
        fs.fs.0.iter_mut().for_each(|host| host.shuffle = Some(random.fork()));
        fs.send(set_xattr(dir, "user.espalier.dir_split", b"4"));
        for _ in 0..3 {
            let steps = random.usize(..400);
            fs.deliver_between_io(random, steps);
            fs.fs.crash(random.u16(..RANKS), false);
            fs.fs.0.iter_mut().for_each(|host| host.shuffle = Some(random.fork()));
        }
        fs.deliver_between_io(random, usize::MAX);
        fs.fs.0.iter_mut().for_each(|host| host.shuffle = None);
        fs.finish();
        fs.fs.fsck();
        files.push("last".into());
        fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
        fs.make(dir, "last", NewNode::Regular);
        fs.assert_names(dir, &files);
        fs.fs.fsck();
    }
}

#[test]
fn transfer_goes_on_below_directories_that_are_not_in_memory() {
    let mut interrupted = 0;
    for messages in [20, 40, 60] {
        let mut fs = Routed::new();
        let above = fs.fs.mkdir_at(HOME, Ino::ROOT, "above", 0o777);
        let dir = fs.fs.mkdir_at(HOME, above, "dir", 0o777);
        // Its rank checks what is above each directory from now on.
        let fixed = fs.make(above, "fixed", NewNode::Regular);
        let set = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
        fs.ask(Request::SetAttr { ino: fixed, set }).unwrap();
        let files = names("file", 60);
        fs.make_files(dir, &files);
        fs.ask(Request::SyncFs { rank: Rank(HOME) }).unwrap();
        fs.send(set_xattr(dir, "user.espalier.dir_split", b"30"));
        fs.deliver_some(messages);
        fs.fs.0[usize::from(HOME)].checkpoint();
        fs.fs.crash(HOME, false);
        let is_split = |fs: &mut Routed| {
            let map = fs.map(dir);
            map.fragments().all(|(number, ino)| is_split_off(number, &map.hashes(ino)))
        };
        interrupted += u32::from(!is_split(&mut fs));
        fs.settle();
        assert!(is_split(&mut fs), "{messages} messages");
        fs.assert_names(dir, &files);
        fs.fs.fsck();
    }
    assert!(interrupted > 0);
}

#[test]
fn growing_directory_is_seldom_frozen_while_a_server_is_down() {
    // Its names move to another server, but it has some of their inodes.
    let (mut fs, dir, mut files) = full_dir();
    let (home, down) = (usize::from(HOME), HOME + 2);
    let deliver = |fs: &mut Routed| {
        while fs.fs.0.iter().any(|host| !host.peers.is_empty()) {
            fs.fs.0.iter_mut().for_each(|host| host.peers.retain(|(to, _)| to.0 != down));
            fs.fs.deliver_one();
        }
    };
    fs.fs.0[home].send(&ROOT_CALLER, set_xattr(dir, "user.espalier.dir_split", b"4"));
    let (mut sent, mut waited) = (Vec::new(), 0);
    for tick in 0..60 {
        for at in 0..2 {
            let file = format!("new{tick}-{at}");
            sent.push(fs.send(create(dir, &file, NewNode::Regular)));
            files.push(file);
        }
        deliver(&mut fs);
        let Sent(_, last, _) = sent[sent.len() - 1];
        waited += u32::from(!fs.fs.0[home].answers.contains_key(&last));
        for host in fs.fs.0.iter_mut().filter(|host| host.config.rank.0 != down) {
            host.input(Input::Tick);
        }
        deliver(&mut fs);
    }
    // At most seven tries, after pauses of 1, 2, 4 ticks and so on, each of up to three ticks.
    assert!((1..=21).contains(&waited), "{waited}");
    fs.fs.connect();
    fs.finish();
    sent.into_iter().for_each(|request| drop(fs.reply(request).unwrap()));
    fs.settle();
    assert_eq!(fs.map(dir).fragments().count(), 4);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn directory_that_is_being_spread_is_removed_with_all_fragments() {
    for messages in 0..40 {
        let (mut fs, dir) = Routed::with_dir();
        fs.fs.mkdir_at(2, Ino::ROOT, "far", 0o777);
        fs.send(set_xattr(dir, "user.espalier.dir_servers", b"4"));
        fs.deliver_some(messages);
        let removal = if messages % 2 == 0 {
            fs.send(rmdir(Ino::ROOT, "dir"))
        } else {
            let (from, to) = (name("far"), name("dir"));
            let flags = RenameFlags::empty();
            fs.send(Request::Rename { from_dir: Ino::ROOT, from, to_dir: Ino::ROOT, to, flags, time: None })
        };
        fs.finish();
        assert_eq!(fs.reply(removal), Ok(Reply::Done), "{messages} messages");
        fs.fs.0[usize::from(HOME)].forget(dir);
        fs.finish();
        assert_eq!(fs.fs.ask(Request::GetAttr { ino: dir }), Err(Errno::ESTALE));
        let files = [0, 1, 2, 3].map(|rank| fs.fs.0[rank].meta.files());
        assert_eq!(files, [1, 0, 1, 0], "{messages} messages");
        fs.fs.fsck();
    }
}

/// Crashes each rank after each number of messages of an operation on a directory with fragments.
fn with_crashes(request: impl Fn(Ino) -> Request, check: impl Fn(&mut Routed, Ino, &FragmentMap)) {
    for (rank, is_power_failure) in (0..RANKS).flat_map(|rank| [(rank, false), (rank, true)]) {
        for messages in 0.. {
            let (mut fs, dir) = Routed::with_fragments();
            let map = fs.map(dir);
            for rank in 0..RANKS {
                fs.fs.ask(Request::SyncFs { rank: Rank(rank) }).unwrap();
            }
            fs.send(request(dir));
            let is_over = fs.deliver_some(messages);
            fs.fs.crash(rank, is_power_failure);
            fs.finish();
            check(&mut fs, dir, &map);
            fs.fs.fsck();
            if is_over {
                assert!(messages > 4, "{messages} messages");
                break;
            }
        }
    }
}

#[test]
fn fragments_have_the_same_permissions_after_a_crash() {
    with_crashes(
        |dir| set_perm(dir, 0o700),
        |fs, dir, map| {
            let perm = fs.fs.attr(dir).perm;
            assert!([0o700, 0o777].contains(&perm));
            for ino in map.others() {
                assert_eq!(fs.fs.attr(ino).perm, perm);
            }
        },
    );
}

#[test]
fn removal_of_all_fragments_survives_a_crash() {
    with_crashes(
        |_| rmdir(Ino::ROOT, "dir"),
        |fs, dir, map| {
            let is_there = fs.lookup(Ino::ROOT, "dir").is_ok();
            for ino in map.others() {
                assert_eq!(fs.fs.ask(Request::GetAttr { ino }).is_ok(), is_there);
            }
            if is_there {
                assert_eq!(fs.map(dir), *map);
                assert_eq!(fs.ask(rmdir(Ino::ROOT, "dir")), Ok(Reply::Done));
            }
            fs.fs.0[usize::from(HOME)].forget(dir);
        },
    );
}

/// A client that caches replies.
const CACHING: ClientId = ClientId(100);

/// Ranks that grant leases of 10 s to [`CACHING`], and a directory.
fn with_leases() -> (Routed, Ino) {
    let host = |rank| {
        let (session_ms, lease_ms, acknowledge) = (Some(60_000), Some(10_000), Acknowledge::Written);
        let (rank, ranks) = (Rank(rank), RANKS);
        Harness::with(Config { rank, ranks, session_ms, lease_ms, acknowledge, ..config() })
    };
    let mut fs = Routed { fs: Ranks((0..RANKS).map(host).collect()), maps: BTreeMap::new() };
    for (client, leases) in [(ClientId(1), false), (CACHING, true)] {
        fs.fs.0.iter_mut().for_each(|host| host.input(Input::Connect { client, leases, resumes: false }));
    }
    let dir = fs.fs.mkdir_at(HOME, Ino::ROOT, "dir", 0o777);
    (fs, dir)
}

#[test]
fn split_waits_until_leases_on_the_names_that_move_are_given_up() {
    let (mut fs, dir) = with_leases();
    let home = usize::from(HOME);
    let mut after = FragmentMap::new(dir, RANKS);
    let first = *after.to_cede(1).start();
    after.cede(1, Ino(1), first);
    let [stays, moves] = [(0, "stays"), (1, "moves")].map(|(number, tag)| name_in(&after, number, tag));
    fs.make_files(dir, &[stays.clone(), moves.clone()]);
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"2")).unwrap();
    let look = |fs: &mut Routed, file: &str| {
        let id = fs.fs.0[home].send_from(CACHING, &ROOT_CALLER, Request::Lookup { dir, name: name(file) });
        fs.fs.deliver();
        assert!(fs.fs.0[home].answers.remove(&id).is_some_and(|reply| reply.is_ok()), "{file}");
        assert!(fs.fs.0[home].leases[&id].0 > 0, "{file}");
    };
    [&stays, &moves].iter().for_each(|file| look(&mut fs, file));
    fs.make(dir, &name_in(&after, 1, "new"), NewNode::Regular);
    let mut revoked = Vec::new();
    while let Some(Revocation { client, number, lease }) = fs.fs.0[home].revocations.pop() {
        assert_eq!(fs.map(dir).version(), 0, "the split waits");
        revoked.push(lease);
        fs.fs.0[home].input(Input::Revoked { client, number });
        fs.fs.deliver();
    }
    assert_eq!(fs.map(dir).version(), 1);
    let of = |file: &str| Lease::Name { dir, name: name(file) };
    assert!(revoked.contains(&of(&moves)) && !revoked.contains(&of(&stays)), "{revoked:?}");
    fs.assert_names(dir, &[stays, moves, name_in(&after, 1, "new")]);
}

#[test]
fn split_revokes_leases_on_absent_names_that_move() {
    let (mut fs, dir) = with_leases();
    let home = usize::from(HOME);
    let mut after = FragmentMap::new(dir, RANKS);
    let first = *after.to_cede(1).start();
    after.cede(1, Ino(1), first);
    let [stays, moves] = [(0, "stays"), (1, "moves")].map(|(number, tag)| name_in(&after, number, tag));
    let look = |fs: &mut Routed, absent: &str| {
        let lookup = Request::Lookup { dir, name: name(absent) };
        let id = fs.fs.0[home].send_from(CACHING, &ROOT_CALLER, lookup);
        fs.fs.deliver();
        let reply = fs.fs.0[home].answers.remove(&id);
        assert!(matches!(reply, Some(Ok(Reply::Absent { .. }))), "{reply:?}");
        fs.fs.0[home].leases[&id].0
    };
    assert!(look(&mut fs, &stays) > 0 && look(&mut fs, &moves) > 0);
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"2")).unwrap();
    let files = names("file", 3);
    fs.make_files(dir, &files);
    let of = |absent: &str| Lease::Name { dir, name: name(absent) };
    let mut revoked = Vec::new();
    while let Some(Revocation { client, number, lease }) = fs.fs.0[home].revocations.pop() {
        if lease == of(&moves) {
            assert_eq!((fs.map(dir).version(), look(&mut fs, &moves)), (0, 0), "the split waits");
        }
        revoked.push(lease);
        fs.fs.0[home].input(Input::Revoked { client, number });
        fs.fs.deliver();
    }
    assert_eq!(fs.map(dir).version(), 1);
    assert!(revoked.contains(&of(&moves)) && !revoked.contains(&of(&stays)), "{revoked:?}");
    fs.assert_names(dir, &files);
}
