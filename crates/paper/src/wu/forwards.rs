//! Figs. 5.10 and 5.11: requests that reach a server without the name.

use super::grid::{Axis, Costs, Division, Grid, charts, setup, size, table};
use super::throughput::ends;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{Experiment, SIMULATED, Setting};

pub(crate) const FIG5_10: Experiment = Experiment {
    id: "wu-fig5.10",
    title: "forwarded requests in a pre-distributed directory",
    places: SIMULATED,
    run: pre_distributed,
};
pub(crate) const FIG5_11: Experiment = Experiment {
    id: "wu-fig5.11",
    title: "forwarded requests in a splitting directory",
    places: SIMULATED,
    run: splitting,
};

fn pre_distributed(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let grids = [Grid::measure(setting, Division::PreDistributed, Costs::Thesis)?];
    let most = grids[0].points.iter().map(|point| point.forwards as f64 / f64::from(point.clients));
    let most = most.fold(0.0, f64::max);
    let claims = vec![Claim {
        text: "forwards never exceed the number of clients".into(),
        paper: "never".into(),
        ours: format!("at most {most:.2} for each client"),
        holds: most <= 1.0,
    }];
    Ok(result(setting, Division::PreDistributed, &grids, claims))
}

fn splitting(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let grids = [Grid::measure(setting, Division::Splitting, Costs::Thesis)?];
    let (_, many) = ends(size(setting).clients);
    let (_, most) = ends(size(setting).servers);
    let forwards = grids[0].at(most, many)?.forwards as f64;
    let (clients, creates) = (f64::from(many), f64::from(many * size(setting).files));
    let claims = vec![
        Claim {
            text: format!(
                "with {most} servers and {many} clients there are more than in a pre-distributed directory"
            ),
            paper: "noticeably higher".into(),
            ours: format!("{:.1} for each client", forwards / clients),
            holds: forwards > clients,
        },
        Claim {
            text: "they do not grow with the number of splits: a client's new map has all splits before"
                .into(),
            paper: "the overhead will not dramatically increase with more I/O nodes".into(),
            ours: format!("{:.1} for each client, of {} splits", forwards / clients, most - 1),
            holds: forwards < clients * f64::from(most - 1),
        },
        Claim {
            text: "they are few against the creates".into(),
            paper: String::new(),
            ours: format!("{:.1} %", 100.0 * forwards / creates),
            holds: forwards < creates,
        },
    ];
    Ok(result(setting, Division::Splitting, &grids, claims))
}

fn result(setting: &Setting<'_>, division: Division, grids: &[Grid], claims: Vec<Claim>) -> ExperimentResult {
    ExperimentResult {
        setup: setup(setting, division),
        claims,
        tables: vec![table(grids)],
        charts: charts(setting, grids, Axis::Servers, ("forwarded requests", |point| point.forwards as f64)),
        ..ExperimentResult::default()
    }
}
