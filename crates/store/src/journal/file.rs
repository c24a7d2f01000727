use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A file of fixed size with random access. Until [`Self::sync_data`] returns, a power failure may
/// lose any part of what was written.
pub trait BlockFile: Send + Sync {
    /// Fills `buf` completely or fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data` or fails.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;

    /// An offset from `offset` on, before which all bytes are zero from there: the first in a range
    /// that was written, as `SEEK_DATA` of `lseek(2)`.
    fn data_from(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A file that is shared.
impl<F: BlockFile + ?Sized> BlockFile for Arc<F> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, data)
    }

    fn sync_data(&self) -> io::Result<()> {
        (**self).sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }

    fn data_from(&self, offset: u64) -> io::Result<u64> {
        (**self).data_from(offset)
    }
}

/// A file of the operating system.
#[derive(Debug)]
pub struct RealFile(pub File);

impl BlockFile for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
