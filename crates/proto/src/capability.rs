use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Access, DataRequest, Ino, Layout, RangeOp, ServerId};

/// Permits a client to access a file's datafiles directly. A metadata server issues it to one
/// client. It is valid until the client's session ends or the server restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub ino: Ino,
    /// [`Access::READ`], [`Access::WRITE`] or both. [`Access::EXEC`] permits making and removing
    /// the datafiles. An empty set permits only `stat` of the datafiles.
    pub access: Access,
    /// The metadata server that issued it.
    pub server: ServerId,
    pub incarnation: u64,
    /// Number of the client's session at that server, counted from 1.
    pub session: u64,
    /// Sequence number, in that server's journal, of the event that gave the file its datafiles; 0
    /// if it is durable. Until then, datafiles that the client's writes make are provisional.
    pub since: u64,
    /// Payloads of requests that use it are announced regardless of their length.
    pub announced: bool,
    /// Authentication code over the other fields and the client's identity. Only servers of the
    /// cluster can compute it.
    pub seal: [u8; 32],
}

impl Capability {
    /// True if the capability permits the request.
    pub fn permits(&self, request: &DataRequest) -> bool {
        let (needed, ino) = match request {
            // The metadata server allocates, since it counts the file's size.
            DataRequest::Range { op: RangeOp::Allocate { .. }, .. } => return false,
            DataRequest::Range { ino, op, .. } => (op.access(), *ino),
            DataRequest::Create { ino, .. } | DataRequest::Remove { ino } => (Access::EXEC, *ino),
            DataRequest::Stat { inos } if inos.len() == 1 => (Access::empty(), inos[0]),
            _ => return false,
        };
        ino == self.ino && self.access.contains(needed)
    }
}

/// Capability and layout with which a client accesses a file's data without the metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// `None`: the bytes are in the data pool of the metadata servers' store, in the objects of the
    /// stream with this inode number of the rank [`Capability::server`]. The pool does not check
    /// the capability.
    pub layout: Option<Arc<Layout>>,
    pub capability: Capability,
    /// A quota limits the file's size: the client requests
    /// [`Request::Extend`](crate::Request::Extend) before each write.
    pub limited: bool,
}
