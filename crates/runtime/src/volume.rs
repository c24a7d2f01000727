//! An open store: its recovered state machine and its disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use espalier_meta::{
    Acknowledge, Atime, Config, Format, IoDone, Load, Meta, Recovery, RecoveryError, Striping,
};
use espalier_policy::Policy;
use espalier_proto::{Errno, ObjectId, Rank, Space};
use espalier_standby::{BegunRecovery, FollowError, FollowedState, RestOfJournal};
use espalier_store::{FormatOptions, Journal, LocalOptions, Store, StoreError, Superblock, superblock};

use crate::clock;
use crate::disk::Disk;
use crate::dump::unfinished;
use crate::error::Error;
use crate::location::{OpenedStore, StoreLocation};
use crate::namespace::SyncPoint;
use crate::shared::SharedStore;

/// Options of `mkfs`.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    pub label: String,
    /// Maximum size of a stuffed file, whose bytes are stored with its metadata.
    pub strip_bytes: u32,
    /// Journal size; `None`: 1/64 of the underlying file system or 1/16 of its free space,
    /// whichever is less, between 16 and 256 MiB. The store rejects changes while less than twice
    /// this size is free.
    pub journal_bytes: Option<u64>,
    /// Overwrite an existing file system.
    pub force: bool,
    /// Pool of the cluster for the bytes of big files; `None`: they are with the rest.
    pub data_pool: Option<String>,
    /// Owner and permissions of the root directory.
    pub uid: u32,
    pub gid: u32,
    pub perm: u32,
}

impl MkfsOptions {
    pub const STRIP_BYTES: u32 = 64 * 1024;
}

impl Default for MkfsOptions {
    /// The root directory is the superuser's.
    fn default() -> Self {
        Self {
            label: String::new(),
            strip_bytes: Self::STRIP_BYTES,
            journal_bytes: None,
            force: false,
            data_pool: None,
            uid: 0,
            gid: 0,
            perm: 0o755,
        }
    }
}

/// Creates an empty file system.
pub fn mkfs(location: impl Into<StoreLocation>, options: &MkfsOptions) -> Result<Superblock, Error> {
    mkfs_rank(&location.into(), options, FormatOptions::default())
}

/// Creates empty stores for several metadata servers, by rank.
pub fn mkfs_ranks(dirs: &[PathBuf], options: &MkfsOptions) -> Result<(), Error> {
    let ranks = u16::try_from(dirs.len()).map_err(|_| Error::Option("there are at most 65535 ranks"))?;
    let mut format = FormatOptions { ranks, ..FormatOptions::default() };
    for (rank, dir) in (0..ranks).zip(dirs) {
        format.rank = Rank(rank);
        let Superblock { uuid, hash_key, .. } = mkfs_rank(&dir.into(), options, format.clone())?;
        (format.uuid, format.hash_key) = (Some(uuid), Some(hash_key));
    }
    Ok(())
}

/// Creates the empty store of a rank that joins the cluster with the store `of`.
///
/// # Errors
/// `of` is no store of a metadata server here; the new one cannot be made.
pub fn mkfs_joining(dir: &Path, of: &Path, rank: Rank, journal_bytes: Option<u64>) -> Result<(), Error> {
    let of = superblock::read(of)?;
    let format = FormatOptions {
        rank,
        ranks: of.ranks.max(rank.0 + 1),
        uuid: Some(of.uuid),
        hash_key: Some(of.hash_key),
        ..FormatOptions::default()
    };
    let (label, strip_bytes, journal_bytes) =
        (of.label, of.strip_bytes, Some(journal_bytes.unwrap_or(of.journal_bytes)));
    // Only rank 0 has a root directory.
    let options = MkfsOptions { label, strip_bytes, journal_bytes, perm: 0, ..MkfsOptions::default() };
    mkfs_rank(&dir.into(), &options, format).map(drop)
}

fn mkfs_rank(
    location: &StoreLocation,
    options: &MkfsOptions,
    format: FormatOptions,
) -> Result<Superblock, Error> {
    let FormatOptions { rank, ranks, uuid, hash_key, .. } = format;
    let format = FormatOptions { rank, ranks, uuid, hash_key, ..format_of(location, options)? };
    let superblock = location.format(&format)?;
    let store = location.open(LocalOptions::default())?.store;
    write_first_checkpoint(store.as_ref(), format.rank, options)?;
    Ok(superblock)
}

/// The parameters of a new store.
pub(crate) fn format_of(location: &StoreLocation, options: &MkfsOptions) -> Result<FormatOptions, Error> {
    let MkfsOptions { label, strip_bytes, journal_bytes, force, data_pool, .. } = options.clone();
    let journal_bytes = journal_bytes.map_or_else(|| journal_bytes_for(location), Ok)?;
    check_sizes(strip_bytes, journal_bytes)?;
    Ok(FormatOptions { label, strip_bytes, journal_bytes, force, data_pool, ..FormatOptions::default() })
}

pub(crate) fn write_first_checkpoint(
    store: &dyn Store,
    rank: Rank,
    options: &MkfsOptions,
) -> Result<(), Error> {
    let MkfsOptions { uid, gid, perm, .. } = *options;
    store.stage(match rank {
        Rank(0) => Format { time: clock::now(), uid, gid, perm }.writes(),
        rank => Format::nothing(rank),
    })?;
    Ok(store.publish()?)
}

/// Large enough for a burst of small files; a full journal waits for checkpoints.
pub(crate) fn journal_bytes_for(location: &StoreLocation) -> Result<u64, Error> {
    let Space { total, available, .. } = location.space()?;
    Ok((total / 64).min(available / 16).clamp(16 << 20, 256 << 20).next_multiple_of(1 << 20))
}

/// The event of a full strip must be a small part of the journal.
pub(crate) fn check_sizes(strip_bytes: u32, journal_bytes: u64) -> Result<(), Error> {
    if !(4 << 20..=64 << 30).contains(&journal_bytes) {
        return Err(Error::Option("a journal has 4M to 64G"));
    }
    if strip_bytes > 1 << 20 || u64::from(strip_bytes) > journal_bytes / 16 {
        return Err(Error::Option("a strip has at most 1M, and at most a sixteenth of the journal"));
    }
    Ok(())
}

/// Options for opening a file system.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Changes are durable before they are acknowledged.
    pub sync: bool,
    /// Servers share the store. Another one may take over at any time, so what this one
    /// acknowledges is durable; clients survive that and send their pending operations again.
    pub is_shared: bool,
    /// Watermarks of commit coalescing with `sync` (carns III.C): queue length from which on
    /// commits are delayed, and number of changes that ends the delay.
    pub watermarks: (usize, usize),
    pub atime: Atime,
    /// Listings do not update the access times of directories.
    pub nodiratime: bool,
    /// Approximate memory limit in bytes.
    pub memory: u64,
    /// For servers: session timeout in ms.
    pub session_ms: Option<u32>,
    /// For servers: term of leases in ms.
    pub lease_ms: Option<u32>,
    /// For servers: the distribution of big files over data servers.
    pub striping: Option<Striping>,
    /// The policy where directories do not set one.
    pub policy: Policy,
    /// The store may belong to one of several ranks, and is opened together with the others.
    pub with_ranks: bool,
    /// The journal's events after this number are ignored.
    pub until: u64,
}

impl OpenOptions {
    pub const LEAST_MEMORY: u64 = 32 << 20;

    /// The part for the store. A fifth of the memory is for inodes and dentries, a tenth for table
    /// blocks; the rest is a reserve for checkpoints, journal frames and requests.
    fn of_store(&self) -> LocalOptions {
        let cache_bytes = self.memory.max(Self::LEAST_MEMORY) / 10;
        LocalOptions { read_only: self.read_only, cache_bytes, ..LocalOptions::default() }
    }

    /// True if changes are acknowledged when they are durable.
    fn is_durable(&self) -> bool {
        self.sync || self.is_shared
    }

    /// The configuration of the machine. `capacity`: of the journal.
    fn config(&self, superblock: &Superblock, capacity: u64) -> Config {
        let memory = self.memory.max(Self::LEAST_MEMORY);
        let mut config = Config::new(superblock.hash_key, superblock.strip_bytes, capacity);
        (config.read_only, config.atime) = (self.read_only, self.atime);
        config.nodiratime = self.nodiratime;
        config.writeback = !self.sync;
        (config.session_ms, config.lease_ms) = (self.session_ms, self.lease_ms);
        (config.striping, config.policy) = (self.striping.clone(), self.policy.clone());
        config.watermarks = self.watermarks;
        config.data_pool = self.is_shared && superblock.data_pool.is_some();
        (config.rank, config.ranks) = (superblock.rank, superblock.ranks);
        config.acknowledge = match (self.is_durable(), self.session_ms) {
            (true, _) => Acknowledge::Durable,
            (false, Some(_)) => Acknowledge::Written,
            (false, None) => Acknowledge::Volatile,
        };
        config.cache_bytes = usize::try_from(memory / 5).unwrap_or(usize::MAX);
        config
    }

    /// The machine's configuration for following a rank, and the part of the memory for records.
    pub(crate) fn for_following(&self, superblock: &Superblock) -> (Config, u64) {
        let options = Self { is_shared: true, ..self.clone() };
        (options.config(superblock, superblock.journal_bytes), options.of_store().cache_bytes)
    }

    /// For a process that reads everything once, with a small cache. Sessions of clients do not
    /// expire.
    pub(crate) fn read_once() -> Self {
        Self { memory: 128 << 20, session_ms: Some(u32::MAX), ..Self::default() }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        // A quarter of the machine's memory.
        let info = rustix::system::sysinfo();
        let machine = info.totalram.saturating_mul(info.mem_unit.into());
        let memory = (machine / 4).max(Self::LEAST_MEMORY);
        Self {
            read_only: false,
            sync: false,
            is_shared: false,
            watermarks: Config::WATERMARKS,
            atime: Atime::Relative,
            nodiratime: false,
            memory,
            session_ms: None,
            lease_ms: None,
            striping: None,
            policy: Policy::NONE,
            with_ranks: false,
            until: u64::MAX,
        }
    }
}

/// An open store; it is locked until this is dropped.
pub struct Volume {
    pub disk: Arc<Disk>,
    pub meta: Meta,
    pub superblock: Superblock,
    /// Number of events replayed from the journal: 0 after a clean unmount.
    pub replayed: u64,
    /// Number of those that were replayed when the store was opened.
    pub replayed_tail: u64,
    /// This process had followed the journal before it opened the store.
    pub is_warm: bool,
}

impl Volume {
    /// Lends the tables of a namespace to its sync, once it is mounted.
    pub fn sync_through(&self, sync_point: Arc<SyncPoint>) {
        sync_point.attach(&self.disk);
        self.disk.lend_to(sync_point);
    }

    /// Opens a store and recovers the state after the last event of its journal.
    pub fn open(location: impl Into<StoreLocation>, options: OpenOptions) -> Result<Self, Error> {
        let location = location.into();
        let name = location.name();
        if !options.with_ranks {
            require_single_rank(&location.superblock()?, &name)?;
        }
        let opened = location.open(options.of_store())?;
        Self::recover(opened, &name, options, None)
    }

    /// Opens the store of a rank that servers share. `followed`: what this process has followed.
    pub fn open_rank(
        shared: &SharedStore,
        rank: Rank,
        options: OpenOptions,
        followed: Option<FollowedState>,
    ) -> Result<Self, Error> {
        let options = OpenOptions { is_shared: true, ..options };
        let opened = shared.open(rank, &options.of_store())?;
        Self::recover(opened, shared.name(), options, followed)
    }

    fn recover(
        opened: OpenedStore,
        name: &Path,
        options: OpenOptions,
        followed: Option<FollowedState>,
    ) -> Result<Self, Error> {
        let OpenedStore { superblock, store, mut journal } = opened;
        let config = options.config(&superblock, journal.capacity());
        let Some(first) = store.get(ObjectId::SUPER, b"")? else {
            return Err(unfinished(store.as_ref(), &superblock, name)?);
        };
        let begun = espalier_standby::begin(store.as_ref(), &journal, first, config, followed);
        let BegunRecovery { mut recovery, rest } = begun.map_err(of_begin)?;
        recovery.until = options.until;
        let (followed, replay_began) = (recovery.events, Instant::now());
        replay(&mut journal, rest, &mut recovery, store.as_ref())?;
        let milliseconds = replay_began.elapsed().as_millis();
        if !options.read_only {
            journal.forget_torn()?;
        }
        let (replayed, replayed_tail) = (recovery.events, recovery.events - followed);
        if replayed_tail > 0 {
            tracing::info!(store = %name.display(), events = replayed_tail, milliseconds, "replayed the journal");
        }
        let new_streams = store.new_streams()?;
        let (end, used) = (journal.position(), journal.used());
        let size = |ino| Ok::<_, StoreError>((ino, store.stream_stat(ino)?.size));
        let sizes = recovery.size_dirty().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
        let (meta, calls) =
            recovery.finish(end, used, &new_streams, &sizes, &mut |load| fetch(store.as_ref(), load))?;
        let disk = Arc::new(Disk::new(store, journal, options.is_durable()));
        if !options.read_only {
            for call in calls {
                disk.stream_call(call)?;
            }
        }
        Ok(Self { disk, meta, superblock, replayed, replayed_tail, is_warm: rest.is_followed() })
    }

    /// Refuses a volume with striped files, for callers without data servers.
    pub(crate) fn require_whole(&self, dir: &Path) -> Result<(), Error> {
        if self.meta.is_striped() { Err(Error::Striped(dir.into())) } else { Ok(()) }
    }
}

/// Refuses the store of one of several ranks.
pub(crate) fn require_single_rank(superblock: &Superblock, dir: &Path) -> Result<(), Error> {
    let Superblock { rank, ranks, .. } = *superblock;
    if ranks > 1 { Err(Error::OneRank { path: dir.into(), rank, ranks }) } else { Ok(()) }
}

fn replay(
    journal: &mut Journal,
    rest: RestOfJournal,
    recovery: &mut Recovery,
    store: &dyn Store,
) -> Result<(), Error> {
    let mut failed = None;
    rest.replay(journal, |frame| {
        if failed.is_none() {
            failed = recovery.frame(frame, &mut |load| fetch(store, load)).err();
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

pub(crate) fn fetch(store: &dyn Store, load: &Load) -> Result<IoDone, Errno> {
    crate::disk::load(store, load)
}

fn of_begin(error: FollowError) -> Error {
    match error {
        FollowError::Store(error) => error.into(),
        FollowError::Journal(error) => error.into(),
        FollowError::Recovery(error) => error.into(),
        FollowError::Empty => RecoveryError::Corrupt(FollowError::Empty.to_string()).into(),
    }
}
