//! How long handlers run, by method: the requests of which methods wait until everything that has arrived is taken in.
//!
//! A request of a method that runs long waits in the [backlog](super::backlog), where its caller can still cancel it. One of a short method
//! is handled where it lies. A method is short until a turn in which it ran has held up the thread; then measured runs tell.

use core::cell::Cell;

/// A handler that runs for less is short: what it costs to let its request wait (a copy, two readings of the clock) would be more than a
/// hundredth of it.
const LONG_NS: u64 = 20_000;

/// A method that has run long is short again after so many short runs in a row.
const SHORT_RUNS: u8 = 16;

/// What is known of each method, by its row in the counters.
pub(super) struct RunTimes {
    methods: Box<[Cell<Runs>]>,
    /// How many of them are not short.
    others: Cell<usize>,
}

#[derive(Clone, Copy)]
struct Runs {
    length: Length,
    mean_ns: u64,
    /// Mean distance from the mean.
    deviation_ns: u64,
}

/// How long a method's handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Short,
    /// The next run is to be measured. One long run tells nothing: the system may have run something else meanwhile.
    Unknown {
        last_was_long: bool,
    },
    /// So many short runs are missing until it is short.
    Long(u8),
}

impl Length {
    /// After a run of that many nanoseconds.
    fn after(self, nanos: u64) -> Length {
        match (self, nanos >= LONG_NS) {
            (Length::Unknown { last_was_long: true } | Length::Long(_), true) => {
                Length::Long(SHORT_RUNS)
            }
            (_, true) => Length::Unknown { last_was_long: true },
            (Length::Long(left @ 2..), false) => Length::Long(left - 1),
            (_, false) => Length::Short,
        }
    }
}

impl RunTimes {
    pub(super) fn new(methods: usize) -> RunTimes {
        let short = Runs { length: Length::Short, mean_ns: 0, deviation_ns: 0 };
        RunTimes {
            methods: vec![Cell::new(short); methods].into_boxed_slice(),
            others: Cell::new(0),
        }
    }

    /// All methods are short, as in the steady state of many servers.
    #[inline]
    pub(super) fn are_all_short(&self) -> bool {
        self.others.get() == 0
    }

    /// How long the handler of this method runs.
    pub(super) fn length(&self, row: u32) -> Length {
        self.methods.get(row as usize).map_or(Length::Short, |method| method.get().length)
    }

    /// What a run of this method hardly exceeds, in nanoseconds.
    pub(super) fn expected_ns(&self, row: u32) -> u64 {
        let runs = self.methods.get(row as usize).map(Cell::get);
        runs.map_or(0, |runs| runs.mean_ns.saturating_add(runs.deviation_ns.saturating_mul(2)))
    }

    /// A handler of this method ran for so long.
    pub(super) fn record(&self, row: u32, nanos: u64) {
        let Some(method) = self.methods.get(row as usize) else { return };
        let Runs { length: before, mean_ns, deviation_ns } = method.get();
        let length = before.after(nanos);
        self.set(
            method,
            match mean_ns {
                0 => Runs { length, mean_ns: nanos.max(1), deviation_ns: nanos / 2 },
                // As TCP's round trip (RFC 6298): an eighth and a quarter of what is new.
                _ => Runs {
                    length,
                    mean_ns: (mean_ns / 8 * 7).saturating_add(nanos / 8).max(1),
                    deviation_ns: (deviation_ns / 4 * 3)
                        .saturating_add(mean_ns.abs_diff(nanos) / 4),
                },
            },
        );
    }

    fn set(&self, method: &Cell<Runs>, runs: Runs) {
        let is_other = |runs: Runs| usize::from(runs.length != Length::Short);
        let before = method.replace(runs);
        self.others.set(self.others.get() + is_other(runs) - is_other(before));
    }

    /// A turn has held up the thread in which this method ran: if it was taken for short, its next run is measured.
    pub(super) fn doubt(&self, row: u32) {
        if let Some(method) = self.methods.get(row as usize)
            && method.get().length == Length::Short
        {
            let length = Length::Unknown { last_was_long: true };
            self.set(method, Runs { length, ..method.get() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_long_if_a_run_is_after_it_held_up_a_turn_and_short_again_after_many_short_runs()
    {
        let times = RunTimes::new(2);
        assert!(times.are_all_short());
        times.doubt(0);
        times.doubt(1);
        assert_eq!(times.length(0), Length::Unknown { last_was_long: true });
        times.record(0, LONG_NS - 1);
        times.record(1, LONG_NS);
        assert_eq!((times.length(0), times.are_all_short()), (Length::Short, false));
        (1..SHORT_RUNS).for_each(|_| times.record(1, 10));
        times.doubt(1);
        assert_eq!(times.length(1), Length::Long(1));
        times.record(1, 10);
        assert!(times.length(1) == Length::Short && times.are_all_short());
        times.doubt(2);
        assert!(times.length(2) == Length::Short && times.are_all_short(), "no method");
    }

    #[test]
    fn one_long_run_among_short_ones_tells_nothing() {
        let times = RunTimes::new(1);
        for run in 0..10 {
            times.record(0, if run % 2 == 0 { 2 * LONG_NS } else { 10 });
            assert!(!matches!(times.length(0), Length::Long(_)));
        }
        assert!(times.are_all_short());
    }

    #[test]
    fn what_is_expected_covers_runs_that_vary() {
        let times = RunTimes::new(1);
        (0..100).for_each(|_| times.record(0, 1_000_000));
        let steady = times.expected_ns(0);
        assert!((990_000..1_010_000).contains(&steady), "{steady}");
        (0..100).for_each(|run| times.record(0, if run % 2 == 0 { 500_000 } else { 1_500_000 }));
        let varying = times.expected_ns(0);
        assert!((1_500_000..2_500_000).contains(&varying), "{varying}");
    }
}
