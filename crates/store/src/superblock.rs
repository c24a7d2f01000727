//! The superblock: identity and parameters of a store. It is a TOML file whose last line is a
//! checksum of the rest. A repair can restore it from the copy beside it.

mod format;

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use espalier_proto::Rank;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::engine::PoolId;

pub use format::{FormatError, FormatOptions, format, new};

pub(crate) const FILE: &str = "superblock";
pub(crate) const COPY: &str = "superblock.bak";
const FILE_NEW: &str = "superblock.new";
/// First line; identifies a store's directory.
const TITLE: &str = "# An Espalier store. Do not edit: the last line is a checksum.\n";
/// Common prefix of the first line in all versions.
const MAGIC: &[u8] = b"# An Espalier store.";
/// Format written and read by this version.
pub const FORMAT: u32 = 4;
const MAX_BYTES: usize = 64 * 1024;

/// Identity and parameters of a store.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub format: u32,
    /// Identifies the file system; all ranks of it have the same.
    pub uuid: Uuid,
    /// Rank of the metadata server that owns the store, and number of ranks.
    pub rank: Rank,
    pub ranks: u16,
    pub label: String,
    /// Secret key of the name hash, which prevents deliberate collisions.
    pub hash_key: [u8; 16],
    /// Largest size in bytes of a stuffed file.
    pub strip_bytes: u32,
    /// Capacity of the journal in bytes.
    pub journal_bytes: u64,
    /// Creation time in seconds since 1970.
    pub created: i64,
    pub migration: MigrationState,
    /// The pool with the bytes of big files, in a cluster; `None`: they are with the rest.
    pub data_pool: Option<PoolId>,
}

/// The part of a store in a migration. The file system is here if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MigrationState {
    #[default]
    None,
    /// An incomplete copy of the store with this name.
    Incoming { from: String },
    /// The file system is in the store with this name, and what is here is outdated.
    Moved { to: String },
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            format,
            uuid,
            rank,
            ranks,
            label,
            strip_bytes,
            journal_bytes,
            created,
            migration,
            data_pool,
            ..
        } = self;
        f.debug_struct("Superblock")
            .field("format", format)
            .field("uuid", uuid)
            .field("rank", rank)
            .field("ranks", ranks)
            .field("label", label)
            .field("strip_bytes", strip_bytes)
            .field("journal_bytes", journal_bytes)
            .field("created", created)
            .field("migration", migration)
            .field("data_pool", data_pool)
            .finish_non_exhaustive()
    }
}

impl Superblock {
    /// Tag that identifies this store in its files.
    pub(crate) fn tag(&self) -> u64 {
        self.tag_of(self.rank)
    }

    /// Tag that identifies the store of a rank of this file system.
    pub fn tag_of(&self, rank: Rank) -> u64 {
        xxh3_64_with_seed(self.uuid.as_bytes(), rank.0.into())
    }

    /// Refuses the source of a completed migration, and the destination of an incomplete one.
    /// `name`: of the store.
    ///
    /// # Errors
    /// [`SuperblockError::Moved`], [`SuperblockError::Incoming`].
    pub fn check_present(&self, name: &Path) -> Result<(), SuperblockError> {
        let path = name.to_path_buf();
        match self.migration.clone() {
            MigrationState::None => Ok(()),
            MigrationState::Incoming { from } => Err(SuperblockError::Incoming { path, from }),
            MigrationState::Moved { to } => Err(SuperblockError::Moved { path, to }),
        }
    }
}

/// Why a superblock cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SuperblockError {
    #[error("there is no directory {}", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not an Espalier store: make one with `espalier mkfs`", .0.display())]
    NoStore(PathBuf),
    #[error("{} was made by a newer Espalier (format {format}): use version {needs} or newer", path.display())]
    Newer { path: PathBuf, format: u32, needs: String },
    #[error(
        "{} was made by an older Espalier (format {format}), which this version does not read: mount it with the version \
         that made it, and copy its files into a new one",
        path.display()
    )]
    Older { path: PathBuf, format: u32 },
    #[error(
        "the superblock of {} is damaged, and its copy is damaged or missing: {why}; restore the file `{FILE}` from a backup",
        path.display()
    )]
    Damaged { path: PathBuf, why: String },
    /// The copy is intact.
    #[error("the superblock of {0} is damaged: {why}; run `espalier fsck --repair {0}`", path.display())]
    Restorable { path: PathBuf, why: String },
    #[error("the file system of {0} has moved to {to}: use that; if it is incomplete, run `espalier migrate {0} {to}` again", path.display())]
    Moved { path: PathBuf, to: String },
    #[error("{0} is an incomplete copy of {from}: run `espalier migrate {from} {0}` to complete it", path.display())]
    Incoming { path: PathBuf, from: String },
    #[error("cannot {operation} the superblock of {}: {cause}", path.display())]
    Io { operation: &'static str, path: PathBuf, cause: io::Error },
}

/// Fields of the file in every version.
#[derive(Deserialize)]
struct Head {
    format: u32,
    needs: String,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u32,
    /// Oldest version of Espalier that reads the format.
    needs: String,
    uuid: Uuid,
    #[serde(default)]
    rank: Rank,
    #[serde(default = "one")]
    ranks: u16,
    label: String,
    /// In hexadecimal.
    hash_key: String,
    strip_bytes: u32,
    journal_bytes: u64,
    created: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incoming_from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_pool_number: Option<i64>,
}

fn one() -> u16 {
    1
}

/// Reads a store's superblock.
///
/// # Errors
/// The message of each error states the remedy.
pub fn read(dir: &Path) -> Result<Superblock, SuperblockError> {
    let path = dir.to_path_buf();
    let why = match read_file(dir, FILE) {
        Err(SuperblockError::Damaged { why, .. }) => why,
        Err(SuperblockError::NoStore(_)) => "it is missing, or belongs to another program".into(),
        outcome => return outcome,
    };
    match read_file(dir, COPY) {
        Ok(_) => Err(SuperblockError::Restorable { path, why }),
        Err(other @ (SuperblockError::Newer { .. } | SuperblockError::Older { .. })) => Err(other),
        Err(_) => read_file(dir, FILE),
    }
}

/// Reads the copy of a store's superblock.
///
/// # Errors
/// As [`read`]; [`SuperblockError::NoStore`] if there is no copy.
pub(crate) fn read_copy(dir: &Path) -> Result<Superblock, SuperblockError> {
    read_file(dir, COPY)
}

fn read_file(dir: &Path, name: &str) -> Result<Superblock, SuperblockError> {
    match std::fs::read(dir.join(name)) {
        Ok(bytes) => parse(dir, &bytes),
        Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let path = dir.to_path_buf();
            let is_dir = dir.is_dir();
            Err(if is_dir { SuperblockError::NoStore(path) } else { SuperblockError::NoDirectory(path) })
        }
        Err(cause) => Err(SuperblockError::Io { operation: "read", path: dir.into(), cause }),
    }
}

/// Parses a superblock. `dir`: where it was found.
pub(crate) fn parse(dir: &Path, bytes: &[u8]) -> Result<Superblock, SuperblockError> {
    let damaged = |why: String| SuperblockError::Damaged { path: dir.into(), why };
    if bytes.is_empty() || bytes.len() > MAX_BYTES {
        return Err(damaged(format!("it has {} bytes", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text".into()))?;
    let Some((body, checksum)) = text.rsplit_once("checksum = ") else {
        let foreign = !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]);
        let none = "it has no checksum: it was cut off".into();
        return Err(if foreign { SuperblockError::NoStore(dir.into()) } else { damaged(none) });
    };
    if checksum != checksum_line(body) {
        return Err(damaged("its checksum is wrong: it was changed or cut off".into()));
    }
    let invalid = |error: toml::de::Error| damaged(error.message().into());
    let head: Head = toml::from_str(body).map_err(invalid)?;
    if head.format > FORMAT {
        return Err(SuperblockError::Newer { path: dir.into(), format: head.format, needs: head.needs });
    }
    if head.format < FORMAT {
        return Err(SuperblockError::Older { path: dir.into(), format: head.format });
    }
    let text: Text = toml::from_str(body).map_err(invalid)?;
    let Text { format, uuid, rank, ranks, label, strip_bytes, journal_bytes, created, .. } = text;
    let migration = match (text.moved_to, text.incoming_from) {
        (Some(to), _) => MigrationState::Moved { to },
        (None, Some(from)) => MigrationState::Incoming { from },
        (None, None) => MigrationState::None,
    };
    let data_pool = match (text.data_pool, text.data_pool_number) {
        (Some(name), Some(number)) => Some(PoolId { name, number }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return Err(damaged("its data pool is incomplete".into())),
    };
    let hash_key = u128::from_str_radix(&text.hash_key, 16)
        .map_err(|_| damaged("its hash_key is not a number".into()))?;
    let hash_key = hash_key.to_be_bytes();
    if rank.0 >= ranks {
        return Err(damaged(format!("its rank {rank} of {ranks} is invalid")));
    }
    Ok(Superblock {
        format,
        uuid,
        rank,
        ranks,
        label,
        hash_key,
        strip_bytes,
        journal_bytes,
        created,
        migration,
        data_pool,
    })
}

/// Replaces a store's superblock and then its copy, each durably and atomically, so one of them is
/// always intact.
///
/// # Errors
/// [`SuperblockError::Io`]: a file that was not replaced is unchanged.
pub fn write(dir: &Path, superblock: &Superblock) -> Result<(), SuperblockError> {
    write_file(dir, FILE, superblock)?;
    write_file(dir, COPY, superblock)
}

/// Replaces the copy of a store's superblock if it is not up to date.
///
/// # Errors
/// [`SuperblockError::Io`].
pub(crate) fn write_copy(dir: &Path, superblock: &Superblock) -> Result<(), SuperblockError> {
    match read_copy(dir) {
        Ok(copy) if copy == *superblock => Ok(()),
        _ => write_file(dir, COPY, superblock),
    }
}

fn write_file(dir: &Path, name: &str, superblock: &Superblock) -> Result<(), SuperblockError> {
    let io = |operation| move |cause| SuperblockError::Io { operation, path: dir.into(), cause };
    let text = text(dir, superblock)?;
    let (path, new) = (dir.join(name), dir.join(FILE_NEW));
    let mut file = std::fs::File::create(&new).map_err(io("create"))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io("write"))?;
    std::fs::rename(&new, &path).map_err(io("replace"))?;
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync the directory of"))
}

/// The text of a superblock. `dir`: where it is for.
pub(crate) fn text(dir: &Path, superblock: &Superblock) -> Result<String, SuperblockError> {
    encode(superblock).map_err(|error| {
        let cause = io::Error::other(error);
        SuperblockError::Io { operation: "encode", path: dir.into(), cause }
    })
}

fn encode(superblock: &Superblock) -> Result<String, toml::ser::Error> {
    let Superblock { format, uuid, rank, ranks, label, strip_bytes, journal_bytes, created, .. } =
        superblock.clone();
    let (incoming_from, moved_to) = match superblock.migration.clone() {
        MigrationState::None => (None, None),
        MigrationState::Incoming { from } => (Some(from), None),
        MigrationState::Moved { to } => (None, Some(to)),
    };
    let (data_pool, data_pool_number) =
        superblock.data_pool.clone().map(|pool| (pool.name, pool.number)).unzip();
    let text = Text {
        format,
        needs: "0.1.0".into(),
        uuid,
        rank,
        ranks,
        label,
        hash_key: format!("{:032x}", u128::from_be_bytes(superblock.hash_key)),
        strip_bytes,
        journal_bytes,
        created,
        incoming_from,
        moved_to,
        data_pool,
        data_pool_number,
    };
    let body = format!("{TITLE}{}", toml::to_string(&text)?);
    Ok(format!("{body}checksum = {}", checksum_line(&body)))
}

fn checksum_line(body: &str) -> String {
    format!("\"{:016x}\"\n", xxh3_64(body.as_bytes()))
}

/// True if the directory holds a store, damaged or not.
pub(crate) fn is_store(dir: &Path) -> bool {
    match read(dir) {
        Ok(_)
        | Err(
            SuperblockError::Newer { .. }
            | SuperblockError::Older { .. }
            | SuperblockError::Damaged { .. }
            | SuperblockError::Restorable { .. },
        ) => true,
        Err(_) => false,
    }
}
