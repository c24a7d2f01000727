//! Random clusters with random calls and faults: nothing is found in the program as it is.
#![allow(clippy::unwrap_used)]

use espalier_sim::fuzz;
use espalier_sim::sabotage::{Breakage, Spoiler};

/// More with `SIM_SEEDS`; only one with `SIM_SEED`.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(200),
    }
}

#[test]
fn nothing_is_found() {
    let (mut answers, mut given_up, mut failed) = (0, 0, 0);
    for seed in seeds() {
        match fuzz::run(seed) {
            Ok(passed) => {
                answers += passed.answers;
                given_up += u64::from(passed.given_up);
            }
            Err(failure) => {
                failed += 1;
                eprintln!("seed {seed}: {failure}\n{}", fuzz::scenario_text(seed).unwrap());
            }
        }
    }
    eprintln!("{answers} answers explained; given up in {given_up} runs");
    assert_eq!(failed, 0);
    let count = seeds().end - seeds().start;
    assert!(answers > 10 * count, "{answers}");
    assert!(count < 100 || given_up * 20 < count, "given up in {given_up} runs of {count}");
}

/// Each broken variant is found out within so many seeds.
const ENOUGH: u64 = 120;

#[test]
fn whatever_is_broken_is_found_out() {
    for what in Breakage::ALL {
        // By what is broken, that is.
        let is_caught =
            |seed: &u64| fuzz::spoiled(*seed, &mut Spoiler::new(what)).is_err() && fuzz::run(*seed).is_ok();
        let caught = (0..ENOUGH).find(is_caught);
        eprintln!("{what:?} is found out by seed {caught:?}");
        assert!(caught.is_some(), "{what:?} is not found out");
    }
}
