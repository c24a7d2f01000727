//! `espalier paper`: the papers' experiments.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_paper::{Experiment, ExperimentResult, MeasuredGrids, Setting, Testbed, write_page};

use crate::sim::UNLIKE;
use crate::stop;

#[derive(Debug, Args)]
pub struct PaperArgs {
    /// Experiment to run; `list` shows them, `all` runs all of them, on this machine and in the
    /// simulator, or with `--sim` in the simulator only.
    #[arg(value_name = "EXPERIMENT")]
    pub id: String,
    /// Use fewer files and fewer sizes.
    #[arg(long)]
    pub quick: bool,
    /// Run in the simulator, at the paper's size, instead of on this machine.
    #[arg(long)]
    pub sim: bool,
    /// Write tables, charts and claims to this directory, with `all` also index.html.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn paper(args: &PaperArgs) -> Result<ExitCode> {
    if args.id == "list" {
        for experiment in Experiment::ALL {
            println!("{:<20} {}", experiment.id, experiment.title);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop::on_signal()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let place = if args.sim { Testbed::Simulator } else { Testbed::Machine };
    let grids = MeasuredGrids::default();
    let setting = Setting { place, quick: args.quick, program: &program, stop: &stop, grids: &grids };
    let outcomes = match Experiment::named(&args.id) {
        Some(experiment) => {
            let outcome = experiment.run(&setting)?;
            show(args, &outcome);
            vec![outcome]
        }
        None if args.id == "all" => all(args, &setting)?,
        None => bail!("there is no experiment {}: `espalier paper list` shows which there are", args.id),
    };
    if let Some(dir) = &args.out {
        write_page(dir, &outcomes)?;
    }
    if args.json {
        let all = serde_json::to_value(&outcomes)?;
        println!("{}", if let [one] = &outcomes[..] { serde_json::to_value(one)? } else { all });
    }
    let all_hold = outcomes.iter().flat_map(|outcome| &outcome.claims).all(|claim| claim.holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::from(UNLIKE) })
}

/// Prints a result at once, since others may take long or fail; JSON is one value for all.
fn show(args: &PaperArgs, outcome: &ExperimentResult) {
    if !args.json {
        println!("{outcome}");
    }
}

fn all(args: &PaperArgs, setting: &Setting<'_>) -> Result<Vec<ExperimentResult>> {
    let mut outcomes = Vec::new();
    for (experiment, place) in runs(args.sim) {
        let shown = if place == Testbed::Machine { "machine" } else { "simulator" };
        eprintln!("{} ({shown})", experiment.id);
        let outcome = experiment.run(&Setting { place, ..*setting });
        let outcome = outcome.with_context(|| format!("{} ({shown})", experiment.id))?;
        show(args, &outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The runs of `all`: each experiment wherever it can run.
fn runs(is_sim: bool) -> impl Iterator<Item = (&'static Experiment, Testbed)> {
    let places =
        |experiment: &'static Experiment| experiment.places.iter().map(move |place| (experiment, *place));
    let all = Experiment::ALL.iter().flat_map(places);
    all.filter(move |(_, place)| !is_sim || *place == Testbed::Simulator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_runs_every_experiment_and_with_sim_in_the_simulator_only() {
        let runs_of = |id: &str, is_sim| runs(is_sim).filter(|(experiment, _)| experiment.id == id).count();
        assert_eq!((runs_of("sevilla-fig4.6", false), runs_of("sevilla-fig4.6", true)), (2, 1));
        assert_eq!((runs_of("sevilla-fig6.6", false), runs_of("sevilla-fig6.6", true)), (1, 0));
        assert!(runs(true).all(|(_, place)| place == Testbed::Simulator));
        assert!(Experiment::ALL.iter().all(|experiment| runs_of(experiment.id, false) > 0));
    }
}
