//! Policies on a trace shaped like ParSplice's (sevilla, Figs. 5.11 and 5.14).
#![allow(clippy::print_stdout)]

use espalier_balancer::ScriptError;
use espalier_cache_manager::trace::TraceShape;
use espalier_cache_manager::{policies, replay};

const SHAPE: TraceShape =
    TraceShape { seed: 1, seconds: 2000, groups: 10, group_keys: 10_000, reads_per_s: 2000 };

fn main() -> Result<(), ScriptError> {
    let policies = [
        ("unlimited", policies::UNLIMITED.to_owned()),
        ("lru 100,000", policies::lru(100_000)),
        ("lru 10,000", policies::lru(10_000)),
        ("lru 1,000", policies::lru(1000)),
        ("multi-policy 10,000", policies::multi_policy(10_000, 50_000)),
        ("multi-policy 1,000", policies::multi_policy(1000, 50_000)),
        ("fans", policies::FANS.to_owned()),
    ];
    println!("{:<22}{:>10}{:>12}{:>12}{:>12}", "policy", "misses", "at the end", "at most", "on average");
    for (name, policy) in policies {
        let report = replay(name, &policy, &SHAPE)?;
        let missed = 100.0 * report.misses as f64 / report.reads as f64;
        let (end, most, mean) = (report.entries, report.entries_max, report.entries_mean);
        println!("{name:<22}{missed:>8.2} %{end:>12}{most:>12}{mean:>12.0}");
    }
    Ok(())
}
