//! Large messages of the clients of one server thread, by [rendezvous](crate::rendezvous).

use farcall_core::metrics::RefusalReason;
use farcall_core::time::Instant;
use farcall_core::transport::{Message, RequestSink};
use farcall_verbs::Buffer;
use zerocopy::IntoBytes;

use super::carrier::ServerCarrier;
use super::connection::{Announced, Phase};
use super::requests::{Clients, Disconnect};
use super::wire::{Kind, Op};
use crate::kit::fair_queue::Verdict;
use crate::kit::lending::{Lending, Shortage};
use crate::rendezvous::Read;
use crate::rendezvous::server::{Landed, Room};
use crate::rendezvous::wire::OverLimit;

/// Parts of large requests that one poll reads: some 20 us of copying, which is what a small call may have to wait for.
const STEPS_PER_POLL: usize = 2;

impl<C: ServerCarrier> Clients<C> {
    /// A large request wants to land.
    #[cold]
    pub(super) fn handle_announcement(
        &mut self,
        client: u32,
        index: u32,
        announced: Announced,
        now: Instant,
    ) -> Result<(), Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        let len = announced.len();
        if announced.is_empty() {
            return Err("an announcement of nothing".into());
        }
        if len > connection.max_message {
            let limit = OverLimit { len: len.into(), max: connection.max_message.into() };
            let generation = connection.slots[index as usize].generation;
            connection.link.post_control(index, generation, Kind::OverLimit, limit.as_bytes());
            self.roster.enter_line(client);
            return Ok(());
        }
        connection.slots[index as usize].phase = Phase::Waiting;
        if let Announced::ToRead(here) = announced {
            connection.large.wait_to_read(index, here);
        }
        self.lending.wait(client, index, len);
        self.serve_waiting(now);
        Ok(())
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
        let Some(connection) = self.roster.get(client) else { return Verdict::Done };
        if !connection.large.may_land(index, len, &self.lending) {
            return Verdict::ClientFull;
        }
        let mut room = self.make_room(client, index, len, now);
        if matches!(room, Room::Exhausted) && self.trim() {
            room = self.make_room(client, index, len, now);
        }
        match room {
            Room::Granted(grant) => {
                let Some(connection) = self.roster.get(client) else { return Verdict::Done };
                let slot = &mut connection.slots[index as usize];
                slot.phase = Phase::Landing;
                let generation = slot.generation;
                connection.link.post_control(index, generation, Kind::Grant, grant.as_bytes());
                self.roster.enter_line(client);
                Verdict::Done
            }
            Room::Reading => {
                let Some(connection) = self.roster.get(client) else { return Verdict::Done };
                connection.slots[index as usize].phase = Phase::Landing;
                self.reading.push_back((client, index));
                Verdict::Done
            }
            Room::Exhausted => {
                self.lending.note_shortage();
                Verdict::Exhausted
            }
            // The client's calls end by the loss of its connection instead of waiting for ever.
            Room::Failed => {
                self.broken.push(client);
                Verdict::Done
            }
        }
    }

    fn make_room(&mut self, client: u32, index: u32, len: u64, now: Instant) -> Room {
        let Clients { roster, assembly, lending, .. } = self;
        let Some(connection) = roster.get(client) else { return Room::Failed };
        connection.large.make_room(index, len, (assembly, lending), now)
    }

    /// One more chunk is in the ring.
    #[cold]
    pub(super) fn handle_chunk(
        &mut self,
        client: u32,
        index: u32,
        byte_len: u64,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        let Landed { owes_credit, whole } = connection.large.land(index, byte_len, now)?;
        if owes_credit {
            connection.link.post_op(Op::Chunk, index);
            self.roster.enter_line(client);
        }
        if let Some(whole) = whole {
            self.dispatch_large(client, index, whole, sink);
            self.serve_waiting(now);
        }
        Ok(())
    }

    /// The request is whole: its handler gets it.
    fn dispatch_large(
        &mut self,
        client: u32,
        index: u32,
        request: Buffer,
        sink: &mut dyn RequestSink,
    ) {
        let request = Message::Owned(self.lending.budget().hand_over(request));
        let Some(connection) = self.roster.get(client) else { return };
        connection.slots[index as usize].phase = Phase::Busy;
        sink.request(connection.token(index), request, self);
    }

    /// Reads large requests on, a bounded number of bytes. Answers whether there is more to read at once.
    #[cold]
    pub(super) fn read_requests(&mut self) -> bool {
        for _ in 0..STEPS_PER_POLL {
            let Some((client, index)) = self.reading.pop_front() else { return false };
            let Some(connection) = self.roster.get(client) else { continue };
            if !connection.link.has_room() {
                // A completion makes room.
                self.reading.push_back((client, index));
                return false;
            }
            if let Some((into, remote)) = connection.large.next_read(index) {
                connection.link.fetch_part(index, into, remote);
                self.reading.push_back((client, index));
            }
        }
        !self.reading.is_empty()
    }

    /// Parts of a client's large requests have been read.
    #[cold]
    pub(super) fn handle_parts(&mut self, client: u32, now: Instant, sink: &mut dyn RequestSink) {
        let mut parts = std::mem::take(&mut self.arrived.parts);
        for (index, part) in parts.drain(..) {
            let Some(connection) = self.roster.get(client) else { break };
            match connection.large.add_read(index, part, now) {
                Read::Partly if self.reading.contains(&(client, index)) => {}
                Read::Partly => self.reading.push_back((client, index)),
                Read::Whole(whole) => self.dispatch_large(client, index, whole, sink),
                Read::GivenUp => self.confirm_dropped(client, index),
            }
        }
        parts.clear();
        self.arrived.parts = parts;
        self.serve_waiting(now);
    }

    /// The client does not want its announced request any more. All chunks that it wrote have landed: they were posted
    /// before, on the same queue pair.
    pub(super) fn drop_announced(&mut self, client: u32, index: u32, now: Instant) {
        self.lending.stop_waiting(client, index);
        let Some(connection) = self.roster.get(client) else { return };
        if connection.large.give_up_request(index) {
            self.confirm_dropped(client, index);
        }
        self.serve_waiting(now);
    }

    /// A request that was given up is gone: its client may use its slot, and its memory.
    fn confirm_dropped(&mut self, client: u32, index: u32) {
        let Some(connection) = self.roster.get(client) else { return };
        connection.slots[index as usize].phase = Phase::Idle;
        // Never left to be fetched: a credit for a chunk, which is sent, would come after it.
        connection.link.post_op(Op::Dropped, index);
        self.roster.enter_line(client);
    }

    /// The client has read its response.
    pub(super) fn handle_release(&mut self, client: u32, index: u32, now: Instant) {
        let Some(connection) = self.roster.get(client) else { return };
        connection.large.give_back(index, now);
        connection.slots[index as usize].phase = Phase::Idle;
        if self.lending.has_waiting() {
            self.serve_waiting(now);
        }
    }

    /// Frees the memory that is kept for later; `false` if there was none.
    pub(super) fn trim(&mut self) -> bool {
        let mut freed = self.assembly.trim();
        for connection in self.roster.iter_mut() {
            freed |= connection.large.trim();
        }
        freed
    }

    /// Finds clients that hold memory which messages wait for, and do not move on.
    pub(super) fn find_stalled(&mut self, shortage: Shortage, now: Instant) {
        let Clients { roster, lending, broken, .. } = self;
        let before = broken.len();
        let loans = roster.iter_mut().map(|it| (it.link.client(), &mut it.large.loan));
        lending.find_stalled(shortage, now, loans, broken);
        for client in &broken[before..] {
            roster.count_refusal(RefusalReason::Stalled);
            tracing::warn!(client, "dropping a client that holds memory and does not move on");
        }
    }
}
