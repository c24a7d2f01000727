//! The spans of a place: those under way, and the last ones that have ended.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{Id, Layer, NodeId, Span};

/// A bounded log of spans: older ones are dropped.
#[derive(Debug)]
pub struct Log {
    open: BTreeMap<(NodeId, Id), Span>,
    ended: VecDeque<Span>,
    /// Number of the first span in `ended`.
    first: u64,
    capacity: usize,
}

/// Spans read from a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Number of the next span: reading from there repeats nothing.
    pub next: u64,
    /// Requested spans that were dropped.
    pub lost: u64,
    pub spans: Vec<Span>,
}

impl Log {
    /// Holds at most this number of ended spans, and as many open ones.
    pub fn new(capacity: usize) -> Self {
        Self { open: BTreeMap::new(), ended: VecDeque::new(), first: 0, capacity }
    }

    /// An operation begins, or waiting for it begins. A repeated begin continues the span.
    pub fn begin(&mut self, place: NodeId, id: Id, kind: &'static str, causes: Vec<Id>, now: u64) {
        if self.open.len() < self.capacity {
            let (layer, kind) = (Layer::Process, Cow::Borrowed(kind));
            let span = Span { place, layer, kind, id: Some(id), causes, begin: now, end: now };
            self.open.entry((place, id)).or_insert(span);
        }
    }

    /// The operation has ended.
    pub fn end(&mut self, place: NodeId, id: Id, now: u64) {
        if let Some(span) = self.open.remove(&(place, id)) {
            self.add(Span { end: now, ..span });
        }
    }

    /// A step has ended.
    pub fn add(&mut self, span: Span) {
        if self.ended.len() == self.capacity {
            self.ended.pop_front();
            self.first += 1;
        }
        self.ended.push_back(span);
    }

    /// Drops the open spans.
    pub fn forget_open(&mut self) {
        self.open.clear();
    }

    /// Spans from this number on; `None`: none, only the next number.
    pub fn since(&self, number: Option<u64>) -> Traced {
        let next = self.first + self.ended.len() as u64;
        let from = number.unwrap_or(next).min(next);
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let spans = self.ended.iter().skip(skip).cloned().collect();
        Traced { next, lost: self.first.saturating_sub(from), spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: NodeId = NodeId::Rank(0);

    fn id(number: u64) -> Id {
        Id { from: NodeId::Client(7), to: PLACE, number }
    }

    #[test]
    fn log_is_bounded_and_counts_lost_spans() {
        let mut log = Log::new(4);
        for number in 0..10 {
            log.begin(PLACE, id(number), "create", Vec::new(), number);
        }
        // Four are under way.
        (0..10).for_each(|number| log.end(PLACE, id(number), 20 + number));
        let traced = log.since(Some(0));
        assert_eq!((traced.next, traced.lost, traced.spans.len()), (4, 0, 4));
        for number in 10..13 {
            log.begin(PLACE, id(number), "create", Vec::new(), number);
            log.end(PLACE, id(number), number + 1);
        }
        let traced = log.since(Some(1));
        assert_eq!((traced.next, traced.lost), (7, 2));
        let ids: Vec<_> = traced.spans.iter().filter_map(|span| span.id).map(|id| id.number).collect();
        assert_eq!(ids, [3, 10, 11, 12]);
        assert_eq!(log.since(Some(traced.next)).spans, []);
        assert_eq!(log.since(None), Traced { next: 7, ..Traced::default() });
        // A number that was never given.
        assert_eq!(log.since(Some(99)), Traced { next: 7, ..Traced::default() });
    }

    #[test]
    fn a_repeated_begin_continues_the_span() {
        let mut log = Log::new(4);
        log.begin(PLACE, id(1), "create", Vec::new(), 5);
        log.begin(PLACE, id(1), "create", Vec::new(), 9);
        log.end(PLACE, id(1), 10);
        log.end(PLACE, id(1), 11);
        let spans = log.since(Some(0)).spans;
        assert_eq!(spans.iter().map(|span| (span.begin, span.end)).collect::<Vec<_>>(), [(5, 10)]);
    }
}
