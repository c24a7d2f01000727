//! The result of an experiment.

use std::fmt;
use std::path::Path;

use espalier_sim::{Line, plot};
use serde::Serialize;

use crate::Testbed;
use crate::error::PaperError;

/// A claim of the paper, and the verdict of this run.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    pub text: String,
    /// The paper's value; empty if it gives none.
    pub paper: String,
    pub ours: String,
    pub holds: bool,
}

/// Numbers for other programs.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub name: &'static str,
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Lines, and points from the paper.
#[derive(Clone, Debug)]
pub struct Chart {
    pub name: &'static str,
    pub over: &'static str,
    pub quantity: &'static str,
    pub lines: Vec<Line>,
}

/// A drawing, as SVG.
#[derive(Clone, Debug)]
pub struct Picture {
    pub name: &'static str,
    pub svg: String,
}

/// Claims, tables and plots of an experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExperimentResult {
    pub id: &'static str,
    pub title: &'static str,
    pub place: Option<Testbed>,
    /// Setup: the conditions of the numbers.
    pub setup: String,
    pub claims: Vec<Claim>,
    #[serde(skip)]
    pub tables: Vec<Table>,
    #[serde(skip)]
    pub charts: Vec<Chart>,
    #[serde(skip)]
    pub pictures: Vec<Picture>,
}

impl Table {
    fn csv(&self) -> String {
        let rows = self.rows.iter().map(|row| row.join(","));
        let lines = std::iter::once(self.columns.join(",")).chain(rows);
        lines.map(|line| line + "\n").collect()
    }
}

impl ExperimentResult {
    /// Prefix of its file names.
    pub(crate) fn stem(&self) -> String {
        let place = match self.place {
            Some(Testbed::Simulator) => "-sim",
            _ => "",
        };
        format!("{}{place}", self.id)
    }

    /// Writes tables, plots and claims into a directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), PaperError> {
        let write = |name: String, text: String| {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(|cause| PaperError::File { path: path.clone(), cause })
        };
        std::fs::create_dir_all(dir).map_err(|cause| PaperError::File { path: dir.into(), cause })?;
        for table in &self.tables {
            write(format!("{}-{}.csv", self.stem(), table.name), table.csv())?;
        }
        for Chart { name, over, quantity, lines } in &self.charts {
            let file = dir.join(format!("{}-{name}.svg", self.stem()));
            plot(&file, over, &format!("{name}: {quantity}"), lines)?;
        }
        for Picture { name, svg } in &self.pictures {
            write(format!("{}-{name}.svg", self.stem()), svg.clone())?;
        }
        let json = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        write(format!("{}.json", self.stem()), json + "\n")
    }
}

impl fmt::Display for ExperimentResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Some(Testbed::Simulator) => "in the simulator",
            _ => "on this machine",
        };
        writeln!(f, "{}: {}, {place}\n{}", self.id, self.title, self.setup)?;
        for table in &self.tables {
            let width = |at: usize| {
                let cells = table.rows.iter().filter_map(|row| row.get(at)).map(String::len);
                cells.chain([table.columns[at].len()]).max().unwrap_or(0)
            };
            let widths: Vec<_> = (0..table.columns.len()).map(width).collect();
            writeln!(f)?;
            let columns = table.columns.iter().map(ToString::to_string).collect();
            for row in std::iter::once(&columns).chain(&table.rows) {
                let cells: Vec<_> =
                    row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
                writeln!(f, "{}", cells.join("  "))?;
            }
        }
        writeln!(f)?;
        for Claim { text, paper, ours, holds } in &self.claims {
            let verdict = if *holds { "holds" } else { "does not hold" };
            let paper = if paper.is_empty() { String::new() } else { format!("paper: {paper}; ") };
            writeln!(f, "{verdict}: {text} ({paper}here: {ours})")?;
        }
        Ok(())
    }
}
