//! Time that the metrics for load balancing take: `cargo run --release --example load`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::time::{Duration, Instant};

use espalier_meta::{Config, Input, Milli, PeerMessage, Popularity, RankLoad};
use espalier_policy::{Key, Policy};
use espalier_proto::{Ino, NewNode, Rank};
use harness::{Harness, config};

/// Directories with counters: as many as a full table has after it has made space.
const DIRECTORIES: u32 = 49_152;
const TICKS: usize = 40;
const RANKS: u16 = 200;

/// A rank whose directories all have load.
fn busy(ranks: u16) -> Harness {
    let mut policy = Policy::NONE;
    policy.set(Key::Pin, "parent").unwrap();
    let mut fs = Harness::with(Config { ranks, policy, ..config() });
    let dirs: Vec<Ino> = (0..DIRECTORIES)
        .map(|n| fs.create(Ino::ROOT, &format!("{n}"), NewNode::Directory).unwrap())
        .collect();
    for (at, dir) in dirs.iter().enumerate() {
        // Above and below one request a second.
        for n in 0..1 + 16 * (at % 2) {
            fs.create(*dir, &format!("{n}"), NewNode::Regular).unwrap();
        }
    }
    fs
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Median time of a tick. Time hardly passes, so that no counter becomes negligible.
fn tick(fs: &mut Harness) -> Duration {
    let ticks = (0..TICKS).map(|_| {
        fs.uptime_ms += 1;
        let begin = Instant::now();
        fs.input(Input::Tick);
        let took = begin.elapsed();
        fs.peers.clear();
        took
    });
    median(ticks.collect())
}

fn main() {
    let tick_1 = tick(&mut busy(1));
    let mut fs = busy(2);
    let tick_2 = tick(&mut fs);
    println!("a tick with counters of {DIRECTORIES} directories, one rank: {tick_1:.1?}");
    println!("the same, several ranks: {tick_2:.1?}");

    let mut fs = Harness::with(Config { ranks: RANKS, ..config() });
    let auth = Popularity { iwr: Milli(1_234_567), ..Popularity::default() };
    let load = RankLoad { auth, all: auth, ..RankLoad::default() };
    let begin = Instant::now();
    for _ in 0..TICKS {
        for rank in 1..RANKS {
            let message = PeerMessage::Heartbeat { load, policy: 1 };
            fs.input(Input::Peer { from: Rank(rank), message });
        }
    }
    let heard = begin.elapsed() / (TICKS as u32 * u32::from(RANKS - 1));
    println!(
        "a heartbeat of another rank: {heard:.1?}; a tick that sends {}: {:.1?}",
        RANKS - 1,
        tick(&mut fs)
    );
}
