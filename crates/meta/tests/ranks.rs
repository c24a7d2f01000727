//! Several ranks share a namespace. Whatever messages are lost, delayed or duplicated, and
//! whichever process crashes, all answers are consistent with some serial order of the operations,
//! and one tree results.

mod cache;
mod cluster;
mod model;

use std::panic::catch_unwind;

use espalier_proto::{ObjectKind, TableWrite};

use crate::harness::Selection;
use cluster::{ClusterOptions, Crash, RankCluster};

fn setting(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        ranks: 2 + (seed % 3) as u16,
        clients: 1 + (seed % 4) as usize,
        operations: 30,
        crash: Crash::Never,
        losses: false,
        evicting: false,
        moving: false,
        leases: false,
        unmarked: None,
    }
}

/// `RANKS_SEEDS` sets the number of seeds from `RANKS_SEED` on; only `RANKS_SEED` selects that
/// seed.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, count) = (number("RANKS_SEED"), number("RANKS_SEEDS"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { 300 });
    let first = first.unwrap_or(0);
    first..first + count
}

#[test]
fn operations_of_several_clients_are_done_one_after_another() {
    for seed in seeds() {
        RankCluster::new(setting(seed)).run();
    }
}

#[test]
fn directories_do_not_get_into_themselves() {
    for seed in seeds() {
        let (ranks, clients, moving) = (3 + (seed % 2) as u16, 4, true);
        RankCluster::new(ClusterOptions { ranks, clients, moving, operations: 60, ..setting(seed) }).run();
    }
}

#[test]
fn two_directories_are_not_moved_into_each_other() {
    for seed in seeds() {
        let (clients, operations) = (2, 0);
        RankCluster::new(ClusterOptions { clients, operations, ..setting(seed) }).move_into_each_other();
    }
}

#[test]
fn lost_and_repeated_messages_change_nothing() {
    for seed in seeds() {
        RankCluster::new(ClusterOptions { losses: true, evicting: seed % 2 == 0, ..setting(seed) }).run();
    }
}

#[test]
fn caches_are_coherent() {
    let mut cached = 0;
    for seed in seeds() {
        let (losses, crash) = match seed % 3 {
            0 => (false, Crash::Never),
            1 => (true, Crash::Never),
            _ => (true, Crash::Process),
        };
        cached += RankCluster::new(ClusterOptions { leases: true, losses, crash, ..setting(seed) }).run();
    }
    assert!(cached > seeds().count() / 10, "{cached}");
}

#[test]
fn killed_servers_lose_no_change() {
    for seed in seeds() {
        let evicting = seed % 2 == 0;
        RankCluster::new(ClusterOptions { losses: true, evicting, crash: Crash::Process, ..setting(seed) })
            .run();
    }
}

#[test]
fn losses_of_power_keep_durable_changes() {
    for seed in seeds() {
        let evicting = seed % 2 == 0;
        RankCluster::new(ClusterOptions { losses: true, evicting, crash: Crash::Power, ..setting(seed) })
            .run();
    }
}

#[test]
fn losses_of_power_leave_no_partial_operation() {
    for seed in seeds() {
        let evicting = seed % 2 == 0;
        RankCluster::new(ClusterOptions {
            losses: true,
            evicting,
            crash: Crash::PowerUnsynced,
            ..setting(seed)
        })
        .run();
    }
}

/// Mutants: see `checkpoint.rs`.
#[test]
fn records_of_ranks_that_are_not_marked_changed_are_found() {
    fn is_tagged(write: &TableWrite, tag: u8) -> bool {
        write.object.kind == ObjectKind::Sessions && write.key.first() == Some(&tag)
    }
    let kinds: [(&str, Selection); 4] = [
        ("session", |write| is_tagged(write, b's')),
        ("moved inode", |write| is_tagged(write, b'm')),
        ("transaction", |write| is_tagged(write, b't')),
        ("usage deltas", |write| is_tagged(write, b'u')),
    ];
    for (kind, unmarked) in kinds {
        let is_found = |seed| {
            let setting = ClusterOptions { evicting: true, unmarked: Some(unmarked), ..setting(seed) };
            catch_unwind(|| RankCluster::new(setting).run()).is_err()
        };
        assert!((0..100).any(is_found), "{kind}");
    }
}
