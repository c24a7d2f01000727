//! The papers' experiments. Each is one command: it runs on servers of this machine or in the
//! simulator, draws the results beside the paper's, and checks the paper's claims.
#![forbid(unsafe_code)]

mod carns;
mod cluster;
mod error;
mod kuhn;
mod outcome;
mod page;
mod play;
mod sevilla;
mod summary;
mod trial;
mod wu;

use std::path::Path;
use std::sync::atomic::AtomicBool;

pub use cluster::{LocalCluster, Wanted};
pub use error::PaperError;
pub use outcome::{Chart, Claim, ExperimentResult, Picture, Table};
pub use page::write_page;
pub use play::play;
pub use summary::{PhaseSummary, Summary};
pub use wu::MeasuredGrids;

/// The environment of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Testbed {
    /// Processes of this machine, fewer than the paper's.
    Machine,
    /// Virtual time, at the paper's size.
    Simulator,
}

/// Parameters of a run of experiments.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub place: Testbed,
    /// Fewer files and sizes.
    pub quick: bool,
    /// This program, which starts servers.
    pub program: &'a Path,
    /// Set by the caller to stop the run.
    pub stop: &'a AtomicBool,
    /// Measurements with the same `quick` that several experiments share.
    pub grids: &'a MeasuredGrids,
}

impl Setting<'_> {
    /// # Errors
    /// [`PaperError::Stopped`]
    pub(crate) fn check_stop(&self) -> Result<(), PaperError> {
        if self.stop.load(std::sync::atomic::Ordering::Relaxed) { Err(PaperError::Stopped) } else { Ok(()) }
    }
}

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The experiment's identifier, such as `carns-fig3`.
    pub id: &'static str,
    /// The paper's title for it.
    pub title: &'static str,
    /// Testbeds that can run it.
    pub places: &'static [Testbed],
    run: fn(&Setting<'_>) -> Result<ExperimentResult, PaperError>,
}

const EVERYWHERE: &[Testbed] = &[Testbed::Simulator, Testbed::Machine];
/// It needs more machines than one.
const SIMULATED: &[Testbed] = &[Testbed::Simulator];

impl Experiment {
    pub const ALL: &[Self] = &[
        carns::FIG3,
        carns::FIG4,
        carns::FIG5,
        carns::FIG7,
        carns::FIG8,
        carns::FIG9,
        carns::TABLE1,
        carns::TABLE2,
        carns::UNSTUFF,
        kuhn::FIG5_1,
        kuhn::FIG5_2,
        kuhn::FIG5_3,
        kuhn::FIG5_4,
        kuhn::FIG5_5,
        kuhn::FIG5_6,
        kuhn::FIG5_7,
        kuhn::FIG5_8,
        kuhn::FIG6,
        wu::FIG5_2,
        wu::FIG5_3,
        wu::FIG5_4,
        wu::FIG5_5,
        wu::FIG5_6,
        wu::FIG5_7,
        wu::FIG5_8,
        wu::FIG5_9,
        wu::FIG5_10,
        wu::FIG5_11,
        wu::MIXED,
        wu::NAMES,
        wu::CAPACITIES,
        sevilla::FIG2_1,
        sevilla::FIG2_2,
        sevilla::FIG4_2,
        sevilla::FIG4_3,
        sevilla::FIG4_4,
        sevilla::FIG4_6,
        sevilla::FIG4_7,
        sevilla::FIG4_8,
        sevilla::FIG4_9,
        sevilla::HOT_SUBTREE,
        sevilla::chapter5::ALL[0],
        sevilla::chapter5::ALL[1],
        sevilla::chapter5::ALL[2],
        sevilla::chapter5::ALL[3],
        sevilla::chapter5::ALL[4],
        sevilla::chapter5::ALL[5],
        sevilla::chapter5::ALL[6],
        sevilla::FIG6_2,
        sevilla::FIG6_3,
        sevilla::FIG6_4,
        sevilla::FIG6_6,
        sevilla::FIG6_7,
        sevilla::FIG6_8,
        sevilla::FIG6_9,
    ];

    pub fn named(id: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|experiment| experiment.id == id)
    }

    /// Runs in the given place, or else in the first one where it can.
    ///
    /// # Errors
    /// [`PaperError`]
    pub fn run(&self, setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
        let place = if self.places.contains(&setting.place) { setting.place } else { self.places[0] };
        let outcome = (self.run)(&Setting { place, ..*setting })?;
        Ok(ExperimentResult { id: self.id, title: self.title, place: Some(place), ..outcome })
    }
}
