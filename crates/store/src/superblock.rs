//! What a store is, and how it was made: a small text file in TOML whose last line is a checksum of the others.

mod format;

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

pub use format::{FormatError, FormatOptions, format};

pub(crate) const FILE: &str = "superblock";
const FILE_NEW: &str = "superblock.new";
/// The first line, by which a store is told from any other directory.
const TITLE: &str = "# An Espalier store. Do not edit: the last line is a checksum.\n";
/// How the title of every version begins.
const MAGIC: &[u8] = b"# An Espalier store.";
/// The format of this version, the only one that it reads.
pub const FORMAT: u32 = 2;
const MAX_BYTES: usize = 64 * 1024;

/// What a store is, and how it was made.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the store's format.
    pub format: u32,
    pub uuid: Uuid,
    pub label: String,
    /// Secret: without it, nobody can choose names that collide.
    pub hash_key: [u8; 16],
    /// Files of at most so many bytes are stuffed.
    pub strip_bytes: u32,
    /// Capacity of the journal.
    pub journal_bytes: u64,
    /// When it was made, in seconds since 1970.
    pub created: i64,
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { format, uuid, label, strip_bytes, journal_bytes, created, .. } = self;
        f.debug_struct("Superblock")
            .field("format", format)
            .field("uuid", uuid)
            .field("label", label)
            .field("strip_bytes", strip_bytes)
            .field("journal_bytes", journal_bytes)
            .field("created", created)
            .finish_non_exhaustive()
    }
}

impl Superblock {
    /// Marks what belongs to this store.
    pub(crate) fn tag(&self) -> u64 {
        xxh3_64(self.uuid.as_bytes())
    }
}

/// Why a store's superblock cannot be used.
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
    #[error("the superblock of {} is damaged: {why}; restore the file `{FILE}` from a copy", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("cannot {what} the superblock of {}: {cause}", path.display())]
    Io { what: &'static str, path: PathBuf, cause: io::Error },
}

/// The file, as every version writes it.
#[derive(Deserialize)]
struct Head {
    format: u32,
    needs: String,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u32,
    /// The oldest version of Espalier that reads the format.
    needs: String,
    uuid: Uuid,
    label: String,
    /// In hexadecimal.
    hash_key: String,
    strip_bytes: u32,
    journal_bytes: u64,
    created: i64,
}

/// Reads a store's superblock.
///
/// # Errors
/// Each says what to do.
pub fn read(dir: &Path) -> Result<Superblock, SuperblockError> {
    let path = dir.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let path = dir.to_path_buf();
            let is_dir = dir.is_dir();
            return Err(if is_dir {
                SuperblockError::NoStore(path)
            } else {
                SuperblockError::NoDirectory(path)
            });
        }
        Err(cause) => return Err(SuperblockError::Io { what: "read", path: dir.into(), cause }),
    };
    parse(dir, &bytes)
}

fn parse(dir: &Path, bytes: &[u8]) -> Result<Superblock, SuperblockError> {
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
    let Text { format, needs: _, uuid, label, hash_key, strip_bytes, journal_bytes, created } = text;
    let hash_key =
        u128::from_str_radix(&hash_key, 16).map_err(|_| damaged("its hash_key is no number".into()))?;
    let hash_key = hash_key.to_be_bytes();
    Ok(Superblock { format, uuid, label, hash_key, strip_bytes, journal_bytes, created })
}

/// Replaces a store's superblock, durably and atomically.
///
/// # Errors
/// [`SuperblockError::Io`]: the old one is still there.
pub fn write(dir: &Path, superblock: &Superblock) -> Result<(), SuperblockError> {
    let io = |what| move |cause| SuperblockError::Io { what, path: dir.into(), cause };
    let text = encode(superblock).map_err(|error| io("encode")(io::Error::other(error)))?;
    let (path, new) = (dir.join(FILE), dir.join(FILE_NEW));
    let mut file = std::fs::File::create(&new).map_err(io("create"))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io("write"))?;
    std::fs::rename(&new, &path).map_err(io("replace"))?;
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync the directory of"))
}

fn encode(superblock: &Superblock) -> Result<String, toml::ser::Error> {
    let Superblock { format, uuid, label, hash_key, strip_bytes, journal_bytes, created } =
        superblock.clone();
    let hash_key = format!("{:032x}", u128::from_be_bytes(hash_key));
    let needs = "0.1.0".into();
    let text = Text { format, needs, uuid, label, hash_key, strip_bytes, journal_bytes, created };
    let body = format!("{TITLE}{}", toml::to_string(&text)?);
    Ok(format!("{body}checksum = {}", checksum_line(&body)))
}

fn checksum_line(body: &str) -> String {
    format!("\"{:016x}\"\n", xxh3_64(body.as_bytes()))
}

/// Whether there is a store, damaged or not.
pub(crate) fn is_store(dir: &Path) -> bool {
    match read(dir) {
        Ok(_)
        | Err(
            SuperblockError::Newer { .. } | SuperblockError::Older { .. } | SuperblockError::Damaged { .. },
        ) => true,
        Err(_) => false,
    }
}
