//! Popularity counters and heartbeats.

use crate::harness::{Harness, ROOT_CALLER, Ranks, name, user};
use espalier_meta::{DirectoryLoad, Input, KnownLoad, LoadReport, Milli, Popularity, decode};
use espalier_proto::*;

fn hottest(fs: &Harness) -> Vec<DirectoryLoad> {
    fs.meta.load_report(10).directories
}

fn popularity(fs: &Harness, dir: Ino) -> Popularity {
    let found = hottest(fs).into_iter().find(|load| load.ino == dir);
    found.map(|load| load.own).unwrap_or_default()
}

fn second_passes(fs: &mut Harness) {
    fs.uptime_ms += 1000;
    fs.input(Input::Tick);
}

#[test]
fn hot_directory_is_shown_hottest_with_its_path() {
    let mut fs = Harness::new();
    let (outer, cold) = (fs.mkdir("outer"), fs.mkdir("cold"));
    let hot = fs.mkdir("outer/hot");
    fs.file("cold/file", b"");
    let file = fs.file("outer/hot/file", b"");
    for _ in 0..100 {
        fs.attr_of(file);
    }
    let shown = hottest(&fs);
    assert_eq!((shown[0].ino, shown[0].path.as_deref()), (hot, Some("/outer/hot")));
    assert_eq!((shown[0].entries, shown[0].rank), (1, Rank(0)));
    assert!(shown.iter().any(|load| load.ino == cold && load.own.load() < 10.0), "{shown:?}");
    assert!(shown.is_sorted_by(|a, b| a.own.load() >= b.own.load()));
    assert_eq!(fs.meta.load_report(1).directories, shown[..1]);
    let of = |ino| shown.iter().find(|load| load.ino == ino).unwrap();
    assert_eq!(of(outer).subtree.load(), of(outer).own.load() + of(hot).own.load());
    let total: f64 = shown.iter().map(|load| load.own.load()).sum();
    assert!((of(Ino::ROOT).subtree.load() - total).abs() < 0.01);
    let [KnownLoad { load, age_ms: Some(0), .. }] = fs.meta.load_report(1).ranks[..] else { panic!() };
    assert!((load.auth.load() - total).abs() < 0.01);
    assert_eq!(load.all, load.auth);
}

#[test]
fn subtrees_contain_directories_whose_ancestors_have_no_counters() {
    let mut fs = Harness::new();
    for path in ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/e"] {
        fs.mkdir(path);
    }
    for _ in 0..100 {
        second_passes(&mut fs);
    }
    assert!(hottest(&fs).is_empty(), "all counters have decayed to nothing");
    let (a, d, e) = (fs.walk("a").unwrap(), fs.walk("a/b/c/d").unwrap(), fs.walk("a/b/c/e").unwrap());
    for _ in 0..100 {
        second_passes(&mut fs);
    }
    for _ in 0..7 {
        fs.attr_of(d);
    }
    for _ in 0..9 {
        fs.attr_of(e);
    }
    for _ in 0..2 {
        fs.attr_of(a);
    }
    let shown = hottest(&fs);
    let counts: Vec<_> = shown.iter().map(|load| (load.ino, load.own.ird.0, load.subtree.ird.0)).collect();
    assert_eq!(counts, [(e, 9000, 9000), (d, 7000, 7000), (a, 2000, 18_000)]);
}

#[test]
fn operations_and_records_are_counted_by_kind() {
    let mut fs = Harness::new();
    let dir = fs.mkdir("dir");
    for file in ["one", "two"] {
        fs.create(dir, file, NewNode::Regular).unwrap();
    }
    let lookup = |file: &str| Request::Lookup { dir, name: name(file) };
    fs.ask(lookup("one")).unwrap();
    assert!(matches!(fs.ask(lookup("absent")), Ok(Reply::Absent { .. })));
    fs.ask(Request::ReadDir { dir, after: 0, limit: 10, plus: false }).unwrap();
    let counts = |fs: &Harness| popularity(fs, dir).counts();
    assert_eq!(counts(&fs), [2.0, 2.0, 1.0, 0.0, 0.0]);
    fs.checkpoint();
    let [.., stored] = counts(&fs);
    // Two dentries, and the places of their inodes; that of the directory itself is its own, too.
    assert_eq!(stored, 5.0);
    let mut fs = fs.crash();
    fs.ask(lookup("one")).unwrap();
    let [ird, iwr, readdir, fetched, _] = counts(&fs);
    assert_eq!((ird, iwr, readdir), (1.0, 0.0, 0.0));
    assert!(fetched >= 2.0, "{fetched}");
}

#[test]
fn rename_counts_in_both_directories() {
    let mut fs = Harness::new();
    let (from, to) = (fs.mkdir("from"), fs.mkdir("to"));
    fs.create(from, "file", NewNode::Regular).unwrap();
    let (flags, file) = (RenameFlags::empty(), name("file"));
    fs.ask(Request::Rename { from_dir: from, from: file.clone(), to_dir: to, to: file, flags, time: None })
        .unwrap();
    assert_eq!((popularity(&fs, from).iwr, popularity(&fs, to).iwr), (Milli(2000), Milli(1000)));
}

#[test]
fn own_load_has_resources_requests_and_queue() {
    let mut fs = Harness::new();
    fs.input(Input::Resources { cpu: Milli(48_000), mem: Milli(2500) });
    second_passes(&mut fs);
    fs.queued = 3;
    for _ in 0..40 {
        fs.attr_of(Ino::ROOT);
    }
    second_passes(&mut fs);
    second_passes(&mut fs);
    let load = fs.meta.known_loads()[0].load;
    assert_eq!((load.cpu, load.mem), (Milli(48_000), Milli(2500)));
    assert_eq!((load.requests, load.queue), (Milli(20_000), Milli(3000)));
}

#[test]
fn removed_directories_are_not_shown() {
    let mut fs = Harness::new();
    let dir = fs.mkdir("dir");
    fs.attr_of(dir);
    assert!(hottest(&fs).iter().any(|load| load.ino == dir));
    fs.send(&ROOT_CALLER, Request::Forget { ino: dir, lookups: 1 });
    fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("dir"), time: None }).unwrap();
    assert!(hottest(&fs).iter().all(|load| load.ino != dir));
}

/// Ranks that tick together.
fn seconds_pass(fs: &mut Ranks, seconds: u64) {
    for _ in 0..seconds {
        fs.0.iter_mut().for_each(|host| host.uptime_ms += 1000);
        fs.tick();
    }
}

#[test]
fn ranks_know_each_others_loads_and_who_is_silent() {
    let mut fs = Ranks::new(3);
    let dir = fs.mkdir_at(1, Ino::ROOT, "dir", 0o755);
    seconds_pass(&mut fs, 10);
    for _ in 0..500 {
        fs.attr(dir);
    }
    seconds_pass(&mut fs, 2);
    for host in &fs.0 {
        let known = host.meta.known_loads();
        assert!(known.iter().all(|known| !known.is_silent() && known.age_ms.unwrap() <= 2000));
        assert!(known[1].load.auth.ird.get() > 350.0, "{known:?}");
        assert!(known[1].load.requests.get() >= 250.0, "{known:?}");
        assert!(known[0].load.auth.ird.get() < 50.0, "{known:?}");
    }
    // Rank 2 is lost: its last load stays, with its age.
    let lost = fs.0.pop().unwrap();
    for _ in 0..8 {
        for host in &mut fs.0 {
            host.uptime_ms += 1000;
            host.input(Input::Tick);
            host.peers.retain(|(to, _)| to.0 != 2);
        }
        fs.deliver();
    }
    let known = fs.0[0].meta.known_loads();
    assert_eq!(known.iter().map(KnownLoad::is_silent).collect::<Vec<_>>(), [false, false, true]);
    assert!((7000..=10_000).contains(&known[2].age_ms.unwrap()), "{known:?}");
    // The report of the cluster does not wait for it.
    let report = cluster_report(&mut fs, &ROOT_CALLER).unwrap();
    let DirectoryLoad { ino, dir: shown, rank, .. } = report.directories[0];
    assert_eq!((ino, shown, rank), (dir, dir, Rank(1)));
    // After a restart it knows nobody until the next heartbeats.
    fs.0.push(lost.crash());
    assert!(fs.0[2].meta.known_loads()[0].is_silent());
    seconds_pass(&mut fs, 3);
    assert!(fs.0.iter().all(|host| { host.meta.known_loads().iter().all(|known| !known.is_silent()) }));
}

fn cluster_report(fs: &mut Ranks, caller: &Caller) -> Result<LoadReport, Errno> {
    let name = (*b"user.espalier.load").into();
    let Reply::Bytes(value) = fs.ask_as(caller, Request::GetXattr { ino: Ino::ROOT, name })? else {
        panic!()
    };
    Ok(decode(&value).unwrap())
}

#[test]
fn load_of_the_cluster_is_an_attribute_of_the_root_for_the_superuser() {
    let mut fs = Ranks::new(2);
    let dirs = [fs.mkdir_at(0, Ino::ROOT, "zero", 0o755), fs.mkdir_at(1, Ino::ROOT, "one", 0o755)];
    seconds_pass(&mut fs, 3);
    for _ in 0..50 {
        fs.attr(dirs[0]);
    }
    for _ in 0..90 {
        fs.attr(dirs[1]);
    }
    let report = cluster_report(&mut fs, &ROOT_CALLER).unwrap();
    let shown = report.directories.iter().take(2).map(|load| (load.ino, load.rank));
    assert_eq!(shown.collect::<Vec<_>>(), [(dirs[1], Rank(1)), (dirs[0], Rank(0))]);
    assert_eq!(report.ranks.len(), 2);
    assert_eq!(cluster_report(&mut fs, &user(7)).unwrap_err(), Errno::EPERM);
    let name: Box<[u8]> = (*b"user.espalier.load").into();
    let get = |ino| Request::GetXattr { ino, name: name.clone() };
    assert_eq!(fs.ask(get(dirs[0])), Err(Errno::ENODATA));
}

#[test]
fn requests_of_other_ranks_and_misrouted_ones_are_not_of_the_own_load() {
    let mut fs = Ranks::new(2);
    let dir = fs.mkdir_at(1, Ino::ROOT, "dir", 0o755);
    let load = fs.0[1].meta.known_loads()[1].load;
    assert!(load.all.load() > load.auth.load(), "rank 1 has made a directory for rank 0");
    let before = load.auth.ird;
    fs.attr(dir);
    assert_eq!(fs.0[1].meta.known_loads()[1].load.auth.ird, Milli(before.0 + 1000));
}

#[test]
fn heartbeats_of_ranks_that_do_not_exist_are_ignored() {
    use espalier_meta::{PeerMessage, RankLoad};
    let mut fs = Ranks::new(2);
    let load = RankLoad { cpu: Milli(u64::MAX), ..RankLoad::default() };
    for from in [Rank(0), Rank(2), Rank(u16::MAX)] {
        fs.0[0].input(Input::Peer { from, message: PeerMessage::Heartbeat { load, policy: 1 } });
    }
    let known = fs.0[0].meta.known_loads();
    assert_eq!(known.len(), 2);
    assert!(known.iter().all(|known| known.load.cpu == Milli(0)));
}

#[test]
fn reports_of_several_ranks_are_joined() {
    let known = |rank, age_ms| KnownLoad { rank: Rank(rank), load: Default::default(), age_ms };
    let dir = |ino, ird| DirectoryLoad {
        rank: Rank(0),
        ino: Ino(ino),
        dir: Ino(ino),
        path: None,
        entries: 0,
        own: Popularity { ird: Milli(ird), ..Popularity::default() },
        subtree: Popularity::default(),
    };
    let reports = [
        LoadReport { ranks: vec![known(0, Some(0)), known(1, Some(900))], directories: vec![dir(1, 5)] },
        LoadReport {
            ranks: vec![known(0, None), known(1, Some(0))],
            directories: vec![dir(2, 9), dir(3, 1)],
        },
    ];
    let joined = LoadReport::join(reports, 2);
    assert_eq!(joined.ranks, [known(0, Some(0)), known(1, Some(0))]);
    assert_eq!(joined.directories, [dir(2, 9), dir(1, 5)]);
}
