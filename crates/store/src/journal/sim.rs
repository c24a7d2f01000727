//! A file that can lose power.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::BlockFile;

/// Disks write whole sectors, or not.
const SECTOR: u64 = 512;

/// A file in memory that remembers which writes are not durable. Clones are the same file.
#[derive(Clone, Debug, Default)]
pub struct SimFile(Arc<Mutex<Image>>);

#[derive(Debug, Default)]
struct Image {
    durable: Vec<u8>,
    seen: Vec<u8>,
    /// Since the last sync, by sector.
    pending: Vec<(u64, Vec<u8>)>,
}

impl SimFile {
    /// What may be on the disk after the power went: of the writes since the last sync any sectors, in any order.
    /// `choose(n)` is a number below `n`.
    pub fn crash(&self, mut choose: impl FnMut(usize) -> usize) -> Self {
        let image = self.lock();
        let mut durable = image.durable.clone();
        let mut pending = image.pending.clone();
        let lost = choose(4);
        while !pending.is_empty() {
            let (offset, bytes) = pending.swap_remove(choose(pending.len()));
            // Mostly lost, mostly written, or anything between.
            if choose(3) < lost {
                put(&mut durable, offset, &bytes);
            }
        }
        Self(Arc::new(Mutex::new(Image { seen: durable.clone(), durable, pending: Vec::new() })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Image> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockFile for SimFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let image = self.lock();
        let from = image.seen.get(offset as usize..).unwrap_or_default();
        let from = from.get(..bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut image = self.lock();
        put(&mut image.seen, offset, bytes);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let size = ((SECTOR - at % SECTOR) as usize).min(bytes.len() - done);
            image.pending.push((at, bytes[done..done + size].to_vec()));
            done += size;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut image = self.lock();
        image.durable = image.seen.clone();
        image.pending.clear();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().seen.len() as u64)
    }
}

fn put(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (from, to) = (offset as usize, offset as usize + bytes.len());
    if image.len() < to {
        image.resize(to, 0);
    }
    image[from..to].copy_from_slice(bytes);
}
