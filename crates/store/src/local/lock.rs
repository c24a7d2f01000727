//! One process at a time has a store open.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::error::StoreError;

/// The lock on a store. The kernel releases it with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        // On a medium that cannot be written an existing lock will do, to read.
        let mut file = open.or_else(|_| File::open(&path)).map_err(StoreError::io("open", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "?".into() } else { holder.trim().to_owned() };
            return Err(StoreError::InUse { path: dir.into(), holder });
        }
        // It is only for that message.
        let note = |file: &mut File| {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            writeln!(file, "{}", std::process::id())
        };
        let _ = note(&mut file);
        Ok(Self { _file: file })
    }
}

/// Whether some process has the store open.
pub fn is_locked(dir: &Path) -> bool {
    File::open(dir.join("lock")).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}
