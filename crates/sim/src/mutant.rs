//! Mutants: deliberately broken variants of the program, to test that random runs detect faults. A
//! mutant changes messages and I/O between machines and drivers, so the machines contain no code
//! for it, except [`Mutation::ForgottenFreeze`], which no driver can imitate.

mod contents;
mod fragments;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use espalier_balancer::MetricsSnapshot;
use espalier_meta::{Event, InoRecord, Io, IoDone, Load, PeerMessage, StreamCall, StreamDone, TransactionId};
use espalier_policy::Key;
use espalier_proto::{
    Caller, DataReply, DataRequest, Errno, FileType, FromClient, FromData, FromServer, Ino, Lease, Position,
    Reply, Request, RequestId, SetAttr, StreamStat, ToData, Touched,
};

use crate::check::CAPABILITY;
use crate::message::Message;
use crate::observe::{Arrival, FailoverStep, Mutator, Node};
use contents::{add, changed, is_limit, mask};
use fragments::{with_wrong_edits, with_wrong_fragment};

/// The fault of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A client acknowledges revocations and keeps its cache.
    IgnoredRevocation,
    /// A server replies before its journal is written.
    UnwrittenJournal,
    /// The journal ignores syncs.
    UnsyncedJournal,
    /// Completed requests are not recorded, so a resent request is executed again.
    ForgottenCompletion,
    /// A rename is committed at one rank and aborted at the other.
    OneSidedCommit,
    /// The decision of another rank is acknowledged and ignored.
    IgnoredDecision,
    /// The journal is trimmed beyond the checkpoint.
    PrematureTrim,
    /// The last piece of a checkpoint is not written.
    TornCheckpoint,
    /// Usage deltas of another rank are acknowledged and not counted.
    UncountedUsage,
    /// The data of files that outgrow the strip is not copied.
    UnfilledStream,
    /// Streams of removed files remain.
    UnremovedStream,
    /// Evicted records are sometimes not found.
    LostRecord,
    /// A server reports new names as absent.
    LateName,
    /// A truncation is executed by only some of the data servers.
    OneSidedTruncation,
    /// Datafiles of removed files remain.
    UnremovedDatafile,
    /// Data servers report data as durable that is not.
    UnsyncedDatafile,
    /// The journal lacks changes of directories' policies.
    UnjournaledPolicy,
    /// The journal lacks the policy that a new inode inherits.
    UninheritedPolicy,
    /// The journal lacks one setting of the policy that a new inode inherits.
    UninheritedSetting,
    /// Names are removed without a check of permissions.
    UncheckedRemoval,
    /// A umask applies although there is a default access control list.
    UmaskedList,
    /// Group entries of access control lists do not apply to supplementary groups.
    IgnoredGroups,
    /// A change of a mode leaves the mask of the access control list unchanged.
    StaleMask,
    /// Quotas allow one file more than their limit, and report the limit as set.
    LaxQuota,
    /// Ranks do not exchange quotas.
    UnreportedQuota,
    /// A client takes a refused lock as granted.
    SharedLock,
    /// Unlocked ranges stay locked.
    UnreleasedLock,
    /// A restarted server gets no reclaimed locks.
    UnclaimedLock,
    /// A waiter is not notified when it gets the lock.
    UnreportedLock,
    /// A client assumes an exclusive lease on each directory that it changes.
    AssumedExclusive,
    /// A file that was acknowledged to callers is not made.
    UnmadeFile,
    /// A change of attributes that was acknowledged to callers is not made.
    UnsetAttributes,
    /// Requests do not wait for those that they follow.
    OvertakingRequest,
    /// File handles find inodes that have no name, and that no client has open.
    FoundRemoved,
    /// A server finds no inode by a file handle that it would have to load.
    LostPlace,
    /// Set-id bits survive writes by callers without privilege.
    KeptSetIds,
    /// The journal does not say that a file has lost its capability.
    UnjournaledRemoval,
    /// A new fragment of a directory lacks one of the names that another has ceded.
    LostName,
    /// An inode whose name goes to another fragment keeps the old one as its parent.
    UnmovedName,
    /// A change of a directory's permissions does not reach its other fragments.
    KeptRights,
    /// A directory's home server does not learn that another fragment has split.
    UnsetMap,
    /// A directory's home server gets a changed fragment map with the version of the former one.
    ReusedVersion,
    /// A fragment is not frozen while other ranks prepare a step of its split, merge or move.
    ForgottenFreeze,
    /// The fragments of a directory are renumbered when ranks have joined.
    RenumberedFragments,
    /// A listing ends with the first fragment.
    ShortListing,
    /// The entries of fragments count twice.
    DoubledFragment,
    /// A server reports a name that another fragment has as absent.
    UnroutedName,
    /// A server executes a forwarded request and does not recognise it when the client repeats it.
    RepeatedForward,
    /// A change of a directory's permissions revokes only the leases on its contents.
    KeptPermissions,
    /// A server answers past its lease.
    AnswersPastLease,
    /// A rank is taken over without fencing its earlier holders.
    UnfencedTakeover,
    /// A server that takes a rank over ignores the end of its journal.
    LostTail,
    /// A warm standby takes a rank over with what it has followed, without the end of the journal.
    TrustedStandby,
    /// The cluster map is replaced whatever version it has.
    UnguardedMap,
    /// A server that was removed or fenced goes on as if its lease were renewed.
    RenewedFenced,
    /// The stores of a server that leaves are copied before it has written everything out.
    CopiedStore,
    /// New fragments state more requests than there were.
    OverstatedRate,
    /// Balancers forget which fragments have just moved.
    IgnoredDwell,
    /// Balancers forget how many moves they have just begun.
    IgnoredBudget,
    /// A client acknowledges revocations of leases on directories' contents, and keeps listings.
    KeptListing,
    /// Ranks answer no request after their balancers have decided; the first three decisions of a
    /// run have no effect.
    BlockingDecision,
    /// Sessions end before their clients are fenced in the data pool.
    UnfencedClient,
    /// The sizes of files that clients have written are not measured.
    UnmeasuredFile,
    /// Changes of a store are not noted while it is migrated.
    UnnotedChange,
    /// The destination of a migration is complete before the source is marked.
    EarlyCompletion,
}

impl Mutation {
    pub const ALL: [Self; 65] = [
        Self::IgnoredRevocation,
        Self::UnwrittenJournal,
        Self::UnsyncedJournal,
        Self::ForgottenCompletion,
        Self::OneSidedCommit,
        Self::IgnoredDecision,
        Self::PrematureTrim,
        Self::TornCheckpoint,
        Self::UncountedUsage,
        Self::UnfilledStream,
        Self::UnremovedStream,
        Self::LostRecord,
        Self::LateName,
        Self::OneSidedTruncation,
        Self::UnremovedDatafile,
        Self::UnsyncedDatafile,
        Self::UnjournaledPolicy,
        Self::UninheritedPolicy,
        Self::UninheritedSetting,
        Self::UncheckedRemoval,
        Self::UmaskedList,
        Self::IgnoredGroups,
        Self::StaleMask,
        Self::LaxQuota,
        Self::UnreportedQuota,
        Self::SharedLock,
        Self::UnreleasedLock,
        Self::UnclaimedLock,
        Self::UnreportedLock,
        Self::AssumedExclusive,
        Self::UnmadeFile,
        Self::UnsetAttributes,
        Self::OvertakingRequest,
        Self::FoundRemoved,
        Self::LostPlace,
        Self::KeptSetIds,
        Self::UnjournaledRemoval,
        Self::LostName,
        Self::UnmovedName,
        Self::KeptRights,
        Self::UnsetMap,
        Self::ReusedVersion,
        Self::ForgottenFreeze,
        Self::RenumberedFragments,
        Self::ShortListing,
        Self::DoubledFragment,
        Self::UnroutedName,
        Self::RepeatedForward,
        Self::KeptPermissions,
        Self::AnswersPastLease,
        Self::UnfencedTakeover,
        Self::LostTail,
        Self::TrustedStandby,
        Self::UnguardedMap,
        Self::RenewedFenced,
        Self::CopiedStore,
        Self::OverstatedRate,
        Self::IgnoredDwell,
        Self::IgnoredBudget,
        Self::KeptListing,
        Self::BlockingDecision,
        Self::UnfencedClient,
        Self::UnmeasuredFile,
        Self::UnnotedChange,
        Self::EarlyCompletion,
    ];

    /// True if the mutant breaks a rule of balancers.
    pub fn is_of_balancers(self) -> bool {
        matches!(self, Self::IgnoredDwell | Self::IgnoredBudget | Self::BlockingDecision)
    }

    /// True if the mutant breaks a rule of clients that use the data pool.
    pub fn is_of_data_pool(self) -> bool {
        matches!(self, Self::UnfencedClient | Self::UnmeasuredFile)
    }

    /// True if the mutant breaks a rule of migrations.
    pub fn is_of_migrations(self) -> bool {
        matches!(self, Self::UnnotedChange | Self::EarlyCompletion)
    }

    /// The step of failover that the mutant leaves out.
    pub fn skipped(self) -> Option<FailoverStep> {
        match self {
            Self::AnswersPastLease => Some(FailoverStep::EndTerm),
            Self::UnfencedTakeover => Some(FailoverStep::Fence),
            Self::LostTail => Some(FailoverStep::Replay),
            Self::TrustedStandby => Some(FailoverStep::ReplayRest),
            Self::UnguardedMap => Some(FailoverStep::Guard),
            Self::RenewedFenced => Some(FailoverStep::Stop),
            _ => None,
        }
    }
}

/// Applies one mutant. Intermittent faults occur by count, so that a run stays a function of its
/// seed.
#[derive(Debug)]
pub struct Mutant {
    mutation: Mutation,
    count: u64,
    /// Requests that read a limit or ask for a lock: sender, receiver, number.
    requested: BTreeSet<(Node, Node, RequestId)>,
    /// Inodes that were requested by a file handle.
    sought: BTreeSet<(Node, Ino)>,
    /// Masks of access control lists.
    masks: BTreeMap<Ino, u32>,
    /// Directories whose attributes were in a reply.
    dirs: BTreeSet<Ino>,
    /// Ranks that serve nobody.
    blocked: BTreeSet<Node>,
}

impl Mutant {
    pub fn new(mutation: Mutation) -> Self {
        Self {
            mutation,
            count: 0,
            requested: BTreeSet::new(),
            sought: BTreeSet::new(),
            masks: BTreeMap::new(),
            dirs: BTreeSet::new(),
            blocked: BTreeSet::new(),
        }
    }

    fn arrives_at_data(&mut self, requested: ToData) -> Arrival {
        let is_ignored = match (self.mutation, &requested.request) {
            (Mutation::OneSidedTruncation, DataRequest::Truncate { .. }) => self.every(2),
            (Mutation::UnremovedDatafile, DataRequest::Remove { .. })
            | (Mutation::UnsyncedDatafile, DataRequest::Sync { .. }) => true,
            _ => false,
        };
        if is_ignored {
            let result = Ok(DataReply::Done);
            return Arrival::Answered(Message::FromData(FromData {
                id: requested.id,
                announced: false,
                result,
            }));
        }
        Arrival::Taken(Message::ToData(requested))
    }

    fn with_more_room(&mut self, from: Node, to: Node, mut message: Message) -> Message {
        match &mut message {
            Message::FromClient(FromClient::Request { id, request, .. }) => match request {
                Request::SetXattr { name, value, .. } if is_limit(name) && **value != *b"0" => add(value, 1),
                Request::GetXattr { name, .. } if is_limit(name) => {
                    self.requested.insert((from, to, *id));
                }
                _ => {}
            },
            Message::FromServer(FromServer::Reply { id, result: Ok(Reply::Bytes(reported)), .. })
                if self.requested.remove(&(to, from, *id)) =>
            {
                let mut value = reported[..].into();
                add(&mut value, -1);
                *reported = value.into();
            }
            _ => {}
        }
        message
    }

    fn with_lock(&mut self, from: Node, to: Node, mut message: Message) -> Message {
        match &mut message {
            Message::FromClient(FromClient::Request { id, request: Request::Lock { .. }, .. }) => {
                self.requested.insert((from, to, *id));
            }
            Message::FromServer(FromServer::Reply { id, result, .. })
                if *result == Err(Errno::EAGAIN) && self.requested.remove(&(to, from, *id)) =>
            {
                *result = Ok(Reply::Done);
            }
            _ => {}
        }
        message
    }

    /// Replaces the mask in a requested mode by the last one set.
    fn with_old_mask(&mut self, mut message: Message) -> Message {
        if let Message::FromClient(FromClient::Request { request, .. }) = &mut message {
            match request {
                Request::SetXattr { ino, name, value, .. } if **name == *b"system.posix_acl_access" => {
                    self.masks.remove(ino);
                    self.masks.extend(mask(value).map(|mask| (*ino, mask)));
                }
                Request::SetAttr { ino, set: SetAttr { perm: Some(perm), .. } } => {
                    if let Some(mask) = self.masks.get(ino) {
                        *perm = *perm & !0o070 | mask << 3;
                    }
                }
                _ => {}
            }
        }
        message
    }

    /// Revokes only the lease on a directory's contents.
    fn with_kept_permissions(&mut self, mut message: Message) -> Message {
        match &mut message {
            Message::FromServer(FromServer::Reply { touched, result, .. }) => {
                let attr = match result {
                    Ok(Reply::Attr(attr)) => Some(&*attr),
                    Ok(Reply::Entry(entry)) => Some(&entry.attr),
                    _ => None,
                };
                let dirs = touched.attrs.iter().chain(attr).filter(|attr| attr.kind == FileType::Directory);
                self.dirs.extend(dirs.map(|attr| attr.ino));
            }
            Message::FromServer(FromServer::Revoke { lease, .. }) => {
                if let Lease::Inode { ino } = *lease
                    && self.dirs.contains(&ino)
                {
                    *lease = Lease::Contents { dir: ino };
                }
            }
            _ => {}
        }
        message
    }

    fn every(&mut self, times: u64) -> bool {
        self.count += 1;
        self.count.is_multiple_of(times)
    }
}

impl Mutator for Mutant {
    fn arrives(&mut self, from: Node, to: Node, message: Message) -> Arrival {
        match (self.mutation, message) {
            (Mutation::IgnoredRevocation, Message::FromServer(FromServer::Revoke { number, .. })) => {
                Arrival::Answered(Message::FromClient(FromClient::Revoked { number }))
            }
            (
                Mutation::KeptListing,
                Message::FromServer(FromServer::Revoke { number, lease: Lease::Contents { .. } }),
            ) => Arrival::Answered(Message::FromClient(FromClient::Revoked { number })),
            (Mutation::LateName, Message::FromServer(FromServer::Reply { id, touched, result, .. })) => {
                let result = match result {
                    Ok(Reply::Entry(_)) if self.every(50) => Ok(Reply::Absent { cacheable: false }),
                    result => result,
                };
                Arrival::Taken(reply(id, touched, result))
            }
            (Mutation::BlockingDecision, Message::FromClient(FromClient::Request { .. }))
                if self.blocked.contains(&to) =>
            {
                Arrival::Swallowed
            }
            (Mutation::OneSidedCommit, Message::Peer(PeerMessage::Finish { id, vote: Some(_) })) => {
                Arrival::Taken(Message::Peer(PeerMessage::Finish { id, vote: None }))
            }
            (Mutation::IgnoredDecision, Message::Peer(PeerMessage::Finish { id, vote: Some(_) })) => {
                finished(id)
            }
            (Mutation::UncountedUsage, Message::Peer(PeerMessage::Usage { last, .. })) => {
                Arrival::Answered(Message::Peer(PeerMessage::Counted { last, limits: Vec::new() }))
            }
            (Mutation::RepeatedForward, Message::Peer(mut message)) => {
                if let PeerMessage::Forward { id, .. } = &mut message {
                    id.0 ^= 1 << 40;
                }
                Arrival::Taken(Message::Peer(message))
            }
            (Mutation::UnreportedQuota, Message::Peer(PeerMessage::Counted { last, .. })) => {
                Arrival::Taken(Message::Peer(PeerMessage::Counted { last, limits: Vec::new() }))
            }
            (
                Mutation::LostName
                | Mutation::UnmovedName
                | Mutation::KeptRights
                | Mutation::UnsetMap
                | Mutation::ReusedVersion
                | Mutation::RenumberedFragments
                | Mutation::OverstatedRate,
                message,
            ) => Arrival::Taken(with_wrong_edits(self.mutation, message)),
            (Mutation::ShortListing | Mutation::DoubledFragment | Mutation::UnroutedName, message) => {
                Arrival::Taken(with_wrong_fragment(self.mutation, message))
            }
            (Mutation::KeptPermissions, message) => Arrival::Taken(self.with_kept_permissions(message)),
            (Mutation::LaxQuota, message) => Arrival::Taken(self.with_more_room(from, to, message)),
            (Mutation::SharedLock, message) => Arrival::Taken(self.with_lock(from, to, message)),
            (Mutation::OvertakingRequest, mut message) => {
                if let Message::FromClient(FromClient::Request { follows, .. }) = &mut message {
                    follows.clear();
                }
                Arrival::Taken(message)
            }
            (Mutation::UmaskedList, mut message) => {
                if let Message::FromClient(FromClient::Request { request, .. }) = &mut message
                    && let Request::Create { perm, umask, .. } = request
                {
                    *perm &= !*umask;
                }
                Arrival::Taken(message)
            }
            (Mutation::UncheckedRemoval, mut message) => {
                if let Message::FromClient(FromClient::Request { caller, request, .. }) = &mut message
                    && let Request::Unlink { .. } | Request::RmDir { .. } = request
                {
                    *caller = Caller::SERVER;
                }
                Arrival::Taken(message)
            }
            (Mutation::IgnoredGroups, mut message) => {
                if let Message::FromClient(FromClient::Request { caller, .. }) = &mut message {
                    caller.groups = Some([].into());
                }
                Arrival::Taken(message)
            }
            (Mutation::StaleMask, message) => Arrival::Taken(self.with_old_mask(message)),
            (
                Mutation::KeptSetIds,
                Message::FromClient(FromClient::Request {
                    id,
                    request: Request::RemovePrivileges { .. },
                    ..
                }),
            ) => {
                let removed = Reply::PrivilegesRemoved { changed: false };
                Arrival::Answered(reply(id, Touched::default(), Ok(removed)))
            }
            (Mutation::KeptSetIds, mut message) => {
                if let Message::FromClient(FromClient::Request { request, .. }) = &mut message
                    && let Request::Write { kill_suid_gid, .. } = request
                {
                    *kill_suid_gid = false;
                }
                Arrival::Taken(message)
            }
            (Mutation::LostPlace, message) => {
                if let Message::FromClient(FromClient::Request { request, .. }) = &message
                    && let Request::Find { ino, kind: None, .. } = request
                {
                    self.sought.insert((to, *ino));
                }
                Arrival::Taken(message)
            }
            (Mutation::FoundRemoved, mut message) => {
                if let Message::FromClient(FromClient::Request { request, .. }) = &mut message
                    && let Request::Find { kind: kind @ None, .. } = request
                {
                    *kind = Some(FileType::Regular);
                }
                Arrival::Taken(message)
            }
            (Mutation::UnreportedLock, Message::FromServer(FromServer::Locked { .. })) => Arrival::Swallowed,
            (Mutation::AssumedExclusive, mut message) => {
                if let Message::FromServer(FromServer::Reply { touched, .. }) = &mut message {
                    let dir = touched.attrs.iter().find(|attr| attr.kind == FileType::Directory);
                    touched.exclusive = dir.map(|attr| attr.ino);
                }
                Arrival::Taken(message)
            }
            (
                Mutation::UnmadeFile,
                Message::FromClient(FromClient::Request {
                    id,
                    request: Request::Create { writeback: Some(_), .. },
                    ..
                }),
            ) => Arrival::Answered(reply(id, Touched::default(), Err(Errno::ENOSPC))),
            (
                Mutation::UnsetAttributes,
                Message::FromClient(FromClient::Request {
                    id,
                    request: Request::SetAttr { set: SetAttr { time: Some(_), .. }, .. },
                    ..
                }),
            ) => Arrival::Answered(reply(id, Touched::default(), Err(Errno::EROFS))),
            (mutation, Message::FromClient(FromClient::Request { id, request, .. }))
                if is_ignored_lock(mutation, &request) =>
            {
                Arrival::Answered(reply(id, Touched::default(), Ok(Reply::Done)))
            }
            (_, Message::ToData(requested)) => self.arrives_at_data(requested),
            (_, message) => Arrival::Taken(message),
        }
    }

    fn io(&mut self, node: Node, io: &mut Io) -> Option<Result<IoDone, Errno>> {
        match (self.mutation, io) {
            (Mutation::UnwrittenJournal, Io::Journal { frame, .. }) => {
                let (end, used) = (Position(self.count), 0);
                self.count += frame.len() as u64;
                Some(Ok(IoDone::Journaled { end, used, frame: std::mem::take(frame) }))
            }
            (Mutation::UnsyncedJournal, Io::Journal { sync, .. }) => {
                *sync = false;
                None
            }
            (Mutation::UnsyncedJournal, Io::Sync) => Some(Ok(IoDone::Synced)),
            (Mutation::ForgottenCompletion, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::Completed { id, .. } = event {
                        *id = RequestId(0);
                    }
                });
                None
            }
            (Mutation::UnjournaledPolicy, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::SetPolicy { policy, .. } = event {
                        *policy = None;
                    }
                });
                None
            }
            (Mutation::UnjournaledRemoval, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::SetXattr { name, value: None, .. } = event
                        && **name == *CAPABILITY
                    {
                        *name = Box::from(*b"user.none");
                    }
                });
                None
            }
            (Mutation::UninheritedPolicy, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::Create { inode, .. } | Event::TmpFile { inode } = event {
                        inode.rare.policy = None;
                    }
                });
                None
            }
            (Mutation::UninheritedSetting, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::Create { inode, .. } = event
                        && let Some(policy) = &mut inode.rare.policy
                    {
                        Arc::make_mut(policy).unset(Key::Stuffing);
                    }
                });
                None
            }
            (Mutation::PrematureTrim, Io::Stage { .. }) => Some(Ok(IoDone::Staged)),
            (Mutation::TornCheckpoint, Io::Stage { writes }) => {
                *writes = writes.iter().take(writes.len().saturating_sub(1)).cloned().collect();
                None
            }
            (Mutation::UnfilledStream, Io::Stream(StreamCall::Fill { bytes, .. }, _)) => {
                *bytes = vec![0; bytes.len()].into();
                None
            }
            (Mutation::UnfencedClient, Io::Admit { .. }) => Some(Ok(IoDone::Admitted)),
            (Mutation::UnmeasuredFile, Io::Stream(StreamCall::Measure(files), _)) => {
                let stat = |(_, size): &(_, u64)| StreamStat { size: *size, ..StreamStat::default() };
                Some(Ok(IoDone::Stream(StreamDone::Stats(files.iter().map(stat).collect()))))
            }
            (Mutation::UnremovedStream, Io::Stream(StreamCall::Remove { .. }, _)) => {
                Some(Ok(IoDone::Stream(StreamDone::Done)))
            }
            (Mutation::LostPlace, Io::Load(Load::Record { key, .. }))
                if InoRecord::from_key(key).is_some_and(|(record, ino)| {
                    record == InoRecord::Place && self.sought.remove(&(node, ino))
                }) =>
            {
                Some(Ok(IoDone::Record(None)))
            }
            (Mutation::LostRecord, Io::Load(_)) if self.every(20) => Some(Ok(IoDone::Record(None))),
            _ => None,
        }
    }

    fn balances(&mut self, snapshot: &mut MetricsSnapshot) {
        match self.mutation {
            Mutation::IgnoredDwell => {
                snapshot.fragments.iter_mut().for_each(|fragment| fragment.moved_ms = None);
            }
            Mutation::IgnoredBudget => snapshot.recent_moves_ms.clear(),
            Mutation::BlockingDecision => {
                self.count += 1;
                if self.count > 3 {
                    self.blocked.insert(Node(snapshot.whoami.into()));
                }
            }
            _ => {}
        }
    }

    fn freezes_fragments(&self) -> bool {
        self.mutation != Mutation::ForgottenFreeze
    }

    fn copies_stores(&self) -> bool {
        self.mutation == Mutation::CopiedStore
    }

    fn notes_changes(&self) -> bool {
        self.mutation != Mutation::UnnotedChange
    }

    fn completes_early(&self) -> bool {
        self.mutation == Mutation::EarlyCompletion
    }

    fn skips(&self, step: FailoverStep) -> bool {
        self.mutation.skipped() == Some(step)
    }
}

fn is_ignored_lock(mutation: Mutation, request: &Request) -> bool {
    match request {
        Request::Unlock { .. } => mutation == Mutation::UnreleasedLock,
        Request::ReclaimLocks { .. } => mutation == Mutation::UnclaimedLock,
        _ => false,
    }
}

fn reply(id: RequestId, touched: Touched, result: Result<Reply, Errno>) -> Message {
    Message::FromServer(FromServer::Reply { id, lease_ms: 0, announced: false, touched, result })
}

fn finished(id: TransactionId) -> Arrival {
    Arrival::Answered(Message::Peer(PeerMessage::Finished { id }))
}
