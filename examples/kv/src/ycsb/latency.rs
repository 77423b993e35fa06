//! Latencies by kind of operation, and their table.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::workload::Operation;

/// The largest recorded latency in nanoseconds, longer than any timeout.
const MAX_LATENCY_NS: u64 = 120_000_000_000;

/// Latencies of each kind of operation.
#[derive(Clone, Debug)]
pub struct Latencies {
    by_operation: [Histogram<u64>; Operation::ALL.len()],
}

impl Default for Latencies {
    fn default() -> Self {
        let empty = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("sound bounds");
        Self { by_operation: std::array::from_fn(|_| empty.clone()) }
    }
}

/// Latencies in a form to be sent to another process: latency and count, for each kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortableLatencies(Vec<(Operation, Vec<(u64, u64)>)>);

impl Latencies {
    /// Records one operation.
    pub fn record(&mut self, operation: Operation, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.by_operation[operation as usize].saturating_record(ns.max(1));
    }

    /// The number of operations of this kind.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        self.by_operation[operation as usize].len()
    }

    /// Adds another client's latencies.
    pub fn add(&mut self, other: &Latencies) {
        for (mine, theirs) in self.by_operation.iter_mut().zip(&other.by_operation) {
            mine.add(theirs).expect("same bounds");
        }
    }

    /// Converts to the form for another process.
    #[must_use]
    pub fn to_portable(&self) -> PortableLatencies {
        let portable = Operation::ALL.map(|operation| {
            let recorded = self.by_operation[operation as usize].iter_recorded();
            let counts =
                recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
            (operation, counts)
        });
        PortableLatencies(portable.into())
    }

    /// Converts from the form of another process.
    #[must_use]
    pub fn from_portable(portable: &PortableLatencies) -> Self {
        let mut latencies = Self::default();
        for (operation, counts) in &portable.0 {
            for &(ns, count) in counts {
                latencies.by_operation[*operation as usize].saturating_record_n(ns.max(1), count);
            }
        }
        latencies
    }

    /// Formats a table with one row per kind that occurred. `lasted` is the time for a kind's throughput.
    #[must_use]
    pub fn table(&self, lasted: impl Fn(Operation) -> Duration) -> String {
        let mut table = format!(
            "{:<18} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}",
            "operation", "count", "ops/s", "p50", "p99", "p99.9", "max"
        );
        for operation in Operation::ALL {
            let histogram = &self.by_operation[operation as usize];
            if histogram.is_empty() {
                continue;
            }
            let at = |quantile| human_ns(histogram.value_at_quantile(quantile));
            let rate = histogram.len() as f64 / lasted(operation).as_secs_f64().max(1e-9);
            write!(
                table,
                "\n{:<18} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}",
                operation.name(),
                histogram.len(),
                human_rate(rate),
                at(0.5),
                at(0.99),
                at(0.999),
                human_ns(histogram.max()),
            )
            .expect("a string takes any text");
        }
        table
    }
}

/// Formats a time in a suitable unit: `412ns`, `5.31us`, `27.0ms`.
#[must_use]
pub fn human_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => three_digits(ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => three_digits(ns as f64 / 1e6, "ms"),
        _ => three_digits(ns as f64 / 1e9, "s"),
    }
}

fn three_digits(number: f64, unit: &str) -> String {
    match number {
        ..10.0 => format!("{number:.2}{unit}"),
        ..100.0 => format!("{number:.1}{unit}"),
        _ => format!("{number:.0}{unit}"),
    }
}

/// Formats a rate with separated thousands: `1 234 567`.
#[must_use]
pub fn human_rate(rate: f64) -> String {
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transferred_latencies_are_exact_to_three_digits() {
        let mut latencies = Latencies::default();
        for us in 1..=1000 {
            latencies.record(Operation::Read, Duration::from_micros(us));
        }
        latencies.record(Operation::Update, Duration::MAX);
        let json = serde_json::to_string(&latencies.to_portable()).unwrap();
        let mut sum = Latencies::from_portable(&serde_json::from_str(&json).unwrap());
        sum.add(&latencies);
        assert_eq!(sum.count(Operation::Read), 2000);
        assert_eq!(sum.count(Operation::Update), 2);
        let p50 = sum.by_operation[Operation::Read as usize].value_at_quantile(0.5);
        assert!((499_000..=501_000).contains(&p50), "{p50}");
    }

    #[test]
    fn the_table_has_a_row_for_each_kind_that_occurred() {
        let mut latencies = Latencies::default();
        for _ in 0..5000 {
            latencies.record(Operation::Read, Duration::from_nanos(1500));
        }
        let table = latencies.table(|_| Duration::from_secs(2));
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            rows[1].split_whitespace().collect::<Vec<_>>(),
            ["read", "5000", "2", "500", "1.50us", "1.50us", "1.50us", "1.50us"]
        );
    }

    #[test]
    fn numbers_are_printed_briefly() {
        assert_eq!(human_ns(999), "999ns");
        assert_eq!(human_ns(12_345), "12.3us");
        assert_eq!(human_ns(1_234_567_890), "1.23s");
        assert_eq!(human_rate(1_234_567.4), "1 234 567");
        assert_eq!(human_rate(12.0), "12");
    }
}
