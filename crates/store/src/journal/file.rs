use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A file of fixed size that can be read and written anywhere. What is written may be lost, or be there in part, after
/// a power failure, until [`Self::sync_data`] has returned.
pub trait BlockFile: Send + Sync {
    /// Fills `buf`, or fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data`, or fails.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
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
