//! One big file for each process, in large pieces from beginning to end and in small ones at random.

use rustix::fs::{OFlags, fdatasync};

use crate::group::{Group, Phase, Procs, Source, Uncached};
use crate::worker::{Laps, Outcome, Worker, create, doing, open, read, write};

const LARGE: u64 = 1 << 20;
const SMALL: u64 = 4096;
const NAME: &str = "big";

pub(crate) static GROUP: Group = Group {
    name: "big",
    files: 1,
    bytes: 256 << 20,
    procs: Procs::Default(&[1]),
    source: Source::Nothing,
    start: Worker::make_own,
    phases: &[
        Phase::new("sequential write+fdatasync", |worker, laps| {
            let file = create(worker.own()?, NAME)?;
            let buffer = vec![b'x'; LARGE as usize];
            for offset in (0..length(worker)).step_by(LARGE as usize) {
                write(&file, &buffer, offset)?;
                laps.moved(buffer.len());
            }
            fdatasync(&file).map_err(doing("sync", NAME))
        }),
        Phase::new("sequential read uncached", read_all).uncached(Uncached::Everything),
        Phase::new("sequential read cached", read_all),
        Phase::new("random read cached", |worker, laps| {
            let file = open(worker.own()?, NAME, OFlags::RDONLY)?;
            let mut buffer = vec![0; SMALL as usize];
            at_random(worker, laps, |offset| read(&file, &mut buffer, offset))
        }),
        Phase::new("random write+fdatasync", |worker, laps| {
            let file = open(worker.own()?, NAME, OFlags::RDWR)?;
            let buffer = vec![b'y'; SMALL as usize];
            at_random(worker, laps, |offset| write(&file, &buffer, offset))?;
            fdatasync(&file).map_err(doing("sync", NAME))
        }),
    ],
};

/// Of the file: the bytes asked for, in whole large pieces.
fn length(worker: &Worker) -> u64 {
    worker.task.bytes.next_multiple_of(LARGE)
}

fn read_all(worker: &mut Worker, laps: &mut Laps) -> Outcome {
    let file = open(worker.own()?, NAME, OFlags::RDONLY)?;
    let mut buffer = vec![0; LARGE as usize];
    for offset in (0..length(worker)).step_by(LARGE as usize) {
        read(&file, &mut buffer, offset)?;
        laps.moved(buffer.len());
    }
    Ok(())
}

/// A quarter of the file's small pieces, in an order that is the same in every run.
fn at_random(worker: &Worker, laps: &mut Laps, mut work: impl FnMut(u64) -> Outcome) -> Outcome {
    let mut random = fastrand::Rng::with_seed(u64::from(worker.task.rank));
    let pieces = length(worker) / SMALL;
    for _ in 0..pieces / 4 {
        work(random.u64(0..pieces) * SMALL)?;
        laps.moved(SMALL as usize);
    }
    Ok(())
}
