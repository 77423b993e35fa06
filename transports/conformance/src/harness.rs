//! Runs the suite on several fixtures as one test binary, under the arguments of `cargo test`.

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{
    fixture::Fixture,
    list::cases_of,
    runner::{Outcome, run},
    service::silence_requested_panics,
};

/// The cases of a test binary: those of the suite, once for each fixture.
#[derive(Default)]
pub struct Harness {
    trials: Vec<Trial>,
}

impl Harness {
    /// No cases yet.
    pub fn new() -> Harness {
        Harness::default()
    }

    /// Adds the suite on this fixture; its cases are called `prefix::group::case`.
    pub fn suite(mut self, prefix: &str, fixture: Arc<dyn Fixture>) -> Harness {
        for case in cases_of(fixture.backend()) {
            let fixture = Arc::clone(&fixture);
            let name = format!("{prefix}::{}", case.name);
            self.trials.push(Trial::ignorable_test(name, move || match run(&fixture, case) {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                failed => Err(Failed::from(failed)),
            }));
        }
        self
    }

    /// Runs what the command line asks for.
    pub fn run(self) -> ExitCode {
        let arguments = Arguments::from_args();
        silence_requested_panics();
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}
