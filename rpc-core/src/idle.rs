//! What a driver does when there is nothing to do: spin, then yield, then park.

use crate::time::{Instant, saturating_nanos};
use core::time::Duration;

/// How long an idle driver spins and yields before it parks.
///
/// Spinning gives the lowest latency and occupies a core. A parked thread needs no core, and takes some microseconds to
/// wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    spin: Duration,
    yielding: Duration,
    park: bool,
}

impl Default for IdlePolicy {
    /// Spins 5 us, yields 250 us, then parks. Where the system runs client and server on one core, as it often does when one wakes the
    /// other, each waits for the other's spinning to end.
    fn default() -> Self {
        IdlePolicy {
            spin: Duration::from_micros(5),
            yielding: Duration::from_micros(250),
            park: true,
        }
    }
}

impl IdlePolicy {
    /// Never yields and never sleeps: for a thread with a core of its own.
    pub const SPIN: IdlePolicy =
        IdlePolicy { spin: Duration::MAX, yielding: Duration::ZERO, park: false };

    /// Sleeps as soon as there is nothing to do.
    pub const PARK: IdlePolicy =
        IdlePolicy { spin: Duration::ZERO, yielding: Duration::ZERO, park: true };

    /// How long to spin after the last work. Default 5 us; longer is better for a thread with a core of its own.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// How long to yield the core between polls after that. Default 250 us.
    pub fn yielding(mut self, yielding: Duration) -> Self {
        self.yielding = yielding;
        self
    }

    /// How long to stay awake after the last work, at most `bound` if it sleeps then at all.
    pub(crate) fn awake(&self, bound: Duration) -> Duration {
        if self.park { self.spin.saturating_add(self.yielding).min(bound) } else { Duration::MAX }
    }

    /// Whether to yield the core so long after the last work.
    pub(crate) fn yields_after(&self, idle: Duration) -> bool {
        idle >= self.spin
    }

    /// Whether to sleep then, until an event. Otherwise it goes on yielding. Default: yes.
    pub fn park(mut self, park: bool) -> Self {
        self.park = park;
        self
    }
}

/// What to do after an empty turn.
///
/// `Spin` takes the next turn at once, without a pause instruction. A turn leaves the core's other hardware thread enough
/// room as it is, and each pause would delay the next message (by some 4 % of a call between two cores that share a cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Spin,
    Yield,
    Park,
}

/// Empty turns between two readings of the clock. A turn takes some 10 ns, so `now` is at most some 300 ns old. A reading
/// in each turn would delay the next message.
const EMPTY_TURNS_PER_CLOCK: u32 = 32;

/// Follows the policy. Time is an argument.
#[derive(Clone, Debug)]
pub(crate) struct Idler {
    spin_ns: u64,
    awake_ns: u64,
    park: bool,
    empty_turns: u32,
    since: Option<Instant>,
    rest: Rest,
}

impl Idler {
    pub(crate) fn new(policy: IdlePolicy) -> Self {
        let spin_ns = saturating_nanos(policy.spin);
        Idler {
            spin_ns,
            awake_ns: spin_ns.saturating_add(saturating_nanos(policy.yielding)),
            park: policy.park,
            empty_turns: 0,
            since: None,
            rest: Rest::Spin,
        }
    }

    /// There was work.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.empty_turns = 0;
        self.since = None;
        self.rest = Rest::Spin;
    }

    /// Others have waited long enough: an empty turn is followed by what the policy ends with.
    pub(crate) fn idled_long(&mut self) {
        self.since = Some(Instant::ZERO);
        self.rest = if self.park { Rest::Park } else { Rest::Spin };
    }

    /// There was no work. Returns whether the driver must now read the clock and call [`rest`](Self::rest).
    #[inline]
    pub(crate) fn wants_clock(&mut self) -> bool {
        self.empty_turns = self.empty_turns.wrapping_add(1);
        self.empty_turns.is_multiple_of(EMPTY_TURNS_PER_CLOCK) || self.rest != Rest::Spin
    }

    /// What to do after an empty turn, once the clock is read.
    pub(crate) fn rest(&mut self, now: Instant) -> Rest {
        let since = *self.since.get_or_insert(now);
        let idle_ns = now.as_nanos().saturating_sub(since.as_nanos());
        self.rest = if idle_ns < self.spin_ns {
            Rest::Spin
        } else if idle_ns < self.awake_ns || !self.park {
            Rest::Yield
        } else {
            Rest::Park
        };
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_until_clock(idler: &mut Idler) -> u32 {
        (1..).find(|_| idler.wants_clock()).unwrap_or(0)
    }

    #[test]
    fn an_idle_driver_spins_then_yields_then_parks() {
        let us = |n: u64| Instant::from_nanos(n * 1000);
        let mut idler = Idler::new(IdlePolicy::default());
        assert_eq!(idle_until_clock(&mut idler), EMPTY_TURNS_PER_CLOCK);
        assert_eq!(idler.rest(us(100)), Rest::Spin);
        assert_eq!(idler.rest(us(104)), Rest::Spin);
        assert_eq!(idler.rest(us(105)), Rest::Yield);
        assert!(idler.wants_clock(), "a yield costs more than the clock");
        assert_eq!(idler.rest(us(355)), Rest::Park);
        idler.worked();
        assert_eq!(idler.rest(us(400)), Rest::Spin);
    }

    #[test]
    fn the_extremes_do_only_one_thing() {
        assert_eq!(Idler::new(IdlePolicy::PARK).rest(Instant::ZERO), Rest::Park);
        let mut spinner = Idler::new(IdlePolicy::SPIN);
        spinner.rest(Instant::ZERO);
        assert_eq!(spinner.rest(Instant::from_nanos(u64::MAX - 1)), Rest::Spin);
    }
}
