//! Inputs and outputs of the machine.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{
    Accesses, Caller, ClientId, Errno, Ino, Lease, Name, Position, Rank, Recall, Reply, Request, RequestId,
    RevocationId, ServerId, StreamIo, TableWrite, Time, Touched, named,
};

use crate::balancing::{BalancerDecision, DecisionRequest};
use crate::checkpoint::CheckpointWhen;
use crate::metrics::Milli;
use crate::rank::PeerMessage;
use crate::step::{Load, StreamCall, StreamDone};
use crate::striping::Layouts;

/// The time and load at an input.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub time: Time,
    /// Milliseconds of a monotonic clock.
    pub uptime_ms: u64,
    /// Requests that have arrived and have not been passed to the machine: the scheduling queue of
    /// carns III.C. A driver that passes several inputs before it does any I/O counts those that
    /// follow; their changes then share a frame.
    pub queued: usize,
}

/// Identifies an I/O that the machine has requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoId(pub u64);

#[derive(Debug)]
pub enum Input {
    Request {
        from: ClientId,
        id: RequestId,
        /// The client has the answers to all its requests with smaller numbers.
        below: RequestId,
        /// As in [`FromClient::Request`](espalier_proto::FromClient::Request).
        follows: Vec<RequestId>,
        caller: Caller,
        request: Request,
    },
    /// A client starts or resumes its session. Answered in [`Outbox::connected`] or
    /// [`Outbox::refused`].
    Connect {
        client: ClientId,
        /// As in [`Service::Metadata`](espalier_proto::Service::Metadata).
        leases: bool,
        /// The client believes that it has a session. If that has ended, it is refused with
        /// `ESTALE`.
        resumes: bool,
    },
    /// The accesses of a client with a session that update access times; all of them until this
    /// input.
    Accesses {
        client: ClientId,
        accesses: Accesses,
    },
    /// Restricts a client to this directory until its session ends. Answered in
    /// [`Outbox::entered`].
    Enter {
        client: ClientId,
        path: Box<[Name]>,
    },
    /// A client ends its session.
    Leave {
        client: ClientId,
    },
    /// A client has shown that it is alive.
    Heard {
        client: ClientId,
    },
    /// A client acknowledges the revocation of this number.
    Revoked {
        client: ClientId,
        number: RevocationId,
    },
    /// The client cannot drop the revoked name: one of its own requests has the directory locked.
    Blocked {
        client: ClientId,
        number: RevocationId,
    },
    /// The caller received a signal: the request fails with `EINTR` if it waits for something that
    /// may take long.
    Cancel {
        from: ClientId,
        id: RequestId,
    },
    Done {
        id: IoId,
        result: Result<IoDone, Errno>,
    },
    /// A data server has been reached for the first time, and reports its provisional datafiles.
    /// Precedes all other requests to it.
    NewDatafiles {
        server: ServerId,
        inos: Vec<Ino>,
    },
    /// A client requests an operation on a stream. [`Outbox::placed`] returns whether it is
    /// allowed; then [`Meta::place_of`](crate::Meta::place_of) returns where the bytes are.
    Place {
        of: (ClientId, RequestId),
        io: StreamIo,
    },
    /// New watermarks, as in [`Config::watermarks`](crate::Config).
    Watermarks {
        low: usize,
        high: usize,
    },
    /// The number of ranks of the cluster, which only grows.
    Ranks {
        ranks: u16,
    },
    /// Free space of the store in bytes.
    Space {
        free: u64,
    },
    /// Use of the machine's processors and memory by the server's process, in percent of all.
    Resources {
        cpu: Milli,
        mem: Milli,
    },
    /// A message from another rank.
    Peer {
        from: Rank,
        message: PeerMessage,
    },
    /// A connection to another rank has begun. Messages sent over an earlier one may be lost.
    PeerConnected {
        rank: Rank,
    },
    /// Another rank is permanently gone: what it has prepared here is aborted, and its pending
    /// parts are dropped.
    PeerLost {
        rank: Rank,
    },
    /// Comes once a second.
    Tick,
    /// Write what has changed to the tables, with the next checkpoint.
    Checkpoint(CheckpointWhen),
    /// Write everything out before a stop; [`Meta::is_idle`](crate::Meta::is_idle) returns true
    /// when that is done.
    Drain,
}

/// I/O outside the machine. Each ends with an [`Input::Done`].
#[derive(Debug, PartialEq, Eq)]
pub enum Io {
    Load(Load),
    /// The supplementary groups of the process that made a request.
    Groups {
        of: (ClientId, RequestId),
        pid: u32,
    },
    /// The files with layouts are on data servers; [`StreamCall::requests`] returns the requests to
    /// these.
    Stream(StreamCall, Layouts),
    /// Announce to all data servers which sessions are live, as in
    /// [`DataRequest::Admit`](espalier_proto::DataRequest), and again first over each new
    /// connection. If the store has a data pool, fence the clients in `ending`, whose sessions end:
    /// no operation of theirs may take effect in the pool later. Done when all data servers have
    /// answered and these clients are fenced.
    Admit {
        below: u64,
        live: Vec<u64>,
        ending: Vec<ClientId>,
    },
    /// Append a frame to the journal, and with `sync` make the whole journal durable. There is one
    /// at a time.
    Journal {
        frame: Vec<u8>,
        sync: bool,
    },
    /// Make durable what has been appended to the journal. Frames may be appended meanwhile.
    Sync,
    /// Add to the checkpoint. A failed step may have been done in part, and is requested again.
    Stage {
        writes: Arc<[TableWrite]>,
    },
    /// Make the checkpoint durable, then trim the journal.
    Publish {
        trim: Position,
    },
    /// Run the balancing policy, within limits of time. There is one at a time.
    Decide(Box<DecisionRequest>),
    /// Nothing: waiting inputs are processed first.
    Yield,
    /// Nothing for a millisecond or two: the pause in background work.
    Rest,
    /// Nothing for a few milliseconds: events that no operation waits for are collected before they
    /// are written to the journal's file. There is one at a time.
    WriteDelay,
}

named! {
    /// Kinds of I/O of the store, for metrics.
    #[derive(Clone, Copy, Debug)]
    pub enum IoKind {
        Load = "load",
        Groups = "groups",
        Stream = "stream",
        JournalAppend = "journal_append",
        JournalSync = "journal_sync",
        CheckpointPiece = "checkpoint_piece",
        CheckpointPublish = "checkpoint_publish",
    }
}

impl Io {
    /// `None` for I/O that does not use the local disk.
    pub fn kind(&self) -> Option<IoKind> {
        Some(match self {
            Self::Load(_) => IoKind::Load,
            Self::Groups { .. } => IoKind::Groups,
            Self::Stream(..) => IoKind::Stream,
            Self::Journal { sync: false, .. } => IoKind::JournalAppend,
            Self::Journal { sync: true, .. } | Self::Sync => IoKind::JournalSync,
            Self::Stage { .. } => IoKind::CheckpointPiece,
            Self::Publish { .. } => IoKind::CheckpointPublish,
            Self::Yield | Self::Rest | Self::WriteDelay | Self::Admit { .. } | Self::Decide(_) => {
                return None;
            }
        })
    }

    /// Name of the I/O in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Load(Load::Record { .. }) => "table read",
            Self::Load(Load::Dentries { .. }) => "table scan",
            Self::Groups { .. } => "read groups",
            Self::Stream(call, _) => call.name(),
            Self::Admit { .. } => "admit sessions",
            Self::Journal { sync: false, .. } => "journal append",
            Self::Journal { sync: true, .. } => "journal append and sync",
            Self::Sync => "journal sync",
            Self::Stage { .. } => "checkpoint write",
            Self::Publish { .. } => "checkpoint publish",
            Self::Decide(_) => "decide on moves",
            Self::Yield | Self::Rest => "pause",
            Self::WriteDelay => "write delay",
        }
    }
}

/// The result of an I/O.
#[derive(Debug)]
pub enum IoDone {
    Record(Option<Vec<u8>>),
    Dentries(Vec<(Vec<u8>, Vec<u8>)>),
    Groups(Arc<[u32]>),
    Stream(StreamDone),
    /// The end of the journal and its bytes in use. `frame`: the memory of the appended frame.
    Journaled {
        end: Position,
        used: u64,
        frame: Vec<u8>,
    },
    Synced,
    Admitted,
    Staged,
    Decided(Box<BalancerDecision>),
    Paused,
    Published {
        used: u64,
    },
}

/// Actions for the driver. Replies that must wait for the journal stay in the machine
/// (`journal.rs`): everything here may be done at once.
#[derive(Debug, Default)]
pub struct Outbox {
    pub replies: Vec<Answered>,
    pub io: Vec<(IoId, Io)>,
    /// Requests that have just started to wait, or to wait for something else. Their replies come
    /// later.
    pub waiting: Vec<(ClientId, RequestId, Waiting)>,
    /// Inodes that clients are asked to forget.
    pub recalls: Vec<Recall>,
    /// Sessions that have started or resumed.
    pub connected: Vec<ClientId>,
    /// Sessions that cannot start, with the reason.
    ///
    /// - `ENFILE`: too many sessions.
    /// - `EIO`: the journal cannot be written.
    /// - `EINVAL`: no client has the number 0.
    /// - `ESTALE`: the session has ended; the client drops its state and asks for a new one.
    pub refused: Vec<(ClientId, Errno)>,
    /// Results of [`Input::Enter`].
    pub entered: Vec<(ClientId, Result<(), Errno>)>,
    /// Sessions that have expired.
    pub expired: Vec<ClientId>,
    /// Granted locks, by client and number of the wait. Sent after `replies`.
    pub locked: Vec<(ClientId, u64)>,
    /// Sent after `replies`.
    pub revocations: Vec<Revocation>,
    /// Inodes that clients know and whose attributes have changed without their requests.
    pub changed: Vec<Ino>,
    /// Results of [`Input::Place`]: on success, [`Meta::place_of`](crate::Meta::place_of) knows the
    /// file's location.
    pub placed: Vec<((ClientId, RequestId), Result<(), Errno>)>,
    /// Messages to other ranks. The driver may drop those to unreachable ranks.
    pub peers: Vec<(Rank, PeerMessage)>,
    /// Warnings for the log: why something was refused.
    pub warnings: Vec<String>,
}

/// The event that resumes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The tables, the caller's groups, or a stream.
    Disk,
    /// A commit of the journal, or space in it.
    Journal,
    /// Other clients' leases.
    Clients,
    /// Other ranks.
    Peers,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answered {
    pub to: ClientId,
    pub id: RequestId,
    pub result: Result<Reply, Errno>,
    /// Milliseconds for which the client may cache the result. Ignored by a client that is the only
    /// one.
    pub lease_ms: u32,
    pub touched: Touched,
}

/// The revocation of a client's lease; the client answers with [`Input::Revoked`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    pub client: ClientId,
    pub number: RevocationId,
    pub lease: Lease,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        let Self {
            replies,
            io,
            waiting: _,
            recalls,
            connected,
            refused,
            entered,
            expired,
            locked,
            revocations,
            changed,
            placed,
            peers,
            warnings,
        } = self;
        replies.is_empty()
            && io.is_empty()
            && recalls.is_empty()
            && connected.is_empty()
            && refused.is_empty()
            && entered.is_empty()
            && expired.is_empty()
            && locked.is_empty()
            && revocations.is_empty()
            && changed.is_empty()
            && placed.is_empty()
            && peers.is_empty()
            && warnings.is_empty()
    }
}
