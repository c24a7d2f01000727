//! What a client and a metadata server say to each other over a connection. How it is put into bytes, the network's driver
//! knows.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Attr, Caller, ClientId, Errno, Ino, Name, Rank, Recall, Reply, Request, RequestId, ServerId, StreamIo,
};

/// Names a cluster, for good: peers of another one are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// A client that is content with whatever the server is one of.
    pub const ANY: Self = Self([0; 16]);
}

/// Which accesses of a client's change access times, as far as the server lets any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accesses {
    #[default]
    All,
    /// Listings do not (`nodiratime`).
    NoListings,
    /// `noatime`.
    None,
}

/// Which of its services a server is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Service {
    /// The tree of files, for clients. Without `leases` nothing that a client is told is leased, and no change waits for it.
    Metadata { leases: bool, accesses: Accesses },
    /// The datafiles of the data server of that number, for metadata servers.
    Data(ServerId),
    /// What capabilities let clients have of the same.
    Delegated(ServerId),
    /// What metadata servers say to each other: the one of rank `from` to that of rank `to`.
    Peer { from: Rank, to: Rank },
}

/// How a client begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub cluster: ClusterId,
    pub service: Service,
    pub client: ClientId,
    /// The server's incarnation in which the client's session was last connected; `None`: it has none, and wants a new one. A server that
    /// has no session to go on with refuses it, as often as it is asked, so that no client takes a new session for the one it had.
    pub incarnation: Option<u64>,
}

/// How a server answers a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Tells one start of the server from the next.
    pub incarnation: u64,
    /// The client may have so many requests unanswered.
    pub window: u32,
    /// A client that is silent for so many milliseconds loses its session.
    pub session_ms: u32,
    /// Of the metadata server.
    pub rank: Rank,
    /// The directory that is the client's root, whatever it is called. There may be others above it, which are not for the client.
    pub root: Ino,
    /// The others, for clients of a metadata server.
    pub servers: ServerMap,
}

/// Where a cluster's servers are, as `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMap {
    /// The metadata servers, by rank. Empty: there is but the one that says so.
    pub ranks: Vec<String>,
    pub data: Vec<(ServerId, String)>,
}

impl ServerMap {
    pub const NONE: Self = Self { ranks: Vec::new(), data: Vec::new() };
}

/// From a client to a metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromClient {
    Request {
        id: RequestId,
        /// The answers to all requests with smaller numbers have come: they will not be sent again.
        below: RequestId,
        /// The payload of it and of its answer is announced, however short it is (carns III.D's rendezvous).
        announced: bool,
        caller: Caller,
        request: Request,
    },
    /// What is to be done with a file's stream. `data`: what is written.
    Stream {
        id: RequestId,
        below: RequestId,
        /// As of a request.
        announced: bool,
        io: StreamIo,
        data: Bytes,
    },
    /// The caller no longer wants to wait.
    Cancel { id: RequestId },
    /// What the revocation of that number names is cached no longer.
    Revoked { number: u64 },
    /// The name of that revocation cannot be given up yet: a pending call of this client has its directory locked. Calls of the client
    /// that name the directory and wait for leases of others fail with `ESTALE`, and have changed nothing.
    Blocked { number: u64 },
    /// The session ends.
    Goodbye,
    /// The supplementary groups of the caller of a request.
    Groups { id: RequestId, groups: Arc<[u32]> },
}

impl FromClient {
    /// Whether its payload is announced, however short it is.
    pub fn announced(&self) -> bool {
        matches!(self, Self::Request { announced: true, .. } | Self::Stream { announced: true, .. })
    }
}

/// From a metadata server to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromServer {
    Reply {
        id: RequestId,
        /// What the reply tells may be cached for so many milliseconds, counted from when the request was sent.
        lease_ms: u32,
        /// Not sent: as its request says.
        #[serde(skip)]
        announced: bool,
        touched: Touched,
        result: Result<Reply, Errno>,
    },
    /// A lease ends: answered by [`FromClient::Revoked`].
    Revoke { number: u64, lease: Lease },
    /// A request's outcome depends on the supplementary groups of its caller: answered by [`FromClient::Groups`].
    AskGroups { id: RequestId, pid: u32 },
    /// The client is asked to forget these, and to say so; if it uses one, it need not.
    Recall(Vec<Recall>),
    /// These have other attributes than the client has been told.
    Changed(Vec<Ino>),
    /// What a [`Request::Lock`] has waited for under this number the client now has.
    Locked { wait: u64 },
}

impl FromServer {
    /// As [`FromClient::announced`].
    pub fn announced(&self) -> bool {
        matches!(self, Self::Reply { announced: true, .. })
    }
}

/// Inodes that a request has changed, but for what the result tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// As they are now; the reply's lease is on each.
    pub attrs: Vec<Attr>,
    /// Of these the client is told no more.
    pub others: Vec<Ino>,
    /// The lease that the client has on this directory is exclusive: nobody else knows it, nor will before the client has given up the
    /// lease. It may make and remove files in it, and tell its callers before this server has answered.
    pub exclusive: Option<Ino>,
}

/// What a client may cache until the lease's time is over or it is revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Lease {
    /// That nobody else knows a directory ([`Touched::exclusive`]). What is cached of it may stay so.
    Exclusive { dir: Ino },
    /// What a name in a directory stands for, or that it is not there.
    Name { dir: Ino, name: Name },
    /// An inode's attributes (but for its access time) and contents: a file's bytes, a symbolic link's target, a
    /// directory's listing, extended attributes.
    Inode { ino: Ino },
    /// A file's bytes, to which other clients may write ([`Request::LeaseData`]).
    Data { ino: Ino },
    /// That a client writes to a file without a message after each write ([`Request::Announce`]): no other client caches its bytes.
    Quiet { ino: Ino },
}
