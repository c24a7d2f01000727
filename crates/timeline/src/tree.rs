//! Groups spans by operation and by cause.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Id, Span};

/// An operation and everything done for it.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    /// Parents before children, children by their beginning. The first is the operation itself.
    pub steps: Vec<Step<'a>>,
}

/// A span of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    pub span: &'a Span,
    /// Number of other operations that it was done for, too.
    pub depth: usize,
}

impl<'a> Operation<'a> {
    /// The operation's name.
    pub fn root(&self) -> &'a Span {
        self.steps[0].span
    }
}

/// Index of spans by operation.
struct Index<'a> {
    named: BTreeMap<Id, Vec<&'a Span>>,
    caused: BTreeMap<Id, Vec<&'a Span>>,
}

/// All operations that have spans, by their beginning. An operation whose sender reported no span
/// begins where it was served.
pub fn operations(spans: &[Span]) -> Vec<Operation<'_>> {
    let mut index = Index { named: BTreeMap::new(), caused: BTreeMap::new() };
    for span in spans {
        if let Some(id) = span.id {
            index.named.entry(id).or_default().push(span);
        }
        for cause in &span.causes {
            index.caused.entry(*cause).or_default().push(span);
        }
    }
    let mut roots: Vec<_> = spans.iter().filter(|span| index.is_root(span)).collect();
    roots.sort_by_key(|span| (span.begin, span.id));
    let operation = |root| {
        let mut steps = Vec::new();
        index.walk(root, 0, &mut BTreeSet::new(), &mut steps);
        Operation { steps }
    };
    roots.into_iter().map(operation).collect()
}

impl<'a> Index<'a> {
    fn is_root(&self, span: &Span) -> bool {
        let Some(id) = span.id else { return false };
        let has_cause = span.causes.iter().any(|cause| self.named.contains_key(cause));
        let is_request = || {
            let mut same = self.named.get(&id).into_iter().flatten();
            span.place != id.from && same.any(|other| other.place == id.from && overlap(other, span))
        };
        !has_cause && !is_request()
    }

    fn walk(
        &self,
        span: &'a Span,
        depth: usize,
        seen: &mut BTreeSet<*const Span>,
        steps: &mut Vec<Step<'a>>,
    ) {
        // A foreign file may contain cycles.
        if !seen.insert(std::ptr::from_ref(span)) {
            return;
        }
        steps.push(Step { span, depth });
        let Some(id) = span.id else { return };
        let mut parts: Vec<&Span> = Vec::new();
        if span.place == id.from {
            let same = self.named.get(&id).into_iter().flatten();
            parts.extend(same.filter(|other| other.place == id.to && other.place != span.place));
        }
        if span.place == id.to {
            let caused = self.caused.get(&id).into_iter().flatten();
            parts.extend(caused.filter(|other| other.place == span.place));
        }
        // A restarted place reuses numbers.
        parts.retain(|part| overlap(part, span));
        parts.sort_by_key(|part| (part.begin, part.end));
        parts.into_iter().for_each(|part| self.walk(part, depth + 1, seen, steps));
    }
}

fn overlap(one: &Span, other: &Span) -> bool {
    one.begin <= other.end && other.begin <= one.end
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Layer, NodeId};

    pub(crate) const CLIENT: NodeId = NodeId::Client(9);
    pub(crate) const RANK: NodeId = NodeId::Rank(0);

    pub(crate) fn id(from: NodeId, to: NodeId, number: u64) -> Id {
        Id { from, to, number }
    }

    pub(crate) fn span(
        place: NodeId,
        kind: &'static str,
        id: Option<Id>,
        causes: &[Id],
        (begin, end): (u64, u64),
    ) -> Span {
        Span { place, layer: Layer::Process, kind: kind.into(), id, causes: causes.into(), begin, end }
    }

    /// Two creates that share a commit.
    pub(crate) fn two_creates() -> Vec<Span> {
        let (call, other) = (id(CLIENT, CLIENT, 1), id(CLIENT, CLIENT, 2));
        let (ask, requested) = (id(CLIENT, RANK, 11), id(CLIENT, RANK, 12));
        let commit = span(RANK, "journal sync", None, &[ask, requested], (22, 28));
        let load = span(RANK, "table read", None, &[ask], (12, 20));
        vec![
            commit,
            load,
            span(RANK, "create", Some(ask), &[], (11, 30)),
            span(RANK, "create", Some(requested), &[], (13, 30)),
            span(CLIENT, "create", Some(ask), &[call], (10, 40)),
            span(CLIENT, "create", Some(requested), &[other], (12, 41)),
            span(CLIENT, "create", Some(call), &[], (9, 42)),
            span(CLIENT, "create", Some(other), &[], (11, 43)),
        ]
    }

    #[test]
    fn spans_of_two_places_are_one_operation_and_a_commit_belongs_to_several() {
        let spans = two_creates();
        let operations = operations(&spans);
        let shape = |operation: &Operation<'_>| -> Vec<(usize, String, u64)> {
            let steps = operation.steps.iter();
            steps.map(|step| (step.depth, step.span.kind.to_string(), step.span.begin)).collect()
        };
        let step = |depth, kind: &str, begin| (depth, kind.to_string(), begin);
        assert_eq!(operations.len(), 2);
        assert_eq!(
            shape(&operations[0]),
            [
                step(0, "create", 9),
                step(1, "create", 10),
                step(2, "create", 11),
                step(3, "table read", 12),
                step(3, "journal sync", 22)
            ]
        );
        assert_eq!(shape(&operations[1])[2..], [step(2, "create", 13), step(3, "journal sync", 22)]);
    }

    #[test]
    fn operation_without_cause_is_a_root() {
        let spans: Vec<_> = two_creates().into_iter().filter(|span| span.place == RANK).collect();
        let operations = operations(&spans);
        let lengths: Vec<_> = operations.iter().map(|operation| operation.steps.len()).collect();
        assert_eq!(lengths, [3, 2]);
        assert_eq!(operations[0].root().place, RANK);
    }

    #[test]
    fn circles_come_to_an_end() {
        let (one, other) = (id(RANK, RANK, 1), id(RANK, RANK, 2));
        let spans = [
            span(RANK, "a", Some(one), &[other], (0, 9)),
            span(RANK, "b", Some(other), &[one], (0, 9)),
            span(RANK, "c", Some(id(CLIENT, RANK, 3)), &[], (0, 9)),
        ];
        assert_eq!(operations(&spans).len(), 1);
    }
}
