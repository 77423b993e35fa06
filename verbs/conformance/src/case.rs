//! A case, and ways to run one or all.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::end::End;
use crate::fixture::Fixture;
use crate::list::cases;
use crate::verdict::{CaseResult, Verdict};

/// Both halves of a case: the same function plays either, by its end's role.
pub type Body = for<'a> fn(&'a mut End) -> Pin<Box<dyn Future<Output = CaseResult> + 'a>>;

/// One rule that a device must keep.
#[derive(Clone, Copy)]
pub struct Case {
    /// Group and rule, as `receiving::a_send_waits_for_a_receive`.
    pub name: &'static str,
    /// What both ends do.
    pub body: Body,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// The case of that name.
pub fn find(name: &str) -> Option<Case> {
    cases().iter().find(|case| case.name == name).copied()
}

/// Plays one case for a test: panics if the device failed it.
///
/// # Panics
/// With the verdict, when it is a failure; and when there is no case of that name.
pub fn check(fixture: &impl Fixture, name: &str) {
    let case = find(name).unwrap_or_else(|| panic!("there is no case {name}"));
    match fixture.run(&case) {
        Verdict::Passed => {}
        Verdict::NotApplicable(why) => println!("not applicable on {}: {why}", fixture.name()),
        verdict @ (Verdict::Failed(_) | Verdict::PeerLeft(_)) => {
            panic!("{name} on {}: {verdict}", fixture.name())
        }
    }
}

/// How many cases ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases in which the device did what it must.
    pub passed: usize,
    /// Cases in which it did not.
    pub failed: usize,
    /// Cases about something that the device or the fixture does not offer.
    pub not_applicable: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { passed, failed, not_applicable } = self;
        write!(f, "{passed} passed, {failed} failed, {not_applicable} not applicable")
    }
}

/// Plays every case whose name contains `filter`, one after the other.
pub fn run_all(
    fixture: &dyn Fixture,
    filter: &str,
    mut report: impl FnMut(&Case, &Verdict),
) -> Tally {
    let mut tally = Tally::default();
    for case in cases().iter().filter(|case| case.name.contains(filter)) {
        let verdict = fixture.run(case);
        report(case, &verdict);
        match verdict {
            Verdict::Passed => tally.passed += 1,
            Verdict::NotApplicable(_) => tally.not_applicable += 1,
            Verdict::Failed(_) | Verdict::PeerLeft(_) => tally.failed += 1,
        }
    }
    tally
}
