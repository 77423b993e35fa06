//! A published figure beside what the simulated rack makes of it.

use std::fmt::Write;

use anyhow::Result;

/// Who says what a point was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Constants were chosen with it in sight.
    Fitted,
    /// No constant was chosen by it: the model was tried on it.
    HeldOut,
    /// Not met, for the reason that the figure's notes give.
    Missed,
}

impl Use {
    /// What tables say.
    pub fn name(self) -> &'static str {
        match self {
            Use::Fitted => "",
            Use::HeldOut => "held out",
            Use::Missed => "not met",
        }
    }
}

/// One published value, and how to simulate it.
pub struct Point {
    /// Where it lies.
    pub x: f64,
    /// What was published.
    pub published: f64,
    /// Whether the model was made with it in sight.
    pub used: Use,
    /// Simulates it.
    pub run: Box<dyn Fn() -> Result<f64> + Send + Sync>,
}

/// Points of one line, or of one group of bars.
pub struct Series {
    /// What it is called.
    pub name: &'static str,
    /// Its points, by x.
    pub points: Vec<Point>,
}

/// What the horizontal axis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Numbers.
    Linear,
    /// Numbers, each so many times the one before.
    Logarithmic,
    /// Bars, one for each name: x is its number.
    Names(&'static [&'static str]),
}

/// A figure of a paper, or a table.
pub struct Figure {
    /// What `farcall-bench sim` calls it.
    pub name: &'static str,
    /// What was measured, on which NIC.
    pub title: &'static str,
    /// Paper, and figure or section.
    pub source: &'static str,
    /// What the horizontal axis is, with its unit.
    pub x_label: &'static str,
    /// What the vertical one is.
    pub y_label: &'static str,
    /// How the horizontal axis goes.
    pub axis: Axis,
    /// How it was run, and what is to be said of it.
    pub notes: &'static str,
    /// Its lines, or groups of bars.
    pub series: Vec<Series>,
}

/// A point that was simulated.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Where it lies.
    pub x: f64,
    /// What was published.
    pub published: f64,
    /// What the rack makes of it.
    pub simulated: f64,
    /// Whether the model was made with it in sight.
    pub used: Use,
}

impl Outcome {
    /// The simulated value's distance from the published one, as a part of that.
    pub fn error(&self) -> f64 {
        self.simulated / self.published - 1.0
    }
}

/// A figure that was simulated.
pub struct Drawn<'a> {
    /// What was drawn.
    pub figure: &'a Figure,
    /// Its lines, by name.
    pub series: Vec<(&'static str, Vec<Outcome>)>,
}

impl Series {
    /// A line through published points: `run` simulates the one at x.
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

    /// Says that no constant was chosen by these points.
    pub fn held_out(self) -> Series {
        self.used(Use::HeldOut, |_| true)
    }

    /// Says the same of the points at these x.
    pub fn held_out_at(self, at: &[f64]) -> Series {
        let at = at.to_vec();
        self.used(Use::HeldOut, move |x| at.contains(&x))
    }

    /// Says that the series is not met; the figure's notes say why.
    pub fn missed(self) -> Series {
        self.used(Use::Missed, |_| true)
    }

    /// Says that the points at these x are not met; the figure's notes say why.
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

    /// Simulates those points, of which only the number within their series counts.
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

    /// What stands for x in a table.
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

    /// The table, for a terminal.
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

/// The median and the worst of the errors, without their signs.
pub fn median_and_worst<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> (f64, f64) {
    let mut errors: Vec<f64> = outcomes.map(|outcome| outcome.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors.get(errors.len() / 2).copied().unwrap_or(0.0);
    (median, errors.last().copied().unwrap_or(0.0))
}
