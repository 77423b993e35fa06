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
    pub fn suite(self, prefix: &str, fixture: Arc<dyn Fixture>) -> Harness {
        self.suite_unless(None, prefix, fixture)
    }

    /// Adds the suite, whose cases are ignored for that reason if there is one.
    pub fn suite_unless(
        mut self,
        missing: Option<&'static str>,
        prefix: &str,
        fixture: Arc<dyn Fixture>,
    ) -> Harness {
        for case in cases_of(fixture.backend()) {
            let fixture = Arc::clone(&fixture);
            let name = format!("{prefix}::{}", case.name);
            self.trials.push(Trial::ignorable_test(name, move || {
                match missing.map_or_else(|| run(&fixture, case), Outcome::Ignored) {
                    Outcome::Passed => Ok(Completion::Completed),
                    Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                    failed => Err(Failed::from(failed)),
                }
            }));
        }
        self
    }

    /// Adds a test that is ignored for that reason if there is one; it panics if it fails.
    pub fn test(
        mut self,
        missing: Option<&'static str>,
        name: impl Into<String>,
        test: impl FnOnce() + Send + 'static,
    ) -> Harness {
        self.trials.push(Trial::ignorable_test(name, move || {
            Ok(match missing {
                Some(reason) => Completion::ignored_with(reason),
                None => {
                    test();
                    Completion::Completed
                }
            })
        }));
        self
    }

    /// Runs what the command line asks for.
    pub fn run(self) -> ExitCode {
        let arguments = Arguments::from_args();
        silence_requested_panics();
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}
