//! Flush-behind for files that are written sequentially.
//!
//! Bytes behind the writer are submitted to the disk soon, so that a final fsync need not wait for
//! the whole file.
//!
//! The kernel passes a file through only from its next open on. Until then the bytes of a new file
//! are cached twice, as this mount's and as the store's; the frontend may drop the mount's copy.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

/// The distance behind the writer, in bytes. It leaves the disk time, and short-lived files are
/// never written.
const WINDOW: u64 = 8 << 20;

/// The window to flush after a write that is the first to end in a new window: the one before the
/// window just filled.
fn flushed_behind(offset: u64, end: u64) -> Option<Range<u64>> {
    let filled = end / WINDOW * WINDOW;
    (offset < filled).then(|| filled.checked_sub(2 * WINDOW))?.map(|start| start..start + WINDOW)
}

/// A thread that starts writeback; created at its first use.
#[derive(Default)]
pub(crate) struct Writeback(OnceLock<Option<(SyncSender<FlushJob>, JoinHandle<()>)>>);

/// A file, and the offset up to which it is written out.
type FlushJob = (Arc<File>, u64);

impl Writeback {
    /// Called after a write. If it extends a big file, starts writeback and returns the range
    /// behind the writer.
    pub(crate) fn follow(
        &self,
        offset: u64,
        length: u64,
        file: impl FnOnce() -> Option<Arc<File>>,
    ) -> Option<Range<u64>> {
        let end = offset.checked_add(length)?;
        let left = flushed_behind(offset, end)?;
        let file = file()?;
        if file.metadata().ok()?.len() != end {
            return None;
        }
        self.start(file, end);
        Some(left)
    }

    /// Starts writeback of a file up to `end`, without waiting. A request while the disk is busy is
    /// dropped, since the next one includes it.
    fn start(&self, file: Arc<File>, end: u64) {
        let worker = self.0.get_or_init(|| {
            let (queue, jobs) = sync_channel(1);
            let thread = Builder::new().name("writeback".into()).spawn(|| serve(jobs));
            // Without the thread, the kernel writes pages back by its own schedule.
            thread
                .inspect_err(|error| tracing::debug!(%error, "no thread"))
                .ok()
                .map(|thread| (queue, thread))
        });
        if let Some((queue, _)) = worker {
            let _ = queue.try_send((file, end));
        }
    }
}

impl Drop for Writeback {
    /// Closes all files.
    fn drop(&mut self) {
        if let Some((queue, thread)) = self.0.take().flatten() {
            drop(queue);
            let _ = thread.join();
        }
    }
}

fn serve(jobs: Receiver<FlushJob>) {
    for (file, end) in jobs {
        // The kernel reports write errors to the next sync of the file.
        if let Err(error) = start_writing(&file, end) {
            tracing::debug!(%error, "cannot start writeback");
        }
    }
}

fn start_writing(file: &File, end: u64) -> std::io::Result<()> {
    let end = i64::try_from(end).unwrap_or(i64::MAX);
    // SAFETY: it takes a descriptor, which is open, and numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, end, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_window_is_left_behind_once() {
        for piece in [4096, 100_003, MIB, 3 * MIB] {
            let writes = (0..50 * MIB / piece).map(|n| (n * piece, (n + 1) * piece));
            let left: Vec<_> = writes.filter_map(|(offset, end)| flushed_behind(offset, end)).collect();
            let windows = [0, 1, 2, 3, 4].map(|n| n * WINDOW..(n + 1) * WINDOW);
            assert_eq!(left, windows, "pieces of {piece}");
        }
        assert_eq!(flushed_behind(0, 2 * WINDOW - 1), None);
        assert_eq!(
            flushed_behind(0, u64::MAX).map(|left| left.end),
            Some(u64::MAX / WINDOW * WINDOW - WINDOW)
        );
    }

    #[test]
    fn only_growing_files_are_followed() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(2 * WINDOW).unwrap();
        let writeback = Writeback::default();
        let follow = |offset| writeback.follow(offset, MIB, || Some(Arc::clone(&file)));
        assert_eq!(follow(2 * WINDOW - MIB), Some(0..WINDOW));
        assert_eq!(follow(WINDOW), None, "no window is full");
        assert_eq!(follow(u64::MAX), None);
        assert_eq!(writeback.follow(2 * WINDOW - MIB, MIB, || None), None);
        file.set_len(3 * WINDOW).unwrap();
        assert_eq!(follow(2 * WINDOW - MIB), None, "the write does not extend the file");
    }

    #[test]
    fn flush_starts_and_files_are_released() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(MIB).unwrap();
        let writeback = Writeback::default();
        for _ in 0..1000 {
            writeback.start(Arc::clone(&file), u64::MAX);
        }
        drop(writeback);
        assert_eq!(Arc::strong_count(&file), 1);
        start_writing(&file, MIB).unwrap();
        let (pipe, _other) = std::io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(pipe));
        assert_eq!(start_writing(&pipe, MIB).unwrap_err().kind(), std::io::ErrorKind::NotSeekable);
    }
}
