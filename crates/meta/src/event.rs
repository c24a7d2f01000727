//! What the journal holds: every change of the namespace, as decided. Applying the events after a checkpoint to that
//! checkpoint gives the present state, so an event holds outcomes and leaves nothing to decide.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_policy::Policy;
use espalier_proto::{ClientId, Ino, InodeFlags, Layout, Name, Rank, RequestId, ServerId, Time};
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::pool::Batch;
use crate::rank::{Part, TransactionId, Vote};
use crate::record::{Corrupt, Inode};
use crate::session::Outcome;
use crate::usage::{Quota, Usage};

/// One change. `time` becomes the ctime of what changes, and the mtime of the directories involved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A new name for a new inode.
    Create {
        dir: Ino,
        name: Name,
        inode: Inode,
    },
    /// A new inode without a name.
    TmpFile {
        inode: Inode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
        time: Time,
    },
    /// A name goes, and with the last name the inode becomes an orphan; also of empty directories.
    Unlink {
        dir: Ino,
        name: Name,
        time: Time,
    },
    /// `to`, if it is there, goes as in `Unlink`.
    Rename {
        from_dir: Ino,
        from: Name,
        to_dir: Ino,
        to: Name,
        whiteout: Option<Box<Inode>>,
        time: Time,
    },
    Exchange {
        from_dir: Ino,
        from: Name,
        to_dir: Ino,
        to: Name,
        time: Time,
    },
    SetAttr {
        ino: Ino,
        change: Change,
    },
    /// A stuffed file is written; also past its end.
    Write {
        ino: Ino,
        offset: u64,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        time: Time,
    },
    /// A stuffed file gets another size.
    Resize {
        ino: Ino,
        size: u64,
        time: Time,
    },
    /// Bytes of a stuffed file become zero; its size stays.
    Zero {
        ino: Ino,
        offset: u64,
        length: u64,
        time: Time,
    },
    /// A stuffed file keeps all bytes up to the end of a range, also behind its size, which is set.
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        /// The range becomes zero.
        zero: bool,
        size: u64,
        time: Time,
    },
    /// A file's bytes, having been copied to a stream, are no longer kept with its inode (carns III.B).
    Unstuff {
        ino: Ino,
    },
    SetAcl {
        ino: Ino,
        acl: Option<Box<Acl>>,
        perm: u32,
        time: Time,
    },
    SetDefaultAcl {
        ino: Ino,
        acl: Option<Box<Acl>>,
        time: Time,
    },
    /// `None` removes it.
    SetXattr {
        ino: Ino,
        #[serde(with = "serde_bytes")]
        name: Box<[u8]>,
        #[serde(with = "serde_bytes")]
        value: Option<Box<[u8]>>,
        time: Time,
    },
    /// The limits of a directory are now these.
    SetQuota {
        dir: Ino,
        quota: Quota,
        time: Time,
    },
    /// The stream of a file may get another size than is counted, from now on.
    Watch {
        ino: Ino,
    },
    /// What is counted of a file whose bytes lie in a stream.
    Count {
        ino: Ino,
        size: u64,
    },
    /// An orphan that nobody uses any more ceases to be.
    Purge {
        ino: Ino,
    },
    /// Changes nothing: says in which dentry of the last checkpoint an inode lies that the next event speaks of.
    Locate {
        ino: Ino,
        dir: Ino,
        hash: u64,
    },
    /// A new name for a new inode, with the bytes that a stuffed file has now.
    Clone {
        from: Ino,
        dir: Ino,
        name: Name,
        inode: Inode,
    },
    /// A client's session begins, or ends.
    Session {
        client: ClientId,
        begins: bool,
    },
    /// What was asked of a client in a request has been done, by the events before.
    Completed {
        client: ClientId,
        id: RequestId,
        /// The client has the answers to all requests before this one.
        below: RequestId,
        outcome: Outcome,
    },
    /// Clients with sessions know a file by another place than it has now.
    Moved {
        ino: Ino,
    },
    /// As `Unstuff`, to data servers.
    Stripe {
        ino: Ino,
        layout: Arc<Layout>,
    },
    /// Changes nothing: its sequence number begins the numbers of this incarnation's transactions.
    Began,
    /// This rank's part of another's transaction can be carried out, and will be when that is decided.
    Prepared {
        id: TransactionId,
        part: Part,
    },
    /// What becomes of a part that was prepared.
    Decided {
        id: TransactionId,
        commit: bool,
    },
    /// A transaction of this rank's is to happen, with its own part of it; those ranks have prepared theirs.
    Committed {
        id: TransactionId,
        part: Part,
        ranks: Vec<(Rank, Vote)>,
    },
    /// All of them have done it.
    Forgotten {
        id: TransactionId,
    },
    /// Another rank is told what came to directories of its own, or went from them.
    Told {
        to: Rank,
    },
    /// The next of what another rank tells of such is counted. `None`: the directory is gone.
    Heard {
        from: Rank,
        change: Option<(Ino, Usage)>,
    },
    /// A rank has counted what it was told.
    Counted {
        by: Rank,
    },
    /// Inode numbers below may be given out.
    Reserved {
        below: u64,
    },
    /// What a directory wants of the files that are made in it.
    SetPolicy {
        dir: Ino,
        policy: Option<Arc<Policy>>,
        time: Time,
    },
    /// These numbers are set aside for files, with datafiles.
    Pool {
        pool: Vec<Batch>,
    },
    /// A new name for a new file without a metafile: all that there is to it.
    CreateBare {
        dir: Ino,
        name: Name,
        ino: Ino,
        server: ServerId,
        time: Time,
    },
    /// A file's datafiles have been made by its client, where this says.
    SetLayout {
        ino: Ino,
        layout: Arc<Layout>,
    },
    /// A client has so many numbers for new files, from the first on.
    Given {
        client: ClientId,
        first: Ino,
        count: u32,
    },
}

/// New values of attributes; `None` leaves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    pub ctime: Option<Time>,
    pub flags: Option<InodeFlags>,
}

impl Event {
    /// The inodes that the event names by number alone, so that replay must be told where they lie.
    pub(crate) fn addressed(&self) -> [Option<Ino>; 2] {
        match self {
            Self::Create { dir, .. }
            | Self::CreateBare { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::SetQuota { dir, .. } => [Some(*dir), None],
            Self::Link { ino, dir, .. } => [Some(*ino), Some(*dir)],
            Self::Rename { from_dir, to_dir, .. } | Self::Exchange { from_dir, to_dir, .. } => {
                [Some(*from_dir), Some(*to_dir)]
            }
            Self::Clone { from, dir, .. } => [Some(*from), Some(*dir)],
            Self::TmpFile { .. } | Self::Locate { .. } => [None, None],
            // The event before has changed it.
            Self::Session { .. } | Self::Completed { .. } | Self::Moved { .. } => [None, None],
            Self::Reserved { .. } | Self::Pool { .. } | Self::Given { .. } => [None, None],
            // `Meta::append_part` sees to these.
            Self::Began
            | Self::Prepared { .. }
            | Self::Decided { .. }
            | Self::Committed { .. }
            | Self::Forgotten { .. }
            | Self::Told { .. }
            | Self::Counted { .. } => [None, None],
            Self::Heard { change, .. } => [change.map(|(dir, _)| dir), None],
            Self::SetAttr { ino, .. }
            | Self::Write { ino, .. }
            | Self::Resize { ino, .. }
            | Self::Zero { ino, .. }
            | Self::Allocate { ino, .. }
            | Self::Unstuff { ino }
            | Self::Stripe { ino, .. }
            | Self::SetLayout { ino, .. }
            | Self::SetAcl { ino, .. }
            | Self::SetDefaultAcl { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::Watch { ino }
            | Self::Count { ino, .. }
            | Self::SetPolicy { dir: ino, .. }
            | Self::Purge { ino } => [Some(*ino), None],
        }
    }

    /// A directory whose files without metafiles become other ones by it, if it is one.
    pub(crate) fn bequeaths(&self) -> Option<Ino> {
        match self {
            Self::SetAttr { ino, change } => {
                (change.perm.is_some() || change.uid.is_some() || change.gid.is_some()).then_some(*ino)
            }
            Self::SetAcl { ino, .. } | Self::SetPolicy { dir: ino, .. } => Some(*ino),
            _ => None,
        }
    }

    /// Appends the event to a frame of the journal.
    pub fn encode(&self, frame: &mut Vec<u8>) {
        // Fails only for types whose length serde cannot know, and no event has one.
        *frame = postcard::to_extend(self, core::mem::take(frame)).unwrap_or_default();
    }

    /// Takes one event off the front of a frame.
    pub fn decode(frame: &[u8]) -> Result<(Self, &[u8]), Corrupt> {
        postcard::take_from_bytes(frame).map_err(|_| Corrupt)
    }
}
