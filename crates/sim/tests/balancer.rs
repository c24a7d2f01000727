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
    let (spread, moves) = run("[balancer]\npolicy = \"greedy-spill\"\ndwell = \"3 s\"\nevery = \"3 s\"\n");
    assert_eq!(busy(&spread), 4, "{spread}\n{moves:?}");
    assert!(spread.fragments.moves as usize >= moves.len() - 1 && moves.len() >= 6, "{spread}\n{moves:?}");
    assert!(spread.worked_s < 0.8 * still.worked_s, "{spread}");
    assert!(moves[0].directory.starts_with("/work0/d") && moves[0].from == 0, "{moves:?}");
    let again = run("[balancer]\npolicy = \"greedy-spill\"\ndwell = \"3 s\"\nevery = \"3 s\"\n");
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
