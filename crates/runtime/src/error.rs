//! The error of creating, opening, checking or mounting a file system, with what to do about it.

use std::path::PathBuf;

use espalier_meta::RecoveryError;
use espalier_proto::{Errno, Ino, Rank, ServerId};
use espalier_store::{
    EngineError, FormatError, JournalError, RadosError, StartError, StoreError, SuperblockError,
};

/// Why a file system cannot be created, opened, checked or mounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Rados(#[from] RadosError),
    #[error(transparent)]
    Migration(#[from] StartError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{0}")]
    Recovery(#[from] RecoveryError),
    #[error("{} was not completely made: run `espalier mkfs --force` on it", .0.display())]
    Unfinished(PathBuf),
    #[error("{} contains datafiles of a cluster, and no tree of files: pass the cluster's directory, as in `espalier cluster fsck` and `espalier cluster dump`", .0.display())]
    Datafiles(PathBuf),
    #[error("{0}")]
    Option(&'static str),
    #[error(
        "big files of {} lie on data servers: only a server with [[data]] in its configuration can use it, see docs/cluster.md", .0.display()
    )]
    Striped(PathBuf),
    #[error(
        "{} is the store of metadata server {rank} of {ranks}, and cannot be used without the others: use `espalier cluster up`, or `espalier cluster fsck`, on the cluster's directory", path.display()
    )]
    OneRank { path: PathBuf, rank: Rank, ranks: u16 },
    #[error(
        "{} is the store of one of {ranks} metadata servers, and the configuration names {named}: name each of them once in [[meta]], from rank 0 on", path.display()
    )]
    Ranks { path: PathBuf, ranks: u16, named: usize },
    #[error(
        "these are not all the stores of one tree: the configurations must list the store of each metadata server"
    )]
    OtherRanks,
    #[error(
        "{} has the rank of another store of this server, or belongs to another cluster: name the store of each rank once in `store`", .0.display()
    )]
    ForeignRank(PathBuf),
    #[error("{} is not the store of data server {number}: `espalier cluster init` makes those", path.display())]
    NoDataStore { path: PathBuf, number: ServerId },
    #[error(
        "this is no dump of an Espalier file system, or has another format: load it with the version that wrote it"
    )]
    ForeignDump,
    /// `offset`: of the first frame that is incomplete or misplaced.
    #[error("the dump is damaged at byte {offset}: {why}")]
    DamagedDump { offset: u64, why: &'static str },
    #[error("this is not the dump that was interrupted: name that one, or start over without --resume")]
    OtherDump,
    #[error("the file system has changed since the dump was started: start over without --resume")]
    Changed,
    #[error("this is the dump of one of a cluster's servers: load all of them with `espalier cluster load`")]
    PartDump,
    #[error("the dumps in {} are of a cluster with other servers: create one with as many metadata servers and the same data servers by `espalier cluster init`", .0.display())]
    OtherShape(PathBuf),
    #[error(
        "{} has the bytes of its big files in {has}: leave out --data-pool, or replace the store with --force",
        path.display()
    )]
    OtherDataPool { path: PathBuf, has: String },
    #[error(
        "the pool {pool} has number {found}, and that of the servers {expected}: rados_conf is that of another cluster"
    )]
    OtherCluster { pool: String, found: i64, expected: i64 },
    #[error(
        "the big files of this file system have no pool of their own: leave out rados_conf and rados_user"
    )]
    NoDataPool,
    #[error("{} is not empty: choose an empty directory for the dump, or --resume an interrupted one", .0.display())]
    NotEmpty(PathBuf),
    #[error("the cluster of {} holds files already: use --force to lose them, on all its servers", .0.display())]
    HoldsFiles(PathBuf),
    #[error("{} was not completely loaded: run `espalier load --resume` (`espalier cluster load --resume`) with the same dump, or --force to start over", .0.display())]
    Loading(PathBuf),
    #[error("{} is a whole file system already: there is nothing to resume", .0.display())]
    Loaded(PathBuf),
    #[error("no load was interrupted in {}: to start over, and lose its contents, use --force without --resume", .0.display())]
    NoLoad(PathBuf),
    #[error("cannot mount on {}", .mountpoint.display())]
    Mount { mountpoint: PathBuf, source: espalier_fuse::MountError },
    #[error("the connection to the kernel failed")]
    Session(#[from] espalier_fuse::RunError),
    #[error(transparent)]
    Connect(#[from] espalier_net::ConnectError),
    #[error("{context}")]
    Io { context: String, source: std::io::Error },
    #[error("cannot move a datafile: {0}; see the log, and repeat the command")]
    Drain(Errno),
    #[error(
        "transactions between metadata servers are unfinished: start all of them, and stop them again, or see `espalier cluster resolve`"
    )]
    Undecided,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "another server has taken over: this one was silent for too long. Start it again as a standby; see docs/failover.md"
    )]
    Removed,
    #[error(
        "the store refuses this server, since another one has taken over. Start it again as a standby; see docs/failover.md"
    )]
    Fenced,
    #[error(
        "the journal of a rank could not be written in time: this server's ranks are taken over; see docs/failover.md"
    )]
    BrokenJournal,
    #[error("cannot write all changes at shutdown: {0}")]
    Unwritten(Errno),
    #[error("{} is not the store of the namespace that this directory was decoupled for", .0.display())]
    OtherNamespace(PathBuf),
    #[error("{} has changed since its merge began: give it up by `espalier merge --abort`, and decouple again", .0.display())]
    ChangedNamespace(PathBuf),
    #[error("{} is not the store of a decoupled namespace", .0.display())]
    NoNamespace(PathBuf),
    #[error("{} is damaged: restore it from a copy; the namespace's files are intact, and `espalier mount` mounts them", .0.display())]
    DamagedOrigin(PathBuf),
    #[error("{} is not the journal of a decoupled namespace: {why}", path.display())]
    NoJournalFile { path: PathBuf, why: &'static str },
    /// `offset`: of the first frame that is incomplete or misplaced.
    #[error("{} is damaged at byte {offset}: {why}", path.display())]
    DamagedJournal { path: PathBuf, offset: u64, why: &'static str },
    #[error(
        "no directory here is decoupled for this namespace (inode {0}): it is of another cluster, or was merged or aborted before"
    )]
    NotDecoupled(Ino),
    #[error(
        "{0} clients have sessions and may use what they have cached: unmount them, or start the servers until these sessions have expired"
    )]
    Clients(usize),
    #[error("cannot merge '{path}': {errno}")]
    NotMerged { path: String, errno: Errno },
    #[error("events up to {0} are in the tables, and cannot be erased")]
    Checkpointed(u64),
    /// The inode number in the namespace, and the reason.
    #[error("inode {0} cannot be merged: {1}")]
    Unmergeable(Ino, &'static str),
}

impl Error {
    /// The store itself is damaged; not: it is in use or missing, or the disk fails.
    pub(crate) fn is_damage(&self) -> bool {
        use JournalError::{Corrupt, Foreign, NoJournal, Truncated};
        match self {
            Self::Store(StoreError::Journal(journal)) | Self::Journal(journal) => {
                matches!(journal, Corrupt { .. } | Foreign | NoJournal | Truncated { .. })
            }
            Self::Store(StoreError::Superblock(superblock)) | Self::Superblock(superblock) => {
                matches!(superblock, SuperblockError::Damaged { .. } | SuperblockError::Restorable { .. })
            }
            Self::Store(StoreError::Corrupt { .. }) => true,
            Self::Recovery(error) => {
                matches!(error, RecoveryError::Corrupt(_) | RecoveryError::Read(Errno::EIO))
            }
            _ => false,
        }
    }
}
