//! Runs the suite on several fixtures as one test binary, under the arguments of `cargo test`.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::case::{Applicability, Outcome};
use crate::fixture::Fixture;
use crate::list::cases;

/// The cases of a test binary: all of the suite, once for each fixture.
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
    pub fn suite(mut self, prefix: &str, fixture: impl Fixture + Send + Sync + 'static) -> Harness {
        let suite = Arc::new((Applicability::of(&fixture), fixture));
        for case in cases() {
            let suite = Arc::clone(&suite);
            let run = move || {
                let (applicability, fixture) = &*suite;
                match applicability.run(fixture, case) {
                    Outcome::Passed => Ok(Completion::Completed),
                    Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                    Outcome::Failed(reason) => Err(Failed::from(reason)),
                }
            };
            self.trials.push(Trial::ignorable_test(format!("{prefix}::{}", case.name), run));
        }
        self
    }

    /// Runs what the command line asks for.
    pub fn run(self) -> ExitCode {
        libtest_mimic::run(&Arguments::from_args(), self.trials).exit_code()
    }
}
