//! Clocks of several hosts: an operation is served between request and reply, which bounds their
//! difference.

use std::collections::{BTreeMap, VecDeque};

use crate::{Id, NodeId, Span};

/// The range of offsets for the second place, so that its service lies within the first one's
/// waiting.
type Bounds = BTreeMap<(NodeId, NodeId), (i128, i128)>;

/// Shifts the spans of each place as little as possible, so that its service lies within others'
/// waiting. Clients' clocks stay; places of one host need no shift.
pub fn align(spans: &mut [Span]) {
    let mut requested: BTreeMap<Id, &Span> = BTreeMap::new();
    for span in spans.iter() {
        if let Some(id) = span.id.filter(|id| span.place == id.from && id.from != id.to) {
            requested.insert(id, span);
        }
    }
    let mut bounds = Bounds::new();
    for served in spans.iter() {
        let Some(id) = served.id.filter(|id| served.place == id.to) else { continue };
        let Some(requested) = requested.get(&id) else { continue };
        let earliest = i128::from(requested.begin) - i128::from(served.begin);
        let latest = i128::from(requested.end) - i128::from(served.end);
        let both = bounds.entry((id.from, id.to)).or_insert((earliest, latest));
        *both = (both.0.max(earliest), both.1.min(latest));
    }
    let moves = moves(spans, &bounds);
    for span in spans {
        let by = moves.get(&span.place).copied().unwrap_or_default();
        let moved = |time: u64| u64::try_from(i128::from(time) + by).unwrap_or_default();
        (span.begin, span.end) = (moved(span.begin), moved(span.end));
    }
}

fn moves(spans: &[Span], bounds: &Bounds) -> BTreeMap<NodeId, i128> {
    let mut moves = BTreeMap::new();
    // Places are ordered clients, metadata servers, data servers, as requests flow.
    let places: std::collections::BTreeSet<_> = spans.iter().map(|span| span.place).collect();
    for place in places {
        let mut left = VecDeque::from([(place, 0)]);
        while let Some((place, by)) = left.pop_front() {
            if moves.contains_key(&place) {
                continue;
            }
            moves.insert(place, by);
            for (&(from, to), &(least, most)) in bounds {
                if from == place {
                    left.push_back((to, by + nearest((least, most))));
                } else if to == place {
                    left.push_back((from, by - nearest((least, most))));
                }
            }
        }
    }
    moves
}

/// Zero if it is within the range.
fn nearest((least, most): (i128, i128)) -> i128 {
    if least > most { i128::midpoint(least, most) } else { 0.clamp(least, most) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{RANK, two_creates};

    #[test]
    fn clocks_of_one_host_stay() {
        let mut spans = two_creates();
        align(&mut spans);
        assert_eq!(spans, two_creates());
    }

    #[test]
    fn a_clock_that_is_wrong_is_moved_as_little_as_needed() {
        for wrong in [5_000, 15_000] {
            let mut spans = two_creates();
            for span in &mut spans {
                let by = if span.place == RANK { wrong } else { 10_000 };
                (span.begin, span.end) = (span.begin + by, span.end + by);
            }
            align(&mut spans);
            let operations = crate::operations(&spans);
            assert_eq!(operations.len(), 2);
            for operation in operations {
                assert!(operation.root().begin >= 10_000, "a client's clock stays");
                let (requested, served) = (operation.steps[1].span, operation.steps[2].span);
                assert!(
                    requested.begin <= served.begin && served.end <= requested.end,
                    "{requested:?} {served:?}"
                );
            }
        }
    }
}
