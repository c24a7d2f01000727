//! Does what is to be done with striped files: asks the data servers, and goes on with their answers.

use std::sync::Arc;

use bytes::Bytes;
use espalier_client::{Striped, Turn, Work};
use espalier_meta::{Layouts, StreamCall, StreamDone};
use espalier_proto::{DataReply, DataRequest, Errno, Ino, Layout, Reply, ServerId, StreamStat};

use super::servers::{Answer, DataServers, Pass};
use crate::tracer::Id;

/// See the module's description.
pub struct Striper {
    pub servers: DataServers,
}

/// A capability has to be asked for again. What it was shown for may have been done in part.
#[derive(Clone, Copy, Debug)]
pub struct Stale;

impl Striper {
    pub fn new(servers: DataServers) -> Self {
        Self { servers }
    }

    /// What a client wants to be done with a file. `data`: what is written. `pass`: of a client that asks itself. `causes`: the operations
    /// that wait for it, while somebody traces.
    ///
    /// # Errors
    /// What is passed is out of date.
    pub async fn stream(
        &self,
        layout: Arc<Layout>,
        work: impl Into<Work>,
        data: Bytes,
        pass: Option<&Pass>,
        causes: &[Id],
    ) -> Result<Result<Reply, Errno>, Stale> {
        let (mut striped, mut turn) = Striped::start(layout, work, data);
        loop {
            match turn {
                Turn::Done(result) => return Ok(result),
                Turn::Ask(asks) => {
                    let replies = answers(self.ask(asks, pass, causes)).await;
                    if replies.contains(&Ok(DataReply::Stale)) {
                        return Err(Stale);
                    }
                    turn = striped.go_on(replies);
                }
            }
        }
    }

    /// What the metadata machine wants to be done. `local`: what the store tells of a file that lies there. `causes`: as of [`Self::stream`].
    ///
    /// # Errors
    /// Those of the data servers and of `local`.
    pub async fn call(
        &self,
        call: &StreamCall,
        layouts: &Layouts,
        local: impl Fn(Ino) -> Result<StreamStat, Errno>,
        causes: &[Id],
    ) -> Result<StreamDone, Errno> {
        let asked = call.requests(layouts)?;
        let replies = answers(self.ask(asked.clone(), None, causes)).await;
        call.combine(layouts, &asked, replies, local)
    }

    /// All are asked before this returns, so that they are asked in the order of the calls.
    fn ask(&self, asks: Vec<(ServerId, DataRequest)>, pass: Option<&Pass>, causes: &[Id]) -> Vec<Answer> {
        let ask = |(server, request)| self.servers.ask(server, request, pass.cloned(), causes);
        asks.into_iter().map(ask).collect()
    }
}

pub async fn answers(answers: Vec<Answer>) -> Vec<Result<DataReply, Errno>> {
    let mut come = Vec::with_capacity(answers.len());
    for answer in answers {
        come.push(answer.await.unwrap_or(Err(Errno::EIO)));
    }
    come
}
