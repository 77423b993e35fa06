//! The large calls of a connection that has small ones too: a choice of their own, and a lane of their own while they take another way.

use farcall_core::time::Instant;

use super::choice::Choice;
use super::lane::Lane;
use super::pace::OF_CLIENT;

/// What the seed of the connection is changed by, so that its two choices do not try in step.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where large calls go.
pub(super) struct Large {
    /// `None`: over the current lane, as the small ones.
    pub(super) lane: Option<Lane>,
    pub(super) choice: Choice,
    ways: usize,
    seed: u64,
}

impl Large {
    /// They have gone the way `home` until now.
    pub(super) fn new(ways: usize, home: usize, seed: u64) -> Large {
        let seed = seed ^ SEED;
        Large { lane: None, choice: Choice::new(ways, home, seed, &OF_CLIENT), ways, seed }
    }

    /// Whether they have a lane of their own.
    pub(super) fn is_apart(&self) -> bool {
        self.lane.is_some()
    }

    /// They go over the current lane, which is of this way. Gives the lane that they had.
    pub(super) fn join(&mut self, way: usize) -> Option<Lane> {
        if self.choice.home() != way {
            self.seed = self.seed.rotate_left(7);
            self.choice = Choice::new(self.ways, way, self.seed, &OF_CLIENT);
        }
        self.lane.take()
    }

    /// Their lane has ended: they go over the current one, which is of this way.
    pub(super) fn lost(&mut self, now_on: usize, now: Instant) {
        self.lane = None;
        self.choice.lost(now_on, now);
    }
}
