//! Rates over the number of clients, a line for each way of doing it.

use espalier_sim::Line;
use espalier_sim::source::OpKind;

use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Chart, Table};
use crate::trial::Trial;

/// A phase of the workload: its name, the barriers before it, and what is counted.
pub(super) type Counted = (&'static str, u32, OpKind);

/// See the module's description.
#[derive(Debug)]
pub(super) struct Curves {
    clients: &'static [u32],
    phases: &'static [Counted],
    series: Vec<(&'static str, Vec<Vec<f64>>)>,
}

impl Curves {
    /// `scenario`: that of a series, by its number, with so many clients.
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
        let rates = |series: usize, clients: u32| -> Result<Vec<f64>, PaperError> {
            let tally = Trial::new(&scenario(series, clients))?.run(setting)?;
            phases.iter().map(|(_, number, kind)| Ok(tally.phase(*number, *kind)?.rate())).collect()
        };
        let curve = |(number, name): (usize, &&'static str)| {
            let curve: Result<_, PaperError> =
                clients.iter().map(|clients| rates(number, *clients)).collect();
            Ok((*name, curve?))
        };
        let series: Result<_, PaperError> = names.iter().enumerate().map(curve).collect();
        Ok(Self { clients, phases, series: series? })
    }

    /// The rate of the last series, by that of the first: of a phase, with the fewest clients or with the most.
    pub fn gain(&self, phase: usize, most: bool) -> f64 {
        let at = if most { self.clients.len() - 1 } else { 0 };
        let rate = |series: Option<&(&str, Vec<Vec<f64>>)>| series.map_or(0.0, |(_, rates)| rates[at][phase]);
        rate(self.series.last()) / rate(self.series.first()).max(f64::MIN_POSITIVE)
    }

    pub fn charts(&self) -> Vec<Chart> {
        let chart = |(at, (name, ..)): (usize, &Counted)| {
            let line = |(name, rates): &(&'static str, Vec<Vec<f64>>)| Line {
                name: name.to_string(),
                points: self
                    .clients
                    .iter()
                    .zip(rates)
                    .map(|(count, rate)| (f64::from(*count), rate[at]))
                    .collect(),
                dots: false,
            };
            let lines = self.series.iter().map(line).collect();
            Chart { name, over: "clients", what: "operations per second", lines }
        };
        self.phases.iter().enumerate().map(chart).collect()
    }

    pub fn table(&self) -> Table {
        let columns =
            ["clients", "series"].into_iter().chain(self.phases.iter().map(|(name, ..)| *name)).collect();
        let row = |name: &str, clients: u32, rates: &[f64]| {
            let rates = rates.iter().map(|rate| format!("{rate:.0}"));
            [clients.to_string(), name.to_string()].into_iter().chain(rates).collect()
        };
        let rows = self.series.iter().flat_map(|(name, curve)| {
            self.clients.iter().zip(curve).map(move |(clients, rates)| row(name, *clients, rates))
        });
        Table { name: "rates", columns, rows: rows.collect() }
    }
}
