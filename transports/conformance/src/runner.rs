//! Runs one case, or all, each with a bound in time.

use std::{
    any::Any,
    fmt,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{fixture::Fixture, list::CASES, world::World};

/// The longest that one case may take, whatever it waits for.
const CASE_BOUND: Duration = Duration::from_secs(240);

/// What a case needs of the place where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing beyond the backend: one thread drives it.
    Nothing,
    /// Threads of its own, and time that passes by itself.
    Threads,
    /// Processes that can be started and killed.
    Processes,
    /// Room for messages of 1 GiB.
    Gigabytes,
    /// The backend `write_imm`, at a place where the suite knows a way past its clients and servers.
    WriteImm,
}

/// One thing that every backend must do.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `module::function`.
    pub name: &'static str,
    /// What it needs.
    pub need: Need,
    /// Fails by a panic.
    pub run: fn(&World<'_>),
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// The place does not have what it needs.
    Skipped(Need),
    /// It does not hold, for that reason.
    Failed(String),
    /// It has not ended in time.
    Hangs,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => write!(f, "ok"),
            Outcome::Skipped(need) => write!(f, "skipped: there is no {need:?} here"),
            Outcome::Failed(why) => write!(f, "FAILED: {why}"),
            Outcome::Hangs => write!(f, "HANGS: not ended within {CASE_BOUND:?}"),
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "a panic without a text".to_owned(),
    }
}

/// Runs one case.
pub fn run(fixture: &Arc<dyn Fixture>, case: &Case) -> Outcome {
    let can = fixture.capabilities();
    let has = match case.need {
        Need::Nothing => true,
        Need::Threads => can.threads,
        Need::Processes => can.processes,
        Need::Gigabytes => can.gigabytes,
        Need::WriteImm => can.intruders && fixture.backend() == "write_imm",
    };
    if !has {
        return Outcome::Skipped(case.need);
    }
    let execute = {
        let fixture = Arc::clone(fixture);
        let run = case.run;
        move || match catch_unwind(AssertUnwindSafe(|| run(&World::new(&*fixture)))) {
            Ok(()) => Outcome::Passed,
            Err(panic) => Outcome::Failed(text(&*panic)),
        }
    };
    if !can.threads {
        return execute();
    }
    let (send, ended) = mpsc::channel();
    let thread = thread::Builder::new().name(case.name.to_owned());
    match thread.spawn(move || send.send(execute())) {
        Ok(_) => ended.recv_timeout(CASE_BOUND).unwrap_or(Outcome::Hangs),
        Err(error) => Outcome::Failed(format!("no thread for the case: {error}")),
    }
}

/// Runs the case of that name as a test of the harness.
#[track_caller]
pub fn assert_passes(fixture: &Arc<dyn Fixture>, name: &str) {
    let Some(case) = CASES.iter().find(|case| case.name == name) else {
        panic!("there is no case {name:?}");
    };
    match run(fixture, case) {
        Outcome::Passed => {}
        skipped @ Outcome::Skipped(_) => println!("{name}: {skipped}"),
        failed => panic!("{name}: {failed}"),
    }
}

/// Runs every case whose name contains `filter`, one after the other, and writes one line for each; gives how many
/// did not hold.
pub fn run_all(fixture: &Arc<dyn Fixture>, filter: &str, mut out: impl Write) -> usize {
    let mut failures = 0;
    for case in CASES.iter().filter(|case| case.name.contains(filter)) {
        let start = Instant::now();
        let outcome = run(fixture, case);
        failures += usize::from(matches!(outcome, Outcome::Failed(_) | Outcome::Hangs));
        // A report that cannot be written changes no outcome.
        let _ = writeln!(out, "{}: {outcome} ({:.2?})", case.name, start.elapsed());
    }
    failures
}
