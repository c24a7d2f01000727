//! Results of a benchmark, as JSON or as a table.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Algorithm;
use crate::place::BenchTarget;
use crate::team::PhaseOutcome;
use crate::worker::histogram;

/// All results. Later versions may add fields to the JSON form.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Timing method of the paper, 1 or 2.
    pub algorithm: u8,
    pub runs: u32,
    /// True if the kernel's caches were dropped before all uncached phases; `None` if there were
    /// none.
    pub uncached: Option<bool>,
    /// The directory, and those that it was compared with.
    pub sides: Vec<BenchTarget>,
    pub phases: Vec<PhaseReport>,
}

/// A phase on the first side, and its ratios to the others.
#[derive(Debug, Serialize)]
pub struct PhaseReport {
    pub name: String,
    #[serde(flatten)]
    pub figures: SideFigures,
    /// Median of the ratios to the first of `against`. Above 1, the first side is faster.
    pub ratio: Option<f64>,
    pub procs: u32,
    pub operations: u64,
    pub against: Vec<Against>,
}

/// Results of one side.
#[derive(Debug, Serialize)]
pub struct SideFigures {
    /// Median of the runs.
    pub ops_per_s: f64,
    /// Median latency of an operation over all runs; `None` for programs.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Median of the runs, for phases that move data.
    pub bytes_per_s: Option<f64>,
    /// Operations per second of each run.
    pub runs: Vec<f64>,
    /// Mean increase of each of the user's counters per operation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, f64>,
}

/// Another side's results, and the first side's ratio to them in each run.
#[derive(Debug, Serialize)]
pub struct Against {
    pub side: usize,
    #[serde(flatten)]
    pub figures: SideFigures,
    /// Median, minimum and maximum of `ratios`.
    pub ratio: f64,
    pub ratio_min: f64,
    pub ratio_max: f64,
    pub ratio_of_medians: f64,
    pub ratios: Vec<f64>,
}

impl PhaseReport {
    /// Builds the report from the results of each side and run.
    pub(crate) fn new(name: String, procs: u32, sides: &[Vec<&PhaseOutcome>]) -> PhaseReport {
        let mut all = sides.iter().map(|runs| SideFigures::new(runs));
        let figures = all.next().unwrap_or_else(|| SideFigures::new(&[]));
        let against: Vec<_> =
            (1..).zip(all).map(|(side, other)| Against::new(side, other, &figures)).collect();
        PhaseReport {
            name,
            procs,
            operations: sides.first().and_then(|runs| runs.first()).map_or(0, |outcome| outcome.operations),
            ratio: against.first().map(|other| other.ratio),
            figures,
            against,
        }
    }
}

impl SideFigures {
    fn new(runs: &[&PhaseOutcome]) -> SideFigures {
        // Avoids a division by zero.
        let rate = |amount: u64, outcome: &PhaseOutcome| amount as f64 / outcome.seconds.max(1e-9);
        let rates: Vec<f64> = runs.iter().map(|run| rate(run.operations, run)).collect();
        let bytes: Vec<f64> = runs.iter().map(|run| rate(run.bytes, run)).collect();
        let mut latencies = histogram();
        for run in runs {
            latencies += &run.latencies;
        }
        SideFigures {
            ops_per_s: median(&rates),
            p50_us: quantile(&latencies, 0.5),
            p99_us: quantile(&latencies, 0.99),
            bytes_per_s: runs.iter().any(|run| run.bytes > 0).then(|| median(&bytes)),
            runs: rates,
            counts: per_operation(runs),
        }
    }
}

fn per_operation(runs: &[&PhaseOutcome]) -> BTreeMap<String, f64> {
    let operations: u64 = runs.iter().map(|run| run.operations).sum();
    let mut counts = BTreeMap::new();
    for (name, increase) in runs.iter().flat_map(|run| &run.counts) {
        *counts.entry(name.clone()).or_insert(0.0) += increase;
    }
    counts.values_mut().for_each(|count| *count /= operations.max(1) as f64);
    counts
}

impl Against {
    fn new(side: usize, other: SideFigures, first: &SideFigures) -> Against {
        let ratios: Vec<f64> = first.runs.iter().zip(&other.runs).map(|(a, b)| a / b).collect();
        Against {
            side,
            ratio: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            ratio_of_medians: first.ops_per_s / other.ops_per_s,
            figures: other,
            ratios,
        }
    }
}

fn quantile(latencies: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile) as f64 / 1000.0)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[length / 2],
        length => (sorted[length / 2 - 1] + sorted[length / 2]) / 2.0,
    }
}

/// Letter of a side in the table.
pub(crate) fn letter(side: usize) -> char {
    char::from(b'A' + side as u8)
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let method = match self.algorithm {
            1 => Algorithm::SlowestProcess,
            _ => Algorithm::FirstProcess,
        };
        for (side, place) in self.sides.iter().enumerate() {
            let BenchTarget { dir, file_system, options, durability, .. } = place;
            writeln!(out, "{}  {}  {file_system} ({options})", letter(side), dir.display())?;
            writeln!(out, "   {durability}")?;
        }
        writeln!(out, "runs: {}; time: {method}", self.runs)?;
        match self.uncached {
            Some(true) => writeln!(
                out,
                "uncached: the kernel's caches were dropped; caches in a server's own memory were not"
            )?,
            Some(false) => writeln!(
                out,
                "uncached: NO, only root may drop the kernel's caches; these phases ran with caches"
            )?,
            None => {}
        }
        write!(out, "\n{:35} {:>5}", "phase", "procs")?;
        for side in 0..self.sides.len() {
            write!(out, " {:>12} {:>9} {:>9}", format!("{} ops/s", letter(side)), "p50 us", "p99 us")?;
            if side > 0 {
                write!(out, " {:>22}", format!("A/{} (min..max)", letter(side)))?;
            }
        }
        writeln!(out)?;
        for phase in &self.phases {
            write!(out, "{:35} {:5} {}", phase.name, phase.procs, phase.figures)?;
            for other in &phase.against {
                let spread = format!("({:.2}..{:.2})", other.ratio_min, other.ratio_max);
                write!(out, " {} {:7.2} {spread:>14}", other.figures, other.ratio)?;
            }
            writeln!(out)?;
        }
        self.write_counts(out)
    }
}

impl Report {
    /// The user's counters, a line for each phase and side.
    fn write_counts(&self, out: &mut fmt::Formatter) -> fmt::Result {
        if self.phases.iter().all(|phase| phase.figures.counts.is_empty()) {
            return Ok(());
        }
        writeln!(out, "\nper operation")?;
        for phase in &self.phases {
            let others = phase.against.iter().map(|other| (other.side, &other.figures));
            for (side, figures) in [(0, &phase.figures)].into_iter().chain(others) {
                write!(out, "{:35} {:5} {}", phase.name, phase.procs, letter(side))?;
                for (name, count) in &figures.counts {
                    write!(out, "  {name} {count:.3}")?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for SideFigures {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let micros = |value: Option<f64>| value.map_or("-".into(), |micros| format!("{micros:.1}"));
        write!(out, "{:12.0} {:>9} {:>9}", self.ops_per_s, micros(self.p50_us), micros(self.p99_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(seconds: f64) -> PhaseOutcome {
        let mut latencies = histogram();
        latencies.saturating_record_n(2000, 99);
        latencies.saturating_record_n(900_000, 1);
        let counts = [("requests".to_string(), 200.0 * seconds)].into();
        PhaseOutcome { seconds, operations: 100, bytes: 0, latencies, counts }
    }

    #[test]
    fn ratios_are_of_pairs_and_their_median_is_the_phases() {
        let (first, second) = ([1.0, 2.0, 4.0].map(outcome), [1.0, 1.0, 1.0].map(outcome));
        let sides = [first.iter().collect(), second.iter().collect()];
        let phase = PhaseReport::new("group/phase".into(), 1, &sides);
        assert_eq!((phase.figures.ops_per_s, phase.ratio), (50.0, Some(0.5)));
        assert_eq!((phase.against[0].ratio_min, phase.against[0].ratio_max), (0.25, 1.0));
        let close =
            |micros: Option<f64>, to: f64| micros.is_some_and(|micros| (micros / to - 1.0).abs() < 0.01);
        assert!(close(phase.figures.p50_us, 2.0) && close(phase.figures.p99_us, 2.0));
        assert_eq!(PhaseReport::new("group/phase".into(), 1, &sides[..1]).ratio, None);
        assert_eq!(phase.figures.counts["requests"], 200.0 * 7.0 / 300.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_in_the_middle() {
        assert_eq!((median(&[4.0, 1.0, 2.0, 3.0]), median(&[])), (2.5, 0.0));
    }
}
