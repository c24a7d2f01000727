//! The figures in the form in which they are told.

use std::collections::HashMap;
use std::time::Duration;

use espalier_meta::Meta;
use espalier_proto::Ino;
use serde::{Deserialize, Serialize};

use super::tally::Row;
use super::viewer::Process;
use super::{Stage, Totals, Watch, lock};

/// What a mounted file system has done and how it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// What the counts cover: the time since mounting, or for `top` since the last look.
    pub seconds: f64,
    /// By kind; those that have occurred.
    pub operations: Vec<OperationFigures>,
    pub io: Vec<IoFigures>,
    /// Since mounting, as all below.
    pub slow_operations: u64,
    /// Threads that serve requests.
    pub threads: usize,
    /// Operations that wait for the journal or the disk now.
    pub waiting: usize,
    /// How long the one has waited that has waited longest.
    pub longest_wait_seconds: f64,
    pub cache: CacheFigures,
    pub journal: JournalFigures,
    pub checkpoint: CheckpointFigures,
    pub trash: TrashFigures,
    pub clients: ClientFigures,
    pub data: DataFigures,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperationFigures {
    pub name: String,
    pub count: u64,
    pub errors: u64,
    /// All of them together.
    pub seconds: Split,
    /// From when the request was read until its answer was ready.
    pub p50_us: u64,
    pub p99_us: u64,
}

/// Seconds, by what they were spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    pub queue: f64,
    pub work: f64,
    pub journal: f64,
    pub disk: f64,
}

/// What was done with the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IoFigures {
    pub name: String,
    pub count: u64,
    pub seconds: f64,
    pub p50_us: u64,
    pub p99_us: u64,
}

/// What is in memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CacheFigures {
    pub inodes: u64,
    pub dentries: u64,
    /// Directories of which entries are in memory.
    pub directories: u64,
    /// Small files whose bytes are.
    pub small_files: u64,
    /// What all of them take, about.
    pub bytes: u64,
    pub limit_bytes: u64,
    /// What has changed, and is kept until a checkpoint has written it.
    pub dirty_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JournalFigures {
    pub used_bytes: u64,
    pub bytes: u64,
    /// Changes since the file system was made.
    pub changes: u64,
    pub syncs: u64,
    /// Operations that were answered after waiting for a sync. Divided by `syncs`: how well commits coalesce.
    pub synced_operations: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointFigures {
    pub running: bool,
    pub done: u64,
    pub failed: u64,
    /// Written by all of them.
    pub records: u64,
    pub last_seconds: f64,
    pub last_records: u64,
}

/// What trees that were removed hold, and is still to be freed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TrashFigures {
    pub entries: u64,
    pub bytes: u64,
}

/// Those who have sessions: none of an embedded file system.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientFigures {
    pub sessions: u64,
    /// Of these, those that have not said since the server began what they hold.
    pub awaited: u64,
    /// Leases that they have now.
    pub leases: u64,
    /// Since the server began, as the next three.
    pub leases_given: u64,
    pub leases_revoked: u64,
    /// Revocations that were not answered in time.
    pub leases_unanswered: u64,
    /// How often an operation waited for a lease to be given up.
    pub lease_waits: u64,
}

/// Of a data server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFigures {
    /// Since it began, as the next.
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Who does what now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Top {
    pub figures: Figures,
    /// Those with most operations come first.
    pub processes: Vec<ProcessFigures>,
    pub directories: Vec<DirectoryFigures>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessFigures {
    pub pid: u32,
    pub command: String,
    pub count: u64,
    pub errors: u64,
    /// That its operations took together.
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectoryFigures {
    pub ino: u64,
    /// From the mount point on, as far as it is in memory.
    pub path: Option<String>,
    pub count: u64,
    pub errors: u64,
    pub seconds: f64,
}

/// What the machines tell of themselves.
#[derive(Debug, Default)]
pub(crate) struct MachineFigures {
    pub waiting: usize,
    pub longest_wait: Duration,
    pub cache: CacheFigures,
    pub journal: JournalFigures,
    pub checkpoint_running: bool,
    pub trash: TrashFigures,
    pub clients: ClientFigures,
    pub data: DataFigures,
}

impl MachineFigures {
    /// `waiting`: requests that have not been answered, the oldest for `longest_wait`.
    pub(crate) fn of(meta: &Meta, waiting: usize, longest_wait: Duration) -> Self {
        let figures = meta.figures();
        Self {
            waiting,
            longest_wait,
            cache: CacheFigures {
                inodes: figures.inodes,
                directories: figures.directories,
                small_files: figures.strips,
                dentries: figures.dentries,
                bytes: figures.cache_bytes,
                limit_bytes: figures.cache_limit,
                dirty_bytes: figures.dirty_bytes,
            },
            journal: JournalFigures {
                used_bytes: figures.journal_used,
                bytes: figures.journal_capacity,
                changes: figures.changes,
                syncs: figures.syncs,
                synced_operations: figures.synced_replies,
            },
            checkpoint_running: figures.checkpoint_running,
            trash: TrashFigures { entries: figures.trash_entries, bytes: figures.trash_bytes },
            clients: ClientFigures {
                sessions: figures.sessions,
                awaited: figures.awaited_sessions,
                leases: figures.leases_held,
                leases_given: figures.leases_given,
                leases_revoked: figures.leases_revoked,
                leases_unanswered: figures.leases_unanswered,
                lease_waits: figures.lease_waits,
            },
            data: DataFigures::default(),
        }
    }
}

impl Watch {
    /// Since mounting.
    pub(crate) fn figures(&self, totals: &Totals, machines: MachineFigures) -> Figures {
        self.figures_of(self.began.elapsed().as_secs_f64(), totals, machines)
    }

    fn figures_of(&self, seconds: f64, totals: &Totals, machines: MachineFigures) -> Figures {
        let us = |time: Duration| time.as_micros() as u64;
        let operations = totals.kinds().filter(|(_, totals)| totals.latency.count() > 0);
        let operations = operations.map(|(kind, totals)| {
            let seconds = totals.seconds();
            OperationFigures {
                name: kind.name().into(),
                count: totals.latency.count(),
                errors: totals.errors,
                seconds: Split::from(seconds),
                p50_us: us(totals.latency.quantile(0.5)),
                p99_us: us(totals.latency.quantile(0.99)),
            }
        });
        let io = totals.io().filter(|(_, all)| all.count() > 0).map(|(kind, all)| IoFigures {
            name: kind.name().into(),
            count: all.count(),
            seconds: all.nanos as f64 / 1e9,
            p50_us: us(all.quantile(0.5)),
            p99_us: us(all.quantile(0.99)),
        });
        let checkpoint =
            CheckpointFigures { running: machines.checkpoint_running, ..lock(&self.checkpoint).clone() };
        Figures {
            seconds,
            operations: operations.collect(),
            io: io.collect(),
            slow_operations: self.slow.count.load(std::sync::atomic::Ordering::Relaxed),
            threads: self.threads,
            waiting: machines.waiting,
            longest_wait_seconds: machines.longest_wait.as_secs_f64(),
            cache: machines.cache,
            journal: machines.journal,
            checkpoint,
            trash: machines.trash,
            clients: machines.clients,
            data: machines.data,
        }
    }

    /// For somebody who watches, named by a number: what there was since he last asked, at most so many rows of it.
    /// `lasting`: within which he asks again. `None`: too many watch.
    pub(crate) fn top(
        &self,
        (viewer, lasting, rows): (u64, Duration, usize),
        machines: MachineFigures,
        path: impl Fn(Ino) -> Option<String>,
    ) -> Option<Top> {
        let seen = self.look(viewer, lasting)?;
        let figures = self.figures_of(seen.seconds, &seen.totals, machines);
        let mut processes: HashMap<u32, ProcessFigures> = HashMap::new();
        for (_, Row { label: Process { pid, command }, count, errors, nanos, .. }) in seen.threads.into_rows()
        {
            let none = ProcessFigures { pid, command, count: 0, errors: 0, seconds: 0.0 };
            let process = processes.entry(pid).or_insert(none);
            process.count += count;
            process.errors += errors;
            process.seconds += nanos as f64 / 1e9;
        }
        let mut processes: Vec<_> = processes.into_values().collect();
        processes.sort_by_key(|process| (std::cmp::Reverse(process.count), process.pid));
        processes.truncate(rows);
        let mut directories: Vec<_> = seen.directories.into_rows().collect();
        directories.sort_by_key(|(ino, row)| (std::cmp::Reverse(row.count), *ino));
        directories.truncate(rows);
        let directories = directories.into_iter().map(|(ino, row)| DirectoryFigures {
            ino: ino.0,
            path: path(ino),
            count: row.count,
            errors: row.errors,
            seconds: row.nanos as f64 / 1e9,
        });
        Some(Top { figures, processes, directories: directories.collect() })
    }
}

impl From<[f64; 4]> for Split {
    /// By [`Stage`].
    fn from(seconds: [f64; 4]) -> Self {
        let [queue, work, journal, disk] = Stage::ALL.map(|stage| seconds[stage as usize]);
        Self { queue, work, journal, disk }
    }
}
