//! Balancers inside the ranks: policy, decisions, log.

mod subtrees;

use crate::harness::{Harness, ROOT_CALLER, Ranks, name, user};
use espalier_meta::*;
use espalier_proto::*;

fn attribute(name: &[u8]) -> Box<[u8]> {
    name.into()
}

fn command_as(fs: &mut Ranks, caller: &Caller, ino: Ino, command: &BalancerCommand) -> Result<Reply, Errno> {
    let (name, value) = (attribute(b"user.espalier.balancer"), encode(command));
    let (mode, kill_sgid) = (XattrMode::Any, false);
    fs.ask_as(caller, Request::SetXattr { ino, name, value: value.into(), mode, kill_sgid })
}

fn policy(version: u64, text: &str) -> StoredPolicy {
    let (name, text, who, why) = ("test".into(), text.into(), "tester".into(), "to test".into());
    StoredPolicy { version, name, text, every_s: 10, who, why, time: Time::default() }
}

fn set(fs: &mut Ranks, version: u64, text: &str) -> Result<Reply, Errno> {
    command_as(fs, &ROOT_CALLER, Ino::ROOT, &BalancerCommand::Set(policy(version, text)))
}

fn undo(fs: &mut Ranks) -> Result<Reply, Errno> {
    command_as(fs, &ROOT_CALLER, Ino::ROOT, &BalancerCommand::Undo { who: "tester".into() })
}

fn report(fs: &mut Ranks) -> BalancerReport {
    let name = attribute(b"user.espalier.balancer");
    let reply = fs.ask(Request::GetXattr { ino: Ino::ROOT, name });
    let Ok(Reply::Bytes(value)) = reply else { panic!("{reply:?}") };
    decode(&value).unwrap()
}

fn seconds_pass(fs: &mut Ranks, seconds: u64) {
    for _ in 0..seconds {
        for host in &mut fs.0 {
            host.uptime_ms += 1000;
            host.now.secs += 1;
        }
        fs.tick();
    }
}

/// The decision that a rank asks its driver for.
fn asked(host: &mut Harness) -> Option<(IoId, DecisionRequest)> {
    assert!(host.decisions.len() <= 1, "one at a time");
    host.decisions.pop()
}

fn decision(verdict: Verdict, saved: u8) -> BalancerDecision {
    BalancerDecision { verdict, held_back: String::new(), saved: vec![saved] }
}

/// Answers the decision that a rank waits for, after at most `every` and a heartbeat.
fn decide(fs: &mut Ranks, rank: usize, verdict: Verdict) -> DecisionRequest {
    for _ in 0..13 {
        if let Some((id, request)) = asked(&mut fs.0[rank]) {
            let decided = decision(verdict, 7);
            fs.0[rank].input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(decided))) });
            fs.deliver();
            return request;
        }
        seconds_pass(fs, 1);
    }
    panic!("rank {rank} decides nothing");
}

fn moves(ino: Ino, to: u16) -> Verdict {
    let scope = MoveScope::Subtree;
    Verdict::Moves(vec![DecidedMove { ino, scope, to: Rank(to), why: "the reason".into() }])
}

fn records(fs: &mut Ranks, dir: Ino) -> Vec<Ino> {
    let Ok(Reply::Fragments(found)) = fs.ask(Request::Fragments { dir }) else { panic!() };
    found.map.fragments().map(|(_, ino)| ino).collect()
}

fn rank_of(fs: &mut Ranks, dir: Ino) -> Vec<u16> {
    records(fs, dir).into_iter().map(|ino| ino.rank().0).collect()
}

/// A cluster of three ranks with a hot directory at rank 1, whose balancer is on.
fn hot() -> (Ranks, Ino) {
    let mut fs = Ranks::new(3);
    let dir = fs.mkdir_at(1, Ino::ROOT, "dir", 0o755);
    for n in 0..50 {
        fs.create_as(&ROOT_CALLER, dir, &format!("file{n}"), NewNode::Regular, 0o644);
    }
    seconds_pass(&mut fs, 3);
    assert_eq!(set(&mut fs, 1, "the text"), Ok(Reply::Done));
    (fs, dir)
}

fn log_of(fs: &mut Ranks) -> Vec<BalancerEvent> {
    report(fs).log.into_iter().map(|entry| entry.event).collect()
}

fn moved(fs: &mut Ranks) -> usize {
    log_of(fs).iter().filter(|event| matches!(event, BalancerEvent::Moved { .. })).count()
}

#[test]
fn without_a_policy_nobody_decides() {
    let mut fs = Ranks::new(3);
    seconds_pass(&mut fs, 60);
    assert!(fs.0.iter().all(|host| host.decisions.is_empty()));
    let report = report(&mut fs);
    assert_eq!((report.policy, report.log, report.ranks.len()), (None, vec![], 3));
}

#[test]
fn root_is_never_offered_to_a_policy() {
    let mut fs = Ranks::new(2);
    let below = fs.mkdir_at(0, Ino::ROOT, "below", 0o755);
    for n in 0..50 {
        for dir in [Ino::ROOT, below] {
            fs.create_as(&ROOT_CALLER, dir, &format!("file{n}"), NewNode::Regular, 0o644);
        }
    }
    assert_eq!(set(&mut fs, 1, "the text"), Ok(Reply::Done));
    let request = decide(&mut fs, 0, Verdict::Holds("content".into()));
    let offered: Vec<_> = request.candidates.iter().map(|it| (it.ino, it.parent)).collect();
    assert_eq!(offered, [(below, None)]);
}

/// The record that another rank is to make, if a message says so.
fn made_by(message: &PeerMessage) -> Option<Ino> {
    let PeerMessage::Ask { question: Question::Prepare { edits, .. }, .. } = message else { return None };
    edits.iter().find_map(|edit| match edit {
        Edit::Make { inode } => Some(inode.ino),
        _ => None,
    })
}

/// Its lowest hash, by which the log knows it, comes last: its dwell time would not be known.
#[test]
fn fragment_that_arrives_is_not_offered_to_a_policy() {
    let (mut fs, dir) = hot();
    let id = loop {
        let content = decision(Verdict::Holds("content".into()), 0);
        if let Some((id, _)) = asked(&mut fs.0[2]) {
            fs.0[2].input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(content))) });
        }
        match asked(&mut fs.0[1]) {
            Some((id, _)) => break id,
            None => seconds_pass(&mut fs, 1),
        }
    };
    let decided = IoDone::Decided(Box::new(decision(moves(dir, 2), 7)));
    fs.0[1].input(Input::Done { id, result: Ok(decided) });
    let made = |fs: &Ranks| fs.0[1].peers.iter().find_map(|(_, message)| made_by(message));
    let record = loop {
        match made(&fs) {
            Some(record) => break record,
            None => assert!(fs.deliver_one()),
        }
    };
    let looked_at = |fs: &mut Ranks| {
        let id = fs.0[2].send(&ROOT_CALLER, Request::GetAttr { ino: record });
        matches!(fs.0[2].answers.remove(&id), Some(Ok(_)))
    };
    while !looked_at(&mut fs) {
        assert!(fs.deliver_one());
    }
    // Rank 1 hangs, and the others go on without it.
    for _ in 0..20 {
        for at in [0, 2] {
            fs.0[at].uptime_ms += 1000;
            fs.0[at].input(Input::Tick);
        }
        looked_at(&mut fs);
        while let Some(from) = [0, 2].into_iter().find(|at| !fs.0[*at].peers.is_empty()) {
            let (to, message) = fs.0[from].peers.remove(0);
            if to != Rank(1) {
                fs.0[usize::from(to.0)].input(Input::Peer { from: Rank(from as u16), message });
            }
        }
    }
    let (_, request) = asked(&mut fs.0[2]).expect("rank 2 decides with the record");
    assert!(request.candidates.iter().all(|it| it.ino != record), "{:?}", request.candidates);
    fs.connect();
    seconds_pass(&mut fs, 5);
    assert_eq!(rank_of(&mut fs, dir), [2], "it was moving");
}

#[test]
fn reports_do_not_wait_for_a_rank_that_becomes_silent() {
    let mut fs = Ranks::new(3);
    report(&mut fs);
    seconds_pass(&mut fs, 3);
    let names = [b"user.espalier.balancer".as_slice(), b"user.espalier.load"];
    let get = |name| Request::GetXattr { ino: Ino::ROOT, name: attribute(name) };
    let asked = names.map(|name| fs.0[0].send(&ROOT_CALLER, get(name)));
    fs.0.pop();
    for second in 0..8 {
        for host in &mut fs.0 {
            host.uptime_ms += 1000;
            host.input(Input::Tick);
            host.peers.retain(|(to, _)| to.0 != 2);
        }
        fs.deliver();
        assert!(second > 2 || asked.iter().all(|id| !fs.0[0].answers.contains_key(id)), "rank 2 is asked");
    }
    let [balancer, load] = asked.map(|id| match fs.0[0].answers.remove(&id) {
        Some(Ok(Reply::Bytes(value))) => value,
        other => panic!("{other:?}"),
    });
    let balancer: BalancerReport = decode(&balancer).unwrap();
    let is_silent: Vec<bool> = balancer.ranks.iter().map(|(_, status)| status.is_none()).collect();
    assert_eq!(is_silent, [false, false, true]);
    let load: LoadReport = decode(&load).unwrap();
    assert_eq!(load.ranks.len(), 3);
}

#[test]
fn all_ranks_decide_with_the_policy_seconds_after_it_is_set_until_it_is_off() {
    let (mut fs, dir) = hot();
    seconds_pass(&mut fs, 3);
    for rank in 0..3 {
        let (id, request) = asked(&mut fs.0[rank]).expect("a decision");
        assert_eq!((request.policy.version, request.policy.text.as_str()), (1, "the text"));
        assert_eq!((request.rank, request.loads.len()), (Rank(rank as u16), 3));
        assert_eq!(request.saved, [0_u8; 0]);
        let found = request.candidates.iter().find(|candidate| candidate.ino == dir);
        assert_eq!(found.map(|candidate| candidate.entries), (rank == 1).then_some(50));
        let decided = decision(Verdict::Holds("idle".into()), 9);
        fs.0[rank].input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(decided))) });
    }
    seconds_pass(&mut fs, 6);
    assert!(fs.0.iter().all(|host| host.decisions.is_empty()), "the interval is 10 s");
    assert_eq!(decide(&mut fs, 2, Verdict::Holds("idle".into())).saved, [9]);
    let shown = report(&mut fs);
    let statuses: Vec<_> = shown.ranks.iter().map(|(_, status)| status.clone().unwrap()).collect();
    assert!(statuses.iter().all(|status| status.version == 1 && !status.is_failure), "{statuses:?}");
    assert_eq!(shown.policy.unwrap().who, "tester");
    assert_eq!(set(&mut fs, 2, ""), Ok(Reply::Done));
    seconds_pass(&mut fs, 3);
    fs.0.iter_mut().for_each(|host| host.decisions.clear());
    seconds_pass(&mut fs, 40);
    assert!(fs.0.iter().all(|host| host.decisions.is_empty()));
    let set_events = log_of(&mut fs);
    assert!(matches!(
        set_events.as_slice(),
        [BalancerEvent::Set { is_on: true, .. }, BalancerEvent::Set { is_on: false, .. }]
    ));
}

#[test]
fn only_the_superuser_sets_the_next_version_of_a_cluster() {
    let (mut fs, dir) = hot();
    let next = BalancerCommand::Set(policy(2, "more"));
    assert_eq!(command_as(&mut fs, &user(7), Ino::ROOT, &next), Err(Errno::EPERM));
    assert_eq!(command_as(&mut fs, &ROOT_CALLER, dir, &next), Err(Errno::ENODATA));
    for version in [0, 1, 3, u64::MAX] {
        assert_eq!(set(&mut fs, version, "other"), Err(Errno::EBUSY));
    }
    let long = "x".repeat(63_001);
    assert_eq!(set(&mut fs, 2, &long), Err(Errno::EINVAL));
    let mut never = policy(2, "text");
    never.every_s = 0;
    let never = BalancerCommand::Set(never);
    assert_eq!(command_as(&mut fs, &ROOT_CALLER, Ino::ROOT, &never), Err(Errno::EINVAL));
    assert_eq!(set(&mut fs, 2, &long[1..]), Ok(Reply::Done));
    for name in [&b"trusted.espalier.balancer"[..], b"trusted.espalier.balancer.log"] {
        let (ino, name, value) = (Ino::ROOT, attribute(name), b"x"[..].into());
        let set =
            Request::SetXattr { ino, name: name.clone(), value, mode: XattrMode::Any, kill_sgid: false };
        assert_eq!(fs.ask(set), Err(Errno::EPERM));
        assert_eq!(fs.ask(Request::RemoveXattr { ino, name }), Err(Errno::EPERM));
    }
    assert_eq!(fs.ask(Request::ListXattr { ino: Ino::ROOT }), Ok(Reply::Bytes(Default::default())));
    let mut single = Ranks::new(1);
    assert_eq!(set(&mut single, 1, "text"), Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_decided_move_is_logged_and_made_and_the_fragment_dwells() {
    let (mut fs, dir) = hot();
    decide(&mut fs, 1, moves(dir, 2));
    let [.., BalancerEvent::Moved { dir: logged, to, why, is_undone: false, path, .. }] =
        &log_of(&mut fs)[..]
    else {
        panic!("{:?}", log_of(&mut fs));
    };
    assert_eq!((*logged, *to, why.as_str()), (dir, Rank(2), "the reason"));
    assert_eq!(path.as_deref(), None, "the root is at another rank");
    seconds_pass(&mut fs, 5);
    assert_eq!(rank_of(&mut fs, dir), [2]);
    let record = records(&mut fs, dir)[0];
    fs.create_as(&ROOT_CALLER, record, "after", NewNode::Regular, 0o644);
    let request = decide(&mut fs, 1, Verdict::Holds(String::new()));
    assert_eq!((request.recent_moves_ms.len(), request.saved), (1, vec![7]));
    decide(&mut fs, 2, Verdict::Holds(String::new()));
    let request = decide(&mut fs, 2, Verdict::Holds(String::new()));
    assert_eq!(request.recent_moves_ms, [0_u64; 0]);
    let moved: Vec<_> = request.candidates.iter().filter_map(|candidate| candidate.moved_ms).collect();
    assert_eq!(moved.len(), 1, "{request:?}");
    assert!((1000..40_000).contains(&(request.now_ms - moved[0])));
    assert_eq!(report(&mut fs).ranks[1].1.as_ref().unwrap().moves, 1);
    fs.fsck();
}

#[test]
fn a_move_is_undone_once() {
    let (mut fs, dir) = hot();
    assert_eq!(undo(&mut fs), Err(Errno::ENOENT));
    decide(&mut fs, 1, moves(dir, 2));
    seconds_pass(&mut fs, 5);
    assert_eq!(rank_of(&mut fs, dir), [2]);
    assert_eq!(undo(&mut fs), Ok(Reply::Done));
    seconds_pass(&mut fs, 20);
    assert_eq!(rank_of(&mut fs, dir), [1]);
    assert_eq!(undo(&mut fs), Err(Errno::ENOENT));
    // The directory that was moved last is gone: the move before is undone.
    fs.0.iter_mut().for_each(|host| host.decisions.clear());
    seconds_pass(&mut fs, 40);
    set(&mut fs, 2, "text").unwrap();
    decide(&mut fs, 1, moves(dir, 0));
    let other = fs.mkdir_at(0, Ino::ROOT, "other", 0o755);
    decide(&mut fs, 0, Verdict::Holds(String::new()));
    fs.attr(other);
    decide(&mut fs, 0, moves(other, 2));
    seconds_pass(&mut fs, 5);
    assert_eq!((rank_of(&mut fs, dir), rank_of(&mut fs, other)), (vec![0], vec![2]));
    assert_eq!(fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("other"), time: None }), Ok(Reply::Done));
    fs.0.iter_mut().for_each(|host| host.decisions.clear());
    seconds_pass(&mut fs, 125);
    assert_eq!(undo(&mut fs), Ok(Reply::Done));
    seconds_pass(&mut fs, 5);
    assert_eq!(rank_of(&mut fs, dir), [1]);
    assert!(matches!(
        &log_of(&mut fs)[..],
        [_, BalancerEvent::Moved { is_undone: true, .. }, BalancerEvent::Undone { to: Rank(1), .. }, ..]
    ));
    fs.fsck();
}

#[test]
fn failures_move_nothing_and_are_logged_at_intervals() {
    let (mut fs, dir) = hot();
    for _ in 0..5 {
        decide(&mut fs, 1, Verdict::Fails("line 3: no such thing".into()));
    }
    let status = report(&mut fs).ranks[1].1.clone().unwrap();
    assert!(status.is_failure && status.last.contains("line 3"), "{status:?}");
    let failures = |fs: &mut Ranks| {
        let log = report(fs).log.into_iter().filter(|entry| entry.rank == Rank(1));
        log.filter(|entry| matches!(entry.event, BalancerEvent::Failed { .. })).count()
    };
    assert_eq!(failures(&mut fs), 1);
    assert_eq!(fs.0[1].warnings.iter().filter(|warning| warning.contains("line 3")).count(), 1);
    for n in 0..130 {
        decide(&mut fs, 1, Verdict::Fails(format!("another, {}", n % 2)));
    }
    assert!((10..=30).contains(&failures(&mut fs)), "{}", failures(&mut fs));
    assert_eq!((rank_of(&mut fs, dir), moved(&mut fs)), (vec![1], 0));
}

#[test]
fn nonsense_of_the_driver_moves_nothing() {
    let (mut fs, dir) = hot();
    let other = fs.mkdir_at(2, Ino::ROOT, "other", 0o755);
    let many = Verdict::Moves(vec![
        DecidedMove {
            ino: dir,
            scope: MoveScope::Names,
            to: Rank(2),
            why: String::new()
        };
        65
    ]);
    for verdict in
        [moves(dir, 3), moves(dir, u16::MAX), moves(dir, 1), moves(other, 0), moves(Ino(77), 0), many]
    {
        decide(&mut fs, 1, verdict);
        seconds_pass(&mut fs, 3);
        assert!(report(&mut fs).ranks[1].1.as_ref().unwrap().is_failure);
    }
    assert_eq!((rank_of(&mut fs, dir), moved(&mut fs)), (vec![1], 0));
}

#[test]
fn a_driver_that_does_not_return_or_fails_moves_nothing() {
    let (mut fs, dir) = hot();
    seconds_pass(&mut fs, 3);
    let (id, _) = asked(&mut fs.0[1]).expect("a decision");
    seconds_pass(&mut fs, 40);
    assert!(fs.0[1].decisions.is_empty(), "one at a time");
    assert_eq!(report(&mut fs).ranks[1].1.as_ref().unwrap().last, "the policy does not return");
    let decided = decision(moves(dir, 2), 0);
    fs.0[1].input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(decided))) });
    seconds_pass(&mut fs, 12);
    let (id, _) = asked(&mut fs.0[1]).expect("a decision");
    fs.0[1].input(Input::Done { id, result: Err(Errno::EIO) });
    seconds_pass(&mut fs, 3);
    assert_eq!((rank_of(&mut fs, dir), moved(&mut fs)), (vec![1], 0));
}

#[test]
fn no_move_begins_that_the_log_does_not_have() {
    let (mut fs, dir) = hot();
    seconds_pass(&mut fs, 3);
    let (id, _) = asked(&mut fs.0[1]).expect("a decision");
    // A newer policy comes between decision and log.
    assert_eq!(set(&mut fs, 2, "newer"), Ok(Reply::Done));
    let decided = decision(moves(dir, 2), 0);
    fs.0[1].input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(decided))) });
    seconds_pass(&mut fs, 5);
    assert_eq!((rank_of(&mut fs, dir), moved(&mut fs)), (vec![1], 0));
    // The root's rank is out of reach.
    let (id, _) = asked(&mut fs.0[1]).expect("a decision with the newer policy");
    let decided = decision(moves(dir, 2), 0);
    fs.0[1].input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(decided))) });
    for _ in 0..40 {
        fs.0[1].uptime_ms += 1000;
        fs.0[1].input(Input::Tick);
    }
    assert!(fs.0[1].decisions.is_empty());
    fs.crash(0, false);
    seconds_pass(&mut fs, 6);
    assert_eq!(rank_of(&mut fs, dir), [1], "the decision is too old");
    fs.0[1].decisions.clear();
    seconds_pass(&mut fs, 40);
    assert_eq!(set(&mut fs, 3, "newest"), Ok(Reply::Done));
    decide(&mut fs, 1, moves(dir, 2));
    seconds_pass(&mut fs, 5);
    assert_eq!(rank_of(&mut fs, dir), [2]);
}

#[test]
fn policy_log_and_dwell_times_survive_crashes() {
    let (mut fs, dir) = hot();
    decide(&mut fs, 1, moves(dir, 2));
    seconds_pass(&mut fs, 5);
    for rank in 0..3 {
        fs.crash(rank, false);
    }
    seconds_pass(&mut fs, 6);
    fs.0.iter_mut().for_each(|host| host.decisions.clear());
    assert_eq!(moved(&mut fs), 1);
    let shown = report(&mut fs);
    assert_eq!(shown.policy.unwrap().version, 1);
    let versions: Vec<_> = shown.ranks.iter().map(|(_, status)| status.as_ref().unwrap().version).collect();
    assert_eq!(versions, [1, 1, 1]);
    fs.crash(1, true);
    seconds_pass(&mut fs, 6);
    let (_, request) = asked(&mut fs.0[1]).expect("a decision");
    assert_eq!((request.policy.version, request.recent_moves_ms.len()), (1, 1));
}

#[test]
fn pinned_directories_are_no_candidates() {
    let (mut fs, dir) = hot();
    let (name, value) = (attribute(b"user.espalier.pin"), b"1"[..].into());
    let pin = Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false };
    assert_eq!(fs.ask(pin), Ok(Reply::Done));
    let request = decide(&mut fs, 1, Verdict::Holds(String::new()));
    assert!(request.candidates.iter().all(|candidate| candidate.ino != dir));
}

#[test]
fn the_log_is_bounded() {
    let (mut fs, _) = hot();
    for version in 2..700 {
        set(&mut fs, version, "text").unwrap();
    }
    let log = report(&mut fs).log;
    assert!((200..=400).contains(&log.len()), "{}", log.len());
    assert_eq!(log.last().unwrap().version, 699);
}

/// Long reasons, so that the log holds few moves.
fn many_moves(dirs: &[Ino], to: u16) -> Verdict {
    let moved = |ino: &Ino| {
        let (scope, why) = (MoveScope::Subtree, "a reason ".repeat(40));
        DecidedMove { ino: *ino, scope, to: Rank(to), why }
    };
    Verdict::Moves(dirs.iter().map(moved).collect())
}

#[test]
fn moves_stay_in_the_log_while_dwell_times_depend_on_them() {
    let mut fs = Ranks::new(3);
    let dirs: Vec<Ino> = (0..180).map(|n| fs.mkdir_at(1, Ino::ROOT, &format!("d{n}"), 0o755)).collect();
    for dir in &dirs {
        fs.create_as(&ROOT_CALLER, *dir, "file", NewNode::Regular, 0o644);
    }
    seconds_pass(&mut fs, 3);
    set(&mut fs, 1, "the text").unwrap();
    let mut refused = 0;
    for some in dirs.chunks(60) {
        decide(&mut fs, 1, many_moves(some, 2));
        seconds_pass(&mut fs, 3);
        let status = report(&mut fs).ranks[1].1.clone().unwrap();
        refused += usize::from(status.last.contains("the log is full of moves of the last minute"));
        let away = dirs.iter().filter(|dir| rank_of(&mut fs, **dir) == [2]).count();
        assert_eq!(away, moved(&mut fs), "moves that the log has");
    }
    assert!(moved(&mut fs) >= 60 && refused >= 1, "{} moves, {refused} refused", moved(&mut fs));
    // The administrator is never refused.
    assert_eq!(set(&mut fs, 2, ""), Ok(Reply::Done));
    assert!(matches!(log_of(&mut fs).last(), Some(BalancerEvent::Set { is_on: false, .. })));
    // A minute later the log has space.
    fs.0.iter_mut().for_each(|host| host.decisions.clear());
    set(&mut fs, 3, "the text").unwrap();
    for _ in 0..8 {
        decide(&mut fs, 1, Verdict::Holds(String::new()));
    }
    let still = dirs.iter().copied().find(|dir| rank_of(&mut fs, *dir) == [1]).unwrap();
    decide(&mut fs, 1, many_moves(&[still], 2));
    seconds_pass(&mut fs, 3);
    assert_eq!(rank_of(&mut fs, still), [2]);
    fs.fsck();
}

// ---- Policies in the engine

/// A second of creates in six directories of rank 1, after which ranks decide with the engine.
fn busy_second(fs: &mut Ranks, dirs: &[Ino], second: u64) {
    for (at, dir) in dirs.iter().enumerate() {
        let record = records(fs, *dir)[0];
        for n in 0..20 + 5 * at {
            fs.create_as(&ROOT_CALLER, record, &format!("{second}.{n}"), NewNode::Regular, 0o644);
        }
    }
    seconds_pass(fs, 1);
    for host in &mut fs.0 {
        if let Some((id, request)) = asked(host) {
            let began = std::time::Instant::now();
            let late = move || began.elapsed() > std::time::Duration::from_millis(300);
            let decided = espalier_rank_balancer::decide(&request, late);
            host.input(Input::Done { id, result: Ok(IoDone::Decided(Box::new(decided))) });
        }
    }
    fs.deliver();
}

/// Has a policy balance three ranks for some seconds. The whole load is at rank 1 at first.
fn balanced(text: &str, seconds: u64) -> (Ranks, Vec<Ino>, Vec<BalancerLogEntry>) {
    balanced_in(Ino::ROOT, Ranks::new(3), text, seconds)
}

/// The same with the whole load at another rank at first.
fn balanced_in(
    parent: Ino,
    mut fs: Ranks,
    text: &str,
    seconds: u64,
) -> (Ranks, Vec<Ino>, Vec<BalancerLogEntry>) {
    let dirs: Vec<Ino> = (0..6).map(|n| fs.mkdir_at(1, parent, &format!("dir{n}"), 0o755)).collect();
    seconds_pass(&mut fs, 3);
    set(&mut fs, 1, text).unwrap();
    for second in 0..seconds {
        busy_second(&mut fs, &dirs, second);
    }
    let log = report(&mut fs).log;
    (fs, dirs, log)
}

/// The moves in a log: the time in seconds, the directory and the ranks.
fn moves_of(log: &[BalancerLogEntry]) -> Vec<(i64, Ino, Rank, Rank)> {
    let moved = |entry: &BalancerLogEntry| match entry.event {
        BalancerEvent::Moved { dir, to, .. } => Some((entry.time.secs, dir, entry.rank, to)),
        _ => None,
    };
    log.iter().filter_map(moved).collect()
}

#[test]
fn shipped_greedy_spill_moves_half_of_the_load_to_the_idle_rank() {
    let policy = espalier_balancer::BalancerPolicy::shipped("greedy-spill").unwrap();
    let (mut fs, dirs, log) = balanced(policy.text(), 20);
    let moves = moves_of(&log);
    assert!(!moves.is_empty() && moves.iter().all(|(.., from, to)| (from.0, to.0) == (1, 2)), "{log:?}");
    let at: Vec<_> = dirs.iter().map(|dir| rank_of(&mut fs, *dir)[0]).collect();
    assert!((1..=5).contains(&at.iter().filter(|rank| **rank == 2).count()), "{at:?}");
    fs.fsck();
}

#[test]
fn hostile_policies_move_nothing_and_the_log_says_why() {
    let when = |body: &str| format!("function when() {body} end function where() end");
    let place = |body: &str| format!("function when() return true end function where() {body} end");
    for (text, why) in [
        (when("while true do end"), "endless"),
        (when("local t = {} while true do t[#t + 1] = { 1, 2, 3, 4, 5, 6, 7, 8 } end"), "memory"),
        (when("local function f() return f() + 1 end return f()"), "fails in when"),
        (when("return 1"), "true or false"),
        (when("error('on purpose')"), "on purpose"),
        ("function when( return true end".into(), "Expected"),
        ("function when() return true end".into(), "where"),
        (place("targets = 7"), "no table"),
        (place("targets[1] = 'much'"), "no load"),
        (place("targets[1] = 0/0"), "no load"),
        (place("targets[1] = 1/0"), "no load"),
        (place("targets[1] = -1"), "no load"),
        (place("targets[99] = 10"), "ranks are 1 to 3"),
        (place("targets[1] = 10") + " function metaload() return 0/0 end", "metaload"),
        (place("targets[1] = 10") + " function mdsload(i) return 1/0 end", "mdsload"),
        (place("targets[1] = 10") + " howmuch = { 'everything' }", "everything"),
    ] {
        let (mut fs, dirs, log) = balanced(&text, 6);
        let failures = log.iter().filter_map(|entry| match &entry.event {
            BalancerEvent::Failed { error } => Some(error.as_str()),
            _ => None,
        });
        let failures: Vec<_> = failures.collect();
        assert!(failures.iter().any(|error| error.contains(why)), "{text}: {failures:?}");
        assert!(moves_of(&log).is_empty(), "{text}");
        assert!(dirs.iter().all(|dir| rank_of(&mut fs, *dir) == [1]), "{text}");
    }
}

#[test]
fn a_policy_that_moves_most_at_each_tick_keeps_to_budget_and_dwell_time() {
    // A rank whose whole load is one subtree would gain nothing by its move.
    let text = "function when() return true end \
        function where() for i = 1, #MDSs do if i ~= whoami then targets[i] = 0.6 * MDSs[whoami][\"load\"] end end end \
        howmuch = { \"big_first\", \"small_first\" }";
    let (mut fs, _, log) = balanced(text, 200);
    let moves = moves_of(&log);
    assert!(moves.len() > 3, "{log:?}");
    for (at, (time, dir, from, _)) in moves.iter().enumerate() {
        let later = &moves[at + 1..];
        let again = later.iter().filter(|(then, moved, ..)| moved == dir && then - time < 60);
        assert_eq!(again.count(), 0, "{dir} moved twice within 60 s: {moves:?}");
        let in_window = later.iter().filter(|(then, _, its, _)| its == from && then - time < 60);
        assert!(in_window.count() < 16, "{moves:?}");
    }
    let limits = log.iter().filter(|entry| matches!(entry.event, BalancerEvent::Limited { .. }));
    let said: Vec<_> = limits.map(|entry| format!("{}: {:?}", entry.rank.0, entry.event)).collect();
    assert!(said.iter().any(|it| it.contains("moved too recently")), "{said:?}");
    assert!(said.len() <= 3, "once for each rank: {said:?}");
    fs.fsck();
}

/// A move of the whole load of a rank to an idle one gains nothing: here it is one subtree.
#[test]
fn a_policy_that_moves_everything_at_each_tick_moves_nothing_and_the_log_says_why() {
    let text = "function when() return true end \
        function where() targets[whoami % #MDSs + 1] = 2 * MDSs[whoami][\"load\"] end";
    let mut fs = Ranks::new(3);
    let parent = fs.mkdir_at(1, Ino::ROOT, "parent", 0o755);
    let (mut fs, dirs, log) = balanced_in(parent, fs, text, 12);
    assert!(moves_of(&log).is_empty(), "{log:?}");
    assert!(dirs.iter().all(|dir| rank_of(&mut fs, *dir) == [1]));
    let limits = log.iter().filter_map(|entry| match &entry.event {
        BalancerEvent::Limited { held_back } => Some((entry.rank.0, held_back.as_str())),
        _ => None,
    });
    let limits: Vec<_> = limits.collect();
    assert!(limits.iter().any(|(rank, why)| *rank == 1 && why.contains("gain less than")), "{limits:?}");
    assert!(limits.len() <= 3, "once for each rank: {limits:?}");
}

#[test]
fn limits_last_as_long_as_the_log_has_moves() {
    let limits = espalier_balancer::MoveLimits::default();
    assert!(limits.dwell_ms.max(limits.window_ms) <= LOGGED_MS);
}
