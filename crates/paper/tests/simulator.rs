//! The experiments, in the simulator.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use espalier_paper::{Experiment, ExperimentResult, PaperError, Setting, Testbed, write_page};

fn run(experiment: &Experiment, stop: bool) -> Result<ExperimentResult, PaperError> {
    let stop = &AtomicBool::new(stop);
    experiment.run(&Setting { place: Testbed::Simulator, quick: true, program: Path::new("/none"), stop })
}

#[test]
fn claims_hold_in_the_simulator() {
    let outcomes: Vec<_> = Experiment::ALL.iter().map(|experiment| run(experiment, false).unwrap()).collect();
    for outcome in &outcomes {
        assert!(!outcome.claims.is_empty() && outcome.claims.iter().all(|claim| claim.holds), "{outcome}");
    }
    let dir = tempfile::tempdir().unwrap();
    write_page(dir.path(), &outcomes).unwrap();
    let page = std::fs::read_to_string(dir.path().join("index.html")).unwrap();
    assert_eq!(page.matches("<h2 ").count(), outcomes.len());
    for name in ["carns-fig3-sim-create.svg", "carns-fig3-sim-rates.csv", "carns-fig3-sim.json"] {
        assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() > 100, "{name}");
    }
}

#[test]
fn a_run_can_be_stopped() {
    assert!(matches!(run(&Experiment::ALL[0], true), Err(PaperError::Stopped)));
}
