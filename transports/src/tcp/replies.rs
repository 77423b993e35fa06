//! Answers of one server thread.

use farcall_core::error::ReserveError;
use farcall_core::transport::{CallToken, Replies};

use super::connection::{Connection, Phase};
use super::requests::Clients;
use super::wire::{self, Header, Kind};

impl Replies for Clients {
    #[inline]
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        let Clients { roster, lending, buffers, .. } = self;
        let Some(connection) = roster.get(call.client()) else { return Err(ReserveError::Closed) };
        let Some(answered) = connection.slot_of(call) else { return Err(ReserveError::Closed) };
        if let Phase::Draft(_) = answered.phase {
            // The last reservation counts.
            answered.phase = Phase::Busy;
        }
        let slot = call.slot();
        if len <= connection.rules().max_whole {
            return Ok(connection.outbox.stage(slot, len));
        }
        let max = connection.rules().max_message;
        if len as u64 > max {
            return Err(ReserveError::TooLarge { len: len as u64, max });
        }
        connection.outbox.unstage(slot);
        let draft =
            lending.take_for_response(&mut connection.loan, len, |len| buffers.take(len))?;
        let phase = &mut connection.slots[slot as usize].phase;
        *phase = Phase::Draft(draft);
        match phase {
            Phase::Draft(draft) => Ok(draft.bytes_mut()),
            _ => Err(ReserveError::Closed),
        }
    }

    #[inline]
    fn post(&mut self, call: CallToken, len: usize) {
        let Some(connection) = self.roster.get_in_line(call.client()) else { return };
        let Some(answered) = connection.slot_of(&call) else { return };
        if let Phase::Draft(_) = answered.phase {
            return post_large(connection, &call, len);
        }
        answered.phase = Phase::Idle;
        let (slot, generation) = (call.slot(), call.generation());
        connection.outbox.post(Header { kind: Kind::Whole, slot, generation, len });
    }

    fn waiting_limit(&self) -> u64 {
        self.lending.budget().limit()
    }
}

#[cold]
fn post_large(connection: &mut Connection, call: &CallToken, len: usize) {
    let (slot, generation) = (call.slot(), call.generation());
    let phase = &mut connection.slots[slot as usize].phase;
    let Phase::Draft(mut draft) = std::mem::replace(phase, Phase::Idle) else { return };
    draft.truncate(len);
    if len <= connection.rules().max_whole {
        // The answer came out shorter than was reserved.
        let header = Header { kind: Kind::Whole, slot, generation, len };
        return connection.outbox.push(header, draft.as_ref());
    }
    connection.loan.take_response(slot, len as u64);
    connection.unfetched += 1;
    connection.slots[slot as usize].phase = Phase::Offered(draft);
    let body = wire::begin_body(len);
    connection.outbox.push(Header { kind: Kind::Begin, slot, generation, len: body.len() }, &body);
}
