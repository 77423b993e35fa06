//! Calls that may run again, at the server: nothing is kept of them.
//!
//! A handler that answers in place writes its answer into the datagram that is put together at this moment, and no slot
//! knows of it. For as long as a handler takes longer, its slot says that it runs: repetitions would start it again
//! and again.

use farcall_core::transport::{CallToken, Message, RequestSink};

use super::session::{Age, State};
use super::sessions::Sessions;
use super::wire::{self, Kind, LAST_COPY};

/// A call that is being handled.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// The call, until it is answered.
    call: Option<CallToken>,
    /// Which copy of it came.
    mark: u8,
    /// The session for which answers are in the datagram that is put together.
    open: Option<u32>,
}

impl Sessions {
    /// A request that may run again.
    #[inline]
    pub(crate) fn idempotent(
        &mut self,
        number: u32,
        message: &wire::Message<'_>,
        sink: &mut dyn RequestSink,
    ) {
        let wire::Message { slot: index, generation, mark, body, .. } = *message;
        let Some(session) = self.get(number) else { return };
        if index >= session.bounds.window {
            return;
        }
        if let Some(slot) = session.slots().get(index as usize) {
            match (slot.age(generation), slot.state) {
                (Age::New, _) | (Age::Same, State::Over | State::Forgotten) => {}
                (Age::Same, _) => return self.say(number, index),
                (Age::Stale, _) => return,
            }
        }
        let call = |session: u32| CallToken::new(number, session, index, generation);
        let client_generation = session.generation;
        self.passing.call = Some(call(client_generation));
        self.passing.mark = mark & LAST_COPY;
        sink.request(call(client_generation), Message::Borrowed(body), self);
        if self.passing.call.take().is_some() {
            // It takes longer.
            self.take_in(number, index, generation);
        }
    }

    /// From now on its slot knows of the call.
    #[cold]
    fn take_in(&mut self, number: u32, index: u32, generation: u32) {
        let Some(session) = self.get(number) else { return };
        if session.slot(index).is_none() {
            return;
        }
        session.begin(index, generation, State::Running);
        if let Some(slot) = session.slot(index) {
            slot.idempotent = true;
        }
    }

    /// Room for the answer of a call that is handled at this moment and passes; `None`: it is another call, or the answer
    /// has to be kept, as it is too long or there is no room in the send queue.
    #[inline]
    pub(crate) fn reserve_passing(&mut self, call: &CallToken, len: usize) -> Option<()> {
        if self.passing.call.as_ref()? != call {
            return None;
        }
        let number = call.client();
        let id = (call.slot(), call.generation(), self.passing.mark);
        if self.passing.open != Some(number) {
            self.seal_passing();
        }
        let Sessions { entries, port, passing, .. } = self;
        let session = entries.get(number as usize)?.as_deref()?;
        let bounds = session.bounds;
        let is_whole = len <= bounds.max_whole && len as u64 <= bounds.max_message;
        if is_whole && port.begin(&session.way, Kind::Response, id, len) {
            passing.open = Some(number);
            return Some(());
        }
        passing.call = None;
        self.take_in(number, call.slot(), call.generation());
        None
    }

    /// The answer is written. Answers whether it was one that passes.
    #[inline]
    pub(crate) fn post_passing(&mut self, call: &CallToken, len: usize) -> bool {
        let passes = self.passing.call.as_ref() == Some(call);
        if passes {
            self.passing.call = None;
            self.port.keep(len);
        }
        passes
    }

    /// Answers that pass wait for their doorbell.
    #[inline]
    pub(crate) fn has_passing(&self) -> bool {
        self.passing.open.is_some()
    }

    /// Posts the answers that pass, so that others can be put together.
    #[inline]
    pub(crate) fn seal_passing(&mut self) {
        let Some(number) = self.passing.open.take() else { return };
        if let Some(Some(session)) = self.entries.get(number as usize) {
            self.port.seal(&session.way);
        }
    }
}
