//! What has been changed and is not durable yet, where changes are acknowledged when they are
//! ([`Acknowledge::Durable`](crate::Acknowledge)). Whoever is told of that waits for it, too: a crash would take back what he was told.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::{Errno, Reply};

use crate::event::Event;
use crate::journal::Acknowledge;
use crate::lease::{Key, Told};
use crate::machine::Meta;
use crate::state::Map;
use crate::step::Step;

/// See the module's description. Events are known by their sequence numbers.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    /// The last event that changed each of these.
    changed: Map<Key, u64>,
    /// What each has changed, in their order.
    order: VecDeque<(u64, Key)>,
    /// The last event that changed any.
    last: u64,
}

impl Uncommitted {
    /// The last event that changed something; 0: that is durable.
    pub(crate) fn last_change(&self, key: Key) -> u64 {
        self.changed.get(&key).copied().unwrap_or(0)
    }

    pub(crate) fn note(&mut self, event: u64, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.last = event;
            self.order.extend(keys.iter().map(|key| (event, *key)));
            self.changed.extend(keys.into_iter().map(|key| (key, event)));
        }
    }

    /// Every event up to this one is durable.
    pub(crate) fn forget(&mut self, durable: u64) {
        while let Some((_, key)) = self.order.pop_front_if(|(event, _)| *event <= durable) {
            if self.changed.get(&key).is_some_and(|event| *event <= durable) {
                self.changed.remove(&key);
            }
        }
    }
}

impl Meta {
    /// What an event will change, if that is to be known.
    pub(crate) fn changed_by(&self, event: &Event) -> Step<Vec<Key>> {
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

    /// The event that must be durable before an answer leaves that has changed nothing. `told`: what it tells.
    pub(crate) fn told_of(&self, told: &Told, result: &Result<Reply, Errno>) -> u64 {
        match told.last_change {
            Some(last) if result.is_ok() => last,
            // It may tell of anything.
            _ => self.uncommitted.last,
        }
    }
}
