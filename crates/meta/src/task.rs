//! Operations that have been started and not answered, and what they are given when they run.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Caller, ClientId, Errno, Ino, Request, RequestId, StreamStat, Time};

use crate::lease::{Key, Told};
use crate::progress::Progress;
use crate::rank::{Dealings, Errand};
use crate::session::Outcome;
use crate::step::{Load, Step, Stop, StreamCall, StreamDone, Wait};

/// What an operation may know besides the state: who asks, when, and what has been fetched for it so far.
pub(crate) struct Cx<'a> {
    pub now: Time,
    pub uptime_ms: u64,
    pub client: ClientId,
    pub id: RequestId,
    pub caller: &'a Caller,
    pub streams: &'a [(StreamCall, Result<StreamDone, Errno>)],
    pub page: Option<Page>,
    /// Its client has told its caller already that it is done.
    pub is_told: bool,
    /// Must the answer wait until everything so far is durable?
    pub durable: bool,
    /// Has the operation changed anything?
    pub changed: bool,
    /// What it has changed says whether it shares commits.
    pub coalescing: Option<bool>,
    /// What its reply tells, as far as it may be cached.
    pub told: Told,
    /// What it keeps others from caching until it is done.
    pub claims: &'a mut Vec<Key>,
    /// What it has asked of streams may not be so any more.
    pub streams_have_changed: bool,
    /// What is remembered from one step of the operation to the next.
    pub progress: &'a mut Progress,
    /// What it has with other ranks.
    pub dealings: &'a mut Option<Box<Dealings>>,
}

impl Cx<'_> {
    /// The result of a call on a stream, once it has been made for this operation.
    pub(crate) fn stream(&self, call: StreamCall) -> Step<StreamDone> {
        match self.streams.iter().find(|(made, _)| *made == call) {
            Some((_, result)) => Ok(result.clone()?),
            None => Err(Stop::Wait(Wait::Stream(call))),
        }
    }

    pub(crate) fn stream_stats(&self, inos: Vec<Ino>) -> Step<Vec<StreamStat>> {
        match self.stream(StreamCall::Stat(inos))? {
            StreamDone::Stats(stats) => Ok(stats),
            StreamDone::Done => Err(Errno::EIO.into()),
        }
    }

    /// As [`Self::stream_stats`]; `None` if that would have to wait for a data server that cannot be reached.
    pub(crate) fn glance(&self, inos: Vec<Ino>) -> Step<Option<Vec<StreamStat>>> {
        match self.stream(StreamCall::Glance(inos)) {
            Ok(StreamDone::Stats(stats)) => Ok(Some(stats)),
            Ok(StreamDone::Done) => Err(Errno::EIO.into()),
            Err(Stop::Fail(Errno::EAGAIN)) => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Whether an earlier run of this operation has cut or extended a stream.
    pub(crate) fn has_truncated(&self) -> bool {
        self.streams
            .iter()
            .any(|(call, result)| matches!(call, StreamCall::Truncate { .. }) && result.is_ok())
    }

    /// The file whose stream this operation has emptied.
    pub(crate) fn emptied(&self) -> Option<Ino> {
        self.streams.iter().find_map(|(call, result)| match call {
            StreamCall::Truncate { ino, size: 0, .. } if result.is_ok() => Some(*ino),
            _ => None,
        })
    }

    /// Files whose streams this operation has had measured last, with what was counted for them then, and their sizes.
    pub(crate) fn measured(&self) -> Option<Vec<(Ino, u64, u64)>> {
        self.streams.iter().rev().find_map(|made| match made {
            (StreamCall::Measure(files), Ok(StreamDone::Stats(stats))) => {
                let sizes = files.iter().zip(stats).map(|((ino, counted), stat)| (*ino, *counted, stat.size));
                Some(sizes.collect())
            }
            _ => None,
        })
    }
}

/// In nanoseconds. Clocks that are kept in step differ by much less, so that the rest is for what a request has to wait for; and nobody can
/// date a change back, or ahead, by more than a slow request might have.
const MAX_SKEW: u64 = 10_000_000_000;

/// When what a request changes is changed: as its client has told its caller already, or else now.
pub(crate) fn time_of(request: &Request, now: Time) -> Time {
    request.time().map_or(now, |told| told_time(told, now))
}

/// When something was done, as a client says.
pub(crate) fn told_time(told: Time, now: Time) -> Time {
    let nanos = |time: Time| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let told = Time::new(told.secs, told.nanos);
    if nanos(told).abs_diff(nanos(now)) <= MAX_SKEW.into() { told } else { now }
}

/// What a load has just covered of a directory: all names with hashes from `from` to `to`, exclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub dir: Ino,
    pub from: u64,
    pub to: u64,
    /// How many dentries had left memory by then: if more have, some of these may have.
    pub dropped: u64,
}

/// An operation that has been started and not answered.
#[derive(Debug)]
pub(crate) struct Task {
    pub from: ClientId,
    pub id: RequestId,
    pub caller: Caller,
    pub request: Request,
    pub streams: Vec<(StreamCall, Result<StreamDone, Errno>)>,
    /// [`Meta::streams_changed`] when it first asked something of a stream.
    ///
    /// [`Meta::streams_changed`]: crate::Meta
    pub streams_since: u64,
    pub claims: Vec<Key>,
    pub page: Option<Page>,
    /// The last load, which must not be asked for again.
    pub loaded: Option<Load>,
    /// It has changed something in an earlier step, ...
    pub changed: bool,
    /// ... whose policy says whether it shares commits.
    pub coalescing: Option<bool>,
    pub progress: Progress,
    /// It was done by an earlier incarnation: what is to be told again.
    pub again: Option<Box<Outcome>>,
    pub dealings: Option<Box<Dealings>>,
    /// It is something that another rank wants, and not the request.
    pub errand: Option<Box<Errand>>,
}

impl Task {
    pub(crate) fn new(from: ClientId, id: RequestId, caller: Caller, request: Request) -> Self {
        let (streams, streams_since, claims) = (Vec::new(), 0, Vec::new());
        let (page, loaded, changed, progress) = (None, None, false, Progress::None);
        Self {
            from,
            id,
            caller,
            request,
            streams,
            streams_since,
            claims,
            page,
            loaded,
            changed,
            coalescing: None,
            progress,
            again: None,
            dealings: None,
            errand: None,
        }
    }
}
