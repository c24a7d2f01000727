//! Rules of failover:
//!
//! - No rank has two holders that answer at the same time: after an answer of a later holder, none
//!   of an earlier one leaves.
//! - No earlier holder of a rank writes to its journal after a later one has opened it.
//! - Each version of the cluster map builds on the one before: heartbeats and incarnations do not
//!   decrease, a rank's incarnation increases with each new holder, a removed server does not
//!   return.
//! - A rank is served again in time, if a standby and the store are there and nothing else fails
//!   meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use espalier_meta::failover::{ClusterMap, InstanceId, ServerEntry, ServerState};
use espalier_proto::Rank;

use crate::Nanos;
use crate::node::{Node, NodeNumbers};
use crate::observe::FailoverEvent;

/// Time within which a rank is served again after its server was killed.
const AFTER_KILL: Nanos = Nanos(5_000_000_000);
/// The same if the server is silent.
const AFTER_SILENCE: Nanos = Nanos(15_000_000_000);
/// Time within which a server that starts knows the processes of all others.
const ACQUAINTANCE: Nanos = Nanos(1_000_000_000);
/// A server that has ranks leaves a further one to others for so long.
const SPREAD: Nanos = Nanos(2_000_000_000);

/// See the module description.
pub struct FailoverChecker {
    numbers: NodeNumbers,
    /// Faults that delay a takeover without a limit do not occur.
    is_timed: bool,
    map: ClusterMap,
    seen: BTreeSet<InstanceId>,
    /// The incarnation that each node serves, or served last.
    incarnations: BTreeMap<Node, u64>,
    /// The newest incarnation of each rank that has answered.
    answered: BTreeMap<Rank, u64>,
    /// Processes that run and are not paused.
    fine: BTreeSet<u32>,
    /// Time of the last start of each process, and of the pause of those that are paused.
    started: BTreeMap<u32, Nanos>,
    paused: BTreeMap<u32, Nanos>,
    /// Ranks without a server, and the time by which they must have one.
    deadlines: BTreeMap<Rank, Nanos>,
    /// Number of ranks that were served again in time.
    pub in_time: u64,
}

impl FailoverChecker {
    pub fn new(numbers: NodeNumbers, is_timed: bool) -> Self {
        Self {
            numbers,
            is_timed,
            map: ClusterMap::default(),
            seen: BTreeSet::new(),
            incarnations: BTreeMap::new(),
            answered: BTreeMap::new(),
            fine: BTreeSet::new(),
            started: BTreeMap::new(),
            paused: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            in_time: 0,
        }
    }

    /// A server begins to serve a rank.
    pub fn began(&mut self, node: Node, incarnation: u64) {
        self.incarnations.insert(node, incarnation);
        if let Some(rank) = self.numbers.rank_of(node) {
            self.in_time += u64::from(self.deadlines.remove(&rank).is_some());
        }
    }

    /// True if a node is the newest holder of its rank that has begun.
    pub fn is_holder(&self, node: Node) -> bool {
        let rank = self.numbers.rank_of(node);
        let incarnation = |node| self.incarnations.get(&node).copied().unwrap_or_default();
        let others = self.incarnations.keys().filter(|other| self.numbers.rank_of(**other) == rank);
        others.map(|other| incarnation(*other)).max().is_none_or(|newest| newest == incarnation(node))
    }

    /// A message of a server leaves.
    ///
    /// # Errors
    /// A later holder of the rank has answered.
    pub fn answers(&mut self, node: Node) -> Result<(), String> {
        let Some(rank) = self.numbers.rank_of(node) else { return Ok(()) };
        let incarnation = self.incarnations.get(&node).copied().unwrap_or_default();
        let newest = self.answered.entry(rank).or_default();
        if incarnation < *newest {
            return Err(format!(
                "two holders of rank {rank} answer: {incarnation} after {newest}, from {node:?}"
            ));
        }
        *newest = incarnation;
        Ok(())
    }

    /// Checks that no rank has been without a server for too long.
    ///
    /// # Errors
    /// The rank.
    pub fn check_time(&self, now: Nanos) -> Result<(), String> {
        let late = self.deadlines.iter().find(|(_, deadline)| now > **deadline);
        late.map_or(Ok(()), |(rank, deadline)| {
            Err(format!("rank {rank} is not served again by {deadline}, although there is a standby"))
        })
    }

    /// # Errors
    /// The version of the cluster map does not build on the one before.
    pub fn event(&mut self, now: Nanos, event: &FailoverEvent<'_>) -> Result<(), String> {
        match event {
            FailoverEvent::Started { process } => {
                self.fine.insert(*process);
                self.started.insert(*process, now);
                self.paused.remove(process);
            }
            FailoverEvent::Killed { process } => {
                let within = if self.is_end_noticed(*process) { AFTER_KILL } else { AFTER_SILENCE };
                self.fails(now + within, *process);
            }
            FailoverEvent::Paused { process } => {
                self.paused.insert(*process, now);
                self.fails(now + AFTER_SILENCE, *process);
            }
            FailoverEvent::Resumed { process } => {
                self.fine.insert(*process);
                self.paused.remove(process);
                // It may have its ranks again.
                self.deadlines.clear();
            }
            FailoverEvent::Ended { process, .. } => {
                self.fine.remove(process);
                self.deadlines.clear();
            }
            FailoverEvent::Drained { .. } | FailoverEvent::Disturbed | FailoverEvent::NotOpened { .. } => {
                self.deadlines.clear();
            }
            FailoverEvent::Wrote { node } if !self.is_holder(*node) => {
                return Err(format!(
                    "{node:?} writes to the journal of a rank that another server has opened"
                ));
            }
            FailoverEvent::Wrote { .. } | FailoverEvent::Opened { .. } | FailoverEvent::Stalled { .. } => {}
            FailoverEvent::Swapped { before, after } => {
                self.map = (*after).clone();
                return self.builds_on(before, after);
            }
        }
        Ok(())
    }

    /// True if a process that runs has been connected to this one. Those that have started while it
    /// was paused have not been.
    fn is_end_noticed(&self, process: u32) -> bool {
        let silent_since = self.paused.get(&process).copied().unwrap_or(Nanos::NEVER);
        let others = self.fine.iter().filter(|other| **other != process);
        others.filter_map(|other| self.started.get(other)).any(|at| *at + ACQUAINTANCE < silent_since)
    }

    /// A process fails; its ranks must be served again by the deadline.
    fn fails(&mut self, deadline: Nanos, process: u32) {
        self.fine.remove(&process);
        self.deadlines.clear();
        let of_process =
            |instance| self.map.server(instance).is_some_and(|server| u32::from(server.number) == process);
        let is_standby = |server: &ServerEntry| {
            server.state == ServerState::Standby && self.fine.contains(&u32::from(server.number))
        };
        if !self.is_timed || !self.map.servers.iter().any(is_standby) || self.map.is_draining() {
            return;
        }
        let ranks = (0..).map(Rank).zip(&self.map.ranks);
        let lost = ranks.filter(|(_, rank)| rank.serving && rank.holder.is_some_and(of_process));
        let mut deadline = deadline;
        for (rank, _) in lost {
            self.deadlines.insert(rank, deadline);
            // One standby takes a rank at once and further ones later.
            deadline += SPREAD + SPREAD;
        }
    }

    fn builds_on(&mut self, before: &ClusterMap, after: &ClusterMap) -> Result<(), String> {
        for server in &after.servers {
            let is_new = self.seen.insert(server.instance);
            match before.server(server.instance) {
                Some(old) if old.heartbeat > server.heartbeat => {
                    return Err(format!(
                        "the cluster map has an older heartbeat of server {}",
                        server.number
                    ));
                }
                None if !is_new => {
                    return Err(format!("server {} is in the cluster map again", server.number));
                }
                _ => {}
            }
        }
        for (rank, (old, new)) in before.ranks.iter().zip(&after.ranks).enumerate() {
            let is_taken = new.holder.is_some() && new.holder != old.holder;
            if new.incarnation < old.incarnation || is_taken && new.incarnation == old.incarnation {
                return Err(format!("the incarnation of rank {rank} does not increase with its holder"));
            }
        }
        Ok(())
    }
}
