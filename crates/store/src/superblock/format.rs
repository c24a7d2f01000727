use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use espalier_proto::Rank;
use uuid::Uuid;

use super::{COPY, FILE, FILE_NEW, FORMAT, MigrationState, Superblock, SuperblockError, is_store, write};
use crate::local::{self, StoreLock};
use crate::{DataPoolError, Journal, RealFile, StoreError};

/// Parameters of a new store.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    pub label: String,
    /// Largest size in bytes of a stuffed file.
    pub strip_bytes: u32,
    /// Capacity of the journal in bytes; rounded up to a multiple of 4096, at least 1 MiB.
    pub journal_bytes: u64,
    /// Replace an existing store, which is lost.
    pub force: bool,
    /// Secret of the name hash, given if records of an existing file system are to be loaded;
    /// `None`: a random one.
    pub hash_key: Option<[u8; 16]>,
    /// Uuid of the file system that the store joins; `None`: a random one.
    pub uuid: Option<Uuid>,
    /// Rank of the metadata server that owns the store, and number of ranks.
    pub rank: Rank,
    pub ranks: u16,
    pub migration: MigrationState,
    /// In a cluster: pool for the bytes of big files; `None`: they are with the rest.
    pub data_pool: Option<String>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            strip_bytes: 64 << 10,
            journal_bytes: 64 << 20,
            force: false,
            hash_key: None,
            uuid: None,
            rank: Rank(0),
            ranks: 1,
            migration: MigrationState::None,
            data_pool: None,
        }
    }
}

/// Why a store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{} is already an Espalier store: use --force to make a new one, which loses all its files", .0.display())]
    Exists(PathBuf),
    #[error("{} has the rest of a store that was not completely made: use --force to replace it", .0.display())]
    Unfinished(PathBuf),
    #[error("{} is not empty: name an empty directory or namespace, or one that does not exist yet", .0.display())]
    NotEmpty(PathBuf),
    #[error(
        "the pool of {} is erasure-coded, and cannot have metadata: name a replicated pool, and the erasure-coded one with --data-pool",
        .0.display()
    )]
    ErasureCoded(PathBuf),
    #[error(transparent)]
    DataPool(#[from] DataPoolError),
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io { operation: &'static str, path: PathBuf, cause: io::Error },
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Entries of a store's directory, which are removed with `force`. The superblock and its copy are
/// first, since they make the directory a store. The lock is held meanwhile.
const ENTRIES: [&str; 13] = [
    COPY,
    FILE,
    FILE_NEW,
    "journal",
    local::JOURNAL_NEW,
    "tables",
    local::TABLES_NEW,
    "streams",
    "namespace",
    "quarantine",
    "control",
    "log",
    "lock",
];

/// Makes an empty store in `dir`, which is created if absent. On return the store is durable; the
/// superblock is written last.
///
/// # Errors
/// The message of each error states the remedy. All errors but [`FormatError::Io`] leave a
/// directory without a store unchanged.
pub fn format(dir: &Path, options: &FormatOptions) -> Result<Superblock, FormatError> {
    let io = |operation| move |cause| FormatError::Io { operation, path: dir.into(), cause };
    std::fs::create_dir_all(dir).map_err(io("create"))?;
    check(dir, options.force)?;
    let _lock = StoreLock::take(dir)?;
    clear(dir)?;

    let superblock = new(dir, options)?;
    let path = dir.join(local::JOURNAL);
    let file = std::fs::File::create_new(&path).map_err(io("create the journal in"))?;
    Journal::create(RealFile(file), superblock.journal_bytes, superblock.tag()).map_err(StoreError::from)?;
    local::create_tables(dir)?;
    local::create_streams(dir)?;
    write(dir, &superblock)?;
    // Syncs the directory's own entry, which may be new.
    if let Some(parent) = dir.canonicalize().ok().as_deref().and_then(Path::parent) {
        std::fs::File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(io("sync the directory of"))?;
    }
    Ok(superblock)
}

/// The superblock of a new store. `dir`: where it is made.
///
/// # Errors
/// The kernel has no random numbers.
pub fn new(dir: &Path, options: &FormatOptions) -> Result<Superblock, FormatError> {
    let io = |operation| move |cause| FormatError::Io { operation, path: dir.into(), cause };
    let mut hash_key = [0; 16];
    let all = rustix::rand::getrandom(&mut hash_key, rustix::rand::GetRandomFlags::empty());
    // The kernel returns so few bytes in one call.
    if all.map_err(|errno| io("draw a secret for")(errno.into()))? < hash_key.len() {
        return Err(io("draw a secret for")(io::ErrorKind::UnexpectedEof.into()));
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    Ok(Superblock {
        format: FORMAT,
        uuid: options.uuid.unwrap_or_else(Uuid::new_v4),
        rank: options.rank,
        ranks: options.ranks,
        label: options.label.clone(),
        hash_key: options.hash_key.unwrap_or(hash_key),
        strip_bytes: options.strip_bytes,
        journal_bytes: options.journal_bytes.max(1 << 20).next_multiple_of(4096),
        created,
        migration: options.migration.clone(),
        data_pool: None,
    })
}

fn check(dir: &Path, force: bool) -> Result<(), FormatError> {
    let io = |cause| FormatError::Io { operation: "read", path: dir.into(), cause };
    let store = is_store(dir);
    if store && !force {
        return Err(FormatError::Exists(dir.into()));
    }
    // An unfinished store has a lock file but no superblock.
    let ours = store || dir.join("lock").exists();
    let mut left_over = false;
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // A new file system contains `lost+found`.
        if name == "lost+found" || name == "lock" {
            continue;
        }
        if !(ours && ENTRIES.iter().any(|known| name == *known)) {
            return Err(FormatError::NotEmpty(dir.into()));
        }
        left_over = true;
    }
    if left_over && !force { Err(FormatError::Unfinished(dir.into())) } else { Ok(()) }
}

fn clear(dir: &Path) -> Result<(), FormatError> {
    for name in ENTRIES.iter().filter(|&&name| name != "lock") {
        let path = dir.join(name);
        let removed = match std::fs::symlink_metadata(&path) {
            Ok(entry) if entry.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => Err(cause),
        };
        removed.map_err(|cause| FormatError::Io { operation: "remove", path, cause })?;
    }
    Ok(())
}
