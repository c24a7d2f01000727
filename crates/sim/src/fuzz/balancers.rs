//! Clusters with balancers, whose policies are shipped ones, hostile ones and broken ones.

use std::fmt::Write as _;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::scenario::Case;
use crate::random::{Random, Seed};
use crate::time::Nanos;

/// One in this many of the runs that may have balancers has them.
const EVERY: u32 = 2;

/// Capacity of directories that do not split.
pub const WHOLE: u32 = 1000;

/// Pauses between calls: balancers decide on what happened in the last seconds.
pub const PAUSES: [Nanos; 2] = [Nanos(30_000_000), Nanos(100_000_000)];

const SHIPPED: [&str; 6] = [
    "cephfs",
    "greedy-spill",
    "adaptable",
    "adaptable-requests",
    "adaptable-too-aggressive",
    "greedy-spill-evenly",
];

/// Policies that administrators should not write.
const HOSTILE: [&str; 8] = [
    // It wants all load to be at another rank, at each tick.
    "function when() return true end\nfunction where() targets[whoami % #MDSs + 1] = MDSs[whoami]['load'] end",
    // It never is content.
    "function when() return true end\nfunction where() for i = 1, #MDSs do targets[i] = math.random() * MDSs[whoami]['load'] end end\nhowmuch = { 'small_first', 'half' }",
    "function mdsload(i) return math.random() end\nfunction when() return true end\nfunction where() targets[math.random(#MDSs)] = total / 2 end\nhowmuch = { 'half' }",
    "function when() while true do end end\nfunction where() end",
    "function when() local t = {} while true do t[#t + 1] = { #t } end end\nfunction where() end",
    "function when() return true end\nfunction where() targets[whoami % #MDSs + 1] = 0 / 0 end",
    "function when() return true end\nfunction where() targets[99] = 1 end",
    "function when() return when() end\nfunction where() end",
];

/// True if a run that can have balancers has some. It has no other files than the check knows the
/// ranks of, and loses no changes.
pub fn may_be_in(seed: u64) -> bool {
    Seed(seed).random("fuzz balancers", 0).random_range(0..EVERY) == 0
}

/// True if the seed has a cluster with balancers.
pub fn are_in(seed: u64) -> bool {
    may_be_in(seed) && Case::new(seed).is_ok_and(|case| case.scenario.balancer.is_on())
}

/// The table of a seed.
pub fn text(seed: u64) -> String {
    let mut random = Seed(seed).random("fuzz balancers", 1);
    let policy = match random.random_range(0..2) {
        0 => format!("policy = \"{}\"", SHIPPED.choose(&mut random).copied().unwrap_or_default()),
        _ => format!("script = '''\n{}'''", HOSTILE.choose(&mut random).copied().unwrap_or_default()),
    };
    let mut more = Seed(seed).random("fuzz balancers", 2);
    let is_generated = more.random_range(0..4) == 0;
    let policy = if is_generated { format!("script = '''\n{}'''", generated(&mut more)) } else { policy };
    let every = ["1 s", "1 s", "2 s"].choose(&mut random).copied().unwrap_or_default();
    let dwell = ["1 s", "3 s", "8 s"].choose(&mut random).copied().unwrap_or_default();
    let window = ["2 s", "8 s"].choose(&mut random).copied().unwrap_or_default();
    let mut text =
        format!("\n[balancer]\n{policy}\nevery = \"{every}\"\ndwell = \"{dwell}\"\nwindow = \"{window}\"\n");
    // Few requests are saved in a short run, so moves seldom have a cost.
    let (per_move, per_entry) = if more.random_range(0..8) == 0 { (2.0, 0.05) } else { (0.0, 0.0) };
    let moves = random.random_range(1..5);
    let _ = writeln!(text, "moves = {moves}\ncost_per_move = {per_move:.2}\ncost_per_entry = {per_entry:.2}");
    text
}

/// A policy of random parts, sensible or not.
fn generated(random: &mut Random) -> String {
    let mut one_of = |parts: &[&'static str]| parts.choose(random).copied().unwrap_or_default();
    let loads = one_of(&[
        "",
        "function metaload() return IRD + 2 * IWR + READDIR end\n",
        "function mdsload(i) return MDSs[i]['all'] + MDSs[i]['q'] end\n",
        "function mdsload(i) return MDSs[i]['cpu'] - MDSs[i]['mem'] end\n",
    ]);
    let when = one_of(&[
        "true",
        "MDSs[whoami]['load'] > total / #MDSs",
        "MDSs[whoami % #MDSs + 1]['load'] < authmetaload",
        "allmetaload >= authmetaload and math.random() < 0.5",
        "RDstate() ~= whoami",
        "IWR > READDIR",
    ]);
    let amount = one_of(&[
        "total / #MDSs",
        "MDSs[whoami]['load'] / 2",
        "MDSs[whoami]['load'] - MDSs[i]['load']",
        "math.random() * allmetaload",
        "max(MDSs[whoami]['load'] - 1, 0)",
        "1 / (MDSs[i]['load'] - MDSs[whoami]['load'])",
    ]);
    let targets = one_of(&[
        "for i = 1, #MDSs do if i ~= whoami then TARGET end end",
        "local i = math.random(#MDSs) if i ~= whoami then TARGET end",
        "local i = whoami % #MDSs + 1 TARGET WRstate(i)",
    ]);
    let targets = targets.replace("TARGET", &format!("targets[i] = {amount}"));
    let selectors = one_of(&[
        "",
        "howmuch = { 'big_first' }\n",
        "howmuch = { 'small_first', 'big_small' }\n",
        "function howmuch() return { 'half', 'big_first' } end\n",
    ]);
    format!("{loads}function when() return {when} end\nfunction where() {targets} end\n{selectors}")
}
