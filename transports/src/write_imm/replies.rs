//! Answers of one server thread.

use farcall_core::error::{Backpressure, ReserveError};
use farcall_core::transport::{CallToken, Replies};
use zerocopy::IntoBytes;

use super::connection::Phase;
use super::layout::{HEADER_BYTES, Kind};
use super::requests::Clients;

impl Replies for Clients {
    #[inline]
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        let Some(connection) = self.roster.get(call.client()) else {
            return Err(ReserveError::Closed);
        };
        let max_small = connection.max_small;
        let Some(slot) = connection.slot_of(call) else { return Err(ReserveError::Closed) };
        slot.large_reply = false;
        if len > max_small {
            return self.reserve_large(call, len);
        }
        match connection.link.stage(call.slot()) {
            Some(staged) => Ok(&mut staged[HEADER_BYTES..HEADER_BYTES + len]),
            None => Err(Backpressure::SendQueue.into()),
        }
    }

    #[inline]
    fn post(&mut self, call: CallToken, len: usize) {
        let Some(connection) = self.roster.get(call.client()) else { return };
        let Some(slot) = connection.slot_of(&call) else { return };
        if slot.large_reply {
            self.post_large(&call, len);
        } else {
            slot.phase = Phase::Idle;
            connection.link.post(call.slot(), call.generation(), Kind::Inline, HEADER_BYTES + len);
        }
        self.roster.enter_line(call.client());
    }
}

impl Clients {
    #[cold]
    fn reserve_large(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        let Some(connection) = self.roster.get(call.client()) else {
            return Err(ReserveError::Closed);
        };
        if len as u64 > connection.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: connection.max_message });
        }
        let buffer = connection.large.reserve(call.slot(), len, &mut self.lending)?;
        connection.slots[call.slot() as usize].large_reply = true;
        Ok(self.drafts.open(buffer))
    }

    #[cold]
    fn post_large(&mut self, call: &CallToken, len: usize) {
        let index = call.slot();
        let Some(connection) = self.roster.get(call.client()) else { return };
        let Some(response) = connection.large.finish(index, len, &mut self.drafts) else { return };
        let slot = &mut connection.slots[index as usize];
        slot.large_reply = false;
        if len <= connection.max_small {
            // The answer came out shorter than was reserved.
            slot.phase = Phase::Idle;
            if let Some(staged) = connection.link.stage(index) {
                staged[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&response);
            }
            connection.link.post(index, call.generation(), Kind::Inline, HEADER_BYTES + len);
        } else if let Some(lent) = connection.large.lend(index, response) {
            slot.phase = Phase::Lent;
            connection.link.post_control(index, call.generation(), Kind::Lent, lent.as_bytes());
        }
    }
}
