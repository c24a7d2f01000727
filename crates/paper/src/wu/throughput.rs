//! Figs. 5.2 to 5.4: throughput and queues over the number of servers.

use super::grid::{Axis, Costs, Division, Grid, charts, setup, size, table};
use super::{machine, scaling};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{EVERYWHERE, Experiment, SIMULATED, Setting, Testbed};

pub(crate) const FIG5_2: Experiment = Experiment {
    id: "wu-fig5.2",
    title: "creates in a pre-distributed directory",
    places: EVERYWHERE,
    run: pre_distributed,
};
pub(crate) const FIG5_3: Experiment = Experiment {
    id: "wu-fig5.3",
    title: "queues of the servers over their number",
    places: SIMULATED,
    run: queues,
};
pub(crate) const FIG5_4: Experiment = Experiment {
    id: "wu-fig5.4",
    title: "creates in a splitting directory",
    places: EVERYWHERE,
    run: splitting,
};

fn grids(setting: &Setting<'_>, division: Division) -> Result<Vec<Grid>, PaperError> {
    Costs::ALL.into_iter().map(|costs| Grid::measure(setting, division, costs)).collect()
}

fn pre_distributed(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::creates(setting, Division::PreDistributed);
    }
    let grids = grids(setting, Division::PreDistributed)?;
    let (few, many) = ends(size(setting).clients);
    let (one, most) = ends(size(setting).servers);
    let thesis = &grids[0];
    let growth = |clients| -> Result<f64, PaperError> {
        Ok(thesis.at(most, clients)?.throughput / thesis.at(one, clients)?.throughput)
    };
    let (of_few, of_many) = (growth(few)?, growth(many)?);
    let peak = thesis.at(most, many)?.throughput;
    let bound = f64::from(most) / Costs::Thesis.service();
    let with_one_server = thesis.at(one, many)?.throughput / thesis.at(one, few)?.throughput;
    let mut claims = vec![
        Claim {
            text: format!("with {many} clients throughput scales further than with {few}"),
            paper: "it keeps to scale until a larger number of I/O nodes".into(),
            ours: format!("{of_many:.1} and {of_few:.1} times from {one} to {most} servers"),
            holds: of_many > 1.2 * of_few,
        },
        Claim {
            text: format!("{one} server is fully used by {few} clients already"),
            paper: "below 7 servers more than 32 clients improve little".into(),
            ours: format!("{many} clients: {with_one_server:.2} times as fast"),
            holds: with_one_server < 1.1,
        },
        Claim {
            text: format!("{many} clients get at least a third of what {most} servers can create"),
            paper: "about 9,000 creates/s: a create of PVFS takes several requests".into(),
            ours: format!("{peak:.0} of {bound:.0} creates/s"),
            holds: 3.0 * peak > bound,
        },
    ];
    let scaling = scaling::points(setting)?;
    claims.extend(scaling::claims(&scaling));
    Ok(ExperimentResult {
        setup: setup(setting, Division::PreDistributed) + scaling::SETUP,
        claims,
        tables: vec![table(&grids), scaling::table(&scaling)],
        charts: charts(setting, &grids, Axis::Servers, ("creates per second", |point| point.throughput)),
        ..ExperimentResult::default()
    })
}

fn queues(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let grids = grids(setting, Division::PreDistributed)?;
    let (few, many) = ends(size(setting).clients);
    let (one, most) = ends(size(setting).servers);
    let thesis = &grids[0];
    let mut is_shorter = true;
    for servers in size(setting).servers {
        is_shorter &= thesis.at(*servers, few)?.queue() <= thesis.at(*servers, many)?.queue() + 0.05;
    }
    let [with_one_server, shared] =
        [thesis.at(one, many)?, thesis.at(most, many)?].map(|point| point.queue());
    let claims = vec![
        Claim {
            text: "fewer clients have shorter queues".into(),
            paper: "a smaller number of compute nodes results in a shorter waiting queue".into(),
            ours: format!(
                "{few} against {many} clients: {}",
                if is_shorter { "always" } else { "not always" }
            ),
            holds: is_shorter,
        },
        Claim {
            text: format!("the queue of {many} clients shrinks with the number of servers"),
            paper: "it dramatically decreases".into(),
            ours: format!("{with_one_server:.1} with {one} server, {shared:.1} with {most}"),
            holds: 4.0 * shared < with_one_server,
        },
    ];
    Ok(ExperimentResult {
        setup: setup(setting, Division::PreDistributed),
        claims,
        tables: vec![table(&grids)],
        charts: charts(
            setting,
            &grids,
            Axis::Servers,
            ("requests that wait at a server", |point| point.queue()),
        ),
        ..ExperimentResult::default()
    })
}

fn splitting(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::creates(setting, Division::Splitting);
    }
    let grids = grids(setting, Division::Splitting)?;
    let whole = Grid::measure(setting, Division::PreDistributed, Costs::Thesis)?;
    let (few, many) = ends(size(setting).clients);
    let (one, most) = ends(size(setting).servers);
    let split = &grids[0];
    let relative = |servers, clients| -> Result<f64, PaperError> {
        Ok(split.at(servers, clients)?.throughput / whole.at(servers, clients)?.throughput)
    };
    let (with_one_server, shared) = (relative(one, many)?, relative(most, many)?);
    let gain = |grid: &Grid| -> Result<f64, PaperError> {
        Ok(grid.at(most, many)?.throughput / grid.at(most, few)?.throughput)
    };
    let (gain_split, gain_whole) = (gain(split)?, gain(&whole)?);
    let (from_empty, splits) = scaling::splitting(setting)?;
    let claims = vec![
        Claim {
            text: format!("with {many} clients {most} servers are slower while the directory splits"),
            paper: "the throughput is lower than that of a pre-distributed directory".into(),
            ours: format!("{shared:.2} of it; with {one} server {with_one_server:.2}"),
            holds: shared < 0.95 && (0.95..1.05).contains(&with_one_server),
        },
        Claim {
            text: format!("more clients gain less: from {few} to {many}, with {most} servers"),
            paper: "the improvement is less noticeable".into(),
            ours: format!("{gain_split:.1} times, and {gain_whole:.1} times in a pre-distributed directory"),
            holds: gain_split < gain_whole,
        },
        from_empty,
    ];
    Ok(ExperimentResult {
        setup: setup(setting, Division::Splitting) + scaling::SETUP,
        claims,
        tables: vec![table(&grids), splits],
        charts: charts(setting, &grids, Axis::Servers, ("creates per second", |point| point.throughput)),
        ..ExperimentResult::default()
    })
}

/// The smallest and the largest number.
pub(super) fn ends(numbers: &[u32]) -> (u32, u32) {
    (numbers.first().copied().unwrap_or(1), numbers.last().copied().unwrap_or(1))
}
