//! Data servers under a machine. They go on when it crashes.

use std::collections::BTreeMap;

use espalier_meta::{IoDone, Layouts, StreamCall};
use espalier_proto::*;
use espalier_store::{MemoryStore, Store, carry_out};

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
        carry_out(&self.servers[&server], request.clone(), false).map_err(|error| error.errno())
    }

    /// All datafiles, with their sizes.
    pub fn all(&self) -> Vec<(ServerId, Ino, u64)> {
        let of = |(server, store): (&ServerId, &MemoryStore)| {
            let size = |ino| (*server, ino, store.stream_stat(ino).unwrap().size);
            store.streams().unwrap().into_iter().map(size).collect::<Vec<_>>()
        };
        self.servers.iter().flat_map(of).collect()
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
