//! Records the spans of one place while tracing is on.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use std::hash::Hasher;

use espalier_proto::ClientId;
pub use espalier_timeline::{Id, Layer, NodeId, Traced};
use espalier_timeline::{Log, Span};
use siphasher::sip::SipHasher24;

/// See the module's documentation. When tracing is off, it costs the test of a flag.
#[derive(Debug)]
pub struct Tracer {
    place: NodeId,
    is_on: AtomicBool,
    /// Origin of its times.
    origin: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    log: Log,
    until: Instant,
}

/// Maximum number of finished spans, and of those in progress: about 3 MiB.
const SPANS: usize = 16_384;

/// The name of a client in spans: a hash that identifies it without disclosing its number.
pub fn place_of(client: ClientId) -> NodeId {
    let mut hasher = SipHasher24::new();
    hasher.write_u64(client.0);
    NodeId::Client(hasher.finish() as u32)
}

impl Tracer {
    pub fn new(place: NodeId) -> Arc<Self> {
        let origin = Instant::now();
        let inner = Mutex::new(Inner { log: Log::new(SPANS), until: origin });
        Arc::new(Self { place, is_on: AtomicBool::new(false), origin, inner })
    }

    pub fn place(&self) -> NodeId {
        self.place
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// An operation or a wait begins here. `causes` is called only while tracing is on.
    pub fn begin(&self, id: Id, kind: &'static str, causes: impl FnOnce() -> Vec<Id>) {
        if self.is_on() {
            let causes = causes();
            self.write(|log, now| log.begin(self.place, id, kind, causes, now));
        }
    }

    /// An operation or a wait ends.
    pub fn end(&self, id: Id) {
        if self.is_on() {
            self.write(|log, now| log.end(self.place, id, now));
        }
    }

    /// The identifier of a request from this place to another.
    pub fn request_id(&self, to: NodeId, number: u64) -> Id {
        Id { from: self.place, to, number }
    }

    /// The identifier of a request to this place.
    pub fn served(&self, from: NodeId, number: u64) -> Id {
        Id { from, to: self.place, number }
    }

    /// The operations that wait for each of several things; empty if tracing is off.
    pub fn causes<T>(&self, things: &[T], of: impl Fn(&T) -> Vec<Id>) -> Vec<Vec<Id>> {
        if self.is_on() { things.iter().map(of).collect() } else { Vec::new() }
    }

    pub fn steps<'a>(&'a self, causes: &'a [Id]) -> Steps<'a> {
        Steps { tracer: Some(self), causes }
    }

    /// The spans with numbers from `since` on, in wall-clock time. Keeps tracing on for `lasting`.
    pub fn report(&self, since: Option<u64>, lasting: Duration) -> Traced {
        let mut inner = self.lock();
        inner.until = inner.until.max(Instant::now() + lasting);
        self.is_on.store(true, Relaxed);
        let mut traced = inner.log.since(since);
        drop(inner);
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = nanos(today).saturating_sub(nanos(self.origin.elapsed()));
        for span in &mut traced.spans {
            (span.begin, span.end) = (began + span.begin, began + span.end);
        }
        traced
    }

    fn write(&self, action: impl FnOnce(&mut Log, u64)) {
        let (mut inner, now) = (self.lock(), Instant::now());
        if now < inner.until {
            action(&mut inner.log, nanos(now.saturating_duration_since(self.origin)));
        } else {
            self.is_on.store(false, Relaxed);
            inner.log.forget_open();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The state is consistent between any two statements.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the steps of I/O for operations.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    tracer: Option<&'a Tracer>,
    causes: &'a [Id],
}

impl Steps<'_> {
    /// Records nothing.
    pub const NONE: Self = Self { tracer: None, causes: &[] };

    /// Records and executes one step.
    pub fn step<R>(&self, layer: Layer, kind: &'static str, action: impl FnOnce() -> R) -> R {
        let Some(tracer) = self.tracer.filter(|tracer| tracer.is_on()) else { return action() };
        let began = Instant::now();
        let result = action();
        let begin = nanos(began.saturating_duration_since(tracer.origin));
        tracer.write(|log, end| {
            let (place, kind) = (tracer.place, kind.into());
            log.add(Span { place, layer, kind, id: None, causes: self.causes.into(), begin, end });
        });
        result
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_while_tracing() {
        let tracer = Tracer::new(NodeId::Rank(0));
        let id = |number| tracer.served(place_of(ClientId(5)), number);
        let run = |number| {
            tracer.begin(id(number), "create", Vec::new);
            tracer.steps(&[id(number)]).step(Layer::Disk, "journal sync", || ());
            tracer.end(id(number));
        };
        run(1);
        let first = tracer.report(None, Duration::from_secs(600));
        assert_eq!((first.next, first.spans.len()), (0, 0));
        run(2);
        let reported = tracer.report(Some(first.next), Duration::ZERO);
        let kinds: Vec<_> = reported.spans.iter().map(|span| span.kind.as_ref()).collect();
        assert_eq!(kinds, ["journal sync", "create"]);
        let (sync, create) = (&reported.spans[0], &reported.spans[1]);
        assert!(create.begin <= sync.begin && sync.end <= create.end);
        assert_eq!((sync.causes.as_slice(), create.id), (&[id(2)][..], Some(id(2))));
        assert_eq!(tracer.report(Some(reported.next), Duration::ZERO).spans, []);
    }

    #[test]
    fn spans_stop_when_tracing_ends() {
        let tracer = Tracer::new(NodeId::Rank(0));
        tracer.report(None, Duration::ZERO);
        tracer.begin(tracer.served(NodeId::Client(1), 1), "create", Vec::new);
        assert!(!tracer.is_on());
        tracer.end(tracer.served(NodeId::Client(1), 1));
        assert_eq!(tracer.report(Some(0), Duration::ZERO).spans, []);
    }
}
