//! Small files in sequence, where the number of requests to the file system dominates.

use crate::group::{Group, Phase, Procs, ProgramInput, Uncached};
use crate::worker::{Laps, Worker, WorkerResult, create, list, open_directory, stat, unlink, write};

pub(crate) static GROUP: Group = Group {
    name: "small",
    files: 10_000,
    bytes: 4096,
    procs: Procs::Default(&[1]),
    may_share: true,
    source: ProgramInput::Nothing,
    start,
    phases: &[
        Phase::new("create", |worker, laps| {
            for number in 0..worker.task.files {
                drop(create(worker.own()?, &worker.file_name(number))?);
                laps.lap();
            }
            Ok(())
        }),
        Phase::new("stat uncached", stat_all).uncached(Uncached::Names),
        Phase::new("stat cached", stat_all),
        Phase::new("readdir+stat uncached", |worker, laps| {
            let dir = open_directory(worker.own()?, ".")?;
            list(&dir, worker.files_of_directory(), laps)
        })
        .uncached(Uncached::Names),
        Phase::new("unlink", |worker, laps| {
            for number in 0..worker.task.files {
                unlink(worker.own()?, &worker.file_name(number))?;
                laps.lap();
            }
            Ok(())
        }),
        Phase::new("create+write+close", |worker, laps| {
            for number in 0..worker.task.files {
                let file = create(worker.own()?, &worker.file_name(number))?;
                write(&file, &worker.buffer, 0)?;
                drop(file);
                laps.moved(worker.buffer.len());
            }
            Ok(())
        }),
    ],
};

fn start(worker: &mut Worker) -> WorkerResult {
    worker.buffer = vec![b'x'; worker.task.bytes as usize];
    worker.make_own()
}

fn stat_all(worker: &mut Worker, laps: &mut Laps) -> WorkerResult {
    for number in 0..worker.task.files {
        stat(worker.own()?, &worker.file_name(number))?;
        laps.lap();
    }
    Ok(())
}
