//! Detects writes that may be executed twice: data servers, and restarted metadata servers for
//! streams, do not recognise repeated requests. So an old write may overwrite a newer one.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::{DataReply, DataRequest, FromClient, FromData, Ino, RequestId, StreamIo, ToData};

use crate::message::Message;
use crate::observe::Node;

/// Sender, receiver, and number of a request.
type MessageKey = (Node, Node, RequestId);

/// See the module description.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Requests to data servers.
    data: BTreeMap<MessageKey, Ino>,
    /// Stream requests to metadata servers in the current incarnation, and in earlier ones.
    streams: BTreeSet<MessageKey>,
    old: BTreeSet<MessageKey>,
}

impl Repeats {
    /// A message is sent. Returns the file of a write that may now be executed twice.
    pub fn sent(&mut self, from: Node, to: Node, message: &Message) -> Option<Ino> {
        match message {
            Message::ToData(ToData { id, request, .. }) => {
                let ino = match request {
                    DataRequest::Range { ino, op, .. } if op.is_write() => ino,
                    DataRequest::Truncate { ino, .. } => ino,
                    _ => return None,
                };
                self.data.insert((from, to, *id), *ino)
            }
            // The writes of other datafiles are repeated with a new capability.
            Message::FromData(FromData { id, result: Ok(DataReply::Stale), .. }) => {
                self.data.get(&(to, from, *id)).copied()
            }
            Message::FromClient(FromClient::Stream { id, io: StreamIo { ino, op, .. }, .. })
                if op.is_write() =>
            {
                let request_key = (from, to, *id);
                self.streams.insert(request_key);
                self.old.contains(&request_key).then_some(*ino)
            }
            _ => None,
        }
    }

    /// A server has ended; its incarnation changes.
    pub fn ended(&mut self, server: Node) {
        self.data.retain(|(from, _, _), _| *from != server);
        self.old.extend(self.streams.extract_if(.., |(_, to, _)| *to == server));
    }
}
