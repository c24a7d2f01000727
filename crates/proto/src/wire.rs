//! Messages between a client and a metadata server. The network driver encodes them.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Attr, Caller, ClientId, Errno, Ino, Kind, Name, Rank, Recall, Reply, Request, RequestId, RevocationId,
    ServerId, StreamIo, Time,
};

/// Permanent id of a cluster. Peers of another cluster are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// Matches any cluster.
    pub const ANY: Self = Self([0; 16]);
}

/// The accesses of a client that update access times, if the server permits any updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accesses {
    #[default]
    All,
    /// All but listings (`nodiratime`).
    NoListings,
    /// No access (`noatime`).
    None,
}

/// The service that a connection requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Service {
    /// The namespace, for clients. Without `leases` replies carry no leases, and no change waits
    /// for the client. `rank`: the rank to talk to; `None`: any that the server has.
    Metadata { leases: bool, accesses: Accesses, rank: Option<Rank> },
    /// The datafiles of a data server, for metadata servers.
    Data(ServerId),
    /// The datafiles of a data server, for clients with capabilities.
    Delegated(ServerId),
    /// Messages between metadata servers: from rank `from` to rank `to`.
    Peer { from: Rank, to: Rank },
    /// The addresses of all servers, and each change of them.
    Addresses,
}

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub cluster: ClusterId,
    pub service: Service,
    pub client: ClientId,
    /// Incarnation of the server at the client's last connection; `None` requests a new session. A
    /// server that does not know the session refuses the client each time, so the client never
    /// takes a new session for its old one.
    pub incarnation: Option<u64>,
}

/// The server's reply to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Changes with each start of the server.
    pub incarnation: u64,
    /// Most unanswered requests of a client.
    pub window: u32,
    /// Milliseconds of silence after which the client's session ends.
    pub session_ms: u32,
    /// Rank of the metadata server.
    pub rank: Rank,
    /// The client's root directory. It may lie below the root of the file system, which is then
    /// hidden from the client.
    pub root: Ino,
    /// Addresses of the cluster's servers, for clients of a metadata server.
    pub servers: ServerMap,
    /// Where the bytes of big files are, if clients may use that themselves.
    pub data_pool: Option<DataPool>,
}

/// A pool of a RADOS cluster with the bytes of big files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPool {
    pub name: String,
    /// No other pool of that cluster ever has this number.
    pub number: i64,
    pub namespace: String,
    /// The number under which the client registers there.
    pub client: ClientId,
}

/// Addresses of a cluster's servers, as `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMap {
    /// Version of the cluster map; 0: the servers do not fail over. Others may join.
    pub version: u64,
    /// The metadata servers by rank. Empty if the sender is the only one. The address of a rank
    /// without a server is empty.
    pub ranks: Vec<String>,
    /// Incarnations of the ranks, if servers fail over.
    pub incarnations: Vec<u64>,
    /// All metadata servers if they fail over, standbys first.
    pub meta: Vec<String>,
    pub data: Vec<(ServerId, String)>,
}

impl ServerMap {
    pub const NONE: Self =
        Self { version: 0, ranks: Vec::new(), incarnations: Vec::new(), meta: Vec::new(), data: Vec::new() };
}

/// Message from a client to a metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromClient {
    Request {
        id: RequestId,
        /// All replies to requests with smaller numbers have arrived; the client does not resend
        /// these requests.
        below: RequestId,
        /// Earlier requests, which the server executes first.
        follows: Vec<RequestId>,
        /// The payloads of request and reply are announced regardless of their length (rendezvous,
        /// carns III.D).
        announced: bool,
        caller: Caller,
        request: Request,
    },
    /// An operation on a file's stream. `data`: the data to write.
    Stream {
        id: RequestId,
        below: RequestId,
        /// As for a request.
        announced: bool,
        io: StreamIo,
        data: Bytes,
    },
    /// The caller was interrupted.
    Cancel { id: RequestId },
    /// The client has dropped what the revocation with that number names.
    Revoked { number: RevocationId },
    /// The name of that revocation cannot be given up yet: a pending call of this client has its
    /// directory locked. Calls of the client that name the directory and wait for leases of others
    /// fail with `ESTALE`, and have changed nothing.
    Blocked { number: RevocationId },
    /// The session ends.
    Goodbye,
    /// The supplementary groups of a request's caller.
    Groups { id: RequestId, groups: Arc<[u32]> },
    /// The latest time of the changes that the client knows, at other servers. Later changes here
    /// get no earlier time.
    Clock { time: Time },
}

impl FromClient {
    /// The number and kind of a request.
    pub fn asks(&self) -> Option<(RequestId, Kind)> {
        match self {
            Self::Request { id, request, .. } => Some((*id, request.kind())),
            Self::Stream { id, io, .. } => Some((*id, io.op.kind())),
            _ => None,
        }
    }

    /// True if the payload is announced regardless of its length.
    pub fn announced(&self) -> bool {
        matches!(self, Self::Request { announced: true, .. } | Self::Stream { announced: true, .. })
    }
}

/// Message from a metadata server to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromServer {
    Reply {
        id: RequestId,
        /// Term of the reply's leases in milliseconds, counted from when the request was sent.
        lease_ms: u32,
        /// Not transmitted: equals that of the request.
        #[serde(skip)]
        announced: bool,
        touched: Touched,
        result: Result<Reply, Errno>,
    },
    /// Revokes a lease. The client answers with [`FromClient::Revoked`].
    Revoke { number: RevocationId, lease: Lease },
    /// The request's result depends on its caller's supplementary groups. The client answers with
    /// [`FromClient::Groups`].
    AskGroups { id: RequestId, pid: u32 },
    /// Asks the client to forget these inodes and to confirm it. The client ignores those that it
    /// uses.
    Recall(Vec<Recall>),
    /// The attributes of these inodes differ from those that the client has received.
    Changed(Vec<Ino>),
    /// The waiting [`Request::Lock`] with this number was granted.
    Locked { wait: u64 },
    /// The addresses of the servers have changed, or servers have joined.
    Servers(ServerMap),
}

impl FromServer {
    /// As [`FromClient::announced`].
    pub fn announced(&self) -> bool {
        matches!(self, Self::Reply { announced: true, .. })
    }
}

/// Inodes that a request has changed, apart from those in the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// New attributes; the reply's lease covers each inode.
    pub attrs: Vec<Attr>,
    /// Changed inodes of which the client gets no attributes.
    pub others: Vec<Ino>,
    /// The client's lease on this directory is exclusive: no other client observes the directory
    /// before the lease is revoked. The client may create and remove files in it and acknowledge
    /// that to its callers before this server replies.
    pub exclusive: Option<Ino>,
    /// Directories that are made in `exclusive` may lie at other ranks, so the client waits for the
    /// server to make them.
    pub spreads_dirs: bool,
}

/// The replies that a client may cache until the lease expires or is revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Lease {
    /// Exclusive use of a directory ([`Touched::exclusive`]). Its end leaves cached entries valid.
    Exclusive { dir: Ino },
    /// The inode of a name, or the absence of the name.
    Name { dir: Ino, name: Name },
    /// An inode: its attributes (except its access time), a file's data, a symbolic link's target,
    /// extended attributes. Of a directory: only its permissions, owner, flags, extended attributes
    /// and fragment map; other leases cover the rest.
    Inode { ino: Ino },
    /// A directory's contents: its listing, size, link count and times.
    Contents { dir: Ino },
    /// A file's data, which other clients may write ([`Request::LeaseData`]).
    Data { ino: Ino },
    /// Permission to write to a file without announcing it ([`Request::Announce`]): no other client
    /// caches its data.
    Unannounced { ino: Ino },
}
