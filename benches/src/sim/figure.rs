//! Published figures and their simulation.

use std::fmt::Write;

use anyhow::Result;

/// How a point was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Constants were fitted to it.
    Fitted,
    /// No constant was fitted to it: it validates the model.
    HeldOut,
    /// Not reproduced, for the reason in the figure's notes.
    Missed,
}

impl Use {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Use::Fitted => "",
            Use::HeldOut => "held out",
            Use::Missed => "not met",
        }
    }
}

/// A published value, and its simulation.
pub struct Point {
    /// Its position on the horizontal axis.
    pub x: f64,
    /// The published value.
    pub published: f64,
    /// How it was used.
    pub used: Use,
    /// Simulates the value.
    pub run: Box<dyn Fn() -> Result<f64> + Send + Sync>,
}

/// The points of one line, or of one group of bars.
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// Its points, by x.
    pub points: Vec<Point>,
}

/// The kind of the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Numbers.
    Linear,
    /// Numbers on a logarithmic scale.
    Logarithmic,
    /// Bars, one per name: x is the index of the name.
    Names(&'static [&'static str]),
}

/// A figure or table of a paper.
pub struct Figure {
    /// Its name for `farcall-bench sim`.
    pub name: &'static str,
    /// What was measured, and on which NIC.
    pub title: &'static str,
    /// The paper, and its figure or section.
    pub source: &'static str,
    /// The label of the horizontal axis, with its unit.
    pub x_label: &'static str,
    /// The label of the vertical axis.
    pub y_label: &'static str,
    /// The kind of the horizontal axis.
    pub axis: Axis,
    /// The setup, and remarks.
    pub notes: &'static str,
    /// Its lines, or groups of bars.
    pub series: Vec<Series>,
}

/// A simulated point.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Its position on the horizontal axis.
    pub x: f64,
    /// The published value.
    pub published: f64,
    /// The simulated value.
    pub simulated: f64,
    /// How the point was used.
    pub used: Use,
}

impl Outcome {
    /// The relative error of the simulated value.
    pub fn error(&self) -> f64 {
        self.simulated / self.published - 1.0
    }
}

/// A simulated figure.
pub struct Drawn<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// Its lines, by name.
    pub series: Vec<(&'static str, Vec<Outcome>)>,
}

impl Series {
    /// A line through published points; `run` simulates the one at x.
    pub fn new(
        name: &'static str,
        points: &[(f64, f64)],
        run: impl Fn(f64) -> Result<f64> + Clone + Send + Sync + 'static,
    ) -> Series {
        let point = |&(x, published): &(f64, f64)| {
            let run = run.clone();
            Point { x, published, used: Use::Fitted, run: Box::new(move || run(x)) }
        };
        Series { name, points: points.iter().map(point).collect() }
    }

    /// Marks all points as held out: no constant was fitted to them.
    pub fn held_out(self) -> Series {
        self.used(Use::HeldOut, |_| true)
    }

    /// Marks the points at these x as held out.
    pub fn held_out_at(self, at: &[f64]) -> Series {
        let at = at.to_vec();
        self.used(Use::HeldOut, move |x| at.contains(&x))
    }

    /// Marks the series as not reproduced; the figure's notes say why.
    pub fn missed(self) -> Series {
        self.used(Use::Missed, |_| true)
    }

    /// Marks the points at these x as not reproduced; the figure's notes say why.
    pub fn missed_at(self, at: &[f64]) -> Series {
        let at = at.to_vec();
        self.used(Use::Missed, move |x| at.contains(&x))
    }

    fn used(mut self, used: Use, which: impl Fn(f64) -> bool) -> Series {
        for point in self.points.iter_mut().filter(|point| which(point.x)) {
            point.used = used;
        }
        self
    }
}

impl Figure {
    /// Simulates all its points.
    pub fn draw(&self) -> Result<Drawn<'_>> {
        self.draw_where(|_| true)
    }

    /// Simulates the points whose index within their series satisfies `which`.
    pub fn draw_where(&self, which: impl Fn(usize) -> bool) -> Result<Drawn<'_>> {
        let mut series = Vec::new();
        for Series { name, points } in &self.series {
            let mut outcomes = Vec::new();
            for (_, point) in points.iter().enumerate().filter(|(index, _)| which(*index)) {
                let Point { x, published, used, ref run } = *point;
                outcomes.push(Outcome { x, published, simulated: run()?, used });
            }
            series.push((*name, outcomes));
        }
        Ok(Drawn { figure: self, series })
    }

    /// The text for x in a table.
    pub fn at(&self, x: f64) -> String {
        match self.axis {
            Axis::Names(names) => names.get(x as usize).unwrap_or(&"").to_string(),
            _ => format!("{x}"),
        }
    }
}

impl Drawn<'_> {
    /// All points.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.series.iter().flat_map(|(_, outcomes)| outcomes)
    }

    /// Formats the table for a terminal.
    pub fn table(&self) -> String {
        let figure = self.figure;
        let mut text = format!("{}: {}\n{}\n", figure.name, figure.title, figure.source);
        let width = self.series.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(8);
        let _ = writeln!(
            text,
            "{:width$}  {:>22}  {:>10}  {:>10}  {:>7}",
            "", figure.x_label, "published", "simulated", "error"
        );
        for (name, outcomes) in &self.series {
            for outcome in outcomes {
                let Outcome { x, published, simulated, used } = *outcome;
                let _ = writeln!(
                    text,
                    "{name:width$}  {:>22}  {published:>10.2}  {simulated:>10.2}  {:>6.1}%  {}",
                    figure.at(x),
                    100.0 * outcome.error(),
                    used.name(),
                );
            }
        }
        text
    }
}

/// The median and the largest of the absolute errors.
pub fn median_and_worst<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> (f64, f64) {
    let mut errors: Vec<f64> = outcomes.map(|outcome| outcome.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors.get(errors.len() / 2).copied().unwrap_or(0.0);
    (median, errors.last().copied().unwrap_or(0.0))
}
