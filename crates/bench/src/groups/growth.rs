//! A large directory (`--files`) and one of a hundredth of the size: the same operations in both.

use crate::group::{Group, Phase, Procs, ProgramInput, Uncached};
use crate::worker::{
    Laps, Worker, WorkerResult, create, file_name, make_directory, open_directory, stat, unlink,
};

/// Ratio of the directory sizes.
const TIMES: u64 = 100;
/// Measured operations per directory; those on existing files are spread evenly.
const SAMPLE: u64 = 5000;
const SMALL: usize = 0;
const LARGE: usize = 1;

pub(crate) static GROUP: Group = Group {
    name: "growth",
    files: 1_000_000,
    bytes: 0,
    procs: Procs::Default(&[1]),
    may_share: false,
    source: ProgramInput::Nothing,
    start,
    phases: &[
        Phase::new("fill", |worker, laps| {
            for (dir, files) in worker.open.iter().zip(sizes(worker)) {
                for number in 0..files {
                    drop(create(dir, &file_name(number))?);
                    laps.lap();
                }
            }
            Ok(())
        }),
        Phase::new("create in small", |worker, laps| create_more(worker, SMALL, laps)),
        Phase::new("create in large", |worker, laps| create_more(worker, LARGE, laps)),
        Phase::new("stat uncached in small", |worker, laps| stat_some(worker, SMALL, laps))
            .uncached(Uncached::Names),
        Phase::new("stat uncached in large", |worker, laps| stat_some(worker, LARGE, laps))
            .uncached(Uncached::Names),
        Phase::new("unlink in small", |worker, laps| unlink_some(worker, SMALL, laps)),
        Phase::new("unlink in large", |worker, laps| unlink_some(worker, LARGE, laps)),
    ],
};

fn start(worker: &mut Worker) -> WorkerResult {
    worker.make_own()?;
    for name in ["small", "large"] {
        make_directory(worker.own()?, name)?;
        let dir = open_directory(worker.own()?, name)?;
        worker.open.push(dir);
    }
    Ok(())
}

fn sizes(worker: &Worker) -> [u64; 2] {
    let large = worker.task.files;
    [(large / TIMES).max(1), large]
}

/// The same number for both directories, for comparison.
fn sample(worker: &Worker) -> u64 {
    SAMPLE.min(sizes(worker)[SMALL])
}

fn create_more(worker: &mut Worker, which: usize, laps: &mut Laps) -> WorkerResult {
    let files = sizes(worker)[which];
    for number in files..files + sample(worker) {
        drop(create(&worker.open[which], &file_name(number))?);
        laps.lap();
    }
    Ok(())
}

/// Evenly spread numbers of existing files.
fn spread(worker: &Worker, which: usize) -> impl Iterator<Item = u64> + use<> {
    let (files, sample) = (sizes(worker)[which], sample(worker));
    (0..sample).map(move |number| number * files / sample)
}

fn stat_some(worker: &mut Worker, which: usize, laps: &mut Laps) -> WorkerResult {
    for number in spread(worker, which) {
        stat(&worker.open[which], &file_name(number))?;
        laps.lap();
    }
    Ok(())
}

fn unlink_some(worker: &mut Worker, which: usize, laps: &mut Laps) -> WorkerResult {
    for number in spread(worker, which) {
        unlink(&worker.open[which], &file_name(number))?;
        laps.lap();
    }
    Ok(())
}
