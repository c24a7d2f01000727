//! Fig. 7: 16,384 processes create and remove files, 1 to 32 servers.

use super::bench::Does;
use super::blue_gene::{SERIES, measure, setup, size};
use super::curves::Curves;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{EVERYWHERE, Experiment, Setting, Testbed};

pub(crate) const FIG7: Experiment = Experiment {
    id: "carns-fig7",
    title: "16,384 processes on BG/P: create and remove",
    places: EVERYWHERE,
    run,
};

const PHASES: &[Does] = &[Does::Make, Does::Remove];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let size = size(setting);
    let curves =
        Curves::of("servers", size.servers, vec!["create", "remove"], &SERIES, |series, servers| {
            measure(setting, size, (series, servers), PHASES)
        })?;
    let (fewest, most) = (size.servers[0], size.servers[size.servers.len() - 1]);
    // On one machine all servers share its processors and its disk.
    let grows = |(phase, operation): (usize, &str)| {
        let [baseline, optimized] = [0, 1].map(|series| curves.growth(series, phase));
        Claim {
            text: format!(
                "from {fewest} to {most} servers the rate of {operation} grows at least 3 times as much when optimized as in the baseline"
            ),
            paper: "substantially, and not significantly".into(),
            ours: format!("{optimized:.1} times, and {baseline:.1} times"),
            holds: optimized >= 3.0 * baseline,
        }
    };
    let faster = |(phase, operation): (usize, &str)| Claim {
        text: format!("with {most} servers {operation} is at least twice as fast when optimized"),
        paper: "faster".into(),
        ours: format!("{:.1} times", curves.gain(phase, true)),
        holds: curves.gain(phase, true) >= 2.0,
    };
    let operation = [(0, "creation"), (1, "removal")];
    let grown = operation.into_iter().filter(|_| setting.place == Testbed::Simulator).map(grows);
    let claims = operation.into_iter().map(faster).chain(grown).collect();
    let (setup, tables, charts) = (setup(size), vec![curves.table()], curves.charts());
    Ok(ExperimentResult { setup, claims, tables, charts, ..ExperimentResult::default() })
}
