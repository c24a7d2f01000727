//! Balancers in the simulator, over generated workloads.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{BalancerMove, Report, Scenario, World};

/// Four clients create files in eight directories, which are all at the first rank.
const SHARED: &str = "[cluster]\nranks = 4\nclients = 4\nwriteback = false\n[policy]\npin = \"parent\"\n\
    [model]\npreset = \"wu\"\ncreate = \"2 ms\"\n\
    [[workload]]\nkind = \"create\"\nfiles = 4000\ndirectories = 8\nfrontend = \"library\"\n";

fn run(balancer: &str) -> (Report, Vec<BalancerMove>) {
    let text = format!("{SHARED}{balancer}");
    let scenario = Scenario::parse(&text, Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut mutator).unwrap();
    let report = world.run().unwrap();
    (report, world.balancer_moves().to_vec())
}

fn busy(report: &Report) -> usize {
    report.servers.iter().filter(|server| server.utilisation > 0.05).count()
}

#[test]
fn greedy_spill_spreads_directories_over_all_ranks() {
    let (still, none) = run("");
    assert_eq!((busy(&still), none.len(), still.fragments.moves), (1, 0, 0), "{still}");
    // What a move costs in the model, since little is gained in 3 s.
    let greedy = "[balancer]\npolicy = \"greedy-spill\"\ndwell = \"3 s\"\nevery = \"3 s\"\n\
        cost_per_move = 30.0\ncost_per_entry = 0.05\n";
    let (spread, moves) = run(greedy);
    assert_eq!(busy(&spread), 4, "{spread}\n{moves:?}");
    assert!(spread.fragments.moves as usize >= moves.len() - 1 && moves.len() >= 6, "{spread}\n{moves:?}");
    assert!(spread.worked_s < 0.8 * still.worked_s, "{spread}");
    assert!(moves[0].directory.starts_with("/work0/d") && moves[0].from == 0, "{moves:?}");
    let again = run(greedy);
    assert_eq!((again.0.fingerprint, again.1), (spread.fingerprint, moves));
}

#[test]
fn hot_directory_splits_without_a_limit_of_its_size() {
    let run = |settings: &str| {
        let text = format!(
            "[cluster]\nranks = 4\nclients = 4\nwriteback = false\n[policy]\n{settings}[model]\npreset = \"wu\"\n\
             create = \"2 ms\"\n[[workload]]\nkind = \"create\"\nfiles = 20000\ndirectories = 1\n\
             frontend = \"library\"\n"
        );
        let scenario = Scenario::parse(&text, Path::new("it.toml")).unwrap();
        let (mut observer, mut mutator) = ((), ());
        World::new(&scenario, &mut observer, &mut mutator).unwrap().run().unwrap()
    };
    let (whole, split) = (run(""), run("dir_split_rate = 100\n"));
    assert_eq!((busy(&whole), whole.fragments.splits), (1, 0), "{whole}");
    assert_eq!((busy(&split), split.fragments.splits_by_rate), (4, 3), "{split}");
    assert_eq!(split.fragments.splits, 3);
    assert!(split.worked_s < 0.6 * whole.worked_s, "{split}");
}

/// Two clients make files in trees of their own, then look at them, with the model of
/// `espalier paper` for Sevilla's metadata servers. One tree moves as soon as they look.
/// Returns the processor time of the servers in requests, and the report.
fn move_of_a_tree(directories: u32, files: u32, moves: bool) -> (f64, Report) {
    let kinds = ["lookup", "setattr", "readdir", "open", "data", "other", "peer"];
    let kinds: String = kinds.iter().map(|kind| format!("{kind} = \"75 us\"\n")).collect();
    let workload = format!(
        "[[workload]]\nkind = \"create\"\nprocesses = 1\nfiles = {}\ndirectories = {directories}\nopen = false\n\
         stat = true\nfresh = true\n",
        directories * files
    );
    // Half of the load, once.
    let script = "function when() if whoami ~= 1 or RDstate() == 1 then return false end WRstate(1) return true end\n\
        function where() targets[2] = 0.51 * MDSs[whoami][\"load\"] end\n";
    let balancer = format!(
        "[balancer]\nscript = '''{script}'''\nevery = \"1 s\"\nfrom = \"{} s\"\ncost_per_move = 0.0\ncost_per_entry = 0.0\n",
        if moves { directories * files / 1220 + 1 } else { 1000 }
    );
    let text = format!(
        "[cluster]\nranks = 2\nclients = 2\nwriteback = false\n[policy]\npin = \"parent\"\n\
         [model]\npreset = \"wu\"\nclient = \"300 us\"\n{kinds}{workload}{workload}{balancer}"
    );
    let scenario = Scenario::parse(&text, Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let report = World::new(&scenario, &mut observer, &mut mutator).unwrap().run().unwrap();
    let busy = report.servers.iter().map(|server| server.utilisation).sum::<f64>() * report.worked_s;
    (busy / 75e-6, report)
}

/// docs/balancing.md has the figures; `espalier paper` uses them as the cost of moves.
#[test]
fn moves_cost_some_thirty_requests_a_directory() {
    for (directories, files) in [(200, 50), (500, 20)] {
        let (still, none) = move_of_a_tree(directories, files, false);
        let (moved, report) = move_of_a_tree(directories, files, true);
        let moves = u64::from(directories) + 1;
        assert_eq!((none.fragments.moves, report.fragments.moves), (0, moves), "{report}");
        let cost = (moved - still) / f64::from(directories + 1);
        eprintln!("{directories} directories of {files} files: {cost:.1} requests a directory");
        let modelled = 30.0 + 0.05 * f64::from(files);
        assert!((0.6..1.5).contains(&(cost / modelled)), "{cost:.1} instead of {modelled:.1}: {report}");
    }
}

#[test]
fn limits_of_the_scenario_hold() {
    let (report, moves) = run("[balancer]\npolicy = \"cephfs\"\nmoves = 1\nwindow = \"1000 s\"\n");
    assert_eq!(moves.len(), 1, "{report}\n{moves:?}");
    let (_, moves) = run("[balancer]\npolicy = \"cephfs\"\ncost_per_move = 1e9\n");
    assert!(moves.is_empty(), "{moves:?}");
    let (_, moves) = run("[balancer]\npolicy = \"cephfs\"\nfrom = \"1000 s\"\n");
    assert!(moves.is_empty(), "{moves:?}");
}

#[test]
fn ranks_decide_at_the_interval_of_the_policy() {
    let (report, _) = run("[balancer]\npolicy = \"cephfs\"\nevery = \"2 s\"\ncost_per_move = 1e9\n");
    let decisions = report.balancer.clone().unwrap().decisions;
    // Four ranks; the policy is known after some seconds.
    let expected = 4.0 * (report.worked_s - 4.0) / 2.0;
    assert!(decisions as f64 >= 0.9 * expected, "{decisions} instead of {expected}: {report}");
}

#[test]
fn a_policy_that_fails_moves_nothing_and_is_reported() {
    let (report, moves) =
        run("[balancer]\nscript = \"function when() return x end\\nfunction where() end\"\n");
    let balancer = report.balancer.clone().unwrap();
    assert!(balancer.decisions > 4 && balancer.failures == balancer.decisions, "{balancer:?}");
    assert!(balancer.error.unwrap().contains("script:1"), "{report}");
    assert!(moves.is_empty());
}

#[test]
fn mistakes_are_named() {
    for (text, words) in [
        ("policy = \"nowhere.lua\"", "nowhere.lua"),
        ("policy = \"cephfs\"\nscript = \"\"", "[balancer] policy: it is left out with `script`"),
        ("every = \"1500 ms\"", "[balancer] every: it is a number of seconds"),
        ("polic = \"cephfs\"", "`polic`"),
    ] {
        let parsed = Scenario::parse(&format!("[balancer]\n{text}"), Path::new("it.toml"));
        let error = parsed.map_err(|error| error.to_string()).and_then(|scenario| {
            let opened = World::new(&scenario, &mut (), &mut ()).map(drop);
            opened.map_err(|error| error.to_string())
        });
        let error = error.expect_err(text);
        assert!(error.contains(words), "{text}: {error}");
    }
}
