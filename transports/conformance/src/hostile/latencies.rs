//! How long the calls of an honest client take, alone and beside hostile ones.

use std::time::Duration;

use crate::{pattern, service::SuitePollClient, world::World};

/// One call in a hundred beside hostile clients may take longer than so many times the longest call alone.
const FACTOR: u32 = 2;

/// No call may take so long: it is half of the time for which a client may hold memory that others wait for.
const LIMIT: Duration = Duration::from_secs(5);

/// How often a call has a large message.
const LARGE_EVERY: usize = 16;

/// How long calls took, ascending.
#[derive(Debug)]
pub(crate) struct Latencies {
    small: Vec<Duration>,
    longest: Duration,
}

impl Latencies {
    /// Makes so many calls, one after the other, and checks their answers. `before_each` is what others do.
    #[track_caller]
    pub(crate) fn of_calls(
        world: &World,
        client: &mut SuitePollClient,
        count: usize,
        mut before_each: impl FnMut(),
    ) -> Latencies {
        let mut small = Vec::with_capacity(count);
        let mut longest = Duration::ZERO;
        for seed in 0..count {
            before_each();
            let is_large = seed % LARGE_EVERY == LARGE_EVERY - 1;
            let len = if is_large { 5_000 } else { [20, 700][seed % 2] };
            let message = pattern::make(seed as u64, len);
            let start = world.now();
            let echoed = world.call(client, |client| client.start_echo(&message)).expect("echo");
            let took = world.now() - start;
            longest = longest.max(took);
            if !is_large {
                small.push(took);
            }
            pattern::assert_is(seed as u64, len, &echoed);
        }
        small.sort_unstable();
        Latencies { small, longest }
    }

    /// Asserts that the 99th percentile of these is hardly longer than the longest of those, where time is virtual: on a busy machine
    /// it says nothing. On racks that delay or lose messages at random it is the 90th: whether one call in a hundred meets a loss
    /// is chance. Nor may a call of these have waited until hostile clients that hold memory were dropped.
    #[track_caller]
    pub(crate) fn assert_like(&self, alone: &Latencies, world: &World) {
        if !world.has_virtual_time() {
            return;
        }
        let percentile = if world.has_random_faults() { 90 } else { 99 };
        let ours = self.small[self.small.len() * percentile / 100];
        let theirs = alone.small[alone.small.len() - 1];
        let is_like = ours <= FACTOR * theirs;
        assert!(is_like, "p{percentile} {ours:?} beside hostile clients, {theirs:?} at most alone");
        let longest = self.longest;
        assert!(longest < LIMIT, "a call beside hostile clients took {longest:?}");
    }
}
