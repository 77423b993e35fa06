//! What a client hears of its calls.

use farcall_core::error::{FailureKind, TransportFailure};
use farcall_core::time::Instant;
use farcall_core::transport::{Message, ReplySink, SlotId};

use super::calls::{Broken, Calls};
use super::transfers::Taken;
use super::window::{Phase, Say};
use super::wire::{self, Kind, Messages};

const NONSENSE: Broken = FailureKind::PeerMisbehaved("a message that no request waits for");

impl Calls {
    /// The messages of a datagram that is [ours](Calls::is_ours).
    #[inline]
    pub(crate) fn datagram(
        &mut self,
        messages: Messages<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        self.timers.heard();
        for message in messages {
            self.message(&message, now, sink)?;
        }
        Ok(())
    }

    #[inline]
    fn message(
        &mut self,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let index = message.slot;
        if message.kind == Kind::Response
            && let Some(slot) = self.window.slots.get(index as usize)
            && slot.generation == message.generation
            && slot.waits()
        {
            if !slot.repeated && slot.due != Instant::FAR_FUTURE {
                self.round_trip.measured(now - slot.sent_at);
            }
            let abandoned = slot.abandoned;
            self.end(index);
            if !abandoned {
                let id = SlotId { index, generation: message.generation };
                sink.reply(id, Message::Borrowed(message.body));
            }
            return Ok(());
        }
        self.unusual(message, now, sink)
    }

    /// All but a whole response that is waited for.
    #[cold]
    fn unusual(
        &mut self,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let wire::Message { kind, slot: index, generation, .. } = *message;
        match kind {
            Kind::Goodbye => return Err(FailureKind::Goodbye),
            Kind::Released => {
                self.releases.retain(|r| (r.slot, r.generation) != (index, generation));
                return Ok(());
            }
            _ => {}
        }
        let Some(slot) = self.window.slots.get_mut(index as usize) else { return Err(NONSENSE) };
        if slot.generation != generation {
            return Ok(()); // A copy of something old.
        }
        let phase = slot.phase;
        match kind {
            Kind::Running if slot.waits() && phase != Phase::Known => {
                slot.phase = Phase::Known;
                self.transfers.forget(index);
                self.moved_on(index, now);
            }
            Kind::Progress if phase == Phase::Announced => {
                if !slot.abandoned {
                    slot.phase = Phase::Sending;
                    self.transfers.start(index);
                }
                self.moved_on(index, now);
            }
            Kind::Progress if phase == Phase::Sending && !slot.abandoned => {
                let range = message.range().ok_or(NONSENSE)?;
                let (base, come) = (range.base.get(), range.mask.get());
                let (news, done) = self.transfers.acknowledge(index, base, come).ok_or(NONSENSE)?;
                if done {
                    self.window.slots[index as usize].phase = Phase::Known;
                }
                if news {
                    self.moved_on(index, now);
                }
            }
            Kind::Offer if slot.waits() => {
                let len = message.len().ok_or(NONSENSE)?;
                if slot.abandoned {
                    self.let_go(index);
                    return Ok(());
                }
                if len > self.max_message || !self.transfers.offered(index, len) {
                    return Err(FailureKind::PeerMisbehaved("a response over the limit"));
                }
                self.window.slots[index as usize].phase = Phase::Fetching;
                self.moved_on(index, now);
            }
            Kind::Part if phase == Phase::Fetching => {
                let (number, bytes) = message.part().ok_or(NONSENSE)?;
                match self.transfers.take(index, number, bytes) {
                    Taken::No => {}
                    Taken::Yes => self.moved_on(index, now),
                    Taken::Whole(whole) => {
                        self.let_go(index);
                        let message = Message::Owned(bytes::Bytes::from_owner(whole));
                        sink.reply(SlotId { index, generation }, message);
                    }
                }
            }
            Kind::Dropped if slot.abandoned => self.end(index),
            // The answer has left, and was lost.
            Kind::Dropped if phase == Phase::Known && slot.idempotent && !slot.is_long() => {
                slot.phase = Phase::Posted;
                self.window.say(index, Say::Request);
                self.moved_on(index, now);
            }
            Kind::Forgotten if slot.waits() => {
                let abandoned = slot.abandoned;
                self.end(index);
                if !abandoned {
                    let why = TransportFailure::new(FailureKind::PeerGone, true);
                    sink.failed(SlotId { index, generation }, why);
                }
            }
            Kind::OverLimit if slot.waits() => {
                let limit = message.over_limit().ok_or(NONSENSE)?;
                let abandoned = slot.abandoned;
                self.end(index);
                if !abandoned {
                    let kind = FailureKind::TooLarge { len: limit.len.get(), max: limit.max.get() };
                    let id = SlotId { index, generation };
                    sink.failed(id, TransportFailure::new(kind, false));
                }
            }
            // Copies of what came before, and what a request in this phase is told again.
            _ => {}
        }
        Ok(())
    }
}
