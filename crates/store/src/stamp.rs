//! Times for inodes, ordered consistently with the times that the kernel gives to the store's
//! files.
//!
//! The kernel stamps a written file with its coarse clock, which lags by up to a tick (1 to 10 ms).
//! Since Linux 6.13 it uses the fine clock where a coarse time would hide a change from an
//! observer; afterwards no file on the machine gets an earlier time (multigrain timestamps). This
//! module reads the fine clock, so its times are never before those of files written earlier. For
//! the other direction, [`raise`] makes the kernel give a fine time to a scratch file before a
//! stream is written. Older kernels use only the coarse clock, and so does this module on them.

use std::fs::File;
use std::sync::LazyLock;

use espalier_proto::Time;
use rustix::fs::{MemfdFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens, memfd_create};
use rustix::time::{ClockId, clock_gettime};

/// Number of attempts that suffices for a fine time even if other threads stamp the file
/// concurrently.
const ATTEMPTS: u32 = 8;

/// Scratch file in memory for fine times, on kernels that support them.
static STAMPED: LazyLock<Option<File>> = LazyLock::new(|| {
    let file = File::from(memfd_create("espalier-stamp", MemfdFlags::CLOEXEC).ok()?);
    // A tick may pass during the first attempt.
    (0..2).all(|_| fine(&file).is_some()).then_some(file)
});

/// The current time, for an inode.
pub fn now() -> Time {
    read(if STAMPED.is_some() { ClockId::Realtime } else { ClockId::RealtimeCoarse })
}

/// The current time; the kernel gives no file an earlier time afterwards. Takes two or four system
/// calls of 0.3 us each.
pub fn raise() -> Time {
    STAMPED.as_ref().and_then(fine).unwrap_or_else(now)
}

fn read(clock: ClockId) -> Time {
    let time = clock_gettime(clock);
    Time::new(time.tv_sec, time.tv_nsec as u32)
}

/// Makes the kernel stamp a file with a fine time. It uses the coarse clock unless the last stamp
/// was queried and the coarse clock has not passed it.
fn fine(file: &File) -> Option<Time> {
    let now = read(ClockId::Realtime);
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    };
    (0..ATTEMPTS).find_map(|_| {
        futimens(file, &times).ok()?;
        let stat = fstat(file).ok()?;
        let stamp = Time::new(stat.st_mtime, stat.st_mtime_nsec as u32);
        (stamp >= now).then_some(stamp)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn times_of_inodes_and_files_are_in_the_order_of_the_changes() {
        let file = tempfile::tempfile().unwrap();
        let mtime = || {
            let stat = file.metadata().unwrap();
            Time::new(stat.mtime(), stat.mtime_nsec() as u32)
        };
        for n in 0..500 {
            let before = now();
            raise();
            file.write_all_at(b"x", 0).unwrap();
            let written = mtime();
            assert!(before <= written, "the file written after {before:?} has {written:?}, round {n}");
            assert!(written <= now());
        }
    }

    #[test]
    fn several_threads_raise_at_the_same_time() {
        let raise_often = || {
            for _ in 0..2000 {
                let before = now();
                assert!(before <= raise());
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(raise_often))));
    }
}
