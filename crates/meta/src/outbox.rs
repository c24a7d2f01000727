//! What goes into the machine and what comes out of it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{
    Accesses, Caller, ClientId, Errno, Ino, Lease, Name, Position, Rank, Recall, Reply, Request, RequestId,
    ServerId, StreamIo, TableWrite, Time, Touched,
};

use crate::rank::PeerMessage;
use crate::step::{Load, StreamCall, StreamDone};
use crate::striping::Layouts;

/// The circumstances of an input.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub time: Time,
    /// Milliseconds of a clock that nobody sets.
    pub uptime_ms: u64,
    /// How many requests have arrived that the machine has not been given: carns III.C's scheduling queue. A driver that gives
    /// several inputs before it does any I/O counts those that follow: changes among them then share a frame.
    pub queued: usize,
}

/// Names an I/O that the machine has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoId(pub u64);

#[derive(Debug)]
pub enum Input {
    Request {
        from: ClientId,
        id: RequestId,
        /// The client has the answers to all its requests with smaller numbers.
        below: RequestId,
        caller: Caller,
        request: Request,
    },
    /// A client begins or goes on with its session: answered in [`Outbox::connected`] or [`Outbox::refused`].
    Connect {
        client: ClientId,
        /// As in [`Service::Metadata`](espalier_proto::Service::Metadata).
        leases: bool,
        /// It has a session, as far as it knows: if that has ended, it is refused with `ESTALE`.
        resumes: bool,
    },
    /// Which accesses of a client that has a session change access times. All do until this comes.
    Accesses {
        client: ClientId,
        accesses: Accesses,
    },
    /// A client is to use what is below this directory only, until its session ends: answered in [`Outbox::entered`].
    Enter {
        client: ClientId,
        path: Box<[Name]>,
    },
    /// A client ends its session.
    Leave {
        client: ClientId,
    },
    /// A client has been heard of.
    Heard {
        client: ClientId,
    },
    /// A client caches no longer what the revocation of that number names.
    Revoked {
        client: ClientId,
        number: u64,
    },
    /// A client cannot give up the name of that revocation: one of its own requests has the directory locked.
    Blocked {
        client: ClientId,
        number: u64,
    },
    /// The caller got a signal: the request is answered `EINTR` if it waits for something that may take long.
    Cancel {
        from: ClientId,
        id: RequestId,
    },
    Done {
        id: IoId,
        result: Result<IoDone, Errno>,
    },
    /// A data server has been reached for the first time, and tells which datafiles have never been settled: before it has been asked
    /// anything else.
    NewDatafiles {
        server: ServerId,
        inos: Vec<Ino>,
    },
    /// A client wants something to be done with a stream: whether it may be done now, and [`Meta::place_of`](crate::Meta::place_of) can tell
    /// where, comes in [`Outbox::placed`]. `length`: of what is to be written, in bytes.
    Place {
        of: (ClientId, RequestId),
        io: StreamIo,
        length: u64,
    },
    /// Commits wait for each other otherwise from now on, as in [`Config::watermarks`](crate::Config).
    Watermarks {
        low: usize,
        high: usize,
    },
    /// Bytes that the store can still take.
    Space {
        free: u64,
    },
    /// Another rank says something.
    Peer {
        from: Rank,
        message: PeerMessage,
    },
    /// A connection to another rank has begun: what was sent over an earlier one may be lost.
    PeerConnected {
        rank: Rank,
    },
    /// Another rank will never be back: what it has had prepared here is undone, and it has to do nothing any more.
    PeerLost {
        rank: Rank,
    },
    /// Comes once a second.
    Tick,
    /// Write everything out, to be stopped: [`Meta::is_quiet`](crate::Meta::is_quiet) tells when that is done.
    Drain,
}

/// Something to be done outside of the machine, which then expects a [`Input::Done`] for it.
#[derive(Debug, PartialEq, Eq)]
pub enum Io {
    Load(Load),
    /// The supplementary groups of the process that made a request.
    Groups {
        of: (ClientId, RequestId),
        pid: u32,
    },
    /// The files that have layouts are on data servers: [`StreamCall::requests`] says what these are asked.
    Stream(StreamCall, Layouts),
    /// Have all data servers told which sessions go on, as in [`DataRequest::Admit`](espalier_proto::DataRequest); again with each new
    /// connection, before anything else. Done when all have answered.
    Admit {
        below: u64,
        live: Vec<u64>,
    },
    /// Append a frame to the journal (there is one at a time), and with `sync` make all of the journal durable.
    Journal {
        frame: Vec<u8>,
        sync: bool,
    },
    /// Make all of the journal durable that has been appended. Frames may be appended meanwhile.
    Sync,
    /// Add to the checkpoint. What fails may have been done in part, and will be asked for again.
    Stage {
        writes: Arc<[TableWrite]>,
    },
    /// Make the checkpoint durable, then trim the journal.
    Publish {
        trim: Position,
    },
    /// Nothing, but inputs that others wait for come first.
    Yield,
    /// Nothing, for a millisecond or two; nobody waits for what comes next.
    Rest,
    /// Nothing, for a few milliseconds: events that nobody waits for are collected before they are written to the journal's file. There is one
    /// at a time.
    WriteDelay,
}

impl Io {
    /// What it is called where operations are traced.
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
            Self::Yield | Self::Rest => "pause",
            Self::WriteDelay => "write delay",
        }
    }
}

/// What an I/O gives back.
#[derive(Debug)]
pub enum IoDone {
    Record(Option<Vec<u8>>),
    Dentries(Vec<(Vec<u8>, Vec<u8>)>),
    Groups(Arc<[u32]>),
    Stream(StreamDone),
    /// Where the journal now ends, and how many bytes of it are in use. `frame`: the memory of the one appended.
    Journaled {
        end: Position,
        used: u64,
        frame: Vec<u8>,
    },
    Synced,
    Admitted,
    Staged,
    Paused,
    Published {
        used: u64,
    },
}

/// What the machine wants done. What must wait until the journal is durable is kept back in the machine
/// (`journal.rs`): whatever is here may be done at once.
#[derive(Debug, Default)]
pub struct Outbox {
    pub replies: Vec<Answered>,
    pub io: Vec<(IoId, Io)>,
    /// Requests that have just begun to wait, or wait for something else now. Their replies come later.
    pub waiting: Vec<(ClientId, RequestId, Waiting)>,
    /// What clients are asked to forget.
    pub recalls: Vec<Recall>,
    /// Sessions that have begun or go on.
    pub connected: Vec<ClientId>,
    /// Sessions that cannot begin, and why: `ENFILE`, there are too many; `EIO`, the journal cannot be written;
    /// `EINVAL`, no client has the number 0; `ESTALE`, the client is to give up what it had in the one that has ended, and to ask for a new one.
    pub refused: Vec<(ClientId, Errno)>,
    /// What has come of [`Input::Enter`].
    pub entered: Vec<(ClientId, Result<(), Errno>)>,
    /// Sessions that have ended, because nothing was heard of their clients.
    pub expired: Vec<ClientId>,
    /// What clients have waited for, under these numbers, and have now. To be sent after `replies`.
    pub locked: Vec<(ClientId, u64)>,
    /// To be sent after `replies`.
    pub revocations: Vec<Revocation>,
    /// Inodes that clients know, and whose attributes have changed without their doing.
    pub changed: Vec<Ino>,
    /// Files whose places [`Meta::place_of`](crate::Meta::place_of) knows now, or that are not there any more.
    pub placed: Vec<((ClientId, RequestId), Result<(), Errno>)>,
    /// To other ranks. What is said to one that cannot be reached may be dropped.
    pub peers: Vec<(Rank, PeerMessage)>,
    /// For the log: why something was refused.
    pub remarks: Vec<String>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The tables, the caller's groups, or a stream.
    Disk,
    /// A commit of the journal, or room in it.
    Journal,
    /// Other clients, to give up what they may cache.
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
    /// What the result tells may be cached for so many milliseconds. Says nothing to a client that is the only one.
    pub lease_ms: u32,
    pub touched: Touched,
}

/// A client is to give up a lease, and to answer with [`Input::Revoked`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    pub client: ClientId,
    pub number: u64,
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
            remarks,
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
            && remarks.is_empty()
    }
}
