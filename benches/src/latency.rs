//! Percentiles of latencies.

use hdrhistogram::Histogram;

/// The longest distinguishable time: a minute, far above any deadline here.
const HIGHEST_NS: u64 = 60_000_000_000;

/// A histogram with three significant digits.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Latency {
    /// Nothing recorded yet.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, 3);
        Self(histogram.expect("the bounds are constants and right"))
    }

    /// Records one time. A time above a minute counts as a minute.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// The time that this fraction of the samples does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) }
    }

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.0.len()
    }

    /// Adds the samples of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}
