//! Broken variants of the program, to see that random runs find out. What is broken sits between machines and what carries their
//! messages and does their I/O, so that there is nothing of it in the machines.

use std::collections::{BTreeMap, BTreeSet};

use espalier_meta::{Event, Io, IoDone, PeerMessage, StreamCall, StreamDone, TransactionId};
use espalier_proto::{
    DataReply, DataRequest, Errno, FileType, FromClient, FromData, FromServer, Ino, Position, Reply, Request,
    RequestId, SetAttr, ToData, Touched,
};

use crate::message::Message;
use crate::observe::{Arrival, Node, Saboteur};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// A client confirms revocations, and goes on believing what it has cached.
    IgnoredRevocation,
    /// A server answers before its journal has been written.
    UnwrittenJournal,
    /// The journal is not made durable when that is asked for.
    UnsyncedJournal,
    /// What was completed is not noted, so that what is sent again is done again.
    ForgottenCompletion,
    /// A rename is done by one rank, while the other takes it for aborted.
    OneSidedCommit,
    /// What another rank has decided is confirmed and not done.
    IgnoredDecision,
    /// The journal is trimmed of what no checkpoint has.
    EarlyTrim,
    /// Of a checkpoint the last piece is not written.
    TornCheckpoint,
    /// What a rank owes another is confirmed and not counted.
    UncountedUsage,
    /// The bytes of files that outgrow the strip are not copied.
    UnfilledStream,
    /// The streams of removed files stay.
    KeptStream,
    /// What is evicted is sometimes not found again.
    LostRecord,
    /// A server tells of names that have just been made that they are not there.
    LateName,
    /// A truncation is done by some of the data servers.
    OneSidedTruncation,
    /// The datafiles of removed files stay.
    KeptDatafile,
    /// Data servers say that something is durable that is not.
    UnsyncedDatafile,
    /// The journal does not say what a directory's policy has become.
    UnjournaledPolicy,
    /// Nor which policy a new inode has from its directory.
    UninheritedPolicy,
    /// A umask takes rights away where there is a default access control list.
    UmaskedList,
    /// Entries of access control lists for groups are not about their supplementary members.
    IgnoredGroups,
    /// A change of a mode leaves the mask of an access control list as it is.
    KeptMask,
    /// Quotas allow one file more than was asked for, and tell what was asked for.
    LaxQuota,
    /// What quotas there are ranks do not tell each other.
    UntoldQuota,
    /// Who is refused a lock takes it for given.
    SharedLock,
    /// What is unlocked stays locked.
    KeptLock,
    /// A server that has begun again is told of no locks.
    UnclaimedLock,
    /// Who waits for a lock is not told that he has it.
    UntoldLock,
    /// A client takes itself to be alone in each directory that it changes.
    AssumedAlone,
    /// A file of which callers have been told is not made.
    UnmadeFile,
}

/// A frame begins with the sequence number of its first event.
const SEQUENCE: usize = 8;

impl Breakage {
    pub const ALL: [Self; 29] = [
        Self::IgnoredRevocation,
        Self::UnwrittenJournal,
        Self::UnsyncedJournal,
        Self::ForgottenCompletion,
        Self::OneSidedCommit,
        Self::IgnoredDecision,
        Self::EarlyTrim,
        Self::TornCheckpoint,
        Self::UncountedUsage,
        Self::UnfilledStream,
        Self::KeptStream,
        Self::LostRecord,
        Self::LateName,
        Self::OneSidedTruncation,
        Self::KeptDatafile,
        Self::UnsyncedDatafile,
        Self::UnjournaledPolicy,
        Self::UninheritedPolicy,
        Self::UmaskedList,
        Self::IgnoredGroups,
        Self::KeptMask,
        Self::LaxQuota,
        Self::UntoldQuota,
        Self::SharedLock,
        Self::KeptLock,
        Self::UnclaimedLock,
        Self::UntoldLock,
        Self::AssumedAlone,
        Self::UnmadeFile,
    ];
}

/// Breaks one thing. What is broken only now and then is so by count: a run stays a function of its seed.
#[derive(Debug)]
pub struct Spoiler {
    what: Breakage,
    count: u64,
    /// Requests that tell of a limit, or ask for a lock, with who has asked whom.
    asked: BTreeSet<(Node, Node, RequestId)>,
    /// Of access control lists.
    masks: BTreeMap<Ino, u32>,
}

impl Spoiler {
    pub fn new(what: Breakage) -> Self {
        Self { what, count: 0, asked: BTreeSet::new(), masks: BTreeMap::new() }
    }

    fn arrives_at_data(&mut self, asked: ToData) -> Arrival {
        let is_ignored = match (self.what, &asked.request) {
            (Breakage::OneSidedTruncation, DataRequest::Truncate { .. }) => self.every(2),
            (Breakage::KeptDatafile, DataRequest::Remove { .. })
            | (Breakage::UnsyncedDatafile, DataRequest::Sync { .. }) => true,
            _ => false,
        };
        if is_ignored {
            let result = Ok(DataReply::Done);
            return Arrival::Answered(Message::FromData(FromData { id: asked.id, announced: false, result }));
        }
        Arrival::Taken(Message::ToData(asked))
    }

    fn with_more_room(&mut self, from: Node, to: Node, mut message: Message) -> Message {
        match &mut message {
            Message::FromClient(FromClient::Request { id, request, .. }) => match request {
                Request::SetXattr { name, value, .. } if is_limit(name) && **value != *b"0" => add(value, 1),
                Request::GetXattr { name, .. } if is_limit(name) => {
                    self.asked.insert((from, to, *id));
                }
                _ => {}
            },
            Message::FromServer(FromServer::Reply { id, result: Ok(Reply::Bytes(told)), .. })
                if self.asked.remove(&(to, from, *id)) =>
            {
                let mut value = told[..].into();
                add(&mut value, -1);
                *told = value.into();
            }
            _ => {}
        }
        message
    }

    fn with_lock(&mut self, from: Node, to: Node, mut message: Message) -> Message {
        match &mut message {
            Message::FromClient(FromClient::Request { id, request: Request::Lock { .. }, .. }) => {
                self.asked.insert((from, to, *id));
            }
            Message::FromServer(FromServer::Reply { id, result, .. })
                if *result == Err(Errno::EAGAIN) && self.asked.remove(&(to, from, *id)) =>
            {
                *result = Ok(Reply::Done);
            }
            _ => {}
        }
        message
    }

    /// A mode that is asked for has the mask that was set last.
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

    fn every(&mut self, times: u64) -> bool {
        self.count += 1;
        self.count.is_multiple_of(times)
    }
}

impl Saboteur for Spoiler {
    fn arrives(&mut self, from: Node, to: Node, message: Message) -> Arrival {
        match (self.what, message) {
            (Breakage::IgnoredRevocation, Message::FromServer(FromServer::Revoke { number, .. })) => {
                Arrival::Answered(Message::FromClient(FromClient::Revoked { number }))
            }
            (Breakage::LateName, Message::FromServer(FromServer::Reply { id, touched, result, .. })) => {
                let result = match result {
                    Ok(Reply::Entry(_)) if self.every(50) => Ok(Reply::Absent { cacheable: false }),
                    result => result,
                };
                Arrival::Taken(reply(id, touched, result))
            }
            (Breakage::OneSidedCommit, Message::Peer(PeerMessage::Finish { id, vote: Some(_) })) => {
                Arrival::Taken(Message::Peer(PeerMessage::Finish { id, vote: None }))
            }
            (Breakage::IgnoredDecision, Message::Peer(PeerMessage::Finish { id, vote: Some(_) })) => {
                finished(id)
            }
            (Breakage::UncountedUsage, Message::Peer(PeerMessage::Usage { last, .. })) => {
                Arrival::Answered(Message::Peer(PeerMessage::Counted { last, limits: Vec::new() }))
            }
            (Breakage::UntoldQuota, Message::Peer(PeerMessage::Counted { last, .. })) => {
                Arrival::Taken(Message::Peer(PeerMessage::Counted { last, limits: Vec::new() }))
            }
            (Breakage::LaxQuota, message) => Arrival::Taken(self.with_more_room(from, to, message)),
            (Breakage::SharedLock, message) => Arrival::Taken(self.with_lock(from, to, message)),
            (Breakage::UmaskedList, mut message) => {
                if let Message::FromClient(FromClient::Request { request, .. }) = &mut message
                    && let Request::Create { perm, umask, .. } = request
                {
                    *perm &= !*umask;
                }
                Arrival::Taken(message)
            }
            (Breakage::IgnoredGroups, mut message) => {
                if let Message::FromClient(FromClient::Request { caller, .. }) = &mut message {
                    caller.groups = Some([].into());
                }
                Arrival::Taken(message)
            }
            (Breakage::KeptMask, message) => Arrival::Taken(self.with_old_mask(message)),
            (Breakage::UntoldLock, Message::FromServer(FromServer::Locked { .. })) => Arrival::Swallowed,
            (Breakage::AssumedAlone, mut message) => {
                if let Message::FromServer(FromServer::Reply { touched, .. }) = &mut message {
                    let dir = touched.attrs.iter().find(|attr| attr.kind == FileType::Directory);
                    touched.exclusive = dir.map(|attr| attr.ino);
                }
                Arrival::Taken(message)
            }
            (
                Breakage::UnmadeFile,
                Message::FromClient(FromClient::Request {
                    id,
                    request: Request::Create { early: Some(_), .. },
                    ..
                }),
            ) => Arrival::Answered(reply(id, Touched::default(), Err(Errno::ENOSPC))),
            (what, Message::FromClient(FromClient::Request { id, request, .. }))
                if is_ignored_lock(what, &request) =>
            {
                Arrival::Answered(reply(id, Touched::default(), Ok(Reply::Done)))
            }
            (_, Message::ToData(asked)) => self.arrives_at_data(asked),
            (_, message) => Arrival::Taken(message),
        }
    }

    fn io(&mut self, _: Node, io: &mut Io) -> Option<Result<IoDone, Errno>> {
        match (self.what, io) {
            (Breakage::UnwrittenJournal, Io::Journal { frame, .. }) => {
                let (end, used) = (Position(self.count), 0);
                self.count += frame.len() as u64;
                Some(Ok(IoDone::Journaled { end, used, frame: std::mem::take(frame) }))
            }
            (Breakage::UnsyncedJournal, Io::Journal { sync, .. }) => {
                *sync = false;
                None
            }
            (Breakage::UnsyncedJournal, Io::Sync) => Some(Ok(IoDone::Synced)),
            (Breakage::ForgottenCompletion, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::Completed { id, .. } = event {
                        *id = RequestId(0);
                    }
                });
                None
            }
            (Breakage::UnjournaledPolicy, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::SetPolicy { policy, .. } = event {
                        *policy = None;
                    }
                });
                None
            }
            (Breakage::UninheritedPolicy, Io::Journal { frame, .. }) => {
                *frame = changed(frame, |event| {
                    if let Event::Create { inode, .. } | Event::TmpFile { inode } = event {
                        inode.rare.policy = None;
                    }
                });
                None
            }
            (Breakage::EarlyTrim, Io::Stage { .. }) => Some(Ok(IoDone::Staged)),
            (Breakage::TornCheckpoint, Io::Stage { writes }) => {
                *writes = writes.iter().take(writes.len().saturating_sub(1)).cloned().collect();
                None
            }
            (Breakage::UnfilledStream, Io::Stream(StreamCall::Fill { bytes, .. }, _)) => {
                *bytes = vec![0; bytes.len()].into();
                None
            }
            (Breakage::KeptStream, Io::Stream(StreamCall::Remove { .. }, _)) => {
                Some(Ok(IoDone::Stream(StreamDone::Done)))
            }
            (Breakage::LostRecord, Io::Load(_)) if self.every(20) => Some(Ok(IoDone::Record(None))),
            _ => None,
        }
    }
}

fn is_ignored_lock(what: Breakage, request: &Request) -> bool {
    match request {
        Request::Unlock { .. } => what == Breakage::KeptLock,
        Request::ReclaimLocks { .. } => what == Breakage::UnclaimedLock,
        _ => false,
    }
}

fn is_limit(name: &[u8]) -> bool {
    *name == *b"user.espalier.quota.max_files"
}

/// Of a list as the kernel encodes it.
fn mask(list: &[u8]) -> Option<u32> {
    let entry = list.get(4..)?.chunks_exact(8).find(|entry| entry[0] == 16)?;
    Some(entry[2].into())
}

/// To a decimal number.
fn add(value: &mut Box<[u8]>, more: i64) {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    *value = number.map_or(0, |number| number + more).to_string().into_bytes().into();
}

fn reply(id: RequestId, touched: Touched, result: Result<Reply, Errno>) -> Message {
    Message::FromServer(FromServer::Reply { id, lease_ms: 0, announced: false, touched, result })
}

fn finished(id: TransactionId) -> Arrival {
    Arrival::Answered(Message::Peer(PeerMessage::Finished { id }))
}

/// A frame with other events.
fn changed(frame: &[u8], change: impl Fn(&mut Event)) -> Vec<u8> {
    let (sequence, mut rest) = frame.split_at(frame.len().min(SEQUENCE));
    let mut changed = sequence.to_vec();
    while let Ok((mut event, later)) = Event::decode(rest) {
        change(&mut event);
        event.encode(&mut changed);
        rest = later;
    }
    changed
}
