//! Percentiles of what was measured.

use hdrhistogram::Histogram;

/// Longest time told apart: a minute, far above any call's deadline here.
const HIGHEST_NS: u64 = 60_000_000_000;

/// Three significant digits of each recorded time.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Latency {
    /// Nothing recorded yet.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, 3);
        Self(histogram.expect("the bounds are constants and right"))
    }

    /// Records one time; one beyond a minute counts as a minute.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// The time that this share of the samples does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) }
    }

    /// How many were recorded.
    pub fn samples(&self) -> u64 {
        self.0.len()
    }

    /// Takes in what `other` recorded.
    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}
