//! Data servers below a machine. They survive its crashes.

use std::collections::BTreeMap;

use espalier_meta::{IoDone, Layouts, StreamCall};
use espalier_proto::*;
use espalier_store::{Datafiles, MemoryStore, SimFile, Store};

#[derive(Default)]
pub struct DataServers {
    servers: BTreeMap<ServerId, Datafiles<MemoryStore, SimFile>>,
    /// They execute no requests.
    pub down: bool,
}

impl DataServers {
    pub fn new(count: u16) -> Self {
        let server = |number| (ServerId(number), Datafiles::in_memory(false).unwrap());
        let servers = (0..count).map(server).collect();
        Self { servers, down: false }
    }

    pub fn call(&self, call: &StreamCall, layouts: &Layouts) -> Result<IoDone, Errno> {
        if self.down && matches!(call, StreamCall::TryStat(_)) {
            return Err(Errno::EAGAIN);
        }
        let data_requests = call.requests(layouts)?;
        let replies = data_requests.iter().map(|(server, request)| self.ask(*server, request)).collect();
        call.combine(layouts, &data_requests, replies, |_| Ok(StreamStat::default())).map(IoDone::Stream)
    }

    pub fn ask(&self, server: ServerId, request: &DataRequest) -> Result<DataReply, Errno> {
        if self.down {
            return Err(Errno::EIO);
        }
        self.servers[&server].carry_out(request.clone()).map_err(|error| error.errno())
    }

    /// Loses what is not durable.
    pub fn lose_power(&mut self) {
        self.servers.values_mut().for_each(|files| *files = files.crash(Some(0)).unwrap());
    }

    /// Sets the clocks of all servers.
    pub fn set_now(&self, now: Time) {
        self.servers.values().for_each(|files| files.store().set_now(now));
    }

    /// All datafiles, with their sizes.
    pub fn all(&self) -> Vec<(ServerId, Ino, u64)> {
        let mut all = Vec::new();
        for (server, files) in &self.servers {
            all.extend(files.all().unwrap().into_iter().map(|(ino, size)| (*server, ino, size)));
        }
        all
    }

    /// Copies a datafile to another server.
    pub fn copy(&self, ino: Ino, from: ServerId, to: ServerId) {
        let StreamStat { size, .. } = self.servers[&from].store().stream_stat(ino).unwrap();
        let mut bytes = vec![0; size as usize];
        self.servers[&from].store().stream_read(ino, 0, &mut bytes).unwrap();
        self.servers[&to].store().stream_write(ino, 0, &bytes).unwrap();
    }

    /// All bytes of a file.
    pub fn read(&self, layout: &Layout, ino: Ino) -> Vec<u8> {
        let stores: Vec<_> = layout.servers().iter().map(|server| self.servers[server].store()).collect();
        let sizes = stores.iter().map(|store| store.stream_stat(ino).unwrap().size);
        let byte = |Segment { place, local, .. }| {
            let mut byte = [0];
            stores[place].stream_read(ino, local, &mut byte).unwrap();
            byte[0]
        };
        (0..layout.size(sizes)).map(|at| byte(layout.segments(at, 1).next().unwrap())).collect()
    }

    /// Number of datafiles per file.
    pub fn files(&self) -> BTreeMap<Ino, usize> {
        let mut files = BTreeMap::new();
        for server in self.servers.values() {
            for (ino, _) in server.all().unwrap() {
                *files.entry(ino).or_default() += 1;
            }
        }
        files
    }
}
