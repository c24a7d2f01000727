//! What clients ask to be done with streams of a metadata server's own.
//!
//! What the page cache has is read at once, by the thread that has received the request; and short writes to one file are done there. What may take as
//! long as the disk likes is left to others, so that it holds up neither what else the client asks for, nor what is done with other files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use espalier_client::Answer;
use espalier_meta::StreamRequest;
use espalier_proto::{ClientId, Errno, Ino, Reply, RequestId, StreamIo, pieces_of};
use tokio::task::block_in_place;

use super::machine::{Inner, Server};
use crate::disk::Reading;
use crate::tracer::Layer;
use crate::watch::{Kind, Span, Stage, Turn};

/// What is done together is answered together, up to so many bytes: it is less to do it than to wake who has asked for it.
const TOGETHER_BYTES: usize = 64 << 10;
/// As much as a request counts at least.
const LEAST_BYTES: usize = 64 << 10;

/// How many bytes are being written or read for a connection.
#[derive(Debug, Default)]
pub struct UnderWay(AtomicUsize);

impl UnderWay {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Something to be done with a stream.
pub(super) struct Job {
    pub(super) stream: StreamRequest,
    pub(super) span: Span,
    /// What has been read already.
    reading: Reading,
    _counted: Counted,
}

/// Counts as under way as long as it is there.
struct Counted {
    under_way: Arc<UnderWay>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.under_way.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Something that has been done with a stream.
pub(super) struct Streamed {
    pub(super) of: (ClientId, RequestId),
    pub(super) span: Span,
    pub(super) result: Result<Reply, Errno>,
}

impl Inner {
    pub(super) fn job(&self, stream: StreamRequest, turn: Turn) -> Job {
        let (kind, ino) = Kind::of_stream(&stream.io);
        let asked =
            if let StreamIo::Read { size, .. } = stream.io { size as usize } else { stream.data.len() };
        let (bytes, peer) = (asked.max(LEAST_BYTES), self.peers.get(&stream.of.0));
        let under_way = peer.map(|peer| Arc::clone(&peer.under_way)).unwrap_or_default();
        under_way.0.fetch_add(bytes, Ordering::Relaxed);
        let (span, reading) = (Span::start(kind, 0, ino, turn), Reading::default());
        Job { stream, span, reading, _counted: Counted { under_way, bytes } }
    }
}

impl Job {
    /// The file that is written to. That is done in the order in which it has come.
    fn written(&self) -> Option<Ino> {
        match self.stream.io {
            StreamIo::Write { ino, .. } | StreamIo::WriteList { ino, .. } => Some(ino),
            _ => None,
        }
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
    /// Has all of it done; some when this returns.
    pub(super) fn do_streams(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        // One for each thread: what is written to a file, or one of the others.
        let mut parts: Vec<Vec<Job>> = Vec::new();
        self.tell_together(jobs.into_iter().filter_map(|mut job| {
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
        let bytes = |part: &[Job]| part.iter().map(|job| job.stream.data.len()).sum::<usize>();
        let own = parts.pop_if(|part| part[0].written().is_some() && bytes(part) <= TOGETHER_BYTES);
        for mut part in parts {
            let Some(server) = self.itself.upgrade() else { return };
            part.iter_mut().for_each(|job| job.span.turn_to(Stage::Queue, Instant::now()));
            self.runtime.spawn_blocking(move || server.do_jobs(part));
        }
        if let Some(part) = own {
            block_in_place(|| self.do_jobs(part));
        }
    }

    fn do_jobs(&self, jobs: Vec<Job>) {
        self.tell_together(jobs.into_iter().map(|job| self.do_job(job)));
    }

    /// Whether it is a read of which the page cache has had all.
    fn read_at_once(&self, job: &mut Job) -> bool {
        let StreamIo::Read { ino, offset, size } = job.stream.io else { return false };
        job.span.turn_to(Stage::Disk, Instant::now());
        self.errands.disk.read_cached(ino, offset, size, &mut job.reading)
    }

    fn do_job(&self, job: Job) -> Streamed {
        let Job { stream: StreamRequest { of, io, data, .. }, mut span, reading, .. } = job;
        let disk = &self.errands.disk;
        span.turn_to(Stage::Disk, Instant::now());
        let inner = if self.errands.tracer.is_on() { self.lock().ok() } else { None };
        let cause = inner.and_then(|inner| self.id_of(&inner, of));
        let steps = self.errands.tracer.steps(cause.as_slice());
        let result = steps.step(Layer::Store, span.kind.name(), || match io {
            StreamIo::Read { ino, offset, size } => {
                disk.read_rest(ino, offset, size, reading).map(|read| Reply::Bytes(read.into()))
            }
            io => disk.stream_io(io, &data).and_then(|answer| match answer {
                Answer::Written(written) => {
                    match io {
                        StreamIo::Write { ino, offset, .. } => {
                            disk.follow(ino, offset, written.into());
                        }
                        StreamIo::WriteList { ino, .. } => {
                            for (offset, piece) in pieces_of(&data)? {
                                disk.follow(ino, offset, piece.len() as u64);
                            }
                        }
                        _ => {}
                    }
                    Ok(Reply::Written(written))
                }
                Answer::Offset(offset) => Ok(Reply::Offset(offset)),
                Answer::Done => Ok(Reply::Done),
                _ => Err(Errno::EIO),
            }),
        });
        span.turn_to(Stage::Work, Instant::now());
        Streamed { of, span, result }
    }

    fn tell_together(&self, streams: impl Iterator<Item = Streamed>) {
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

    /// Takes note of what has been done.
    pub(super) fn streamed(&self, done: impl IntoIterator<Item = Streamed>) {
        let Ok((mut inner, turn)) = self.turn() else { return };
        for Streamed { of, span, result } in done {
            self.errands.watch.record(&span, result.is_err());
            inner.front.end_stream(of, result);
        }
        self.settle(inner, turn);
    }
}
