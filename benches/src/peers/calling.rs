//! How calls are made and timed, whichever library they are of.

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;

use super::Setup;
use crate::clock::Clock;
use crate::echo;
use crate::echo::load::Totals;

/// With many outstanding calls, one in this many is timed, as in the other benchmarks.
const TIMED_EACH: u64 = 16;

/// The first calls of a turn, which wake up the server, are not counted.
pub(super) const UNCOUNTED: Duration = Duration::from_millis(1);

/// How many bytes at each end of a long answer are compared in timed turns.
const END_BYTES: usize = 64;

/// What is sent, how often at once, and the clock.
pub(super) struct Caller {
    data: Bytes,
    window: usize,
    clock: Clock,
}

impl Caller {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let data = echo::any_bytes(setup.size);
        Self { data, window: setup.window, clock: Clock::new() }
    }

    /// The argument of each call.
    pub(super) fn data(&self) -> &Bytes {
        &self.data
    }

    /// Compares an answer: the whole of it, or only the ends of a long one.
    fn check(&self, output: &[u8], whole: bool) -> Result<()> {
        let data = &self.data[..];
        let is_right = if whole || data.len() <= 2 * END_BYTES {
            output == data
        } else {
            output.len() == data.len()
                && output.first_chunk::<END_BYTES>() == data.first_chunk()
                && output.last_chunk::<END_BYTES>() == data.last_chunk()
        };
        ensure!(is_right, "an answer differs from what was sent");
        Ok(())
    }

    /// The time, if this call of a loop is timed. The clock is read for no other, as by the polling clients: two readings take
    /// half as long as a call of many.
    fn stamp_of(&self, number: u64) -> Option<u64> {
        let is_timed = self.window == 1 || number.is_multiple_of(TIMED_EACH);
        is_timed.then(|| self.clock.stamp())
    }

    /// Keeps a window of async calls outstanding for about `time`, after a part that is not counted.
    pub(super) async fn turn<O: AsRef<[u8]>>(
        &self,
        time: Duration,
        totals: &mut Totals,
        call: impl AsyncFn() -> Result<O>,
    ) -> Result<()> {
        self.loops(UNCOUNTED, &mut Totals::default(), true, &call).await?;
        self.loops(time, totals, false, &call).await
    }

    /// So many loops as the window, each of which awaits one call after the other.
    async fn loops<O: AsRef<[u8]>>(
        &self,
        time: Duration,
        totals: &mut Totals,
        whole: bool,
        call: &impl AsyncFn() -> Result<O>,
    ) -> Result<()> {
        let Self { window, clock, .. } = self;
        let (begin, end) = (clock.stamp(), clock.after(time));
        let shared = RefCell::new(&mut *totals);
        let one_by_one = || async {
            for number in 0u64.. {
                let before = self.stamp_of(number);
                let output = call().await?;
                let after = before.map(|_| clock.stamp());
                self.check(output.as_ref(), whole)?;
                let mut totals = shared.borrow_mut();
                totals.calls += 1;
                if let (Some(before), Some(after)) = (before, after) {
                    totals.latency.record(clock.nanos_between(before, after));
                    if after >= end {
                        break;
                    }
                }
            }
            Ok::<_, anyhow::Error>(())
        };
        if *window == 1 {
            one_by_one().await?;
        } else {
            try_join_all((0..*window).map(|_| one_by_one())).await?;
        }
        totals.nanos += clock.nanos_between(begin, clock.stamp());
        Ok(())
    }

    /// One of the loops of a turn, as a task of its own that may run on any thread.
    pub(super) async fn one_task<O: AsRef<[u8]>, F: Future<Output = Result<O>>>(
        &self,
        time: Duration,
        call: impl Fn() -> F,
    ) -> Result<Totals> {
        let clock = &self.clock;
        let (begin, end) = (clock.stamp(), clock.after(time));
        let mut totals = Totals::default();
        for number in 0u64.. {
            let before = self.stamp_of(number);
            let output = call().await?;
            let after = before.map(|_| clock.stamp());
            self.check(output.as_ref(), false)?;
            totals.calls += 1;
            if let (Some(before), Some(after)) = (before, after) {
                totals.latency.record(clock.nanos_between(before, after));
                if after >= end {
                    break;
                }
            }
        }
        totals.nanos = clock.nanos_between(begin, clock.stamp());
        Ok(totals)
    }

    /// The time of one call.
    pub(super) async fn time_one<O: AsRef<[u8]>, F: Future<Output = Result<O>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<u64> {
        let before = self.clock.stamp();
        let output = call().await?;
        let after = self.clock.stamp();
        self.check(output.as_ref(), true)?;
        Ok(self.clock.nanos_between(before, after))
    }

    /// As `turn`, with calls that block.
    pub(super) fn blocking_turn<O: AsRef<[u8]>>(
        &self,
        time: Duration,
        totals: &mut Totals,
        call: impl Fn() -> Result<O>,
    ) -> Result<()> {
        self.one_by_one(UNCOUNTED, &mut Totals::default(), true, &call)?;
        self.one_by_one(time, totals, false, &call)
    }

    fn one_by_one<O: AsRef<[u8]>>(
        &self,
        time: Duration,
        totals: &mut Totals,
        whole: bool,
        call: &impl Fn() -> Result<O>,
    ) -> Result<()> {
        let clock = &self.clock;
        let (begin, end) = (clock.stamp(), clock.after(time));
        loop {
            let before = clock.stamp();
            let output = call()?;
            let after = clock.stamp();
            self.check(output.as_ref(), whole)?;
            totals.calls += 1;
            totals.latency.record(clock.nanos_between(before, after));
            if after >= end {
                totals.nanos += clock.nanos_between(begin, after);
                return Ok(());
            }
        }
    }

    /// A call, silence, and the time of the next call.
    pub(super) fn call_after<O: AsRef<[u8]>>(
        &self,
        silence: Duration,
        mut call: impl FnMut() -> Result<O>,
    ) -> Result<u64> {
        self.check(call()?.as_ref(), true)?;
        thread::sleep(silence);
        let before = self.clock.stamp();
        let output = call()?;
        let after = self.clock.stamp();
        self.check(output.as_ref(), true)?;
        Ok(self.clock.nanos_between(before, after))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Programs;
    use super::*;

    #[test]
    fn another_answer_is_an_error_wherever_it_differs() {
        let programs = Programs::default();
        let setup = Setup { size: 1000, window: 1, cores: [0, 1], programs: &programs };
        let caller = Caller::new(&setup);
        let data = caller.data().to_vec();
        caller.check(&data, false).unwrap();
        for at in [0, 500, 999] {
            let mut other = data.clone();
            other[at] ^= 1;
            assert!(caller.check(&other, true).is_err(), "{at}");
            assert_eq!(caller.check(&other, false).is_err(), at != 500, "{at}");
        }
        assert!(caller.check(&data[..999], false).is_err());
        let outcome = caller.call_after(Duration::ZERO, || Ok([0; 1000]));
        assert!(outcome.unwrap_err().to_string().contains("differs"));
    }
}
