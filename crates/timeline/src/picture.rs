//! Operations as a picture, above each other at one scale: a lane for each client, server, store
//! and disk, with numbered steps (kuhn, Figs. 6.1 to 6.6).

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::text::{lane, length, name, time};
use crate::{Layer, NodeId, Operation, Span};

/// An operation with its caption.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    pub title: String,
    pub operation: Operation<'a>,
}

/// The operations cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct PictureError(String);

const WIDTH: i32 = 1100;
/// Beginning and width of the lanes.
const LEFT: i32 = 170;
const RIGHT: i32 = WIDTH - 20;
/// Height of a line of boxes, and of a line of the legend.
const ROW: i32 = 24;
const LINE: i32 = 18;
const TITLE: i32 = 34;
/// Columns of the legend.
const COLUMNS: i32 = 3;

/// A lane, with the lines that overlapping steps need.
struct Lane {
    name: String,
    /// Step numbers by line.
    lines: Vec<Vec<usize>>,
}

/// Draws operations as SVG.
///
/// # Errors
/// Only if formatting fails.
pub fn picture(panels: &[Panel<'_>]) -> Result<String, PictureError> {
    let mut svg = String::new();
    draw_all(panels, &mut svg).map_err(|error| PictureError(error.to_string()))?;
    Ok(svg)
}

fn draw_all(panels: &[Panel<'_>], svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let scale = panels.iter().map(|panel| length(&panel.operation)).max().unwrap_or(0).max(1);
    let lanes: Vec<_> = panels.iter().map(|panel| lanes(&panel.operation)).collect();
    let heights = || panels.iter().zip(&lanes).map(|(panel, lanes)| height(&panel.operation, lanes));
    let area = SVGBackend::with_string(svg, (WIDTH as u32, (heights().sum::<i32>() + 10) as u32))
        .into_drawing_area();
    area.fill(&WHITE)?;
    let mut top = 0;
    for ((panel, lanes), height) in panels.iter().zip(&lanes).zip(heights()) {
        draw_panel(&area, panel, lanes, scale, top)?;
        top += height;
    }
    area.present()?;
    Ok(())
}

fn legend_lines(operation: &Operation<'_>) -> i32 {
    (operation.steps.len() as i32 + COLUMNS - 1) / COLUMNS
}

fn height(operation: &Operation<'_>, lanes: &[Lane]) -> i32 {
    let rows: usize = lanes.iter().map(|lane| lane.lines.len()).sum();
    TITLE + rows as i32 * ROW + legend_lines(operation) * LINE + 20
}

fn lanes(operation: &Operation<'_>) -> Vec<Lane> {
    let mut places: Vec<(NodeId, Layer)> =
        operation.steps.iter().map(|step| (step.span.place, step.span.layer)).collect();
    places.sort_unstable();
    places.dedup();
    let lines = |place: &(NodeId, Layer)| {
        let mut lines: Vec<Vec<usize>> = Vec::new();
        let steps = operation.steps.iter().enumerate();
        for (number, step) in steps.filter(|(_, step)| (step.span.place, step.span.layer) == *place) {
            let is_free = |other: &usize| {
                let other = operation.steps[*other].span;
                other.end <= step.span.begin || step.span.end <= other.begin
            };
            match lines.iter_mut().find(|line| line.iter().all(is_free)) {
                Some(line) => line.push(number),
                None => lines.push(vec![number]),
            }
        }
        lines
    };
    let named = |place: &(NodeId, Layer)| {
        let lines = lines(place);
        let name =
            lines.first().and_then(|line| line.first()).map(|first| lane(operation.steps[*first].span));
        Lane { name: name.unwrap_or_default(), lines }
    };
    places.iter().map(named).collect()
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    Panel { title, operation }: &Panel<'_>,
    lanes: &[Lane],
    scale: u64,
    top: i32,
) -> Result<(), Box<dyn std::error::Error>> {
    let font = |size: i32| ("sans-serif", size).into_text_style(area);
    let middle = |size: i32| font(size).pos(Pos::new(HPos::Left, VPos::Center));
    let took = time(length(operation));
    area.draw(&Text::new(
        format!("{title}: {} steps, {took}", operation.steps.len()),
        (10, top + 10),
        font(16),
    ))?;
    let begin = operation.root().begin;
    let place = |time: u64| {
        let part = time.saturating_sub(begin) as f64 / scale as f64;
        LEFT + (part * f64::from(RIGHT - LEFT)) as i32
    };
    let mut row = top + TITLE;
    for (number, lane) in lanes.iter().enumerate() {
        let bottom = row + lane.lines.len() as i32 * ROW;
        if number % 2 == 0 {
            area.draw(&Rectangle::new([(0, row), (WIDTH, bottom)], RGBColor(244, 244, 244).filled()))?;
        }
        area.draw(&Text::new(lane.name.clone(), (10, row + ROW / 2), middle(13)))?;
        for line in &lane.lines {
            for number in line {
                let span = operation.steps[*number].span;
                // With a gap to the next box.
                let (from, to) = (place(span.begin), (place(span.end) - 1).max(place(span.begin) + 2));
                let corners = [(from, row + 3), (to, row + ROW - 3)];
                area.draw(&Rectangle::new(corners, colour(span).filled()))?;
                // Inside the box if there is room.
                let named = format!("{} {}", number + 1, name(span));
                let text = if to - from > 7 * named.len() as i32 { named } else { (number + 1).to_string() };
                let inside = to - from > 7 * text.len() as i32;
                let (at, ink) = if inside { (from + 3, &WHITE) } else { (to + 2, &BLACK) };
                area.draw(&Text::new(text, (at, row + ROW / 2), middle(12).color(ink)))?;
            }
            row += ROW;
        }
    }
    let lines = legend_lines(operation).max(1);
    for (number, step) in operation.steps.iter().enumerate() {
        let (column, line) = (number as i32 / lines, number as i32 % lines);
        let Span { begin, end, .. } = *step.span;
        let text = format!("{}  {}: {}, {}", number + 1, lane(step.span), name(step.span), time(end - begin));
        let at = (10 + column * (WIDTH - 10) / COLUMNS, row + 8 + line * LINE);
        area.draw(&Text::new(text, at, font(12)))?;
    }
    Ok(())
}

fn colour(span: &Span) -> RGBColor {
    match (span.layer, span.place) {
        (Layer::Process, NodeId::Client(_)) => RGBColor(31, 119, 180),
        (Layer::Process, NodeId::Rank(_)) => RGBColor(200, 95, 15),
        (Layer::Process, NodeId::Data(_)) => RGBColor(44, 130, 60),
        (Layer::Store, _) => RGBColor(110, 80, 160),
        (Layer::Disk, _) => RGBColor(180, 40, 40),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{RANK, id, span, two_creates};

    #[test]
    fn operations_are_above_each_other_with_all_their_steps() {
        let mut spans = two_creates();
        // A foreign file may contain anything.
        spans.push(span(RANK, "<script>", None, &[id(NodeId::Client(9), RANK, 11)], (13, 14)));
        let operations = crate::operations(&spans);
        let panel = |number: usize| Panel {
            title: format!("number {number}"),
            operation: operations[number].clone(),
        };
        let svg = picture(&[panel(0), panel(1)]).expect("a picture");
        assert!(svg.starts_with("<svg") && !svg.contains("<script>"), "{svg}");
        for text in ["number 0: 6 steps", "number 1: 4 steps", "journal sync", "rank 0", "ask rank 0: create"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert!(picture(&[]).is_ok());
    }
}
