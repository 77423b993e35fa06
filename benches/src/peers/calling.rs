//! Calls of async clients, whichever library they are of.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;

use super::SIZE;
use crate::clock::Clock;
use crate::echo::load::Totals;

/// With many outstanding calls, one in this many is timed, as in the other benchmarks.
const TIMED_EACH: u64 = 16;

/// The first calls of a turn, which wake up the server, are not counted.
pub(super) const UNCOUNTED: Duration = Duration::from_millis(1);

/// The argument of each call.
pub(super) const DATA: [u8; SIZE] = {
    let mut data = [0; SIZE];
    let mut at = 0;
    while at < SIZE {
        data[at] = at as u8;
        at += 1;
    }
    data
};

/// Keeps `window` calls outstanding for about `time`: so many loops, each of which awaits one call after the other.
pub(super) async fn call_for<F, A>(
    window: usize,
    time: Duration,
    clock: &Clock,
    totals: &mut Totals,
    call: F,
) -> Result<()>
where
    F: Fn() -> A,
    A: Future<Output = Result<[u8; SIZE]>>,
{
    let (begin, end) = (clock.stamp(), clock.after(time));
    let shared = RefCell::new(&mut *totals);
    let one_by_one = || async {
        for number in 0u64.. {
            let is_timed = window == 1 || number.is_multiple_of(TIMED_EACH);
            let before = clock.stamp();
            let output = call().await?;
            let after = clock.stamp();
            ensure!(output == DATA, "an answer differs from what was sent");
            let mut totals = shared.borrow_mut();
            totals.calls += 1;
            if is_timed {
                totals.latency.record(clock.nanos_between(before, after));
            }
            if after >= end {
                break;
            }
        }
        Ok(())
    };
    try_join_all((0..window).map(|_| one_by_one())).await?;
    totals.nanos += clock.nanos_between(begin, clock.stamp());
    Ok(())
}
