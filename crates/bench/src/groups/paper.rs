//! The nine phases of Carns et al., "Small-File Access in Parallel File Systems", section IV. Files
//! stay open from their creation to the seventh phase.

use crate::group::{Group, Phase, Procs, ProgramInput};
use crate::worker::{
    Laps, PhaseFailure, Worker, WorkerResult, create, file_name, list, open_directory, read,
};
use crate::worker::{remove_directory, unlink, write};
use espalier_runtime::may_open;

pub(crate) static GROUP: Group = Group {
    name: "paper",
    files: 5000,
    bytes: 8192,
    procs: Procs::Default(&[1]),
    may_share: false,
    source: ProgramInput::Nothing,
    start,
    phases: &[
        Phase::new("mkdir", |worker, laps| {
            worker.make_own()?;
            laps.lap();
            Ok(())
        }),
        Phase::new("create", |worker, laps| {
            for number in 0..worker.task.files {
                let file = create(worker.own()?, &file_name(number))?;
                worker.open.push(file);
                laps.lap();
            }
            Ok(())
        }),
        Phase::new("readdir+stat empty", listing),
        Phase::new("write", |worker, laps| {
            for file in &worker.open {
                write(file, &worker.buffer, 0)?;
                laps.moved(worker.buffer.len());
            }
            Ok(())
        }),
        Phase::new("read", |worker, laps| {
            for file in &worker.open {
                read(file, &mut worker.buffer, 0)?;
                laps.moved(worker.buffer.len());
            }
            Ok(())
        }),
        Phase::new("readdir+stat full", listing),
        Phase::new("close", |worker, laps| {
            for file in worker.open.drain(..) {
                drop(file);
                laps.lap();
            }
            Ok(())
        }),
        Phase::new("remove", |worker, laps| {
            for number in 0..worker.task.files {
                unlink(worker.own()?, &file_name(number))?;
                laps.lap();
            }
            Ok(())
        }),
        Phase::new("rmdir", |worker, laps| {
            worker.close_all();
            remove_directory(worker.base()?, &worker.own_name())?;
            laps.lap();
            Ok(())
        }),
    ],
};

fn start(worker: &mut Worker) -> WorkerResult {
    worker.buffer = vec![b'x'; worker.task.bytes as usize];
    may_open(worker.task.files).map_err(|most| {
        PhaseFailure(format!(
            "the nine phases keep every file open: use --files {most} or raise `ulimit -Hn`"
        ))
    })
}

fn listing(worker: &mut Worker, laps: &mut Laps) -> WorkerResult {
    // Reopened: the open directory has been read to its end.
    let dir = open_directory(worker.own()?, ".")?;
    list(&dir, worker.task.files, laps)
}
