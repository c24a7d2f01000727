//! What follows, at a distance, whoever writes a big file from beginning to end.
//!
//! What the writer has left behind is handed to the disk at once, so that an fsync at the end does not have to wait for all of it.
//!
//! The kernel passes a file through only from its next opening on, so that a new file's bytes all come by here, and lie
//! in the kernel's cache twice: as ours and as the store's. The door may have our copy dropped.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

/// The distance. Large enough for the disk, and for temporary files that will be gone before they need be written.
const WINDOW: u64 = 8 << 20;

/// What a write that ends a file has left behind, if it was the first to end in another window: the window before the
/// one that has just been filled.
fn left_behind(offset: u64, end: u64) -> Option<Range<u64>> {
    let filled = end / WINDOW * WINDOW;
    (offset < filled).then(|| filled.checked_sub(2 * WINDOW))?.map(|start| start..start + WINDOW)
}

/// A thread that starts writing out, once there is anything to write.
#[derive(Default)]
pub(crate) struct Writeback(OnceLock<Option<(SyncSender<Job>, JoinHandle<()>)>>);

/// Up to which offset.
type Job = (Arc<File>, u64);

impl Writeback {
    /// After bytes were written at an offset. If that was a piece of a growing file's and the file is a big one, starts to write it out,
    /// and tells what its writer has left behind.
    pub(crate) fn follow(
        &self,
        offset: u64,
        length: u64,
        file: impl FnOnce() -> Option<Arc<File>>,
    ) -> Option<Range<u64>> {
        let end = offset.checked_add(length)?;
        let left = left_behind(offset, end)?;
        let file = file()?;
        if file.metadata().ok()?.len() != end {
            return None;
        }
        self.start(file, end);
        Some(left)
    }

    /// Starts writing out a file's bytes before `end`. Does not wait: while the disk is busy with the last request, this
    /// one is forgotten, for the next one comprises it.
    fn start(&self, file: Arc<File>, end: u64) {
        let worker = self.0.get_or_init(|| {
            let (queue, jobs) = sync_channel(1);
            let thread = Builder::new().name("writeback".into()).spawn(|| serve(jobs));
            // Without the thread, the kernel writes in its own time.
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
    /// Lets go of all files.
    fn drop(&mut self) {
        if let Some((queue, thread)) = self.0.take().flatten() {
            drop(queue);
            let _ = thread.join();
        }
    }
}

fn serve(jobs: Receiver<Job>) {
    for (file, end) in jobs {
        // What cannot be written, the kernel tells whoever syncs the file.
        if let Err(error) = start_writing(&file, end) {
            tracing::debug!(%error, "cannot write out early");
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
            let left: Vec<_> = writes.filter_map(|(offset, end)| left_behind(offset, end)).collect();
            let windows = [0, 1, 2, 3, 4].map(|n| n * WINDOW..(n + 1) * WINDOW);
            assert_eq!(left, windows, "pieces of {piece}");
        }
        assert_eq!(left_behind(0, 2 * WINDOW - 1), None);
        assert_eq!(left_behind(0, u64::MAX).map(|left| left.end), Some(u64::MAX / WINDOW * WINDOW - WINDOW));
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
        assert_eq!(follow(2 * WINDOW - MIB), None, "it was written to before its end");
    }

    #[test]
    fn writing_is_started_and_files_are_let_go_of() {
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
