//! A channel whose I/O the caller drives.

use super::driver::Driver;
use super::shared::Shared;
use super::waking::wake_all;
use crate::site::{Asleep, Site};
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{ClientTransport, Closing};
use core::fmt;
use std::sync::Arc;

/// Carries the calls of a [`Channel::driven`](super::Channel::driven), in turns. Dropping it ends them.
///
/// It does not reconnect: when the connection is over, so are the driver and its calls.
pub struct ChannelDriver {
    pub(super) driver: Driver,
    pub(super) transport: Box<dyn ClientTransport>,
    pub(super) site: Site,
    pub(super) shared: Arc<Shared>,
    pub(super) is_over: bool,
    /// Between an empty turn and the next one.
    pub(super) asleep: Option<Asleep>,
}

impl ChannelDriver {
    /// One turn at `now` on the site's clock: sends what callers submitted, and hands them their answers.
    ///
    /// After a turn that worked there may be more to do at once. After an empty one, `next` of the result says when to call
    /// again: at that moment, or earlier with an event of the site. A caller that submits or cancels a call makes such an
    /// event: it wakes the site.
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.asleep = None;
        if self.is_over {
            return Progress::IDLE;
        }
        let mut progress = self.driver.turn(now, &mut *self.transport);
        wake_all(self.driver.woken());
        self.is_over = self.driver.lost().is_some() || self.shared.stopped();
        if self.site.has_companions() {
            progress = progress.and(self.site.turn_companions(now));
        }
        if progress.is_idle() {
            self.asleep = Some(self.site.fall_asleep());
            if self.shared.has_news(self.driver.seen_cancels())
                || !self.transport.arm(None).may_sleep()
                || !self.site.arm_companions().may_sleep()
            {
                progress.next = PollAt::Now;
            }
        }
        progress
    }

    /// The connection is over, or no caller is left.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Drop for ChannelDriver {
    fn drop(&mut self) {
        self.transport.close(Closing::Goodbye);
    }
}

impl fmt::Debug for ChannelDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDriver").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
