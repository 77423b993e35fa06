//! The server's carrier: requests out of its cells, responses into the ring.

use farcall_core::site::Site;
use farcall_core::transport::Message;
use farcall_verbs::{Buffer, SharedRegion, WorkCompletion, WorkRequest};

use super::lines::{LINE_BYTES, Ring, ring_lines};
use super::service_time;
use super::setup::Places;
use super::switch::{Ask, next_epoch};
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::planted::{Bug, is_planted};
use crate::rendezvous::server::Misbehaved;
use crate::slots::carrier::{ArrivedOp, Carrier, ServerCarrier, Turn, Waiting};
use crate::slots::cells::{CellTurn, Trailer, sealed_bytes, trailer_at};
use crate::slots::link::stride;
use crate::slots::wire::put_note;
use crate::slots::writes::Writes;

/// A server's end of a connection.
#[derive(Debug)]
pub(super) struct Responses {
    /// Our cells, and the client's slots for responses that are sent.
    writes: Writes,
    /// Requests are found by looking, and not by their immediates.
    looks: bool,
    /// Requests whose immediates have arrived.
    announced: u32,
    turn: CellTurn,
    /// Operations that have arrived, round in 16 bits.
    operations: u16,
    slot_bytes: u32,
    region: SharedRegion,
    ring: Ring,
    long_at: usize,
    long_stride: usize,
    /// Responses are left in the ring.
    places: bool,
    /// Something was left of which the client has not said that it has fetched it.
    has_placed: bool,
    is_ending: bool,
    epoch: u32,
    /// When each slot's request was taken, in nanoseconds, if responses were sent then; else 0.
    began: Box<[u64]>,
    site: Site,
}

impl Responses {
    pub(super) fn new(
        writes: Writes,
        region: SharedRegion,
        places: &Places,
        looks: bool,
        site: &Site,
    ) -> Responses {
        let Places { window, slot_bytes, most_lines, .. } = *places;
        Responses {
            writes,
            looks,
            announced: 0,
            turn: CellTurn::new(window),
            operations: 0,
            slot_bytes,
            ring: Ring::new(region.clone(), window, most_lines),
            region,
            long_at: ring_lines(window, most_lines) as usize * LINE_BYTES,
            long_stride: stride(slot_bytes) as usize,
            places: true,
            has_placed: false,
            is_ending: false,
            epoch: 0,
            began: vec![0; window as usize].into(),
            site: site.clone(),
        }
    }

    /// Notes on a response that is sent how long it took.
    fn note_time(&self, slot: u32, message: &mut [u8]) {
        let began = self.began.get(slot as usize).copied().unwrap_or_default();
        let took = match began {
            0 => u64::MAX,
            began => self.site.now().as_nanos().saturating_sub(began),
        };
        put_note(message, service_time::to_note(took));
    }

    /// Requests come without immediates. Those that have one wait for it: otherwise the client could send the next before the
    /// receive of the last is posted again.
    #[inline]
    fn may_look(&self) -> bool {
        self.looks && (self.places || self.is_ending)
    }

    fn send(&mut self) -> u32 {
        self.places = false;
        self.epoch
    }
}

impl Carrier for Responses {
    #[inline]
    fn place(&mut self, slot: u32, message: &[u8]) -> bool {
        if !self.places {
            return false;
        }
        self.has_placed = true;
        if self.ring.holds(message.len()) {
            self.ring.put(slot, message);
        } else {
            self.region.copy_in(self.long_at + slot as usize * self.long_stride, message);
            self.ring.put_elsewhere(slot, message.len() as u32);
        }
        true
    }

    fn post_inline(
        &mut self,
        sender: &mut Sender,
        slot: u32,
        message: &mut [u8],
        imm: u32,
        must_signal: bool,
    ) -> bool {
        if !message.is_empty() {
            self.note_time(slot, message);
        }
        self.writes.post_inline(sender, slot, message, imm, must_signal)
    }

    fn request(&mut self, slot: u32, mut message: Buffer, imm: u32) -> WorkRequest<'static> {
        self.note_time(slot, &mut message);
        self.writes.request(slot, message, imm)
    }

    /// Requests are [taken](ServerCarrier::take).
    fn read<'a>(
        &mut self,
        _: &'a WorkCompletion,
        _: u32,
        _: &'a mut Scratch,
    ) -> Option<Message<'a>> {
        None
    }

    #[inline]
    fn consume_receive(&mut self, sender: &mut Sender) -> bool {
        self.writes.consume_receive(sender)
    }
}

impl ServerCarrier for Responses {
    const LOOKS: bool = true;
    const SENDS_IN_ORDER: bool = false;

    #[inline]
    fn waiting(&self) -> Option<Waiting> {
        let at = trailer_at(self.writes.slot_end(self.turn.cell()));
        let word = u64::from_le(self.writes.slots().load_u64(at));
        let Trailer { number, operations, slot, len } = Trailer::from_word(word);
        let in_order = operations == self.operations || is_planted(Bug::OvertakenOperation);
        let is_next = number == self.turn.number() && in_order;
        (is_next && (self.may_look() || self.announced > 0)).then_some(Waiting { slot, len })
    }

    fn handle_announcement(&mut self) {
        self.announced = self.announced.saturating_add(1);
    }

    fn handle_operation(&mut self, _: ArrivedOp<'_>) -> Result<Turn, Misbehaved> {
        self.operations = self.operations.wrapping_add(1);
        Ok(Turn::Now)
    }

    #[inline]
    fn take<'a>(&mut self, request: Waiting, scratch: &'a mut Scratch) -> Option<Message<'a>> {
        let Waiting { slot, len } = request;
        let sealed = sealed_bytes(len as usize);
        if sealed > self.slot_bytes as usize {
            return None;
        }
        let end = self.writes.slot_end(self.turn.cell());
        let message = scratch.copy_out(self.writes.slots(), end - sealed, len as usize);
        self.turn.advance();
        self.announced = self.announced.saturating_sub(1);
        if let Some(began) = self.began.get_mut(slot as usize) {
            *began = if self.places { 0 } else { self.site.now().as_nanos() };
        }
        Some(message)
    }

    fn arm(&self) {
        self.writes.slots().arm();
    }

    fn handle_mode(&mut self, argument: u32) -> Result<Option<u32>, Misbehaved> {
        match Ask::from_wire(argument) {
            Some(Ask::Wake) => Ok(None),
            Some(Ask::Send) => Ok(Some(self.send())),
            Some(Ask::Leave) => {
                self.epoch = next_epoch(self.epoch);
                self.places = !self.is_ending;
                Ok(self.is_ending.then_some(self.epoch))
            }
            Some(Ask::Drained) => {
                self.has_placed = false;
                Ok(None)
            }
            None => Err("a mode that there is not"),
        }
    }

    fn stop_placing(&mut self) -> Option<u32> {
        let is_first = !std::mem::replace(&mut self.is_ending, true);
        (is_first && self.places).then(|| self.send())
    }

    fn has_placed(&self) -> bool {
        self.has_placed
    }
}
