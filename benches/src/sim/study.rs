//! Studies of our own backends on the simulated rack, for which nothing is published: a table, a picture, and
//! goals.

use anyhow::Result;

/// A study.
pub struct Study {
    /// Its name for `farcall-bench sim`.
    pub name: &'static str,
    /// What it measures.
    pub title: &'static str,
    /// The setup, and remarks.
    pub notes: &'static str,
    /// Runs the study.
    pub run: fn() -> Result<Studied>,
}

/// The results of a study.
pub struct Studied {
    pub(crate) header: &'static [&'static str],
    pub(crate) rows: Vec<Vec<String>>,
    /// The picture as SVG.
    pub picture: String,
    /// The goals.
    pub goals: Vec<Goal>,
}

/// A goal of a study.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The measured quantity.
    pub what: &'static str,
    /// The measured value.
    pub value: f64,
    /// The wanted bound.
    pub bound: Bound,
}

/// A lower or upper bound.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
}

impl Goal {
    pub(crate) fn at_least(what: &'static str, value: f64, bound: f64) -> Goal {
        Goal { what, value, bound: Bound::AtLeast(bound) }
    }

    pub(crate) fn at_most(what: &'static str, value: f64, bound: f64) -> Goal {
        Goal { what, value, bound: Bound::AtMost(bound) }
    }

    /// Whether the goal is met.
    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.value >= least,
            Bound::AtMost(most) => self.value <= most,
        }
    }

    /// The goal as text.
    pub fn says(&self) -> String {
        let Goal { what, value, bound, .. } = self;
        let bound = match bound {
            Bound::AtLeast(least) => format!("at least {least}"),
            Bound::AtMost(most) => format!("at most {most}"),
        };
        let met = if self.is_met() { "met" } else { "not met" };
        format!("{what}: {value:.2}, wanted {bound}: {met}")
    }
}

/// A study with its results.
pub struct StudyResult<'a> {
    /// The study.
    pub study: &'a Study,
    /// The results.
    pub studied: Studied,
}

impl Study {
    /// Runs the study.
    pub fn evaluate(&self) -> Result<StudyResult<'_>> {
        Ok(StudyResult { study: self, studied: (self.run)()? })
    }
}

impl StudyResult<'_> {
    /// Formats the table, which is also valid Markdown.
    pub fn table(&self) -> String {
        let Studied { header, rows, .. } = &self.studied;
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(String::len);
            cells.chain([header[column].len()]).max().unwrap_or(0)
        };
        let line = |cells: &mut dyn Iterator<Item = (usize, String)>| {
            let cells: Vec<_> =
                cells.map(|(column, cell)| format!("{cell:>0$}", width(column))).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = line(&mut header.iter().map(|cell| cell.to_string()).enumerate());
        text += &line(&mut (0..header.len()).map(|column| (column, "-".repeat(width(column)))));
        for row in rows {
            text += &line(&mut row.iter().cloned().enumerate());
        }
        text
    }

    /// Formats the goals, one per line.
    pub fn goals(&self) -> String {
        self.studied.goals.iter().map(|goal| format!("- {}\n", goal.says())).collect()
    }
}
