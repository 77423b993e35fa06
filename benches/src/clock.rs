//! Reading the time cheaply enough not to affect measurements.

use std::time::Duration;

/// The processor's counter if it is invariant, otherwise the system's clock.
#[derive(Clone)]
pub struct Clock {
    inner: quanta::Clock,
    units_per_ms: u64,
}

/// Counter units whose nanoseconds are measured, to convert a time to units.
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

    /// The counter's value after `time` at the earliest.
    pub fn after(&self, time: Duration) -> u64 {
        let units = u128::from(self.units_per_ms) * time.as_nanos() / 1_000_000;
        self.stamp() + units as u64
    }

    /// The nanoseconds from one reading to another; 0 if they are in the wrong order.
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
