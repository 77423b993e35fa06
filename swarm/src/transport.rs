//! A client's transport with a bug in it.

use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientLayer, ClientTransport, Message, ReplySink, SlotId};

use crate::mutation::Mutation;

/// One poll in so many is slept through.
const SLEEPS_THROUGH: u32 = 16;

/// The transport, with this bug around it if it is one of transports.
pub(crate) fn mutated(
    inner: Box<dyn ClientTransport>,
    mutation: Option<Mutation>,
) -> Box<dyn ClientTransport> {
    match mutation {
        Some(Mutation::LostWakeUp) => Box::new(Sleepy { inner, polls: 0 }),
        Some(Mutation::EarlyReuse) => Box::new(Hasty { inner, given_up: None, reused: None }),
        _ => inner,
    }
}

/// Loses a wake-up now and then: it has its turn, does not look, and sleeps again.
struct Sleepy {
    inner: Box<dyn ClientTransport>,
    polls: u32,
}

impl ClientLayer for Sleepy {
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        self.polls += 1;
        if self.polls.is_multiple_of(SLEEPS_THROUGH) {
            return Progress { next: PollAt::OnEvent, ..Progress::IDLE };
        }
        self.inner.poll(now, sink)
    }
}

/// Thinks that a slot is free when its call was given up: the answer that is still to come goes to the next call.
struct Hasty {
    inner: Box<dyn ClientTransport>,
    given_up: Option<SlotId>,
    /// The slot that was given up, and the call that has its place now.
    reused: Option<(SlotId, SlotId)>,
}

impl ClientLayer for Hasty {
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

    fn abandon(&mut self, slot: SlotId) {
        // Not passed on: the server is not told, and the answer comes.
        self.given_up = Some(slot);
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let Hasty { given_up, reused, .. } = self;
        let mut mixed_up = MixedUp { sink, given_up, reused };
        self.inner.poll(now, &mut mixed_up)
    }
}

struct MixedUp<'a> {
    sink: &'a mut dyn ReplySink,
    given_up: &'a mut Option<SlotId>,
    reused: &'a mut Option<(SlotId, SlotId)>,
}

impl ReplySink for MixedUp<'_> {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        match *self.reused {
            Some((given_up, now)) if slot == given_up => self.sink.reply(now, message),
            Some((_, now)) if slot == now => {
                // Its place was emptied by the other's answer.
                *self.reused = None;
            }
            _ if *self.given_up == Some(slot) => *self.given_up = None,
            _ => self.sink.reply(slot, message),
        }
    }

    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        self.sink.failed(slot, why);
    }

    fn closed(&mut self, why: TransportFailure) {
        self.sink.closed(why);
    }
}
