//! Operations of all processes, counted by phase: from one barrier to the next.

use std::collections::BTreeMap;

use espalier_proto::Errno;
use espalier_sim::source::{Done, OpKind};
use espalier_sim::{Nanos, Observer};
use hdrhistogram::Histogram;

use crate::error::PaperError;

/// Operations of one kind between two barriers, of all processes.
#[derive(Clone, Debug)]
pub struct PhaseSummary {
    pub count: u64,
    begun: Nanos,
    ended: Nanos,
    /// Nanoseconds.
    pub latencies: Histogram<u64>,
}

impl PhaseSummary {
    /// Operations a second, from the start of the first to the end of the last (carns, Algorithm
    /// 1).
    pub fn rate(&self) -> f64 {
        self.count as f64 / self.seconds().max(f64::MIN_POSITIVE)
    }

    pub fn seconds(&self) -> f64 {
        Self::seconds_of(&[self])
    }

    /// From the start of the first operation to the end of the last.
    pub fn seconds_of(phases: &[&Self]) -> f64 {
        let begun = phases.iter().map(|phase| phase.begun).min().unwrap_or_default();
        let ended = phases.iter().map(|phase| phase.ended).max().unwrap_or_default();
        ended.as_secs_f64() - begun.as_secs_f64()
    }
}

/// Operations by phase and kind.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    phases: BTreeMap<(u32, OpKind), PhaseSummary>,
    failed: Option<(OpKind, Errno)>,
    /// Moves of the cluster's balancer; only of real servers.
    pub moves: u64,
}

impl Summary {
    pub fn add(&mut self, done: &Done) {
        if let Err(errno) = done.result {
            self.failed.get_or_insert((done.kind, errno));
        }
        let new = || PhaseSummary { count: 0, begun: done.begun, ended: done.ended, latencies: histogram() };
        let phase = self.phases.entry((done.phase, done.kind)).or_insert_with(new);
        phase.count += 1;
        (phase.begun, phase.ended) = (phase.begun.min(done.begun), phase.ended.max(done.ended));
        // Grows as needed.
        let _ = phase.latencies.record((done.ended - done.begun).0);
    }

    /// The operations of a kind after this many barriers.
    ///
    /// # Errors
    /// One of them failed, or there are none.
    pub fn phase(&self, number: u32, kind: OpKind) -> Result<&PhaseSummary, PaperError> {
        if let Some((kind, errno)) = self.failed {
            return Err(PaperError::Failed { kind: kind.name(), errno });
        }
        self.phases.get(&(number, kind)).ok_or(PaperError::Nothing(kind.name()))
    }

    /// The start of the first operation after this many barriers, and the end of the last.
    pub fn span(&self, number: u32) -> Option<(Nanos, Nanos)> {
        let phases = || self.phases.iter().filter(|((of, _), _)| *of == number).map(|(_, phase)| phase);
        let begun = phases().map(|phase| phase.begun).min()?;
        Some((begun, phases().map(|phase| phase.ended).max()?))
    }

    /// Seconds from the start of the first operation of these kinds after this many barriers to the
    /// end of the last.
    ///
    /// # Errors
    /// As [`Self::phase`], of each kind.
    pub fn seconds(&self, number: u32, kinds: &[OpKind]) -> Result<f64, PaperError> {
        let phases = kinds.iter().map(|kind| self.phase(number, *kind)).collect::<Result<Vec<_>, _>>()?;
        let begun = phases.iter().map(|phase| phase.begun).min().unwrap_or_default();
        let ended = phases.iter().map(|phase| phase.ended).max().unwrap_or_default();
        Ok(ended.as_secs_f64() - begun.as_secs_f64())
    }
}

fn histogram() -> Histogram<u64> {
    // Three digits are always valid.
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits"))
}

impl Observer for Summary {
    fn finished(&mut self, _: u32, _: u32, done: &Done) {
        self.add(done);
    }
}
