//! Outcomes of requests that have changed something. An outcome is journaled in the frame of the
//! change, so both survive a crash or neither does, and a request that is sent again after a
//! restart is answered, not executed again.

use alloc::boxed::Box;

use espalier_proto::{
    Access, Copied, Entry, Errno, FileType, Ino, Location, Made, Name, Opened, Rank, Reply, Request,
};
use serde::{Deserialize, Serialize};

use crate::config::Atime;
use crate::machine::{Cx, Meta};
use crate::session::TokenKind;
use crate::step::Step;

/// The outcome of a request. It names inodes only by number: an answer that is repeated later
/// reports their current attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletedOutcome {
    Done,
    Failed(Errno),
    Attr(Ino),
    /// The client has looked up an inode by name, or has opened it, or both.
    Given {
        ino: Ino,
        location: Location,
        /// True if every caller may cache the name; `None`: no name.
        named: Option<bool>,
        /// Access mode of the open; `None`: not opened.
        opened: Option<Access>,
    },
    Streamed,
    Removed {
        dir: Ino,
        name: Name,
    },
    Copied(Box<Copied>),
    Remote {
        ino: Ino,
        kind: FileType,
        at: Rank,
        cacheable: bool,
    },
    /// Number of bytes written.
    Written(u32),
    /// Set-id bits are removed, if there were any; nothing is written yet.
    PrivilegesRemoved {
        changed: bool,
    },
    /// Bytes are being appended to a stream at `offset`. A repeated request writes them at the same
    /// offset.
    Appending {
        ino: Ino,
        offset: u64,
    },
    /// The client makes this file step by step (carns III.A).
    Made {
        ino: Ino,
    },
    /// The rank of this directory or fragment executes the request. Journaled before anything that
    /// moves the names again, so that a request that is repeated after a crash goes there, too.
    Forwarded {
        to: Ino,
    },
    /// The client has been allocated inode numbers.
    Numbers {
        first: Ino,
        count: u32,
    },
}

impl CompletedOutcome {
    /// The outcome to journal; `None`: the request may be executed again. `location`: location of
    /// the inode that an open names.
    pub(crate) fn of(
        request: &Request,
        result: &Result<Reply, Errno>,
        location: Option<Location>,
    ) -> Option<Self> {
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
            let (ino, location, named) = (entry.attr.ino, entry.location, Some(entry.cacheable));
            Self::Given { ino, location, named, opened }
        };
        Some(match (request, result) {
            _ if !is_change => return None,
            (_, Err(errno)) => Self::Failed(*errno),
            (_, Ok(Reply::Forwarded { to, .. })) => Self::Forwarded { to: *to },
            // Recovery removes the orphans itself.
            (_, Ok(Reply::Done | Reply::Orphaned(..))) => Self::Done,
            (_, Ok(Reply::Numbers { first, count, .. })) => Self::Numbers { first: *first, count: *count },
            (_, Ok(Reply::Made(made))) => Self::Made { ino: made.ino },
            (_, Ok(Reply::Attr(attr))) => Self::Attr(attr.ino),
            (_, Ok(Reply::Entry(entry))) => given(entry, None),
            (_, Ok(Reply::Created(entry, _))) => given(entry, request.opens_for()),
            (_, Ok(Reply::Unmeasured(reply_of, _))) if let Reply::Created(entry, _) = &**reply_of => {
                given(entry, request.opens_for())
            }
            (Request::Open { ino, how }, Ok(Reply::Opened(_) | Reply::OpenedWhole(..))) => {
                Self::Given { ino: *ino, location: location?, named: None, opened: Some(how.access) }
            }
            // A client that writes to data servers requests its capability again, and may write
            // again what was already written for it.
            (_, Ok(Reply::Streamed | Reply::Delegated(_) | Reply::Outgrown(_))) => Self::Streamed,
            (_, Ok(Reply::Written(written))) => Self::Written(*written),
            (_, Ok(Reply::PrivilegesRemoved { changed })) => Self::PrivilegesRemoved { changed: *changed },
            (_, Ok(Reply::Removed { dir, name })) => Self::Removed { dir: *dir, name: name.clone() },
            (_, Ok(Reply::Copied(copied))) => Self::Copied(copied.clone()),
            (_, Ok(Reply::Remote { ino, kind, at, cacheable, .. })) => {
                Self::Remote { ino: *ino, kind: *kind, at: *at, cacheable: *cacheable }
            }
            _ => return None,
        })
    }
}

impl Meta {
    /// Rebuilds the answer to a request that completed before the restart. What it gives to the
    /// client is already counted.
    pub(crate) fn repeat_reply(&mut self, cx: &Cx<'_>, outcome: &CompletedOutcome) -> Step<Reply> {
        Ok(match outcome {
            CompletedOutcome::Done => Reply::Done,
            CompletedOutcome::Failed(errno) => return Err((*errno).into()),
            CompletedOutcome::Attr(ino) => Reply::Attr(self.attr(cx, self.state.inode(*ino)?)?),
            CompletedOutcome::Given { ino, named, opened, .. } => {
                let (location, inode) =
                    (self.state.cached(*ino)?.reported_location(), self.state.inode(*ino)?);
                let (streamed, announced) = (inode.is_streamed(), self.announces(inode));
                let limited = self.is_written_by_server(*ino)?;
                let reclaim_token =
                    self.reclaim_token(cx.client, *ino, TokenKind::opened(opened.unwrap_or(Access::empty())));
                let shared = self.is_written(cx.client, *ino);
                let how = Opened { streamed, accessed: true, limited, shared, announced, reclaim_token };
                let Some(cacheable) = *named else { return Ok(Reply::Opened(how)) };
                // A repeated answer carries no lease.
                let (attr, name_leased, attr_leased) = (self.attr(cx, inode)?, false, false);
                let reclaim_token = self.reclaim_token(cx.client, *ino, TokenKind::LookedUp);
                let entry = Entry {
                    attr,
                    cacheable,
                    name_leased,
                    attr_leased,
                    sole_holder: false,
                    location,
                    reclaim_token,
                };
                if opened.is_some() { Reply::Created(entry, how) } else { Reply::Entry(entry) }
            }
            CompletedOutcome::Made { ino } => {
                let inode = self.state.inode(*ino)?.clone();
                let (streamed, limited) = (inode.is_streamed(), self.is_written_by_server(*ino)?);
                let reclaim_token = self.reclaim_token(cx.client, *ino, TokenKind::OpenedToWrite);
                let announced = self.announces(&inode);
                let opened =
                    Opened { streamed, accessed: true, limited, shared: false, announced, reclaim_token };
                let delegation = self.grant_making(cx, &inode)?;
                // The client has not received the file, so it has not named it.
                if let Some(cached) = self.state.inodes.untracked(ino) {
                    cached.nameless |= cached.location == Location::Orphan;
                }
                Reply::Made(Box::new(Made { ino: *ino, opened, delegation }))
            }
            CompletedOutcome::Streamed => Reply::Streamed,
            CompletedOutcome::Numbers { first, count } => {
                let (first, count, time, strip) = (*first, *count, cx.now, self.config.strip_bytes);
                Reply::Numbers { first, count, time, strip, accesses: self.config.atime != Atime::Never }
            }
            CompletedOutcome::Forwarded { to } => Reply::Forwarded { to: *to, fragments: None },
            CompletedOutcome::Written(written) => Reply::Written(*written),
            CompletedOutcome::PrivilegesRemoved { changed } => Reply::PrivilegesRemoved { changed: *changed },
            // The operation resumes instead: `admit` sets its progress.
            CompletedOutcome::Appending { .. } => return Err(Errno::EIO.into()),
            CompletedOutcome::Removed { dir, name } => Reply::Removed { dir: *dir, name: name.clone() },
            CompletedOutcome::Copied(copied) => Reply::Copied(copied.clone()),
            CompletedOutcome::Remote { ino, kind, at, cacheable } => {
                let (ino, kind, at, cacheable, name_leased) = (*ino, *kind, *at, *cacheable, false);
                Reply::Remote { ino, kind, at, cacheable, name_leased }
            }
        })
    }
}
