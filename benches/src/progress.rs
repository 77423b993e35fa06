//! Progress of a long run on standard error: a bar on a terminal, otherwise a line per step.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the progress of a run.
pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { what: &'static str, total: u64 },
}

impl Progress {
    /// A run of `total` steps.
    pub(crate) fn new(what: &'static str, total: u64) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress::Lines { what, total };
        }
        let style = ProgressStyle::with_template("{prefix:>10} [{bar:32}] {pos}/{len}  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
        Progress::Bar(bar.with_prefix(what))
    }

    /// Sets the number of finished steps; `next` describes the next step.
    pub(crate) fn set(&mut self, done: u64, next: impl FnOnce() -> String) {
        match self {
            Progress::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(next());
            }
            Progress::Lines { what, total } => {
                eprintln!("{what}: {}/{total}  {}", done + 1, next())
            }
        }
    }

    /// Ends the progress output.
    pub(crate) fn finish(self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
