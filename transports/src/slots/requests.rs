//! The clients of one server thread: what their completions bring.

use std::collections::VecDeque;

use farcall_core::metrics::RefusalReason;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{ClientEvent, ClientId, RequestSink};
use farcall_verbs::{CompletionOpcode, Drafts, Status, WorkCompletion};

use super::carrier::{ArrivedOp, ServerCarrier, Turn};
use super::connection::{Connection, Phase};
use super::link::Arrived;
use super::wire::{HEADER_BYTES, Immediate, Kind, Op, split};
use crate::kit::completions::POLL_BATCH;
use crate::kit::lending::Lending;
use crate::kit::memory::LargeBuffers;
use crate::kit::roster::Roster;
use crate::kit::scratch::Scratch;
use crate::rendezvous::server::Misbehaved;

#[derive(Debug)]
pub(crate) struct Clients<C> {
    pub(crate) roster: Roster<Connection<C>>,
    pub(crate) lending: Lending,
    /// Where large requests are put together.
    pub(crate) assembly: LargeBuffers,
    /// Where large responses are written.
    pub(crate) drafts: Drafts,
    /// Clients whose posts failed, or that hold memory and do not move on; the next poll drops them.
    pub(crate) broken: Vec<u32>,
    /// What was READ, for a moment.
    pub(super) arrived: Arrived,
    /// Large requests of which more can be READ: their clients and slots, in turn.
    pub(super) reading: VecDeque<(u32, u32)>,
    /// Clients that have announced something, for the schedule of carriers that have one, and for those that look at some only.
    pub(crate) announced: Vec<u32>,
    /// Clients that have left, for the same.
    pub(crate) departed: Vec<u32>,
}

/// A message has arrived, and took a receive.
#[inline]
fn is_arrival(completion: &WorkCompletion) -> bool {
    matches!(completion.opcode, CompletionOpcode::Recv | CompletionOpcode::RecvWriteWithImm)
}

/// Why a client is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Disconnect {
    Misbehaved(Misbehaved),
    Lost(Status),
    Goodbye,
}

impl From<Misbehaved> for Disconnect {
    fn from(rule: Misbehaved) -> Disconnect {
        Disconnect::Misbehaved(rule)
    }
}

impl<C: ServerCarrier> Clients<C> {
    pub(crate) fn new(
        roster: Roster<Connection<C>>,
        lending: Lending,
        assembly: LargeBuffers,
        drafts: Drafts,
    ) -> Clients<C> {
        Clients {
            roster,
            lending,
            assembly,
            drafts,
            broken: Vec::new(),
            arrived: Arrived::default(),
            reading: VecDeque::new(),
            announced: Vec::with_capacity(if C::LOOKS { POLL_BATCH } else { 0 }),
            departed: Vec::new(),
        }
    }

    /// Takes new clients over, and drops those that were withdrawn.
    #[cold]
    pub(crate) fn take_arrivals(&mut self, sink: &mut dyn RequestSink) {
        while let Some(client) = self.roster.take_arrivals(sink) {
            self.remove(client, Disconnect::Goodbye, sink);
        }
    }

    /// Takes the requests of all clients that have arrived without completions.
    #[inline]
    pub(crate) fn look_at_all(
        &mut self,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        let mut progress = Progress { scanned: self.roster.count() as u32, ..Progress::IDLE };
        for client in 0..self.roster.end() {
            progress.worked += self.take_requests(client, u32::MAX, scratch, now, sink);
        }
        progress
    }

    /// A request makes an event from now on, where the device can tell. `false`: there is one already.
    pub(crate) fn arm_carriers(&self) -> bool {
        let mut carriers = self.roster.iter().map(|it| &it.link.carrier);
        carriers.all(|carrier| {
            carrier.arm();
            carrier.waiting().is_none()
        })
    }

    /// Drops one client, and all that it had.
    #[cold]
    pub(crate) fn remove(&mut self, client: u32, why: Disconnect, sink: &mut dyn RequestSink) {
        let refusal = match why {
            Disconnect::Misbehaved(_) => Some(RefusalReason::BrokeProtocol),
            Disconnect::Lost(_) | Disconnect::Goodbye => None,
        };
        if !self.roster.remove(client, refusal, sink) {
            return;
        }
        match why {
            Disconnect::Misbehaved(rule) => {
                tracing::warn!(client, rule, "dropping a client that broke the protocol");
            }
            Disconnect::Lost(status) => tracing::debug!(client, ?status, "lost a client"),
            Disconnect::Goodbye => tracing::debug!(client, "a client said goodbye"),
        }
        self.lending.forget(client);
        // A later client may have its number.
        self.broken.retain(|broken| *broken != client);
        if C::IS_SCHEDULED {
            self.departed.push(client);
        }
    }

    #[inline]
    pub(crate) fn complete(
        &mut self,
        completion: &WorkCompletion,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let client = C::client_of(completion);
        let connection = match self.roster.get(client) {
            Some(connection) if connection.qp == completion.qp => connection,
            _ => return self.handle_stray(completion, sink),
        };
        if completion.status != Status::Success {
            return self.remove(client, Disconnect::Lost(completion.status), sink);
        }
        if !is_arrival(completion) {
            connection.link.retire(completion.id, &mut self.arrived);
            if C::LOOKS
                && let Some(requests) = self.arrived.requests.pop()
            {
                connection.link.carrier.handle_fetched(requests);
                connection.link.give_back_empty();
            }
            if connection.link.has_posts() {
                self.roster.enter_line(client);
            }
            if !self.arrived.parts.is_empty() {
                self.handle_parts(client, now, sink);
            }
            return;
        }
        connection.link.consume_receive();
        let imm = completion.imm.unwrap_or(u32::MAX);
        if let Some(index) = Immediate::message_of(client, imm)
            && let Some(slot) = connection.slots.get_mut(index as usize)
            && slot.phase == Phase::Idle
            && let Some(message) = connection.link.read(completion, index, scratch)
            && let Some((generation, Kind::Inline, _)) = split(&message)
            && let Some(body) = message.skip(HEADER_BYTES)
        {
            slot.generation = generation;
            slot.phase = Phase::Busy;
            let token = connection.token_of(index, generation);
            return sink.request(token, body, self);
        }
        if let Err(why) = self.handle_uncommon(client, imm, completion, scratch, now, sink) {
            self.remove(client, why, sink);
        }
    }

    /// A completion that does not belong to the client that it names: left over from an earlier client of that number, or
    /// of a client that names another, or no client at all.
    #[cold]
    fn handle_stray(&mut self, completion: &WorkCompletion, sink: &mut dyn RequestSink) {
        let client = self.roster.iter().find(|connection| connection.qp == completion.qp);
        let Some(client) = client.map(|connection| connection.link.client()) else { return };
        let why = match completion.status {
            Status::Success => "an immediate that names another client".into(),
            status => Disconnect::Lost(status),
        };
        self.remove(client, why, sink);
    }

    /// Everything but a request in its slot.
    #[cold]
    fn handle_uncommon(
        &mut self,
        client: u32,
        imm: u32,
        completion: &WorkCompletion,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Disconnect> {
        let Immediate { op, client: named, slot: index } = Immediate::from_wire(imm);
        if named != client {
            return Err("an immediate that names another client".into());
        }
        if C::LOOKS {
            if op == Op::Message
                && let Some(connection) = self.roster.get(client)
            {
                connection.link.carrier.handle_announcement();
            }
            // Those that were sent before an operation come before it. A schedule takes them in its own time, and its carriers put the
            // operation off until then.
            if !C::IS_SCHEDULED || op == Op::Goodbye {
                self.take_requests(client, u32::MAX, scratch, now, sink);
            }
            if !C::IS_SCHEDULED && self.announced.len() < POLL_BATCH {
                self.announced.push(client);
            }
        }
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        if op != Op::Message {
            let byte_len = completion.byte_len.into();
            if op != Op::Chunk {
                let arrived = ArrivedOp { op, argument: index, completion };
                match connection.link.carrier.handle_operation(arrived)? {
                    Turn::Now => {}
                    Turn::Later => return Ok(()),
                    Turn::Handled => {
                        self.announced.push(client);
                        return Ok(());
                    }
                }
            }
            self.handle_operation(client, op, index, byte_len, now, sink)?;
            if C::SHARES_RECEIVES
                && let Some(connection) = self.roster.get(client)
                && connection.credit_operation()
            {
                self.roster.enter_line(client);
            }
            return Ok(());
        }
        if C::LOOKS {
            return Ok(());
        }
        let Some(slot) = connection.slots.get_mut(index as usize) else {
            return Err("a slot outside the window".into());
        };
        if slot.phase != Phase::Idle {
            return Err("a request in a slot that is not free".into());
        }
        let Some(message) = connection.link.read(completion, index, scratch) else {
            return Err("a length beyond the slot".into());
        };
        let announced = slot.announced(&message)?;
        self.handle_announcement(client, index, announced, now)
    }

    /// Takes the requests of a client that have arrived without completions, at most a window of them and so many. Gives their
    /// number.
    pub(crate) fn take_requests(
        &mut self,
        client: u32,
        most: u32,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let mut taken = 0;
        loop {
            let Some(connection) = self.roster.get(client) else { return taken };
            if taken == most || taken as usize == connection.slots.len() {
                return taken;
            }
            if let Some((op, index)) = connection.link.carrier.take_deferred() {
                if let Err(why) = self.handle_operation(client, op, index, 0, now, sink) {
                    self.remove(client, why, sink);
                    return taken;
                }
                continue;
            }
            let Some(waiting) = connection.link.carrier.waiting() else { return taken };
            let index = waiting.slot;
            if connection.slots.get(index as usize).is_none_or(|slot| slot.phase != Phase::Idle) {
                self.remove(client, "a request in a slot that is not free".into(), sink);
                return taken;
            }
            taken += 1;
            let message = connection.link.carrier.take(waiting, scratch);
            connection.link.give_back_empty();
            let slot = &mut connection.slots[index as usize];
            let handled = match message {
                None => Err("a length beyond the slot".into()),
                Some(message) => match split(&message) {
                    Some((generation, Kind::Inline, _)) => {
                        slot.generation = generation;
                        slot.phase = Phase::Busy;
                        let token = connection.token_of(index, generation);
                        if let Some(body) = message.skip(HEADER_BYTES) {
                            sink.request(token, body, self);
                        }
                        Ok(())
                    }
                    _ => slot
                        .announced(&message)
                        .and_then(|it| self.handle_announcement(client, index, it, now)),
                },
            };
            if let Err(why) = handled {
                self.remove(client, why, sink);
                return taken;
            }
        }
    }

    #[cold]
    fn handle_operation(
        &mut self,
        client: u32,
        op: Op,
        index: u32,
        byte_len: u64,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        if op == Op::Mode {
            if let Some(argument) = connection.link.carrier.handle_mode(index)? {
                connection.link.post_op(Op::Mode, argument);
                self.roster.enter_line(client);
            }
            return Ok(());
        }
        let Some(slot) = connection.slots.get_mut(index as usize) else {
            return Err("a slot outside the window".into());
        };
        if op == Op::Cancel && !slot.cancel() {
            return Err("a second cancellation of the same request".into());
        }
        let slot = *slot;
        match op {
            Op::Chunk if slot.phase == Phase::Landing => {
                self.handle_chunk(client, index, byte_len, now, sink)
            }
            Op::Cancel => {
                match slot.phase {
                    Phase::Waiting | Phase::Landing => self.drop_announced(client, index, now),
                    Phase::Busy => {
                        let call = connection.token(index);
                        let generation = call.generation();
                        let cancelled = ClientEvent::Cancelled { slot: index, generation };
                        sink.client(ClientId::of(&call), cancelled);
                    }
                    // The cancellation has crossed the answer.
                    Phase::Idle | Phase::Lent => {}
                }
                Ok(())
            }
            Op::Release if slot.phase == Phase::Lent => {
                self.handle_release(client, index, now);
                Ok(())
            }
            Op::Goodbye => Err(Disconnect::Goodbye),
            Op::Chunk | Op::Release | Op::Dropped | Op::Message | Op::Mode | Op::Credit => {
                Err("an operation that the slot does not wait for".into())
            }
        }
    }

    /// There is more to do than completions say.
    #[inline]
    pub(crate) fn need_attention(&self) -> bool {
        self.lending.has_shortage() || !self.broken.is_empty() || !self.reading.is_empty()
    }

    /// Large requests can be read on.
    pub(crate) fn can_read(&self) -> bool {
        !self.reading.is_empty()
    }

    /// Answers that clients have not read yet, or that have not left.
    #[cold]
    pub(crate) fn has_unfetched(&self) -> bool {
        self.roster.iter().any(|connection| {
            connection.link.has_posts()
                || connection.link.carrier.has_placed()
                || connection.slots.iter().any(|slot| slot.phase == Phase::Lent)
        })
    }

    /// Leaves no responses for clients to fetch from now on, and tells them.
    #[cold]
    pub(crate) fn stop_placing(&mut self) {
        for client in 0..self.roster.end() {
            if let Some(connection) = self.roster.get(client)
                && let Some(argument) = connection.link.carrier.stop_placing()
            {
                connection.link.post_op(Op::Mode, argument);
                self.roster.enter_line(client);
            }
        }
        self.ring();
    }

    /// One doorbell for each client that has posts.
    #[inline]
    pub(crate) fn ring(&mut self) {
        let Clients { roster, broken, .. } = self;
        roster.serve_line(|connection| {
            connection.link.ring();
            if connection.link.is_broken() {
                broken.push(connection.link.client());
            }
            true
        });
    }
}
