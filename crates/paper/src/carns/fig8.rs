//! Fig. 8: 16,384 processes list their directory and stat each file, 1 to 32 servers.

use super::bench::Does;
use super::blue_gene::{SERIES, measure, setup, size};
use super::curves::Curves;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{EVERYWHERE, Experiment, Setting, Testbed};

pub(crate) const FIG8: Experiment = Experiment {
    id: "carns-fig8",
    title: "16,384 processes on BG/P: readdir and stat",
    places: EVERYWHERE,
    run,
};

const PHASES: &[Does] = &[Does::Create, Does::List, Does::Write, Does::List];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let size = size(setting);
    let curves = Curves::of("servers", size.servers, vec!["empty", "8-KiB"], &SERIES, |series, servers| {
        let rates = measure(setting, size, (series, servers), PHASES)?;
        Ok(vec![rates[1], rates[3]])
    })?;
    let (fewest, most) = (size.servers[0], size.servers[size.servers.len() - 1]);
    let mut claims = vec![Claim {
        text: format!(
            "with {most} servers files of 8 KiB are looked at at least twice as fast when optimized"
        ),
        paper: "up to 2 times, with 16 servers".into(),
        ours: format!("{:.1} times", curves.gain(1, true)),
        holds: curves.gain(1, true) >= 2.0,
    }];
    // On one machine all servers share its processors.
    if setting.place == Testbed::Simulator {
        let baseline = curves.growth(0, 1);
        claims.push(Claim {
            text: format!(
                "in the baseline {most} servers are slower than {fewest}, for there are more messages"
            ),
            paper: "slower".into(),
            ours: format!("{baseline:.2} times"),
            holds: baseline < 1.0,
        });
        let optimized = curves.growth(1, 1);
        claims.push(Claim {
            text: format!("optimized, {most} servers are faster than {fewest}"),
            paper: "generally".into(),
            ours: format!("{optimized:.2} times"),
            holds: optimized > 1.0,
        });
    }
    let (setup, tables, charts) = (setup(size), vec![curves.table()], curves.charts());
    Ok(ExperimentResult { setup, claims, tables, charts, ..ExperimentResult::default() })
}
