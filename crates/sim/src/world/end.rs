//! The end of a run: faults are repaired, clients' and servers' records are compared, clients
//! leave, and servers become idle. A server that does not become idle is an error.

use espalier_meta::{Check, Finding, Input};
use espalier_proto::{Ino, Rank, ServerId};

use crate::storage::StorageError;
use crate::time::Nanos;
use crate::world::data::DataServer;
use crate::world::event::SimEvent;
use crate::world::{RunError, World};

/// Stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStage {
    Begins,
    /// Processes run.
    Works,
    /// All processes have ended, at that time; pending operations complete.
    Drains(Nanos),
    /// All processes have ended, at that time; clients leave. Number of checks since all have left.
    Leaves(Nanos, u32),
    /// All clients have left. Number of checkpoints requested from servers.
    Writes(Nanos, u32),
    Over,
}

/// Interval of checks for rest.
const LOOK: Nanos = Nanos(100_000_000);

/// Time limit for pending operations before clients leave: some never end, such as waits for locks.
const DRAIN_TIME: Nanos = Nanos(5_000_000_000);

/// Number of checks after all sessions have ended: servers clean up and exchange usage deltas
/// meanwhile.
const LOOKS: u32 = 30;

/// Number of checkpoints: each frees objects and writes further events, which only the last one
/// contains.
const ROUNDS: u32 = 3;

impl World<'_> {
    pub(super) fn drain(&mut self) -> Result<(), RunError> {
        let since = match self.stage {
            RunStage::Begins | RunStage::Works => {
                self.sample();
                self.worked = Some((self.fabric.now, self.used()));
                self.stage = RunStage::Drains(self.fabric.now);
                self.fabric.now
            }
            RunStage::Drains(since) => {
                match self.agree() {
                    None if self.fabric.now - since < DRAIN_TIME => {}
                    differences => {
                        self.differences = differences.unwrap_or_default();
                        self.leave();
                    }
                }
                since
            }
            RunStage::Leaves(since, looks) => {
                self.stage = match looks {
                    _ if !self.have_left() => RunStage::Leaves(since, 0),
                    // A transaction that ended after the first checkpoint could change usage, and
                    // servers that write their last checkpoints do not exchange deltas.
                    LOOKS if self.are_idle() => {
                        self.write_checkpoints();
                        RunStage::Writes(since, 1)
                    }
                    looks => RunStage::Leaves(since, LOOKS.min(looks + 1)),
                };
                since
            }
            RunStage::Writes(since, rounds) => {
                if rounds >= ROUNDS && self.are_idle() {
                    self.stage = RunStage::Over;
                    return Ok(());
                }
                self.write_checkpoints();
                self.stage = RunStage::Writes(since, rounds + 1);
                since
            }
            RunStage::Over => return Ok(()),
        };
        let passed = self.fabric.now - since;
        if passed > self.scenario.cluster.drain {
            return Err(RunError::NotIdle { after: passed, waits: self.waits() });
        }
        self.fabric.after(LOOK, SimEvent::Drain);
        Ok(())
    }

    /// True if no server has anything under way.
    fn are_idle(&self) -> bool {
        let is_at_rest = |server: &super::SimServer| {
            let is_idle = server.meta().is_some_and(|meta| {
                meta.is_idle() && meta.open_transactions() == 0 && meta.unsent_usage() == 0
            });
            is_idle && server.cpu.is_idle() && server.device.is_idle()
        };
        self.serving_all().all(is_at_rest) && self.data.iter().all(DataServer::is_idle)
    }

    fn write_checkpoints(&mut self) {
        let serving: Vec<_> = self.serving_all().map(|server| server.node).collect();
        for node in serving {
            self.servers[node.0 as usize].input(&mut self.fabric, Input::Drain);
        }
    }

    /// The server of each rank.
    fn serving_all(&self) -> impl Iterator<Item = &super::SimServer> {
        let ranks = (0..self.scenario.cluster.ranks).map(Rank);
        ranks.map(|rank| &self.servers[self.serving(rank).0 as usize])
    }

    fn leave(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.is_up) {
            client.leave(&mut self.fabric);
        }
        self.stage = RunStage::Leaves(self.fabric.now, 0);
    }

    /// Differences between clients' and servers' records of clients' state; `None` while anything
    /// is pending.
    fn agree(&self) -> Option<Vec<String>> {
        let mut differ = Vec::new();
        for server in self.serving_all() {
            let meta = server.meta().filter(|meta| meta.is_idle() && meta.awaited().is_empty())?;
            if meta.broken().is_some() {
                // A server with a failed journal has other records than it has replied.
                continue;
            }
            for client in self.clients.iter().filter(|client| client.is_up) {
                let Some(held) = client.holdings(server.rank) else { continue };
                let known = meta.holdings(client.id).into_iter();
                let known: Vec<_> = known.map(|known| (known.ino, known.lookups, known.opens)).collect();
                let held = held?;
                if held != known {
                    let only = |these: &[(Ino, u64, u32)], those: &[(Ino, u64, u32)]| -> Vec<_> {
                        these.iter().filter(|one| !those.contains(one)).copied().collect()
                    };
                    differ.push(format!(
                        "client {} has {:?}, of which metadata server {} has {:?}",
                        client.index,
                        only(&held, &known),
                        server.rank,
                        only(&known, &held),
                    ));
                }
            }
            let miscounted = meta.miscounted();
            if !miscounted.is_empty() {
                differ.push(format!("metadata server {}: wrong total of {miscounted:?}", server.rank));
            }
        }
        Some(differ)
    }

    /// True if no client has a session, ranks owe each other nothing, no migration is under way,
    /// and no disk fails; a server with a failing disk cannot write.
    fn have_left(&self) -> bool {
        let is_left = |server: &super::SimServer| {
            server.meta().is_some_and(|meta| {
                let figures = meta.figures();
                figures.sessions == 0 && meta.open_transactions() == 0 && meta.unsent_usage() == 0
            }) && !server.disk.fails
        };
        !self.migrations.is_under_way()
            && self.clients.iter().all(|client| client.has_left())
            && self.serving_all().all(is_left)
            && self.data.iter().all(|server| !server.disk.fails)
    }

    /// The error if processes exceed the time limit.
    pub fn endless(&self) -> RunError {
        RunError::Endless { at: self.fabric.now, waits: self.waits() }
    }

    /// Descriptions of everything that is not at rest.
    fn waits(&self) -> Vec<String> {
        let mut waits = Vec::new();
        if self.migrations.is_under_way() {
            waits.push("a migration is under way".into());
        }
        for server in self.serving_all() {
            let rank = server.rank;
            let Some(meta) = server.meta() else {
                waits.push(format!("metadata server {rank} is down"));
                continue;
            };
            let figures = meta.figures();
            let counts = [
                (figures.sessions, "sessions that do not end"),
                (meta.open_transactions() as u64, "open transactions"),
                (meta.unsent_usage() as u64, "directories whose usage deltas are not sent"),
                (server.cpu.load(self.fabric.now).number as u64, "requests in its queue"),
                (server.device.load(self.fabric.now).number as u64, "operations on its disk"),
                (u64::from(!meta.is_idle()), "operations or I/O under way"),
            ];
            for (count, problem) in counts.into_iter().filter(|(count, _)| *count > 0) {
                waits.push(format!("metadata server {rank} has {problem} ({count})"));
            }
        }
        for server in self.serving_all() {
            let waiting = server.awaited().into_iter();
            waits.extend(
                waiting.map(|data| format!("metadata server {} waits for data server {data}", server.rank)),
            );
        }
        for (number, server) in self.data.iter().enumerate().filter(|(_, server)| !server.is_idle()) {
            let problem = if server.is_up() { "has requests under way" } else { "is down" };
            waits.push(format!("data server {number} {problem}"));
        }
        for client in self.clients.iter().filter(|client| !client.has_left()) {
            for (rank, calls) in client.waits_for() {
                waits.push(format!(
                    "client {} waits for metadata server {rank} with {calls} calls",
                    client.index
                ));
            }
        }
        waits
    }

    /// Runs `fsck` on all stores together after the run.
    pub fn fsck(&self) -> Result<Vec<Finding>, RunError> {
        let failed = |node| move |cause: StorageError| RunError::Start { at: self.fabric.now, node, cause };
        let checked = |server: &super::SimServer| {
            let storage = server.storage.as_ref().ok_or(StorageError::Empty);
            storage.and_then(|storage| storage.check(&server.config)).map_err(failed(server.node))
        };
        let mut checks = self.serving_all().map(checked).collect::<Result<Vec<_>, _>>()?;
        for (number, server) in self.data.iter().enumerate() {
            for (ino, size) in server.datafiles().map_err(|cause| failed(server.node)(cause.into()))? {
                // Count datafiles of no file for the rank of the number, if there is one.
                let home = Some(usize::from(ino.rank().0)).filter(|rank| *rank < checks.len()).unwrap_or(0);
                let rank = checks.iter().position(|check| check.has_striped(ino)).unwrap_or(home);
                checks[rank].datafile(ServerId(number as u16), ino, size);
            }
        }
        if !self.data.is_empty() {
            checks.iter_mut().for_each(Check::datafiles_end);
        }
        Ok(Check::finish_all(checks))
    }
}
