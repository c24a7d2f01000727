//! What the ways cost in which small files are made, in messages, and that none of them leaves anything behind when servers break.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Report, Scenario, World};

const DATA_SERVERS: u64 = 4;

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut observer, mut saboteur) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut saboteur).unwrap();
    let report = world.run().unwrap_or_else(|error| panic!("seed {}: {error}", scenario.seed));
    assert_eq!(world.fsck().unwrap(), [], "seed {}", scenario.seed);
    assert_eq!(report.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
    report
}

/// Requests of the client, and messages to data servers, that so many more files cost. Nothing is written to them.
fn creates(policy: &str, files: u64) -> (u64, u64) {
    let sent = |files: u64| {
        let report = run(&format!(
            "[cluster]\ndata = {DATA_SERVERS}\n[policy]\n{policy}\n[model]\npreset = \"wu\"\n\
             [[workload]]\nkind = \"create\"\nfiles = {files}\n"
        ));
        let count = |kind: &str| report.messages.get(kind).copied().unwrap_or_default();
        (count("request"), count("to_data"))
    };
    let (few, many) = (sent(100), sent(100 + files));
    (many.0 - few.0, many.1 - few.1)
}

#[test]
fn a_create_costs_the_client_one_message_whatever_becomes_of_the_file() {
    let files = 1000;
    let (stuffed, none) = creates("", files);
    assert_eq!(none, 0);
    assert!(
        (files..files + files / 50).contains(&stuffed),
        "a create each, and what is closed at once: {stuffed}"
    );
    let (striped, none) = creates("stuffing = false", files);
    assert_eq!(none, 0, "datafiles that nobody writes to cost nothing");
    let (precreated, batches) = creates("stuffing = false\nprecreation = true", files);
    // That a file with a stream is closed is said at once, for others wait for it.
    assert_eq!((striped, precreated), (2 * files, 2 * files));
    assert!((DATA_SERVERS..=files * DATA_SERVERS / 32).contains(&batches), "{batches}");
}

#[test]
fn whatever_breaks_no_datafile_is_left_behind() {
    for seed in 0..6 {
        let (durability, kind) = if seed % 2 == 0 { ("written", "crash") } else { ("durable", "power") };
        let report = run(&format!(
            "seed = {seed}\n[cluster]\nranks = 2\ndata = 3\nclients = 4\ndurability = \"{durability}\"\n\
             [policy]\nstuffing = false\nprecreation = {}\n[model]\npreset = \"wu\"\nclient = \"2 ms\"\n\
             [faults]\n{kind} = {{ every = {{ exponential = \"300 ms\" }}, for = \"200 ms\" }}\ncut = {{ every = \"100 ms\" }}\n\
             [[workload]]\nkind = \"create\"\nprocesses = 8\nfiles = 50\nbytes = \"10 KiB\"\nremove = true\n",
            seed != 0
        ));
        assert!(report.faults.contains_key(kind), "{:?}", report.faults);
    }
}
