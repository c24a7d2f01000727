//! What goes into the machine and what comes out of it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{
    Caller, ClientId, Errno, Ino, Name, Position, Reply, Request, RequestId, TableWrite, Time,
};

use crate::step::{Load, StreamCall, StreamDone};

/// The circumstances of an input.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub time: Time,
    /// How many requests have arrived that the machine has not been given: carns III.C's scheduling queue.
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
        caller: Caller,
        request: Request,
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
    /// Bytes that the store can still take.
    Space {
        free: u64,
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
    /// The supplementary groups of a process.
    Groups {
        pid: u32,
    },
    Stream(StreamCall),
    /// Append a frame to the journal (there is one at a time), and with `sync` make all of the journal durable.
    Journal {
        frame: Vec<u8>,
        sync: bool,
    },
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
    pub replies: Vec<(ClientId, RequestId, Result<Reply, Errno>)>,
    pub io: Vec<(IoId, Io)>,
    /// Requests that have just begun to wait, or wait for something else now. Their replies come later.
    pub waiting: Vec<(RequestId, Waiting)>,
    /// What clients are asked to forget.
    pub recalls: Vec<Recall>,
    /// Inodes that clients know, and whose attributes have changed without their doing.
    pub changed: Vec<Ino>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The tables, the caller's groups, or a stream.
    Disk,
    /// A commit of the journal, or room in it.
    Journal,
}

/// A client that can is to forget an inode, and to say so; if it uses it, it need not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    pub ino: Ino,
    /// A directory and a name in it, by which clients know it; unless they may know it by several.
    pub dir: Option<Ino>,
    pub name: Option<Name>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.io.is_empty() && self.recalls.is_empty() && self.changed.is_empty()
    }
}
