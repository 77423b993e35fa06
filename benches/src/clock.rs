//! Reading the time cheaply enough not to show in what is measured.

use std::time::Duration;

/// The processor's counter where it is invariant, the system's clock elsewhere.
#[derive(Clone)]
pub struct Clock {
    inner: quanta::Clock,
    units_per_ms: u64,
}

/// Nanoseconds over which the counter's units are taken, to turn a time into units.
const SCALE_UNITS: u64 = 1 << 32;

impl Clock {
    /// Calibrates the counter, which takes some milliseconds the first time in a process.
    pub fn new() -> Self {
        let inner = quanta::Clock::new();
        let nanos = inner.delta_as_nanos(0, SCALE_UNITS).max(1);
        let units_per_ms = (u128::from(SCALE_UNITS) * 1_000_000 / u128::from(nanos)) as u64;
        Self { inner, units_per_ms }
    }

    /// The counter now.
    #[inline]
    pub fn stamp(&self) -> u64 {
        self.inner.raw()
    }

    /// What the counter will be at least when `time` has passed.
    pub fn after(&self, time: Duration) -> u64 {
        let units = u128::from(self.units_per_ms) * time.as_nanos() / 1_000_000;
        self.stamp() + units as u64
    }

    /// The nanoseconds from one reading to another; 0 if they are the wrong way around.
    #[inline]
    pub fn nanos_between(&self, before: u64, after: u64) -> u64 {
        self.inner.delta_as_nanos(before, after)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
