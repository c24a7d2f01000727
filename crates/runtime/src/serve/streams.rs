//! Clients' I/O on a metadata server's own streams.
//!
//! The thread that has received a request executes reads from the page cache and short writes. I/O
//! that may wait for the disk goes to other threads, so that it delays neither the client's other
//! requests nor I/O on other files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use espalier_meta::StreamRequest;
use espalier_proto::{ClientId, Errno, Ino, RangeOp, Reply, RequestId, StreamIo};
use tokio::task::block_in_place;

use super::machine::{Inner, Server};
use crate::disk::Reading;
use crate::tracer::Layer;
use crate::watch::{CriticalSection, Span, Stage};

/// Jobs up to this total size, in bytes, are executed and answered together: the I/O is cheaper
/// than waking the client.
const TOGETHER_BYTES: usize = 64 << 10;
/// Minimum size in bytes that a request counts.
const LEAST_BYTES: usize = 64 << 10;

/// Bytes of reads and writes in progress for a connection.
#[derive(Debug, Default)]
pub struct UnderWay(AtomicUsize);

impl UnderWay {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Stream I/O to execute.
pub(super) struct StreamJob {
    pub(super) stream: StreamRequest,
    pub(super) span: Span,
    /// The part that was read from the page cache.
    reading: Reading,
    _counted: Counted,
}

/// Counts bytes as in progress until it is dropped.
struct Counted {
    under_way: Arc<UnderWay>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.under_way.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Finished stream I/O.
pub(super) struct Streamed {
    pub(super) of: (ClientId, RequestId),
    pub(super) span: Span,
    pub(super) result: Result<Reply, Errno>,
}

impl Inner {
    pub(super) fn job(&self, stream: StreamRequest, section: CriticalSection) -> StreamJob {
        let requested = stream.io.op.bytes(&stream.data);
        let (bytes, peer) = (requested.max(LEAST_BYTES), self.peers.get(&stream.of.0));
        let under_way = peer.map(|peer| Arc::clone(&peer.under_way)).unwrap_or_default();
        under_way.0.fetch_add(bytes, Ordering::Relaxed);
        let (span, reading) =
            (Span::start(stream.io.op.kind(), 0, stream.io.ino, section), Reading::default());
        StreamJob { stream, span, reading, _counted: Counted { under_way, bytes } }
    }
}

impl StreamJob {
    /// The file, if the job writes; writes to a file are executed in order of arrival.
    fn written(&self) -> Option<Ino> {
        self.stream.io.op.is_write().then_some(self.stream.io.ino)
    }
}

impl Streamed {
    fn bytes(&self) -> usize {
        match &self.result {
            Ok(Reply::Bytes(read)) => read.len(),
            Ok(Reply::Written(written)) => *written as usize,
            _ => 0,
        }
    }
}

impl Server {
    /// Executes the jobs, some of them before it returns.
    pub(super) fn do_streams(&self, jobs: Vec<StreamJob>) {
        if jobs.is_empty() {
            return;
        }
        // One part per thread: the writes to a file, or one other job.
        let mut parts: Vec<Vec<StreamJob>> = Vec::new();
        self.answer_together(jobs.into_iter().filter_map(|mut job| {
            if job.stream.layout.is_some() {
                self.stripe(job);
                return None;
            }
            if self.read_at_once(&mut job) {
                return Some(self.do_job(job));
            }
            let file = job.written();
            match parts.iter_mut().find(|part| file.is_some() && part[0].written() == file) {
                Some(part) => part.push(job),
                None => parts.push(vec![job]),
            }
            None
        }));
        let bytes = |part: &[StreamJob]| part.iter().map(|job| job.stream.data.len()).sum::<usize>();
        let own = parts.pop_if(|part| part[0].written().is_some() && bytes(part) <= TOGETHER_BYTES);
        for mut part in parts {
            let Some(server) = self.own_handle.upgrade() else { return };
            part.iter_mut().for_each(|job| job.span.enter_stage(Stage::Queue, Instant::now()));
            self.runtime.spawn_blocking(move || server.do_jobs(part));
        }
        if let Some(part) = own {
            block_in_place(|| self.do_jobs(part));
        }
    }

    fn do_jobs(&self, jobs: Vec<StreamJob>) {
        self.answer_together(jobs.into_iter().map(|job| self.do_job(job)));
    }

    /// Reads from the page cache; returns true if that is everything.
    fn read_at_once(&self, job: &mut StreamJob) -> bool {
        let StreamIo { ino, op: RangeOp::Read { offset, size }, .. } = job.stream.io else { return false };
        job.span.enter_stage(Stage::Disk, Instant::now());
        self.background_work.disk.read_cached(ino, offset, size, &mut job.reading)
    }

    fn do_job(&self, job: StreamJob) -> Streamed {
        let StreamJob { stream: StreamRequest { of, io, data, .. }, mut span, reading, .. } = job;
        let disk = &self.background_work.disk;
        span.enter_stage(Stage::Disk, Instant::now());
        let inner = if self.background_work.tracer.is_on() { self.lock().ok() } else { None };
        let cause = inner.and_then(|inner| self.id_of(&inner, of));
        let steps = self.background_work.tracer.steps(cause.as_slice());
        let result = steps.step(Layer::Store, span.kind.name(), || {
            if let RangeOp::Read { offset, size } = io.op {
                return disk.read_rest(io.ino, offset, size, reading).map(|read| Reply::Bytes(read.into()));
            }
            let reply = disk.stream_io(io, &data)?;
            for (offset, piece) in io.op.pieces(&data)? {
                disk.follow(io.ino, offset, piece.len() as u64);
            }
            Ok(reply)
        });
        span.enter_stage(Stage::Work, Instant::now());
        Streamed { of, span, result }
    }

    fn answer_together(&self, streams: impl Iterator<Item = Streamed>) {
        let (mut done, mut bytes) = (Vec::new(), 0);
        for streamed in streams {
            bytes += streamed.bytes();
            done.push(streamed);
            if bytes >= TOGETHER_BYTES {
                self.streamed(std::mem::take(&mut done));
                bytes = 0;
            }
        }
        if !done.is_empty() {
            self.streamed(done);
        }
    }

    /// Reports finished jobs to the machine.
    pub(super) fn streamed(&self, done: impl IntoIterator<Item = Streamed>) {
        let Ok((mut inner, section)) = self.enter() else { return };
        for Streamed { of, span, result } in done {
            self.background_work.watch.record(&span, result.is_err());
            inner.session_layer.end_stream(of, result);
        }
        self.carry_out(inner, section);
    }
}
