//! The decisions in random orders of steps, with sequencers that are deposed while they run.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use espalier_shared_log::{
    ClaimDecision, EpochHolder, EpochRecord, HolderState, LeaseLimits, LogCall, LogStep, SealState,
    Sequencer, SequencerExpired, SlotState, TakenNumbers, claim,
};

fn record(epoch: u64, begin: Option<u64>) -> EpochRecord {
    EpochRecord { epoch, holder: EpochHolder::Lease { term_ms: 1 }, begin, end: None }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    /// Acknowledges without a check for a newer epoch.
    NoSealCheck,
    /// A claim looks for the last entry before its epoch exists.
    ScanBeforeSeal,
}

/// A call under way, with the tail that it must exceed.
struct Caller {
    call: LogCall,
    id: u64,
    is_append: bool,
    acknowledged_before: Option<u64>,
    waiting: u32,
}

struct LogWorld {
    dice: Dice,
    mutant: Mutant,
    entries: HashMap<u64, u64>,
    records: Vec<EpochRecord>,
    /// Sequencers that continue to answer until they know that their epoch is sealed.
    sequencers: Vec<Sequencer>,
    /// A claim between the creation of its epoch and the search for the last entry.
    claiming: Option<Option<u64>>,
    acknowledged: HashMap<u64, u64>,
    highest_acknowledged: Option<u64>,
}

impl LogWorld {
    fn new(seed: u64, mutant: Mutant) -> Self {
        Self {
            dice: Dice(seed),
            mutant,
            entries: HashMap::new(),
            records: Vec::new(),
            sequencers: Vec::new(),
            claiming: None,
            acknowledged: HashMap::new(),
            highest_acknowledged: None,
        }
    }

    fn written_end(&self) -> u64 {
        self.entries.keys().max().map_or(0, |last| last + 1)
    }

    /// One step of a claim.
    fn advance_claim(&mut self) {
        let Some(scanned) = self.claiming.take() else {
            let holder = if self.dice.below(2) == 0 { HolderState::Dead } else { HolderState::Deposed };
            if let (Some(last), true) = (self.records.last_mut(), self.dice.below(3) == 0) {
                // A clean release: this sequencer answers nothing afterwards.
                last.end = self.sequencers.last().map(Sequencer::tail);
                self.sequencers.pop();
            }
            let ClaimDecision::Claim { epoch, begin } = claim(self.records.last(), holder) else { return };
            let early = (self.mutant == Mutant::ScanBeforeSeal).then(|| self.written_end());
            if self.mutant == Mutant::ScanBeforeSeal && begin.is_none() {
                // The epoch exists when the claim ends.
                self.claiming = Some(early);
                return;
            }
            self.records.push(record(epoch, begin));
            match begin {
                Some(begin) => self.sequencers.push(Sequencer::new(epoch, begin, None, 0)),
                None => self.claiming = Some(None),
            }
            return;
        };
        let begin = scanned.unwrap_or_else(|| self.written_end());
        if scanned.is_some() {
            let epoch = self.records.last().map_or(1, |record| record.epoch + 1);
            self.records.push(record(epoch, None));
        }
        let last = self.records.last_mut().unwrap();
        last.begin = Some(begin);
        self.sequencers.push(Sequencer::new(last.epoch, begin, None, 0));
    }

    fn take(&mut self, count: u64, floor: u64) -> Option<TakenNumbers> {
        let known = self.sequencers.len() as u64;
        // Mostly the current one, sometimes one that was deposed.
        let back = if self.dice.below(4) == 0 { self.dice.below(known.max(1)) } else { 0 };
        let index = known.checked_sub(1 + back)?;
        Some(self.sequencers[index as usize].take(count, floor, 0).unwrap())
    }

    /// One step of a caller. Returns true when it is done.
    fn advance(&mut self, caller: &mut Caller) -> bool {
        match caller.call.step() {
            LogStep::Take { count, floor } => {
                if let Some(taken) = self.take(count, floor) {
                    caller.call.taken(taken);
                }
            }
            LogStep::Place { position } => {
                let state = match self.entries.entry(position) {
                    std::collections::hash_map::Entry::Occupied(_) => SlotState::Occupied,
                    std::collections::hash_map::Entry::Vacant(slot) => {
                        slot.insert(caller.id);
                        SlotState::Written
                    }
                };
                caller.call.placed(state);
            }
            LogStep::CheckSeal { epoch } => {
                let last = self.records.last().unwrap();
                let is_open = last.epoch == epoch || self.mutant == Mutant::NoSealCheck;
                caller.call.checked(match is_open {
                    true => SealState::Open,
                    false => SealState::Sealed { begin: last.begin },
                });
            }
            LogStep::Done(value) => {
                self.finish(caller, value);
                return true;
            }
        }
        caller.waiting += 1;
        false
    }

    fn finish(&mut self, caller: &Caller, value: u64) {
        if caller.is_append {
            assert_eq!(self.entries.get(&value), Some(&caller.id), "an acknowledged entry is in its place");
            assert_eq!(self.acknowledged.insert(value, caller.id), None, "position {value} twice");
            self.highest_acknowledged = self.highest_acknowledged.max(Some(value));
        } else {
            assert!(Some(value) > caller.acknowledged_before, "the tail is {value}");
        }
    }
}

/// Runs callers and claims in a random order; returns the number of acknowledged appends.
fn run(seed: u64, mutant: Mutant) -> usize {
    let mut world = LogWorld::new(seed, mutant);
    let mut callers: Vec<Caller> = Vec::new();
    for id in 0..2000 {
        if world.dice.below(12) == 0 {
            world.advance_claim();
        }
        if callers.len() < 5 {
            let is_append = world.dice.below(3) > 0;
            let call = if is_append { LogCall::append() } else { LogCall::tail() };
            let acknowledged_before = world.highest_acknowledged;
            callers.push(Caller { call, id, is_append, acknowledged_before, waiting: 0 });
        }
        let index = world.dice.below(callers.len() as u64) as usize;
        if world.dice.below(100) == 0 {
            // The caller dies.
            callers.swap_remove(index);
        } else if world.advance(&mut callers[index]) {
            callers.swap_remove(index);
        }
    }
    // All that was acknowledged is still there, each entry once.
    for (position, id) in &world.acknowledged {
        assert_eq!(world.entries.get(position), Some(id));
    }
    let mut ids: Vec<u64> = world.entries.values().copied().collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "an entry is in the log twice");
    world.acknowledged.len()
}

#[test]
fn acknowledged_entries_are_below_the_tail_whoever_holds_the_sequencer() {
    let acknowledged: usize = (0..1000).map(|seed| run(seed, Mutant::None)).sum();
    assert!(acknowledged > 50_000, "{acknowledged}");
}

#[test]
fn missing_seal_checks_are_found() {
    for mutant in [Mutant::NoSealCheck, Mutant::ScanBeforeSeal] {
        let is_found = std::panic::catch_unwind(|| (0..1000).map(|seed| run(seed, mutant)).sum::<usize>());
        assert!(is_found.is_err(), "{mutant:?}");
    }
}

#[test]
fn lease_ends_with_its_quota_and_its_term() {
    let limits = LeaseLimits { quota: 3, term_ms: 100, backoff_ms: 0 };
    let mut sequencer = Sequencer::new(7, 40, Some(limits), 1000);
    assert_eq!(sequencer.take(2, 0, 1000), Ok(TakenNumbers { epoch: 7, first: 40 }));
    assert_eq!(sequencer.take(2, 0, 1000), Err(SequencerExpired));
    assert_eq!(sequencer.take(1, 50, 1099), Ok(TakenNumbers { epoch: 7, first: 50 }));
    assert_eq!((sequencer.tail(), sequencer.left_ms(1099)), (51, Some(1)));
    assert_eq!(sequencer.take(0, 0, 1100), Err(SequencerExpired));
}

#[test]
fn sequencer_of_a_running_holder_is_not_claimed() {
    let current = record(3, Some(5));
    assert_eq!(claim(Some(&current), HolderState::Running), ClaimDecision::Held);
    let recovered = ClaimDecision::Claim { epoch: 4, begin: None };
    assert_eq!(claim(Some(&current), HolderState::Dead), recovered);
    assert_eq!(claim(Some(&current), HolderState::Deposed), recovered);
    let released = EpochRecord { end: Some(9), ..current };
    assert_eq!(
        claim(Some(&released), HolderState::Running),
        ClaimDecision::Claim { epoch: 4, begin: Some(9) }
    );
    assert_eq!(claim(None, HolderState::Running), ClaimDecision::Claim { epoch: 1, begin: None });
}
