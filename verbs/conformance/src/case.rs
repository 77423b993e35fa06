//! A case, and ways to run one or all.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use farcall_verbs::OpenError;

use crate::end::End;
use crate::fixture::Fixture;
use crate::list::cases;
use crate::need::{Need, Offer};
use crate::verdict::{CaseResult, Verdict};

/// Both halves of a case: the same function plays either, by its end's role.
pub type Body = for<'a> fn(&'a mut End) -> Pin<Box<dyn Future<Output = CaseResult> + 'a>>;

/// One rule that a device must keep.
#[derive(Clone, Copy)]
pub struct Case {
    /// Group and rule, as `receiving::a_send_waits_for_a_receive`.
    pub name: &'static str,
    /// What it needs.
    pub needs: &'static [Need],
    /// What both ends do.
    pub body: Body,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish()
    }
}

/// The case of that name.
pub fn find(name: &str) -> Option<Case> {
    cases().iter().find(|case| case.name == name).copied()
}

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The device did what it must.
    Passed,
    /// The case does not apply, for that reason; it did not run.
    Ignored(String),
    /// The device broke a rule.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("passed"),
            Outcome::Ignored(reason) => write!(f, "ignored: {reason}"),
            Outcome::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Outcome {
        match verdict {
            Verdict::Passed => Outcome::Passed,
            failed => Outcome::Failed(failed.to_string()),
        }
    }
}

/// Which cases apply to a fixture.
#[derive(Debug)]
pub struct Applicability {
    offer: Result<Offer, OpenError>,
}

impl Applicability {
    /// Asks the fixture, which opens its device.
    pub fn of(fixture: &dyn Fixture) -> Applicability {
        Applicability { offer: fixture.offer() }
    }

    /// Why the case does not apply, if it does not. All cases apply to a device that cannot be opened, and fail.
    pub fn ignored(&self, fixture: &dyn Fixture, case: &Case) -> Option<String> {
        let offer = self.offer.as_ref().ok()?;
        let exception = fixture.exception(case).map(|reason| format!("left out: {reason}"));
        exception.or_else(|| case.needs.iter().find_map(|need| need.missing(offer)))
    }

    /// Runs the case, unless it does not apply.
    pub fn run(&self, fixture: &dyn Fixture, case: &Case) -> Outcome {
        match (&self.offer, self.ignored(fixture, case)) {
            (Err(error), _) => Outcome::Failed(format!("cannot open {}: {error}", fixture.name())),
            (Ok(_), Some(reason)) => Outcome::Ignored(reason),
            (Ok(_), None) => fixture.run(case).into(),
        }
    }
}

/// How many cases ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Passed.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
    /// Did not apply.
    pub ignored: usize,
}

impl Tally {
    /// Counts one more case.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Ignored(_) => self.ignored += 1,
            Outcome::Failed(_) => self.failed += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { passed, failed, ignored } = self;
        write!(f, "{passed} passed, {failed} failed, {ignored} ignored")
    }
}

/// Runs every case whose name contains `filter`, one after the other.
pub fn run_all(
    fixture: &dyn Fixture,
    filter: &str,
    mut report: impl FnMut(&Case, &Outcome),
) -> Tally {
    let applicability = Applicability::of(fixture);
    let mut tally = Tally::default();
    for case in cases().iter().filter(|case| case.name.contains(filter)) {
        let outcome = applicability.run(fixture, case);
        report(case, &outcome);
        tally.add(&outcome);
    }
    tally
}
