//! Metrics for load balancing, over the simulated network.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_meta::KnownLoad;
use espalier_proto::Rank;
use espalier_sim::{Nanos, Scenario, World};

/// Many clients work in one directory, a few in others, while rank 1 is down for a while.
const ONE_IS_HOT: &str = "[cluster]\nranks = 3\nclients = 8\n[model]\npreset = \"wu\"\n\
    [faults]\ncrash = { at = [\"9 s\"], for = \"20 s\", nodes = [2] }\n\
    [[workload]]\nkind = \"create\"\nprocesses = 8\nfiles = 20000\ndir = \"hot\"\n\
    [[workload]]\nkind = \"create\"\nprocesses = 1\nfiles = 50\ndir = \"cold\"\n";

fn run_until(world: &mut World<'_>, seconds: u64) {
    while world.progress().now < Nanos(seconds * 1_000_000_000) {
        assert!(!world.advance(100).unwrap().is_over, "the run has ended before {seconds} s");
    }
}

fn known(world: &World<'_>, rank: u16) -> Vec<KnownLoad> {
    world.load_report(Rank(rank), 0).unwrap().ranks
}

#[test]
fn heartbeats_show_the_hot_directory_and_a_rank_that_is_lost() {
    let scenario = Scenario::parse(ONE_IS_HOT, Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut mutator).unwrap();
    run_until(&mut world, 8);
    let reports = [0, 1, 2].map(|rank| world.load_report(Rank(rank), 10).unwrap());
    let hottest = reports.iter().flat_map(|report| &report.directories);
    let hottest = hottest.max_by(|a, b| a.own.load().total_cmp(&b.own.load())).unwrap();
    assert!(hottest.entries > 1000 && hottest.own.iwr.get() > 500.0, "{hottest:?}");
    let busiest = hottest.rank;
    for report in &reports {
        assert!(report.ranks.iter().all(|known| !known.is_silent()), "{report:?}");
        let of = |rank: u16| report.ranks[usize::from(rank)].load;
        for other in (0..3).filter(|rank| *rank != busiest.0) {
            assert!(of(other).auth.load() < of(busiest.0).auth.load() / 4.0, "{report:?}");
            assert!(of(other).cpu < of(busiest.0).cpu, "{report:?}");
        }
        let busy = of(busiest.0);
        assert!(busy.cpu.get() > 20.0 && busy.requests.get() > 500.0 && busy.mem.get() > 0.0, "{busy:?}");
    }
    run_until(&mut world, 20);
    assert!(world.load_report(Rank(2), 0).is_none());
    for rank in 0..2 {
        let known = known(&world, rank);
        assert_eq!(known.iter().map(KnownLoad::is_silent).collect::<Vec<_>>(), [false, false, true]);
        assert!((9000..=13_000).contains(&known[2].age_ms.unwrap()), "{known:?}");
    }
    run_until(&mut world, 34);
    assert!((0..3).all(|rank| known(&world, rank).iter().all(|known| !known.is_silent())));
}
