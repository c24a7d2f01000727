//! Operations that must reach the disk before the program continues.

use rustix::fs::{fdatasync, fsync};

use crate::group::{Group, Phase, Procs, ProgramInput};
use crate::worker::{Worker, WorkerResult, create, doing, file_name, write};

pub(crate) static GROUP: Group = Group {
    name: "durable",
    files: 500,
    bytes: 4096,
    procs: Procs::Default(&[1, 4]),
    may_share: false,
    source: ProgramInput::Nothing,
    start,
    phases: &[
        Phase::new("create+write+fsync", |worker, laps| {
            for number in 0..worker.task.files {
                let name = file_name(number);
                let file = create(worker.own()?, &name)?;
                write(&file, &worker.buffer, 0)?;
                fsync(&file).map_err(doing("sync", &name))?;
                drop(file);
                laps.moved(worker.buffer.len());
            }
            Ok(())
        }),
        // The minimum for a disk: the file does not grow, so only its data is written.
        Phase::new("overwrite+fdatasync", |worker, laps| {
            for file in &worker.open {
                for _ in 0..worker.task.files {
                    write(file, &worker.buffer, 0)?;
                    fdatasync(file).map_err(doing("sync", "a file"))?;
                    laps.moved(worker.buffer.len());
                }
            }
            Ok(())
        }),
    ],
};

fn start(worker: &mut Worker) -> WorkerResult {
    worker.buffer = vec![b'x'; worker.task.bytes as usize];
    worker.make_own()?;
    let file = create(worker.own()?, "overwritten")?;
    write(&file, &worker.buffer, 0)?;
    fsync(&file).map_err(doing("sync", "a file"))?;
    worker.open.push(file);
    Ok(())
}
