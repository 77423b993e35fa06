//! Large messages at the server: how requests land, and when memory is given to clients and taken back.

use farcall_core::time::Instant;
use farcall_core::transport::{Message, RequestSink};

use super::requests::Sessions;
use super::session::{Large, Phase};
use super::wire::{self, Id, Range};
use crate::kit::fair_queue::Verdict;
use crate::kit::lending::{Lending, Shortage};
use crate::repair::parts::{Incoming, Parts};

impl Sessions {
    /// A large request wants to land.
    #[cold]
    pub(super) fn handle_announcement(&mut self, client: u32, id: Id, len: u64, now: Instant) {
        let Some(session) = self.roster.get(client) else { return };
        let bounds = session.bounds;
        let possible =
            len <= bounds.max_message && Parts::new(len, bounds.part_bytes as usize).is_some();
        let (phase, large) = match possible {
            true => (Phase::Landing, Large::Waiting),
            false => (Phase::Answered, Large::OverLimit { len }),
        };
        if let Some(body) = session.begin(id, phase) {
            body.large = Some(Box::new(large));
        }
        if possible {
            self.lending.wait(client, id.slot, len);
            self.serve_waiting(now);
        }
        self.queue_status(client, id.slot);
    }

    /// Gives memory to the requests that wait for it, in turn.
    pub(super) fn serve_waiting(&mut self, now: Instant) {
        Lending::serve(
            self,
            |sessions| &mut sessions.lending,
            |sessions, client, slot, len| sessions.grant(client, slot, len, now),
        );
    }

    /// Makes room for a request, and tells its client.
    fn grant(&mut self, client: u32, index: u32, len: u64, now: Instant) -> Verdict {
        let Some(session) = self.roster.get(client) else { return Verdict::Done };
        if !self.lending.is_within_share(&session.loan, len) {
            return Verdict::ClientFull;
        }
        let made = match self.make_room(client, index, len, now) {
            None if self.buffers.trim() => self.make_room(client, index, len, now),
            made => made,
        };
        if made.is_none() {
            self.lending.note_shortage();
        }
        made.unwrap_or(Verdict::Exhausted)
    }

    /// `None` if the budget does not allow it.
    fn make_room(&mut self, client: u32, index: u32, len: u64, now: Instant) -> Option<Verdict> {
        let whole = match self.buffers.take(usize::try_from(len).ok()?) {
            Ok(whole) => whole?,
            Err(error) => {
                // The system has no memory, whatever the budget says: the calls end by the loss of
                // their session instead of waiting for ever.
                tracing::warn!(%error, len, "no memory for a large request");
                self.broken.push(client);
                return Some(Verdict::Done);
            }
        };
        let session = self.roster.get(client)?;
        let parts = Parts::new(len, session.bounds.part_bytes as usize)?;
        session.loan.take(index, len, now);
        let landing = Large::Landing { incoming: Incoming::new(parts), whole };
        session.body(index).large = Some(Box::new(landing));
        self.queue_status(client, index);
        Some(Verdict::Done)
    }

    /// A part of a request has arrived.
    #[cold]
    pub(super) fn handle_part(
        &mut self,
        client: u32,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let index = message.id.slot;
        let Some(session) = self.roster.get(client) else { return };
        session.loan.move_on(now);
        if let Some(Large::Landing { incoming, whole }) = session.large(index)
            && let Some((part, bytes)) = message.part()
            && let Some(range) = incoming.take(part, bytes.len())
        {
            whole[range].copy_from_slice(bytes);
            if incoming.is_whole() {
                self.dispatch_large(client, message.id, sink);
                self.serve_waiting(now);
            }
        }
        // Also of a copy: what the client was told before may be lost.
        self.queue_status(client, index);
    }

    /// The request is whole: its handler gets it.
    fn dispatch_large(&mut self, client: u32, id: Id, sink: &mut dyn RequestSink) {
        let Some(session) = self.roster.get(client) else { return };
        let large = session.body(id.slot).large.take();
        if let Some(Large::Landing { whole, .. }) = large.map(|large| *large)
            && let Some(slot) = session.slot(id.slot)
        {
            slot.phase = Phase::Busy;
            session.loan.give_back(id.slot);
            let token = session.token(id.slot, id.generation);
            let whole = Message::Owned(self.lending.budget().hand_over(whole));
            sink.request(token, whole, self);
        }
    }

    /// The client does not want its announced request any more.
    pub(super) fn drop_announced(&mut self, client: u32, index: u32, now: Instant) {
        self.lending.stop_waiting(client, index);
        self.end_large(client, index);
        self.queue_status(client, index);
        self.serve_waiting(now);
    }

    /// The client has fetched its response, or does not want it any more.
    pub(super) fn handle_release(&mut self, client: u32, id: Id, now: Instant) {
        if let Some(session) = self.roster.get(client) {
            session.loan.move_on(now);
        }
        self.end_large(client, id.slot);
        self.queue_released(client, id);
        if self.lending.has_waiting() {
            self.serve_waiting(now);
        }
    }

    /// The slot's large message is not needed any more.
    fn end_large(&mut self, client: u32, index: u32) {
        let Some(session) = self.roster.get(client) else { return };
        session.free_large(index);
        if let Some(slot) = session.slot(index) {
            slot.phase = Phase::Ended;
        }
    }

    /// The client asks for parts of a large response.
    pub(super) fn handle_ask(&mut self, client: u32, index: u32, range: Range, now: Instant) {
        let Some(session) = self.roster.get(client) else { return };
        session.loan.move_on(now);
        let Some(Large::Lent { base, wanted, .. }) = session.large(index) else {
            return self.queue_status(client, index);
        };
        let (asked, mask) = (range.base.get(), range.mask.get());
        // If a later one has overtaken this, the client will repeat it if it still matters.
        let Some(moved) = asked.checked_sub(*base) else { return };
        *wanted = wanted.checked_shr(moved).unwrap_or(0) | mask;
        *base = asked;
        let Some(slot) = session.slot(index) else { return };
        if !std::mem::replace(&mut slot.is_sending, true) {
            self.outgoing.send_parts_of(client, index);
        }
    }

    /// Finds clients that hold memory which messages wait for, and do not move on.
    pub(super) fn find_stalled(&mut self, shortage: Shortage, now: Instant) {
        let Sessions { roster, lending, broken, .. } = self;
        let loans = roster.iter_mut().map(|session| (session.id.number, &mut session.loan));
        lending.find_stalled(shortage, now, loans, broken);
    }
}
