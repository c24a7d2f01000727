//! `espalier sim` for a scenario with a `[sweep]`: many runs, and how their results scale.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use espalier_sim::{Point, RunError, Scenario, World};
use indicatif::ProgressBar;

/// Events between two checks for an interrupt.
const STEP: u64 = 100_000;

/// Executes all runs, on as many threads as processors. Returns the results of completed runs, in
/// order, if interrupted.
///
/// # Errors
/// Those of a run.
pub(crate) fn run(scenario: &Scenario, stop: &AtomicBool) -> Result<Vec<Point>> {
    let runs = scenario.sweep.scenarios(scenario);
    let bar = ProgressBar::new(runs.len() as u64);
    // Start the longest runs first, to keep all processors busy until the end.
    let left = Mutex::new((0..runs.len()).collect::<Vec<_>>());
    let points = Mutex::new(vec![None; runs.len()]);
    let work = || -> Result<(), RunError> {
        loop {
            let Some(number) = left.lock().ok().and_then(|mut left| left.pop()) else { return Ok(()) };
            let Some(point) = run_one(&runs[number], stop)? else { return Ok(()) };
            if let Ok(mut points) = points.lock() {
                points[number] = Some(point);
            }
            bar.inc(1);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let ended: Result<Vec<()>, RunError> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    bar.finish_and_clear();
    ended?;
    Ok(points.into_inner().unwrap_or_default().into_iter().flatten().collect())
}

fn run_one(scenario: &Scenario, stop: &AtomicBool) -> Result<Option<Point>, RunError> {
    let (observer, mutator) = (&mut (), &mut ());
    let mut world = World::new(scenario, observer, mutator)?;
    while !stop.load(Ordering::Relaxed) {
        if world.advance(STEP)?.is_over {
            return Ok(Some(Point::new(scenario, &world.report())));
        }
    }
    Ok(None)
}

pub(crate) fn print(points: &[Point]) {
    println!(
        "{:>6} {:>8} {:>10} {:>12} {:>10} {:>8} {:>10} {:>6} {:>9}",
        "ranks", "clients", "operations", "per second", "mean us", "queue", "wait us", "busy", "requests"
    );
    for point in points {
        println!(
            "{:>6} {:>8} {:>10} {:>12.0} {:>10.1} {:>8.2} {:>10.1} {:>5.1}% {:>9.2}",
            point.ranks,
            point.clients,
            point.operations,
            point.per_second,
            point.mean_us,
            point.queue,
            point.wait_us,
            point.utilisation * 100.0,
            point.messages
        );
    }
}
