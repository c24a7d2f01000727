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
    /// simulator.
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
            println!("{:<16} {}", experiment.id, experiment.title);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop::on_signal()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let place = if args.sim { Testbed::Simulator } else { Testbed::Machine };
    let grids = MeasuredGrids::default();
    let setting = Setting { place, quick: args.quick, program: &program, stop: &stop, grids: &grids };
    let outcomes = match Experiment::named(&args.id) {
        Some(experiment) => vec![experiment.run(&setting)?],
        None if args.id == "all" => all(&setting)?,
        None => bail!("there is no experiment {}: `espalier paper list` shows which there are", args.id),
    };
    if let Some(dir) = &args.out {
        write_page(dir, &outcomes)?;
    }
    if args.json {
        let all = serde_json::to_value(&outcomes)?;
        println!("{}", if let [one] = &outcomes[..] { serde_json::to_value(one)? } else { all });
    } else {
        outcomes.iter().for_each(|outcome| println!("{outcome}"));
    }
    let all_hold = outcomes.iter().flat_map(|outcome| &outcome.claims).all(|claim| claim.holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::from(UNLIKE) })
}

fn all(setting: &Setting<'_>) -> Result<Vec<ExperimentResult>> {
    let mut outcomes = Vec::new();
    for experiment in Experiment::ALL {
        for place in experiment.places.iter().copied() {
            eprintln!(
                "{} ({})",
                experiment.id,
                if place == Testbed::Machine { "machine" } else { "simulator" }
            );
            outcomes.push(experiment.run(&Setting { place, ..*setting })?);
        }
    }
    Ok(outcomes)
}
