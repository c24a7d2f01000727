//! The superblock: what must be known of a file system before anything else. It is text, for people to read.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{FormatError, StoreError, SuperblockError};
use crate::journal::{Journal, RealFile};
use crate::local::{self, LocalStore};
use crate::sync_dir;

/// The newest format that this program reads and writes.
pub const FORMAT: u32 = 1;
const FILE: &str = "superblock";
const TITLE: &str = "# Espalier file system. Do not edit: the checksum at the end covers every byte.\n";
const CHECKSUM: &str = "checksum = ";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    pub format: u32,
    pub uuid: Uuid,
    pub label: String,
    /// Hashing names depends on it, so that nobody can choose names that collide.
    pub hash_key: [u8; 16],
    /// Files of at most so many bytes are stuffed.
    pub strip_bytes: u32,
    pub journal_bytes: u64,
}

/// How a file system is made.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    pub label: String,
    pub strip_bytes: u32,
    pub journal_bytes: u64,
    pub force: bool,
}

/// Makes an empty store in a directory, which is made too if need be. It has no records: the caller must publish some.
pub fn format(dir: &Path, options: &FormatOptions) -> Result<Superblock, FormatError> {
    if !(4 << 20..=16 << 30).contains(&options.journal_bytes) {
        return Err(FormatError::JournalSize(options.journal_bytes));
    }
    if options.strip_bytes > 256 << 10 || u64::from(options.strip_bytes) > options.journal_bytes / 16 {
        return Err(FormatError::StripSize(options.strip_bytes));
    }
    fs::create_dir_all(dir).map_err(StoreError::io("make", dir))?;
    let is_empty = fs::read_dir(dir).map_err(StoreError::io("list", dir))?.next().is_none();
    let exists = dir.join(FILE).exists();
    match (is_empty, exists, options.force) {
        (false, true, false) => return Err(FormatError::Exists(dir.into())),
        (false, false, _) if !is_ours(dir) => return Err(FormatError::NotEmpty(dir.into())),
        _ => {}
    }
    let _lock = local::Lock::take(dir)?;
    // Gone first, so that an interrupted mkfs leaves no store that looks whole.
    remove(&dir.join(FILE))?;
    for part in ["tables", "streams", "journal"] {
        remove(&dir.join(part))?;
    }
    sync_dir(dir)?;
    let (uuid, secret) = (Uuid::new_v4(), Uuid::new_v4());
    let superblock = Superblock {
        format: FORMAT,
        uuid,
        label: options.label.clone(),
        hash_key: secret.into_bytes(),
        strip_bytes: options.strip_bytes,
        journal_bytes: options.journal_bytes,
    };
    Journal::create(RealFile::create(&dir.join("journal"))?, options.journal_bytes)?;
    LocalStore::format(dir)?;
    write(dir, &superblock)?;
    Ok(superblock)
}

/// Whether all that is in a directory could be left over from an interrupted mkfs.
fn is_ours(dir: &Path) -> bool {
    let known = ["lock", "tables", "streams", "journal", "superblock.new", "log"];
    fs::read_dir(dir).is_ok_and(|mut list| list.all(|entry| entry.is_ok_and(|entry| known.iter().any(|name| entry.file_name() == *name))))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    let outcome = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match outcome {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn write(dir: &Path, superblock: &Superblock) -> Result<(), StoreError> {
    let (path, new) = (dir.join(FILE), dir.join("superblock.new"));
    // A struct of plain fields always has a text form.
    let body = format!("{TITLE}{}", toml::to_string(superblock).unwrap_or_default());
    let text = format!("{body}{CHECKSUM}\"{:016x}\"\n", xxh3_64(body.as_bytes()));
    let written = File::create(&new).and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(StoreError::io("write", &new))?;
    fs::rename(&new, &path).map_err(StoreError::io("write", &path))?;
    sync_dir(dir)
}

pub fn read(dir: &Path) -> Result<Superblock, SuperblockError> {
    let path = dir.join(FILE);
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| SuperblockError::Damaged(path.clone()))?,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(SuperblockError::Absent(dir.into()));
        }
        Err(source) => return Err(SuperblockError::Io { path, source }),
    };
    let Some((body, checksum)) = text.rsplit_once(CHECKSUM) else {
        return Err(if text.starts_with(TITLE) { SuperblockError::Damaged(path) } else { SuperblockError::Foreign(path) });
    };
    if checksum.trim_end() != format!("\"{:016x}\"", xxh3_64(body.as_bytes())) {
        return Err(SuperblockError::Damaged(path));
    }
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let format = toml::from_str::<Version>(body).map_err(|_| SuperblockError::Foreign(path.clone()))?.format;
    if format > FORMAT {
        return Err(SuperblockError::Newer { path, format, known: FORMAT });
    }
    toml::from_str(body).map_err(|_| SuperblockError::Damaged(path))
}
