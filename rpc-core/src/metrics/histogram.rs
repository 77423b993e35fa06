//! A histogram with one writer and any number of readers.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;
use zerocopy::FromZeros;

/// Each power of two is divided into 2^4 buckets. Taken for the middle of its bucket, a value is known to 3 %. Clients that are many and
/// seldom call have little more memory than these buckets.
const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;
/// Values from 2^42 ns on share the last bucket: 73 minutes, beyond the longest deadline that is sent.
const MAX_BITS: u32 = 42;
const BUCKETS: usize = ((MAX_BITS - SUB_BITS + 1) as usize) << SUB_BITS;

/// Counts of values, logarithmic with linear parts.
pub(super) struct Histogram {
    /// Made with the first value, or [before](Histogram::prepare): the client of a connection that makes no calls has no latencies.
    buckets: OnceLock<Box<[AtomicU64]>>,
    sum: AtomicU64,
    max: AtomicU64,
}

/// Adds without an atomic read-modify-write: there is one writer.
#[inline]
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

#[inline]
fn bucket_of(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = (63 - value.leading_zeros()) - SUB_BITS;
    let index = ((shift as usize + 1) << SUB_BITS) + ((value >> shift) - SUB) as usize;
    index.min(BUCKETS - 1)
}

/// The smallest value of a bucket.
fn lower_bound(bucket: usize) -> u64 {
    let (row, column) = (bucket >> SUB_BITS, bucket as u64 & (SUB - 1));
    if row == 0 { column } else { (SUB + column) << (row - 1) }
}

impl Histogram {
    pub(super) fn new() -> Self {
        Histogram { buckets: OnceLock::new(), sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    /// Takes the memory now that the first value would need.
    pub(super) fn prepare(&self) {
        self.buckets.get_or_init(empty);
    }

    #[cfg(test)]
    pub(super) fn is_prepared(&self) -> bool {
        self.buckets.get().is_some()
    }

    /// Only the owning thread calls this.
    #[inline]
    pub(super) fn record(&self, value: u64, times: u64) {
        let buckets = self.buckets.get_or_init(empty);
        add(&buckets[bucket_of(value)], times);
        add(&self.sum, value.wrapping_mul(times));
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }
}

/// Zeroed by the system where it has zeroed pages: few of them are ever touched, as most values are alike.
#[cold]
fn empty() -> Box<[AtomicU64]> {
    let zeroed = <[AtomicU64]>::new_box_zeroed_with_elems(BUCKETS);
    zeroed.unwrap_or_else(|_| (0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
}

/// Histograms of several threads, added up.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    pub(super) buckets: Vec<u64>,
    pub(super) sum: u64,
    pub(super) max: u64,
    pub(super) count: u64,
}

impl Merged {
    pub(super) fn new() -> Self {
        Merged { buckets: vec![0; BUCKETS], sum: 0, max: 0, count: 0 }
    }

    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (into, from) in
            self.buckets.iter_mut().zip(histogram.buckets.get().into_iter().flatten())
        {
            let n = from.load(Relaxed);
            *into += n;
            self.count += n;
        }
        self.sum = self.sum.wrapping_add(histogram.sum.load(Relaxed));
        self.max = self.max.max(histogram.max.load(Relaxed));
    }

    /// The middle value and the count of each bucket that is not empty.
    pub(super) fn values(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().enumerate().filter(|(_, n)| **n > 0).map(|(bucket, n)| {
            let (low, next) = (lower_bound(bucket), lower_bound(bucket + 1));
            (low + (next - low) / 2, *n)
        })
    }

    /// The value below which this fraction of all values lies.
    pub(super) fn quantile(&self, part: f64) -> u64 {
        let rank = (part * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (value, n) in self.values() {
            seen += n;
            if seen >= rank {
                return value.min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket(value in 0_u64..1 << MAX_BITS) {
            let bucket = bucket_of(value);
            prop_assert!(lower_bound(bucket) <= value && value < lower_bound(bucket + 1));
            let width = lower_bound(bucket + 1) - lower_bound(bucket);
            prop_assert!(width == 1 || width * SUB <= lower_bound(bucket));
            // Its middle is within 3 %, or exact.
            let middle = lower_bound(bucket) + width / 2;
            prop_assert!(middle.abs_diff(value) * 32 <= value);
        }
    }

    #[test]
    fn values_beyond_the_last_bucket_are_still_counted() {
        let histogram = Histogram::new();
        histogram.record(u64::MAX, 1);
        let mut merged = Merged::new();
        merged.add(&histogram);
        assert_eq!((merged.count, merged.max), (1, u64::MAX));
    }

    #[test]
    fn the_first_value_takes_no_memory_in_a_prepared_one() {
        let histogram = Histogram::new();
        histogram.prepare();
        assert!(histogram.is_prepared());
        let prepared = histogram.buckets.get().map(|buckets| buckets.as_ptr());
        histogram.record(100, 1);
        assert_eq!(histogram.buckets.get().map(|buckets| buckets.as_ptr()), prepared);
    }

    #[test]
    fn quantiles_come_from_all_threads() {
        let (a, b) = (Histogram::new(), Histogram::new());
        a.record(100, 98);
        b.record(10_000, 2);
        let mut merged = Merged::new();
        merged.add(&a);
        merged.add(&b);
        assert!((97..=103).contains(&merged.quantile(0.5)), "{}", merged.quantile(0.5));
        assert!((9_700..=10_000).contains(&merged.quantile(0.99)));
        assert_eq!(merged.sum, 98 * 100 + 2 * 10_000);
    }
}
