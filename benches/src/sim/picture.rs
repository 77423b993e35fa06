//! A figure as SVG: published and simulated points.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::figure::{Axis, Drawn, Outcome};
use crate::chart::{COLOURS, SIZE};

/// Draws the figure: published points are hollow and joined by thin lines, simulated ones are filled.
pub fn svg(drawn: &Drawn<'_>) -> Result<String> {
    let xs: Vec<f64> = drawn.outcomes().map(|outcome| outcome.x).collect();
    let least = xs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = xs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut text = String::new();
    match drawn.figure.axis {
        Axis::Linear => {
            let margin = (most - least).max(1.0) * 0.05;
            draw(&mut text, drawn, least - margin..most + margin)?;
        }
        Axis::Logarithmic => draw(&mut text, drawn, (least * 0.8..most * 1.25).log_scale())?,
        Axis::Names(_) => draw(&mut text, drawn, -0.5..most + 0.5)?,
    }
    Ok(text)
}

fn draw<X>(text: &mut String, drawn: &Drawn<'_>, x: X) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let figure = drawn.figure;
    let highest = drawn.outcomes().map(|outcome| outcome.published.max(outcome.simulated));
    let highest = highest.fold(0.0, f64::max);
    let wrong = |error| anyhow!("the picture of {}: {error}", figure.name);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(wrong)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(figure.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(52)
        .build_cartesian_2d(x, 0.0..highest * 1.1)
        .map_err(wrong)?;
    let name = |x: &f64| if x.fract() == 0.0 { figure.at(*x) } else { String::new() };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(figure.x_label).y_desc(figure.y_label).light_line_style(WHITE);
    mesh.x_label_formatter(&name);
    mesh.draw().map_err(wrong)?;
    let of = |outcomes: &[Outcome], y: fn(&Outcome) -> f64| -> Vec<(f64, f64)> {
        outcomes.iter().map(|outcome| (outcome.x, y(outcome))).collect()
    };
    let is_line = !matches!(figure.axis, Axis::Names(_));
    for ((series, outcomes), colour) in drawn.series.iter().zip(COLOURS.iter().cycle()) {
        let published = of(outcomes, |outcome| outcome.published);
        let simulated = of(outcomes, |outcome| outcome.simulated);
        if is_line {
            chart
                .draw_series(LineSeries::new(published.clone(), colour.mix(0.35)))
                .map_err(wrong)?;
            chart
                .draw_series(LineSeries::new(simulated.clone(), colour.stroke_width(2)))
                .map_err(wrong)?;
        }
        chart
            .draw_series(published.into_iter().map(|at| Circle::new(at, 5, colour.stroke_width(1))))
            .map_err(wrong)?
            .label(format!("{series}, published"))
            .legend(|(x, y)| Circle::new((x + 10, y), 5, colour.stroke_width(1)));
        chart
            .draw_series(simulated.into_iter().map(|at| Circle::new(at, 3, colour.filled())))
            .map_err(wrong)?
            .label(format!("{series}, simulated"))
            .legend(|(x, y)| Circle::new((x + 10, y), 3, colour.filled()));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .draw()
        .map_err(wrong)?;
    area.present().map_err(wrong)
}
