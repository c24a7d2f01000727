//! Executes operations on striped files: sends the requests to data servers, and continues with the
//! replies.

use std::sync::Arc;

use bytes::Bytes;
use espalier_client::{Striped, StripedStep, Work};
use espalier_meta::{Layouts, StreamCall, StreamDone};
use espalier_proto::{DataReply, DataRequest, Errno, Ino, Layout, Reply, ServerId, StreamStat};

use super::servers::{DataServers, Pass, PendingReply};
use crate::tracer::Id;

/// See the module's documentation.
pub struct Striper {
    pub servers: DataServers,
}

/// The data servers refuse the capability: get another. The requests may have been executed in
/// part.
#[derive(Clone, Copy, Debug)]
pub struct Stale;

impl Striper {
    pub fn new(servers: DataServers) -> Self {
        Self { servers }
    }

    /// Executes I/O on a file. `data`: the bytes to write. `pass`: the permission of a client with
    /// direct access. `causes`: the operations that wait, while tracing is on.
    ///
    /// # Errors
    /// [`Stale`]: the capability is out of date.
    pub async fn stream(
        &self,
        layout: Arc<Layout>,
        work: impl Into<Work>,
        data: Bytes,
        pass: Option<&Pass>,
        causes: &[Id],
    ) -> Result<Result<Reply, Errno>, Stale> {
        let (mut striped, mut step) = Striped::start(layout, work, data);
        loop {
            match step {
                StripedStep::Done(result) => return Ok(result),
                StripedStep::Ask(asks) => {
                    let replies = answers(self.ask(asks, pass, causes)).await;
                    if replies.contains(&Ok(DataReply::Stale)) {
                        return Err(Stale);
                    }
                    step = striped.advance(replies);
                }
            }
        }
    }

    /// Executes an operation of the metadata machine. `local`: the result for a file in the local
    /// store. `causes`: as in [`Self::stream`].
    ///
    /// # Errors
    /// Errors of the data servers and of `local`.
    pub async fn call(
        &self,
        call: &StreamCall,
        layouts: &Layouts,
        local: impl Fn(Ino) -> Result<StreamStat, Errno>,
        causes: &[Id],
    ) -> Result<StreamDone, Errno> {
        let data_requests = call.requests(layouts)?;
        let replies = answers(self.ask(data_requests.clone(), None, causes)).await;
        call.combine(layouts, &data_requests, replies, local)
    }

    /// All requests are queued before this returns, so they are sent in the order of the calls.
    fn ask(
        &self,
        asks: Vec<(ServerId, DataRequest)>,
        pass: Option<&Pass>,
        causes: &[Id],
    ) -> Vec<PendingReply> {
        let ask = |(server, request)| self.servers.ask(server, request, pass.cloned(), causes);
        asks.into_iter().map(ask).collect()
    }
}

pub async fn answers(answers: Vec<PendingReply>) -> Vec<Result<DataReply, Errno>> {
    let mut come = Vec::with_capacity(answers.len());
    for answer in answers {
        come.push(answer.await.unwrap_or(Err(Errno::EIO)));
    }
    come
}
