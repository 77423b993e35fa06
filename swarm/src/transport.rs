//! Client transports with planted bugs.

use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Body, ClientLayer, ClientTransport, Delivery, Message, ReplySink, SlotId, post_copied_request,
};
use std::ops::Range;

use crate::mutation::Mutation;

/// One poll in this many is skipped.
const SKIP_ONE_IN: u32 = 16;

/// Wraps the transport in this bug, if it is a bug of transports.
pub(crate) fn mutated(
    inner: Box<dyn ClientTransport>,
    mutation: Option<Mutation>,
) -> Box<dyn ClientTransport> {
    match mutation {
        Some(Mutation::LostWakeUp) => Box::new(LosesWakeUps { inner, polls: 0 }),
        Some(Mutation::EarlyReuse) => Box::new(ReusesSlots { inner, given_up: None, reused: None }),
        _ => inner,
    }
}

/// Sometimes loses a wake-up: skips a poll, and sleeps again.
struct LosesWakeUps {
    inner: Box<dyn ClientTransport>,
    polls: u32,
}

impl ClientLayer for LosesWakeUps {
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        self.polls += 1;
        if self.polls.is_multiple_of(SKIP_ONE_IN) {
            return Progress { next: PollAt::OnEvent, ..Progress::IDLE };
        }
        self.inner.poll(now, sink)
    }
}

/// Reuses the slot of a cancelled call too early: its late response completes the next call.
struct ReusesSlots {
    inner: Box<dyn ClientTransport>,
    given_up: Option<SlotId>,
    /// The slot of the cancelled call, and the call that uses it now.
    reused: Option<(SlotId, SlotId)>,
}

impl ClientLayer for ReusesSlots {
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let (slot, bytes) = self.inner.reserve(len)?;
        if let (Some(given_up), None) = (self.given_up, self.reused) {
            self.given_up = None;
            self.reused = Some((given_up, slot));
        }
        Ok((slot, bytes))
    }

    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        post_copied_request(self, front, &body, delivery)
    }

    fn abandon(&mut self, slot: SlotId) {
        // Not passed on: the server is not told, so its response still arrives.
        self.given_up = Some(slot);
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let ReusesSlots { given_up, reused, .. } = self;
        let mut mixed_up = RedirectedReplies { sink, given_up, reused };
        self.inner.poll(now, &mut mixed_up)
    }
}

struct RedirectedReplies<'a> {
    sink: &'a mut dyn ReplySink,
    given_up: &'a mut Option<SlotId>,
    reused: &'a mut Option<(SlotId, SlotId)>,
}

impl ReplySink for RedirectedReplies<'_> {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        match *self.reused {
            Some((given_up, now)) if slot == given_up => self.sink.reply(now, message),
            Some((_, now)) if slot == now => {
                // The other call's response has freed the slot.
                *self.reused = None;
            }
            _ if *self.given_up == Some(slot) => *self.given_up = None,
            _ => self.sink.reply(slot, message),
        }
    }

    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        self.sink.failed(slot, why);
    }

    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        self.sink.lane_lost(slots, why);
    }

    fn closed(&mut self, why: TransportFailure) {
        self.sink.closed(why);
    }
}
