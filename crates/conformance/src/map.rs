//! Memory mappings of files.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::CaseResult;

/// A mapping of the first `len` bytes of a file.
pub(crate) struct FileMapping {
    start: *mut u8,
    len: usize,
}

impl FileMapping {
    pub(crate) fn new(
        file: impl AsFd,
        len: usize,
        flags: MapFlags,
        writable: bool,
    ) -> rustix::io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address chosen by the kernel.
        let start = unsafe { mmap(null_mut(), len, protection, flags, file, 0)? };
        Ok(Self { start: start.cast(), len })
    }

    pub(crate) fn shared(file: &File, len: usize) -> rustix::io::Result<Self> {
        Self::new(file, len, MapFlags::SHARED, true)
    }

    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping; volatile, since others change the same memory.
            unsafe { self.start.add(at + n).write_volatile(*byte) };
        }
    }

    pub(crate) fn load(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: as in `store`.
        (at..at + len).map(|n| unsafe { self.start.add(n).read_volatile() }).collect()
    }

    pub(crate) fn sync(&self) -> CaseResult {
        // SAFETY: exactly the mapping.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC)? };
        Ok(())
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, which is not used afterwards.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
