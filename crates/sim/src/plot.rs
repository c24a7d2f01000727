//! Line charts.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 110, 20),
    RGBColor(44, 130, 60),
    RGBColor(190, 40, 40),
    RGBColor(110, 80, 160),
    RGBColor(120, 80, 60),
    RGBColor(200, 90, 160),
    RGBColor(110, 110, 110),
];

/// Largest number of points for which markers are drawn.
const MARKED: usize = 16;

/// A line of a chart: x and y values.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Draw only markers, as for measurements by others.
    pub dots: bool,
}

/// Why a chart cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", file.display())]
pub struct PlotError {
    file: PathBuf,
    message: String,
}

/// Draws lines to an SVG file; the y axis begins at 0. `over`, `quantity`: labels of the axes.
///
/// # Errors
/// The file cannot be written.
pub fn plot(file: &Path, over: &str, quantity: &str, lines: &[Line]) -> Result<(), PlotError> {
    let failed = |message: String| PlotError { file: file.into(), message };
    let mut picture = String::new();
    draw(over, quantity, lines, &mut picture).map_err(|error| failed(error.to_string()))?;
    std::fs::write(file, picture).map_err(|error| failed(error.to_string()))
}

fn draw(
    over: &str,
    quantity: &str,
    lines: &[Line],
    picture: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let end = points().map(|(time, _)| *time).fold(1e-9, f64::max);
    let top = points().map(|(_, value)| *value).fold(1e-9, f64::max) * 1.05;
    let area = SVGBackend::with_string(picture, (960, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(45)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    let mesh = &mut chart.configure_mesh();
    let mesh = mesh.x_label_formatter(&number).y_label_formatter(&number).max_light_lines(1);
    mesh.x_desc(over).y_desc(quantity).label_style(("sans-serif", 16)).draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let dots = |size| line.points.iter().map(move |point| Circle::new(*point, size, colour.filled()));
        if !line.dots && line.points.len() <= MARKED {
            chart.draw_series(dots(3))?;
        }
        let drawn = match line.dots {
            true => chart.draw_series(dots(5))?,
            false => {
                chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
            }
        };
        drawn
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Axis label with up to three decimals, without trailing zeros.
fn number(value: &f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
