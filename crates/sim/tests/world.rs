//! Complete runs.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Report, Scenario, World, write_csv, write_plots};

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut mutator).unwrap();
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

/// With a free network and one pending call per client, all clients are always in the servers'
/// queues.
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
    [[workload]]\nkind = \"create\"\nprocesses = 12\nfiles = 100\n[[workload]]\nkind = \"mdtest\"\nprocesses = 4\nfiles = 200\n";

#[test]
fn cluster_recovers_after_faults() {
    for seed in 0..2 {
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

/// Each change has its own sync while the server is configured so.
#[test]
fn watermarks_change_under_way() {
    let time = |settings: &str| {
        let report = run(&format!(
            "[cluster]\nclients = 14\ndurability = \"durable\"\n{settings}[disk]\nsync = \"10 ms\"\n[network]\npreset = \"free\"\n\
             [[workload]]\nkind = \"create\"\nprocesses = 14\nfiles = 20\n"
        ));
        report.worked_s
    };
    let (together, individually) = (time(""), time("high_watermark = 1\n"));
    let by_policy = time("[policy]\ncoalescing = false\n");
    let individually_from_then_on = time("[faults]\nreload = { at = [\"0 s\"], for = \"10 s\" }\n");
    let together_from_then_on =
        time("high_watermark = 1\n[faults]\nreload = { at = [\"0 s\"], for = \"10 s\" }\n");
    let for_a_second = time("[faults]\nreload = { at = [\"0 s\"], for = \"1 s\" }\n");
    assert!(individually > 4.0 * together, "{individually} s after {together} s");
    assert!((by_policy / individually - 1.0).abs() < 0.1, "{by_policy} s, not {individually} s");
    assert!(
        (individually_from_then_on / individually - 1.0).abs() < 0.1,
        "{individually_from_then_on} s, not {individually} s"
    );
    assert!(
        (together_from_then_on / together - 1.0).abs() < 0.1,
        "{together_from_then_on} s, not {together} s"
    );
    assert!((1.0 + together * 0.5..individually * 0.8).contains(&for_a_second), "{for_a_second} s");
}

/// The disk fails before the server has written everything out.
#[test]
fn a_disk_that_fails_at_the_end_is_mended() {
    let report =
        run("[faults]\ndisk_failure = { at = [\"50 ms\"], for = \"20 s\" }\n[model]\npreset = \"wu\"\n\
        [[workload]]\nkind = \"create\"\nfiles = 300\n");
    assert!(report.worked_s < 20.0 && report.total_s > 20.0, "{report}");
}

#[test]
fn results_become_tables_and_pictures() {
    let scenario =
        Scenario::parse(&format!("{CREATES}[output]\nseries = \"100 ms\"\n"), Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut mutator).unwrap();
    let report = world.run().unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_csv(dir.path(), &report, world.series()).unwrap();
    write_plots(dir.path(), world.series()).unwrap();
    let lines = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap().lines().count();
    assert_eq!(lines("operations.csv"), 1 + report.operations.len());
    assert_eq!(lines("servers.csv"), 1 + 4);
    let steps = (report.worked_s / 0.1).ceil() as usize;
    assert_eq!(
        (lines("series.csv"), lines("server-series.csv"), lines("client-series.csv")),
        (1 + steps, 1 + 4 * steps, 1 + 32 * steps)
    );
    for name in ["throughput.svg", "latency.svg", "queue.svg", "utilisation.svg", "disk.svg", "entries.svg"] {
        let picture = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("polyline"), "{name}");
    }
}

const STRIPED: &str = "[cluster]\nranks = 2\ndata = 3\nclients = 4\nstrip = \"4 KiB\"\n[model]\npreset = \"wu\"\nclient = \"2 ms\"\n";

#[test]
fn big_files_lie_on_data_servers() {
    let report = run(&format!(
        "{STRIPED}[[workload]]\nkind = \"create\"\nprocesses = 4\nfiles = 20\nbytes = \"100 KiB\"\n"
    ));
    assert_eq!(report.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
    for data_server in &report.servers[2..] {
        assert_eq!(data_server.entries, 80);
    }
    let report = run(&format!(
        "{STRIPED}[[workload]]\nkind = \"create\"\nprocesses = 4\nfiles = 20\nbytes = \"100 KiB\"\nremove = true\n"
    ));
    assert!(report.messages["to_data"] > 0);
}

#[test]
fn data_servers_that_break_lose_no_file() {
    for seed in 0..5 {
        let faults = "crash = { every = { exponential = \"400 ms\" }, for = \"300 ms\" }\ncut = { every = \"100 ms\" }\n\
            partition = { every = \"1 s\", for = \"300 ms\" }\n";
        let report = run(&format!(
            "seed = {seed}\n[faults]\n{faults}{STRIPED}[[workload]]\nkind = \"create\"\nprocesses = 8\nfiles = 50\nbytes = \"30 KiB\"\nremove = true\n"
        ));
        assert!(report.faults.len() == 3, "{:?}", report.faults);
    }
}
