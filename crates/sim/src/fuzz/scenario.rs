//! The scenario of a seed: a small cluster of random configuration with many faults, until
//! everything must become idle.

use std::fmt::Write as _;
use std::path::Path;

use espalier_policy::{Creator, Key};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::acls;
use super::balancers::{self, WHOLE};
use super::failover;
use super::migrations;
use super::policies::Live;
use super::privileges;
use super::quotas;
use super::random_calls::Habits;
use super::{exclusive, handles, locks, looks, reads, streaks, walks};
use crate::faults::Fault;
use crate::random::{Random, Seed};
use crate::scenario::{Durability, Scenario, ScenarioError};
use crate::time::Nanos;

/// A run.
#[derive(Debug)]
pub struct Case {
    pub text: String,
    pub scenario: Scenario,
    /// Number of processes with random calls; they run on all clients but the last.
    pub wanderers: u32,
    pub habits: Habits,
    /// Changes of directories' policies.
    pub live: Option<Live>,
    /// End of faults.
    pub calm: Nanos,
    /// Time after the reply at which a change is durable; `None`: no acknowledged change can be
    /// lost.
    pub durable: Option<Nanos>,
}

/// Journal sync interval of 1 s plus a margin: a loss of power may take changes of this last time.
const SECOND: Nanos = Nanos(1_500_000_000);
/// Additional time if disks may be slow.
const SLOW: Nanos = Nanos(1_000_000_000);
/// Additional time if disks may fail; the journal is synced when the disk works again.
const FAILING: Nanos = Nanos(4_000_000_000);

/// Pause between calls of processes that mostly read.
const UNHURRIED: Nanos = Nanos(100_000_000);

impl Case {
    /// # Errors
    /// None is expected: the text of every seed is a valid scenario.
    pub fn new(seed: u64) -> Result<Self, ScenarioError> {
        let mut random = Seed(seed).random("fuzz", 0);
        let strip = *[64, 64, 256, 4096, 8192].choose(&mut random).unwrap_or(&64);
        let fails_over = failover::is_in(seed);
        let calm = random.random_range(if fails_over { 15..50 } else { 1..20 });
        let mut text = match fails_over {
            true => failover::text(seed, strip, calm, &mut random),
            false => text(seed, strip, calm, &mut random),
        };
        let scenario = Scenario::parse(&text, Path::new("the scenario of a seed"))?;
        let ranks = u32::from(scenario.cluster.ranks);
        let is_of_ranks = |fault: &Fault| fault.nodes.is_empty() || fault.nodes.iter().any(|it| *it < ranks);
        let is_dark = scenario.faults.power.as_ref().is_some_and(is_of_ranks);
        let by_client = scenario.policy.0.create() == Some(Creator::Client);
        let live = Live::of(seed, strip, &scenario.policy.0);
        let is_made_so = by_client || live.as_ref().is_some_and(|live| live.keys.contains(&Key::Create));
        let acls = acls::Habit::of(seed, is_made_so);
        let mut habits = Habits {
            calls: random.random_range(20..150),
            pause: Nanos(*[1_000, 1_000_000, 30_000_000].choose(&mut random).unwrap_or(&1_000)),
            strip,
            bytes: *[0, 10, 40, 80].choose(&mut random).unwrap_or(&0),
            moves: *[5, 20, 60].choose(&mut random).unwrap_or(&5),
            users: random.random::<bool>()
                || acls.is_some()
                || privileges::Habit::of(seed, &scenario.cluster).is_some(),
            quotas: habit_of_quotas(seed, strip),
            acls,
            handles: handles::Habit::of(seed),
            privileges: privileges::Habit::of(seed, &scenario.cluster),
            locks: locks::are_in(seed),
            exclusive: exclusive::are_in(seed),
            looks: looks::are_in(seed),
            reads: reads::are_in(seed),
            streaks: streaks::are_in(seed),
            walks: walks::are_in(seed),
        };
        set_pace(&mut habits, &scenario, fails_over, &mut random);
        if let Some(live) = &live {
            let _ = writeln!(text, "\n# Directories' policies change: {:?}", live.keys);
        }
        if habits.acls.is_some() {
            text.push_str("\n# Access control lists are set.\n");
        }
        Ok(Self {
            text,
            live,
            wanderers: random.random_range(1..8),
            habits,
            calm: Nanos::from_millis(calm * 1000),
            durable: match scenario.cluster.durability {
                Durability::Written if is_dark => {
                    let slow = scenario.faults.slow_disk.as_ref().map_or(Nanos::ZERO, |_| SLOW);
                    Some(
                        SECOND
                            + slow
                            + scenario.faults.disk_failure.as_ref().map_or(Nanos::ZERO, |_| FAILING),
                    )
                }
                // Changes that never become durable may be seen and lost.
                _ if scenario.faults.disk_failure.is_some() => Some(Nanos::ZERO),
                _ => None,
            },
            scenario,
        })
    }

    /// A run of this scenario with some processes that make calls with pauses.
    ///
    /// # Errors
    /// The text is not a scenario.
    pub fn of_text(text: &str) -> Result<Self, ScenarioError> {
        let scenario = Scenario::parse(text, Path::new("a scenario"))?;
        let strip = scenario.cluster.strip.0;
        let habits =
            Habits { calls: 200, pause: UNHURRIED, strip, bytes: 40, moves: 20, ..Habits::default() };
        let calm = scenario.faults.until.unwrap_or(Nanos::from_millis(60_000));
        let wanderers = 2 * (scenario.cluster.clients - 1);
        Ok(Self { text: text.into(), scenario, wanderers, habits, live: None, calm, durable: None })
    }
}

/// Sets how long and how fast processes make calls.
fn set_pace(habits: &mut Habits, scenario: &Scenario, fails_over: bool, random: &mut Random) {
    if habits.looks {
        (habits.calls, habits.pause) = (4 * habits.calls, UNHURRIED);
    }
    if fails_over {
        habits.pause = *failover::PAUSES.choose(random).unwrap_or(&UNHURRIED);
    }
    if scenario.balancer.is_on() || scenario.policy.0.dir_split_rate().is_some() {
        habits.calls *= 2;
        habits.pause = *balancers::PAUSES.choose(random).unwrap_or(&UNHURRIED);
    }
}

/// Uses a separate random generator, so that other settings of a seed do not depend on it.
fn habit_of_quotas(seed: u64, strip: u64) -> Option<quotas::Habit> {
    let is_limited = Seed(seed).random("fuzz quotas", 0).random_range(0..3) == 0;
    is_limited.then_some(quotas::Habit { strip })
}

/// Times in ms at which ranks join. Uses a separate random generator, so that other settings of a
/// seed do not depend on it.
fn joins(seed: u64, ranks: u64, calm: u64) -> Vec<u64> {
    let mut random = Seed(seed).random("fuzz joins", 0);
    if ranks == 1 || random.random_range(0..3) > 0 {
        return Vec::new();
    }
    let count = random.random_range(1..ranks);
    let mut times: Vec<u64> = (0..count).map(|_| random.random_range(0..calm * 1000)).collect();
    times.sort_unstable();
    times
}

/// The servers that leave, as TOML. Uses a separate random generator, as [`joins`]. `ranks`: the
/// number of ranks at the beginning.
fn leaves(seed: u64, ranks: u64, calm: u64) -> String {
    let mut random = Seed(seed).random("fuzz leaves", 0);
    if ranks == 1 || random.random_range(0..2) > 0 {
        return String::new();
    }
    let mut times: Vec<u64> =
        (0..random.random_range(1..ranks)).map(|_| random.random_range(0..calm * 1000)).collect();
    times.sort_unstable();
    let mut servers: Vec<u64> = (0..ranks).collect();
    let leave = |at: u64| {
        let server = servers.swap_remove(random.random_range(0..servers.len()));
        let to = servers[random.random_range(0..servers.len())];
        format!("{{ at = \"{at} ms\", server = {server}, to = {to} }}")
    };
    times.into_iter().map(leave).collect::<Vec<_>>().join(", ")
}

fn text(seed: u64, strip: u64, calm: u64, random: &mut Random) -> String {
    let mut text = format!("seed = {seed}\n");
    let mut say = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    let one_of =
        |random: &mut Random, choices: &[&str]| choices.choose(random).map_or("", |it| *it).to_string();
    say("\n[cluster]".into());
    let ranks = random.random_range(1..=4);
    let joins = joins(seed, ranks, calm);
    let first_ranks = ranks - joins.len() as u64;
    let joins: Vec<_> = joins.into_iter().map(|time| format!("\"{time} ms\"")).collect();
    say(format!("ranks = {ranks}\njoins = [{}]", joins.join(", ")));
    say(format!("leaves = [{}]", leaves(seed, first_ranks, calm)));
    let has_migrations = ranks == 1 && migrations::may_be_in(seed);
    if has_migrations {
        say(migrations::text(seed, calm));
    }
    let data = one_of(random, &["0", "0", "1", "2", "3"]);
    say(format!("data = {data}"));
    say(format!("clients = {}", random.random_range(2..=6)));
    say(format!("cores = {}", random.random_range(1..=2)));
    say(format!("durability = \"{}\"", one_of(random, &["written", "written", "durable"])));
    let caches = ["leases", "leases", "leases", "leases", "none", "ttl 20 ms", "ttl 1 s"];
    say(format!("cache = \"{}\"", one_of(random, &caches)));
    let session = random.random_range(3..30);
    say(format!("session = \"{session} s\""));
    say(format!("lease = \"{}\"", one_of(random, &["200 ms", "1 s", "3 s"])));
    // Splits take several steps.
    say(format!("strip = \"{strip} B\"\njournal = \"2 MiB\"\nnames_per_step = 2"));
    say(format!("memory = \"{}\"", one_of(random, &["0 B", "0 B", "20 KiB", "1 GiB"])));
    say("\n[network]".into());
    say(format!("preset = \"{}\"", one_of(random, &["gigabit", "loopback", "free"])));
    let latency =
        one_of(random, &["50 us", "{ exponential = \"500 us\" }", "{ uniform = [\"10 us\", \"20 ms\"] }"]);
    let latency = if latency.starts_with('{') { latency } else { format!("\"{latency}\"") };
    say(format!("latency = {latency}"));
    say(format!("loss = {}", one_of(random, &["0.0", "0.0", "0.02"])));
    say("\n[model]\npreset = \"free\"".into());
    say(format!("create = {{ exponential = \"{}\" }}", one_of(random, &["1 us", "300 us"])));
    say("\n[disk]".into());
    say(format!("latency = {{ exponential = \"{}\" }}", one_of(random, &["10 us", "1 ms"])));
    say(format!("sync = {{ exponential = \"{}\" }}", one_of(random, &["200 us", "10 ms"])));
    say("\n[clock]".into());
    say(format!("skew = \"{}\"", one_of(random, &["0 s", "100 ms", "2 s"])));
    say(format!("drift_ppm = {}", one_of(random, &["0.0", "200.0"])));
    say("\n[faults]".into());
    say(format!("until = \"{calm} s\""));
    if has_migrations {
        say(migrations::faults(seed).into());
    }
    let (mut is_dark, mut loses, mut crashes) = (false, false, false);
    for kind in ["crash", "power", "client_crash", "cut", "partition", "late", "disk_failure", "slow_disk"] {
        if random.random_range(0..3) == 0 {
            let every = one_of(random, &["300 ms", "2 s", "6 s"]);
            let lasts = one_of(random, &["10 ms", "300 ms", "2 s"]);
            say(format!("{kind} = {{ every = {{ exponential = \"{every}\" }}, for = \"{lasts}\" }}"));
            // A failed disk loses changes, as a loss of power does.
            loses |= matches!(kind, "power" | "disk_failure");
            is_dark |= kind == "power";
            crashes |= kind == "crash";
        }
    }
    // Crashes make the server reclaim locks from clients.
    if !crashes && locks::are_in(seed) && Seed(seed).random("fuzz locks", 1).random() {
        say("crash = { every = { exponential = \"1 s\" }, for = \"100 ms\" }".into());
    }
    if Seed(seed).random("fuzz reload", 0).random_range(0..3) == 0 {
        say("reload = { every = { exponential = \"1 s\" }, for = { exponential = \"300 ms\" } }".into());
    }
    // Uses a separate random generator, so that other settings of a seed do not depend on it. The
    // loss comes late, when there is data to lose; metadata servers keep power, which makes the
    // check more exact.
    if data != "0" && !is_dark && Seed(seed).random("fuzz data power", 0).random() {
        say(format!(
            "power = {{ at = [\"{} ms\"], for = \"300 ms\", nodes = [{ranks}] }}",
            calm * 1000 - 100
        ));
    }
    let policy = RandomPolicy { seed, ranks, loses };
    policy.write(&mut text);
    text
}

/// The settings of the root's policy.
struct RandomPolicy {
    seed: u64,
    ranks: u64,
    /// Faults lose changes.
    loses: bool,
}

impl RandomPolicy {
    fn write(&self, text: &mut String) {
        let Self { seed, ranks, loses } = *self;
        let mut random = Seed(seed).random("fuzz policy", 0);
        let is_striped = random.random_range(0..3) == 0;
        let settings = if is_striped {
            format!("stuffing = false\nprecreation = {}\n", random.random_bool(0.6))
        } else if random.random_range(0..3) == 0 {
            format!("no_metafile = true\nprecreation = {}\n", random.random_bool(0.3))
        } else {
            String::new()
        };
        let is_by_client = Seed(seed).random("fuzz create", 0).random_range(0..3) == 0;
        let creator = if is_by_client { "create = \"client\"\n" } else { "" };
        let mut random = Seed(seed).random("fuzz splits", 0);
        // The check does not know that a split gives files without a metafile one, nor which rank
        // has a name when that loses changes; and it takes a creation by a client for one step.
        let has_other_files = settings.contains("no_metafile") || is_by_client;
        let may_split = !has_other_files && !loses && random.random_range(0..2) == 0;
        let has_balancers = !has_other_files && !loses && ranks > 1 && balancers::may_be_in(seed);
        let splits = if may_split {
            let (split, servers) = (random.random_range(1..5), random.random_range(1..5));
            let pin = match random.random_range(0..4) {
                0 => "pin = \"distributed\"\n",
                1 => "pin = \"parent\"\n",
                _ => "",
            };
            let merge = random.random_range(1..5);
            let by_size = format!("dir_split = {split}\ndir_servers = {servers}\ndir_merge = {merge}\n{pin}");
            by_requests(seed).unwrap_or(by_size)
        } else if has_balancers {
            // Directories move whole, unless their policies change.
            format!("dir_split = {}\n", WHOLE)
        } else {
            String::new()
        };
        let splits = splits + forwards(seed, may_split);
        if !settings.is_empty() || is_by_client || !splits.is_empty() {
            let _ = write!(text, "\n[policy]\n{settings}{creator}{splits}");
        }
        if has_balancers {
            text.push_str(&balancers::text(seed));
        }
    }
}

/// Settings with which directories split because of requests. Uses a separate random generator, so
/// that other settings of a seed do not depend on it.
fn by_requests(seed: u64) -> Option<String> {
    let mut random = Seed(seed).random("fuzz split rates", 0);
    let [split, merge] = [random.random_range(1..4), random.random_range(1..3)];
    let is_by_requests = random.random_range(0..2) == 0;
    is_by_requests.then(|| {
        format!("dir_split = {WHOLE}\ndir_split_rate = {split}\ndir_merge = 100\ndir_merge_rate = {merge}\n")
    })
}

/// In half of the runs with partitioned directories servers forward requests. Uses a separate
/// random generator, as [`by_requests`].
fn forwards(seed: u64, may_split: bool) -> &'static str {
    let mut random = Seed(seed).random("fuzz forwards", 0);
    if may_split && random.random_range(0..2) == 0 { "dir_forward = true\n" } else { "" }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_of_seeds_are_scenarios() {
        for seed in 0..200 {
            let case = Case::new(seed).unwrap();
            assert_eq!(case.text, Case::new(seed).unwrap().text);
        }
    }
}
