//! The errors of all configurations, as text for a terminal and for the book.

use std::fmt::Write;

use super::Simulated;
use super::configuration::{Configuration, MeasuredNic, Operation};

/// The errors of some configurations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// The number of configurations.
    pub count: usize,
    /// The median of the absolute errors.
    pub median: f64,
    /// The largest absolute error.
    pub worst: f64,
    /// The share of configurations with an error of at most 15 %.
    pub near: f64,
}

/// The error within which nine configurations in ten should be.
const NEAR: f64 = 0.15;

impl Errors {
    /// The errors of the configurations that satisfy `which`; `None` if there are none.
    pub fn of(all: &[Simulated], which: impl Fn(&Configuration) -> bool) -> Option<Errors> {
        let chosen = all.iter().filter(|simulated| which(&simulated.configuration));
        let mut errors: Vec<f64> = chosen.map(|simulated| simulated.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        let near = errors.iter().filter(|error| **error <= NEAR).count();
        Some(Errors {
            count: errors.len(),
            median: *errors.get(errors.len() / 2)?,
            worst: *errors.last()?,
            near: near as f64 / errors.len() as f64,
        })
    }
}

type Group = (&'static str, fn(&Configuration) -> bool);

const GROUPS: [Group; 7] = [
    ("all", |_| true),
    ("fitted", |one| one.fitted),
    ("tried", |one| !one.fitted),
    ("Connect-IB, fitted", |one| one.nic == MeasuredNic::ConnectIb && one.fitted),
    ("Connect-IB, tried", |one| one.nic == MeasuredNic::ConnectIb && !one.fitted),
    ("ConnectX-3, fitted", |one| one.nic == MeasuredNic::ConnectX3 && one.fitted),
    ("ConnectX-3, tried", |one| one.nic == MeasuredNic::ConnectX3 && !one.fitted),
];

/// The errors by NIC and by use, as a table in Markdown.
pub fn summary(all: &[Simulated]) -> String {
    let mut text = String::from(
        "| configurations | number | median error | worst | within 15 % |\n|---|---|---|---|---|\n",
    );
    for (name, which) in GROUPS {
        let Some(Errors { count, median, worst, near }) = Errors::of(all, which) else { continue };
        let _ = writeln!(
            text,
            "| {name} | {count} | {:.1} % | {:.0} % | {:.0} % |",
            100.0 * median,
            100.0 * worst,
            100.0 * near,
        );
    }
    text
}

/// All configurations, as a table in Markdown.
pub fn table(all: &[Simulated]) -> String {
    let mut text = String::from(
        "| NIC | operation | B | machines | nodes | threads | window | signaled | measured, M/s | simulated | error | |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for simulated in all {
        let Configuration {
            nic,
            operation,
            bytes,
            machines,
            emulated_nodes,
            threads,
            window,
            signal_every,
            measured,
            fitted,
        } = simulated.configuration;
        let nic = match nic {
            MeasuredNic::ConnectX3 => "ConnectX-3",
            MeasuredNic::ConnectIb => "Connect-IB",
        };
        let operation = match operation {
            Operation::Read => "READ",
            Operation::Write => "WRITE, RC",
            Operation::WriteUnreliable => "WRITE, UC",
        };
        let signaled = match signal_every {
            1 => "all".to_owned(),
            every => format!("1 in {every}"),
        };
        let _ = writeln!(
            text,
            "| {nic} | {operation} | {bytes} | {machines} | {emulated_nodes} | {threads} | {window} | {signaled} | \
             {measured:.2} | {:.2} | {:+.0} % | {} |",
            simulated.rate,
            100.0 * simulated.error(),
            if fitted { "" } else { "tried" },
        );
    }
    text
}

const ABOUT: &str = "\
# Figures: one-sided operations, by configuration

FaSST's authors (Kalia, Kaminsky, Andersen, OSDI 2016) measured READs and WRITEs among 6 and 11 machines that all send and serve at \
once, with different sizes, numbers of nodes, threads, windows and shares of signaled operations. These are their raw measurements. \
The simulation runs their program:

- A thread has a queue pair to the thread of the same number on each other machine, once per emulated node on it.
- For each operation it picks a queue pair at random and a random remote address, and rings a doorbell for it alone.
- Before it uses a place of its window again, it waits for that place's operation, which is the oldest. For a READ it polls the \
memory where the bytes land. If all operations are signaled, it also polls the queue pair's own completion queue.
- *1 in n*: on each queue pair, one operation in n is signaled, and the thread waits for the completion of the one signaled before. \
WRITEs are inline; if not all are signaled, this alone bounds them.

A hash of each line of the file says how it was used: constants were fitted to half of the configurations, and *tried* on the others. \
`farcall-bench sim measured` runs all of them, `--one-in 10` a tenth. `farcall-bench sim all --book book/src` generates this page.

";

/// The book's page.
pub fn page(all: &[Simulated]) -> String {
    format!("{ABOUT}{}\n{}", summary(all), table(all))
}
