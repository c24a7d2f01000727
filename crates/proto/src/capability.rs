use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Access, DataRequest, Ino, Layout, ServerId};

/// Lets a client have a file's bytes from data servers. A metadata server gives it to one client, for as long as the client's session
/// lasts and the server is not started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub ino: Ino,
    /// [`Access::READ`], [`Access::WRITE`] or both. [`Access::EXEC`] is for the datafiles themselves, to be made and removed; without any
    /// the file can be measured, no more.
    pub access: Access,
    /// Who has given it.
    pub server: ServerId,
    pub incarnation: u64,
    /// The client's session, as that server counts those that have capabilities. From 1.
    pub session: u64,
    /// The change, in that server's journal, by which the file came to have its datafiles; 0 if it is durable. Until it is, a datafile
    /// that the client's writes make is one that the file may turn out not to have.
    pub since: u64,
    /// What is read and written by it is announced, however little it is.
    pub announced: bool,
    /// Only servers of the cluster can make it, from all this and from who the client is.
    pub seal: [u8; 32],
}

impl Capability {
    /// Whether it lets a client ask this.
    pub fn permits(&self, request: &DataRequest) -> bool {
        let (needed, ino) = match request {
            DataRequest::Read { ino, .. } | DataRequest::Seek { ino, .. } => (Access::READ, *ino),
            DataRequest::Write { ino, .. } | DataRequest::WriteList { ino, .. } => (Access::WRITE, *ino),
            DataRequest::Create { ino, .. } | DataRequest::Remove { ino } => (Access::EXEC, *ino),
            DataRequest::Stat { inos } if inos.len() == 1 => (Access::empty(), inos[0]),
            _ => return false,
        };
        ino == self.ino && self.access.contains(needed)
    }
}

/// What a client needs to read or write a file's bytes without the metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    pub layout: Arc<Layout>,
    pub capability: Capability,
    /// A quota bounds the file's size: the metadata server is asked before each write all the same.
    pub limited: bool,
}
