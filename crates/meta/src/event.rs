//! Events: the entries of the journal. An event is one change of the namespace, as decided. It
//! contains outcomes and leaves nothing to decide: a checkpoint with the events after it applied is
//! the current state.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_policy::Policy;
use espalier_proto::{ClientId, Ino, InodeFlags, Layout, Name, Rank, RequestId, ServerId, Time};
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::decouple::Decoupled;
use crate::pool::Batch;
use crate::rank::{Part, TransactionId, Vote};
use crate::record::{Corrupt, Inode};
use crate::session::CompletedOutcome;
use crate::usage::{Quota, Usage};

/// One change. `time` becomes the ctime of what changes, and the mtime of the directories involved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Creates a name with a new inode.
    Create {
        dir: Ino,
        name: Name,
        inode: Inode,
    },
    /// Creates an inode without a name.
    TmpFile {
        inode: Inode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
        time: Time,
    },
    /// Removes a name. With the last name, the inode becomes an orphan; so does an empty directory.
    Unlink {
        dir: Ino,
        name: Name,
        time: Time,
    },
    /// Replaces `to`, if it exists, as `Unlink` removes it.
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
    /// Writes to a stuffed file, also beyond its end.
    Write {
        ino: Ino,
        offset: u64,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        time: Time,
    },
    /// Truncates or extends a stuffed file.
    Resize {
        ino: Ino,
        size: u64,
        time: Time,
    },
    /// Zeroes bytes of a stuffed file; the size stays.
    Zero {
        ino: Ino,
        offset: u64,
        length: u64,
        time: Time,
    },
    /// Stores all bytes of a stuffed file up to the end of a range, also beyond its size, which is
    /// set.
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        /// The range becomes zero.
        zero: bool,
        size: u64,
        time: Time,
    },
    /// Moves a file's bytes from the tables to a stream, to which they have been copied (carns
    /// III.B).
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
    /// Sets the limits of a directory.
    SetQuota {
        dir: Ino,
        quota: Quota,
        time: Time,
    },
    /// Marks a file as size-dirty: its stream may have another size than is counted from here on.
    MarkSizeDirty {
        ino: Ino,
    },
    /// Sets the counted size of a streamed file.
    Count {
        ino: Ino,
        size: u64,
    },
    /// Removes an orphan that nobody uses.
    Purge {
        ino: Ino,
    },
    /// Changes nothing: says in which dentry of the last checkpoint the inode is that the next
    /// event names.
    Locate {
        ino: Ino,
        dir: Ino,
        hash: u64,
    },
    /// Creates a name with a new inode, with the current bytes of a stuffed file.
    Clone {
        from: Ino,
        dir: Ino,
        name: Name,
        inode: Inode,
    },
    /// Starts or ends a client's session.
    Session {
        client: ClientId,
        begins: bool,
    },
    /// Records the outcome of a client's request, which the preceding events have executed.
    Completed {
        client: ClientId,
        id: RequestId,
        /// The client has the answers to all requests before this one.
        below: RequestId,
        outcome: CompletedOutcome,
    },
    /// Records that clients with sessions know an older location of an inode.
    Moved {
        ino: Ino,
    },
    /// As `Unstuff`, to data servers.
    Stripe {
        ino: Ino,
        layout: Arc<Layout>,
    },
    /// Changes nothing: its sequence number identifies this incarnation in the numbers of its
    /// transactions.
    Began,
    /// Prepares this rank's part of another rank's transaction, to be applied when that decides so.
    Prepared {
        id: TransactionId,
        part: Part,
    },
    /// Carries out the decision on a prepared part.
    Decided {
        id: TransactionId,
        commit: bool,
    },
    /// Commits a transaction of this rank, and applies its own part. The other ranks have prepared
    /// theirs.
    Committed {
        id: TransactionId,
        part: Part,
        ranks: Vec<(Rank, Vote)>,
    },
    /// All participants have carried out the transaction.
    Forgotten {
        id: TransactionId,
    },
    /// Numbers the next usage deltas for another rank.
    UsageSent {
        to: Rank,
    },
    /// Counts the next usage delta of another rank. `None`: its directory is gone.
    UsageReceived {
        from: Rank,
        change: Option<(Ino, Usage)>,
    },
    /// A rank has counted the usage deltas sent to it.
    Counted {
        by: Rank,
    },
    /// The home of these inodes drops its records of where they were: they have been removed.
    Freed {
        inodes: Vec<Ino>,
    },
    /// A home has dropped its records of these inodes, which have been removed here.
    FreedAcknowledged {
        home: Rank,
        inodes: Vec<Ino>,
    },
    /// A directory record has no more names of files that are to move here.
    Pulled {
        dir: Ino,
    },
    /// Inode numbers below may be allocated.
    Reserved {
        below: u64,
    },
    /// Sets the policy of a directory.
    SetPolicy {
        dir: Ino,
        policy: Option<Arc<Policy>>,
        time: Time,
    },
    /// Sets the batches of precreated files: inode numbers with datafiles.
    Pool {
        pool: Vec<Batch>,
    },
    /// Creates a name with a new no-metafile file: all that is stored of it.
    CreateNoMetafile {
        dir: Ino,
        name: Name,
        ino: Ino,
        server: ServerId,
        time: Time,
    },
    /// A client has made a file's datafiles according to this layout.
    SetLayout {
        ino: Ino,
        layout: Arc<Layout>,
    },
    /// Allocates a range of inode numbers to a client for new files.
    Given {
        client: ClientId,
        first: Ino,
        count: u32,
    },
    /// Decouples a directory, records the progress of its merge, or couples it again.
    Decouple {
        dir: Ino,
        decoupled: Option<Box<Decoupled>>,
        time: Time,
    },
    /// Creates a name with a new inode of a decoupled namespace. `bytes`: what a stuffed file
    /// stores. Unlike a create, it never makes a directory split.
    Merge {
        dir: Ino,
        name: Name,
        inode: Inode,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// As `Link`, in a decoupled namespace.
    MergeLink {
        ino: Ino,
        dir: Ino,
        name: Name,
        time: Time,
    },
}

/// New values of attributes; `None` keeps the old one.
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
    /// The inodes that the event names only by number, for which replay needs the location.
    pub(crate) fn addressed(&self) -> [Option<Ino>; 2] {
        match self {
            Self::Create { dir, .. }
            | Self::CreateNoMetafile { dir, .. }
            | Self::Merge { dir, .. }
            | Self::Decouple { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::SetQuota { dir, .. } => [Some(*dir), None],
            Self::Link { ino, dir, .. } | Self::MergeLink { ino, dir, .. } => [Some(*ino), Some(*dir)],
            Self::Rename { from_dir, to_dir, .. } | Self::Exchange { from_dir, to_dir, .. } => {
                [Some(*from_dir), Some(*to_dir)]
            }
            Self::Clone { from, dir, .. } => [Some(*from), Some(*dir)],
            Self::TmpFile { .. } | Self::Locate { .. } => [None, None],
            // A preceding event has changed it.
            Self::Session { .. } | Self::Completed { .. } | Self::Moved { .. } => [None, None],
            Self::Reserved { .. } | Self::Pool { .. } | Self::Given { .. } => [None, None],
            // `Meta::append_part` locates these.
            Self::Began
            | Self::Prepared { .. }
            | Self::Decided { .. }
            | Self::Committed { .. }
            | Self::Forgotten { .. }
            | Self::UsageSent { .. }
            | Self::Freed { .. }
            | Self::FreedAcknowledged { .. }
            | Self::Pulled { .. }
            | Self::Counted { .. } => [None, None],
            Self::UsageReceived { change, .. } => [change.map(|(dir, _)| dir), None],
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
            | Self::MarkSizeDirty { ino }
            | Self::Count { ino, .. }
            | Self::SetPolicy { dir: ino, .. }
            | Self::Purge { ino } => [Some(*ino), None],
        }
    }

    /// Visits the directories that may have more entries after the event, or another policy; those
    /// of transactions: [`crate::rank::Edit::grown`].
    pub(crate) fn each_grown(&self, see: &mut dyn FnMut(Ino)) {
        match self {
            Self::Create { dir, inode, .. } => {
                see(*dir);
                if inode.is_dir() {
                    see(inode.ino);
                }
            }
            Self::CreateNoMetafile { dir, .. }
            | Self::Clone { dir, .. }
            | Self::Link { dir, .. }
            | Self::Rename { to_dir: dir, .. }
            | Self::SetPolicy { dir, .. } => see(*dir),
            _ => {}
        }
    }

    /// Visits the directories that have fewer entries after the event.
    pub(crate) fn each_shrunk(&self, see: &mut dyn FnMut(Ino)) {
        if let Self::Unlink { dir, .. } | Self::Rename { from_dir: dir, .. } = self {
            see(*dir);
        }
    }

    /// Sets the permissions, times and policy of an inode as the event does.
    pub(crate) fn change_rights(&self, inode: &mut Inode) {
        match self {
            Self::SetAttr { change, .. } => change.apply(inode),
            Self::SetAcl { acl, perm, time, .. } => {
                inode.acl.clone_from(acl);
                (inode.perm, inode.ctime) = (*perm, *time);
            }
            Self::SetDefaultAcl { acl, time, .. } => {
                inode.default_acl.clone_from(acl);
                inode.ctime = *time;
            }
            Self::SetPolicy { policy, time, .. } => {
                inode.rare.policy.clone_from(policy);
                inode.ctime = *time;
            }
            _ => {}
        }
    }

    /// The directory whose no-metafile files the event changes: their attributes derive from it.
    pub(crate) fn changes_dependents(&self) -> Option<Ino> {
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
        // Fails only for types whose length serde cannot determine; no event has one.
        *frame = postcard::to_extend(self, core::mem::take(frame)).unwrap_or_default();
    }

    /// Decodes the first event of a frame. Returns the rest of the frame too.
    pub fn decode(frame: &[u8]) -> Result<(Self, &[u8]), Corrupt> {
        postcard::take_from_bytes(frame).map_err(|_| Corrupt)
    }
}
