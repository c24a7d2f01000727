//! Which sessions of clients go on, as the metadata servers say that have them. Without clocks: a metadata server ends a session only when
//! each data server has said that nothing is done for it any more, and one that has not heard from a metadata server since either
//! was started does nothing for clients of that.

use alloc::vec::Vec;

use espalier_proto::{Capability, ServerId};

use crate::Map;

/// A client's session with a metadata server, in one incarnation of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub server: ServerId,
    incarnation: u64,
    number: u64,
}

impl Session {
    pub fn of(capability: &Capability) -> Self {
        let Capability { server, incarnation, session: number, .. } = *capability;
        Self { server, incarnation, number }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    servers: Map<ServerId, Told>,
}

/// What a metadata server has said.
#[derive(Debug)]
struct Told {
    incarnation: u64,
    /// So far its journal is durable, at least.
    durable: u64,
    /// Once it has said anything.
    sessions: Option<Live>,
}

#[derive(Debug)]
struct Live {
    /// Of the sessions below this number, those in `live` go on.
    below: u64,
    /// Sorted.
    live: Vec<u64>,
}

impl Sessions {
    /// A metadata server has connected. What it said before it was started anew is nothing any more.
    pub fn begin(&mut self, server: ServerId, incarnation: u64) {
        let anew = || Told { incarnation, durable: 0, sessions: None };
        let told = self.servers.entry(server).or_insert_with(anew);
        if told.incarnation != incarnation {
            *told = anew();
        }
    }

    /// So far a metadata server's journal is durable.
    pub fn committed(&mut self, server: ServerId, durable: u64) {
        if let Some(told) = self.servers.get_mut(&server) {
            told.durable = told.durable.max(durable);
        }
    }

    /// Whether the file to which a capability belongs may turn out not to have any datafiles.
    pub fn is_young(&self, capability: &Capability) -> bool {
        let Capability { server, incarnation, since, .. } = *capability;
        let told = self.servers.get(&server).filter(|told| told.incarnation == incarnation);
        since > told.map_or(0, |told| told.durable)
    }

    /// Which sessions go on. What is said again late brings none back to life.
    pub fn admit(&mut self, server: ServerId, below: u64, mut live: Vec<u64>) {
        let Some(told) = self.servers.get_mut(&server) else { return };
        live.sort_unstable();
        match &mut told.sessions {
            Some(old) if old.below > below => {}
            Some(old) if old.below == below => old.live.retain(|number| live.binary_search(number).is_ok()),
            sessions => *sessions = Some(Live { below, live }),
        }
    }

    pub fn has(&self, session: Session) -> bool {
        let told = self.servers.get(&session.server).filter(|told| told.incarnation == session.incarnation);
        told.and_then(|told| told.sessions.as_ref()).is_some_and(|Live { below, live }| {
            session.number >= *below || live.binary_search(&session.number).is_ok()
        })
    }
}
