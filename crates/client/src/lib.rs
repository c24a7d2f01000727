//! The client's state machine: what doors (FUSE, libraries) share. It leads a [`Call`] through its steps: what to ask
//! of the metadata server, and what to read and write in streams. It waits for nothing.
//!
//! `no_std` on purpose: the compiler then refuses a file, a socket, a clock or a thread here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod data_link;
mod delegated;
mod kind;
mod link;
mod locks;
mod payload;
mod sessions;
mod striped;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{
    Access, AllocateMode, Attr, Capacity, Copied, Delegation, Dirent, Entry, Errno, FileType, Home, Ino,
    InodeFlags, Lock, Name, NewNode, OpenHow, Opened, Reply, Request, SeekWhat, StreamIo, Time,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use delegated::Way;

pub use cache::{Binding, Cache, CacheCounts, Changes, Term, Users};
pub use data_link::{Came, DataLink};
pub use kind::Kind;
pub use link::{Ended, Link};
pub use payload::Payload;
pub use sessions::{Asked, DataAsk, ForDoor, Interrupt, Outcome, Sessions, Told};
pub use striped::{Striped, Turn, Work};

/// What a program wants, as a door understands it.
#[derive(Clone, Debug)]
pub enum Call<'a> {
    /// All that is the metadata server's alone; also `Open`, `Create` and `TmpFile`.
    Request(Request),
    Read {
        ino: Ino,
        offset: u64,
        size: u32,
        noatime: bool,
    },
    Write {
        ino: Ino,
        offset: u64,
        data: Payload<'a>,
        /// The caller lacks `CAP_FSETID`: the file loses its set-id bits, here and in the calls below.
        kill_suid_gid: bool,
    },
    /// Only clients make these: pieces that callers have written to one file, and been told so. They are in order, and do not overlap.
    WriteList {
        ino: Ino,
        pieces: Arc<[(u64, Bytes)]>,
    },
    Allocate {
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
        kill_suid_gid: bool,
    },
    Seek {
        ino: Ino,
        offset: u64,
        what: SeekWhat,
    },
    Copy {
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
        kill_suid_gid: bool,
    },
    Release {
        ino: Ino,
    },
}

impl Call<'_> {
    /// The file whose bytes it reads or changes, but for copies.
    pub fn stream(&self) -> Option<Ino> {
        match *self {
            Call::Read { ino, .. }
            | Call::Write { ino, .. }
            | Call::WriteList { ino, .. }
            | Call::Allocate { ino, .. }
            | Call::Seek { ino, .. } => Some(ino),
            _ => None,
        }
    }

    /// The file of which a server's reply says that its mode has changed, before the call goes on.
    pub fn unprivileged(&self, reply: &Result<Reply, Errno>) -> Option<Ino> {
        match (self, reply) {
            (Call::Copy { to, .. }, Ok(Reply::PrivilegesRemoved { changed: true })) => Some(*to),
            (call, Ok(Reply::PrivilegesRemoved { changed: true })) => call.stream(),
            _ => None,
        }
    }

    /// The file that it opens, if it does nothing else.
    pub fn opens(&self) -> Option<Ino> {
        match self {
            Call::Request(Request::Open { ino, .. }) => Some(*ino),
            _ => None,
        }
    }

    /// The file whose bytes it has changed, or may have.
    fn changed(&self, result: &Result<Answer, Errno>) -> Option<Ino> {
        let truncated = |how: &OpenHow| how.truncate;
        match (self, result) {
            (Call::Write { ino, .. } | Call::WriteList { ino, .. } | Call::Allocate { ino, .. }, _) => {
                Some(*ino)
            }
            (Call::Copy { to, .. }, _) => Some(*to),
            (Call::Request(Request::SetAttr { ino, set }), _) => set.size.map(|_| *ino),
            (Call::Request(Request::Open { ino, how }), _) => Some(*ino).filter(|_| truncated(how)),
            (Call::Request(Request::Create { open, .. }), Ok(Answer::Created(entry, _))) => {
                Some(entry.attr.ino).filter(|_| open.as_ref().is_some_and(truncated))
            }
            _ => None,
        }
    }

    /// The file that it has opened, if callers may write to it.
    fn opened_to_write(&self, answer: &Answer) -> Option<Ino> {
        match (self, answer) {
            (Call::Request(Request::Open { how, .. }), Answer::Opened(opening)) => {
                how.access.contains(Access::WRITE).then_some(opening.ino)
            }
            (_, Answer::Created(_, opening)) => Some(opening.ino),
            _ => None,
        }
    }

    /// The same call, with all that it needs for itself, to be kept until it can go on.
    pub fn into_owned(self) -> Call<'static> {
        match self {
            Call::Write { ino, offset, data, kill_suid_gid } => {
                Call::Write { ino, offset, data: data.into_owned(), kill_suid_gid }
            }
            Call::WriteList { ino, pieces } => Call::WriteList { ino, pieces },
            Call::Request(request) => Call::Request(request),
            Call::Read { ino, offset, size, noatime } => Call::Read { ino, offset, size, noatime },
            Call::Allocate { ino, offset, length, mode, kill_suid_gid } => {
                Call::Allocate { ino, offset, length, mode, kill_suid_gid }
            }
            Call::Seek { ino, offset, what } => Call::Seek { ino, offset, what },
            Call::Copy { from, from_offset, to, to_offset, length, kill_suid_gid } => {
                Call::Copy { from, from_offset, to, to_offset, length, kill_suid_gid }
            }
            Call::Release { ino } => Call::Release { ino },
        }
    }
}

/// How a call goes on.
#[derive(Debug)]
pub enum Next {
    /// Ask the metadata server, and come back with its reply.
    Ask(Request),
    /// Ask the inode's rank for what a name stands for, and come back with that ([`Client::found`]).
    Find(Request, Sighting),
    /// The metadata server must know, but nobody waits for its reply.
    Tell(Request, Answer),
    /// As [`Self::Tell`] of a release, and that may take a while.
    Release(Ino),
    /// Do this with streams; its result is the answer.
    Stream(StreamIo),
    /// Do each piece of a [`Call::WriteList`] by itself.
    Apart,
    /// As [`Self::Stream`], by asking data servers; or [`Client::stale`] follows.
    Data(Arc<Delegation>, Work),
    Answer(Result<Answer, Errno>),
}

impl Next {
    /// What servers are asked says that the caller has been told already that it is done.
    fn tell_that_it_is_told(&mut self) {
        if let Self::Stream(StreamIo::Write { told, .. }) | Self::Ask(Request::Extend { told, .. }) = self {
            *told = true;
        }
    }
}

/// A name of which its directory's rank has told, while the rank of the inode is asked for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Of the name.
    pub dir: Ino,
    pub ino: Ino,
    pub kind: FileType,
    /// As in [`Entry`].
    pub cacheable: bool,
    /// There is a lease on the name.
    pub leased: bool,
}

/// What a call comes to.
#[derive(Debug)]
pub enum Answer {
    Done,
    Entry(Entry),
    /// Of a lookup: the inode is on data servers, of which one cannot be reached, so that its size and times are not known.
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

/// A file that has been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub ino: Ino,
    /// Its access time has changed by that.
    pub accessed: bool,
    /// Others have it open and may write to it.
    pub shared: bool,
    /// What a kernel has kept of what it holds is so.
    pub keep: bool,
    /// The kernel may read and write the stream itself: it, and everyone else who has it open.
    pub passthrough: bool,
}

/// A file while it is open.
#[derive(Debug, Default)]
struct OpenFile {
    opens: u32,
    streamed: bool,
    /// Whoever has it open reads and writes its stream through the kernel; otherwise nobody does.
    passthrough: bool,
    way: Way,
    /// Other clients may cache what it holds: what is written to it is announced.
    announces: bool,
    /// The turn in which a server has last asked for that.
    announces_since: u64,
}

/// The client's machine. See the crate's description.
#[derive(Debug, Default)]
pub struct Client {
    files: HashMap<Ino, OpenFile, FxBuildHasher>,
    /// The door can let the kernel read and write streams itself.
    pub can_pass_through: bool,
    /// The door can ask data servers itself.
    pub can_ask_data_servers: bool,
    /// A server does what is to be done with streams. It allows it in the same turn, and appends to streams itself: once, whatever is sent
    /// again.
    pub is_served: bool,
}

impl Client {
    /// The first step of a call.
    pub fn start(&mut self, call: &Call<'_>) -> Next {
        let streamed = |ino| self.is_streamed(ino);
        match *call {
            Call::Request(ref request) => Next::Ask(request.clone()),
            Call::Read { ino, offset, size, .. } if streamed(ino) => {
                self.do_itself(ino, Access::READ, StreamIo::Read { ino, offset, size })
            }
            Call::Read { ino, offset, size, noatime } => {
                Next::Ask(Request::Read { ino, offset, size, noatime })
            }
            Call::Write { ino, kill_suid_gid: true, .. } if streamed(ino) => remove_privileges(ino),
            Call::Write { kill_suid_gid: true, .. } => write(call, true),
            Call::WriteList { ino, ref pieces } => self.write_list(ino, pieces),
            Call::Allocate { ino, kill_suid_gid: true, .. } => remove_privileges(ino),
            Call::Write { .. } | Call::Allocate { .. } => self.change(call),
            Call::Seek { ino, offset, what } if streamed(ino) => {
                self.do_itself(ino, Access::READ, StreamIo::Seek { ino, offset, what })
            }
            Call::Seek { ino, offset, what } => Next::Ask(Request::Seek { ino, offset, what }),
            Call::Copy { from, to, kill_suid_gid, .. }
                if streamed(from) && streamed(to) && from.rank() == to.rank() =>
            {
                if kill_suid_gid {
                    remove_privileges(to)
                } else {
                    self.change(call)
                }
            }
            // The caller then copies by reading and writing.
            Call::Copy { .. } => Next::Answer(Err(Errno::EXDEV)),
            Call::Release { ino } => self.release(ino),
        }
    }

    /// The step after the metadata server has replied.
    pub fn reply(&mut self, call: &Call<'_>, reply: Result<Reply, Errno>) -> Next {
        let reply = match reply {
            Ok(reply) => reply,
            Err(errno) => return Next::Answer(Err(errno)),
        };
        Next::Answer(Ok(match reply {
            Reply::Streamed => return self.turn_to_stream(call),
            Reply::Stuffed => return self.turn_from_stream(call),
            Reply::Opened(opened) | Reply::OpenedWhole(opened, _) => match call {
                Call::Request(Request::Open { ino, .. }) => Answer::Opened(self.opened(*ino, opened)),
                _ => return Next::Answer(Err(Errno::EIO)),
            },
            Reply::Created(entry, opened) => Answer::Created(entry, self.opened(entry.attr.ino, opened)),
            Reply::Done => match call {
                Call::Write { data, .. } => Answer::Written(data.len() as u32),
                Call::Request(Request::SetXattr { ino, .. }) => {
                    self.ask_anew(*ino);
                    Answer::Done
                }
                _ => Answer::Done,
            },
            Reply::PrivilegesRemoved { .. } => return self.change(call),
            Reply::Attr(attr) => Answer::Attr(attr),
            Reply::Entry(entry) => Answer::Entry(entry),
            Reply::Absent { cacheable } => Answer::Absent { cacheable },
            Reply::Bytes(bytes) => Answer::Bytes(bytes),
            Reply::Offset(offset) => Answer::Offset(offset),
            Reply::Written(written) => {
                // The server has appended to a stream.
                if let Call::Write { ino, .. } = *call {
                    self.files.entry(ino).or_default().streamed = true;
                }
                Answer::Written(written)
            }
            Reply::Listing { entries, parent, end } => Answer::Listing { entries, parent, end },
            Reply::StatFs(capacity) => Answer::StatFs(capacity),
            Reply::Removed { dir, name } => Answer::Removed { dir, name },
            Reply::Copied(copied) => Answer::Copied(copied),
            Reply::Elsewhere { ino, kind, cacheable, name_leased } => {
                let (dir, open) = match *call {
                    Call::Request(Request::Create { dir, open, .. }) => (dir, open),
                    Call::Request(
                        Request::Lookup { dir, .. } | Request::Parent { dir } | Request::Link { dir, .. },
                    ) => (dir, None),
                    _ => return Next::Answer(Err(Errno::EIO)),
                };
                let sighting = Sighting { dir, ino, kind, cacheable, leased: name_leased };
                return Next::Find(Request::Find { ino, kind: Some(kind), open }, sighting);
            }
            Reply::InTheWay(lock) => Answer::InTheWay(lock),
            // Whoever takes calls keeps it until it has what it waits for.
            Reply::Waits => return Next::Answer(Err(Errno::EIO)),
            Reply::Granted => return self.granted(call),
            Reply::Delegated(delegation) => return self.delegated(call, delegation),
            Reply::Outgrown(delegation) => return self.outgrown(call, delegation),
            // Sessions lead these on, and ask for numbers themselves.
            Reply::Made(_)
            | Reply::Unmeasured(..)
            | Reply::Orphaned(..)
            | Reply::Numbers { .. }
            | Reply::Renewed(_)
            | Reply::Announced(_) => {
                return Next::Answer(Err(Errno::EIO));
            }
        }))
    }

    /// The step after the rank of an inode has been asked for it. `again`: the inode is the one that it was already when the call was
    /// begun anew.
    pub fn found(
        &mut self,
        call: &Call<'_>,
        sighting: &Sighting,
        again: bool,
        reply: Result<Reply, Errno>,
    ) -> Next {
        let made = matches!(call, Call::Request(Request::Create { node: NewNode::Directory, .. }));
        match self.reply(call, reply) {
            Next::Answer(Ok(Answer::Entry(entry))) => Next::Answer(Ok(Answer::Entry(sighting.name(entry)))),
            Next::Answer(Ok(Answer::Created(entry, opening))) => {
                Next::Answer(Ok(Answer::Created(sighting.name(entry), opening)))
            }
            // It has been made, and that is to be said, whatever has become of it.
            Next::Answer(Err(_)) if made => Next::Answer(Ok(Answer::Entry(sighting.bare()))),
            // The name does not stand for it any more, unless names and inodes do not fit together.
            Next::Answer(Err(Errno::ESTALE)) if !again => self.start(call),
            next => next,
        }
    }

    /// Changes a file's bytes, when set-id bits are removed.
    fn change(&self, call: &Call<'_>) -> Next {
        match *call {
            Call::Write { ino, .. } if self.is_streamed(ino) => self.write(call),
            Call::Write { .. } => write(call, false),
            Call::Allocate { ino, offset, length, mode, .. } if !self.is_streamed(ino) => {
                Next::Ask(Request::Allocate { ino, offset, length, mode })
            }
            Call::Allocate { .. } | Call::Copy { .. } => self.change_stream(call),
            _ => Next::Answer(Err(Errno::EIO)),
        }
    }

    /// The file was stuffed when it was opened and is not any more.
    fn turn_to_stream(&mut self, call: &Call<'_>) -> Next {
        let Some(ino) = call.stream() else { return Next::Answer(Err(Errno::EIO)) };
        self.files.entry(ino).or_default().streamed = true;
        self.start(call)
    }

    /// The file's bytes were in a stream before its server has lost power, and are not any more.
    fn turn_from_stream(&mut self, call: &Call<'_>) -> Next {
        let files = match *call {
            Call::Copy { from, to, .. } => [Some(from), Some(to)],
            _ => [call.stream(), None],
        };
        for ino in files.into_iter().flatten() {
            if let Some(file) = self.files.get_mut(&ino) {
                (file.streamed, file.way) = (false, Way::default());
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
            keep: true,
            passthrough: file.passthrough,
        }
    }

    /// The door could not do what [`Opening::passthrough`] says: the one opening there is goes without.
    pub fn without_passthrough(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.passthrough = false;
        }
    }

    /// Whether what callers write to a file is announced.
    pub(crate) fn announces(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.announces)
    }

    /// A server asks for that.
    pub(crate) fn announce(&mut self, ino: Ino, turn: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            (file.announces, file.announces_since) = (true, turn);
        }
    }

    /// A server has taken an announcement that began in a turn: whether the next write is to be announced, unless it has asked for that
    /// since.
    pub(crate) fn announced(&mut self, ino: Ino, again: bool, since: u64) {
        if let Some(file) = self.files.get_mut(&ino).filter(|file| file.announces_since <= since) {
            file.announces = again;
        }
    }

    /// Whether a file that is open has its bytes in a stream, as far as is known.
    pub(crate) fn is_streamed(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.streamed)
    }

    /// How often a file is open.
    pub(crate) fn opens(&self, ino: Ino) -> u32 {
        self.files.get(&ino).map_or(0, |file| file.opens)
    }

    /// Whether anybody has a file open.
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
        // Nobody else may cache anything of a stream while it may be written to.
        if streamed { Next::Tell(Request::Release { ino }, Answer::Done) } else { Next::Release(ino) }
    }
}

impl Sighting {
    /// What is known of the name and the inode together.
    fn name(&self, entry: Entry) -> Entry {
        Entry { cacheable: self.cacheable, name_leased: self.leased, ..entry }
    }

    /// All that is known if the inode's rank tells nothing.
    fn bare(&self) -> Entry {
        let (ino, kind, none) = (self.ino, self.kind, Time::default());
        let attr = Attr {
            ino,
            kind,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: none,
            mtime: none,
            ctime: none,
            btime: none,
            streamed: false,
            bare: false,
            flags: InodeFlags::empty(),
        };
        let (name_leased, attr_leased) = (false, false);
        Entry { attr, cacheable: false, name_leased, attr_leased, alone: false, home: Home::Table, proof: 0 }
    }
}

/// To be written by the metadata server.
fn write(call: &Call<'_>, kill_suid_gid: bool) -> Next {
    match *call {
        Call::Write { ino, offset, ref data, .. } => {
            Next::Ask(Request::Write { ino, offset, data: data.to_bytes(), kill_suid_gid, time: None })
        }
        _ => Next::Answer(Err(Errno::EIO)),
    }
}

/// A copy moves no more at once, so that it can be interrupted.
const MAX_COPY_BYTES: u64 = 1 << 30;

/// Before something is written to a stream: a quota may forbid it.
fn extend(call: &Call<'_>) -> Next {
    let length = if let Call::Write { data, .. } = call { data.len() as u64 } else { 0 };
    match to_stream(call) {
        Next::Stream(io) => io.extends(length).map_or(Next::Answer(Err(Errno::EIO)), Next::Ask),
        next => next,
    }
}

/// What a call changes in a stream, which it may.
fn to_stream(call: &Call<'_>) -> Next {
    Next::Stream(match *call {
        Call::Write { ino, offset, .. } => StreamIo::Write { ino, offset, told: false },
        Call::Allocate { ino, offset, length, mode, .. } => StreamIo::Allocate { ino, offset, length, mode },
        Call::Copy { from, from_offset, to, to_offset, length, .. } => {
            StreamIo::Copy { from, from_offset, to, to_offset, length: length.min(MAX_COPY_BYTES) }
        }
        _ => return Next::Answer(Err(Errno::EIO)),
    })
}

fn remove_privileges(ino: Ino) -> Next {
    Next::Ask(Request::RemovePrivileges { ino })
}
