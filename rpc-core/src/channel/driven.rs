//! A channel whose I/O thread's part somebody else plays.

use super::driver::Driver;
use super::shared::Shared;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::ClientTransport;
use core::fmt;
use std::sync::Arc;

/// What carries the calls of a [`Channel::driven`](super::Channel::driven), in turns. Dropping it ends them.
///
/// It does not dial again: when the connection is over, so is this, and its calls.
pub struct ChannelDriver {
    pub(super) driver: Driver,
    pub(super) transport: Box<dyn ClientTransport>,
    pub(super) shared: Arc<Shared>,
    pub(super) is_over: bool,
}

impl ChannelDriver {
    /// One turn at `now`, the time on the device's clock: sends what callers asked for, and gives them their answers.
    ///
    /// After a turn that worked there may be more to do at once. After an empty one the answer's `next` says when: at that
    /// moment, or with an event of the transport, which a caller's is too.
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.shared.awake();
        if self.is_over {
            return Progress::IDLE;
        }
        let mut progress = self.driver.turn(now, &mut *self.transport);
        self.is_over = self.driver.lost().is_some() || self.shared.stopped();
        if progress.is_idle() && self.shared.fall_asleep(self.driver.seen_cancels()) {
            progress.next = PollAt::Now;
        }
        progress
    }

    /// Is the connection over, or is nobody left who could call?
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Drop for ChannelDriver {
    fn drop(&mut self) {
        self.transport.close();
    }
}

impl fmt::Debug for ChannelDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDriver").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
