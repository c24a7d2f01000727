//! A metadata server's requests to data servers, and what it adds to replies about data.

use espalier_meta::{Input, IoDone, IoId, Layouts, StreamCall};
use espalier_proto::{Errno, FromServer, Reply, ServerId};

use crate::storage::Storage;
use crate::world::data_calls::DataCallEvent;
use crate::world::fabric::Fabric;

use super::{Purpose, SimServer, stream_stat};

impl SimServer {
    /// Completes a message with fields that the machine does not know.
    pub(super) fn complete(&self, mut message: FromServer) -> FromServer {
        match &mut message {
            FromServer::Reply { result: Ok(Reply::StatFs(capacity)), .. } => {
                capacity.space = self.storage.as_ref().map(Storage::space).unwrap_or_default();
            }
            FromServer::Reply { result: Ok(reply), .. } => {
                if let Some(capability) = reply.capability() {
                    (capability.server, capability.incarnation) = (ServerId(self.rank.0), self.start);
                }
            }
            _ => {}
        }
        message
    }

    /// Handles a result from data servers.
    pub(super) fn reached(&mut self, fabric: &mut Fabric<'_>, reached: DataCallEvent<Purpose>) {
        let now = self.now(fabric, 0);
        let Some(session_layer) = &mut self.session_layer else { return };
        match reached {
            DataCallEvent::New(server, inos) => {
                session_layer.input(now, Input::NewDatafiles { server, inos })
            }
            DataCallEvent::Streamed { purpose: Purpose::Stream(of), result } => {
                // Requests of metadata servers have no capabilities.
                session_layer.end_stream(of, result.unwrap_or(Err(Errno::EIO)));
            }
            DataCallEvent::Replies { purpose: Purpose::Io(id, call, layouts), data_requests, replies } => {
                let local = |ino| stream_stat(self.storage.as_ref(), ino);
                let result = call.combine(&layouts, &data_requests, replies, local).map(IoDone::Stream);
                session_layer.input(now, Input::Done { id, result });
            }
            DataCallEvent::Replies { purpose: Purpose::Admit(id), replies, .. } => {
                let failed = replies.into_iter().find_map(Result::err);
                session_layer
                    .input(now, Input::Done { id, result: failed.map_or(Ok(IoDone::Admitted), Err) });
            }
            DataCallEvent::Streamed { .. } | DataCallEvent::Replies { .. } => {}
        }
    }

    /// Sends the machine's requests to data servers. Returns results that are available at once.
    pub(super) fn ask_data_servers(
        &mut self,
        fabric: &mut Fabric<'_>,
        id: IoId,
        call: StreamCall,
        layouts: Layouts,
    ) -> Option<(IoId, Result<IoDone, Errno>)> {
        let mut servers = layouts.iter().flat_map(|(_, layout)| layout.servers());
        if matches!(call, StreamCall::TryStat(_))
            && !servers.all(|server| self.data_calls.is_reached(*server))
        {
            return Some((id, Err(Errno::EAGAIN)));
        }
        match call.requests(&layouts) {
            Err(errno) => Some((id, Err(errno))),
            // No data server is involved: the store's result is complete.
            Ok(data_requests) if data_requests.is_empty() => {
                let local = |ino| stream_stat(self.storage.as_ref(), ino);
                Some((id, call.combine(&layouts, &data_requests, Vec::new(), local).map(IoDone::Stream)))
            }
            Ok(data_requests) => {
                let causes = self.causes_of(fabric, id);
                self.data_calls.ask(fabric, Purpose::Io(id, call, layouts), data_requests, causes);
                None
            }
        }
    }
}
