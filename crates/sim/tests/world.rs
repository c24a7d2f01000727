//! Whole runs.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Report, Scenario, World};

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut observer, mut saboteur) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut saboteur).unwrap();
    let report =
        world.run().unwrap_or_else(|error| panic!("seed {}: {error}\n{}", scenario.seed, world.report()));
    assert_eq!(world.fsck().unwrap(), [], "seed {}", scenario.seed);
    assert_eq!(report.lawless, [""; 0]);
    report
}

const CREATES: &str = "[cluster]\nranks = 4\nclients = 32\n[model]\npreset = \"wu\"\n[[workload]]\nkind = \"create\"\nprocesses = 32\nfiles = 100\n";

#[test]
fn a_run_is_a_function_of_its_scenario_and_seed() {
    let with_seed = |seed: u32| run(&format!("seed = {seed}\n{CREATES}"));
    let (first, again, other) = (with_seed(1), with_seed(1), with_seed(2));
    assert_eq!(first.fingerprint, again.fingerprint);
    assert_eq!(first.to_string(), again.to_string());
    assert_ne!(first.fingerprint, other.fingerprint);
    assert_eq!(first.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
}

/// Clients that each wait for one answer all the time are all in the servers' queues, where the network is free.
#[test]
fn the_mean_queue_is_clients_by_servers() {
    for (ranks, clients) in [(1, 16), (4, 64)] {
        let report = run(&format!(
            "[cluster]\nranks = {ranks}\nclients = {clients}\n[model]\npreset = \"wu\"\n[network]\npreset = \"free\"\n\
             [[workload]]\nkind = \"create\"\nprocesses = {clients}\nfiles = 200\n"
        ));
        let (queue, expected) = (report.mean_queue(), f64::from(clients) / f64::from(ranks));
        assert!((queue / expected - 1.0).abs() < 0.1, "{queue} and not {expected}");
    }
}

const FAULTS: &str = "[cluster]\nranks = 3\nclients = 6\n[clock]\nskew = \"2 s\"\ndrift_ppm = 200\n\
    [faults]\ncrash = { every = { exponential = \"2 s\" }, for = \"500 ms\" }\ncut = { every = { exponential = \"300 ms\" } }\n\
    partition = { every = { exponential = \"5 s\" }, for = \"1 s\" }\nlate = { every = \"700 ms\", for = \"200 ms\" }\n\
    slow_disk = { every = \"3 s\" }\n\
    [model]\npreset = \"wu\"\nclient = \"5 ms\"\n\
    [[workload]]\nkind = \"create\"\nprocesses = 12\nfiles = 100\n[[workload]]\nkind = \"mdtest\"\nprocesses = 4\n";

#[test]
fn what_breaks_is_mended() {
    for seed in 0..5 {
        let report = run(&format!("seed = {seed}\n{FAULTS}"));
        assert!(report.faults.len() == 5, "{:?}", report.faults);
    }
}

#[test]
fn a_loss_of_power_leaves_a_clean_tree() {
    for seed in 0..5 {
        let faults = "power = { every = { exponential = \"1 s\" }, for = \"300 ms\" }\ndisk_failure = { every = \"4 s\" }\nclient_crash = { every = \"3 s\" }";
        let report = run(&format!(
            "seed = {seed}\n[cluster]\nranks = 2\nclients = 6\ndurability = \"durable\"\n[faults]\n{faults}\n\
            [model]\npreset = \"wu\"\nclient = \"5 ms\"\n[[workload]]\nkind = \"create\"\nprocesses = 12\nfiles = 100\n"
        ));
        assert!(report.faults.contains_key("power"));
    }
}
