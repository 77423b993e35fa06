//! Answers of one server thread.

use farcall_core::error::ReserveError;
use farcall_core::transport::{CallToken, Replies};

use super::requests::Sessions;
use super::session::{Large, Phase, Unanswered};
use crate::kit::lending::Lending;
use crate::kit::memory::LargeBuffers;
use crate::repair::parts::Parts;

impl Replies for Sessions {
    #[inline]
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        let Sessions { roster, outgoing, .. } = self;
        if outgoing.in_place.has(call) {
            if outgoing.in_place.reserve(call, len, roster, &mut outgoing.port) {
                return Ok(self.outgoing.port.body(len));
            }
            self.leave_place(call);
        }
        let Sessions { roster, lending, buffers, .. } = self;
        let slot = roster.get(call.client()).and_then(|session| session.slot_of(call));
        let Some(slot) = slot else { return Err(ReserveError::Closed) };
        if len > slot.bounds.max_small || len as u64 > slot.bounds.max_message {
            return reserve_large(slot, len, lending, buffers);
        }
        slot.body.large = None;
        slot.body.reply.resize(len, 0);
        Ok(&mut slot.body.reply)
    }

    #[inline]
    fn post(&mut self, call: CallToken, len: usize) {
        if self.outgoing.in_place.has(&call) {
            return self.outgoing.in_place.finish(len, &mut self.outgoing.port);
        }
        let Some(session) = self.roster.get(call.client()) else { return };
        let Some(slot) = session.slot_of(&call) else { return };
        slot.slot.phase = Phase::Answered;
        slot.body.reply.truncate(len);
        if slot.body.large.is_some() {
            post_large(slot, call.slot(), len);
        }
        session.queue_status(call.slot());
        if !session.in_line {
            self.roster.enter_line(call.client());
        }
    }

    fn waiting_limit(&self) -> u64 {
        self.lending.budget().limit()
    }
}

impl Sessions {
    /// The call cannot be answered in place after all: its slot keeps the reply.
    #[cold]
    fn leave_place(&mut self, call: &CallToken) {
        if let Some(id) = self.outgoing.in_place.end() {
            self.track_idempotent(call.client(), id);
        }
    }
}

#[cold]
fn reserve_large<'a>(
    Unanswered { body, loan, bounds, .. }: Unanswered<'a>,
    len: usize,
    lending: &mut Lending,
    buffers: &mut LargeBuffers,
) -> Result<&'a mut [u8], ReserveError> {
    if len as u64 > bounds.max_message {
        return Err(ReserveError::TooLarge { len: len as u64, max: bounds.max_message });
    }
    let buffer = lending.take_for_response(loan, len, |len| buffers.take_for_response(len))?;
    match &mut **body.large.insert(Box::new(Large::Draft(buffer))) {
        Large::Draft(buffer) => Ok(buffer),
        _ => Err(ReserveError::Closed),
    }
}

#[cold]
fn post_large(Unanswered { body, loan, bounds, .. }: Unanswered<'_>, index: u32, len: usize) {
    let Some(Large::Draft(mut whole)) = body.large.take().map(|large| *large) else { return };
    whole.set_len(len);
    match Parts::new(len as u64, bounds.part_bytes as usize) {
        Some(parts) if len > bounds.max_small => {
            body.large = Some(Box::new(Large::Lent { whole, parts, base: 0, wanted: 0 }));
            loan.take_response(index, len as u64);
        }
        // The response came out shorter than was reserved.
        _ => {
            body.reply.clear();
            body.reply.extend_from_slice(&whole);
        }
    }
}
