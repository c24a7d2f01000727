use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::StoreError;

/// What the journal needs of a file.
pub trait BlockFile: Send + Sync {
    /// Fills the buffer.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes all writes durable.
    fn sync(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
}

/// A file of the operating system's.
#[derive(Debug)]
pub struct RealFile(File);

impl RealFile {
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        file.map(Self).map_err(StoreError::io("make", path))
    }

    pub fn open(path: &Path, read_only: bool) -> Result<Self, StoreError> {
        let file = OpenOptions::new().read(true).write(!read_only).open(path);
        file.map(Self).map_err(StoreError::io("open", path))
    }
}

impl BlockFile for RealFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
