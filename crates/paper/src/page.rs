//! One HTML page with all outcomes.

use std::fmt::Write as _;
use std::path::Path;

use crate::Testbed;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}\
    td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}.yes{color:#1a7a2e}.no{color:#b02020}";

/// Writes `index.html` with everything in it into a directory.
///
/// # Errors
/// The directory is not writable, or a plot cannot be drawn.
pub fn write_page(dir: &Path, outcomes: &[ExperimentResult]) -> Result<(), PaperError> {
    let mut page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>The papers' experiments</title><style>{STYLE}</style>"
    );
    page.push_str("<h1>The papers' experiments</h1>");
    contents(outcomes, &mut page);
    for outcome in outcomes {
        outcome.write(dir)?;
        section(dir, outcome, &mut page)?;
    }
    let path = dir.join("index.html");
    std::fs::write(&path, page).map_err(|cause| PaperError::File { path, cause })
}

/// The table of experiments with their numbers of claims that hold.
fn contents(outcomes: &[ExperimentResult], page: &mut String) {
    page.push_str("<table><tr><th>experiment</th><th></th><th>claims that hold</th></tr>");
    for outcome in outcomes {
        let (holding, all) =
            (outcome.claims.iter().filter(|claim| claim.holds).count(), outcome.claims.len());
        let (class, stem) = (if holding == all { "yes" } else { "no" }, outcome.stem());
        page.push_str(&format!(
            "<tr><td><a href=\"#{stem}\">{}: {}</a></td><td>{}</td><td class=\"{class}\">{holding} of {all}</td></tr>",
            outcome.id,
            escape(outcome.title),
            place(outcome)
        ));
    }
    page.push_str("</table>");
}

fn place(outcome: &ExperimentResult) -> &'static str {
    match outcome.place {
        Some(Testbed::Simulator) => "in the simulator",
        _ => "on this machine",
    }
}

fn section(dir: &Path, outcome: &ExperimentResult, page: &mut String) -> Result<(), PaperError> {
    let mut say = |text: String| page.push_str(&text);
    say(format!(
        "<h2 id=\"{}\">{}: {}, {}</h2><p>{}</p>",
        outcome.stem(),
        outcome.id,
        escape(outcome.title),
        place(outcome),
        escape(&outcome.setup)
    ));
    say("<table><tr><th>claim</th><th>paper</th><th>here</th><th></th></tr>".into());
    for Claim { text, paper, ours, holds } in &outcome.claims {
        let verdict =
            if *holds { "<td class=\"yes\">holds</td>" } else { "<td class=\"no\">does not hold</td>" };
        let [text, paper, ours] = [text, paper, ours].map(|text| escape(text));
        say(format!("<tr><td>{text}</td><td>{paper}</td><td>{ours}</td>{verdict}</tr>"));
    }
    say("</table>".into());
    for chart in &outcome.charts {
        let path = dir.join(format!("{}-{}.svg", outcome.stem(), chart.name));
        let picture = std::fs::read_to_string(&path).map_err(|cause| PaperError::File { path, cause })?;
        say(picture);
    }
    outcome.pictures.iter().for_each(|picture| say(picture.svg.clone()));
    for table in &outcome.tables {
        say(row("th", table.columns.iter().copied(), "<table>"));
        table.rows.iter().for_each(|cells| say(row("td", cells.iter().map(String::as_str), "")));
        say("</table>".into());
    }
    Ok(())
}

fn row<'a>(tag: &str, cells: impl Iterator<Item = &'a str>, before: &str) -> String {
    let mut text = format!("{before}<tr>");
    for cell in cells {
        // Writing to a string cannot fail.
        let _ = write!(text, "<{tag}>{}</{tag}>", escape(cell));
    }
    text + "</tr>"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
