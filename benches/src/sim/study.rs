//! What is asked of our own backends on the simulated rack, where nothing is published: a table, a picture, and goals.

use anyhow::Result;

/// A question.
pub struct Study {
    /// What `farcall-bench sim` calls it.
    pub name: &'static str,
    /// What is asked.
    pub title: &'static str,
    /// How it was run, and what is to be said of it.
    pub notes: &'static str,
    /// Answers it.
    pub run: fn() -> Result<Studied>,
}

/// An answer.
pub struct Studied {
    pub(crate) header: &'static [&'static str],
    pub(crate) rows: Vec<Vec<String>>,
    /// As SVG.
    pub picture: String,
    /// What was to be reached.
    pub goals: Vec<Goal>,
}

/// What was to be reached.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// What of it.
    pub what: &'static str,
    /// What it is.
    pub value: f64,
    /// What it should be.
    pub bound: Bound,
}

/// A least or a most.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// As much as this, or more.
    AtLeast(f64),
    /// As much as this, or less.
    AtMost(f64),
}

impl Goal {
    pub(crate) fn at_least(what: &'static str, value: f64, bound: f64) -> Goal {
        Goal { what, value, bound: Bound::AtLeast(bound) }
    }

    pub(crate) fn at_most(what: &'static str, value: f64, bound: f64) -> Goal {
        Goal { what, value, bound: Bound::AtMost(bound) }
    }

    /// Whether it was reached.
    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.value >= least,
            Bound::AtMost(most) => self.value <= most,
        }
    }

    /// In words.
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

/// A question that was answered.
pub struct Told<'a> {
    /// What was asked.
    pub study: &'a Study,
    /// What came of it.
    pub studied: Studied,
}

impl Study {
    /// Runs it.
    pub fn tell(&self) -> Result<Told<'_>> {
        Ok(Told { study: self, studied: (self.run)()? })
    }
}

impl Told<'_> {
    /// The table, as both people and Markdown read it.
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

    /// The goals, a line each.
    pub fn goals(&self) -> String {
        self.studied.goals.iter().map(|goal| format!("- {}\n", goal.says())).collect()
    }
}
