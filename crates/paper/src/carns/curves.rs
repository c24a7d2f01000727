//! Rates over the number of clients or servers, a line for each configuration.

use espalier_sim::Line;
use espalier_sim::source::OpKind;

use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Chart, Table};
use crate::trial::{Trial, medians};

/// A phase of the workload: name, barriers before it, operations counted.
pub(super) type Counted = (&'static str, u32, OpKind);

/// Rates by phase, series and size.
#[derive(Debug)]
pub(super) struct Curves {
    over: &'static str,
    counts: &'static [u32],
    phases: Vec<&'static str>,
    series: Vec<(&'static str, Vec<Vec<f64>>)>,
}

impl Curves {
    /// `scenario`: makes the scenario of a series, by number, for this many clients.
    ///
    /// # Errors
    /// [`PaperError`]
    pub fn measure(
        setting: &Setting<'_>,
        clients: &'static [u32],
        phases: &'static [Counted],
        names: &[&'static str],
        scenario: impl Fn(usize, u32) -> String,
    ) -> Result<Self, PaperError> {
        Self::medians(setting, 1, clients, phases, names, scenario)
    }

    /// As [`Self::measure`], with the median rate of several trials.
    ///
    /// # Errors
    /// [`PaperError`]
    pub fn medians(
        setting: &Setting<'_>,
        trials: usize,
        clients: &'static [u32],
        phases: &'static [Counted],
        names: &[&'static str],
        scenario: impl Fn(usize, u32) -> String,
    ) -> Result<Self, PaperError> {
        let rates = |series: usize, clients: u32| {
            let summary = Trial::new(&scenario(series, clients))?.run(setting)?;
            phases.iter().map(|(_, number, kind)| Ok(summary.phase(*number, *kind)?.rate())).collect()
        };
        let phases = phases.iter().map(|(name, ..)| *name).collect();
        Self::in_trials(trials, "clients", clients, phases, names, rates)
    }

    /// `rates`: measures every phase of a series, by number, at one size.
    ///
    /// # Errors
    /// [`PaperError`]
    pub fn of(
        over: &'static str,
        counts: &'static [u32],
        phases: Vec<&'static str>,
        names: &[&'static str],
        rates: impl Fn(usize, u32) -> Result<Vec<f64>, PaperError>,
    ) -> Result<Self, PaperError> {
        Self::in_trials(1, over, counts, phases, names, rates)
    }

    fn in_trials(
        trials: usize,
        over: &'static str,
        counts: &'static [u32],
        phases: Vec<&'static str>,
        names: &[&'static str],
        rates: impl Fn(usize, u32) -> Result<Vec<f64>, PaperError>,
    ) -> Result<Self, PaperError> {
        let mut series: Vec<_> = names.iter().map(|name| (*name, Vec::new())).collect();
        for count in counts {
            let medians = medians(trials, names.len(), |series| rates(series, *count))?;
            series.iter_mut().zip(medians).for_each(|((_, curve), rates)| curve.push(rates));
        }
        Ok(Self { over, counts, phases, series })
    }

    /// Speedup of the last series over the first in a phase, at the smallest or largest size.
    pub fn gain(&self, phase: usize, most: bool) -> f64 {
        let rate = |series: usize| {
            let [first, last] = self.ends(series, phase);
            if most { last } else { first }
        };
        rate(self.series.len() - 1) / rate(0).max(f64::MIN_POSITIVE)
    }

    /// Speedup of a series from the smallest to the largest size.
    pub fn growth(&self, series: usize, phase: usize) -> f64 {
        let [first, last] = self.ends(series, phase);
        last / first.max(f64::MIN_POSITIVE)
    }

    fn ends(&self, series: usize, phase: usize) -> [f64; 2] {
        let curve = self.series.get(series).map_or(&[][..], |(_, curve)| curve);
        [curve.first(), curve.last()].map(|rates| rates.map_or(0.0, |rates| rates[phase]))
    }

    pub fn charts(&self) -> Vec<Chart> {
        let chart = |(at, name): (usize, &&'static str)| {
            let line = |(name, rates): &(&'static str, Vec<Vec<f64>>)| Line {
                name: name.to_string(),
                points: self
                    .counts
                    .iter()
                    .zip(rates)
                    .map(|(count, rate)| (f64::from(*count), rate[at]))
                    .collect(),
                dots: false,
            };
            let lines = self.series.iter().map(line).collect();
            Chart { name, over: self.over, quantity: "operations per second", lines }
        };
        self.phases.iter().enumerate().map(chart).collect()
    }

    pub fn table(&self) -> Table {
        let columns = [self.over, "series"].into_iter().chain(self.phases.iter().copied()).collect();
        let row = |name: &str, count: u32, rates: &[f64]| {
            let rates = rates.iter().map(|rate| format!("{rate:.0}"));
            [count.to_string(), name.to_string()].into_iter().chain(rates).collect()
        };
        let rows = self.series.iter().flat_map(|(name, curve)| {
            self.counts.iter().zip(curve).map(move |(count, rates)| row(name, *count, rates))
        });
        Table { name: "rates", columns, rows: rows.collect() }
    }
}
