//! What a client hears of its calls.

use farcall_core::error::{FailureKind, TransportFailure};
use farcall_core::time::Instant;
use farcall_core::transport::{Message, ReplySink, SlotId};

use super::calls::{Broken, Calls};
use super::transfers::Taken;
use super::window::{Phase, Say};
use super::wire::{self, Kind, LATE, Messages};

const NONSENSE: Broken = FailureKind::PeerMisbehaved("a message that no request waits for");

/// Nanoseconds between two moments.
#[inline]
fn since(before: Instant, now: Instant) -> u64 {
    now.as_nanos().saturating_sub(before.as_nanos())
}

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
        if self.flight.has_overtaken() {
            self.overtaken(now);
        }
        Ok(())
    }

    /// The server has said a word of the slot, which answers the copy of this mark.
    #[inline]
    fn answered(&mut self, index: u32, mark: u8, now: Instant) {
        let slot = &self.window.slots[index as usize];
        let Some(datagram) = slot.datagram else { return };
        // One round trip for each datagram; and only a later copy says which datagram it was.
        if mark & !LATE == slot.copy && !self.flight.answered(datagram) {
            return;
        }
        if let Some(sent_at) = slot.answered_copy(mark) {
            self.measured(now, sent_at, Some(1));
        }
    }

    /// Takes in a round trip of parts, if one has ended now.
    fn timed(&mut self, now: Instant) {
        if let Some(sent_at) = self.transfers.timed() {
            self.measured(now, sent_at, None);
        }
    }

    /// What was sent then has come to an answer now.
    #[inline]
    fn measured(&mut self, now: Instant, sent_at: Instant, datagrams: Option<u32>) {
        let nanos = since(sent_at, now);
        self.round_trip.measured(nanos);
        self.congestion.measured(now, nanos, datagrams);
    }

    /// Something was heard of the slot's request, or nothing is waited for any more.
    #[inline]
    pub(crate) fn heard_of(&mut self, index: u32) {
        if let Some(datagram) = self.window.slots[index as usize].datagram.take() {
            self.flight.leave(datagram);
        }
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
            let abandoned = slot.abandoned;
            self.answered(index, message.mark, now);
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
        let round = message.mark & !LATE;
        self.answered(index, message.mark, now);
        self.heard_of(index);
        let slot = &mut self.window.slots[index as usize];
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
                let (news, done) =
                    self.transfers.acknowledge(index, round, (base, come)).ok_or(NONSENSE)?;
                self.timed(now);
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
                let taken = self.transfers.take(index, round, number, bytes);
                self.timed(now);
                match taken {
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
