//! Records the calls of a mount for a replay (`espalier sim --trace FILE`).
//!
//! A separate thread writes. Calls do not wait for it: if it cannot keep up, lines are dropped, and
//! the next line contains their number.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use espalier_client::Call;
use espalier_proto::{Caller, Errno};
use espalier_recording::{Line, Observed, RecordedRequest};

use crate::calls::CallOutcome;
use crate::error::Error;

/// Maximum number of queued lines, about 30 MiB.
const WAITING: usize = 1 << 16;

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    started: Instant,
    lost: AtomicU64,
    /// `None` ends the recording.
    queue: SyncSender<Option<Line>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A recorded call without an answer yet.
#[derive(Debug)]
pub struct Begun {
    at: Duration,
    pid: u32,
    uid: u32,
    gid: u32,
    recorded: RecordedRequest,
}

impl Recorder {
    /// Starts recording to a new file.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    pub fn start(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { context: format!("cannot record to {}", path.display()), source };
        let file = File::create_new(path).map_err(failed)?;
        let (queue, lines) = sync_channel(WAITING);
        let name = path.display().to_string();
        let writer = std::thread::Builder::new().name("recorder".into());
        let writer = writer.spawn(move || {
            if let Err(error) = write(&lines, file) {
                tracing::error!(file = name, %error, "the recording has ended");
            }
        });
        let writer = Mutex::new(Some(writer.map_err(failed)?));
        Ok(Self { started: Instant::now(), lost: AtomicU64::new(0), queue, writer })
    }

    /// Records the start of a call.
    pub fn begin(&self, caller: &Caller, call: &Call<'_>) -> Box<Begun> {
        let (at, &Caller { pid, uid, gid, .. }) = (self.started.elapsed(), caller);
        Box::new(Begun { at, pid, uid, gid, recorded: RecordedRequest::from(call) })
    }

    /// Records the answer to a call.
    pub fn end(&self, begun: Begun, outcome: &Result<CallOutcome<'_>, Errno>) {
        let Begun { at, pid, uid, gid, recorded } = begun;
        let observed = match outcome {
            Ok(CallOutcome::Data(data)) => Observed::data(&recorded, data),
            Ok(CallOutcome::Answer(answer)) => Observed::new(Ok(answer)),
            Err(errno) => Observed::new(Err(*errno)),
        };
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let took = nanos(self.started.elapsed().saturating_sub(at));
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let line = Line { at: nanos(at), took, pid, uid, gid, recorded, observed, lost };
        if self.queue.try_send(Some(line)).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written.
    pub fn finish(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // Fails if the writer has already ended.
            let _ = self.queue.send(None);
            let _ = writer.join();
        }
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(
                lost,
                "the recording lacks the last calls, because it could not be written fast enough"
            );
        }
    }
}

fn write(lines: &Receiver<Option<Line>>, file: File) -> std::io::Result<()> {
    let mut file = BufWriter::new(file);
    loop {
        // Flush when no line is queued.
        let next = match lines.try_recv() {
            Ok(next) => Ok(next),
            Err(TryRecvError::Empty) => {
                file.flush()?;
                lines.recv()
            }
            Err(TryRecvError::Disconnected) => Ok(None),
        };
        match next {
            Ok(Some(line)) => line.write(&mut file)?,
            Ok(None) | Err(_) => return file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use espalier_client::Answer;
    use espalier_proto::{Ino, RangeOp, Request};

    use super::*;

    #[test]
    fn calls_become_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("recording");
        let recorder = Recorder::start(&path).expect("a new file");
        assert!(Recorder::start(&path).is_err(), "no file is overwritten");
        let caller = Caller { uid: 7, gid: 8, pid: 9, groups: None };
        let read = Call::read(Ino(5), 3, 100, false);
        recorder.end(*recorder.begin(&caller, &read), &Ok(CallOutcome::Data(b"abc")));
        let fsync = Call::Request(Request::Fsync { ino: Ino(5) });
        recorder.end(*recorder.begin(&caller, &fsync), &Ok(CallOutcome::Answer(Answer::Done)));
        recorder.end(*recorder.begin(&caller, &fsync), &Err(Errno::EIO));
        recorder.finish();
        let text = std::fs::read_to_string(&path).expect("what was written");
        let lines: Vec<Line> = text.lines().map(|line| Line::parse(line).expect("a line")).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0].pid, lines[0].uid, lines[0].gid, lines[0].observed.bytes), (9, 7, 8, Some(3)));
        assert!(matches!(
            lines[0].recorded,
            RecordedRequest::Range { ino: Ino(5), op: RangeOp::Read { offset: 3, size: 100 }, .. }
        ));
        assert_eq!((lines[1].observed.error, lines[2].observed.error), (None, Some(Errno::EIO)));
        assert!(lines[0].at <= lines[1].at);
    }
}
