//! The rate of the processor's time stamp counter, which is the virtual machine's too.
//!
//! Its kernel would measure it against an emulated timer. Where the computer is busy that goes wrong by a factor of
//! two and more, and all of the machine's timeouts with it.

use std::thread;
use std::time::{Duration, Instant};

use quanta::Clock;

/// Between the two readings that make a rate.
const INTERVAL: Duration = Duration::from_millis(50);

/// Readings of which the one that was disturbed least is taken.
const TRIES: usize = 100;

/// Where there is no counter to read, nanoseconds are counted instead.
const KILOHERTZ_OF_NANOSECONDS: std::ops::RangeInclusive<u64> = 999_000..=1_001_000;

/// Kilohertz of the counter, where it can be told.
pub(crate) fn counter_khz() -> Option<u64> {
    let clock = Clock::new();
    let (before, first) = read(&clock)?;
    thread::sleep(INTERVAL);
    let (after, second) = read(&clock)?;
    let ticks = u128::from(second.checked_sub(first)?);
    let khz = u64::try_from(ticks * 1_000_000 / after.duration_since(before).as_nanos()).ok()?;
    (!KILOHERTZ_OF_NANOSECONDS.contains(&khz)).then_some(khz)
}

/// Time and counter, as near to each other as can be had.
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
        // Within what the kernel accepts between an early rate and a refined one.
        let (Some(one), Some(other)) = (counter_khz(), counter_khz()) else { return };
        assert!(one.abs_diff(other) <= one / 100, "{one} kHz and {other} kHz");
    }
}
