//! Data servers under a machine. They go on when it crashes.

use std::collections::BTreeMap;

use espalier_meta::{IoDone, Layouts, StreamCall};
use espalier_proto::*;
use espalier_store::{MemoryStore, Store, StoreError};

#[derive(Default)]
pub struct DataServers {
    servers: BTreeMap<ServerId, MemoryStore>,
    /// They do nothing that they are asked.
    pub down: bool,
}

impl DataServers {
    pub fn new(count: u16) -> Self {
        let servers = (0..count).map(|number| (ServerId(number), MemoryStore::new())).collect();
        Self { servers, down: false }
    }

    pub fn call(&self, call: &StreamCall, layouts: &Layouts) -> Result<IoDone, Errno> {
        if self.down && matches!(call, StreamCall::Glance(_)) {
            return Err(Errno::EAGAIN);
        }
        let asked = call.requests(layouts)?;
        let replies = asked.iter().map(|(server, request)| self.ask(*server, request)).collect();
        call.combine(layouts, &asked, replies, |_| Ok(StreamStat::default())).map(IoDone::Stream)
    }

    pub fn ask(&self, server: ServerId, request: &DataRequest) -> Result<DataReply, Errno> {
        if self.down {
            return Err(Errno::EIO);
        }
        answer(&self.servers[&server], request).map_err(|error| error.errno())
    }

    /// How many datafiles there are of each file.
    pub fn files(&self) -> BTreeMap<Ino, usize> {
        let mut files = BTreeMap::new();
        for store in self.servers.values() {
            for ino in store.streams().unwrap() {
                *files.entry(ino).or_default() += 1;
            }
        }
        files
    }
}

fn answer(store: &MemoryStore, request: &DataRequest) -> Result<DataReply, StoreError> {
    match request.clone() {
        DataRequest::Stat { inos } => {
            let stats = inos.into_iter().map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>()?;
            return Ok(DataReply::Stats(stats));
        }
        DataRequest::New => return Ok(DataReply::Inos(store.new_streams()?)),
        DataRequest::Fill { ino, size: 0, .. } => store.stream_remove(ino)?,
        DataRequest::Fill { ino, data, size, mtime, .. } => {
            store.stream_create(ino)?;
            store.stream_write(ino, 0, &data)?;
            store.stream_truncate(ino, size)?;
            store.stream_set_mtime(ino, mtime)?;
        }
        DataRequest::Settle { ino } => store.stream_settle(ino)?,
        DataRequest::Truncate { ino, size } => store.stream_truncate(ino, size)?,
        DataRequest::SetMtime { ino, mtime } => store.stream_set_mtime(ino, mtime)?,
        DataRequest::Sync { ino } => store.stream_sync(ino)?,
        DataRequest::Remove { ino } => store.stream_remove(ino)?,
        DataRequest::Write { ino, offset, data } => store.stream_write(ino, offset, &data)?,
        other => panic!("the machine does not ask {other:?}"),
    }
    Ok(DataReply::Done)
}
