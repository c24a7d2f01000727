//! Metrics for load balancing (docs/load.md): popularity counters of the directories at this rank,
//! and heartbeats between ranks. They are volatile, and decide nothing here.
//!
//! A fragment is a directory of its own. Operations are counted when they end (`Meta::run`),
//! records when they are loaded (`Meta::done_load`) or staged (`Meta::ask_checkpoint`).

mod counters;
mod heartbeat;
mod report;

use espalier_proto::{Ino, ObjectId, ObjectKind, Rank, Reply, Request, TableWrite};

pub(crate) use counters::MIN_RATE;
pub use counters::{Milli, Popularity};
pub use heartbeat::{KnownLoad, RankLoad};
pub use report::{DirectoryLoad, LoadReport};

use crate::machine::Meta;
use crate::outbox::Outbox;
use crate::rank::PeerMessage;
use crate::record::InoRecord;
use crate::step::{Load, Step, Stop};
use crate::task::Task;
use counters::{Activity, Counters};
use heartbeat::{HEARTBEAT_TICKS, Heartbeats};

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) counters: Counters,
    pub(crate) heartbeats: Heartbeats,
}

impl Meta {
    /// Counts an operation that ends.
    pub(crate) fn count_operation(&mut self, task: &Task, outcome: &Step<Reply>) {
        let activity = match task.request {
            _ if task.changed.is_some() => Activity::InodeWrite,
            Request::ReadDir { .. } => Activity::ReadDir,
            _ => Activity::InodeRead,
        };
        if task.peer_request.as_ref().is_some_and(|request| request.is_about_load()) {
            return;
        }
        if task.peer_request.is_some() || matches!(outcome, Err(Stop::Misrouted(_))) {
            return self.metrics.counters.count_for_others(activity);
        }
        if task.request.is_about_sessions() || task.request.is_internal() {
            return;
        }
        let ino = task.request.ino();
        self.metrics.counters.count(self.directory_of(ino), activity, 1);
        if let Request::Rename { to_dir, .. } = task.request
            && to_dir != ino
            && task.changed.is_some()
        {
            self.metrics.counters.count(self.directory_of(to_dir), activity, 1);
        }
    }

    /// Counts records that were loaded from the store.
    pub(crate) fn count_loaded(&mut self, load: &Load, records: usize) {
        let dir = match load {
            Load::Dentries { dir, .. } => self.directory_of(*dir),
            Load::Record { object, key } => self.directory_of_record(*object, key),
        };
        self.metrics.counters.count(dir, Activity::Fetch, records);
    }

    /// Counts records that a checkpoint writes.
    pub(crate) fn count_stored(&mut self, writes: &[TableWrite]) {
        // Consecutive records are often of one directory.
        for same in writes.chunk_by(|a, b| a.object == b.object && a.object.kind == ObjectKind::Fragment) {
            let dir = self.directory_of_record(same[0].object, &same[0].key);
            self.metrics.counters.count(dir, Activity::Store, same.len());
        }
    }

    /// The directory of a record. `None`: it is not in memory, or the record belongs to none.
    fn directory_of_record(&self, object: ObjectId, key: &[u8]) -> Option<Ino> {
        match object.kind {
            ObjectKind::Fragment => self.directory_of(Ino(object.id)),
            ObjectKind::Inodes => self.directory_of(InoRecord::from_key(key)?.1),
            ObjectKind::Super | ObjectKind::Orphans | ObjectKind::Sessions => None,
        }
    }

    /// The use of the machine by this process, as in [`RankLoad`].
    pub(crate) fn set_resources(&mut self, cpu: Milli, mem: Milli) {
        (self.metrics.heartbeats.cpu, self.metrics.heartbeats.mem) = (cpu, mem);
    }

    /// Once a second: drops old counters, and sends a heartbeat if one is due.
    pub(crate) fn tick_metrics(&mut self, out: &mut Outbox) {
        self.metrics.counters.tick();
        if self.ticks % HEARTBEAT_TICKS != 1 {
            return;
        }
        let now_ms = self.metrics.counters.now_ms();
        self.metrics.heartbeats.end_period(now_ms, self.tasks.len());
        let (load, policy) = (self.own_load(), self.balancing.version());
        let others = (0..self.config.ranks).map(Rank).filter(|rank| *rank != self.config.rank);
        out.peers.extend(others.map(|rank| (rank, PeerMessage::Heartbeat { load, policy })));
    }

    /// A heartbeat of another rank, with its version of the balancing policy. Ranks that do not
    /// exist are ignored.
    pub(crate) fn heartbeat(&mut self, from: Rank, load: RankLoad, policy: u64) {
        if from.0 < self.config.ranks && from != self.config.rank {
            self.metrics.heartbeats.heard(from, load, self.metrics.counters.now_ms());
            self.policy_announced(from, policy);
        }
    }

    fn own_load(&self) -> RankLoad {
        let counters = &self.metrics.counters;
        let Heartbeats { cpu, mem, queue, requests, .. } = self.metrics.heartbeats;
        let mut all = counters.served;
        counters::add(&mut all, &counters.for_others);
        RankLoad {
            auth: counters.popularity(&counters.served),
            all: counters.popularity(&all),
            cpu,
            mem,
            queue,
            requests,
        }
    }
}
