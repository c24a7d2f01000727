//! Fig. 9: 16,384 processes write and read 8 KiB of each file, 1 to 32 servers.

use super::bench::Does;
use super::blue_gene::{SERIES, measure, setup, size};
use super::curves::Curves;
use super::percent;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const FIG9: Experiment =
    Experiment { id: "carns-fig9", title: "16,384 processes on BG/P: I/O", places: EVERYWHERE, run };

const PHASES: &[Does] = &[Does::Create, Does::Write, Does::Read];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let size = size(setting);
    let curves = Curves::of("servers", size.servers, vec!["write", "read"], &SERIES, |series, servers| {
        Ok(measure(setting, size, (series, servers), PHASES)?.split_off(1))
    })?;
    let most = size.servers[size.servers.len() - 1];
    let claim = |(phase, operation, paper): (usize, &str, &str)| Claim {
        text: format!("with {most} servers 8 KiB are {operation} at least 1.25 times as fast when optimized"),
        paper: paper.into(),
        ours: percent(curves.gain(phase, true)),
        holds: curves.gain(phase, true) >= 1.25,
    };
    let claims = [(0, "written", "+77 %"), (1, "read", "+115 %")].map(claim).to_vec();
    let setup = format!("{} Files are open.", setup(size));
    let (tables, charts) = (vec![curves.table()], curves.charts());
    Ok(ExperimentResult { setup, claims, tables, charts, ..ExperimentResult::default() })
}
