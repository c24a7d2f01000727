//! Which changes of bytes may have been done twice: data servers, and streams of metadata servers that were started anew, know nothing of
//! what they have done before. So something old may have landed on something new.

use std::collections::{BTreeMap, BTreeSet};

use espalier_proto::{DataReply, DataRequest, FromClient, FromData, Ino, RequestId, StreamIo, ToData};

use crate::message::Message;
use crate::observe::Node;

/// Who has asked whom by which number.
type Asked = (Node, Node, RequestId);

/// See the module's description.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Asked of data servers.
    data: BTreeMap<Asked, Ino>,
    /// Asked of metadata servers that have not ended since, and of those that have.
    streams: BTreeSet<Asked>,
    old: BTreeSet<Asked>,
}

impl Repeats {
    /// A message is on its way. The file of which something may be done twice, now.
    pub fn sent(&mut self, from: Node, to: Node, message: &Message) -> Option<Ino> {
        match message {
            Message::ToData(ToData { id, request, .. }) => {
                let (DataRequest::Write { ino, .. }
                | DataRequest::WriteList { ino, .. }
                | DataRequest::Truncate { ino, .. }) = request
                else {
                    return None;
                };
                self.data.insert((from, to, *id), *ino)
            }
            // What others have done already is done again with another capability.
            Message::FromData(FromData { id, result: Ok(DataReply::Stale), .. }) => {
                self.data.get(&(to, from, *id)).copied()
            }
            Message::FromClient(FromClient::Stream {
                id,
                io: StreamIo::Write { ino, .. } | StreamIo::WriteList { ino, .. },
                ..
            }) => {
                let asked = (from, to, *id);
                self.streams.insert(asked);
                self.old.contains(&asked).then_some(*ino)
            }
            _ => None,
        }
    }

    /// A server has ended. It begins to count anew.
    pub fn ended(&mut self, server: Node) {
        self.data.retain(|(from, _, _), _| *from != server);
        self.old.extend(self.streams.extract_if(.., |(_, to, _)| *to == server));
    }
}
