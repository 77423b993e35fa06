//! A comparison as two short tables: rates and medians, relative to the first backend of the same cell.

use std::fmt::Write;

use super::report::{Cell, CompareReport, Run};

/// A quantity of a run.
struct Quantity {
    name: &'static str,
    unit: &'static str,
    of: fn(&Run) -> f64,
}

const QUANTITIES: [Quantity; 2] = [
    Quantity { name: "rate", unit: "k calls/s", of: |run| run.rate / 1e3 },
    Quantity { name: "median", unit: "us", of: |run| run.p50_ns as f64 / 1e3 },
];

impl CompareReport {
    /// Formats the rates and the medians as two Markdown tables with a row for each cell. The column of the first backend has
    /// them in their units, the other columns have ratios to it.
    pub fn ratios(&self) -> String {
        let Some(first) = self.cells.first() else { return String::new() };
        let tables = QUANTITIES.iter().map(|quantity| self.table_of(quantity, first));
        tables.collect::<Vec<_>>().join("\n")
    }

    fn table_of(&self, quantity: &Quantity, first: &Cell) -> String {
        let Quantity { name, unit, of } = quantity;
        let mut text = format!("| {name} |");
        // Writing to a String cannot fail.
        for (column, run) in first.runs.iter().enumerate() {
            let _ = match column {
                0 => write!(text, " `{}`, {unit} |", run.backend),
                _ => write!(text, " `{}` |", run.backend),
            };
        }
        let _ = write!(text, "\n|---|{}\n", "---|".repeat(first.runs.len()));
        for (row, cell) in self.cells.iter().enumerate() {
            let name = if row == 0 { cell.name() } else { cell.name_beside(first) };
            let _ = write!(text, "| {name} |");
            let value = |run: &Run| run.failure.is_none().then(|| of(run));
            let of_first = cell.runs.first().and_then(value);
            for (column, run) in cell.runs.iter().enumerate() {
                let _ = match (column, value(run), of_first) {
                    (0, Some(value), _) => write!(text, " {value:.2} |"),
                    (_, Some(value), Some(first)) => {
                        write!(text, " {:.2} |", value / first.max(f64::MIN_POSITIVE))
                    }
                    _ => write!(text, " failed |"),
                };
            }
            text.push('\n');
        }
        text
    }
}

impl Cell {
    /// What it measured.
    fn name(&self) -> String {
        self.parts().join(", ")
    }

    /// In what it differs from the first cell.
    fn name_beside(&self, first: &Cell) -> String {
        let pairs = self.parts().into_iter().zip(first.parts());
        let differing = pairs.filter(|(part, other)| part != other).map(|(part, _)| part);
        differing.collect::<Vec<_>>().join(", ")
    }

    fn parts(&self) -> [String; 3] {
        let plural = if self.clients == 1 { "" } else { "s" };
        [
            format!("{} client{plural}", self.clients),
            format!("{} B", self.size),
            format!("window {}", self.window),
        ]
    }
}
