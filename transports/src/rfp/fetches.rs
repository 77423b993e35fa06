//! The client's carrier: requests into the server's cells, responses out of its ring.

use farcall_core::time::{Instant, PollAt};
use farcall_core::transport;
use farcall_verbs::{Buffer, RemoteRegion, RemoteSlice, WorkCompletion, WorkRequest};

use super::lines::{LINE_BYTES, ring_lines};
use super::reader::{Message, Read, Reader};
use super::service_time;
use super::setup::Places;
use super::switch::Switch;
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::rendezvous::server::Misbehaved;
use crate::slots::carrier::{Carrier, ClientCarrier, Fetch, Fetched, Found, ReadNumber};
use crate::slots::cells::{CellTurn, TRAILER_BYTES, Trailer, sealed_bytes, trailer_at};
use crate::slots::link::stride;
use crate::slots::wire::note_of;
use crate::slots::writes::Writes;

/// A client's end of a connection.
#[derive(Debug)]
pub(super) struct Fetches {
    /// The cells of the server, and slots of our own for responses that are sent.
    writes: Writes,
    /// The server looks for requests.
    looks: bool,
    turn: CellTurn,
    /// Operations sent, round in 16 bits.
    operations: u16,
    responses: RemoteRegion,
    /// Where in that region the slots' own places begin, and how far they are apart.
    long_at: u64,
    long_stride: u64,
    reader: Reader,
    switch: Switch,
    /// READs of the ring so far; there is at most one under way.
    reads: ReadNumber,
    /// The last of them that brought nothing.
    last_empty_read: Option<ReadNumber>,
    now: Instant,
    outstanding: usize,
}

impl Fetches {
    pub(super) fn new(
        writes: Writes,
        responses: RemoteRegion,
        places: &Places,
        looks: bool,
        switch: Switch,
    ) -> Fetches {
        let Places { window, slot_bytes, most_lines, .. } = *places;
        Fetches {
            writes,
            looks,
            turn: CellTurn::new(window),
            operations: 0,
            responses,
            long_at: u64::from(ring_lines(window, most_lines)) * LINE_BYTES as u64,
            long_stride: stride(slot_bytes).into(),
            reader: Reader::new(places),
            switch,
            reads: 0,
            last_empty_read: None,
            now: Instant::ZERO,
            outstanding: 0,
        }
    }

    /// The server finds the next request without an immediate: it is awake, or becomes so.
    #[inline]
    fn is_looked_for(&self) -> bool {
        self.looks && self.switch.is_fetching()
    }

    /// Writes the trailer of a message that has room for it, and says where both go.
    #[inline]
    fn seal(&mut self, slot: u32, message: &mut [u8]) -> RemoteSlice {
        let len = message.len() - TRAILER_BYTES;
        let sealed = sealed_bytes(len);
        let Fetches { turn, operations, .. } = self;
        let (number, operations) = (turn.number(), *operations);
        let trailer = Trailer { number, operations, slot, len: len as u32 };
        message[trailer_at(sealed)..sealed].copy_from_slice(&trailer.to_word().to_le_bytes());
        let remote = self.writes.remote_end(self.turn.cell(), sealed);
        self.turn.advance();
        remote
    }

    /// The server's NIC refuses what its region does not have.
    fn at(&self, offset: u64, len: u64) -> RemoteSlice {
        let RemoteRegion { addr, rkey, .. } = self.responses;
        RemoteSlice::new(addr.wrapping_add(offset), rkey, len)
    }
}

impl Carrier for Fetches {
    const TRAILER_BYTES: usize = TRAILER_BYTES;

    #[inline]
    fn post_inline(
        &mut self,
        sender: &mut Sender,
        slot: u32,
        message: &mut [u8],
        imm: u32,
        must_signal: bool,
    ) -> bool {
        if message.is_empty() {
            self.operations = self.operations.wrapping_add(1);
            return self.writes.post_inline(sender, 0, message, imm, must_signal);
        }
        let remote = self.seal(slot, message);
        let message = &message[..remote.len() as usize];
        let must_signal = self.switch.fetches() && self.reader.begin() || must_signal;
        if self.is_looked_for() {
            sender.post(WorkRequest::write(message, remote), must_signal)
        } else {
            sender.write_imm(message, remote, imm, must_signal)
        }
    }

    fn request(&mut self, slot: u32, mut message: Buffer, imm: u32) -> WorkRequest<'static> {
        let remote = self.seal(slot, &mut message);
        message.set_len(remote.len() as usize);
        if self.switch.fetches() {
            self.reader.start();
        }
        let request = WorkRequest::write(message, remote);
        if self.is_looked_for() { request.into() } else { request.imm(imm).into() }
    }

    /// A response that was sent.
    fn read<'a>(
        &mut self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut Scratch,
    ) -> Option<transport::Message<'a>> {
        let message = self.writes.read(completion, slot, scratch)?;
        let service = service_time::from_note(note_of(&message));
        self.switch.was_sent(service, self.reader.round_trip_nanos());
        if self.switch.fetches() {
            // Other calls may be outstanding whose responses are left for us now.
            self.reader.start();
        }
        Some(message)
    }

    #[inline]
    fn consume_receive(&mut self, sender: &mut Sender) -> bool {
        self.writes.consume_receive(sender)
    }
}

impl ClientCarrier for Fetches {
    const FETCHES: bool = true;

    #[inline]
    fn sent(&mut self) {
        self.reader.sent();
    }

    #[inline]
    fn look(&mut self, outstanding: usize, now: Instant) {
        (self.outstanding, self.now) = (outstanding, now);
        if outstanding == 0 && !self.switch.is_draining() || !self.switch.fetches() {
            self.reader.rest();
        }
    }

    #[inline]
    fn next_fetch(&mut self, most: usize) -> Option<Fetch> {
        let read = self.reader.next(self.outstanding as u32, most, self.now)?;
        Some(match read {
            Read::Lines(lines) => {
                self.switch.reads();
                self.reads += 1;
                let (from, to) = (u64::from(lines.start), u64::from(lines.end));
                let line = LINE_BYTES as u64;
                Fetch { remote: self.at(from * line, (to - from) * line), what: Fetched::Ready }
            }
            Read::Long { slot, len } => {
                let offset = self.long_at + u64::from(slot) * self.long_stride;
                Fetch { remote: self.at(offset, len.into()), what: Fetched::Long { slot } }
            }
            Read::Probe(line) => {
                let line_bytes = LINE_BYTES as u64;
                Fetch {
                    remote: self.at(u64::from(line) * line_bytes, line_bytes),
                    what: Fetched::Nothing,
                }
            }
        })
    }

    #[inline]
    fn must_fetch(&self) -> bool {
        self.reader.must_read()
    }

    #[inline]
    fn look_for_lost(&mut self) -> PollAt {
        self.reader.look_for_lost(self.now)
    }

    #[inline]
    fn next_message(
        &mut self,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Option<Found>, Misbehaved> {
        Ok(self.reader.next_message(bytes, at)?.map(|message| match message {
            Message::Here { slot, bytes } => Found::Message { slot, bytes },
            Message::Elsewhere => Found::Elsewhere,
        }))
    }

    #[inline]
    fn fetched(&mut self, what: Fetched, messages: usize, outstanding: usize) -> bool {
        match what {
            Fetched::Ready => {}
            Fetched::Long { .. } => {
                self.reader.read_long();
                return true;
            }
            Fetched::Nothing => return true,
        }
        let goes_on = if self.switch.is_draining() { 1 } else { outstanding };
        let brought = self.reader.read_lines(messages, goes_on, self.now);
        if !brought {
            self.last_empty_read = Some(self.reads);
        }
        self.switch.brought(messages);
        if !brought && self.switch.is_draining() {
            if self.reader.has_no_long() {
                self.switch.is_empty();
            }
        } else if !brought && self.outstanding > 0 {
            self.switch.failed();
        }
        brought
    }

    fn next_read(&mut self) -> Option<ReadNumber> {
        self.switch.fetches().then(|| {
            self.reader.start();
            self.reads + 1
        })
    }

    fn last_empty_read(&self) -> Option<ReadNumber> {
        if self.switch.fetches() { self.last_empty_read } else { Some(ReadNumber::MAX) }
    }

    fn handle_mode(&mut self, epoch: u32) -> bool {
        if self.switch.server_sends(epoch) {
            self.reader.start();
        }
        true
    }

    fn server_leaves(&mut self) -> bool {
        self.switch.server_leaves();
        self.reader.start();
        self.switch.fetches()
    }

    #[inline]
    fn fetches(&self) -> bool {
        self.switch.fetches()
    }

    #[inline]
    fn take_request_of_mode(&mut self) -> Option<u32> {
        self.switch.take_ask().map(|ask| ask as u32)
    }
}
