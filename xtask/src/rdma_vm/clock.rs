//! The rate of the processor's time stamp counter, which the virtual machine uses too.
//!
//! Its kernel would measure the rate against an emulated timer. On a busy computer, the result is wrong by a
//! factor of two or more, and so are all timeouts of the machine.

use std::thread;
use std::time::{Duration, Instant};

use quanta::Clock;

/// The time between the two readings of a measurement.
const INTERVAL: Duration = Duration::from_millis(50);

/// The number of readings, of which the least disturbed is used.
const TRIES: usize = 100;

/// Without a counter, nanoseconds are counted instead.
const KILOHERTZ_OF_NANOSECONDS: std::ops::RangeInclusive<u64> = 999_000..=1_001_000;

/// The counter's rate in kilohertz, if it is known.
pub(crate) fn counter_khz() -> Option<u64> {
    let clock = Clock::new();
    let (before, first) = read(&clock)?;
    thread::sleep(INTERVAL);
    let (after, second) = read(&clock)?;
    let ticks = u128::from(second.checked_sub(first)?);
    let khz = u64::try_from(ticks * 1_000_000 / after.duration_since(before).as_nanos()).ok()?;
    (!KILOHERTZ_OF_NANOSECONDS.contains(&khz)).then_some(khz)
}

/// Reads time and counter as simultaneously as possible.
fn read(clock: &Clock) -> Option<(Instant, u64)> {
    let tries = (0..TRIES).map(|_| {
        let before = Instant::now();
        let ticks = clock.raw();
        (before.elapsed(), before, ticks)
    });
    let (_, time, ticks) = tries.min_by_key(|(took, ..)| *took)?;
    Some((time, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        // Within what the kernel accepts between its early rate and its refined one.
        let (Some(one), Some(other)) = (counter_khz(), counter_khz()) else { return };
        assert!(one.abs_diff(other) <= one / 100, "{one} kHz and {other} kHz");
    }
}
