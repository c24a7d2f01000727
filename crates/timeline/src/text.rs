//! An operation as a timeline of characters, a line for each step.

use std::fmt::Write;

use crate::{Layer, Operation, Span};

/// Width of the time axis, in characters.
const LEAST: usize = 16;

/// Duration of an operation with all its steps, in nanoseconds.
pub fn length(operation: &Operation<'_>) -> u64 {
    let last = operation.steps.iter().map(|step| step.span.end).max().unwrap_or(0);
    last.saturating_sub(operation.root().begin)
}

/// Draws an operation into lines of at most `width` characters, if that suffices for the names.
/// `scale`: nanoseconds of a full line, the longest operation to compare with.
pub fn draw(operation: &Operation<'_>, scale: u64, width: usize) -> String {
    let begin = operation.root().begin;
    let places: Vec<_> = operation.steps.iter().map(|step| lane(step.span)).collect();
    let names: Vec<_> = operation
        .steps
        .iter()
        .map(|step| format!("{}{}", "  ".repeat(step.depth), name(step.span)))
        .collect();
    let longest = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let (place_width, name_width) = (longest(&places), longest(&names));
    let left = width.saturating_sub(place_width + name_width + 20).max(LEAST);
    let mut text = String::new();
    for (number, step) in operation.steps.iter().enumerate() {
        let Span { begin: from, end: to, .. } = *step.span;
        let column = |time: u64| {
            let passed = u128::from(time.saturating_sub(begin)) * left as u128;
            usize::try_from(passed / u128::from(scale.max(1))).unwrap_or(left).min(left - 1)
        };
        let (first, last) = (column(from), column(to));
        let bar = format!("{}{}", " ".repeat(first), "#".repeat(last - first + 1));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:>3}  {:place_width$}  {:name_width$}  {bar:left$} {:>10}",
            number + 1,
            places[number],
            names[number],
            time(to - from),
        );
    }
    text
}

/// The busy place and layer.
pub(crate) fn lane(span: &Span) -> String {
    let part = match span.layer {
        Layer::Process => "",
        Layer::Store => ", store",
        Layer::Disk => ", disk",
    };
    format!("{}{part}", span.place)
}

/// The step's name; for waiting, the place that is waited for.
pub(crate) fn name(span: &Span) -> String {
    match span.id {
        Some(id) if span.place == id.from && id.from != id.to => format!("ask {}: {}", id.to, span.kind),
        _ => span.kind.to_string(),
    }
}

/// Nanoseconds for people.
pub(crate) fn time(nanos: u64) -> String {
    match nanos {
        0..10_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::two_creates;

    #[test]
    fn each_step_has_a_line() {
        let spans = two_creates();
        let operations = crate::operations(&spans);
        let text = draw(&operations[0], length(&operations[0]), 80);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[1].contains("client 9") && lines[1].contains("ask rank 0: create"), "{text}");
        assert!(lines[3].contains("table read") && lines[3].ends_with("0.0 us"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let bar = |line: &str| line.matches('#').count();
        assert!(bar(lines[0]) > bar(lines[2]) && bar(lines[2]) > bar(lines[3]), "{text}");
    }
}
