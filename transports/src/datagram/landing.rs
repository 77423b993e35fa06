//! Long messages at the server: how requests come in, and when memory is given to them and taken back.

use farcall_core::time::Instant;
use farcall_core::transport::{Message, RequestSink};

use super::parts::{Cut, Incoming};
use super::session::{Large, State};
use super::sessions::Sessions;
use super::wire;
use crate::fair_queue::{FairQueue, Verdict};

/// How long a client may hold memory that others wait for without moving on.
const STALL_NANOS: u64 = 10_000_000_000;

/// How often clients are looked at for that.
const STALL_CHECK_NANOS: u64 = 100_000_000;

impl Sessions {
    /// A long request wants to come.
    #[cold]
    pub(crate) fn announced(
        &mut self,
        number: u32,
        index: u32,
        generation: u32,
        len: u64,
        now: Instant,
    ) {
        let Some(session) = self.get(number) else { return };
        let bounds = session.bounds;
        let possible = len <= bounds.max_message && Cut::new(len, bounds.part_bytes).is_some();
        let (state, large) = match possible {
            true => (State::Coming, Large::Waiting),
            false => (State::Answered, Large::OverLimit { len }),
        };
        session.begin(index, generation, state);
        session.body(index).large = Some(Box::new(large));
        if possible {
            self.waiting.push(number, index, len);
            self.serve_waiting(now);
        }
        self.say(number, index);
    }

    /// Gives memory to those that wait for it, in turn.
    pub(crate) fn serve_waiting(&mut self, now: Instant) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.serve(|number, slot, len| self.land(number, slot, len, now));
        let rest: FairQueue = std::mem::replace(&mut self.waiting, waiting);
        debug_assert!(rest.is_empty());
    }

    /// Makes room for a request, and tells its client.
    fn land(&mut self, number: u32, index: u32, len: u64, now: Instant) -> Verdict {
        let share = self.budget.limit() / 2;
        let Some(session) = self.get(number) else { return Verdict::Done };
        if session.held > 0 && session.held + len > share {
            return Verdict::ClientFull;
        }
        let made = match self.make_room(number, index, len, now) {
            None if self.buffers.trim() => self.make_room(number, index, len, now),
            made => made,
        };
        self.shortage |= made.is_none();
        made.unwrap_or(Verdict::Exhausted)
    }

    /// `None` if the budget does not allow it.
    fn make_room(&mut self, number: u32, index: u32, len: u64, now: Instant) -> Option<Verdict> {
        let whole = match self.buffers.take(usize::try_from(len).ok()?) {
            Ok(whole) => whole?,
            Err(error) => {
                // The system has no memory, whatever the budget says: the calls end by the loss of
                // their connection instead of waiting for ever.
                tracing::warn!(%error, len, "no memory for a long request");
                self.stalled.push(number);
                return Some(Verdict::Done);
            }
        };
        let session = self.get(number)?;
        let cut = Cut::new(len, session.bounds.part_bytes)?;
        session.held += len;
        session.moved = now;
        let landing = Large::Landing { incoming: Incoming::new(cut), whole };
        session.body(index).large = Some(Box::new(landing));
        self.say(number, index);
        Some(Verdict::Done)
    }

    /// A part of a request has come.
    #[cold]
    pub(crate) fn landed(
        &mut self,
        number: u32,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let index = message.slot;
        let Some(session) = self.get(number) else { return };
        session.moved = now;
        let mut is_whole = false;
        if let Some(Large::Landing { incoming, whole }) = session.large(index)
            && let Some((part, bytes)) = message.part()
            && let Some(range) = incoming.take(part, bytes.len())
        {
            whole[range].copy_from_slice(bytes);
            is_whole = incoming.is_whole();
        }
        if is_whole {
            self.hand_over(number, index, sink);
            self.serve_waiting(now);
        }
        // Also of one that came twice: what the client was told of it before may be lost.
        self.say(number, index);
    }

    /// A request is whole: its handler gets it.
    fn hand_over(&mut self, number: u32, index: u32, sink: &mut dyn RequestSink) {
        let Some(session) = self.get(number) else { return };
        let large = session.body(index).large.take();
        let Some(slot) = session.slot(index) else { return };
        if let Some(Large::Landing { whole, .. }) = large.map(|large| *large) {
            slot.state = State::Running;
            session.held -= whole.len() as u64;
            let token = session.token(index);
            sink.request(token, Message::Owned(bytes::Bytes::from_owner(whole)), self);
        }
    }

    /// The client does not want its announced request any more.
    pub(crate) fn give_up(&mut self, number: u32, index: u32, now: Instant) {
        self.waiting.remove(number, index);
        let Some(session) = self.get(number) else { return };
        session.free_large(index);
        if let Some(slot) = session.slot(index) {
            slot.state = State::Over;
        }
        self.say(number, index);
        self.serve_waiting(now);
    }

    /// The client has taken its answer, or does not want it any more.
    pub(crate) fn released(&mut self, number: u32, index: u32, now: Instant) {
        let Some(session) = self.get(number) else { return };
        session.moved = now;
        session.free_large(index);
        let Some(slot) = session.slot(index) else { return };
        slot.state = State::Over;
        let generation = slot.generation;
        self.say_released(number, index, generation);
        if !self.waiting.is_empty() {
            self.serve_waiting(now);
        }
    }

    /// Finds sessions that hold memory which others wait for, and do not move on.
    pub(crate) fn find_stalled(&mut self, now: Instant) {
        if now < self.stall_check {
            return;
        }
        self.stall_check = now.saturating_add_nanos(STALL_CHECK_NANOS);
        for session in self.entries.iter_mut().flatten() {
            if session.held == 0 {
                continue;
            }
            // Answers are offered outside of polls, where the time is not known.
            if session.moved == Instant::ZERO {
                session.moved = now;
            }
            if session.moved.saturating_add_nanos(STALL_NANOS) < now {
                self.stalled.push(session.number);
            }
        }
    }
}
