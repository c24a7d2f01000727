//! Writes results of runs as CSV tables and as charts.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::balancer::BalancerMove;
use crate::plot::{Line, PlotError, plot};
use crate::report::Report;
use crate::series::{Series, ServerSample};
use crate::sweep::Point;
use crate::time::Nanos;

/// Why results cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{}: {cause}", path.display())]
    Directory { path: PathBuf, cause: std::io::Error },
    #[error("{}: {cause}", path.display())]
    Csv { path: PathBuf, cause: csv::Error },
    #[error(transparent)]
    Plot(#[from] PlotError),
}

/// Writes the report and the series as CSV to a directory, which is created if absent.
///
/// # Errors
/// [`OutputError`]
pub fn write_csv(dir: &Path, report: &Report, series: &Series) -> Result<(), OutputError> {
    make(dir)?;
    table(dir, "operations", &report.operations)?;
    table(dir, "servers", &report.servers)?;
    table(dir, "series", &series.total)?;
    table(dir, "server-series", &series.servers)?;
    table(dir, "client-series", &series.clients)?;
    table(dir, "message-series", &series.messages)
}

/// Writes the moves that balancers have begun as `moves.csv`.
///
/// # Errors
/// [`OutputError`]
pub fn write_moves(dir: &Path, moves: &[BalancerMove]) -> Result<(), OutputError> {
    make(dir)?;
    table(dir, "moves", moves)
}

/// Writes the results of a sweep as `sweep.csv`.
///
/// # Errors
/// [`OutputError`]
pub fn write_sweep(dir: &Path, points: &[Point]) -> Result<(), OutputError> {
    make(dir)?;
    table(dir, "sweep", points)
}

/// Draws throughput, queues and waiting times over the number of servers, with a line for each
/// number of clients (wu, Figs. 5.2, 5.5 and 5.6).
///
/// # Errors
/// [`OutputError`]
pub fn plot_sweep(dir: &Path, points: &[Point]) -> Result<(), OutputError> {
    make(dir)?;
    let mut clients: Vec<u32> = points.iter().map(|point| point.clients).collect();
    clients.sort_unstable();
    clients.dedup();
    let draw = |file: &str, quantity: &str, value: fn(&Point) -> f64| {
        let line = |clients: &u32| {
            let of = points.iter().filter(|point| point.clients == *clients);
            let points = of.map(|point| (f64::from(point.ranks), value(point))).collect();
            Line { name: format!("{clients} clients"), points, dots: false }
        };
        let lines: Vec<_> = clients.iter().map(line).collect();
        plot(&dir.join(file), "metadata servers", quantity, &lines)
    };
    draw("throughput.svg", "operations per second", |point| point.per_second)?;
    draw("queue.svg", "requests in a server", |point| point.queue)?;
    draw("wait.svg", "microseconds in a server", |point| point.wait_us)?;
    Ok(())
}

/// Draws the measured and simulated distributions up to the 99th percentile (wu 4.3). Both are
/// given by [`quantiles`](crate::quantiles).
///
/// # Errors
/// [`OutputError`]
pub fn plot_distributions(file: &Path, measured: &[Nanos], simulated: &[Nanos]) -> Result<(), OutputError> {
    make(file.parent().unwrap_or(Path::new(".")))?;
    let line = |name: &str, times: &[Nanos]| {
        let steps = (times.len().max(2) - 1) as f64;
        let points = times.iter().enumerate().map(|(step, time)| (time.0 as f64 / 1e3, step as f64 / steps));
        Line { name: name.into(), points: points.filter(|(_, part)| *part < 0.99).collect(), dots: false }
    };
    let lines = [line("measured", measured), line("simulated", simulated)];
    Ok(plot(file, "microseconds", "cumulative fraction", &lines)?)
}

fn make(dir: &Path) -> Result<(), OutputError> {
    std::fs::create_dir_all(dir).map_err(|cause| OutputError::Directory { path: dir.into(), cause })
}

fn table<T: Serialize>(dir: &Path, name: &str, rows: &[T]) -> Result<(), OutputError> {
    let path = dir.join(format!("{name}.csv"));
    let failed = |cause| OutputError::Csv { path: path.clone(), cause };
    let mut writer = csv::Writer::from_path(&path).map_err(failed)?;
    rows.iter().try_for_each(|row| writer.serialize(row)).map_err(failed)?;
    writer.flush().map_err(|cause| failed(cause.into()))
}

/// Largest number of servers with a line each; for more, the minimum, the mean and the maximum are
/// drawn.
const LINES: usize = 8;

/// Draws the series as SVG to a directory, which is created if absent.
///
/// # Errors
/// [`OutputError`]
pub fn write_plots(dir: &Path, series: &Series) -> Result<(), OutputError> {
    make(dir)?;
    let total = |name: &str, value: fn(&crate::TotalSample) -> f64| Line {
        name: name.into(),
        points: series.total.iter().map(|it| (it.time, value(it))).collect(),
        dots: false,
    };
    plot(
        &dir.join("throughput.svg"),
        "seconds",
        "operations per second",
        &[total("all clients", |it| it.throughput)],
    )?;
    let latencies =
        [total("median", |it| it.p50_us), total("95 %", |it| it.p95_us), total("99 %", |it| it.p99_us)];
    plot(&dir.join("latency.svg"), "seconds", "microseconds", &latencies)?;
    plot(
        &dir.join("server-throughput.svg"),
        "seconds",
        "requests per second",
        &of_servers(series, |it| it.throughput),
    )?;
    plot(&dir.join("queue.svg"), "seconds", "requests in a server", &of_servers(series, |it| it.queue))?;
    plot(
        &dir.join("utilisation.svg"),
        "seconds",
        "part of the time busy",
        &of_servers(series, |it| it.utilisation),
    )?;
    plot(&dir.join("disk.svg"), "seconds", "operations at a disk", &of_servers(series, |it| it.disk_queue))?;
    plot(
        &dir.join("entries.svg"),
        "seconds",
        "files and directories",
        &of_servers(series, |it| it.entries as f64),
    )?;
    Ok(())
}

fn of_servers(series: &Series, value: fn(&ServerSample) -> f64) -> Vec<Line> {
    let count = series.servers.iter().map(|it| it.server as usize + 1).max().unwrap_or(0);
    if count <= LINES {
        let line = |server| {
            let own = series.servers.iter().filter(|it| it.server == server);
            Line {
                name: format!("server {server}"),
                points: own.map(|it| (it.time, value(it))).collect(),
                dots: false,
            }
        };
        return (0..count as u32).map(line).collect();
    }
    let steps: Vec<_> = series.servers.chunks(count).collect();
    let line = |name: &str, of: fn(&[f64]) -> f64| {
        let at = |step: &&[ServerSample]| {
            let values: Vec<f64> = step.iter().map(value).collect();
            (step[0].time, of(&values))
        };
        Line { name: name.into(), points: steps.iter().map(at).collect(), dots: false }
    };
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    vec![line("least", least), line("mean", mean), line("most", most)]
}
