//! The clients of one server thread, and what arrives from them.

use std::io::IoSliceMut;

use farcall_core::metrics::RefusalReason;
use farcall_core::time::Instant;
use farcall_core::transport::{ClientEvent, ClientId, Message, RequestSink};

use super::buffers::Buffers;
use super::connection::{Connection, Phase, Slot};
use super::inbox::{Inbox, Incoming, Misbehaved, Next};
use super::large::{Arrived, Arriving};
use super::wire::{HEADER_BYTES, Header, Kind};
use super::{broken, is_nothing_yet};
use crate::kit::fair_queue::Verdict;
use crate::kit::lending::{Lending, Shortage};
use crate::kit::roster::{Member, Roster};

/// All clients of one server thread.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) roster: Roster<Connection>,
    pub(super) lending: Lending,
    pub(super) buffers: Buffers,
    /// Clients that are to be dropped.
    pub(super) broken: Vec<u32>,
    /// Empty between turns: clients to whom more could be sent than one turn may.
    pub(super) unfinished: Vec<u32>,
}

/// Why a client is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disconnect {
    Goodbye,
    /// Its stream has ended.
    Gone,
    Misbehaved(Misbehaved),
    /// It holds memory that others wait for, and does not move on.
    Stalled,
}

impl From<Misbehaved> for Disconnect {
    fn from(what: Misbehaved) -> Disconnect {
        Disconnect::Misbehaved(what)
    }
}

const NONSENSE: Disconnect = Disconnect::Misbehaved("a frame that its slot does not expect");

impl Clients {
    /// Some requests want memory, or a client is to be dropped.
    #[inline]
    pub(super) fn need_attention(&self) -> bool {
        self.lending.has_shortage() || !self.broken.is_empty()
    }

    /// The client's stream may have room again.
    #[inline]
    pub(super) fn note_room(&mut self, client: u32) {
        if self.roster.get(client).is_some_and(|client| client.is_blocked) {
            self.roster.enter_line(client);
        }
    }

    /// Drops a client.
    #[cold]
    pub(super) fn remove(&mut self, client: u32, why: Disconnect, sink: &mut dyn RequestSink) {
        let refusal = match why {
            Disconnect::Misbehaved(_) => Some(RefusalReason::BrokeProtocol),
            Disconnect::Stalled => Some(RefusalReason::Stalled),
            Disconnect::Goodbye | Disconnect::Gone => None,
        };
        if !self.roster.remove(client, refusal, sink) {
            return;
        }
        match why {
            Disconnect::Misbehaved(what) => {
                tracing::warn!(client, what, "dropped a client that broke the protocol");
            }
            Disconnect::Stalled => {
                tracing::warn!(client, "dropped a client that holds memory and does not move on");
            }
            Disconnect::Goodbye | Disconnect::Gone => {
                tracing::debug!(client, ?why, "a client left")
            }
        }
        self.lending.forget(client);
        // A later client may have its number.
        self.broken.retain(|broken| *broken != client);
    }

    /// Reads once from a client, and handles what has arrived. Gives the bytes.
    #[inline]
    pub(super) fn receive(
        &mut self,
        client: u32,
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> usize {
        match self.try_receive(client, scratch, now, sink) {
            Ok(read) => read,
            Err(why) => {
                self.remove(client, why, sink);
                1
            }
        }
    }

    #[inline]
    fn try_receive(
        &mut self,
        client: u32,
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<usize, Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(0) };
        if !connection.is_read() {
            return Ok(0);
        }
        let Connection { stream: Some(watched), inbox, slots, .. } = connection else {
            return Ok(0);
        };
        let (stream, incoming) = (&mut watched.stream, inbox.incoming());
        let (read, direct) = match incoming {
            None => (stream.receive(&mut [IoSliceMut::new(scratch)]), 0),
            Some(incoming) => {
                let room = room_for(slots, &incoming);
                let direct = room.len();
                let into = &mut [IoSliceMut::new(room), IoSliceMut::new(scratch)];
                (stream.receive(&mut into[usize::from(direct == 0)..]), direct)
            }
        };
        let read = match read {
            Ok(0) => return Err(Disconnect::Gone),
            Ok(read) => read,
            Err(error) if is_nothing_yet(&error) => return Ok(0),
            Err(error) => {
                return Err(broken(&error).map_or(Disconnect::Gone, Disconnect::Misbehaved));
            }
        };
        let direct = read.min(direct);
        if direct > 0
            && let Some(incoming) = incoming
        {
            inbox.skip(direct);
            self.handle_landed(client, incoming.slot, direct, now, sink);
        }
        let mut bytes = &scratch[..read - direct];
        while let Some(inbox) = self.inbox(client) {
            match inbox.next(&mut bytes)? {
                Next::Frame(header, body) => self.handle_frame(client, header, body, now, sink)?,
                Next::Nothing => break,
                Next::Bytes(incoming, bytes) => {
                    self.handle_bytes(
                        client,
                        (incoming.slot, incoming.generation),
                        bytes,
                        now,
                        sink,
                    )?;
                }
                Next::Assembled(header) => {
                    let frame = inbox.take_assembled();
                    self.handle_frame(client, header, &frame[HEADER_BYTES..], now, sink)?;
                    if let Some(inbox) = self.inbox(client) {
                        inbox.give_back(frame);
                    }
                }
            }
        }
        Ok(read)
    }

    #[inline]
    fn inbox(&mut self, client: u32) -> Option<&mut Inbox> {
        self.roster.get(client).map(|connection| &mut connection.inbox)
    }

    #[inline]
    fn handle_frame(
        &mut self,
        client: u32,
        header: Header,
        body: &[u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Disconnect> {
        if header.kind != Kind::Whole {
            return self.handle_control(client, header, body, now, sink);
        }
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        // The reader has checked the slot.
        let slot = &mut connection.slots[header.slot as usize];
        if !matches!(slot.phase, Phase::Idle) {
            return Err(NONSENSE);
        }
        (slot.phase, slot.generation) = (Phase::Busy, header.generation);
        sink.request(connection.token(header.slot), Message::Borrowed(body), self);
        Ok(())
    }

    #[cold]
    fn handle_control(
        &mut self,
        client: u32,
        header: Header,
        body: &[u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        let Header { kind, slot: index, generation, .. } = header;
        let rules = *connection.rules();
        let slot = &mut connection.slots[index as usize];
        match (kind, &mut slot.phase) {
            (Kind::Goodbye, _) => Err(Disconnect::Goodbye),
            (Kind::Begin, Phase::Idle) => {
                let len = rules.read_begin(body)?;
                (slot.phase, slot.generation) = (Phase::Waiting, generation);
                self.lending.wait(client, index, len);
                self.serve_waiting(now);
                Ok(())
            }
            (Kind::Grant, phase @ Phase::Offered(_)) if slot.generation == generation => {
                if let Phase::Offered(response) = std::mem::replace(phase, Phase::Sending) {
                    connection.loan.move_on(now);
                    connection.outbox.push_large(index, generation, response);
                    self.roster.enter_line(client);
                }
                Ok(())
            }
            (Kind::Cancel, _) if slot.generation == generation => {
                self.cancel(client, index, now, sink);
                Ok(())
            }
            // The call has ended meanwhile.
            (Kind::Cancel, _) => Ok(()),
            _ => Err(NONSENSE),
        }
    }

    /// The client gave up the slot's call.
    fn cancel(&mut self, client: u32, index: u32, now: Instant, sink: &mut dyn RequestSink) {
        let Some(connection) = self.roster.get(client) else { return };
        let slot = &mut connection.slots[index as usize];
        match &slot.phase {
            Phase::Idle => return,
            Phase::Busy | Phase::Draft(_) => {
                let call = connection.token(index);
                let generation = call.generation();
                let cancelled = ClientEvent::Cancelled { slot: index, generation };
                return sink.client(ClientId::of(&call), cancelled);
            }
            Phase::Waiting => self.lending.stop_waiting(client, index),
            Phase::Arriving(_) => {}
            Phase::Offered(_) => connection.unfetched -= 1,
            Phase::Sending => match connection.outbox.withdraw_large(index) {
                Some(_) => connection.unfetched -= 1,
                None => return,
            },
        }
        slot.phase = Phase::Idle;
        connection.loan.give_back(index);
        connection.push(Kind::Dropped, index);
        self.roster.enter_line(client);
        self.serve_waiting(now);
    }

    /// Gives memory to the requests that wait for it, in turn.
    pub(super) fn serve_waiting(&mut self, now: Instant) {
        Lending::serve(
            self,
            |clients| &mut clients.lending,
            |clients, client, slot, len| clients.grant(client, slot, len, now),
        );
    }

    /// Makes room for a request, and tells its client.
    fn grant(&mut self, client: u32, index: u32, len: u64, now: Instant) -> Verdict {
        let Clients { roster, lending, buffers, .. } = self;
        let Some(connection) = roster.get(client) else { return Verdict::Done };
        if !lending.is_within_share(&connection.loan, len) {
            return Verdict::ClientFull;
        }
        // It was checked when it was announced.
        let Some(buffer) = usize::try_from(len).ok().and_then(|len| buffers.take(len)) else {
            lending.note_shortage();
            return Verdict::Exhausted;
        };
        connection.loan.take(index, len, now);
        connection.slots[index as usize].phase = Phase::Arriving(Arriving::new(buffer));
        connection.push(Kind::Grant, index);
        roster.enter_line(client);
        Verdict::Done
    }

    #[cold]
    fn handle_bytes(
        &mut self,
        client: u32,
        (index, generation): (u32, u32),
        bytes: &[u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        let slot = &mut connection.slots[index as usize];
        let Phase::Arriving(arriving) = &mut slot.phase else { return Err(NONSENSE) };
        if slot.generation != generation {
            return Err(NONSENSE);
        }
        let arrived = arriving.add(bytes).ok_or(NONSENSE)?;
        self.finish_arrival(client, index, arrived, now, sink);
        Ok(())
    }

    /// So many bytes were read straight into the slot's request.
    #[cold]
    fn handle_landed(
        &mut self,
        client: u32,
        index: u32,
        bytes: usize,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let Some(connection) = self.roster.get(client) else { return };
        let Phase::Arriving(arriving) = &mut connection.slots[index as usize].phase else { return };
        let arrived = arriving.add_landed(bytes);
        self.finish_arrival(client, index, arrived, now, sink);
    }

    /// Bytes of a request have arrived; if it is whole, its handler gets it.
    fn finish_arrival(
        &mut self,
        client: u32,
        index: u32,
        arrived: Arrived,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let Some(connection) = self.roster.get(client) else { return };
        connection.loan.move_on(now);
        let Arrived::Whole(Some(request)) = arrived else { return };
        connection.loan.give_back(index);
        connection.slots[index as usize].phase = Phase::Busy;
        let token = connection.token(index);
        let request = Message::Owned(self.lending.budget().hand_over(request));
        sink.request(token, request, self);
        self.serve_waiting(now);
    }

    /// Finds clients that hold memory which messages wait for, and do not move on.
    pub(super) fn find_stalled(&mut self, shortage: Shortage, now: Instant) {
        let Clients { roster, lending, broken, .. } = self;
        let loans = roster.iter_mut().map(|it| (it.id().number, &mut it.loan));
        lending.find_stalled(shortage, now, loans, broken);
    }
}

/// Where the next bytes go, if they are those of a request that arrives and has memory for them.
fn room_for<'s>(slots: &'s mut [Slot], incoming: &Incoming) -> &'s mut [u8] {
    let slot = &mut slots[incoming.slot as usize];
    match &mut slot.phase {
        Phase::Arriving(arriving) if slot.generation == incoming.generation => {
            arriving.room(incoming.left)
        }
        _ => &mut [],
    }
}
