//! The statistics as they are reported to users.

use std::collections::HashMap;
use std::time::Duration;

use espalier_meta::{Figures as MetaFigures, KnownLoad, Meta, Milli};
use espalier_proto::Ino;
use serde::{Deserialize, Serialize};

use super::top_table::Row;
use super::viewer::Process;
use super::{Stage, Totals, Watch, lock};

/// Activity and state of a mounted file system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The period that the counts cover: since mounting, or for `top` since the last report.
    pub seconds: f64,
    /// Operations by kind; only those that occurred.
    pub operations: Vec<OperationFigures>,
    pub io: Vec<IoFigures>,
    /// Since mounting, like the fields below.
    pub slow_operations: u64,
    /// Number of threads that serve requests.
    pub threads: usize,
    /// Number of operations that wait for the journal or the disk at present.
    pub waiting: usize,
    /// The longest of these waits.
    pub longest_wait_seconds: f64,
    pub cache: CacheFigures,
    pub journal: JournalFigures,
    pub checkpoint: CheckpointFigures,
    pub trash: TrashFigures,
    pub clients: ClientFigures,
    pub fragments: FragmentFigures,
    /// The load of the rank; `None` of a data server.
    pub load: Option<RankFigures>,
    /// The loads of the other ranks by their last heartbeats.
    pub heartbeats: Vec<RankFigures>,
    pub data: DataFigures,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperationFigures {
    pub name: String,
    pub count: u64,
    pub errors: u64,
    /// The time of all operations of the kind.
    pub seconds: Split,
    /// From reading the request to having the reply.
    pub p50_us: u64,
    pub p99_us: u64,
}

/// Seconds by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    pub queue: f64,
    pub work: f64,
    pub journal: f64,
    pub disk: f64,
}

/// I/O on the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IoFigures {
    pub name: String,
    pub count: u64,
    pub seconds: f64,
    pub p50_us: u64,
    pub p99_us: u64,
}

/// Contents of the metadata cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CacheFigures {
    pub inodes: u64,
    pub dentries: u64,
    /// Directories with cached entries.
    pub directories: u64,
    /// Small files with cached bytes.
    pub small_files: u64,
    /// Approximate memory of all of these, in bytes.
    pub bytes: u64,
    pub limit_bytes: u64,
    /// Changed records that wait for a checkpoint.
    pub dirty_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JournalFigures {
    pub used_bytes: u64,
    pub bytes: u64,
    /// Number of changes since the file system was created.
    pub changes: u64,
    /// Those that are not known to be durable.
    pub unsynced: u64,
    /// The lowest inode number that was never allocated.
    pub next_inode: u64,
    pub syncs: u64,
    /// Operations that were answered after waiting for a sync. The ratio to `syncs` shows how well
    /// commits coalesce.
    pub synced_operations: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointFigures {
    pub running: bool,
    pub done: u64,
    pub failed: u64,
    /// Records written by all checkpoints.
    pub records: u64,
    pub last_seconds: f64,
    pub last_records: u64,
}

/// Contents of removed trees that remain to be freed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TrashFigures {
    pub entries: u64,
    pub bytes: u64,
}

/// Clients with sessions; none for an embedded file system.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientFigures {
    pub sessions: u64,
    /// Sessions that have not reclaimed their state since the server's start.
    pub awaited: u64,
    /// Leases at present.
    pub leases: u64,
    /// Since the server's start, like the next three.
    pub leases_given: u64,
    pub leases_revoked: u64,
    /// Revocations that were not acknowledged in time.
    pub leases_unanswered: u64,
    /// Number of operations that waited for a revocation.
    pub lease_waits: u64,
}

/// Fragments of partitioned directories at a metadata server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentFigures {
    /// Fragments at present.
    pub held: u64,
    /// Fragments that are splitting, merging or moving, or about to.
    pub changing: u64,
    /// Fragments split off since the server's start, like the next six.
    pub splits: u64,
    /// Those of them that split off because of requests.
    pub splits_by_rate: u64,
    /// Fragments that have merged into others.
    pub merges: u64,
    /// Fragments that have moved to other servers.
    pub moves: u64,
    /// Steps of splits, merges and moves that failed; they are tried again.
    pub failed_steps: u64,
    /// Names that have gone to other fragments or servers.
    pub names_moved: u64,
    /// Requests of clients without the current map.
    pub misrouted: u64,
    /// Directory records with names of files that may still come here.
    pub pulling: u64,
    /// Files that have followed their names here since the server's start, like the next three.
    pub files_pulled: u64,
    /// Files that have followed their names to other servers.
    pub files_given: u64,
    /// Files that could not come yet, counted in each attempt.
    pub files_deferred: u64,
    /// Requests of clients for files that are at another server.
    pub redirected: u64,
    /// Those of them that were forwarded to the server that has the name.
    pub forwarded: u64,
}

impl From<MetaFigures> for FragmentFigures {
    fn from(figures: MetaFigures) -> Self {
        let (counts, pulls) = (figures.fragment_counts, figures.pull_counts);
        Self {
            held: figures.fragments,
            changing: figures.transfers_running,
            splits: counts.splits,
            splits_by_rate: counts.splits_by_rate,
            merges: counts.merges,
            moves: counts.moves,
            failed_steps: counts.failed_steps,
            names_moved: counts.names_moved,
            misrouted: counts.misrouted,
            pulling: figures.pulls_unfinished,
            files_pulled: pulls.pulled,
            files_given: pulls.given,
            files_deferred: pulls.deferred,
            redirected: pulls.redirected,
            forwarded: counts.forwarded,
        }
    }
}

/// The load of a metadata server (sevilla Table 4.2; docs/load.md).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFigures {
    pub rank: u16,
    /// Metadata load of the directories that it serves, and of everything that it does.
    pub auth: f64,
    pub all: f64,
    /// Use of its machine by its process, in percent.
    pub cpu: f64,
    pub mem: f64,
    /// Mean number of requests that an arriving one finds waiting.
    pub q: f64,
    /// Requests per second.
    pub req: f64,
    /// Milliseconds since its heartbeat; 0 of the server itself. `None`: there was none.
    pub age_ms: Option<u64>,
    /// No heartbeat has come for seconds.
    pub silent: bool,
}

impl From<&KnownLoad> for RankFigures {
    fn from(known: &KnownLoad) -> Self {
        let load = &known.load;
        let [cpu, mem, q, req] = [load.cpu, load.mem, load.queue, load.requests].map(Milli::get);
        Self {
            rank: known.rank.0,
            auth: load.auth.load(),
            all: load.all.load(),
            cpu,
            mem,
            q,
            req,
            age_ms: known.age_ms,
            silent: known.is_silent(),
        }
    }
}

/// Statistics of a data server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFigures {
    /// Since the server's start, like the next.
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Present activity by process and directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Top {
    pub figures: Figures,
    /// Sorted by number of operations, highest first.
    pub processes: Vec<ProcessFigures>,
    pub directories: Vec<DirectoryFigures>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessFigures {
    pub pid: u32,
    pub command: String,
    pub count: u64,
    pub errors: u64,
    /// Total time of the operations.
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectoryFigures {
    pub ino: u64,
    /// Path below the mount point, as far as it is cached.
    pub path: Option<String>,
    pub count: u64,
    pub errors: u64,
    pub seconds: f64,
}

/// Statistics of the state machines.
#[derive(Debug, Default)]
pub(crate) struct MachineFigures {
    pub waiting: usize,
    pub longest_wait: Duration,
    pub cache: CacheFigures,
    pub journal: JournalFigures,
    pub checkpoint_running: bool,
    pub trash: TrashFigures,
    pub clients: ClientFigures,
    pub fragments: FragmentFigures,
    pub load: Option<RankFigures>,
    pub heartbeats: Vec<RankFigures>,
    pub data: DataFigures,
}

impl MachineFigures {
    /// `waiting`: number of unanswered requests; `longest_wait`: the wait of the oldest.
    pub(crate) fn of(meta: &Meta, waiting: usize, longest_wait: Duration) -> Self {
        let (figures, rank) = (meta.figures(), meta.rank().0);
        let ranks = meta.known_loads().iter().map(RankFigures::from).collect::<Vec<_>>();
        let (own, heartbeats) = ranks.into_iter().partition::<Vec<_>, _>(|known| known.rank == rank);
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
                unsynced: figures.unsynced,
                next_inode: figures.next_ino,
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
            fragments: figures.into(),
            load: own.into_iter().next(),
            heartbeats,
            data: DataFigures::default(),
        }
    }
}

impl Watch {
    /// Figures since mounting.
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
            fragments: machines.fragments,
            load: machines.load,
            heartbeats: machines.heartbeats,
            data: machines.data,
        }
    }

    /// Figures for the viewer with this number since its last call, with at most this many rows.
    /// `lasting`: the maximum time until its next call. `None`: too many viewers.
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
