//! Changes that are not durable yet, for [`Acknowledge::Durable`](crate::Acknowledge). A reply that
//! exposes such a change waits until it is durable: a crash would otherwise undo what a client has
//! seen.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Errno, Reply};

use crate::event::Event;
use crate::journal::Acknowledge;
use crate::lease::{LeaseKey, ReadSet};
use crate::machine::Meta;
use crate::state::FxMap;
use crate::step::Step;

/// See the module's description. Events are identified by sequence numbers.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    /// The last event that changed each key.
    changed: FxMap<LeaseKey, u64>,
    /// The keys that each event changed, in order.
    order: VecDeque<(u64, LeaseKey)>,
    /// The last event that changed any key.
    last: u64,
}

impl Uncommitted {
    /// The last event that changed `key`; 0: it is durable.
    pub(crate) fn last_change(&self, key: LeaseKey) -> u64 {
        self.changed.get(&key).copied().unwrap_or(0)
    }

    pub(crate) fn note(&mut self, event: u64, keys: Vec<LeaseKey>) {
        if !keys.is_empty() {
            self.last = event;
            self.order.extend(keys.iter().map(|key| (event, *key)));
            self.changed.extend(keys.into_iter().map(|key| (key, event)));
        }
    }

    /// Forgets all events up to `durable`.
    pub(crate) fn forget(&mut self, durable: u64) {
        while let Some((_, key)) = self.order.pop_front_if(|(event, _)| *event <= durable) {
            if self.changed.get(&key).is_some_and(|event| *event <= durable) {
                self.changed.remove(&key);
            }
        }
    }
}

impl Meta {
    /// The keys that an event will change; empty unless changes are acknowledged when durable.
    pub(crate) fn changed_by(&self, event: &Event) -> Step<Vec<LeaseKey>> {
        let mut keys = Vec::new();
        match event {
            _ if self.config.acknowledge != Acknowledge::Durable => {}
            Event::Committed { part, .. } => {
                part.edits.iter().for_each(|edit| edit.touched(&self.state, &mut |key, _| keys.push(key)));
            }
            event => self.state.touched(event, &mut |key, _| keys.push(key))?,
        }
        Ok(keys)
    }

    /// The event that must be durable before a reply leaves that has changed nothing. `read_set`:
    /// what the reply exposes.
    pub(crate) fn last_change_of(&self, read_set: &ReadSet, result: &Result<Reply, Errno>) -> u64 {
        match read_set.last_change {
            Some(last) if result.is_ok() => last,
            // The reply may expose anything.
            _ => self.uncommitted.last,
        }
    }
}
