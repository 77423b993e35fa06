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

use crate::{
    backends, case::Case, fixture::Fixture, list::cases_of, patience::patient, world::World,
};

/// The longest that one case may take.
const CASE_BOUND: Duration = Duration::from_secs(240);

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The backend passed it.
    Passed,
    /// It does not apply here, for that reason; it did not run.
    Ignored(&'static str),
    /// The backend failed it, for that reason.
    Failed(String),
    /// It did not end in time.
    Hangs,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => write!(f, "ok"),
            Outcome::Ignored(reason) => write!(f, "ignored: {reason}"),
            Outcome::Failed(reason) => write!(f, "FAILED: {reason}"),
            Outcome::Hangs => write!(f, "HANGS: did not end within {:?}", patient(CASE_BOUND)),
        }
    }
}

/// Why the case does not apply to the fixture, if it does not.
pub fn ignored(fixture: &dyn Fixture, case: &Case) -> Option<&'static str> {
    let exceptions = backends::find(fixture.backend()).map_or(&[][..], |known| known.exceptions);
    let exception = exceptions.iter().find(|(name, _)| *name == case.name);
    let has = fixture.capabilities();
    exception
        .map(|(_, reason)| *reason)
        .or_else(|| case.needs.iter().find_map(|need| need.missing(&has)))
}

/// Runs one case, unless it does not apply.
pub fn run(fixture: &Arc<dyn Fixture>, case: &Case) -> Outcome {
    if let Some(reason) = ignored(&**fixture, case) {
        return Outcome::Ignored(reason);
    }
    let execute = {
        let fixture = Arc::clone(fixture);
        let case = *case;
        move || {
            let run = || {
                fixture.begin(&case);
                (case.run)(&World::new(&*fixture));
            };
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(()) => Outcome::Passed,
                Err(panic) => Outcome::Failed(panic_text(&*panic)),
            }
        }
    };
    if !fixture.capabilities().threads {
        return execute();
    }
    let (send, ended) = mpsc::channel();
    let thread = thread::Builder::new().name(case.name.to_owned());
    match thread.spawn(move || send.send(execute())) {
        Ok(_) => ended.recv_timeout(patient(CASE_BOUND)).unwrap_or(Outcome::Hangs),
        Err(error) => Outcome::Failed(format!("no thread for the case: {error}")),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "a panic without a message".to_owned(),
    }
}

/// How many cases ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Passed.
    pub passed: usize,
    /// Failed, or did not end in time.
    pub failed: usize,
    /// Did not apply.
    pub ignored: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)
    }
}

/// Runs every case whose name contains one of `filters`, or all if there are none, one after the other, and writes one
/// line for each.
pub fn run_all(fixture: &Arc<dyn Fixture>, filters: &[&str], mut out: impl Write) -> Tally {
    let mut tally = Tally::default();
    let wanted = |case: &&Case| {
        filters.is_empty() || filters.iter().any(|filter| case.name.contains(filter))
    };
    for case in cases_of(fixture.backend()).filter(wanted) {
        let start = Instant::now();
        let outcome = run(fixture, case);
        match outcome {
            Outcome::Passed => tally.passed += 1,
            Outcome::Ignored(_) => tally.ignored += 1,
            Outcome::Failed(_) | Outcome::Hangs => tally.failed += 1,
        }
        // A report that cannot be written changes no outcome.
        let _ = writeln!(out, "{}: {outcome} ({:.2?})", case.name, start.elapsed());
        let _ = out.flush();
    }
    tally
}
