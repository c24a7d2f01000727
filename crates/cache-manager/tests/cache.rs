//! Cache policies on small caches and on traces shaped like ParSplice's.
#![allow(clippy::unwrap_used)]

use espalier_balancer::ScriptError;
use espalier_cache_manager::trace::{TraceAccess, TraceShape};
use espalier_cache_manager::{ACCESSES_MAX, ManagedCache, policies, replay};

const SHAPE: TraceShape =
    TraceShape { seed: 1, seconds: 300, groups: 5, group_keys: 1000, reads_per_s: 1000 };

fn filled(policy: &str, keys: u64) -> ManagedCache<u64> {
    let mut cache = ManagedCache::new("test.lua", policy);
    (0..keys).for_each(|key| cache.insert(0, key, key));
    cache
}

#[test]
fn least_recently_used_entries_go_first() {
    let mut cache = filled(&policies::lru(3), 5);
    assert_eq!(cache.get(0, 0), Some(&0));
    cache.insert(0, 1, 100);
    assert_eq!(cache.manage(1000, || false), Ok(2));
    assert_eq!([0, 1, 4].map(|key| cache.get(0, key).copied()), [Some(0), Some(100), Some(4)]);
    assert_eq!([2, 3].map(|key| cache.get(0, key).copied()), [None, None]);
    assert_eq!(cache.manage(2000, || false), Ok(0));
}

#[test]
fn multi_policy_limits_the_cache_after_the_burst() {
    let mut cache = filled(&policies::multi_policy(10, 50), 50);
    assert_eq!(cache.manage(0, || false), Ok(0));
    cache.insert(0, 50, 0);
    assert_eq!(cache.manage(0, || false), Ok(41));
    // The state lasts: the limit holds far below the burst.
    (100..105).for_each(|key| cache.insert(0, key, 0));
    assert_eq!(cache.manage(0, || false), Ok(5));
}

#[test]
fn fans_end_when_the_accesses_move_on() {
    let mut cache = filled(policies::FANS, 100);
    for key in [50, 0, 99, 3, 70] {
        cache.get(0, key);
    }
    assert_eq!(cache.manage(0, || false), Ok(0));
    for (n, key) in [100, 101, 102, 100, 102, 101].into_iter().enumerate() {
        cache.insert(250 * n as u64, key, key);
        assert_eq!(cache.manage(250 * n as u64, || false), Ok(if n == 4 { 100 } else { 0 }), "{n}");
    }
    // A key of the fan before, which is new to the cache: both are one fan.
    cache.insert(3000, 99, 99);
    cache.insert(5000, 102, 102);
    assert_eq!((cache.manage(5000, || false), cache.len()), (Ok(0), 4));
}

#[test]
fn failed_policy_evicts_nothing() {
    let hooks =
        "function howmuch() servers[1].cachesize = 0 / 0 end function when() WRstate(1) return true end";
    let mut cache = filled(hooks, 5);
    let error = cache.manage(0, || false).unwrap_err();
    assert_eq!((cache.len(), error.to_string().contains("no number of entries")), (5, true));
    for (policy, expected) in [
        ("x = 1", "there is no function `when`"),
        ("function when() return 1 end", "`when` returns 1 instead of true or false"),
        (
            "function when() return RDstate() ~= 0 or missing end",
            "test.lua:1: there is no variable `missing`",
        ),
        ("function when() return timeseries():get(6) end", "test.lua:1: the time series has values 1 to 5"),
    ] {
        assert_eq!(filled(policy, 5).manage(0, || false).unwrap_err().to_string(), expected);
    }
    let endless = filled("function when() while true do end end", 5).manage(0, || true);
    assert_eq!(endless, Err(ScriptError::Time));
}

#[test]
fn full_history_of_accesses_fits_the_budget() {
    let mut cache = filled(policies::FANS, 0);
    let last = 2 * ACCESSES_MAX as u64;
    (0..=last).for_each(|key| cache.insert(0, last - key, 0));
    assert_eq!(cache.manage(0, || false), Ok(0));
    (0..10).for_each(|n| cache.insert(1000 * n, last + 1 + n, 0));
    assert_eq!((cache.manage(10_000, || false), cache.len()), (Ok(ACCESSES_MAX * 2 + 9), 2));
}

#[test]
fn trace_reads_only_what_it_has_written() {
    let (mut written, mut reads, mut last_ms) = (0, 0, 0);
    SHAPE.run(|at_ms, access| {
        assert!(at_ms >= last_ms);
        last_ms = at_ms;
        match access {
            TraceAccess::Write(key) => {
                assert_eq!(key, written);
                written += 1;
            }
            TraceAccess::Read(key) => {
                assert!(key < written);
                reads += 1;
            }
        }
    });
    assert_eq!((written, last_ms / 1000), (1000 + 1200 + 1400 + 1600 + 1800, 299));
    assert!((150_000..=200_000).contains(&reads), "{reads}");
}

/// The thesis' claim (5.3.4): the dynamic cache saves 32 to 66 % of the memory at equal progress.
#[test]
fn fans_save_memory_without_misses() {
    let unlimited = replay("unlimited", policies::UNLIMITED, &SHAPE).unwrap();
    let fans = replay("fans", policies::FANS, &SHAPE).unwrap();
    assert_eq!((unlimited.misses, unlimited.entries), (0, 7000));
    assert_eq!(fans.misses, 0, "{fans:?}");
    let saved = 1.0 - fans.entries_mean / unlimited.entries_mean;
    assert!(saved > 0.32, "{saved} {fans:?}");
    let small = replay("lru", &policies::lru(100), &SHAPE).unwrap();
    assert!(small.misses > small.reads / 20, "{small:?}");
}
