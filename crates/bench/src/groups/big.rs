//! One big file per process: large sequential and small random accesses.

use rustix::fs::{OFlags, fdatasync};

use crate::group::{Group, Phase, Procs, ProgramInput, Uncached};
use crate::worker::{Laps, Worker, WorkerResult, create_for, doing, open, read, write};

const LARGE: u64 = 1 << 20;
const SMALL: u64 = 4096;
const NAME: &str = "big";
/// Number of cached reads of the whole file; a single one is too short to measure.
const REPEATS: u64 = 8;

pub(crate) static GROUP: Group = Group {
    name: "big",
    files: 1,
    bytes: 256 << 20,
    procs: Procs::Default(&[1]),
    may_share: false,
    source: ProgramInput::Nothing,
    start: Worker::make_own,
    phases: &[
        Phase::new("sequential write+fdatasync", |worker, laps| {
            // Write-only, as `cp`, `dd` and `tar` open it.
            let file = create_for(worker.own()?, NAME, OFlags::WRONLY)?;
            let buffer = vec![b'x'; LARGE as usize];
            for offset in (0..length(worker)).step_by(LARGE as usize) {
                write(&file, &buffer, offset)?;
                laps.moved(buffer.len());
            }
            fdatasync(&file).map_err(doing("sync", NAME))
        }),
        Phase::new("sequential read uncached", |worker, laps| read_all(worker, laps, 1))
            .uncached(Uncached::Everything),
        Phase::new("sequential read cached", |worker, laps| read_all(worker, laps, REPEATS)),
        Phase::new("random read cached", |worker, laps| {
            let file = open(worker.own()?, NAME, OFlags::RDONLY)?;
            let mut buffer = vec![0; SMALL as usize];
            let pieces = length(worker) / SMALL * REPEATS;
            at_random(worker, laps, pieces, |offset| read(&file, &mut buffer, offset))
        }),
        Phase::new("random write+fdatasync", |worker, laps| {
            let file = open(worker.own()?, NAME, OFlags::RDWR)?;
            let buffer = vec![b'y'; SMALL as usize];
            let pieces = length(worker) / SMALL / 4;
            at_random(worker, laps, pieces, |offset| write(&file, &buffer, offset))?;
            fdatasync(&file).map_err(doing("sync", NAME))
        }),
    ],
};

/// File length: the requested bytes rounded to whole large blocks.
fn length(worker: &Worker) -> u64 {
    worker.task.bytes.next_multiple_of(LARGE)
}

fn read_all(worker: &mut Worker, laps: &mut Laps, times: u64) -> WorkerResult {
    let file = open(worker.own()?, NAME, OFlags::RDONLY)?;
    let mut buffer = vec![0; LARGE as usize];
    for offset in (0..times).flat_map(|_| (0..length(worker)).step_by(LARGE as usize)) {
        read(&file, &mut buffer, offset)?;
        laps.moved(buffer.len());
    }
    Ok(())
}

/// Accesses `pieces` small blocks of the file in a fixed random order.
fn at_random(
    worker: &Worker,
    laps: &mut Laps,
    pieces: u64,
    mut work: impl FnMut(u64) -> WorkerResult,
) -> WorkerResult {
    let mut random = fastrand::Rng::with_seed(u64::from(worker.task.rank));
    for _ in 0..pieces {
        work(random.u64(0..length(worker) / SMALL) * SMALL)?;
        laps.moved(SMALL as usize);
    }
    Ok(())
}
