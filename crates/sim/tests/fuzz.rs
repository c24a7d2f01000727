//! Random clusters with random calls and faults: no failures without mutants, and all mutants are
//! detected.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use espalier_sim::fuzz;
use espalier_sim::mutant::{Mutant, Mutation};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// `SIM_SEEDS` seeds from `SIM_SEED` on; `SIM_SEED` without `SIM_SEEDS` selects that seed.
/// `scripts/soak.sh` runs those after the default.
fn seeds() -> Range<u64> {
    let (first, count) = (number("SIM_SEED"), number("SIM_SEEDS"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { 500 });
    let first = first.unwrap_or(0);
    first..first + count
}

/// Calls `work` for each number of a range, on all processors.
fn for_all(range: Range<u64>, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(range.start);
    let work = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        numbers.take_while(|number| *number < range.end).for_each(&work);
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
}

#[test]
fn fuzzing_finds_no_violation() {
    let [answers, given_up, failed] = [const { AtomicU64::new(0) }; 3];
    for_all(seeds(), |seed| match fuzz::run(seed) {
        Ok(passed) => {
            answers.fetch_add(passed.answers, Ordering::Relaxed);
            given_up.fetch_add(u64::from(passed.given_up), Ordering::Relaxed);
        }
        Err(failure) => {
            failed.fetch_add(1, Ordering::Relaxed);
            eprintln!("seed {seed}: {failure}\n{}", fuzz::scenario_text(seed).unwrap());
        }
    });
    let [answers, given_up, failed] = [answers, given_up, failed].map(AtomicU64::into_inner);
    eprintln!("{answers} answers explained; given up in {given_up} runs");
    assert_eq!(failed, 0);
    let count = seeds().end - seeds().start;
    assert!(answers > 10 * count, "{answers}");
    assert!(count < 100 || given_up * 40 < count, "given up in {given_up} runs of {count}");
}

/// Number of seeds within which each mutant must be detected, and those whose effect is rare.
const ENOUGH: u64 = 200;
const ENOUGH_FOR_RARE: u64 = 1200;

fn seeds_for(what: Mutation) -> impl Iterator<Item = u64> {
    let is_rare = matches!(
        what,
        Mutation::UnsetAttributes
            | Mutation::OvertakingRequest
            | Mutation::RenumberedFragments
            | Mutation::OverstatedRate
            | Mutation::ForgottenFreeze
    );
    let enough = if is_rare { ENOUGH_FOR_RARE } else { ENOUGH };
    (0..).filter(move |seed| fuzz::can_show(*seed, what)).take(enough as usize)
}

#[test]
fn every_mutant_is_detected() {
    // Few random clusters let clients use the data pool, and cut one off but not the readers of its
    // files: `tests/failover.rs` detects this one.
    let shows = |what: &Mutation| *what != Mutation::UnfencedClient;
    detects(&Mutation::ALL.into_iter().filter(shows).collect::<Vec<_>>());
}

#[test]
fn balancers_move_fragments_and_their_mutants_are_detected() {
    let of_balancers = Mutation::ALL.into_iter().filter(|what| what.is_of_balancers());
    detects(&of_balancers.collect::<Vec<_>>());
    let [runs, begun, ended, longest] = [const { AtomicU64::new(0) }; 4];
    for_all(0..ENOUGH, |seed| {
        if fuzz::balancers::are_in(seed)
            && let Ok(passed) = fuzz::run(seed)
        {
            runs.fetch_add(1, Ordering::Relaxed);
            begun.fetch_add(passed.moves[0], Ordering::Relaxed);
            ended.fetch_add(passed.moves[1], Ordering::Relaxed);
            longest.fetch_max(passed.longest.as_millis(), Ordering::Relaxed);
        }
    });
    let [runs, begun, ended] = [runs, begun, ended].map(AtomicU64::into_inner);
    eprintln!(
        "{begun} moves decided, {ended} begun in {runs} runs with balancers; longest call {longest:?} ms"
    );
    assert!(begun > 20 && ended > 5, "{begun} {ended} {runs}");
}

#[test]
fn fragments_split_because_of_requests() {
    let splits = AtomicU64::new(0);
    for_all(0..ENOUGH, |seed| {
        if let Ok(passed) = fuzz::run(seed) {
            splits.fetch_add(passed.splits_by_requests, Ordering::Relaxed);
        }
    });
    eprintln!("{splits:?} fragments because of requests");
    assert!(splits.into_inner() > 10);
    detects(&[Mutation::OverstatedRate]);
}

#[test]
fn walks_read_pages_that_were_fetched_ahead() {
    let pages = AtomicU64::new(0);
    for_all(0..ENOUGH, |seed| {
        if let Ok(passed) = fuzz::run(seed) {
            pages.fetch_add(passed.pages_read_ahead, Ordering::Relaxed);
        }
    });
    eprintln!("{pages:?} pages read ahead");
    assert!(pages.into_inner() > 10);
    detects(&[Mutation::KeptListing]);
}

fn detects(mutations: &[Mutation]) {
    let missed = AtomicU64::new(0);
    for_all(0..mutations.len() as u64, |at| {
        let what = mutations[at as usize];
        // Detected by the mutant's own effect.
        let is_caught =
            |seed: &u64| fuzz::mutated(*seed, &mut Mutant::new(what)).is_err() && fuzz::run(*seed).is_ok();
        let caught = seeds_for(what).find(is_caught);
        eprintln!("{what:?} is found out by seed {caught:?}");
        missed.fetch_add(u64::from(caught.is_none()), Ordering::Relaxed);
    });
    assert_eq!(missed.into_inner(), 0);
}

#[test]
fn stores_migrate_while_they_are_used() {
    let migrations = AtomicU64::new(0);
    for_all(0..ENOUGH, |seed| {
        if let Ok(passed) = fuzz::run(seed) {
            migrations.fetch_add(passed.migrations, Ordering::Relaxed);
        }
    });
    eprintln!("{migrations:?} migrations");
    assert!(migrations.into_inner() > 10);
    detects(&[Mutation::UnnotedChange, Mutation::EarlyCompletion]);
}
