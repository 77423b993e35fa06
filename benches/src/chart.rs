//! Shared code of all pictures, and line charts.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// The size of one chart in pixels.
pub(crate) const SIZE: (u32, u32) = (720, 400);

/// The labels of more points than this would overlap.
const MOST_MARKS: usize = 16;

/// The colours of series, in order.
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];

/// Lines over a logarithmic horizontal axis.
pub(crate) struct Lines<'a> {
    pub(crate) title: String,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    pub(crate) series: Vec<Series>,
    /// Whether the vertical axis is logarithmic too.
    pub(crate) is_logarithmic: bool,
}

/// A line's name and points.
pub(crate) type Series = (String, Vec<(f64, f64)>);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Arranges charts in rows of `columns`.
pub(crate) fn charts(all: &[Lines<'_>], columns: usize) -> Result<String> {
    let columns = columns.clamp(1, all.len().max(1));
    let rows = all.len().div_ceil(columns).max(1);
    let size = (SIZE.0 * 3 / 5 * columns as u32, SIZE.1 * 3 / 4 * rows as u32);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(wrong)?;
        for (chart, area) in all.iter().zip(area.split_evenly((rows, columns))) {
            lines(&area, chart)?;
        }
        area.present().map_err(wrong)?;
    }
    Ok(text)
}

fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("the picture: {error}")
}

fn lines(area: &Area<'_>, chart: &Lines<'_>) -> Result<()> {
    let points = || chart.series.iter().flat_map(|(_, points)| points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(f64::NEG_INFINITY, f64::max);
        (least, most)
    };
    let ((left, right), (low, high)) = (range(|at| at.0), range(|at| at.1));
    if points().next().is_none() {
        return Ok(());
    }
    let mut builder = ChartBuilder::on(area);
    builder.caption(&chart.title, ("sans-serif", 14)).margin(8);
    builder.x_label_area_size(36).y_label_area_size(48);
    // Ticks at the points: the labels of the default ticks would overlap.
    let mut marks: Vec<f64> = points().map(|at| at.0).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let marks: Vec<_> = marks.iter().copied().step_by(marks.len().div_ceil(MOST_MARKS)).collect();
    let x = (left * 0.8..right * 1.25).log_scale().with_key_points(marks);
    macro_rules! draw {
        ($y:expr) => {{
            let mut context = builder.build_cartesian_2d(x, $y).map_err(wrong)?;
            let mut mesh = context.configure_mesh();
            mesh.x_desc(chart.x_label).y_desc(chart.y_label).light_line_style(WHITE);
            mesh.label_style(("sans-serif", 11));
            mesh.x_label_formatter(&|x| format!("{x}"));
            mesh.draw().map_err(wrong)?;
            for ((name, points), colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
                let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
                context.draw_series(line).map_err(wrong)?;
                let dots = points.iter().map(|at| Circle::new(*at, 3, colour.filled()));
                context
                    .draw_series(dots)
                    .map_err(wrong)?
                    .label(name)
                    .legend(|(x, y)| Circle::new((x + 10, y), 3, colour.filled()));
            }
            context
                .configure_series_labels()
                .border_style(BLACK.mix(0.3))
                .background_style(WHITE.mix(0.8))
                .label_font(("sans-serif", 11))
                .draw()
                .map_err(wrong)?;
        }};
    }
    match chart.is_logarithmic {
        true => draw!((low.max(f64::MIN_POSITIVE) * 0.8..high * 1.25).log_scale()),
        false => draw!(0.0..high * 1.1),
    }
    Ok(())
}

/// Lines over time, with a logarithmic vertical axis.
#[cfg(feature = "sim")]
pub(crate) fn timeline(
    title: &str,
    [x_label, y_label]: [&str; 2],
    series: &[(&str, Vec<(f64, f64)>)],
) -> Result<String> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let right = points().map(|at| at.0).fold(1.0, f64::max);
    let low = points().map(|at| at.1).fold(f64::INFINITY, f64::min);
    let high = points().map(|at| at.1).fold(1.0, f64::max);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(wrong)?;
        let mut builder = ChartBuilder::on(&area);
        builder.caption(title, ("sans-serif", 14)).margin(8);
        builder.x_label_area_size(36).y_label_area_size(56);
        let y = (low.min(high) * 0.8..high * 1.25).log_scale();
        let mut context = builder.build_cartesian_2d(0.0..right, y).map_err(wrong)?;
        let mut mesh = context.configure_mesh();
        mesh.x_desc(x_label).y_desc(y_label).light_line_style(WHITE);
        mesh.draw().map_err(wrong)?;
        for ((name, points), colour) in series.iter().zip(COLOURS) {
            let line = LineSeries::new(points.iter().copied(), colour);
            let mark = move |(x, y)| Circle::new((x + 10, y), 3, colour.filled());
            context.draw_series(line).map_err(wrong)?.label(*name).legend(mark);
        }
        let mut labels = context.configure_series_labels();
        labels.border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8));
        labels.draw().map_err(wrong)?;
        area.present().map_err(wrong)?;
    }
    Ok(text)
}

/// A bar with its name.
#[cfg(feature = "ablation")]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Bars of one group have the same colour, and a gap follows the group.
    pub(crate) group: usize,
}

/// Horizontal bars below each other.
#[cfg(feature = "ablation")]
pub(crate) fn bars(title: &str, all: &[Bar]) -> Result<String> {
    const ROW: i32 = 18;
    const GAP: i32 = 8;
    const LEFT: i32 = 170;
    let groups = all.windows(2).filter(|pair| pair[0].group != pair[1].group).count() as i32;
    let width = SIZE.0;
    let height = 40 + all.len() as i32 * ROW + groups * GAP + 8;
    let highest = all.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let per_unit = f64::from(width as i32 - LEFT - 70) / highest;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (width, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(wrong)?;
        let draw = |what: &str, size, at| {
            area.draw(&Text::new(what.to_owned(), at, ("sans-serif", size))).map_err(wrong)
        };
        draw(title, 14, (8, 10))?;
        let (mut y, mut group) = (40, all.first().map(|bar| bar.group));
        for bar in all {
            if group.replace(bar.group) != Some(bar.group) {
                y += GAP;
            }
            let right = LEFT + (bar.value * per_unit) as i32;
            let colour = COLOURS[bar.group % COLOURS.len()].filled();
            let corners = [(LEFT, y), (right, y + ROW - 4)];
            area.draw(&Rectangle::new(corners, colour)).map_err(wrong)?;
            draw(&bar.name, 12, (8, y + 1))?;
            draw(&format!("{:.2}", bar.value), 12, (right + 6, y + 1))?;
            y += ROW;
        }
        area.present().map_err(wrong)?;
    }
    Ok(text)
}
