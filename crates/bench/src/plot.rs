//! Chart of a report: for each phase and side the median rate, with a line from the slowest to the
//! fastest run.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Error;
use crate::report::{Report, SideFigures, letter};

const COLOURS: [RGBColor; 3] = [RGBColor(31, 119, 180), RGBColor(214, 110, 20), RGBColor(110, 110, 110)];
const ROW: u32 = 28;

/// Writes the chart to `file` as SVG, with a logarithmic scale.
pub fn plot(report: &Report, file: &Path) -> Result<(), Error> {
    let failed = |message: String| Error::Plot { file: file.into(), message };
    let mut picture = String::new();
    draw(report, &mut picture).map_err(|error| failed(error.to_string()))?;
    std::fs::write(file, picture).map_err(|error| failed(error.to_string()))
}

fn draw(report: &Report, picture: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rows = report.phases.len();
    let sides = |row: usize| {
        let phase = &report.phases[row];
        std::iter::once(&phase.figures).chain(phase.against.iter().map(|other| &other.figures))
    };
    let rates = || (0..rows).flat_map(sides).flat_map(|figures| figures.runs.iter().copied());
    let slowest = rates().fold(f64::INFINITY, f64::min).min(1e9);
    let fastest = rates().fold(1.0, f64::max);

    let size = (960, (rows + report.sides.len()) as u32 * ROW + 70);
    let area = SVGBackend::with_string(picture, size).into_drawing_area();
    area.fill(&WHITE)?;
    let left = slowest / 1.5;
    let x = (left..fastest * 1.5).log_scale();
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(270)
        // Leaves room for the legend below the last phase.
        .build_cartesian_2d(x, -0.7 - 0.8 * report.sides.len() as f64..rows as f64 - 0.3)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_label_formatter(&|rate| format!("{rate:.0}"))
        .x_desc("operations per second")
        .label_style(("sans-serif", 16))
        .draw()?;
    // The first phase is at the top.
    let height = |row: usize| (rows - 1 - row) as f64;
    let to_the_left = TextStyle::from(("sans-serif", 16)).pos(Pos::new(HPos::Right, VPos::Center));
    for (row, phase) in report.phases.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(left, height(row)));
        let name = format!("{} x{}", phase.name, phase.procs);
        area.draw(&Text::new(name, (x - 10, y), to_the_left.clone()))?;
    }
    for (side, place) in report.sides.iter().enumerate() {
        let colour = COLOURS[side % COLOURS.len()];
        // The sides of a phase are slightly offset.
        let lower = side as f64 * 0.22 - 0.22 * (report.sides.len() - 1) as f64 / 2.0;
        let points = (0..rows).filter_map(|row| Some((height(row) - lower, sides(row).nth(side)?)));
        let points: Vec<(f64, &SideFigures)> = points.collect();
        chart.draw_series(points.iter().map(|(at, figures)| {
            let runs = figures.runs.iter().copied();
            let (low, high) = (runs.clone().fold(f64::INFINITY, f64::min), runs.fold(0.0, f64::max));
            PathElement::new([(low, *at), (high, *at)], colour)
        }))?;
        let medians =
            points.iter().map(|(at, figures)| Circle::new((figures.ops_per_s, *at), 4, colour.filled()));
        chart
            .draw_series(medians)?
            .label(format!("{} {} ({})", letter(side), place.dir.display(), place.file_system))
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
