//! Following another server's time: answers in, what the threads need out. It asks nobody itself.

use std::fmt::Display;
use std::time::Duration;

use super::samples::{ClockSample, ClockSamples};
use crate::contract::{SharedClock, SlicePlan};

/// How often another server is asked for its time (ScaleRPC, section 3.4).
pub const ASK_EVERY: Duration = Duration::from_millis(100);

/// A server that follows another one's time.
#[derive(Debug)]
pub struct Follower {
    of: String,
    plan: SlicePlan,
    clock: SharedClock,
    samples: ClockSamples,
    state: State,
}

/// What was logged last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Follows,
    HasNoAnswer,
    HasOtherSlices,
}

impl Follower {
    /// Follows the time of the server at this address, which has slices as this one.
    pub fn new(of: &str, plan: SlicePlan) -> Follower {
        let (clock, samples) = (SharedClock::default(), ClockSamples::new());
        Follower { of: of.to_owned(), plan, clock, samples, state: State::New }
    }

    /// For the server's threads.
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Whether this is the first time in this state.
    fn is_new(&mut self, state: State) -> bool {
        std::mem::replace(&mut self.state, state) != state
    }

    /// The server has answered these questions, and has these slices.
    pub fn take_answers(&mut self, samples: &[ClockSample], theirs: SlicePlan) {
        if theirs != self.plan {
            if self.is_new(State::HasOtherSlices) {
                let (ours, of) = (self.plan, &self.of);
                tracing::warn!(
                    "slices_of: {of} has {} groups and slices of {} ns; this server has {} and {} ns, and so does not follow it: give both the same `groups` and `slice`",
                    theirs.groups,
                    theirs.slice_nanos,
                    ours.groups,
                    ours.slice_nanos
                );
            }
            return;
        }
        let fits = samples.iter().filter_map(|sample| self.samples.add(sample));
        let Some(fit) = fits.last() else {
            return self.note_failure(&"it shows impossible times");
        };
        self.clock.publish(fit);
        if self.is_new(State::Follows) {
            tracing::info!("slices_of: following the time of {}", self.of);
        }
    }

    /// The server was asked, and there was no answer. The last estimate holds.
    pub fn note_failure(&mut self, why: &dyn Display) {
        if self.is_new(State::HasNoAnswer) {
            let of = &self.of;
            tracing::warn!(
                "slices_of: no time from {of}: {why}; slices go on by this server's own clock until it answers"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use farcall_core::time::Instant;

    use super::*;

    const PLAN: SlicePlan = SlicePlan { groups: 4, slice_nanos: 100_000 };

    fn sample(asked: u64) -> ClockSample {
        ClockSample {
            asked: Instant::from_nanos(asked),
            received_nanos: 5_000_000 + asked,
            answered_nanos: 5_000_001 + asked,
            heard: Instant::from_nanos(asked + 2_000),
        }
    }

    #[test]
    fn what_is_learned_is_published_and_holds_when_there_is_no_answer() {
        let mut follower = Follower::new("shm://time", PLAN);
        let (clock, mut seen) = (follower.clock().clone(), 0);
        follower.note_failure(&"nobody listens");
        assert_eq!(clock.newer_than(&mut seen), None);
        follower.take_answers(&[sample(1_000), sample(4_000)], PLAN);
        assert!(clock.newer_than(&mut seen).is_some());
        follower.note_failure(&"nobody listens");
        assert_eq!(clock.newer_than(&mut seen), None);
        assert!(!follower.is_new(State::HasNoAnswer), "it is logged once");
        follower.take_answers(&[sample(9_000)], PLAN);
        assert!(clock.newer_than(&mut seen).is_some());
    }

    #[test]
    fn a_server_with_other_slices_is_not_followed() {
        for other in [SlicePlan { groups: 5, ..PLAN }, SlicePlan { slice_nanos: 1, ..PLAN }] {
            let mut follower = Follower::new("shm://time", PLAN);
            follower.take_answers(&[sample(1_000)], other);
            assert_eq!(follower.clock().newer_than(&mut 0), None);
        }
    }
}
