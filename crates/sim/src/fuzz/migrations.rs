//! Clusters of one metadata server, which stand for embedded mounts, whose stores are migrated.

use rand::Rng;
use rand::seq::IndexedRandom;

use crate::random::Seed;

/// Lines of `[faults]`: destinations fail all the time, now and then, or never.
const FAULTS: [&str; 3] = [
    "destination = { every = { exponential = \"500 ms\" }, for = \"300 ms\" }",
    "destination = { every = { exponential = \"4 s\" }, for = \"1 s\" }",
    "",
];

/// True if a run with one metadata server has migrations.
pub fn may_be_in(seed: u64) -> bool {
    Seed(seed).random("fuzz migrations", 0).random_range(0..2) == 0
}

/// Lines of `[cluster]`. Uses a separate random generator, so that other settings of a seed do not
/// depend on it. `calm`: end of faults, in seconds.
pub fn text(seed: u64, calm: u64) -> String {
    let mut random = Seed(seed).random("fuzz migrations", 1);
    let mut times: Vec<u64> =
        (0..random.random_range(1..4)).map(|_| random.random_range(0..calm * 1000)).collect();
    times.sort_unstable();
    let migration = |at: u64| {
        let to = if random.random() { "disk" } else { "objects" };
        format!("{{ at = \"{at} ms\", to = \"{to}\" }}")
    };
    let migrations: Vec<_> = times.into_iter().map(migration).collect();
    let step = ["1 ms", "30 ms", "300 ms"].choose(&mut random).copied().unwrap_or_default();
    format!("migrations = [{}]\nmigration_step = {{ exponential = \"{step}\" }}", migrations.join(", "))
}

/// Faults of destinations.
pub fn faults(seed: u64) -> &'static str {
    FAULTS.choose(&mut Seed(seed).random("fuzz migrations", 2)).copied().unwrap_or_default()
}
