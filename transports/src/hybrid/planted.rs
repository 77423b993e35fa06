//! Bugs of a connection that moves, planted to see that tests find them: see [`crate::planted`].

use std::ops::Range;

use farcall_core::error::TransportFailure;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{Body, Delivery, Message, ReplySink, SlotId};

use super::client::Hybrid;
use super::lane::Lane;
use crate::planted::{Bug, is_planted};

impl Hybrid {
    /// [`Bug::PostedTwice`]: posts a request on the other lane, too. No caller waits for that.
    #[inline]
    pub(super) fn post_again(&mut self, front: &[u8], body: Body<'_>, delivery: Delivery) {
        if is_planted(Bug::PostedTwice)
            && let Some(lane) = self.more_lanes().next()
        {
            // Without room, the bug does nothing.
            let _ = lane.transport.post_parts(front, body, delivery);
        }
    }
}

/// [`Bug::LostCredit`]: a slot of this lane stays reserved.
#[inline]
pub(super) fn lose_credit(lane: &mut Lane) {
    if is_planted(Bug::LostCredit) {
        let _ = lane.transport.reserve(0);
    }
}

/// Polls the lane that new calls do not take. [`Bug::MistakenAnswer`]: its answers are taken for those of calls of the `current` one.
#[inline]
pub(super) fn poll_other(
    other: &mut Lane,
    current: &mut Lane,
    now: Instant,
    sink: &mut dyn ReplySink,
) -> Progress {
    if !is_planted(Bug::MistakenAnswer) {
        return other.poll(now, sink);
    }
    let offset = other.offset;
    other.poll(now, &mut Mistaking { sink, current, offset })
}

struct Mistaking<'a> {
    sink: &'a mut dyn ReplySink,
    current: &'a mut Lane,
    offset: u32,
}

impl ReplySink for Mistaking<'_> {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        match self.current.meter.under_way_at(slot.index - self.offset) {
            None => self.sink.reply(slot, message),
            Some(mistaken) => {
                self.current.meter.end(mistaken);
                let index = mistaken.index + self.current.offset;
                self.sink.reply(SlotId { index, ..mistaken }, message);
            }
        }
    }

    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        self.sink.lane_lost(slots, why);
    }

    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        self.sink.failed(slot, why);
    }

    fn closed(&mut self, why: TransportFailure) {
        self.sink.closed(why);
    }
}
