//! Which openings of a file go through the kernel's cache, and which past it.
//!
//! Before the kernel sends what is written past its cache, it takes these pages out of it, and once it is sent again. A read through the cache that comes
//! between may be answered first; its page is then seen with the file's new length. So who only writes goes past the cache
//! while nobody has the file open through it, and who comes to such a file goes past it, too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_proto::Ino;

/// A bit in the handle of an opening that goes past the kernel's cache.
pub(super) const DIRECT: u64 = 1;
/// And in that of one that goes through it.
pub(super) const CACHED: u64 = 2;

/// The openings of all files that are counted.
#[derive(Default)]
pub(super) struct Openings(Mutex<HashMap<Ino, Count>>);

#[derive(Default)]
struct Count {
    cached: u32,
    /// Past the cache, to write.
    writing: u32,
    /// Either way, to read and write.
    mappable: u32,
}

/// What an opening may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Writes that the kernel keeps coherent with its cache.
    pub(super) writes: bool,
    /// Shared writable memory maps: these need an opening for reading and writing, and keep it open.
    pub(super) maps: bool,
}

/// Which way an opening had better go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the cache.
    Cached,
    /// Past the cache: that spares the kernel a copy, and us its question for `security.capability` before the first write.
    Sparing,
    /// Past the cache in any case.
    Direct,
}

impl Openings {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is opened. Its handle's bit.
    pub(super) fn open(&self, ino: Ino, way: Way, used: Use) -> u64 {
        let mut all = self.lock();
        let count = all.entry(ino).or_default();
        let direct = match way {
            Way::Cached => count.writing > 0,
            Way::Sparing => count.cached == 0,
            Way::Direct => true,
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

    /// An opening with this handle is closed.
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

    /// True if the kernel may have pages of a file that were changed through a memory map.
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
    fn nobody_writes_past_the_cache_that_others_read_through() {
        let openings = Openings::default();
        assert_eq!(openings.open(FILE, Way::Cached, READS), CACHED);
        assert_eq!(openings.open(FILE, Way::Sparing, WRITES), CACHED);
        assert_eq!(openings.open(Ino(3), Way::Sparing, WRITES), DIRECT);
        openings.close(FILE, CACHED, READS);
        assert_eq!(openings.open(FILE, Way::Sparing, WRITES), CACHED, "the other writes through it");
        openings.close(FILE, CACHED, WRITES);
        openings.close(FILE, CACHED, WRITES);
        assert_eq!(openings.open(FILE, Way::Sparing, WRITES), DIRECT);
    }

    #[test]
    fn nobody_reads_through_the_cache_what_is_written_past_it() {
        let openings = Openings::default();
        assert_eq!(openings.open(FILE, Way::Sparing, WRITES), DIRECT);
        assert_eq!(openings.open(FILE, Way::Sparing, WRITES), DIRECT);
        assert_eq!(openings.open(FILE, Way::Cached, READS), DIRECT);
        openings.close(FILE, DIRECT, WRITES);
        assert_eq!(openings.open(FILE, Way::Cached, WRITES), DIRECT);
        openings.close(FILE, DIRECT, WRITES);
        openings.close(FILE, DIRECT, READS);
        openings.close(FILE, DIRECT, WRITES);
        assert!(openings.lock().is_empty());
        assert_eq!(openings.open(FILE, Way::Direct, READS), DIRECT);
        assert_eq!(openings.open(FILE, Way::Cached, READS), CACHED, "the other does not write");
    }

    #[test]
    fn a_file_may_be_mapped_while_it_is_open_for_reading_and_writing() {
        let openings = Openings::default();
        let cached = openings.open(FILE, Way::Cached, MAPS);
        openings.open(FILE, Way::Cached, READS);
        assert!(openings.may_be_mapped(FILE));
        let direct = openings.open(FILE, Way::Direct, MAPS);
        openings.close(FILE, cached, MAPS);
        assert!(openings.may_be_mapped(FILE));
        openings.close(FILE, 0, MAPS);
        assert!(openings.may_be_mapped(FILE), "what is passed through is not counted");
        openings.close(FILE, direct, MAPS);
        assert!(!openings.may_be_mapped(FILE));
        openings.close(FILE, CACHED, READS);
        assert!(openings.lock().is_empty());
    }
}
