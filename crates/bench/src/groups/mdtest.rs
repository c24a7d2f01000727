//! The phases of mdtest, with a tree of directories per process (`-u`) that contains its items.
//! Files are written at creation (`-w`).

use rustix::fs::OFlags;

use crate::group::{Group, Phase, Procs, ProgramInput};
use crate::worker::{Worker, WorkerResult, create, file_name, make_directory, open, read, remove_directory};
use crate::worker::{stat, unlink, write};

/// Subdirectories per directory of the tree, and levels (mdtest's `-b` and `-z`).
const BRANCH: usize = 4;
const DEPTH: u32 = 2;

pub(crate) static GROUP: Group = Group {
    name: "mdtest",
    files: 5000,
    bytes: 8192,
    procs: Procs::Default(&[1]),
    may_share: false,
    source: ProgramInput::Nothing,
    start,
    phases: &[
        Phase::new("tree create", |worker, laps| {
            for name in tree() {
                make_directory(worker.own()?, &name)?;
                laps.lap();
            }
            Ok(())
        }),
        Phase::new("dir create", |worker, laps| {
            each(worker, "dir", |worker, name| {
                make_directory(worker.own()?, name)?;
                laps.lap();
                Ok(())
            })
        }),
        Phase::new("dir stat", |worker, laps| {
            each(worker, "dir", |worker, name| {
                stat(worker.own()?, name)?;
                laps.lap();
                Ok(())
            })
        }),
        Phase::new("dir remove", |worker, laps| {
            each(worker, "dir", |worker, name| {
                remove_directory(worker.own()?, name)?;
                laps.lap();
                Ok(())
            })
        }),
        Phase::new("file create", |worker, laps| {
            each(worker, "", |worker, name| {
                let file = create(worker.own()?, name)?;
                write(&file, &worker.buffer, 0)?;
                drop(file);
                laps.moved(worker.buffer.len());
                Ok(())
            })
        }),
        Phase::new("file stat", |worker, laps| {
            each(worker, "", |worker, name| {
                stat(worker.own()?, name)?;
                laps.lap();
                Ok(())
            })
        }),
        Phase::new("file read", |worker, laps| {
            each(worker, "", |worker, name| {
                let file = open(worker.own()?, name, OFlags::RDONLY)?;
                read(&file, &mut worker.buffer, 0)?;
                drop(file);
                laps.moved(worker.buffer.len());
                Ok(())
            })
        }),
        Phase::new("file remove", |worker, laps| {
            each(worker, "", |worker, name| {
                unlink(worker.own()?, name)?;
                laps.lap();
                Ok(())
            })
        }),
        Phase::new("tree remove", |worker, laps| {
            for name in tree().iter().rev() {
                remove_directory(worker.own()?, name)?;
                laps.lap();
            }
            Ok(())
        }),
    ],
};

fn start(worker: &mut Worker) -> WorkerResult {
    worker.buffer = vec![b'x'; worker.task.bytes as usize];
    worker.make_own()
}

/// The directories of the tree, parents first.
fn tree() -> Vec<String> {
    let mut all = vec!["tree".to_string()];
    let mut parents = 0..1;
    for _ in 0..DEPTH {
        let begin = all.len();
        for parent in parents {
            all.extend((0..BRANCH).map(|child| format!("{}/{child}", all[parent])).collect::<Vec<_>>());
        }
        parents = begin..all.len();
    }
    all
}

/// Processes every item; the items are distributed over the directories of the tree.
fn each(
    worker: &mut Worker,
    kind: &str,
    mut work: impl FnMut(&mut Worker, &str) -> WorkerResult,
) -> WorkerResult {
    let tree = tree();
    for number in 0..worker.task.files {
        let dir = &tree[number as usize % tree.len()];
        work(worker, &format!("{dir}/{kind}{}", file_name(number)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_has_its_directories_parents_first() {
        let tree = super::tree();
        assert_eq!(tree.len(), 1 + 4 + 16);
        assert_eq!((tree[0].as_str(), tree[4].as_str(), tree[20].as_str()), ("tree", "tree/3", "tree/3/3"));
    }
}
