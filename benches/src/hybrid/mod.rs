//! A day on a simulated rack: loads that change, over each backend and over connections that move among them.
//!
//! An oracle that knows the future would give each phase of the day its best backend. How close connections that move come to it, and how
//! much they are ahead of the best single backend, is what this measures.

mod client;
mod day;
mod report;
mod run;

pub use day::{Day, Kind, Phase, day};
pub use report::Report;
pub use run::{Options, PhaseRun, Run, run};

use anyhow::Result;

/// The backends that a connection moves among on a rack.
pub const BACKENDS: [&str; 5] = ["write_imm", "datagram", "send_recv", "rfp", "scale"];

/// Spends the day over each of these backends, and over connections that move. `each` is told what ended.
///
/// # Errors
/// A client could not connect, or a call has failed.
pub fn compare(
    options: &Options,
    day: &Day,
    backends: &[&str],
    mut each: impl FnMut(&str, &Run),
) -> Result<Report> {
    let mut of = |backend: &str| -> Result<Run> {
        let run = run(options, day, backend)?;
        each(backend, &run);
        Ok(run)
    };
    let fixed = backends.iter().map(|backend| Ok(((*backend).to_owned(), of(backend)?)));
    let fixed = fixed.collect::<Result<Vec<_>>>()?;
    Ok(Report { day: day.clone(), fixed, moving: of("hybrid")? })
}
