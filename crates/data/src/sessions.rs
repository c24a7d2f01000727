//! The live client sessions, as reported by their metadata servers.
//!
//! This module uses no clocks. A metadata server ends a session only after every data server has
//! confirmed that none of its requests is in progress. After a restart of either, a data server
//! serves no client of a metadata server before its first `Admit`.

use alloc::vec::Vec;

use espalier_proto::{Capability, ServerId};

use crate::FxMap;

/// A client's session with one incarnation of a metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientSession {
    pub server: ServerId,
    incarnation: u64,
    number: u64,
}

impl ClientSession {
    pub fn of(capability: &Capability) -> Self {
        let Capability { server, incarnation, session: number, .. } = *capability;
        Self { server, incarnation, number }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    servers: FxMap<ServerId, Reported>,
}

/// A metadata server's last report.
#[derive(Debug)]
struct Reported {
    incarnation: u64,
    /// Position up to which its journal is known to be durable.
    durable: u64,
    /// `None` before its first report.
    sessions: Option<Live>,
}

#[derive(Debug)]
struct Live {
    /// Sessions below this number are live only if they are in `live`.
    below: u64,
    /// Sorted.
    live: Vec<u64>,
}

impl SessionTable {
    /// A metadata server has connected. Reports of an earlier incarnation are void.
    pub fn begin(&mut self, server: ServerId, incarnation: u64) {
        let anew = || Reported { incarnation, durable: 0, sessions: None };
        let reported = self.servers.entry(server).or_insert_with(anew);
        if reported.incarnation != incarnation {
            *reported = anew();
        }
    }

    /// A metadata server's journal is durable up to `durable`.
    pub fn committed(&mut self, server: ServerId, durable: u64) {
        if let Some(reported) = self.servers.get_mut(&server) {
            reported.durable = reported.durable.max(durable);
        }
    }

    /// True if the file of a capability may turn out to have no datafiles, since the change that
    /// gave it some is not known to be durable.
    pub fn is_young(&self, capability: &Capability) -> bool {
        let Capability { server, incarnation, since, .. } = *capability;
        let reported = self.servers.get(&server).filter(|reported| reported.incarnation == incarnation);
        since > reported.map_or(0, |reported| reported.durable)
    }

    /// Records the live sessions. A late copy of a report revives none.
    pub fn admit(&mut self, server: ServerId, below: u64, mut live: Vec<u64>) {
        let Some(reported) = self.servers.get_mut(&server) else { return };
        live.sort_unstable();
        match &mut reported.sessions {
            Some(old) if old.below > below => {}
            Some(old) if old.below == below => old.live.retain(|number| live.binary_search(number).is_ok()),
            sessions => *sessions = Some(Live { below, live }),
        }
    }

    pub fn has(&self, session: ClientSession) -> bool {
        let reported =
            self.servers.get(&session.server).filter(|reported| reported.incarnation == session.incarnation);
        reported.and_then(|reported| reported.sessions.as_ref()).is_some_and(|Live { below, live }| {
            session.number >= *below || live.binary_search(&session.number).is_ok()
        })
    }
}
