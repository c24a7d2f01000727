//! Figs. 5.5 to 5.7: queues and times over the number of clients; Eqs. 5.4 to 5.8.

use super::grid::{Axis, Costs, Division, Grid, Point, charts, setup, size, table};
use super::throughput::ends;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{Experiment, SIMULATED, Setting};

pub(crate) const FIG5_5: Experiment = Experiment {
    id: "wu-fig5.5",
    title: "queues of the servers over the number of clients",
    places: SIMULATED,
    run: queues,
};
pub(crate) const FIG5_6: Experiment = Experiment {
    id: "wu-fig5.6",
    title: "waiting time in a pre-distributed directory",
    places: SIMULATED,
    run: times,
};
pub(crate) const FIG5_7: Experiment = Experiment {
    id: "wu-fig5.7",
    title: "waiting time in a splitting directory",
    places: SIMULATED,
    run: splitting,
};

fn queues(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let grids = [Grid::measure(setting, Division::PreDistributed, Costs::Thesis)?];
    let saturated = saturated(&grids[0]);
    let ratio = |point: &Point| point.in_server / expected_queue(point);
    let (least, most) = range(saturated.iter().map(ratio));
    let claims = vec![Claim {
        text: format!("Eq. 5.4 where servers are busy ({} points): N = n_cp / n_io", saturated.len()),
        paper: "equal".into(),
        ours: format!("{least:.2} to {most:.2} of it"),
        // The rest of the requests is in the network.
        holds: saturated.len() > 1 && least > 0.8 && most < 1.1,
    }];
    Ok(ExperimentResult {
        setup: setup(setting, Division::PreDistributed),
        claims,
        tables: vec![table(&grids)],
        charts: charts(setting, &grids, Axis::Clients, ("requests in a server", |point| point.in_server)),
        ..ExperimentResult::default()
    })
}

fn times(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let grids = [Grid::measure(setting, Division::PreDistributed, Costs::Thesis)?];
    let grid = &grids[0];
    let saturated = saturated(grid);
    // Eq. 5.5, with the queue and the rate of a server.
    let by_queue = |point: &Point| Costs::Thesis.service() + point.queue() / point.arrivals;
    // Eq. 5.6.
    let by_numbers = |point: &Point| Costs::Thesis.service() + expected_queue(point) / point.arrivals;
    let mut claims: Vec<Claim> = [("5.5", by_queue as fn(&Point) -> f64), ("5.6", by_numbers)]
        .map(|(equation, expected)| {
            let (least, most) = range(saturated.iter().map(|point| point.seconds / expected(point)));
            Claim {
                text: format!("Eq. {equation} predicts the mean time where servers are busy"),
                paper: String::new(),
                ours: format!("{least:.2} to {most:.2} of the prediction"),
                holds: least > 0.75 && most < 1.4,
            }
        })
        .into();
    let (_, many) = ends(size(setting).clients);
    let (one, _) = ends(size(setting).servers);
    let with_one = grid.with_servers(one);
    let (least, most) = range(with_one.iter().map(|point| point.seconds / f64::from(point.clients)));
    claims.push(Claim {
        text: format!("Eq. 5.7: with {one} server the mean time is proportional to n_cp"),
        paper: "linear".into(),
        ours: format!("time per client {:.2} to {:.2} us", least * 1e6, most * 1e6),
        holds: most < 1.15 * least,
    });
    let busy: Vec<Point> = saturated.into_iter().filter(|point| point.clients == many).collect();
    let (least, most) = range(busy.iter().map(|point| point.seconds * f64::from(point.servers)));
    claims.push(Claim {
        text: format!("Eq. 5.8: with {many} clients the mean time is proportional to 1 / n_io"),
        paper: "the higher the number of I/O nodes, the lower the slope".into(),
        ours: format!("time times servers {:.1} to {:.1} ms, {} points", least * 1e3, most * 1e3, busy.len()),
        holds: most < 1.25 * least,
    });
    Ok(ExperimentResult {
        setup: setup(setting, Division::PreDistributed),
        claims,
        tables: vec![table(&grids)],
        charts: charts(setting, &grids, Axis::Clients, ("ms a create", |point| point.seconds * 1e3)),
        ..ExperimentResult::default()
    })
}

fn splitting(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let grids = [Grid::measure(setting, Division::Splitting, Costs::Thesis)?];
    let whole = Grid::measure(setting, Division::PreDistributed, Costs::Thesis)?;
    let (_, many) = ends(size(setting).clients);
    let mut relative = Vec::new();
    for point in grids[0].with_clients(many) {
        relative.push((point.servers, point.seconds / whole.at(point.servers, many)?.seconds));
    }
    let (with_one_server, others): (Vec<_>, Vec<_>) = relative.iter().partition(|(servers, _)| *servers == 1);
    let (least, most) = range(others.iter().map(|(_, relative)| *relative));
    let with_one_server = with_one_server.first().map_or(0.0, |(_, relative)| *relative);
    let claims = vec![
        Claim {
            text: format!(
                "with one server and {many} clients the time is that in a pre-distributed directory"
            ),
            paper: "the same".into(),
            ours: format!("{with_one_server:.2} times"),
            holds: (0.95..1.05).contains(&with_one_server),
        },
        Claim {
            text: format!("with more servers and {many} clients it is longer"),
            paper: "larger".into(),
            ours: format!("{least:.2} to {most:.2} times"),
            holds: least > 1.0,
        },
    ];
    Ok(ExperimentResult {
        setup: setup(setting, Division::Splitting),
        claims,
        tables: vec![table(&grids)],
        charts: charts(setting, &grids, Axis::Clients, ("ms a create", |point| point.seconds * 1e3)),
        ..ExperimentResult::default()
    })
}

/// Eq. 5.4.
fn expected_queue(point: &Point) -> f64 {
    f64::from(point.clients) / f64::from(point.servers)
}

fn saturated(grid: &Grid) -> Vec<Point> {
    grid.points.iter().filter(|point| point.is_saturated()).copied().collect()
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}
