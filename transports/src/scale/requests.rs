//! The client's carrier: requests into its place of the pool, or into its log.

use farcall_core::transport::Message;
use farcall_verbs::{Buffer, MemoryWindow, RemoteRegion, RemoteSlice, WorkCompletion, WorkRequest};

use super::client_state::ClientState;
use super::log::LogWriter;
use super::pool::PoolLayout;
use super::stamp::{self, STAMP_BYTES};
use super::wire::{GROWN, LEFT, Note, STOP};
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::slots::carrier::{Carrier, ClientCarrier};
use crate::slots::cells::{self, CellTurn, Trailer};
use crate::slots::wire::{Immediate, Op, note_of};
use crate::slots::writes::Writes;

/// A client's end of a connection.
#[derive(Debug)]
pub(super) struct Requests {
    /// Slots of our own for responses, and where the server hears how far the log has grown.
    writes: Writes,
    pool: RemoteRegion,
    layout: PoolLayout,
    /// Of this connection, at its server.
    key: u32,
    /// The key to the place that this client gets next, if its server guards places.
    next_rkey: Option<u32>,
    /// The server looks for requests; otherwise each has an immediate.
    looks: bool,
    window: u32,
    /// It has not written into the pool yet, and could.
    is_new: bool,
    state: ClientState,
    turn: CellTurn,
    /// Operations sent, round in 16 bits.
    operations: u16,
    log: LogWriter,
    /// The word that next says how far the log has grown.
    end_word: u32,
}

/// What the server said of its pool.
#[derive(Debug)]
pub(super) struct PoolOfServer {
    pub(super) pool: RemoteRegion,
    pub(super) layout: PoolLayout,
    pub(super) key: u32,
    pub(super) next_rkey: Option<u32>,
    pub(super) looks: bool,
}

impl Requests {
    pub(super) fn new(
        writes: Writes,
        server: PoolOfServer,
        window: u32,
        log: LogWriter,
    ) -> Requests {
        let PoolOfServer { pool, layout, key, next_rkey, looks } = server;
        let state = ClientState::new(layout.places);
        let turn = CellTurn::new(window);
        Requests {
            writes,
            pool,
            layout,
            key,
            next_rkey,
            looks,
            window,
            is_new: next_rkey.is_none(),
            state,
            turn,
            operations: 0,
            log,
            end_word: 0,
        }
    }

    /// Writes stamp and trailer behind a message that has room for them, and says where all goes.
    #[inline]
    fn seal(&mut self, slot: u32, message: &mut [u8]) -> RemoteSlice {
        let len = message.len() - Self::TRAILER_BYTES;
        let stamp = stamp::of(self.key, self.state.epoch());
        let trailer = Trailer {
            number: self.turn.number(),
            operations: self.operations,
            slot,
            len: len as u32,
        };
        let sealed = stamp::seal(message, len, stamp, trailer) as u64;
        // A message that finds no place was placed in the log.
        let place = self.state.place().unwrap_or_default();
        let end = self.layout.cell_end(place, self.turn.cell());
        self.turn.advance();
        let RemoteRegion { addr, rkey, .. } = self.pool;
        RemoteSlice::new(addr.wrapping_add(end - sealed), rkey, sealed)
    }

    /// Does what a response says besides. `false`: the server must not say that.
    #[cold]
    fn heed(&mut self, note: u16) -> bool {
        let place = match Note::from_wire(note) {
            None => return true,
            Some(Note::Stop) => return self.state.stop(),
            Some(Note::Enter(place)) => place,
        };
        let enters = self.state.enter(place);
        if enters {
            self.turn = CellTurn::new(self.window);
            if let Some(rkey) = &mut self.next_rkey {
                self.pool.rkey = *rkey;
                *rkey = MemoryWindow::key_after(*rkey);
            }
        }
        enters
    }
}

impl Carrier for Requests {
    const TRAILER_BYTES: usize = cells::TRAILER_BYTES + STAMP_BYTES;
    const PLACES_IN_ORDER: bool = true;

    /// Into the log, while this client's group is not served.
    #[inline]
    fn place(&mut self, slot: u32, message: &[u8]) -> bool {
        if self.state.place().is_some() {
            return false;
        }
        self.log.append(slot, message);
        true
    }

    fn withdraw(&mut self, slot: u32) -> bool {
        self.log.withdraw(slot)
    }

    #[inline]
    fn has_notice(&self) -> bool {
        self.state.must_confirm() || self.log.must_announce()
    }

    #[cold]
    fn post_notice(&mut self, sender: &mut Sender, client: u32) {
        let imm = |argument| Immediate { op: Op::Mode, client, slot: argument }.to_wire();
        if std::mem::take(&mut self.is_new) {
            let RemoteRegion { addr, rkey, .. } = self.pool;
            let at = addr.wrapping_add(self.layout.spare_at());
            sender.post(WorkRequest::write(&[0; 8], RemoteSlice::new(at, rkey, 8)), false);
            if sender.room() == 0 {
                return;
            }
        }
        if self.state.must_confirm() {
            self.state.confirm();
            // The last that this client sent into its place was posted before.
            self.writes.post_inline(sender, 0, &mut [], imm(LEFT), false);
        }
        if self.log.must_announce() && sender.room() > 0 {
            let end = self.log.announce();
            let at = self.writes.remote_at(8 * u64::from(self.end_word), end.len());
            self.end_word = (self.end_word + 1) % self.window;
            sender.write_imm(&end, at, imm(GROWN), false);
        }
    }

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
        if self.looks {
            sender.post(WorkRequest::write(message, remote), must_signal)
        } else {
            sender.write_imm(message, remote, imm, must_signal)
        }
    }

    fn request(&mut self, slot: u32, mut message: Buffer, imm: u32) -> WorkRequest<'static> {
        let remote = self.seal(slot, &mut message);
        message.set_len(remote.len() as usize);
        let request = WorkRequest::write(message, remote);
        if self.looks { request.into() } else { request.imm(imm).into() }
    }

    /// A response, which may bring this client into a place or out of it.
    #[inline]
    fn read<'a>(
        &mut self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut Scratch,
    ) -> Option<Message<'a>> {
        let message = self.writes.read(completion, slot, scratch)?;
        let note = note_of(&message);
        if note != 0 && !self.heed(note) {
            return None;
        }
        Some(message)
    }

    #[inline]
    fn consume_receive(&mut self, sender: &mut Sender) -> bool {
        self.writes.consume_receive(sender)
    }
}

impl ClientCarrier for Requests {
    fn handle_mode(&mut self, argument: u32) -> bool {
        argument == STOP && self.state.stop()
    }
}
