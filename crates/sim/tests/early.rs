//! Changes that clients tell their processes of before servers have made them.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Report, Scenario, World};

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut observer, mut saboteur) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut saboteur).unwrap();
    let report = world.run().unwrap_or_else(|error| panic!("seed {}: {error}", scenario.seed));
    assert_eq!(world.fsck().unwrap(), [], "seed {}", scenario.seed);
    assert_eq!(report.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
    report
}

/// The mean of an operation's times, in us.
fn mean(report: &Report, name: &str) -> f64 {
    report.operations.iter().find(|kind| kind.kind == name).unwrap().mean_us
}

#[test]
fn who_is_alone_in_a_directory_does_not_wait() {
    let run = |shared: bool| {
        run(&format!(
            "[cluster]\nclients = 2\n[model]\npreset = \"wu\"\n[[workload]]\nkind = \"create\"\nprocesses = 2\n\
             shared = {shared}\nfiles = 60\nremove = true\n"
        ))
    };
    let (own, shared) = (run(false), run(true));
    for kind in ["create", "unlink"] {
        let (alone, together) = (mean(&own, kind), mean(&shared, kind));
        assert!(alone < together / 2.0, "{kind}: {alone} us alone, {together} us together");
    }
}
