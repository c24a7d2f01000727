//! The experiments, in the simulator.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use espalier_paper::{Experiment, ExperimentResult, MeasuredGrids, PaperError, Setting, Testbed, write_page};

fn run(experiment: &Experiment, stop: bool) -> Result<ExperimentResult, PaperError> {
    let (place, quick, program) = (Testbed::Simulator, true, Path::new("/none"));
    let (stop, grids) = (&AtomicBool::new(stop), &MeasuredGrids::default());
    experiment.run(&Setting { place, quick, program, stop, grids })
}

/// Experiments that take long: seven grids of wu's, and balancers. Some claims of the latter do not
/// hold (docs/results.md).
fn is_long(experiment: &Experiment) -> bool {
    let short =
        ["wu-fig5.8", "wu-fig5.9", "wu-fig5.10", "sevilla-fig2.1", "sevilla-fig2.2", "sevilla-fig4.4"];
    let is_grid_or_balancer = ["wu-", "sevilla-fig2", "sevilla-fig4", "sevilla-hot"]
        .iter()
        .any(|prefix| experiment.id.starts_with(prefix));
    is_grid_or_balancer && !short.contains(&experiment.id)
}

fn assert_claims(outcome: &ExperimentResult) {
    assert!(!outcome.claims.is_empty() && outcome.claims.iter().all(|claim| claim.holds), "{outcome}");
}

#[test]
#[ignore = "takes minutes"]
fn claims_of_wu_hold_in_the_simulator() {
    let of_wu = Experiment::ALL.iter().filter(|experiment| experiment.id.starts_with("wu-"));
    of_wu.for_each(|experiment| assert_claims(&run(experiment, false).unwrap()));
}

#[test]
fn claims_hold_in_the_simulator() {
    let is_simulated = |experiment: &&Experiment| experiment.places.contains(&Testbed::Simulator);
    let short = Experiment::ALL.iter().filter(is_simulated).filter(|experiment| !is_long(experiment));
    let outcomes: Vec<_> = short.map(|experiment| run(experiment, false).unwrap()).collect();
    outcomes.iter().for_each(assert_claims);
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
