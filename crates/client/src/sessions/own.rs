//! Calls that this client executes itself, step by step, as the server's reply directs (carns III):
//! create, stat and remove of striped files. Each ends with a reply as if the server had executed
//! it.

mod make;

use alloc::sync::Arc;

use espalier_proto::{Attr, Delegation, Entry, Errno, Ino, Name, OpenHow, Opened, Reply, Request};

use crate::{Call, Work};
use make::Make;

/// An operation in progress. See the module's documentation.
#[derive(Debug)]
pub(super) enum Own {
    /// A create by the client.
    Make(Make),
    /// The reply lacks the size and times that the data servers have.
    Measure(Reply),
    /// As `Measure`, while another capability is requested; the operation of the reply is not
    /// repeated.
    Remeasure(Reply),
    Remove(Ino),
    /// The file in the reply has a name but no datafile yet.
    Datafile(Entry, Opened),
    /// The datafiles are removed; the inode is being purged.
    Purge,
}

/// The next step of the call.
#[derive(Debug)]
pub(super) enum OwnCallStep {
    Ask(Own, Request),
    Data(Own, Arc<Delegation>, Work),
    Over(Result<Reply, Errno>, Left),
    /// Restart the call.
    Anew(Left),
}

/// The lookups and opens that the client returns to the server after the operation.
#[derive(Debug)]
pub(super) enum Left {
    Nothing,
    /// An opening that the create made.
    Open(Ino),
    /// As `Open`, for a file that has its name: no caller waits for the close.
    OpenNamed(Ino),
    Lookup(Ino),
    /// An opening and a lookup.
    Created(Ino),
    /// An orphan that the server must remove.
    Orphan(Ino),
}

impl Own {
    /// The first step, from a server's reply.
    pub fn begin(call: &Call<'_>, reply: Result<Reply, Errno>) -> OwnCallStep {
        match reply {
            Ok(Reply::Made(made)) => Make::begin(call, *made),
            Ok(Reply::Unmeasured(actions, delegation)) => match &*actions {
                Reply::Attr(attr) | Reply::Entry(Entry { attr, .. }) => {
                    let work = Work::Measure(*attr);
                    OwnCallStep::Data(Self::Measure(*actions), Arc::from(delegation), work)
                }
                Reply::Created(entry, opened) => {
                    // A file that a power failure loses was never written to, so its loss is
                    // harmless.
                    let work = Work::Create { ino: entry.attr.ino, sync: false };
                    let own = Self::Datafile(*entry, *opened);
                    OwnCallStep::Data(own, Arc::from(delegation), work)
                }
                _ => OwnCallStep::Over(Err(Errno::EIO), Left::Nothing),
            },
            Ok(Reply::Orphaned(ino, Some(delegation))) => {
                OwnCallStep::Data(Self::Remove(ino), Arc::from(delegation), Work::Remove(ino))
            }
            Ok(Reply::Orphaned(ino, None)) => purge(ino),
            reply => OwnCallStep::Over(reply, Left::Nothing),
        }
    }

    /// The next step, from the result of the last one.
    pub fn advance(self, call: &Call<'_>, result: Result<Reply, Errno>) -> OwnCallStep {
        match (self, result) {
            (Self::Make(make), result) => make.advance(call, result),
            // The server may have measured the file itself meanwhile.
            (Self::Measure(actions) | Self::Remeasure(actions), Ok(Reply::Attr(attr))) => match actions {
                Reply::Entry(entry) => {
                    OwnCallStep::Over(Ok(Reply::Entry(Entry { attr, ..entry })), Left::Nothing)
                }
                _ => OwnCallStep::Over(Ok(Reply::Attr(attr)), Left::Nothing),
            },
            (Self::Remeasure(actions), Ok(Reply::Unmeasured(_, delegation))) => match attr_of(&actions) {
                Some(attr) => {
                    let work = Work::Measure(*attr);
                    OwnCallStep::Data(Self::Measure(actions), Arc::from(delegation), work)
                }
                None => OwnCallStep::Over(Err(Errno::EIO), Left::Nothing),
            },
            (Self::Remove(ino), Ok(Reply::Done)) => purge(ino),
            // The name is removed, even if the rest fails.
            (own @ Self::Remove(_), _) => OwnCallStep::Over(Ok(Reply::Done), own.left()),
            (Self::Purge, _) => OwnCallStep::Over(Ok(Reply::Done), Left::Nothing),
            // A file that was never written to needs no datafile.
            (Self::Datafile(entry, opened), Ok(_)) => made(call, entry, opened),
            (own @ Self::Datafile(..), Err(_)) => own.stale(call),
            (own, result) => OwnCallStep::Over(Err(result.err().unwrap_or(Errno::EIO)), own.left()),
        }
    }

    /// The next step after data servers have refused the capability.
    pub fn stale(self, call: &Call<'_>) -> OwnCallStep {
        match self {
            Self::Make(make) => make.renew(),
            // For `getattr`, the server would wait for the data servers.
            Self::Measure(Reply::Entry(entry)) if matches!(call, Call::Request(Request::Lookup { .. })) => {
                OwnCallStep::Anew(Left::Lookup(entry.attr.ino))
            }
            Self::Measure(actions) => match attr_of(&actions).map(|attr| attr.ino) {
                Some(ino) => OwnCallStep::Ask(Self::Remeasure(actions), Request::GetAttr { ino }),
                None => OwnCallStep::Over(Err(Errno::EIO), Left::Nothing),
            },
            // The datafile may still be created.
            Self::Datafile(entry, opened) => match made(call, entry, opened) {
                OwnCallStep::Over(reply, Left::OpenNamed(ino)) => OwnCallStep::Over(reply, Left::Open(ino)),
                step => step,
            },
            Self::Remeasure(_) => OwnCallStep::Over(Err(Errno::EIO), self.left()),
            Self::Remove(_) | Self::Purge => OwnCallStep::Over(Ok(Reply::Done), self.left()),
        }
    }

    /// The lookups and opens to return if the operation is abandoned.
    pub fn left(&self) -> Left {
        match self {
            Self::Make(make) => make.left(),
            Self::Measure(Reply::Entry(entry)) | Self::Remeasure(Reply::Entry(entry)) => {
                Left::Lookup(entry.attr.ino)
            }
            Self::Datafile(entry, _) => Left::Created(entry.attr.ino),
            Self::Remove(ino) => Left::Orphan(*ino),
            Self::Measure(_) | Self::Remeasure(_) | Self::Purge => Left::Nothing,
        }
    }
}

/// A create is finished; the file is open.
fn made(call: &Call<'_>, entry: Entry, opened: Opened) -> OwnCallStep {
    match created(call) {
        Some((_, _, Some(_))) => OwnCallStep::Over(Ok(Reply::Created(entry, opened)), Left::Nothing),
        _ => {
            let ino = entry.attr.ino;
            OwnCallStep::Over(Ok(Reply::Entry(entry)), Left::OpenNamed(ino))
        }
    }
}

fn attr_of(reply: &Reply) -> Option<&Attr> {
    match reply {
        Reply::Attr(attr) | Reply::Entry(Entry { attr, .. }) => Some(attr),
        _ => None,
    }
}

fn purge(ino: Ino) -> OwnCallStep {
    OwnCallStep::Ask(Own::Purge, Request::Purge { ino, removed: true })
}

/// The name that a call creates, and how it opens the file.
fn created<'a>(call: &'a Call<'_>) -> Option<(Ino, &'a Name, Option<OpenHow>)> {
    match call {
        Call::Request(Request::Create { dir, name, open, .. }) => Some((*dir, name, *open)),
        _ => None,
    }
}
