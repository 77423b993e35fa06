//! Answers of one server thread.

use farcall_core::error::{Backpressure, ReserveError};
use farcall_core::transport::{Body, CallToken, Replies};
use farcall_verbs::Drafts;
use zerocopy::IntoBytes;

use super::carrier::ServerCarrier;
use super::connection::{Connection, Phase};
use super::requests::Clients;
use super::wire::{HEADER_BYTES, Kind, Op};
use crate::kit::lending::Lending;

impl<C: ServerCarrier> Replies for Clients<C> {
    #[inline]
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        let Clients { roster, lending, drafts, .. } = self;
        let Some(connection) = roster.get(call.client()) else { return Err(ReserveError::Closed) };
        let max_small = connection.max_small;
        let Some(slot) = connection.slot_of(call) else { return Err(ReserveError::Closed) };
        slot.large_reply = len > max_small;
        if len > max_small {
            return reserve_large(connection, lending, drafts, call.slot(), len);
        }
        match connection.link.stage(call.slot()) {
            Some(staged) => Ok(&mut staged[HEADER_BYTES..HEADER_BYTES + len]),
            None => Err(Backpressure::SendQueue.into()),
        }
    }

    #[inline]
    fn post(&mut self, call: CallToken, len: usize) {
        let Some(connection) = self.roster.get_in_line(call.client()) else { return };
        let Some(slot) = connection.slot_of(&call) else { return };
        if slot.large_reply {
            return self.post_large(&call, len);
        }
        slot.phase = Phase::Idle;
        connection.link.post(call.slot(), call.generation(), Kind::Inline, HEADER_BYTES + len);
    }

    fn post_parts(
        &mut self,
        token: &mut Option<CallToken>,
        front: &[u8],
        body: Body<'_>,
    ) -> Result<(), ReserveError> {
        let Some(call) = token else { return Ok(()) };
        let Some(connection) = self.roster.get_in_line(call.client()) else {
            return Err(ReserveError::Closed);
        };
        if front.len() + body.len() > connection.max_small {
            let lending = &mut self.lending;
            if !lend_here(connection, lending, call, front, body)? {
                lend_pieces(connection, lending, call, [front, &body])?;
            }
            *token = None;
            return Ok(());
        }
        let Some(slot) = connection.slot_of(call) else { return Err(ReserveError::Closed) };
        slot.large_reply = false;
        if connection.link.stage(call.slot()).is_none() {
            return Err(Backpressure::SendQueue.into());
        }
        if let Some(slot) = connection.slot_of(call) {
            slot.phase = Phase::Idle;
        }
        connection.link.post_parts(call.slot(), call.generation(), front, &body);
        *token = None;
        Ok(())
    }

    fn waiting_limit(&self) -> u64 {
        self.lending.budget().limit()
    }
}

#[cold]
fn reserve_large<'c, C: ServerCarrier>(
    connection: &'c mut Connection<C>,
    lending: &mut Lending,
    drafts: &'c mut Drafts,
    slot: u32,
    len: usize,
) -> Result<&'c mut [u8], ReserveError> {
    if len as u64 > connection.max_message {
        return Err(ReserveError::TooLarge { len: len as u64, max: connection.max_message });
    }
    Ok(drafts.open(connection.large.reserve(slot, len, lending)?))
}

/// Lends a response where it is, if it is in registered memory of the program's and the client can read it there. `false`: nothing was done.
#[cold]
fn lend_here<C: ServerCarrier>(
    connection: &mut Connection<C>,
    lending: &Lending,
    call: &CallToken,
    front: &[u8],
    body: Body<'_>,
) -> Result<bool, ReserveError> {
    let Body::Shared(body) = body else { return Ok(false) };
    let len = (front.len() + body.len()) as u64;
    if len > connection.max_message || !connection.link.peer().reads_here {
        return Ok(false);
    }
    if connection.slot_of(call).is_none() {
        return Err(ReserveError::Closed);
    }
    let Connection { large, link, slots, .. } = connection;
    let Some(here) = large.lend_here(call.slot(), front, body, lending) else { return Ok(false) };
    link.post_control(call.slot(), call.generation(), Kind::ResponseHere, here.as_bytes());
    slots[call.slot() as usize].phase = Phase::Lent;
    Ok(true)
}

/// Lends a response that consists of these pieces. The client reads its first parts while the next are copied.
#[cold]
fn lend_pieces<C: ServerCarrier>(
    connection: &mut Connection<C>,
    lending: &mut Lending,
    call: &CallToken,
    pieces: [&[u8]; 2],
) -> Result<(), ReserveError> {
    let (index, generation) = (call.slot(), call.generation());
    let (len, max) = ((pieces[0].len() + pieces[1].len()) as u64, connection.max_message);
    if len > max {
        return Err(ReserveError::TooLarge { len, max });
    }
    if connection.slot_of(call).is_none() {
        return Err(ReserveError::Closed);
    }
    let Connection { large, link, slots, .. } = connection;
    let may_part = C::SENDS_IN_ORDER && large.may_part();
    large.lend_pieces(index, pieces, may_part, lending, |lent| {
        match lent {
            Some(lent) => link.post_control(index, generation, Kind::Lent, lent.as_bytes()),
            None => link.post_op(Op::Chunk, index),
        }
        if may_part {
            link.ring();
        }
    })?;
    slots[index as usize].phase = Phase::Lent;
    Ok(())
}

impl<C: ServerCarrier> Clients<C> {
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
