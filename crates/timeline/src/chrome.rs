//! Spans in the Trace Event Format, which Chrome's tracing and Perfetto (<https://ui.perfetto.dev>)
//! show. Each place is a process; overlapping spans get threads of their own, since spans of one
//! thread must nest. Fields of our own are in `args`, so that a file can be read back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::text::{lane, name};
use crate::{Id, Layer, NodeId, Span};

/// Why a file is not one of ours.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("this is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("this is no trace of `espalier trace --out`: {0}")]
    Foreign(&'static str),
    #[error("span {number} ends before it begins, or is out of all times")]
    Time { number: usize },
}

/// The fields of a span beside its name and times.
#[derive(Serialize, Deserialize)]
struct SpanArgs {
    place: NodeId,
    layer: Layer,
    kind: String,
    id: Option<Id>,
    causes: Vec<Id>,
}

#[derive(Deserialize)]
struct ChromeTrace {
    #[serde(rename = "traceEvents")]
    events: Vec<ChromeEvent>,
}

#[derive(Deserialize)]
struct ChromeEvent {
    ph: String,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Value,
}

/// The spans as a file. Times count from the first one.
pub fn write_chrome(spans: &[Span]) -> String {
    let origin = spans.iter().map(|span| span.begin).min().unwrap_or(0);
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let places: BTreeMap<NodeId, usize> =
        spans.iter().map(|span| (span.place, 0)).collect::<BTreeMap<_, _>>();
    let places: BTreeMap<NodeId, usize> = places.into_keys().zip(1..).collect();
    let mut events: Vec<Value> = places
        .iter()
        .map(|(place, number)| {
            json!({ "ph": "M", "pid": number, "name": "process_name", "args": { "name": place.to_string() } })
        })
        .collect();
    for (span, (thread, lane)) in spans.iter().zip(threads(spans)) {
        let pid = places[&span.place];
        if let Some(lane) = lane {
            let named = json!({ "name": lane });
            events
                .push(json!({ "ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": named }));
        }
        let Span { place, layer, id, .. } = *span;
        let args = SpanArgs { place, layer, kind: span.kind.to_string(), id, causes: span.causes.clone() };
        let (ts, dur) = (micros(span.begin - origin), micros(span.end - span.begin));
        events.push(json!({
            "ph": "X", "pid": pid, "tid": thread, "name": name(span), "cat": layer, "ts": ts, "dur": dur, "args": args
        }));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "began_ns": origin.to_string() } })
        .to_string()
}

/// For each span a thread on which it nests, and the thread's name where it is the first.
fn threads(spans: &[Span]) -> Vec<(usize, Option<String>)> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|at| (spans[*at].begin, std::cmp::Reverse(spans[*at].end)));
    // By place: the purpose of each thread, and the ends of its open spans.
    let mut all: BTreeMap<NodeId, Vec<(Layer, Vec<u64>)>> = BTreeMap::new();
    let mut found = vec![(0, None); spans.len()];
    for at in order {
        let span = &spans[at];
        let threads = all.entry(span.place).or_default();
        let place = threads.iter_mut().position(|(layer, ends)| {
            ends.retain(|end| *end > span.begin);
            *layer == span.layer && ends.last().is_none_or(|end| *end >= span.end)
        });
        let thread = place.unwrap_or(threads.len());
        if place.is_none() {
            threads.push((span.layer, Vec::new()));
            found[at].1 = Some(lane(span));
        }
        threads[thread].1.push(span.end);
        found[at].0 = thread + 1;
    }
    found
}

/// Reads the output of [`write_chrome`].
///
/// # Errors
/// [`TraceError`]
pub fn read_chrome(text: &str) -> Result<Vec<Span>, TraceError> {
    let value: Value = serde_json::from_str(text)?;
    let file = ChromeTrace::deserialize(value).map_err(|_| TraceError::Foreign("it has no traceEvents"))?;
    let mut spans = Vec::new();
    for ChromeEvent { ts, dur, args, .. } in file.events.into_iter().filter(|event| event.ph == "X") {
        let number = spans.len() + 1;
        let args = SpanArgs::deserialize(args)
            .map_err(|_| TraceError::Foreign("a span does not say where it was"))?;
        // A double is exact to the nanosecond up to here.
        let nanos = |micros: f64| (0.0..9e12).contains(&micros).then(|| (micros * 1e3).round() as u64);
        let (Some(begin), Some(took)) = (nanos(ts), nanos(dur)) else {
            return Err(TraceError::Time { number });
        };
        let SpanArgs { place, layer, kind, id, causes } = args;
        spans.push(Span { place, layer, kind: kind.into(), id, causes, begin, end: begin + took });
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::two_creates;

    #[test]
    fn spans_survive_a_round_trip() {
        let mut spans = two_creates();
        let origin = spans.iter().map(|span| span.begin).min().unwrap_or(0);
        let read = read_chrome(&write_chrome(&spans)).expect("ours");
        for span in &mut spans {
            (span.begin, span.end) = (span.begin - origin, span.end - origin);
        }
        assert_eq!(read, spans);
    }

    #[test]
    fn spans_of_one_thread_nest() {
        let spans = two_creates();
        let threads = threads(&spans);
        for (one, (thread, _)) in spans.iter().zip(&threads) {
            for (other, (same, _)) in spans.iter().zip(&threads) {
                let is_apart = one.end <= other.begin || other.end <= one.begin;
                let nests = (one.begin <= other.begin && other.end <= one.end)
                    || (other.begin <= one.begin && one.end <= other.end);
                assert!(one.place != other.place || thread != same || is_apart || nests);
            }
        }
    }

    #[test]
    fn other_files_are_refused() {
        for (text, why) in [
            ("", "no JSON"),
            ("{}", "no traceEvents"),
            ("[]", "no traceEvents"),
            (r#"{"traceEvents":[{"ph":"X","ts":1,"dur":1}]}"#, "where it was"),
            (
                r#"{"traceEvents":[{"ph":"X","ts":-1,"dur":1,"args":{"place":{"rank":0},"layer":"disk","kind":"k","id":null,"causes":[]}}]}"#,
                "span 1",
            ),
        ] {
            let error = read_chrome(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
