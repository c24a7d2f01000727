//! Decides which openings of a file use the kernel's page cache.
//!
//! For a direct write the kernel drops the cached pages before it sends the write and after it is
//! answered. A cached read in between may be answered before the write, and its page then appears
//! with the new file size. So an opening for writing only is direct while no cached opening exists,
//! and later openings of such a file are direct, too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_proto::Ino;

/// Bit in the handle of a direct opening.
pub(super) const DIRECT: u64 = 1;
/// Bit in the handle of a cached opening.
pub(super) const CACHED: u64 = 2;

/// Counts of the openings of all files.
#[derive(Default)]
pub(super) struct Openings(Mutex<HashMap<Ino, Count>>);

#[derive(Default)]
struct Count {
    cached: u32,
    /// Direct openings for writing.
    writing: u32,
    /// Openings for reading and writing, cached or direct.
    mappable: u32,
}

/// The possible uses of an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Writes that the kernel keeps coherent with its cache.
    pub(super) writes: bool,
    /// Shared writable memory maps: these need an opening for reading and writing, and keep it
    /// open.
    pub(super) maps: bool,
}

/// The preferred mode of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheMode {
    /// Through the page cache.
    Cached,
    /// Direct, if possible: saves a copy, and the kernel's request for `security.capability` before
    /// the first write.
    Sparing,
    /// Direct in any case.
    Direct,
}

impl Openings {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an opening; returns the bit of its handle.
    pub(super) fn open(&self, ino: Ino, way: CacheMode, used: Use) -> u64 {
        let mut all = self.lock();
        let count = all.entry(ino).or_default();
        let direct = match way {
            CacheMode::Cached => count.writing > 0,
            CacheMode::Sparing => count.cached == 0,
            CacheMode::Direct => true,
        };
        if !direct {
            count.cached += 1;
        } else if used.writes {
            count.writing += 1;
        }
        count.mappable += u32::from(used.maps);
        drop_unused(&mut all, ino);
        if direct { DIRECT } else { CACHED }
    }

    /// Uncounts the opening with this handle.
    pub(super) fn close(&self, ino: Ino, handle: u64, used: Use) {
        let mut all = self.lock();
        let Some(count) = all.get_mut(&ino) else { return };
        if handle & CACHED != 0 {
            count.cached = count.cached.saturating_sub(1);
        } else if handle & DIRECT != 0 && used.writes {
            count.writing = count.writing.saturating_sub(1);
        }
        if handle & (CACHED | DIRECT) != 0 && used.maps {
            count.mappable = count.mappable.saturating_sub(1);
        }
        drop_unused(&mut all, ino);
    }

    /// True if the kernel may have pages of the file that were changed through a memory map.
    pub(super) fn may_be_mapped(&self, ino: Ino) -> bool {
        self.lock().get(&ino).is_some_and(|count| count.mappable > 0)
    }
}

fn drop_unused(all: &mut HashMap<Ino, Count>, ino: Ino) {
    if all.get(&ino).is_some_and(|count| (count.cached, count.writing, count.mappable) == (0, 0, 0)) {
        all.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(2);
    const READS: Use = Use { writes: false, maps: false };
    const WRITES: Use = Use { writes: true, maps: false };
    const MAPS: Use = Use { writes: true, maps: true };

    #[test]
    fn cached_readers_disable_direct_writes() {
        let openings = Openings::default();
        assert_eq!(openings.open(FILE, CacheMode::Cached, READS), CACHED);
        assert_eq!(openings.open(FILE, CacheMode::Sparing, WRITES), CACHED);
        assert_eq!(openings.open(Ino(3), CacheMode::Sparing, WRITES), DIRECT);
        openings.close(FILE, CACHED, READS);
        assert_eq!(openings.open(FILE, CacheMode::Sparing, WRITES), CACHED, "the other one is cached");
        openings.close(FILE, CACHED, WRITES);
        openings.close(FILE, CACHED, WRITES);
        assert_eq!(openings.open(FILE, CacheMode::Sparing, WRITES), DIRECT);
    }

    #[test]
    fn direct_writes_disable_cached_reads() {
        let openings = Openings::default();
        assert_eq!(openings.open(FILE, CacheMode::Sparing, WRITES), DIRECT);
        assert_eq!(openings.open(FILE, CacheMode::Sparing, WRITES), DIRECT);
        assert_eq!(openings.open(FILE, CacheMode::Cached, READS), DIRECT);
        openings.close(FILE, DIRECT, WRITES);
        assert_eq!(openings.open(FILE, CacheMode::Cached, WRITES), DIRECT);
        openings.close(FILE, DIRECT, WRITES);
        openings.close(FILE, DIRECT, READS);
        openings.close(FILE, DIRECT, WRITES);
        assert!(openings.lock().is_empty());
        assert_eq!(openings.open(FILE, CacheMode::Direct, READS), DIRECT);
        assert_eq!(openings.open(FILE, CacheMode::Cached, READS), CACHED, "the other opening does not write");
    }

    #[test]
    fn a_file_may_be_mapped_while_it_is_open_for_reading_and_writing() {
        let openings = Openings::default();
        let cached = openings.open(FILE, CacheMode::Cached, MAPS);
        openings.open(FILE, CacheMode::Cached, READS);
        assert!(openings.may_be_mapped(FILE));
        let direct = openings.open(FILE, CacheMode::Direct, MAPS);
        openings.close(FILE, cached, MAPS);
        assert!(openings.may_be_mapped(FILE));
        openings.close(FILE, 0, MAPS);
        assert!(openings.may_be_mapped(FILE), "passthrough openings are not counted");
        openings.close(FILE, direct, MAPS);
        assert!(!openings.may_be_mapped(FILE));
        openings.close(FILE, CACHED, READS);
        assert!(openings.lock().is_empty());
    }
}
