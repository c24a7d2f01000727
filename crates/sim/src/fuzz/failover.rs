//! Clusters whose servers share a store and fail over.

use std::fmt::Write as _;

use rand::Rng;
use rand::seq::IndexedRandom;

use crate::faults::FaultSettings;
use crate::random::{Random, Seed};
use crate::time::Nanos;

/// True if the seed has such a cluster.
pub fn is_in(seed: u64) -> bool {
    Seed(seed).random("fuzz failover", 0).random_range(0..20) == 0
}

/// Pauses between calls: faults last for seconds.
pub const PAUSES: [Nanos; 3] = [Nanos(30_000_000), Nanos(100_000_000), Nanos(300_000_000)];

/// The scenario of a seed. `calm`: end of faults in seconds.
pub fn text(seed: u64, strip: u64, calm: u64, random: &mut Random) -> String {
    let one_of =
        |random: &mut Random, choices: &[&str]| choices.choose(random).map_or("", |it| *it).to_string();
    let servers = random.random_range(2..=4);
    let standbys = random.random_range(0..servers.min(3));
    let mut text = format!("seed = {seed}\n\n[cluster]\nservers = {servers}\nstandbys = {standbys}\n");
    let mut say = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    if Seed(seed).random("fuzz standby replay", 0).random() {
        say("standby_replay = true".into());
    }
    say(format!("ranks = {}", random.random_range(1..=4)));
    let has_data_pool = Seed(seed).random("fuzz data pool", 0).random::<bool>();
    let is_direct = has_data_pool && Seed(seed).random("fuzz direct", 0).random_range(0..3) > 0;
    say(format!("data_pool = {has_data_pool}\ndirect = {is_direct}"));
    say(format!("clients = {}", random.random_range(2..=4)));
    say("durability = \"durable\"".into());
    say(format!("session = \"{}\"", one_of(random, &["5 s", "20 s", "30 s"])));
    say(format!("lease = \"{}\"", one_of(random, &["200 ms", "1 s", "3 s"])));
    say(format!("strip = \"{strip} B\"\njournal = \"2 MiB\"\nnames_per_step = 2"));
    say(format!("memory = \"{}\"", one_of(random, &["0 B", "20 KiB", "1 GiB"])));
    say("\n[network]".into());
    let latency = one_of(random, &["\"50 us\"", "{ exponential = \"500 us\" }"]);
    say(format!("latency = {latency}"));
    say("\n[disk]".into());
    say(format!("latency = {{ exponential = \"{}\" }}", one_of(random, &["1 ms", "5 ms"])));
    say(format!("sync = {{ exponential = \"{}\" }}", one_of(random, &["2 ms", "20 ms"])));
    say("\n[clock]".into());
    say(format!("drift_ppm = {}", one_of(random, &["0.0", "200.0"])));
    say("\n[faults]".into());
    say(format!("until = \"{calm} s\""));
    // With the latter, writes are under way at most times.
    say(format!("slowness = {}", one_of(random, &["10.0", "300.0"])));
    let kinds: [(&str, &[&str], &[&str]); 9] = [
        ("crash", &["4 s", "15 s"], &["10 ms", "1 s", "8 s"]),
        ("pause", &["6 s", "15 s"], &["2 s", "9 s", "14 s"]),
        ("restart", &["5 s", "15 s"], &["10 ms", "2 s"]),
        ("store_cut", &["10 s"], &["1 s", "9 s", "14 s"]),
        ("store_down", &["15 s"], &["500 ms", "9 s"]),
        ("slow_disk", &["8 s"], &["5 s"]),
        ("partition", &["10 s"], &["1 s", "12 s"]),
        ("cut", &["2 s"], &["10 ms"]),
        ("client_crash", &["15 s"], &["10 ms"]),
    ];
    let mut is_parted = false;
    for (at, (kind, every, lasts)) in kinds.into_iter().enumerate() {
        // The first three kinds are the likeliest.
        if random.random_bool(if at < 3 { 0.6 } else { 0.25 }) {
            is_parted |= kind == "partition";
            let (every, lasts) = (one_of(random, every), one_of(random, lasts));
            say(format!("{kind} = {{ every = {{ exponential = \"{every}\" }}, for = \"{lasts}\" }}"));
        }
    }
    if is_direct && !is_parted {
        // Clients that are cut off go on until they are fenced.
        say("partition = { every = { exponential = \"10 s\" }, for = \"20 s\" }".into());
    }
    let mut osds = Seed(seed).random("fuzz osds", 0);
    if osds.random_bool(0.4) {
        let (every, lasts) =
            (one_of(&mut osds, &["3 s", "12 s"]), one_of(&mut osds, &["2 s", "9 s", "40 s"]));
        say(format!("osd_down = {{ every = {{ exponential = \"{every}\" }}, for = \"{lasts}\" }}"));
    }
    text
}

/// True if no fault delays a takeover without a limit.
pub fn is_timed(faults: &FaultSettings) -> bool {
    let delay = [
        &faults.store_cut,
        &faults.store_down,
        &faults.osd_down,
        &faults.slow_disk,
        &faults.partition,
        &faults.late,
    ];
    delay.into_iter().all(Option::is_none)
}
