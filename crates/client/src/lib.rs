//! The client's state machine, shared by all frontends (FUSE, library). It advances a [`Call`]
//! through its steps: requests to the metadata server, reads and writes of streams.
//!
//! It never blocks. The crate is `no_std`, so that the compiler rejects files, sockets, clocks and
//! threads.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod data_link;
mod delegated;
mod link;
mod locations;
mod locks;
mod payload;
mod sessions;
mod striped;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{
    Access, Attr, Capacity, Copied, Delegation, Dirent, Entry, Errno, FileType, Ino, Kind, LAST_CURSOR,
    Location, Lock, Name, NewNode, OpenHow, Opened, RangeOp, Rank, Reply, Request, StreamIo, Time,
    XattrPresence,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use delegated::{DataPath, PoolAccess};
use locations::Locations;

pub use cache::{Binding, Cache, CacheCounts, Changes, Term, Users};
pub use data_link::{DataEvent, DataLink};
pub use link::{Ended, Link};
pub use payload::Payload;
pub use sessions::{
    Actions, DataOperation, DataOutcome, FragmentCounts, FrontendEvent, IncomingCall, Interrupt, Sessions,
    WalkCounts,
};
pub use striped::{Striped, StripedStep, Work};

/// An operation of a program, as a frontend receives it.
#[derive(Clone, Debug)]
pub enum Call<'a> {
    /// Any request that only the metadata server handles; also `Open`, `Create` and `TmpFile`.
    Request(Request),
    Range(RangeCall<'a>),
    Release {
        ino: Ino,
    },
}

/// An operation on a range of a file's bytes.
#[derive(Clone, Debug)]
pub struct RangeCall<'a> {
    /// The file; of a copy, the target.
    pub ino: Ino,
    /// Only the client itself writes lists: acknowledged writes that it has gathered.
    pub op: RangeOp,
    /// The bytes to write.
    pub data: Payload<'a>,
    /// Do not count a read as an access (`O_NOATIME`).
    pub noatime: bool,
    /// The caller lacks `CAP_FSETID`: a changed file loses its set-id bits.
    pub kill_suid_gid: bool,
}

/// Limit of one copy, in bytes; a longer copy could not be interrupted.
const MAX_COPY_BYTES: u64 = 1 << 30;

impl RangeCall<'_> {
    /// The operation on the file's stream.
    fn stream_io(&self) -> StreamIo {
        StreamIo::new(
            self.ino,
            match self.op {
                RangeOp::Copy { from, from_offset, offset, length } => {
                    RangeOp::Copy { from, from_offset, offset, length: length.min(MAX_COPY_BYTES) }
                }
                op => op,
            },
        )
    }

    /// Sends the operation to the metadata server, which has the bytes of small files.
    fn ask(&self, kill_suid_gid: bool) -> Next {
        let Self { ino, op, noatime, .. } = *self;
        Next::Ask(match op {
            RangeOp::Read { offset, size } => Request::Read { ino, offset, size, noatime },
            RangeOp::Write { offset, .. } => {
                Request::Write { ino, offset, data: self.data.to_bytes(), kill_suid_gid, time: None }
            }
            RangeOp::Allocate { offset, length, mode } => Request::Allocate { ino, offset, length, mode },
            RangeOp::Seek { offset, what } => Request::Seek { ino, offset, what },
            RangeOp::WriteList { .. } | RangeOp::Copy { .. } => return Next::Answer(Err(Errno::EIO)),
        })
    }
}

impl<'a> Call<'a> {
    /// A call without bytes to write.
    pub fn range(ino: Ino, op: RangeOp, kill_suid_gid: bool) -> Self {
        Self::Range(RangeCall { ino, op, data: Payload::EMPTY, noatime: false, kill_suid_gid })
    }

    pub fn read(ino: Ino, offset: u64, size: u32, noatime: bool) -> Self {
        let (op, data) = (RangeOp::Read { offset, size }, Payload::EMPTY);
        Self::Range(RangeCall { ino, op, data, noatime, kill_suid_gid: false })
    }

    pub fn write(ino: Ino, offset: u64, data: Payload<'a>, kill_suid_gid: bool) -> Self {
        let op = RangeOp::write(offset, &data);
        Self::Range(RangeCall { ino, op, data, noatime: false, kill_suid_gid })
    }
}

impl Call<'_> {
    /// The file whose bytes the call reads or changes; `None` for copies.
    pub fn stream(&self) -> Option<Ino> {
        match self {
            Call::Range(range) if range.op.source().is_none() => Some(range.ino),
            _ => None,
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Call::Request(request) => request.kind(),
            Call::Range(range) => range.op.kind(),
            Call::Release { .. } => Kind::Release,
        }
    }

    /// As [`Request::charged_inode`].
    pub fn charged_inode(&self) -> Ino {
        match self {
            Call::Request(request) => request.charged_inode(),
            Call::Range(RangeCall { ino, .. }) | Call::Release { ino } => *ino,
        }
    }

    /// The file whose bytes the call changes.
    pub fn writes(&self) -> Option<Ino> {
        match self {
            Call::Range(range) if range.op.is_change() => Some(range.ino),
            _ => None,
        }
    }

    /// The bytes to write.
    pub fn data(&self) -> &[u8] {
        if let Call::Range(range) = self { &range.data } else { &[] }
    }

    /// As [`Self::data`], to be sent.
    fn bytes_to_write(&self) -> Bytes {
        if let Call::Range(range) = self { range.data.to_bytes() } else { Bytes::new() }
    }

    /// The file whose mode the server has changed, according to a reply that precedes the rest of
    /// the call.
    pub fn unprivileged(&self, reply: &Result<Reply, Errno>) -> Option<Ino> {
        match (self, reply) {
            (Call::Range(range), Ok(Reply::PrivilegesRemoved { changed: true })) => Some(range.ino),
            _ => None,
        }
    }

    /// The file that a plain `open` call opens; `None` for other calls.
    pub fn opens(&self) -> Option<Ino> {
        match self {
            Call::Request(Request::Open { ino, .. }) => Some(*ino),
            _ => None,
        }
    }

    /// The file whose bytes the call has changed or may have changed.
    fn changed(&self, result: &Result<Answer, Errno>) -> Option<Ino> {
        let truncated = |how: &OpenHow| how.truncate;
        match (self, result) {
            (Call::Range(_), _) => self.writes(),
            (Call::Request(Request::SetAttr { ino, set }), _) => set.size.map(|_| *ino),
            (Call::Request(Request::Open { ino, how }), _) => Some(*ino).filter(|_| truncated(how)),
            (Call::Request(Request::Create { open, .. }), Ok(Answer::Created(entry, _))) => {
                Some(entry.attr.ino).filter(|_| open.as_ref().is_some_and(truncated))
            }
            _ => None,
        }
    }

    /// The file that the call has opened for writing.
    fn opened_to_write(&self, answer: &Answer) -> Option<Ino> {
        match (self, answer) {
            (Call::Request(Request::Open { how, .. }), Answer::Opened(opening)) => {
                how.access.contains(Access::WRITE).then_some(opening.ino)
            }
            (_, Answer::Created(_, opening)) => Some(opening.ino),
            _ => None,
        }
    }

    /// The same call with owned data, so that it can be stored while it is pending.
    pub fn into_owned(self) -> Call<'static> {
        match self {
            Call::Range(RangeCall { ino, op, data, noatime, kill_suid_gid }) => {
                let data = data.into_owned();
                Call::Range(RangeCall { ino, op, data, noatime, kill_suid_gid })
            }
            Call::Request(request) => Call::Request(request),
            Call::Release { ino } => Call::Release { ino },
        }
    }
}

/// The next step of a call.
#[derive(Debug)]
pub enum Next {
    /// Send this request to the metadata server; its reply goes to [`Client::reply`].
    Ask(Request),
    /// The name was resolved to an inode at another rank: look the inode up there. The reply goes
    /// to [`Client::found`].
    Find(Request, RemoteEntry),
    /// Answer the caller at once, and send this request; its reply is ignored.
    Notify(Request, Answer),
    /// As [`Self::Notify`], for the close of this file; it may be delayed and batched.
    Release(Ino),
    /// Do this I/O on streams; its result is the answer.
    Stream(StreamIo),
    /// Execute each piece of a list as a write of its own.
    Apart,
    /// As [`Self::Stream`], by requests to data servers, or by a read or write in the data pool. If
    /// the capability is refused, [`Client::stale`] follows.
    Data(Arc<Delegation>, Work),
    Answer(Result<Answer, Errno>),
}

impl Next {
    /// The server that gets the request.
    fn rank(&self, locations: &Locations) -> Rank {
        match self {
            Self::Answer(_) | Self::Apart => Rank(0),
            Self::Ask(request) | Self::Find(request, _) | Self::Notify(request, _) => {
                locations.of_request(request)
            }
            Self::Release(ino) => locations.of(*ino),
            Self::Stream(io) => locations.of(io.ino),
            Self::Data(delegation, _) => locations.of(delegation.capability.ino),
        }
    }

    /// Marks the request as a write that the caller considers done already.
    fn mark_acknowledged(&mut self) {
        if let Self::Stream(StreamIo { acknowledged, .. }) | Self::Ask(Request::Extend { acknowledged, .. }) =
            self
        {
            *acknowledged = true;
        }
    }
}

/// A remote dentry: the directory's rank has returned the name, and the inode's rank is asked for
/// the attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEntry {
    /// The directory that holds the name.
    pub dir: Ino,
    pub ino: Ino,
    pub kind: FileType,
    /// As in [`Entry`].
    pub cacheable: bool,
    /// The reply carried a lease on the name.
    pub leased: bool,
}

/// The result of a successful call.
#[derive(Debug)]
pub enum Answer {
    Done,
    Entry(Entry),
    /// The result of a lookup without size, link count and times: of a striped file when a data
    /// server is unreachable, or of a directory whose names change.
    Unmeasured(Entry),
    Absent {
        cacheable: bool,
    },
    Attr(Attr),
    Bytes(Bytes),
    Written(u32),
    Offset(u64),
    Opened(Opening),
    Created(Entry, Opening),
    Listing {
        entries: Vec<Dirent>,
        parent: Ino,
        end: bool,
    },
    StatFs(Capacity),
    Removed {
        dir: Ino,
        name: Name,
    },
    Copied(Box<Copied>),
    InTheWay(Option<Lock>),
}

impl Answer {
    /// The result of a call that ends with stream I/O.
    ///
    /// # Errors
    /// `EIO` for a reply that no stream I/O has.
    pub fn of_stream(reply: Reply) -> Result<Self, Errno> {
        match reply {
            Reply::Done => Ok(Self::Done),
            Reply::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            Reply::Written(written) => Ok(Self::Written(written)),
            Reply::Offset(offset) => Ok(Self::Offset(offset)),
            _ => Err(Errno::EIO),
        }
    }
}

/// The result of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub ino: Ino,
    /// The open updated the access time.
    pub accessed: bool,
    /// Another client has the file open and may write to it.
    pub shared: bool,
    /// The kernel's cached pages are still valid.
    pub keep_cache: bool,
    /// The kernel may read and write the stream itself (passthrough). All openings of a file agree
    /// on this.
    pub passthrough: bool,
}

/// State of an open file.
#[derive(Debug, Default)]
struct OpenFile {
    opens: u32,
    streamed: bool,
    /// The kernel passes reads and writes through, for all openings of the file or for none.
    passthrough: bool,
    data_path: DataPath,
    /// Other clients may cache the file's bytes: each write is announced to the server.
    announces: bool,
    /// The cache's epoch in which a server last requested announcements.
    announces_since: u64,
}

/// The state machine for calls. See the crate's documentation.
#[derive(Debug, Default)]
pub struct Client {
    files: HashMap<Ino, OpenFile, FxBuildHasher>,
    /// The frontend supports passthrough.
    pub can_pass_through: bool,
    /// The frontend can send requests to data servers.
    pub can_ask_data_servers: bool,
    pub(crate) data_pool: PoolAccess,
    /// A server executes stream I/O. It checks permission in the same step, and it executes appends
    /// exactly once, even if they are sent again.
    pub is_served: bool,
    pub(crate) locations: Locations,
}

impl Client {
    /// Returns the first step of a call.
    pub fn start(&mut self, call: &Call<'_>) -> Next {
        match call {
            Call::Request(request) => Next::Ask(request.clone()),
            Call::Range(range) => self.start_range(range),
            Call::Release { ino } => self.release(*ino),
        }
    }

    fn start_range(&self, range: &RangeCall<'_>) -> Next {
        let RangeCall { ino, op, kill_suid_gid, .. } = *range;
        let is_streamed = self.is_streamed(ino);
        match op {
            RangeOp::Read { .. } | RangeOp::Seek { .. } if is_streamed => self.do_directly(range.stream_io()),
            RangeOp::Read { .. } | RangeOp::Seek { .. } => range.ask(false),
            RangeOp::WriteList { .. } => self.write_list(range),
            // The caller falls back to reading and writing.
            RangeOp::Copy { from, .. }
                if !is_streamed || !self.is_streamed(from) || !self.is_near(from, ino) =>
            {
                Next::Answer(Err(Errno::EXDEV))
            }
            // The server reports if the file has set-id bits.
            RangeOp::Write { .. } if kill_suid_gid && !is_streamed => range.ask(true),
            _ if kill_suid_gid => Next::Ask(Request::RemovePrivileges { ino }),
            _ => self.change(range),
        }
    }

    /// True if one server executes operations on both files.
    fn is_near(&self, one: Ino, other: Ino) -> bool {
        self.locations.of(one) == self.locations.of(other)
    }

    /// Returns the step after a reply of the metadata server.
    pub fn reply(&mut self, call: &Call<'_>, reply: Result<Reply, Errno>) -> Next {
        let reply = match reply {
            Ok(reply) => reply,
            Err(errno) => return Next::Answer(Err(errno)),
        };
        Next::Answer(Ok(match reply {
            Reply::Streamed => return self.switch_to_stream(call),
            Reply::Stuffed => return self.switch_to_stuffed(call),
            Reply::Opened(opened) | Reply::OpenedWhole(opened, _) => match call {
                Call::Request(Request::Open { ino, .. }) => Answer::Opened(self.opened(*ino, opened)),
                _ => return Next::Answer(Err(Errno::EIO)),
            },
            Reply::Created(entry, opened) => Answer::Created(entry, self.opened(entry.attr.ino, opened)),
            Reply::Done => match call {
                Call::Range(RangeCall { op: RangeOp::Write { length, .. }, .. }) => Answer::Written(*length),
                Call::Request(Request::SetXattr { ino, .. }) => {
                    self.forget_delegation(*ino);
                    Answer::Done
                }
                _ => Answer::Done,
            },
            Reply::PrivilegesRemoved { .. } => match call {
                Call::Range(range) => return self.change(range),
                _ => return Next::Answer(Err(Errno::EIO)),
            },
            Reply::Attr(attr) => Answer::Attr(attr),
            Reply::Entry(entry) => Answer::Entry(entry),
            Reply::Absent { cacheable } => Answer::Absent { cacheable },
            Reply::Bytes(bytes) => Answer::Bytes(bytes),
            Reply::Offset(offset) => Answer::Offset(offset),
            Reply::Written(written) => {
                // The server has appended to a stream.
                if let Call::Range(RangeCall { ino, op: RangeOp::Write { .. }, .. }) = *call {
                    self.files.entry(ino).or_default().streamed = true;
                }
                Answer::Written(written)
            }
            Reply::Listing { mut entries, parent, end, until } => {
                let is_over = end && until >= LAST_CURSOR;
                if let (true, false, Some(last)) = (end, is_over, entries.last_mut()) {
                    // The listing continues with the next fragment.
                    last.cursor = until;
                }
                Answer::Listing { entries, parent, end: is_over }
            }
            Reply::StatFs(capacity) => Answer::StatFs(capacity),
            Reply::Removed { dir, name } => Answer::Removed { dir, name },
            Reply::Copied(copied) => Answer::Copied(copied),
            Reply::Remote { ino, kind, cacheable, name_leased, .. } => {
                let (dir, open) = match *call {
                    Call::Request(Request::Create { dir, open, .. }) => (dir, open),
                    Call::Request(
                        Request::Lookup { dir, .. } | Request::Parent { dir } | Request::Link { dir, .. },
                    ) => (dir, None),
                    _ => return Next::Answer(Err(Errno::EIO)),
                };
                let remote_entry = RemoteEntry { dir, ino, kind, cacheable, leased: name_leased };
                return Next::Find(Request::Find { ino, kind: Some(kind), open }, remote_entry);
            }
            Reply::InTheWay(lock) => Answer::InTheWay(lock),
            // The session layer holds the call until the lock is granted.
            Reply::Waits => return Next::Answer(Err(Errno::EIO)),
            Reply::Granted => return self.granted(call),
            Reply::Delegated(delegation) => return self.delegated(call, delegation),
            Reply::Outgrown(delegation) => return self.outgrown(call, delegation),
            // The session layer handles these replies and allocates inode numbers itself.
            Reply::Made(_)
            | Reply::Unmeasured(..)
            | Reply::Orphaned(..)
            | Reply::Numbers { .. }
            | Reply::Renewed(_)
            | Reply::Fragments(_)
            | Reply::Misrouted { .. }
            | Reply::Relocated { .. }
            | Reply::Forwarded { .. }
            | Reply::Announced(_) => {
                return Next::Answer(Err(Errno::EIO));
            }
        }))
    }

    /// Returns the step after the reply of the inode's rank. `again`: the call was restarted once,
    /// and the name still resolves to the same inode.
    pub fn found(
        &mut self,
        call: &Call<'_>,
        remote_entry: &RemoteEntry,
        again: bool,
        reply: Result<Reply, Errno>,
    ) -> Next {
        let made = matches!(call, Call::Request(Request::Create { node: NewNode::Directory, .. }));
        match self.reply(call, reply) {
            Next::Answer(Ok(Answer::Entry(entry))) => {
                Next::Answer(Ok(Answer::Entry(remote_entry.name(entry))))
            }
            Next::Answer(Ok(Answer::Created(entry, opening))) => {
                Next::Answer(Ok(Answer::Created(remote_entry.name(entry), opening)))
            }
            // The directory has been created; report success even if its attributes are
            // unavailable.
            Next::Answer(Err(_)) if made => {
                Next::Answer(Ok(Answer::Entry(remote_entry.without_attributes())))
            }
            // Another client has rebound the name. A second `ESTALE` means that name and inode are
            // inconsistent.
            Next::Answer(Err(Errno::ESTALE)) if !again => self.start(call),
            next => next,
        }
    }

    /// Changes a file's bytes after its set-id bits have been removed.
    fn change(&self, range: &RangeCall<'_>) -> Next {
        match range.op {
            RangeOp::Write { .. } if self.is_streamed(range.ino) => self.write(range),
            RangeOp::Allocate { .. } if self.is_streamed(range.ino) => self.change_stream(range),
            RangeOp::Write { .. } | RangeOp::Allocate { .. } => range.ask(false),
            RangeOp::Copy { .. } => self.change_stream(range),
            _ => Next::Answer(Err(Errno::EIO)),
        }
    }

    /// The file was stuffed when it was opened and has been unstuffed since.
    fn switch_to_stream(&mut self, call: &Call<'_>) -> Next {
        let Some(ino) = call.stream() else { return Next::Answer(Err(Errno::EIO)) };
        self.files.entry(ino).or_default().streamed = true;
        self.start(call)
    }

    /// The server has lost power: the unstuffing is undone, and the file is stuffed again.
    fn switch_to_stuffed(&mut self, call: &Call<'_>) -> Next {
        let Call::Range(range) = call else { return self.start(call) };
        for ino in [Some(range.ino), range.op.source()].into_iter().flatten() {
            if let Some(file) = self.files.get_mut(&ino) {
                (file.streamed, file.data_path) = (false, DataPath::default());
            }
        }
        self.start(call)
    }

    fn opened(&mut self, ino: Ino, opened: Opened) -> Opening {
        let can_pass_through = self.can_pass_through;
        let file = self.files.entry(ino).or_default();
        file.streamed |= opened.streamed;
        if file.opens == 0 {
            file.passthrough = file.streamed && can_pass_through && !opened.limited;
        }
        file.announces |= opened.shared;
        file.opens += 1;
        Opening {
            ino,
            accessed: opened.accessed,
            shared: opened.shared,
            keep_cache: true,
            passthrough: file.passthrough,
        }
    }

    /// The frontend could not set up [`Opening::passthrough`] for the only opening of this file.
    pub fn without_passthrough(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.passthrough = false;
        }
    }

    /// True if writes to this file must be announced.
    pub(crate) fn announces(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.announces)
    }

    /// Handles a server's request for announcements.
    pub(crate) fn announce(&mut self, ino: Ino, epoch: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            (file.announces, file.announces_since) = (true, epoch);
        }
    }

    /// A server has acknowledged an announcement that began in epoch `since`. `again`: the next
    /// write must be announced too. Ignored if the server has requested announcements after
    /// `since`.
    pub(crate) fn announced(&mut self, ino: Ino, again: bool, since: u64) {
        if let Some(file) = self.files.get_mut(&ino).filter(|file| file.announces_since <= since) {
            file.announces = again;
        }
    }

    /// True if the file is open and, as far as the client knows, has its bytes in a stream.
    pub(crate) fn is_streamed(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.streamed)
    }

    /// Number of openings of a file.
    pub(crate) fn opens(&self, ino: Ino) -> u32 {
        self.files.get(&ino).map_or(0, |file| file.opens)
    }

    /// True if the file is open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    fn release(&mut self, ino: Ino) -> Next {
        let mut streamed = true;
        if let Some(file) = self.files.get_mut(&ino) {
            streamed = file.streamed;
            file.opens = file.opens.saturating_sub(1);
            if file.opens == 0 {
                self.files.remove(&ino);
            }
        }
        // A stream that is open for writing blocks other clients' caching: release it immediately.
        if streamed { Next::Notify(Request::Release { ino }, Answer::Done) } else { Next::Release(ino) }
    }
}

impl RemoteEntry {
    /// The inode's entry with the name's lease and cacheability.
    fn name(&self, entry: Entry) -> Entry {
        Entry { cacheable: self.cacheable, name_leased: self.leased, ..entry }
    }

    /// An entry with unknown attributes, used when the inode's rank fails.
    fn without_attributes(&self) -> Entry {
        let xattrs = XattrPresence::Acl;
        let attr = Attr { nlink: 0, xattrs, ..Attr::new(self.ino, self.kind, 0, Time::default()) };
        let (name_leased, attr_leased) = (false, false);
        Entry {
            attr,
            cacheable: false,
            name_leased,
            attr_leased,
            sole_holder: false,
            location: Location::Table,
            reclaim_token: 0,
        }
    }
}
