//! Runs the ends of a case: each in a thread of its own, or both in turn in one thread.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::case::Case;
use crate::end::End;
use crate::verdict::{CaseResult, Verdict};

async fn play(case: &Case, mut end: End) -> CaseResult {
    (case.body)(&mut end).await
}

/// Runs one end on the calling thread, which sleeps or yields while it waits.
pub fn run_end(case: &Case, end: End) -> Verdict {
    guarded(|| {
        let mut playing = pin!(play(case, end));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match playing.as_mut().poll(&mut context) {
                Poll::Ready(result) => return Verdict::from(result),
                Poll::Pending => std::thread::yield_now(),
            }
        }
    })
}

/// Runs both ends in turn on the calling thread. `between` runs when both have given up their
/// turn: a device in virtual time moves its clock there. Its `false` ends a case that is stuck.
pub fn run_in_turn(
    case: &Case,
    initiator: End,
    target: End,
    between: impl FnMut() -> bool,
) -> Verdict {
    run_in_turn_until_killed(case, initiator, target, between, || false)
}

/// The same where the initiator can kill the target, as `killed` reports: the target is dropped where it
/// stands, and the verdict is the initiator's.
pub fn run_in_turn_until_killed(
    case: &Case,
    initiator: End,
    target: End,
    mut between: impl FnMut() -> bool,
    killed: impl Fn() -> bool,
) -> Verdict {
    guarded(|| {
        let mut initiator = pin!(play(case, initiator));
        let mut target = Box::pin(Some(play(case, target)));
        let mut context = Context::from_waker(Waker::noop());
        let (mut first, mut second) = (None, None);
        loop {
            if first.is_none()
                && let Poll::Ready(result) = initiator.as_mut().poll(&mut context)
            {
                first = Some(Verdict::from(result));
            }
            if killed() {
                target.set(None);
                second.get_or_insert(Verdict::Passed);
            }
            if second.is_none()
                && let Some(target) = target.as_mut().as_pin_mut()
                && let Poll::Ready(result) = target.poll(&mut context)
            {
                second = Some(Verdict::from(result));
            }
            if let (Some(first), Some(second)) = (&first, &second) {
                return Verdict::of_both(first.clone(), second.clone());
            }
            if !between() {
                return Verdict::Failed("the case did not end in time".into());
            }
        }
    })
}

/// A panic of the device under test is a failed case, not a dead suite.
fn guarded(run: impl FnOnce() -> Verdict) -> Verdict {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Verdict::Failed(format!("panicked: {text}"))
    })
}
