//! What lasts of an answer to a request that has changed something: it is journaled with the change, so that both or none
//! survive a crash, and a request that is sent again after it is answered and not done again.

use alloc::boxed::Box;

use espalier_proto::{Access, Copied, Entry, Errno, FileType, Home, Ino, Made, Name, Opened, Reply, Request};
use serde::{Deserialize, Serialize};

use crate::config::Atime;
use crate::machine::{Cx, Meta};
use crate::session::Proven;
use crate::step::Step;

/// What a request has come to. Of an inode only the number is kept: an answer that comes late tells what is so then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Done,
    Failed(Errno),
    Attr(Ino),
    /// The client has been told an inode by a name, or has opened it, or both.
    Given {
        ino: Ino,
        home: Home,
        /// Whether the name may be cached.
        named: Option<bool>,
        /// For what.
        opened: Option<Access>,
    },
    Streamed,
    Removed {
        dir: Ino,
        name: Name,
    },
    Copied(Box<Copied>),
    Elsewhere {
        ino: Ino,
        kind: FileType,
        cacheable: bool,
    },
    /// So many bytes have been written.
    Written(u32),
    /// The file's set-id bits are removed, if it had any, and nothing is written yet.
    PrivilegesRemoved {
        changed: bool,
    },
    /// Bytes are being appended to a stream, there: when it is asked for again, they are written there again.
    Appending {
        ino: Ino,
        offset: u64,
    },
    /// The client goes on to make this file.
    Made {
        ino: Ino,
    },
    /// The client has been given inode numbers.
    Numbers {
        first: Ino,
        count: u32,
    },
}

impl Outcome {
    /// `home`: of the inode that a request to open names. `None`: the request may as well be executed again.
    pub(crate) fn of(request: &Request, result: &Result<Reply, Errno>, home: Option<Home>) -> Option<Self> {
        let is_change = matches!(
            request,
            Request::SetAttr { .. }
                | Request::Create { .. }
                | Request::TmpFile { .. }
                | Request::Link { .. }
                | Request::Unlink { .. }
                | Request::RmDir { .. }
                | Request::Rename { .. }
                | Request::Open { .. }
                | Request::Write { .. }
                | Request::Allocate { .. }
                | Request::RemovePrivileges { .. }
                | Request::SetXattr { .. }
                | Request::RemoveXattr { .. }
                | Request::RemoveTree { .. }
                | Request::SetLayout { .. }
                | Request::Purge { .. }
                | Request::TakeNumbers { .. }
                | Request::CopyTree(_)
                | Request::Find { open: Some(_), .. }
        );
        let given = |entry: &Entry, opened| {
            let (ino, home, named) = (entry.attr.ino, entry.home, Some(entry.cacheable));
            Self::Given { ino, home, named, opened }
        };
        Some(match (request, result) {
            _ if !is_change => return None,
            (_, Err(errno)) => Self::Failed(*errno),
            // The machine removes itself what it finds when it is started anew.
            (_, Ok(Reply::Done | Reply::Orphaned(..))) => Self::Done,
            (_, Ok(Reply::Numbers { first, count, .. })) => Self::Numbers { first: *first, count: *count },
            (_, Ok(Reply::Made(made))) => Self::Made { ino: made.ino },
            (_, Ok(Reply::Attr(attr))) => Self::Attr(attr.ino),
            (_, Ok(Reply::Entry(entry))) => given(entry, None),
            (_, Ok(Reply::Created(entry, _))) => given(entry, request.opens_for()),
            (_, Ok(Reply::Unmeasured(told, _))) if let Reply::Created(entry, _) = &**told => {
                given(entry, request.opens_for())
            }
            (Request::Open { ino, how }, Ok(Reply::Opened(_) | Reply::OpenedWhole(..))) => {
                Self::Given { ino: *ino, home: home?, named: None, opened: Some(how.access) }
            }
            // One that was to write to data servers asks for what it was given, and may write once more what was written for it.
            (_, Ok(Reply::Streamed | Reply::Delegated(_) | Reply::Outgrown(_))) => Self::Streamed,
            (_, Ok(Reply::Written(written))) => Self::Written(*written),
            (_, Ok(Reply::PrivilegesRemoved { changed })) => Self::PrivilegesRemoved { changed: *changed },
            (_, Ok(Reply::Removed { dir, name })) => Self::Removed { dir: *dir, name: name.clone() },
            (_, Ok(Reply::Copied(copied))) => Self::Copied(copied.clone()),
            (_, Ok(Reply::Elsewhere { ino, kind, cacheable, .. })) => {
                Self::Elsewhere { ino: *ino, kind: *kind, cacheable: *cacheable }
            }
            _ => return None,
        })
    }
}

impl Meta {
    /// The answer to a request that was done before the machine began. What it gives to the client is counted already.
    pub(crate) fn tell_again(&mut self, cx: &Cx<'_>, outcome: &Outcome) -> Step<Reply> {
        Ok(match outcome {
            Outcome::Done => Reply::Done,
            Outcome::Failed(errno) => return Err((*errno).into()),
            Outcome::Attr(ino) => Reply::Attr(self.attr(cx, self.state.inode(*ino)?)?),
            Outcome::Given { ino, named, opened, .. } => {
                let (home, inode) = (self.state.cached(*ino)?.told_home(), self.state.inode(*ino)?);
                let (streamed, announced) = (inode.is_streamed(), self.announces(inode));
                let limited = self.is_written_by_server(*ino)?;
                let proof = self.proof(cx.client, *ino, Proven::opened(opened.unwrap_or(Access::empty())));
                let shared = self.is_written(cx.client, *ino);
                let how = Opened { streamed, accessed: true, limited, shared, announced, proof };
                let Some(cacheable) = *named else { return Ok(Reply::Opened(how)) };
                // No lease is given on what is told late.
                let (attr, name_leased, attr_leased) = (self.attr(cx, inode)?, false, false);
                let proof = self.proof(cx.client, *ino, Proven::Told);
                let entry = Entry { attr, cacheable, name_leased, attr_leased, alone: false, home, proof };
                if opened.is_some() { Reply::Created(entry, how) } else { Reply::Entry(entry) }
            }
            Outcome::Made { ino } => {
                let inode = self.state.inode(*ino)?.clone();
                let (streamed, limited) = (inode.is_streamed(), self.is_written_by_server(*ino)?);
                let proof = self.proof(cx.client, *ino, Proven::OpenedToWrite);
                let announced = self.announces(&inode);
                let opened = Opened { streamed, accessed: true, limited, shared: false, announced, proof };
                let delegation = self.grant_making(cx, &inode)?;
                // The client has not heard of it, and so has not named it.
                if let Some(cached) = self.state.inodes.get_mut(ino) {
                    cached.nameless |= cached.home == Home::Orphan;
                }
                Reply::Made(Box::new(Made { ino: *ino, opened, delegation }))
            }
            Outcome::Streamed => Reply::Streamed,
            Outcome::Numbers { first, count } => {
                let (first, count, time, strip) = (*first, *count, cx.now, self.config.strip_bytes);
                Reply::Numbers { first, count, time, strip, accesses: self.config.atime != Atime::Never }
            }
            Outcome::Written(written) => Reply::Written(*written),
            Outcome::PrivilegesRemoved { changed } => Reply::PrivilegesRemoved { changed: *changed },
            // It is not told again, but done.
            Outcome::Appending { .. } => return Err(Errno::EIO.into()),
            Outcome::Removed { dir, name } => Reply::Removed { dir: *dir, name: name.clone() },
            Outcome::Copied(copied) => Reply::Copied(copied.clone()),
            Outcome::Elsewhere { ino, kind, cacheable } => {
                let (ino, kind, cacheable, name_leased) = (*ino, *kind, *cacheable, false);
                Reply::Elsewhere { ino, kind, cacheable, name_leased }
            }
        })
    }
}
