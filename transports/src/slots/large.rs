//! Large messages of the clients of one server thread, by [rendezvous](crate::rendezvous).

use farcall_core::metrics::RefusalReason;
use farcall_core::time::Instant;
use farcall_core::transport::RequestSink;
use zerocopy::IntoBytes;

use super::carrier::ServerCarrier;
use super::connection::Phase;
use super::link::owned;
use super::requests::{Clients, Disconnect};
use super::wire::{Kind, Op};
use crate::kit::fair_queue::Verdict;
use crate::kit::lending::{Lending, Shortage};
use crate::rendezvous::server::{Landed, Room};
use crate::rendezvous::wire::OverLimit;

impl<C: ServerCarrier> Clients<C> {
    /// A large request wants to land.
    #[cold]
    pub(super) fn handle_announcement(
        &mut self,
        client: u32,
        index: u32,
        len: u64,
        now: Instant,
    ) -> Result<(), Disconnect> {
        let Some(connection) = self.roster.get(client) else { return Ok(()) };
        if len == 0 {
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
        if !connection.large.may_land(len, &self.lending) {
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
            self.dispatch_large(client, index, owned(whole), sink);
            self.serve_waiting(now);
        }
        Ok(())
    }

    /// The request is whole: its handler gets it.
    fn dispatch_large(
        &mut self,
        client: u32,
        index: u32,
        request: farcall_core::transport::Message<'_>,
        sink: &mut dyn RequestSink,
    ) {
        let Some(connection) = self.roster.get(client) else { return };
        connection.slots[index as usize].phase = Phase::Busy;
        sink.request(connection.token(index), request, self);
    }

    /// The client does not want its announced request any more. All chunks that it wrote have landed: they were posted
    /// before, on the same queue pair.
    pub(super) fn drop_announced(&mut self, client: u32, index: u32, now: Instant) {
        self.lending.stop_waiting(client, index);
        let Some(connection) = self.roster.get(client) else { return };
        drop(connection.large.take_request(index));
        connection.slots[index as usize].phase = Phase::Idle;
        // Never left to be fetched: a credit for a chunk, which is sent, would come after it.
        connection.link.post_op(Op::Dropped, index);
        self.roster.enter_line(client);
        self.serve_waiting(now);
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
