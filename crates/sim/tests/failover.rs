//! Servers that share a store and fail over, in virtual time.
#![allow(clippy::unwrap_used)]

use espalier_sim::fuzz::{self, Passed};
use espalier_sim::mutant::{Mutant, Mutation};

/// Four ranks at three servers, with a standby and two clients that write; a third client examines
/// the tree at the end. With odd seeds, big files are in a pool of their own.
fn scenario(seed: u64, faults: &str) -> String {
    let data_pool = seed % 2 == 1;
    format!(
        "seed = {seed}\n[cluster]\nranks = 4\nservers = 4\nstandbys = 1\nclients = 3\ndurability = \"durable\"\n\
         data_pool = {data_pool}\n\
         strip = \"256 B\"\njournal = \"2 MiB\"\nsession = \"30 s\"\nlease = \"3 s\"\n[disk]\nlatency = \"1 ms\"\nsync = \"2 ms\"\n\
         [faults]\nuntil = \"30 s\"\n{faults}"
    )
}

fn run(seed: u64, faults: &str) -> (Passed, Vec<String>) {
    let text = scenario(seed, faults);
    let (result, lines) = fuzz::run_scenario(&text, &mut ());
    let passed = result.unwrap_or_else(|failure| panic!("{failure}\n{}\n{text}", lines.join("\n")));
    assert!(passed.answers > 500, "{passed:?}");
    (passed, lines)
}

#[test]
fn standby_serves_ranks_of_killed_server() {
    for seed in 0..3 {
        let (passed, _) = run(seed, "crash = { at = [\"6 s\"], for = \"20 s\", nodes = [0] }\n");
        assert!(passed.taken_over >= 1, "{passed:?}");
    }
}

#[test]
fn standby_fences_paused_server() {
    for seed in 0..3 {
        let (passed, lines) = run(seed, "pause = { at = [\"6 s\"], for = \"14 s\", nodes = [0] }\n");
        assert!(passed.taken_over >= 1, "{passed:?}");
        assert!(lines.iter().any(|line| line.contains("Ended { process: 0, why: Some(")), "{lines:?}");
    }
}

/// A standby that starts while the other server is paused has never been connected to it, so it
/// does not notice that it ends.
#[test]
fn server_that_starts_during_a_pause_waits_for_the_silence() {
    let faults = "pause = { at = [\"6 s\"], for = \"20 s\", nodes = [0] }\n\
        restart = { at = [\"7 s\"], for = \"1 s\", nodes = [1] }\n\
        crash = { at = [\"12 s\"], for = \"14 s\", nodes = [0] }\n";
    let text = scenario(0, faults).replace("ranks = 4\nservers = 4", "ranks = 1\nservers = 2");
    let (result, lines) = fuzz::run_scenario(&text, &mut ());
    let passed = result.unwrap_or_else(|failure| panic!("{failure}\n{}\n{text}", lines.join("\n")));
    assert_eq!(passed.taken_over, 1, "{lines:?}");
}

/// As [`scenario`], with a warm standby.
fn warm_scenario(seed: u64, faults: &str) -> String {
    scenario(seed, faults).replace("standbys = 1\n", "standbys = 1\nstandby_replay = true\n")
}

#[test]
fn warm_standby_uses_what_it_has_followed() {
    let mut followed = 0;
    for (seed, faults) in [
        (0, "crash = { at = [\"6 s\"], for = \"20 s\", nodes = [0] }\n"),
        (1, "crash = { at = [\"6 s\"], for = \"20 s\", nodes = [1] }\n"),
        (2, "pause = { at = [\"6 s\"], for = \"14 s\", nodes = [0] }\n"),
        (3, PAUSED),
        (6, KILLED),
        (7, KILLED),
        (4, SLOW),
        (5, SPLIT),
    ] {
        let text = warm_scenario(seed, faults);
        let (result, lines) = fuzz::run_scenario(&text, &mut ());
        result.unwrap_or_else(|failure| panic!("{failure}\n{}\n{text}", lines.join("\n")));
        followed += lines.iter().filter(|line| line.contains("is_followed: true")).count();
    }
    assert!(followed >= 4, "{followed} takeovers used what was followed");
}

#[test]
fn short_pause_moves_no_rank() {
    let (passed, lines) = run(1, "pause = { at = [\"6 s\"], for = \"5 s\", nodes = [0] }\n");
    assert_eq!(passed.taken_over, 0);
    assert!(!lines.iter().any(|line| line.contains("Ended")), "{lines:?}");
}

#[test]
fn servers_restart_one_after_the_other() {
    let at = "at = [\"6 s\", \"10 s\", \"14 s\", \"18 s\"]";
    let (_, lines) = run(2, &format!("restart = {{ {at}, for = \"500 ms\" }}\n"));
    let ended = lines.iter().filter(|line| line.contains("why: None")).count();
    assert!(ended >= 3, "{lines:?}");
}

#[test]
fn store_that_is_down_stops_no_server_for_good() {
    let (passed, _) = run(3, "store_down = { at = [\"6 s\"], for = \"20 s\" }\n");
    assert_eq!(passed.taken_over, 0);
    run(4, "store_cut = { at = [\"6 s\"], for = \"14 s\", nodes = [1] }\n");
}

#[test]
fn failed_osd_delays_requests_to_its_objects_and_moves_no_rank() {
    let at: Vec<_> = (0..8).map(|n| format!("\"{} ms\"", 5000 + 2500 * n)).collect();
    let mut stalled = std::collections::BTreeSet::new();
    for seed in 0..4 {
        let faults = format!("osd_down = {{ at = [{}], for = \"9 s\" }}\n", at.join(", "));
        let (passed, lines) = run(seed, &faults);
        assert_eq!(passed.taken_over, 0, "seed {seed}: {lines:?}");
        assert!(!lines.iter().any(|line| line.contains("Ended")), "{lines:?}");
        for part in [".j.", ".s.", ".head", "cluster-map"] {
            if lines.iter().any(|line| line.contains("Stalled") && line.contains(part)) {
                stalled.insert(part);
            }
        }
    }
    assert_eq!(stalled.len(), 4, "only {stalled:?}");
}

#[test]
fn server_whose_journal_exceeds_the_time_limit_is_replaced() {
    let mut broken = 0;
    // Seed 3 repeats a truncation of a big file, as docs/roadmap.md says.
    for (osd, seed) in (0..8).zip([0, 1, 2, 8, 4, 5, 6, 7]) {
        let text =
            scenario(seed, &format!("osd_down = {{ at = [\"6 s\"], for = \"45 s\", nodes = [{osd}] }}\n"));
        let (result, lines) = fuzz::run_scenario(&text, &mut ());
        result.unwrap_or_else(|failure| panic!("{failure}\n{}\n{text}", lines.join("\n")));
        broken += lines.iter().filter(|line| line.contains("why: Some(Broken)")).count();
    }
    assert!(broken > 0);
}

#[test]
fn server_that_waits_for_an_osd_is_killed() {
    for seed in 0..4 {
        let faults = "osd_down = { every = \"5 s\", for = \"9 s\" }\n\
            crash = { at = [\"8 s\", \"15 s\", \"22 s\"], for = \"3 s\" }\n\
            pause = { at = [\"10 s\"], for = \"14 s\" }\n";
        let (_, lines) = run(seed, faults);
        assert!(lines.iter().any(|line| line.contains("Killed")), "{lines:?}");
    }
}

#[test]
fn cluster_starts_again_after_all_servers_ended() {
    // Stated times of a kind draw their nodes one after the other.
    let at = "at = [\"6 s\", \"6001 ms\", \"6002 ms\", \"6003 ms\", \"6004 ms\", \"6005 ms\", \"6006 ms\"]";
    run(5, &format!("crash = {{ {at}, for = \"3 s\" }}\n"));
}

/// Number of seeds among which each mutant must be detected.
const ENOUGH: u64 = 20;

/// Two servers are paused for longer than their leases; then others are killed.
const PAUSED: &str = "pause = { at = [\"6 s\", \"6100 ms\"], for = \"14 s\", nodes = [0, 1] }\n\
    crash = { at = [\"9 s\", \"22 s\", \"22100 ms\", \"22200 ms\"], for = \"3 s\" }\n";
/// Servers are killed one after the other: a standby takes over at once.
const KILLED: &str = "crash = { at = [\"6 s\", \"9 s\", \"12 s\", \"15 s\", \"18 s\"], for = \"2 s\" }\n";
/// As in `PAUSED`, with writes that take long when the servers are paused.
const SLOW: &str = "slowness = 300.0\nslow_disk = { at = [\"5 s\", \"5001 ms\"], for = \"2 s\", nodes = [0, 1] }\n\
    pause = { at = [\"6 s\", \"6100 ms\"], for = \"14 s\", nodes = [0, 1] }\n";
/// A server does not reach the store, and the network is split: some clients may reach only it.
const SPLIT: &str = "store_cut = { at = [\"6 s\"], for = \"20 s\", nodes = [0] }\n\
    partition = { at = [\"6 s\"], for = \"20 s\" }\n";

#[test]
fn mutants_of_failover_are_detected() {
    let caught = |mutation: Mutation, faults: &str| {
        let scenario = if mutation == Mutation::TrustedStandby { warm_scenario } else { scenario };
        let is_caught =
            |seed: &u64| fuzz::run_scenario(&scenario(*seed, faults), &mut Mutant::new(mutation)).0.is_err();
        let caught = (0..ENOUGH).find(is_caught);
        eprintln!("{mutation:?} is found out by seed {caught:?}");
        caught.is_none().then_some(mutation)
    };
    for seed in 0..3 {
        run(seed, PAUSED);
        run(seed, SLOW);
        run(seed, SPLIT);
    }
    let mutants = [
        (Mutation::AnswersPastLease, SPLIT),
        (Mutation::UnfencedTakeover, SLOW),
        (Mutation::LostTail, PAUSED),
        (Mutation::TrustedStandby, KILLED),
        (Mutation::UnguardedMap, PAUSED),
        (Mutation::RenewedFenced, SPLIT),
        (Mutation::PrematureTrim, PAUSED),
    ];
    let missed: Vec<_> =
        mutants.into_iter().filter_map(|(mutation, faults)| caught(mutation, faults)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// As [`scenario`], with four clients of which all but one use the data pool themselves. Sessions
/// end soon.
fn direct_scenario(seed: u64, faults: &str) -> String {
    let pool = format!("data_pool = {}\n", seed % 2 == 1);
    let text = scenario(seed, faults).replace(&pool, "data_pool = true\ndirect = true\n");
    text.replace("clients = 3\n", "clients = 4\n").replace("session = \"30 s\"", "session = \"5 s\"")
}

/// Clients lose servers for longer than their sessions last, and servers are killed meanwhile.
const CUT_OFF: &str = "partition = { at = [\"5 s\", \"14 s\", \"23 s\"], for = \"7 s\" }\n\
    crash = { at = [\"7 s\", \"16 s\"], for = \"2 s\" }\n";
/// As in `CUT_OFF`, with requests to the pool that wait for OSDs.
const LATE: &str = "partition = { at = [\"5 s\", \"14 s\", \"23 s\"], for = \"7 s\" }\n\
    osd_down = { every = \"2 s\", for = \"5 s\" }\n";

#[test]
fn clients_use_the_data_pool_until_they_are_fenced() {
    let (mut executed, mut refused) = (0, 0);
    for seed in 0..3 {
        for faults in [CUT_OFF, LATE, PAUSED, KILLED] {
            let text = direct_scenario(seed, faults);
            let (result, lines) = fuzz::run_scenario(&text, &mut ());
            let passed = result.unwrap_or_else(|failure| panic!("{failure}\n{}\n{text}", lines.join("\n")));
            executed += passed.pool_counts.executed;
            refused += passed.pool_counts.refused;
        }
    }
    eprintln!("{executed} operations on the data pool, {refused} refused");
    assert!(executed > 1000 && refused > 0, "{executed} {refused}");
}

#[test]
fn mutants_of_the_data_pool_are_detected() {
    const CUT_OFF: &str = "partition = { at = [\"5 s\", \"17 s\"], for = \"11 s\" }\n";
    // The first one shows only if a client with direct access loses a server, and one that reads
    // what it writes does not.
    for (mutation, least) in [(Mutation::UnfencedClient, ENOUGH / 5), (Mutation::UnmeasuredFile, ENOUGH / 2)]
    {
        let is_caught = |seed: &u64| {
            fuzz::run_scenario(&direct_scenario(*seed, CUT_OFF), &mut Mutant::new(mutation)).0.is_err()
        };
        let caught = (0..ENOUGH).filter(is_caught).count() as u64;
        eprintln!("{mutation:?} is found out by {caught} of {ENOUGH} seeds");
        assert!(caught >= least, "{mutation:?}");
    }
}

#[test]
fn random_clusters_fail_over() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let (first, count) = (number("SIM_SEED").unwrap_or(0), number("SIM_SEEDS").unwrap_or(20));
    let seeds = (first..).filter(|seed| fuzz::failover::is_in(*seed)).take(count as usize);
    let mut failed = 0;
    for seed in seeds {
        if let Err(failure) = fuzz::run(seed) {
            eprintln!("seed {seed}: {failure}\n{}", fuzz::scenario_text(seed).unwrap());
            failed += 1;
        }
    }
    assert_eq!(failed, 0);
}
