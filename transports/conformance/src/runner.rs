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

use crate::{fixture::Fixture, list::CASES, patience::patient, world::World};

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
    /// Processes of servers that can be looked at and signalled: they run on this machine.
    OneMachine,
    /// Room for messages of 1 GiB.
    Gigabytes,
    /// The backend `write_imm`, at a place where the suite knows a way past its clients.
    WriteImm,
    /// The backend `write_imm`, at a place where the suite can be a false server.
    FalseServer,
    /// The backend `datagram`, at a place where the suite knows a way past its clients.
    Datagram,
    /// The backend `datagram`, at a place where the suite can be a false server.
    FalseDatagramServer,
}

impl Need {
    /// Why a case that needs it is skipped.
    fn lacking(self) -> &'static str {
        match self {
            Need::Nothing => "it needs nothing",
            Need::Threads => "it needs threads, and time that passes by itself",
            Need::Processes => "it needs processes that can be started and killed",
            Need::OneMachine => "it needs servers in processes of this machine",
            Need::Gigabytes => "it takes gigabytes; FARCALL_CONFORMANCE_GIGABYTES=1 lets it run",
            Need::WriteImm => "it knows its way only past clients of write_imm",
            Need::FalseServer => "it needs false servers of write_imm on this machine",
            Need::Datagram => "it knows its way only past clients of datagram",
            Need::FalseDatagramServer => "it needs false servers of datagram on this machine",
        }
    }
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
            Outcome::Skipped(need) => write!(f, "skipped: {}", need.lacking()),
            Outcome::Failed(why) => write!(f, "FAILED: {why}"),
            Outcome::Hangs => write!(f, "HANGS: not ended within {:?}", patient(CASE_BOUND)),
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
    let intrudes = |backend: &str| can.intruders && fixture.backend() == backend;
    let has = match case.need {
        Need::Nothing => true,
        Need::Threads => can.threads,
        Need::Processes => can.processes,
        Need::OneMachine => can.threads && can.processes && can.one_machine,
        Need::Gigabytes => can.gigabytes,
        Need::WriteImm => intrudes("write_imm"),
        Need::FalseServer => can.one_machine && intrudes("write_imm"),
        Need::Datagram => intrudes("datagram"),
        Need::FalseDatagramServer => can.one_machine && intrudes("datagram"),
    };
    if !has {
        return Outcome::Skipped(case.need);
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
                Err(panic) => Outcome::Failed(text(&*panic)),
            }
        }
    };
    if !can.threads {
        return execute();
    }
    let (send, ended) = mpsc::channel();
    let thread = thread::Builder::new().name(case.name.to_owned());
    match thread.spawn(move || send.send(execute())) {
        Ok(_) => ended.recv_timeout(patient(CASE_BOUND)).unwrap_or(Outcome::Hangs),
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

/// How many cases ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// They hold.
    pub passed: usize,
    /// They do not, or have not ended.
    pub failed: usize,
    /// The place does not have what they need.
    pub skipped: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs every case whose name contains one of `filters`, or all if there are none, one after the other, and writes one line
/// for each.
pub fn run_all(fixture: &Arc<dyn Fixture>, filters: &[&str], mut out: impl Write) -> Tally {
    let mut tally = Tally::default();
    let wanted = |case: &&Case| {
        filters.is_empty() || filters.iter().any(|filter| case.name.contains(filter))
    };
    for case in CASES.iter().filter(wanted) {
        let start = Instant::now();
        let outcome = run(fixture, case);
        match outcome {
            Outcome::Passed => tally.passed += 1,
            Outcome::Skipped(_) => tally.skipped += 1,
            Outcome::Failed(_) | Outcome::Hangs => tally.failed += 1,
        }
        // A report that cannot be written changes no outcome.
        let _ = writeln!(out, "{}: {outcome} ({:.2?})", case.name, start.elapsed());
        let _ = out.flush();
    }
    tally
}
