//! Tasks: operations in progress, and the context that each run of one receives.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Caller, ClientId, Errno, Ino, Request, RequestId, StreamStat, Time};

use crate::lease::{LeaseKey, ReadSet};
use crate::progress::Progress;
use crate::rank::{Coordinator, PeerRequest};
use crate::session::CompletedOutcome;
use crate::step::{Load, Step, Stop, StreamCall, StreamDone, Wait};

/// The context of an operation's run: the caller, the time, and what has been fetched for it so
/// far.
pub(crate) struct Cx<'a> {
    pub now: Time,
    pub uptime_ms: u64,
    pub client: ClientId,
    pub id: RequestId,
    pub caller: &'a Caller,
    pub streams: &'a [(StreamCall, Result<StreamDone, Errno>)],
    pub page: Option<Page>,
    /// The latest load: what memory lacks of it does not exist.
    pub loaded: Option<&'a Load>,
    /// The client has already acknowledged the request to its caller (write-back).
    pub is_acknowledged: bool,
    /// The reply must wait until everything so far is durable.
    pub durable: bool,
    /// The last event of the operation, if it has changed something.
    pub changed: Option<u64>,
    /// True if its changes share commits, by the policy of the changed inodes.
    pub coalescing: Option<bool>,
    /// The state that the reply exposes, as far as it may be cached.
    pub read_set: ReadSet,
    /// Its grant barriers.
    pub barriers: &'a mut Vec<LeaseKey>,
    /// Its stream queries may be outdated.
    pub streams_have_changed: bool,
    /// State between the steps of the operation.
    pub progress: &'a mut Progress,
    /// Its requests to other ranks.
    pub coordinator: &'a mut Option<Box<Coordinator>>,
}

impl Cx<'_> {
    /// The result of a stream call, once it has been made for this operation.
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

    /// As [`Self::stream_stats`], but does not wait for an unreachable data server: returns `None`
    /// instead.
    pub(crate) fn try_stat(&self, inos: Vec<Ino>) -> Step<Option<Vec<StreamStat>>> {
        match self.stream(StreamCall::TryStat(inos)) {
            Ok(StreamDone::Stats(stats)) => Ok(Some(stats)),
            Ok(StreamDone::Done) => Err(Errno::EIO.into()),
            Err(Stop::Fail(Errno::EAGAIN)) => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// The file that an earlier run of this operation has truncated or extended.
    pub(crate) fn truncated(&self) -> Option<Ino> {
        if let Progress::Truncated(ino) = &*self.progress {
            return Some(*ino);
        }
        self.streams.iter().find_map(|(call, result)| match call {
            StreamCall::Truncate { ino, .. } if result.is_ok() => Some(*ino),
            _ => None,
        })
    }

    /// The files measured last for this operation, each with the size counted then and the measured
    /// size.
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

/// Maximum deviation of a client's time, in nanoseconds. Synchronised clocks differ by much less;
/// the rest allows for delayed requests. It bounds how far a client can date a change back or
/// ahead.
const MAX_SKEW: u64 = 10_000_000_000;

/// The time that a client reports for something it has done, or `now` if it is implausible.
pub(crate) fn reported_time(reported: Time, now: Time) -> Time {
    let nanos = |time: Time| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let reported = Time::new(reported.secs, reported.nanos);
    if nanos(reported).abs_diff(nanos(now)) <= MAX_SKEW.into() { reported } else { now }
}

/// The part of a directory that a load has covered: all names with hashes from `from` to `to`,
/// exclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub dir: Ino,
    pub from: u64,
    pub to: u64,
    /// Number of dentries evicted by then: if it has grown, some of these may be gone.
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
    /// [`Meta::streams_changed`] at its first stream query.
    ///
    /// [`Meta::streams_changed`]: crate::Meta
    pub streams_since: u64,
    pub barriers: Vec<LeaseKey>,
    pub page: Option<Page>,
    /// The last load; a second one for the same record would loop.
    pub loaded: Option<Load>,
    /// The last event of its earlier runs.
    pub changed: Option<u64>,
    /// Inodes that its earlier runs have changed.
    pub touched: Vec<Ino>,
    /// True if its changes share commits, by the policy of the changed inodes.
    pub coalescing: Option<bool>,
    pub progress: Progress,
    /// It was completed before a restart: the outcome to report again.
    pub again: Option<Box<CompletedOutcome>>,
    pub coordinator: Option<Box<Coordinator>>,
    /// A request of another rank, which replaces `request`.
    pub peer_request: Option<Box<PeerRequest>>,
}

impl Task {
    pub(crate) fn new(from: ClientId, id: RequestId, caller: Caller, request: Request) -> Self {
        Self {
            from,
            id,
            caller,
            request,
            streams: Vec::new(),
            streams_since: 0,
            barriers: Vec::new(),
            page: None,
            loaded: None,
            changed: None,
            touched: Vec::new(),
            coalescing: None,
            progress: Progress::None,
            again: None,
            coordinator: None,
            peer_request: None,
        }
    }
}
