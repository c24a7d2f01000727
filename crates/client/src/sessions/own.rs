//! What a client does step by step where a server's answer leaves it to that: it makes a file, measures one, or removes one (carns III).
//! In the end there is an answer as if the server had done all of it.

use alloc::sync::Arc;

use espalier_proto::{
    Access, Attr, Delegation, Entry, Errno, Ino, Layout, Made, Name, OpenHow, Opened, Reply, Request,
};

use crate::{Call, Work};

/// Something that is being done. See the module's description.
#[derive(Debug)]
pub(super) enum Own {
    Make(Make),
    /// The reply lacks what data servers are asked for.
    Measure(Reply),
    /// As that, and another capability is asked for: what the reply tells of is not done once more.
    Remeasure(Reply),
    Remove(Ino),
    /// The reply is of a file that has its name, and no datafile.
    Datafile(Entry, Opened),
    /// The datafiles are gone, and the inode is to go.
    Purge,
}

/// A file that is being made.
#[derive(Debug)]
pub(super) struct Make {
    ino: Ino,
    opened: Opened,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Another capability is asked for.
    Renewing,
    Datafiles(Arc<Layout>),
    Layout,
    Name,
}

/// How a call goes on.
#[derive(Debug)]
pub(super) enum Step {
    Ask(Own, Request),
    Data(Own, Arc<Delegation>, Work),
    Over(Result<Reply, Errno>, Left),
    /// From its beginning.
    Anew(Left),
}

/// What is to be given back in the end.
#[derive(Debug)]
pub(super) enum Left {
    Nothing,
    /// It has been opened to be made.
    Open(Ino),
    /// As that, and it has its name: nobody waits for its end.
    OpenNamed(Ino),
    Lookup(Ino),
    /// Both.
    Created(Ino),
    /// What the server is to remove.
    Orphan(Ino),
}

impl Own {
    /// What a server has replied to a call.
    pub fn begin(call: &Call<'_>, reply: Result<Reply, Errno>) -> Step {
        match reply {
            Ok(Reply::Made(made)) => {
                let Made { ino, opened, delegation } = *made;
                match delegation {
                    Some(delegation) => Make::make_datafiles(ino, opened, delegation),
                    None => Make { ino, opened, stage: Stage::Name }.give_name(call),
                }
            }
            Ok(Reply::Unmeasured(told, delegation)) => match &*told {
                Reply::Attr(attr) | Reply::Entry(Entry { attr, .. }) => {
                    let work = Work::Measure(*attr);
                    Step::Data(Self::Measure(*told), Arc::from(delegation), work)
                }
                Reply::Created(entry, opened) => {
                    // One that is lost with the power was never written to, and is not missed.
                    let work = Work::Create { ino: entry.attr.ino, sync: false };
                    let own = Self::Datafile(*entry, *opened);
                    Step::Data(own, Arc::from(delegation), work)
                }
                _ => Step::Over(Err(Errno::EIO), Left::Nothing),
            },
            Ok(Reply::Orphaned(ino, Some(delegation))) => {
                Step::Data(Self::Remove(ino), Arc::from(delegation), Work::Remove(ino))
            }
            Ok(Reply::Orphaned(ino, None)) => purge(ino),
            reply => Step::Over(reply, Left::Nothing),
        }
    }

    /// What was asked for has come.
    pub fn go_on(self, call: &Call<'_>, result: Result<Reply, Errno>) -> Step {
        match (self, result) {
            (Self::Make(make), result) => make.go_on(call, result),
            // The server may have measured it itself by then.
            (Self::Measure(told) | Self::Remeasure(told), Ok(Reply::Attr(attr))) => match told {
                Reply::Entry(entry) => Step::Over(Ok(Reply::Entry(Entry { attr, ..entry })), Left::Nothing),
                _ => Step::Over(Ok(Reply::Attr(attr)), Left::Nothing),
            },
            (Self::Remeasure(told), Ok(Reply::Unmeasured(_, delegation))) => match attr_of(&told) {
                Some(attr) => {
                    let work = Work::Measure(*attr);
                    Step::Data(Self::Measure(told), Arc::from(delegation), work)
                }
                None => Step::Over(Err(Errno::EIO), Left::Nothing),
            },
            (Self::Remove(ino), Ok(Reply::Done)) => purge(ino),
            // The name is gone, whatever becomes of the rest.
            (own @ Self::Remove(_), _) => Step::Over(Ok(Reply::Done), own.left()),
            (Self::Purge, _) => Step::Over(Ok(Reply::Done), Left::Nothing),
            // One that was never written to needs no datafile.
            (Self::Datafile(entry, opened), Ok(_)) => made(call, entry, opened),
            (own @ Self::Datafile(..), Err(_)) => own.stale(call),
            (own, result) => Step::Over(Err(result.err().unwrap_or(Errno::EIO)), own.left()),
        }
    }

    /// Data servers want another capability.
    pub fn stale(self, call: &Call<'_>) -> Step {
        match self {
            Self::Make(make) => {
                let request = Request::Delegate { ino: make.ino, access: Access::EXEC };
                Step::Ask(Self::Make(Make { stage: Stage::Renewing, ..make }), request)
            }
            // The server would wait for data servers before it told attributes alone.
            Self::Measure(Reply::Entry(entry)) if matches!(call, Call::Request(Request::Lookup { .. })) => {
                Step::Anew(Left::Lookup(entry.attr.ino))
            }
            Self::Measure(told) => match attr_of(&told).map(|attr| attr.ino) {
                Some(ino) => Step::Ask(Self::Remeasure(told), Request::GetAttr { ino }),
                None => Step::Over(Err(Errno::EIO), Left::Nothing),
            },
            // It may still be made.
            Self::Datafile(entry, opened) => match made(call, entry, opened) {
                Step::Over(reply, Left::OpenNamed(ino)) => Step::Over(reply, Left::Open(ino)),
                step => step,
            },
            Self::Remeasure(_) => Step::Over(Err(Errno::EIO), self.left()),
            Self::Remove(_) | Self::Purge => Step::Over(Ok(Reply::Done), self.left()),
        }
    }

    /// What is to be given back of what is not gone on with.
    pub fn left(&self) -> Left {
        match self {
            Self::Make(Make { ino, .. }) => Left::Open(*ino),
            Self::Measure(Reply::Entry(entry)) | Self::Remeasure(Reply::Entry(entry)) => {
                Left::Lookup(entry.attr.ino)
            }
            Self::Datafile(entry, _) => Left::Created(entry.attr.ino),
            Self::Remove(ino) => Left::Orphan(*ino),
            Self::Measure(_) | Self::Remeasure(_) | Self::Purge => Left::Nothing,
        }
    }
}

/// A file has been made, and was opened for that.
fn made(call: &Call<'_>, entry: Entry, opened: Opened) -> Step {
    match created(call) {
        Some((_, _, Some(_))) => Step::Over(Ok(Reply::Created(entry, opened)), Left::Nothing),
        _ => {
            let ino = entry.attr.ino;
            Step::Over(Ok(Reply::Entry(entry)), Left::OpenNamed(ino))
        }
    }
}

fn attr_of(reply: &Reply) -> Option<&Attr> {
    match reply {
        Reply::Attr(attr) | Reply::Entry(Entry { attr, .. }) => Some(attr),
        _ => None,
    }
}

fn purge(ino: Ino) -> Step {
    Step::Ask(Own::Purge, Request::Purge { ino, removed: true })
}

impl Make {
    fn make_datafiles(ino: Ino, opened: Opened, delegation: Delegation) -> Step {
        let stage = Stage::Datafiles(Arc::clone(&delegation.layout));
        let work = Work::Create { ino, sync: true };
        Step::Data(Own::Make(Self { ino, opened, stage }), Arc::new(delegation), work)
    }

    fn give_name(self, call: &Call<'_>) -> Step {
        let Some((dir, name, _)) = created(call) else { return self.fail(Errno::EIO) };
        let request = Request::Link { ino: self.ino, dir, name: name.clone() };
        Step::Ask(Own::Make(Self { stage: Stage::Name, ..self }), request)
    }

    fn fail(self, errno: Errno) -> Step {
        Step::Over(Err(errno), Own::Make(self).left())
    }

    fn go_on(self, call: &Call<'_>, result: Result<Reply, Errno>) -> Step {
        let Self { ino, opened, .. } = self;
        match (self.stage, result) {
            (Stage::Renewing, Ok(Reply::Delegated(Some(given)))) => Self::make_datafiles(ino, opened, *given),
            (Stage::Datafiles(layout), Ok(Reply::Done)) => {
                let make = Self { ino, opened, stage: Stage::Layout };
                Step::Ask(Own::Make(make), Request::SetLayout { ino, layout })
            }
            (Stage::Layout, Ok(Reply::Done)) => Self { ino, opened, stage: Stage::Name }.give_name(call),
            (Stage::Name, Ok(Reply::Entry(entry))) => made(call, entry, opened),
            // Somebody was faster: the file that is there is opened, if that is wanted.
            (stage, Err(Errno::EEXIST)) if may_be_there(call) => {
                Step::Anew(Own::Make(Self { ino, opened, stage }).left())
            }
            (stage, result) => Self { ino, opened, stage }.fail(result.err().unwrap_or(Errno::EIO)),
        }
    }
}

/// The name that a call makes, and how it opens what it makes.
fn created<'a>(call: &'a Call<'_>) -> Option<(Ino, &'a Name, Option<OpenHow>)> {
    match call {
        Call::Request(Request::Create { dir, name, open, .. }) => Some((*dir, name, *open)),
        _ => None,
    }
}

fn may_be_there(call: &Call<'_>) -> bool {
    matches!(call, Call::Request(Request::Create { open: Some(_), exclusive: false, .. }))
}
