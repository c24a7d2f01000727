//! Files whose bytes the client reads and writes without the metadata server, once that has told it how. What the
//! metadata server alone knows stays with it: where a file ends that is appended to, and all that is more than bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytes::Bytes;
use espalier_proto::{Access, Delegation, END, Errno, Ino, Request, StreamIo};

use crate::{Answer, Call, Client, Next, Work, extend, to_stream, write};

/// Whom a file's bytes are to be asked of.
#[derive(Clone, Debug, Default)]
pub(crate) enum Way {
    /// That is to be asked first.
    #[default]
    Unknown,
    MetadataServer,
    DataServers(Arc<Delegation>),
}

impl Client {
    /// Reads or writes a stream.
    pub(crate) fn do_itself(&self, ino: Ino, access: Access, io: StreamIo) -> Next {
        let way = self.files.get(&ino).map_or(&Way::Unknown, |file| &file.way);
        match way {
            _ if !self.can_ask_data_servers => Next::Stream(io),
            Way::MetadataServer => Next::Stream(io),
            Way::DataServers(delegation) if delegation.capability.access.contains(access) => {
                Next::Data(Arc::clone(delegation), Work::Stream(io))
            }
            Way::DataServers(delegation) => {
                Next::Ask(Request::Delegate { ino, access: access | delegation.capability.access })
            }
            Way::Unknown => Next::Ask(Request::Delegate { ino, access }),
        }
    }

    /// Writes to a stream; whoever allows that is asked first, if that is needed.
    pub(crate) fn write(&self, call: &Call<'_>) -> Next {
        let Call::Write { ino, offset, .. } = *call else { return Next::Answer(Err(Errno::EIO)) };
        match self.do_itself(ino, Access::WRITE, StreamIo::Write { ino, offset, told: false }) {
            // Set-id bits are gone by now.
            _ if offset == END && self.is_served => write(call, false),
            _ if offset == END => extend(call),
            Next::Stream(_) => self.change_stream(call),
            Next::Data(delegation, _) if delegation.limited => extend(call),
            next => next,
        }
    }

    /// Writes several pieces to a stream, together unless each has to be allowed.
    pub(crate) fn write_list(&self, ino: Ino, pieces: &[(u64, Bytes)]) -> Next {
        let (Some((offset, _)), Some((last, piece))) = (pieces.first(), pieces.last()) else {
            return Next::Answer(Ok(Answer::Written(0)));
        };
        let (offset, end) = (*offset, last + piece.len() as u64);
        match self.do_itself(ino, Access::WRITE, StreamIo::WriteList { ino, offset, end }) {
            _ if !self.is_streamed(ino) => Next::Apart,
            Next::Data(delegation, _) if delegation.limited => Next::Apart,
            next => next,
        }
    }

    /// Changes a stream; who does it finds out whether that may be, or is asked first.
    pub(crate) fn change_stream(&self, call: &Call<'_>) -> Next {
        if self.is_served { to_stream(call) } else { extend(call) }
    }

    /// The metadata server allows what a call does to a stream.
    pub(crate) fn granted(&self, call: &Call<'_>) -> Next {
        match *call {
            Call::Write { ino, offset, .. } if offset != END => {
                self.do_itself(ino, Access::WRITE, StreamIo::Write { ino, offset, told: false })
            }
            _ => to_stream(call),
        }
    }

    /// The metadata server has said whom the bytes are to be asked of.
    pub(crate) fn delegated(&mut self, call: &Call<'_>, delegation: Option<Box<Delegation>>) -> Next {
        let Some(ino) = call.stream() else { return Next::Answer(Err(Errno::EIO)) };
        let file = self.files.entry(ino).or_default();
        // A write to a small file may have been answered so, which it then is no more.
        file.streamed = true;
        file.way = delegation.map_or(Way::MetadataServer, |given| Way::DataServers(Arc::from(given)));
        self.start(call)
    }

    /// As [`Self::delegated`], of a write that is done.
    pub(crate) fn outgrown(&mut self, call: &Call<'_>, delegation: Box<Delegation>) -> Next {
        let Call::Write { ino, ref data, .. } = *call else { return Next::Answer(Err(Errno::EIO)) };
        let file = self.files.entry(ino).or_default();
        (file.streamed, file.way) = (true, Way::DataServers(Arc::from(delegation)));
        Next::Answer(Ok(Answer::Written(data.len() as u32)))
    }

    /// It may have been given the capabilities of a program, which the next write has to take away.
    pub(crate) fn ask_anew(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.way = Way::Unknown;
        }
    }

    /// Data servers do not take a capability any more: how the call goes on with another.
    pub fn stale(&mut self, call: &Call<'_>, delegation: &Arc<Delegation>) -> Next {
        if let Some(file) = call.stream().and_then(|ino| self.files.get_mut(&ino))
            && let Way::DataServers(known) = &file.way
            && Arc::ptr_eq(known, delegation)
        {
            file.way = Way::Unknown;
        }
        self.start(call)
    }
}
