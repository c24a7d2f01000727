//! A rank that servers take over from each other: the term for which one of them may answer.

use espalier_meta::{Input, Io, Meta, StreamCall};
use espalier_proto::{Ino, ServerMap};
use rand::Rng;

use crate::message::Message;
use crate::observe::{FailoverStep, Node};
use crate::storage::{STEPS, Storage};
use crate::world::event::SimEvent;
use crate::world::fabric::{Fabric, WireId};

use super::{DiskJob, SimServer};

/// Where a rank is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub node: Node,
    pub incarnation: u64,
}

/// The time until which a server may answer for a rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Term {
    /// End of the server's lease in ms of its clock; `None`: the store is its own.
    lease: Option<u64>,
    /// The rank is being handed over.
    is_closed: bool,
}

/// A rank whose store a server has opened.
pub struct Started {
    pub storage: Storage,
    pub meta: Meta,
    pub incarnation: u64,
    /// End of the server's lease in ms of its clock.
    pub lease: u64,
    pub routes: Vec<Option<Route>>,
    pub servers: ServerMap,
}

impl SimServer {
    /// Begins to serve the rank from shared objects.
    pub fn begin_shared(&mut self, fabric: &mut Fabric<'_>, started: Started) {
        let Started { storage, meta, incarnation, lease, routes, servers } = started;
        self.storage = Some(storage);
        self.start += 1;
        (self.incarnation, self.routes, self.servers) = (incarnation, routes, servers);
        self.term = Term { lease: Some(lease), is_closed: false };
        self.writes_late = self.random.random();
        self.serve(fabric, meta);
    }

    /// Ends without writing anything. `is_killed`: what is under way at the store is interrupted.
    pub fn end_shared(&mut self, fabric: &mut Fabric<'_>, is_killed: bool) {
        if let Some(mut storage) = self.storage.take()
            && is_killed
        {
            storage.kill(self.publishes.then(|| self.random.random_range(0..STEPS)));
        }
        self.publishes = false;
        self.forget(fabric.now);
        fabric.drop_node(self.node, false);
    }

    /// The object of the shared store that an operation waits for; the others go on meanwhile.
    pub fn object_of(&self, job: &DiskJob) -> Option<String> {
        let rank = self.rank;
        let stream = |ino: &Ino| format!("{rank}.s.{:016x}.0", ino.0);
        match job {
            DiskJob::Journal(..) | DiskJob::Io(_, Io::Journal { .. } | Io::Sync) => {
                Some(format!("{rank}.j.000000"))
            }
            DiskJob::Io(_, Io::Publish { .. }) => Some(format!("{rank}.head")),
            DiskJob::Io(_, Io::Load(_)) => Some(format!("{rank}.t.00000000")),
            DiskJob::Io(_, Io::Stream(call, _)) => match call {
                StreamCall::Stat(inos) | StreamCall::TryStat(inos) => inos.first().map(stream),
                StreamCall::Measure(files) => files.first().map(|(ino, _)| stream(ino)),
                StreamCall::Fill { ino, .. }
                | StreamCall::Write { ino, .. }
                | StreamCall::Finalise { ino, .. }
                | StreamCall::Truncate { ino, .. }
                | StreamCall::SetMtime { ino, .. }
                | StreamCall::Sync { ino }
                | StreamCall::Remove { ino } => Some(stream(ino)),
                StreamCall::SyncStore
                | StreamCall::SyncServers
                | StreamCall::Precreate
                | StreamCall::Discard => None,
            },
            DiskJob::Stream(request) => Some(stream(&request.io.ino)),
            DiskJob::Io(..) | DiskJob::OverLimit(..) => None,
        }
    }

    /// The end of the server's lease, in ms of its clock.
    pub fn set_lease(&mut self, until: u64) {
        if self.term.lease.is_some() {
            self.term.lease = Some(until);
        }
    }

    /// True if the server may not answer for the rank.
    pub(super) fn is_over(&self, fabric: &Fabric<'_>) -> bool {
        let now = self.clock.shown(fabric.now).as_millis();
        let is_past = self.term.lease.is_some_and(|until| now >= until);
        let is_broken =
            self.term.lease.is_some() && self.is_broken() && !fabric.mutator.skips(FailoverStep::Stop);
        self.term.is_closed || (is_past || is_broken) && !fabric.mutator.skips(FailoverStep::EndTerm)
    }

    /// True if the journal has failed.
    pub fn is_broken(&self) -> bool {
        self.meta().is_some_and(|meta| meta.broken().is_some())
    }

    /// Ends all connections, and answers nothing from now on.
    pub fn close(&mut self, fabric: &mut Fabric<'_>) {
        self.term.is_closed = true;
        self.end_connections(fabric);
    }

    /// Has the machine write everything out. Returns true if that is done.
    pub fn drain(&mut self, fabric: &mut Fabric<'_>) -> bool {
        self.input(fabric, Input::Drain);
        self.device.is_idle() && self.meta().is_none_or(Meta::is_idle)
    }

    /// Ends all connections: this server may not answer.
    pub(super) fn end_connections(&mut self, fabric: &mut Fabric<'_>) {
        for wire in std::mem::take(&mut self.greeted).into_values() {
            fabric.close(wire, self.node);
        }
        let mut clients: Vec<_> = self.clients.drain().collect();
        clients.sort_unstable();
        for (client, wire) in clients {
            self.wires.remove(&wire);
            fabric.close(wire, self.node);
            if let Some(session_layer) = &mut self.session_layer {
                session_layer.detach(client);
            }
        }
        for (rank, line) in self.peers.iter_mut().enumerate() {
            let Some(wire) = line.wire else { continue };
            line.lose(wire);
            fabric.close(wire, self.node);
            if rank < usize::from(self.rank.0) {
                let other = Node(rank as u32);
                fabric.after(line.pause(), SimEvent::Reach { node: self.node, start: self.start, other });
            }
        }
    }

    /// Refuses a connection, or ends it.
    pub(super) fn turn_away(&mut self, fabric: &mut Fabric<'_>, wire: WireId) {
        match self.wires.contains_key(&wire) {
            true => self.end_connections(fabric),
            false => fabric.send(wire, self.node, Message::Refused),
        }
    }

    /// Other servers have ranks.
    pub fn rerouted(&mut self, fabric: &mut Fabric<'_>, routes: &[Option<Route>], servers: &ServerMap) {
        if self.session_layer.is_none() {
            return;
        }
        self.routes = routes.to_vec();
        self.servers = servers.clone();
        let smaller = routes.iter().zip(&self.reached).take(usize::from(self.rank.0));
        let has_moved = |(route, reached): (&Option<Route>, &u64)| {
            route.is_some_and(|route| route.incarnation > *reached)
        };
        let moved: Vec<bool> = smaller.map(has_moved).collect();
        for rank in (0..moved.len()).filter(|rank| moved[*rank]) {
            if let Some(wire) = self.peers[rank].wire {
                self.peers[rank].lose(wire);
                fabric.close(wire, self.node);
                self.reach(fabric, Node(rank as u32));
            }
        }
    }
}
