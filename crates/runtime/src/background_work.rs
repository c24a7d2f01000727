//! I/O that the state machines request: executed immediately by the calling thread, or in the
//! background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use espalier_meta::{Io, IoDone, IoId};
use espalier_proto::Errno;

use crate::disk::{Disk, WRITE_DELAY};
use crate::resources::ResourceMeter;
use crate::tracer::{Id, Tracer};
use crate::watch::Watch;

/// Passes slow I/O that no call waits for to background threads.
pub struct BackgroundWork {
    pub disk: Arc<Disk>,
    pub watch: Watch,
    pub tracer: Arc<Tracer>,
    pub resources: ResourceMeter,
    /// Pieces of a checkpoint, one at a time.
    checkpoint: SyncSender<BackgroundJob>,
    /// Journal frames, one at a time, and the delays before they are written.
    journal: SyncSender<BackgroundJob>,
    /// Pauses between the steps of freeing the trash.
    sweep: SyncSender<BackgroundJob>,
    /// Maintenance of the tables after a checkpoint.
    upkeep: SyncSender<BackgroundJob>,
    stopping: AtomicBool,
}

enum BackgroundJob {
    /// I/O with the operations that wait for it, while tracing is on.
    Io(IoId, Io, Vec<Id>),
    Upkeep,
    Stop,
}

/// The receiving ends for the background threads ([`BackgroundWork::run`]).
pub struct Background {
    checkpoints: Receiver<BackgroundJob>,
    frames: Receiver<BackgroundJob>,
    sweeps: Receiver<BackgroundJob>,
    upkeeps: Receiver<BackgroundJob>,
}

impl BackgroundWork {
    pub fn new(disk: Arc<Disk>, watch: Watch, tracer: Arc<Tracer>) -> (Self, Background) {
        // Each queue has at most one entry and a request to stop, so sending never blocks.
        let (checkpoint, checkpoints) = sync_channel(2);
        let (journal, frames) = sync_channel(2);
        let (sweep, sweeps) = sync_channel(2);
        let (upkeep, upkeeps) = sync_channel(2);
        let (resources, stopping) = (ResourceMeter::new(), AtomicBool::new(false));
        (
            Self { disk, watch, tracer, resources, checkpoint, journal, sweep, upkeep, stopping },
            Background { checkpoints, frames, sweeps, upkeeps },
        )
    }

    /// Executes an I/O, or passes it to the background. `causes`: the operations that wait for it,
    /// while tracing is on.
    pub fn execute(&self, id: IoId, io: Io, causes: Vec<Id>) -> Option<(IoId, Result<IoDone, Errno>)> {
        let background_work = match io {
            Io::Stage { .. } | Io::Publish { .. } => &self.checkpoint,
            Io::Journal { sync: false, .. } | Io::WriteDelay => &self.journal,
            Io::Rest => &self.sweep,
            _ => return Some((id, self.timed(io, &causes))),
        };
        // The send fails only at shutdown, after the end of the background thread.
        let _ = background_work.send(BackgroundJob::Io(id, io, causes));
        None
    }

    /// Syncs the journal in the background, although a call waits for it.
    pub fn put_off(&self, id: IoId, io: Io, causes: Vec<Id>) {
        let _ = self.journal.send(BackgroundJob::Io(id, io, causes));
    }

    /// Executes an I/O immediately.
    pub fn timed(&self, io: Io, causes: &[Id]) -> Result<IoDone, Errno> {
        let (kind, began) = (io.kind(), Instant::now());
        let result = self.disk.execute(io, self.tracer.steps(causes));
        if let Some(kind) = kind {
            self.watch.record_io(kind, began.elapsed());
        }
        result
    }

    /// Runs background work until [`Self::stop`]. `done` gets each result.
    pub fn run(
        &self,
        Background { checkpoints, frames, sweeps, upkeeps }: Background,
        done: impl Fn(IoId, Result<IoDone, Errno>) + Sync,
    ) {
        let done = &done;
        std::thread::scope(|scope| {
            scope.spawn(move || self.run_frames(&frames, done));
            scope.spawn(move || {
                while let Ok(BackgroundJob::Io(id, io, causes)) = sweeps.recv() {
                    done(id, self.timed(io, &causes));
                }
            });
            scope.spawn(move || {
                while let Ok(BackgroundJob::Upkeep) = upkeeps.recv() {
                    let mut more = true;
                    while more && !self.stopping.load(Ordering::Relaxed) {
                        more = self.disk.maintain();
                    }
                }
            });
            self.run_checkpoints(&checkpoints, done);
        });
    }

    /// Writes frames; a pending delay does not block them.
    fn run_frames(
        &self,
        background_work: &Receiver<BackgroundJob>,
        done: &impl Fn(IoId, Result<IoDone, Errno>),
    ) {
        let mut delay = None;
        loop {
            let job = match delay {
                Some((_, end)) => {
                    background_work.recv_timeout(Instant::saturating_duration_since(&end, Instant::now()))
                }
                None => background_work.recv().map_err(|RecvError| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(BackgroundJob::Io(id, Io::WriteDelay, _)) => {
                    delay = Some((id, Instant::now() + WRITE_DELAY))
                }
                Ok(BackgroundJob::Io(id, io, causes)) => done(id, self.timed(io, &causes)),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some((id, _)) = delay.take() {
                        done(id, Ok(IoDone::Paused));
                    }
                }
                Ok(BackgroundJob::Upkeep | BackgroundJob::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    return;
                }
            }
        }
    }

    fn run_checkpoints(
        &self,
        background_work: &Receiver<BackgroundJob>,
        done: &impl Fn(IoId, Result<IoDone, Errno>),
    ) {
        let (mut checkpoint, mut records) = (None, 0);
        while let Ok(BackgroundJob::Io(id, io, causes)) = background_work.recv() {
            let published = matches!(io, Io::Publish { .. });
            let began = *checkpoint.get_or_insert_with(Instant::now);
            if let Io::Stage { writes } = &io {
                records += writes.len() as u64;
            }
            let result = self.timed(io, &causes);
            if published {
                self.watch.record_checkpoint(began.elapsed(), records, result.is_ok());
                (checkpoint, records) = (None, 0);
                // If the queue is full, maintenance is requested already.
                let _ = self.upkeep.try_send(BackgroundJob::Upkeep);
            }
            done(id, result);
        }
    }

    /// Stops after the work in progress.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for background_work in [&self.checkpoint, &self.journal, &self.sweep, &self.upkeep] {
            let _ = background_work.send(BackgroundJob::Stop);
        }
    }
}
