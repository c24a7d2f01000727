//! Table II: mdtest with 16,384 processes, 32 servers and 10 files of each process in a directory
//! of its own.

use super::bench::Does;
use super::blue_gene::{measure, setup, size};
use super::percent;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::{EVERYWHERE, Experiment, Setting, Testbed};

pub(crate) const TABLE2: Experiment = Experiment {
    id: "carns-table2",
    title: "16,384 processes on BG/P: mdtest mean operations/second",
    places: EVERYWHERE,
    run,
};

const PHASES: &[Does] = &[Does::MkDir, Does::StatDir, Does::RmDir, Does::Make, Does::Stat, Does::Remove];

/// The paper's rows, baseline and optimized, and the speedup claimed in the simulator and on this
/// machine.
const ROWS: [(&str, f64, f64, Option<[f64; 2]>); 6] = [
    ("directory creation", 12_163.831, 40_799.785, None),
    ("directory stat", 50_402.179, 60_543.205, None),
    ("directory removal", 9_778.694, 16_329.199, None),
    ("file creation", 1_823.450, 18_324.970, Some([10.0, 3.0])),
    ("file stat", 4_489.135, 54_148.693, Some([12.0, 3.0])),
    ("file removal", 1_288.583, 10_656.798, Some([8.0, 3.0])),
];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let size = size(setting);
    let servers = size.servers[size.servers.len() - 1];
    let [baseline, optimized] = [0, 1].map(|series| measure(setting, size, (series, servers), PHASES));
    let (baseline, optimized) = (baseline?, optimized?);
    let (mut rows, mut claims) = (Vec::new(), Vec::new());
    for ((operation, paper, paper_optimized, least), (ours, ours_optimized)) in
        ROWS.into_iter().zip(baseline.into_iter().zip(optimized))
    {
        let (paper_gain, gain) = (paper_optimized / paper, ours_optimized / ours.max(f64::MIN_POSITIVE));
        let rates = [paper, paper_optimized, ours, ours_optimized].map(|rate| format!("{rate:.0}"));
        let [paper, paper_optimized, ours, ours_optimized] = rates;
        rows.push(vec![
            operation.into(),
            paper,
            paper_optimized,
            percent(paper_gain),
            ours,
            ours_optimized,
            percent(gain),
        ]);
        let Some(least) = least else { continue };
        let least = least[usize::from(setting.place == Testbed::Machine)];
        claims.push(Claim {
            text: format!("{operation} is at least {least} times as fast when optimized"),
            paper: format!("{paper_gain:.1} times"),
            ours: format!("{gain:.1} times"),
            holds: gain >= least,
        });
    }
    let columns = vec![
        "process",
        "paper: baseline",
        "optimized",
        "improvement",
        "here: baseline",
        "optimized",
        "improvement",
    ];
    let setup = format!("{servers} servers. {}", setup(size));
    Ok(ExperimentResult {
        setup,
        claims,
        tables: vec![Table { name: "rates", columns, rows }],
        ..ExperimentResult::default()
    })
}
