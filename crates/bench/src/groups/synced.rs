//! Changes of names that must be durable before the program continues: each is followed by `fsync`
//! of the file, if there is one, and of its directory.

use rustix::fs::fsync;

use crate::group::{Group, Phase, Procs, ProgramInput};
use crate::worker::{Laps, Worker, WorkerResult, create, doing, unlink, write};

pub(crate) static GROUP: Group = Group {
    name: "synced",
    files: 500,
    bytes: 4096,
    procs: Procs::Default(&[1, 4]),
    may_share: true,
    source: ProgramInput::Nothing,
    start,
    phases: &[
        Phase::new("create", |worker, laps| make_all(worker, laps, false)),
        Phase::new("unlink", unlink_all),
        Phase::new("create+write", |worker, laps| make_all(worker, laps, true)),
    ],
};

fn start(worker: &mut Worker) -> WorkerResult {
    worker.buffer = vec![b'x'; worker.task.bytes as usize];
    worker.make_own()
}

fn make_all(worker: &mut Worker, laps: &mut Laps, writes: bool) -> WorkerResult {
    for number in 0..worker.task.files {
        let name = worker.file_name(number);
        let file = create(worker.own()?, &name)?;
        if writes {
            write(&file, &worker.buffer, 0)?;
        }
        fsync(&file).map_err(doing("sync", &name))?;
        drop(file);
        sync_directory(worker)?;
        laps.lap();
    }
    Ok(())
}

fn unlink_all(worker: &mut Worker, laps: &mut Laps) -> WorkerResult {
    for number in 0..worker.task.files {
        unlink(worker.own()?, &worker.file_name(number))?;
        sync_directory(worker)?;
        laps.lap();
    }
    Ok(())
}

fn sync_directory(worker: &Worker) -> WorkerResult {
    fsync(worker.own()?).map_err(doing("sync", "the directory"))
}
