//! Starts and ends faults.

use espalier_meta::Config;
use rand::Rng;

use crate::disk::DiskModel;
use crate::faults::FaultKind;
use crate::observe::{FailoverEvent, Node};
use crate::storage::{Loss, OSDS};
use crate::time::Nanos;
use crate::world::end::RunStage;
use crate::world::event::{Mend, SimEvent};
use crate::world::{RunError, World};

impl World<'_> {
    pub(super) fn fault(&mut self, kind: FaultKind) -> Result<(), RunError> {
        let now = self.fabric.now;
        if self.stage != RunStage::Works {
            return Ok(());
        }
        if !self.faults.is_stated(kind, now)
            && let Some(at) = self.faults.next(kind, now)
        {
            self.fabric.queue.add(at, SimEvent::Fault(kind));
        }
        let nodes = match kind {
            FaultKind::ClientCrash => self.clients.len(),
            FaultKind::Late => self.scenario.nodes() as usize,
            FaultKind::OsdDown => OSDS,
            _ if self.failover.is_some() => self.numbers.processes as usize,
            _ => self.servers.len() + self.data.len(),
        };
        *self.broken.entry(kind.name()).or_default() += 1;
        let (node, lasts) = self.faults.draw(kind, nodes);
        match kind {
            FaultKind::Crash | FaultKind::SlowDisk if self.failover.is_some() => {
                self.fault_of_process(kind, node, lasts);
            }
            FaultKind::Pause | FaultKind::Restart | FaultKind::StoreCut | FaultKind::StoreDown => {
                self.fault_of_process(kind, node, lasts);
            }
            FaultKind::OsdDown => self.fail_osd(node, lasts),
            FaultKind::Crash => {
                let mut nodes = self.nodes_with(node).into_iter();
                nodes.try_for_each(|node| self.crash(node, Loss::Process, lasts))?;
            }
            FaultKind::Power => {
                let seed = self.faults.random(kind).random();
                let mut nodes = self.nodes_with(node).into_iter();
                nodes.try_for_each(|node| self.crash(node, Loss::Power(seed), lasts))?;
            }
            FaultKind::ClientCrash => {
                if self.clients[node].is_up {
                    self.clients[node].crash(&mut self.fabric);
                    self.after_client(node);
                }
            }
            FaultKind::Cut => {
                let wires = self.fabric.all_open();
                if !wires.is_empty() {
                    let wire = wires[self.faults.random(kind).random_range(0..wires.len())];
                    self.fabric.cut(wire, Nanos::ZERO);
                }
            }
            FaultKind::Partition => {
                if self.fabric.sides.is_empty() {
                    let random = self.faults.random(kind);
                    let mut sides: Vec<bool> = (0..self.scenario.nodes()).map(|_| random.random()).collect();
                    // Neither side is empty.
                    sides[node] = true;
                    let other = (node + 1) % sides.len();
                    sides[other] = false;
                    self.part(sides);
                    self.fabric.after(lasts, SimEvent::Mend(Mend::Join));
                }
            }
            FaultKind::Late => {
                let late = self.faults.lateness();
                for node in self.nodes_with(node) {
                    self.fabric.network.set_late(node, late);
                    self.fabric.after(lasts, SimEvent::Mend(Mend::OnTime(Node(node as u32))));
                }
            }
            FaultKind::DiskFailure => self.fail_disk(node, lasts),
            FaultKind::Destination => self.fail_destination(lasts),
            FaultKind::SlowDisk => {
                let slowness = self.faults.slowness();
                if let Some(disk) = self.disk(node) {
                    disk.slowness = slowness;
                }
                self.fabric.after(lasts, SimEvent::Mend(Mend::Speed(Node(node as u32))));
            }
            FaultKind::Reload => {
                let is_exclusive = self.scenario.cluster.high_watermark <= 1;
                for node in self.nodes_with(node) {
                    self.reload(node, if is_exclusive { Config::WATERMARKS } else { (1, 1) });
                    self.fabric.after(lasts, SimEvent::Mend(Mend::Watermarks(Node(node as u32))));
                }
            }
        }
        Ok(())
    }

    /// Partitions the network. All nodes of a server are on one side.
    fn part(&mut self, mut sides: Vec<bool>) {
        for node in 0..self.servers.len() {
            sides[node] = sides[self.fabric.hosts[node].0 as usize];
        }
        for node in 0..sides.len() {
            if let Some(process) = self.numbers.process_of(Node(node as u32)) {
                sides[node] = sides[self.numbers.process(process).0 as usize];
            }
        }
        if self.failover.is_some() {
            self.fabric.observer.failover(self.fabric.now, &FailoverEvent::Disturbed);
        }
        self.fabric.part(sides);
    }

    /// A fault of a server that fails over, or of its store.
    fn fault_of_process(&mut self, kind: FaultKind, node: usize, lasts: Nanos) {
        let process = node as u32;
        match kind {
            FaultKind::Crash => self.kill_process(process, lasts),
            FaultKind::Pause => {
                if let Some(start) = self.pause_process(process) {
                    self.fabric.after(lasts, SimEvent::Mend(Mend::Resume { process, start }));
                }
            }
            FaultKind::Restart => self.drain_process(process, lasts),
            FaultKind::StoreCut => self.cut_store(Some(node), lasts),
            FaultKind::StoreDown => self.cut_store(None, lasts),
            _ => {
                let slowness = self.faults.slowness();
                self.slow_store(node, slowness);
                self.fabric.after(lasts, SimEvent::Mend(Mend::Speed(Node(process))));
            }
        }
    }

    /// The disk of a server.
    fn disk(&mut self, node: usize) -> Option<&mut DiskModel> {
        if node < self.servers.len() {
            Some(&mut self.servers[node].disk)
        } else {
            self.data_at(Node(node as u32)).map(|server| &mut server.disk)
        }
    }

    fn reload(&mut self, node: usize, watermarks: (usize, usize)) {
        if let Some(server) = self.servers.get_mut(node) {
            server.set_watermarks(&mut self.fabric, watermarks);
        } else if let Some(server) = self.data_at(Node(node as u32)) {
            server.set_individual(watermarks.1 <= 1);
        }
    }

    fn fail_disk(&mut self, node: usize, lasts: Nanos) {
        let Some(disk) = self.disk(node).filter(|disk| !disk.fails) else { return };
        disk.fails = true;
        if let Some(server) = self.servers.get_mut(node) {
            server.storage.iter().for_each(|storage| storage.fail(true));
        }
        self.fabric.after(lasts, SimEvent::Mend(Mend::Disk(Node(node as u32))));
    }

    fn crash(&mut self, node: usize, loss: Loss, lasts: Nanos) -> Result<(), RunError> {
        let Some(server) = self.servers.get_mut(node) else {
            let Some(server) = self.data.get_mut(node - self.servers.len()).filter(|server| server.is_up())
            else {
                return Ok(());
            };
            let node = server.node;
            let crashed = server.crash(&mut self.fabric, loss);
            crashed.map_err(|cause| RunError::Start { at: self.fabric.now, node, cause: cause.into() })?;
            self.fabric.after(lasts, SimEvent::Mend(Mend::Start(node)));
            return Ok(());
        };
        if server.is_up() {
            self.interrupt_migration(node)?;
            let server = &mut self.servers[node];
            let node = server.node;
            let crashed = server.crash(&mut self.fabric, loss);
            let replay = crashed.map_err(|cause| RunError::Start { at: self.fabric.now, node, cause })?;
            self.fabric.after(lasts + replay, SimEvent::Mend(Mend::Start(node)));
        }
        Ok(())
    }

    pub(super) fn mend(&mut self, mend: Mend) -> Result<(), RunError> {
        match mend {
            Mend::Start(node) => {
                let Some(server) = self.servers.get(node.0 as usize) else {
                    let data = self.data.get_mut(node.0 as usize - self.servers.len());
                    if let Some(server) = data.filter(|server| !server.is_up()) {
                        server.begin(&mut self.fabric);
                    }
                    return Ok(());
                };
                // A server with a failing disk starts when the disk is repaired.
                if !server.is_up() && !server.disk.fails {
                    self.begin_server(node)?;
                }
            }
            Mend::Join => self.fabric.join(),
            Mend::Resume { process, start } => self.resume_process(process, start),
            Mend::Speed(node) if self.failover.is_some() => self.slow_store(node.0 as usize, 1.0),
            Mend::OnTime(node) => self.fabric.network.set_late(node.0 as usize, Nanos::ZERO),
            Mend::Disk(node) => {
                if let Some(disk) = self.disk(node.0 as usize) {
                    disk.fails = false;
                }
                let Some(server) = self.servers.get_mut(node.0 as usize) else { return Ok(()) };
                server.storage.iter().for_each(|storage| storage.fail(false));
                if server.is_up() {
                    // After a disk failure the server must restart.
                    self.crash(node.0 as usize, Loss::Process, Nanos::ZERO)?;
                } else {
                    self.fabric.after(Nanos::ZERO, SimEvent::Mend(Mend::Start(node)));
                }
            }
            Mend::Speed(node) => {
                if let Some(disk) = self.disk(node.0 as usize) {
                    disk.slowness = 1.0;
                }
            }
            Mend::Watermarks(node) => {
                let watermarks = (self.scenario.cluster.low_watermark, self.scenario.cluster.high_watermark);
                self.reload(node.0 as usize, watermarks);
            }
        }
        Ok(())
    }
}
