//! Event queue in order of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Nanos;

/// Events by time; events at the same time keep their insertion order.
#[derive(Debug)]
pub struct Queue<E> {
    /// Time, sequence number, and slot of the event: events are large, and a heap moves its
    /// elements.
    heap: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    added: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), added: 0 }
    }
}

impl<E> Queue<E> {
    pub fn add(&mut self, at: Nanos, event: E) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            u32::try_from(self.events.len() - 1).unwrap_or(u32::MAX)
        });
        self.events[place as usize] = Some(event);
        self.added += 1;
        self.heap.push(Reverse((at, self.added, place)));
    }

    /// Time of the next event.
    pub fn next_time(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.events[place as usize].take().map(|event| (at, event))
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_times_and_then_as_they_were_added() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.add(Nanos(at), event);
        }
        assert_eq!(queue.next_time(), Some(Nanos(1)));
        assert_eq!(queue.pop(), Some((Nanos(1), 'a')));
        queue.add(Nanos(5), 'e');
        let rest: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(rest, "bcde");
        assert!(queue.is_empty());
    }
}
