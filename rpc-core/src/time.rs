//! Time as an argument: instants of a site's clock, and when to poll again.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A moment on a site's monotonic clock, in nanoseconds since the clock's own origin.
///
/// Protocol code never reads a clock: the driver of a thread reads that of its [`Site`](crate::Site) once per turn, and
/// passes it down. In a simulation the same code runs in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Instant = Instant(0);
    /// Later than every moment that a clock will show; stands for "never".
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's origin.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the clock's origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    #[inline]
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `nanos` nanoseconds, at most [`Instant::FAR_FUTURE`].
    #[inline]
    pub const fn saturating_add_nanos(self, nanos: u64) -> Instant {
        Instant(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

/// Saturates at [`Instant::FAR_FUTURE`].
impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, rhs: Duration) -> Instant {
        self.saturating_add_nanos(saturating_nanos(rhs))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

/// Time between two moments; zero if the right one is later.
impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, rhs: Instant) -> Duration {
        self.saturating_since(rhs)
    }
}

/// A duration in nanoseconds; what does not fit (584 years) becomes `u64::MAX`.
#[inline]
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What one poll did, and when the next one has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many things were done: messages delivered, completions handled, frames sent. 0 is an idle poll.
    pub worked: u32,
    /// When to poll again.
    pub next: PollAt,
    /// Memory cells and completion-queue entries that were read, for a simulator that charges for them.
    pub scanned: u32,
}

impl Progress {
    /// Nothing was done, and only an event can change that.
    pub const IDLE: Progress = Progress { worked: 0, next: PollAt::OnEvent, scanned: 0 };

    /// This poll did nothing.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.worked == 0
    }

    /// The progress of two polls in one turn.
    #[inline]
    #[must_use]
    pub fn and(self, other: Progress) -> Progress {
        Progress {
            worked: self.worked + other.worked,
            next: self.next.earlier(other.next),
            scanned: self.scanned + other.scanned,
        }
    }
}

/// When a state machine wants to be polled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollAt {
    /// At once: more work is waiting than one poll takes.
    Now,
    /// At this moment at the latest (a timer), or earlier on an event.
    At(Instant),
    /// Only an event (a completion, a write into a watched region) makes new work.
    OnEvent,
}

impl PollAt {
    /// The earlier of two answers.
    #[inline]
    pub fn earlier(self, other: PollAt) -> PollAt {
        match (self, other) {
            (PollAt::Now, _) | (_, PollAt::Now) => PollAt::Now,
            (PollAt::OnEvent, x) | (x, PollAt::OnEvent) => x,
            (PollAt::At(a), PollAt::At(b)) => PollAt::At(a.min(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_instead_of_wrapping() {
        let t = Instant::from_nanos(u64::MAX - 1) + Duration::from_secs(1);
        assert_eq!(t, Instant::FAR_FUTURE);
        assert_eq!(Instant::from_nanos(3) - Instant::from_nanos(9), Duration::ZERO);
    }

    #[test]
    fn the_earlier_wish_wins() {
        let at = |n| PollAt::At(Instant::from_nanos(n));
        assert_eq!(at(5).earlier(at(3)), at(3));
        assert_eq!(at(5).earlier(PollAt::OnEvent), at(5));
        assert_eq!(PollAt::OnEvent.earlier(PollAt::Now), PollAt::Now);
    }
}
