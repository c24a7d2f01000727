//! Checks of structures that `lsm-tree` does not verify when it opens a tree.
//!
//! The tree verifies the checksum of each block that it reads. It does not verify the list of
//! tables in use (a wrong number hides records), nor the number of entries in a table's directory
//! before it allocates memory for them (an absurd number aborts the process).

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::StoreError;
use crate::error::Context;

/// Subdirectory of the tree that holds its tables.
pub(super) const TABLES: &str = "tables";
const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 25;
/// `SFA!`, version, checksum type, checksum of the directory, its offset, its length.
const TRAILER_BYTES: usize = 38;

/// Checks the tree in directory `path`.
pub(super) fn tables(path: &Path) -> Result<(), StoreError> {
    let current = path.join(CURRENT);
    let bytes = match std::fs::read(&current) {
        Ok(bytes) => bytes,
        // The tree would make an empty one and lose all records.
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            return Err(StoreError::corrupt(format!("{} is missing", current.display())));
        }
        Err(cause) => return Err(StoreError::io("read", &current, cause)),
    };
    let damaged = |path: &Path| StoreError::corrupt(format!("{} is damaged", path.display()));
    let bytes: [u8; CURRENT_BYTES] = bytes.try_into().map_err(|_| damaged(&current))?;
    let version = path.join(format!("v{}", u64::from_le_bytes(array(&bytes, 0))));
    let list = match std::fs::read(&version) {
        Ok(list) => list,
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            let (current, version) = (current.display(), version.display());
            return Err(StoreError::corrupt(format!("{version} is missing, or {current} is damaged")));
        }
        Err(cause) => return Err(StoreError::io("read", &version, cause)),
    };
    if u128::from_le_bytes(array(&bytes, 8)) != xxh3_128(&list) || bytes[24] != 0 {
        return Err(damaged(&version));
    }
    let tables = path.join(TABLES);
    for entry in std::fs::read_dir(&tables).context("read", &tables)? {
        let table = entry.context("read", &tables)?.path();
        let file = File::open(&table).context("open", &table)?;
        // An unfinished table has no directory. It is unused, or the tree reports it as missing.
        if let Some(false) = directory_is_whole(&file).context("read", &table)? {
            return Err(damaged(&table));
        }
    }
    Ok(())
}

/// True if the checksum of a table's directory is right; `None` if the table has no directory.
pub(super) fn directory_is_whole(file: &File) -> std::io::Result<Option<bool>> {
    let length = file.metadata()?.len();
    let Some(trailer_at) = length.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, trailer_at)?;
    if trailer[..4] != *b"SFA!" {
        return Ok(None);
    }
    let (start, bytes) = (u64::from_le_bytes(array(&trailer, 22)), u64::from_le_bytes(array(&trailer, 30)));
    if start.checked_add(bytes) != Some(trailer_at) {
        return Ok(Some(false));
    }
    let mut directory = vec![0; bytes as usize];
    file.read_exact_at(&mut directory, start)?;
    Ok(Some(u128::from_le_bytes(array(&trailer, 6)) == xxh3_128(&directory)))
}

/// Reads `N` bytes at `at`. The caller guarantees that they exist.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
