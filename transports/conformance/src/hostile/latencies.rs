//! How long the calls of an honest client take, alone and beside hostile ones.

use std::time::Duration;

use crate::{pattern, service::SuitePollClient, world::World};

/// One call in a hundred beside hostile clients may take longer than so many times the longest call alone.
const FACTOR: u32 = 2;

/// How long calls took, ascending.
#[derive(Debug)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    /// Makes so many calls, one after the other, and checks their answers. `before_each` is what others do.
    #[track_caller]
    pub(crate) fn of_calls(
        world: &World,
        client: &mut SuitePollClient,
        count: usize,
        mut before_each: impl FnMut(),
    ) -> Latencies {
        let mut all = Vec::with_capacity(count);
        for seed in 0..count {
            before_each();
            let len = if seed % 2 == 0 { 20 } else { 700 };
            let message = pattern::make(seed as u64, len);
            let start = world.now();
            let echoed = world.call(client, |client| client.start_echo(&message)).expect("echo");
            all.push(world.now() - start);
            pattern::assert_is(seed as u64, len, &echoed);
        }
        all.sort_unstable();
        Latencies(all)
    }

    /// Asserts that the 99th percentile of these is hardly longer than the longest of those, where time is virtual: on a busy machine
    /// it says nothing. On racks that delay or lose messages at random, the longest shows how long such a call takes.
    #[track_caller]
    pub(crate) fn assert_like(&self, alone: &Latencies, world: &World) {
        let (ours, theirs) = (self.0[self.0.len() * 99 / 100], alone.0[alone.0.len() - 1]);
        let is_like = ours <= FACTOR * theirs || !world.has_virtual_time();
        assert!(is_like, "p99 {ours:?} beside hostile clients, {theirs:?} at most alone");
    }
}
