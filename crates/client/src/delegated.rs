//! Direct access: decides whether a read or write of a file goes to the data servers or to the data
//! pool of the metadata servers' store, under a *delegation* (a capability, for data servers with a
//! layout) from the metadata server, or to the metadata server.
//! Delegated opens are another thing: opens without a message (`sessions/delegated_open.rs`).
//!
//! The metadata server still handles appends, since only it knows where a file ends, and all
//! metadata. Of files in the data pool it handles all operations but reads and writes.
//!
//! **The data pool checks no capability.** A server fences the client before it ends the client's
//! session; it does not when it starts anew. An operation on the pool that completes after that is
//! complete nevertheless, and is not repeated, which would overwrite what others have written to
//! the same place since. The server counts the file's size when the client closes the file, after
//! all its operations, or after it has fenced the client (`crates/meta/src/session/data.rs`). What
//! follows is done under a new delegation, since the server may have granted others more meanwhile.

use alloc::boxed::Box;
use alloc::sync::Arc;

use espalier_proto::{Delegation, Errno, Ino, RangeOp, Request, StreamIo};

use crate::{Answer, Call, Client, Next, RangeCall, Work};

/// The destination of reads and writes of a file.
#[derive(Clone, Debug, Default)]
pub(crate) enum DataPath {
    /// Ask the metadata server first.
    #[default]
    Unknown,
    MetadataServer,
    /// To data servers, or to the data pool.
    Direct(Arc<Delegation>),
}

/// The use of the data pool by this client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolAccess {
    is_usable: bool,
    /// Number of [`Client::set_data_pool`]'s calls so far.
    pub(crate) epoch: u64,
}

impl Client {
    /// Reads or writes a stream.
    pub(crate) fn do_directly(&self, io: StreamIo) -> Next {
        let (ino, access) = (io.ino, io.op.access());
        let data_path = self.files.get(&ino).map_or(&DataPath::Unknown, |file| &file.data_path);
        match data_path {
            _ if !self.can_ask_data_servers && !self.data_pool.is_usable => Next::Stream(io),
            DataPath::MetadataServer => Next::Stream(io),
            DataPath::Direct(delegation) if delegation.capability.access.contains(access) => {
                match (&delegation.layout, io.op) {
                    (None, RangeOp::WriteList { .. }) => Next::Apart,
                    (None, op) if !matches!(op, RangeOp::Read { .. } | RangeOp::Write { .. }) => {
                        Next::Stream(io)
                    }
                    _ => Next::Data(Arc::clone(delegation), Work::Stream(io)),
                }
            }
            DataPath::Direct(delegation) => {
                Next::Ask(Request::Delegate { ino, access: access | delegation.capability.access })
            }
            DataPath::Unknown => Next::Ask(Request::Delegate { ino, access }),
        }
    }

    /// Writes to a stream, after asking the metadata server for permission if necessary.
    pub(crate) fn write(&self, range: &RangeCall<'_>) -> Next {
        match self.do_directly(range.stream_io()) {
            // The set-id bits have been removed already.
            _ if range.op.is_append() && self.is_served => range.ask(false),
            _ if range.op.is_append() => extend(range),
            Next::Stream(_) => self.change_stream(range),
            Next::Data(delegation, _) if delegation.limited => extend(range),
            next => next,
        }
    }

    /// Writes several pieces to a stream: in one request, unless each write needs permission.
    pub(crate) fn write_list(&self, range: &RangeCall<'_>) -> Next {
        match self.do_directly(range.stream_io()) {
            _ if !self.is_streamed(range.ino) => Next::Apart,
            Next::Data(delegation, _) if delegation.limited => Next::Apart,
            next => next,
        }
    }

    /// Changes a stream. If no server executes the change, the metadata server must permit it
    /// first.
    pub(crate) fn change_stream(&self, range: &RangeCall<'_>) -> Next {
        if self.is_served { Next::Stream(range.stream_io()) } else { extend(range) }
    }

    /// The metadata server permits a call's change of a stream.
    pub(crate) fn granted(&self, call: &Call<'_>) -> Next {
        match call {
            Call::Range(range) if range.op.is_write() && !range.op.is_append() => {
                self.do_directly(range.stream_io())
            }
            Call::Range(range) => Next::Stream(range.stream_io()),
            _ => Next::Answer(Err(Errno::EIO)),
        }
    }

    /// The metadata server has replied whether the client may use the data servers.
    pub(crate) fn delegated(&mut self, call: &Call<'_>, delegation: Option<Box<Delegation>>) -> Next {
        let Some(ino) = call.stream() else { return Next::Answer(Err(Errno::EIO)) };
        let file = self.files.entry(ino).or_default();
        // This may be the reply to a write to a small file, which has been unstuffed meanwhile.
        file.streamed = true;
        let is_usable = self.data_pool.is_usable;
        let delegation = delegation.filter(|given| given.layout.is_some() || is_usable);
        file.data_path =
            delegation.map_or(DataPath::MetadataServer, |given| DataPath::Direct(Arc::from(given)));
        self.start(call)
    }

    /// As [`Sessions::set_data_pool`](crate::Sessions::set_data_pool).
    pub(crate) fn set_data_pool(&mut self, is_usable: bool) {
        self.data_pool = PoolAccess { is_usable, epoch: self.data_pool.epoch + 1 };
        for file in self.files.values_mut() {
            if let DataPath::MetadataServer = file.data_path {
                file.data_path = DataPath::Unknown;
            }
        }
        self.forget_pool_delegations();
    }

    /// Forgets all delegations for the data pool.
    pub(crate) fn forget_pool_delegations(&mut self) {
        for file in self.files.values_mut() {
            if matches!(&file.data_path, DataPath::Direct(delegation) if delegation.layout.is_none()) {
                file.data_path = DataPath::Unknown;
            }
        }
    }

    /// As [`Self::delegated`], for a write that the metadata server has executed.
    pub(crate) fn outgrown(&mut self, call: &Call<'_>, delegation: Box<Delegation>) -> Next {
        let Call::Range(RangeCall { ino, op: RangeOp::Write { length, .. }, .. }) = *call else {
            return Next::Answer(Err(Errno::EIO));
        };
        let file = self.files.entry(ino).or_default();
        (file.streamed, file.data_path) = (true, DataPath::Direct(Arc::from(delegation)));
        Next::Answer(Ok(Answer::Written(length)))
    }

    /// Forgets the delegation: `setxattr` may have set `security.capability`, which the next write
    /// must remove.
    pub(crate) fn forget_delegation(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.data_path = DataPath::Unknown;
        }
    }

    /// The data servers refuse a capability, or this client has been fenced in the data pool;
    /// returns the step that gets another.
    pub fn stale(&mut self, call: &Call<'_>, delegation: &Arc<Delegation>) -> Next {
        if let Some(file) = call.stream().and_then(|ino| self.files.get_mut(&ino))
            && let DataPath::Direct(known) = &file.data_path
            && Arc::ptr_eq(known, delegation)
        {
            file.data_path = DataPath::Unknown;
        }
        self.start(call)
    }
}

/// Asks the metadata server before a write to a stream, since a quota may reject it.
fn extend(range: &RangeCall<'_>) -> Next {
    range.stream_io().extends().map_or(Next::Answer(Err(Errno::EIO)), Next::Ask)
}
