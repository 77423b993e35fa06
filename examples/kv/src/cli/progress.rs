//! Progress output on standard error: a bar on a terminal, otherwise a line from time to time.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The interval of lines if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows the progress of one piece of work.
pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { what: &'static str, total: Option<u64>, next: Instant },
}

impl Progress {
    /// Progress of `total` steps, if that is known.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        if !io::stderr().is_terminal() {
            return Progress::Lines { what, total, next: Instant::now() + LINE_EVERY };
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total)
                .with_style(style("{prefix:>12} [{bar:32}] {percent:>3}%  {msg}")),
            None => ProgressBar::no_length().with_style(style("{prefix:>12} {spinner}  {msg}")),
        };
        Progress::Bar(bar.with_prefix(what))
    }

    /// Sets the progress. `message` describes it, and is called only when it is shown.
    pub(crate) fn set(&mut self, done: u64, message: impl FnOnce() -> String) {
        match self {
            Progress::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(message());
            }
            Progress::Lines { what, total, next } => {
                if Instant::now() < *next {
                    return;
                }
                *next = Instant::now() + LINE_EVERY;
                let percent = match total {
                    Some(total) => format!("{:>3}%  ", done * 100 / (*total).max(1)),
                    None => String::new(),
                };
                eprintln!("{what:>12}  {percent}{}", message());
            }
        }
    }

    /// Ends the progress with a final message.
    pub(crate) fn finish(self, message: impl Into<Cow<'static, str>>) {
        let message = message.into();
        match self {
            Progress::Bar(bar) => {
                let prefix = bar.prefix();
                bar.finish_and_clear();
                eprintln!("{prefix:>12}  {message}");
            }
            Progress::Lines { what, .. } => eprintln!("{what:>12}  {message}"),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
