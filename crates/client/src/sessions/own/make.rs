//! Baseline of the setting `create = "client"`: the client makes a striped file itself, one request
//! after the other: inode, datafiles, layout, name (carns III.A).

use alloc::sync::Arc;

use espalier_proto::{Access, Delegation, Errno, Ino, Layout, Made, Opened, Reply, Request};

use super::{Left, Own, OwnCallStep, created, made};
use crate::{Call, Work};

/// A create in progress. The server has made the inode.
#[derive(Debug)]
pub(in crate::sessions) struct Make {
    ino: Ino,
    opened: Opened,
    stage: MakeStage,
}

#[derive(Debug)]
enum MakeStage {
    /// Another capability has been requested.
    Renewing,
    Datafiles(Arc<Layout>),
    Layout,
    Name,
}

impl Make {
    /// Begins with the server's reply to the create.
    pub(super) fn begin(call: &Call<'_>, made: Made) -> OwnCallStep {
        let Made { ino, opened, delegation } = made;
        match delegation {
            Some(delegation) => Self::make_datafiles(ino, opened, delegation),
            None => Self { ino, opened, stage: MakeStage::Name }.give_name(call),
        }
    }

    /// Requests another capability.
    pub(super) fn renew(self) -> OwnCallStep {
        let request = Request::Delegate { ino: self.ino, access: Access::EXEC };
        OwnCallStep::Ask(Own::Make(Self { stage: MakeStage::Renewing, ..self }), request)
    }

    /// As [`Own::left`].
    pub(super) fn left(&self) -> Left {
        Left::Open(self.ino)
    }

    fn make_datafiles(ino: Ino, opened: Opened, delegation: Delegation) -> OwnCallStep {
        let Some(layout) = &delegation.layout else {
            return OwnCallStep::Over(Err(Errno::EIO), Left::Open(ino));
        };
        let stage = MakeStage::Datafiles(Arc::clone(layout));
        let work = Work::Create { ino, sync: true };
        OwnCallStep::Data(Own::Make(Self { ino, opened, stage }), Arc::new(delegation), work)
    }

    fn give_name(self, call: &Call<'_>) -> OwnCallStep {
        let Some((dir, name, _)) = created(call) else { return self.fail(Errno::EIO) };
        let request = Request::Link { ino: self.ino, dir, name: name.clone() };
        OwnCallStep::Ask(Own::Make(Self { stage: MakeStage::Name, ..self }), request)
    }

    fn fail(self, errno: Errno) -> OwnCallStep {
        OwnCallStep::Over(Err(errno), self.left())
    }

    pub(super) fn advance(self, call: &Call<'_>, result: Result<Reply, Errno>) -> OwnCallStep {
        let Self { ino, opened, .. } = self;
        match (self.stage, result) {
            (MakeStage::Renewing, Ok(Reply::Delegated(Some(given)))) => {
                Self::make_datafiles(ino, opened, *given)
            }
            (MakeStage::Datafiles(layout), Ok(Reply::Done)) => {
                let make = Self { ino, opened, stage: MakeStage::Layout };
                OwnCallStep::Ask(Own::Make(make), Request::SetLayout { ino, layout })
            }
            (MakeStage::Layout, Ok(Reply::Done)) => {
                Self { ino, opened, stage: MakeStage::Name }.give_name(call)
            }
            (MakeStage::Name, Ok(Reply::Entry(entry))) => made(call, entry, opened),
            // Another client has created the name: open that file if the call permits it.
            (_, Err(Errno::EEXIST)) if may_be_there(call) => OwnCallStep::Anew(Left::Open(ino)),
            (stage, result) => Self { ino, opened, stage }.fail(result.err().unwrap_or(Errno::EIO)),
        }
    }
}

fn may_be_there(call: &Call<'_>) -> bool {
    matches!(call, Call::Request(Request::Create { open: Some(_), exclusive: false, .. }))
}
