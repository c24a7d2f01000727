//! The end of other processes: a connection to one broke, and now nothing listens at its address,
//! or another process does.

use espalier_meta::failover::{ClusterMap, Input, InstanceId};
use espalier_proto::{ClientId, ClusterId, Hello, Service};

use crate::world::World;
use crate::world::event::SimEvent;
use crate::world::fabric::WireId;
use crate::world::line::Line;

use super::ProcessEvent;

/// Another process.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    line: Line,
    process: u32,
    was_seen: bool,
    has_ended: bool,
}

impl World<'_> {
    /// Watches the processes of a map.
    pub(super) fn watch_processes(&mut self, process: u32, start: u64, map: &ClusterMap) {
        let node = self.numbers.process(process);
        let Some(cluster) = &mut self.failover else { return };
        let Some(running) = cluster.running(process, start) else { return };
        let fabric = &mut self.fabric;
        running.watched.retain(|instance, watched| {
            let is_listed = map.server(*instance).is_some();
            if let Some(wire) = watched.line.wire.filter(|_| !is_listed) {
                fabric.close(wire, node);
            }
            is_listed
        });
        let mut new = Vec::new();
        for server in map.servers.iter().filter(|server| server.instance != running.instance) {
            running.watched.entry(server.instance).or_insert_with(|| {
                new.push(server.instance);
                let (line, process) = (Line::default(), u32::from(server.number));
                Watched { line, process, was_seen: false, has_ended: false }
            });
        }
        for instance in new {
            self.watch_process(process, instance);
        }
    }

    /// Connects to another process, unless connected.
    pub(super) fn watch_process(&mut self, process: u32, instance: InstanceId) {
        let (numbers, node) = (self.numbers, self.numbers.process(process));
        let Some(cluster) = &mut self.failover else { return };
        let Some(running) = &mut cluster.processes[process as usize].running else { return };
        let own = running.instance;
        let Some(watched) = running.watched.get_mut(&instance) else { return };
        if watched.line.wire.is_none() && !watched.has_ended {
            let (cluster, service, client) = (ClusterId::ANY, Service::Addresses, ClientId(own.0));
            let hello = Hello { cluster, service, client, incarnation: None };
            watched.line.begin(self.fabric.connect(node, numbers.process(watched.process), hello));
        }
    }

    /// The answer of another process; `None`: nothing listens there.
    pub(super) fn process_answers(&mut self, process: u32, wire: WireId, answer: Option<InstanceId>) {
        let node = self.numbers.process(process);
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        let (start, Some(running)) = (slot.start, &mut slot.running) else { return };
        let found = running.watched.iter_mut().find(|(_, watched)| watched.line.wire == Some(wire));
        let Some((&instance, watched)) = found else { return };
        if answer == Some(instance) {
            watched.was_seen = true;
            return watched.line.opened(wire);
        }
        watched.line.lose(wire);
        watched.has_ended = watched.was_seen;
        let event = match watched.has_ended {
            true => ProcessEvent::Input(Input::Ended(instance)),
            false => ProcessEvent::Watch(instance),
        };
        let pause = watched.line.pause();
        self.fabric.close(wire, node);
        let time = if matches!(event, ProcessEvent::Watch(_)) { pause } else { crate::Nanos::ZERO };
        self.fabric.after(time, SimEvent::Process { process, start, event });
    }

    /// A connection of a process is broken.
    pub(in crate::world) fn lost_by_process(&mut self, process: u32, wire: WireId) {
        let Some(cluster) = &mut self.failover else { return };
        let slot = &mut cluster.processes[process as usize];
        let (start, Some(running)) = (slot.start, &mut slot.running) else { return };
        running.followers.retain(|follower| *follower != wire);
        let found = running.watched.iter_mut().find(|(_, watched)| watched.line.wire == Some(wire));
        if let Some((&instance, watched)) = found {
            watched.line.lose(wire);
            let event = ProcessEvent::Watch(instance);
            self.fabric.after(watched.line.pause(), SimEvent::Process { process, start, event });
        }
    }
}
