//! Large messages at the server: where requests land, and when responses are given back.

use farcall_core::time::Instant;
use farcall_core::transport::RequestSink;
use farcall_verbs::RemoteRegion;
use zerocopy::IntoBytes;

use super::chunks::{CHUNK_BYTES, Incoming, RING_CHUNKS, ring_bytes};
use super::clients::{Clients, Drop};
use super::entry::{Large, Phase};
use super::layout::{Grant, Kind, Op, OverLimit};
use super::link::owned;
use crate::fair_queue::{FairQueue, Verdict};

/// How long a client may hold memory that others wait for without moving on.
const STALL_NANOS: u64 = 10_000_000_000;

/// Bytes of landing rings that one client may have at a time: one that it writes, and one that is
/// ready when that is full. More would only be colder.
const RINGS_PER_CLIENT_BYTES: u64 = 2 * CHUNK_BYTES * RING_CHUNKS;

/// How often clients are looked at for that.
const STALL_CHECK_NANOS: u64 = 100_000_000;

impl Clients {
    /// A large request wants to land.
    #[cold]
    pub(crate) fn announced(
        &mut self,
        client: u32,
        index: u32,
        len: u64,
        now: Instant,
    ) -> Result<(), Drop> {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return Ok(()) };
        if len == 0 {
            return Err("an announcement of nothing".into());
        }
        if len > entry.max_message {
            let limit = OverLimit { len: len.into(), max: entry.max_message.into() };
            let generation = entry.slots[index as usize].generation;
            entry.link.post_control(index, generation, Kind::OverLimit, limit.as_bytes());
            self.touch(client);
            return Ok(());
        }
        entry.slots[index as usize].phase = Phase::Waiting;
        self.waiting.push(client, index, len);
        self.serve_waiting(now);
        Ok(())
    }

    /// Gives memory to those that wait for it, in turn.
    pub(crate) fn serve_waiting(&mut self, now: Instant) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.serve(|client, slot, len| self.land(client, slot, len, now));
        let rest: FairQueue = std::mem::replace(&mut self.waiting, waiting);
        debug_assert!(rest.is_empty());
    }

    /// Makes room for a request, and tells its client.
    fn land(&mut self, client: u32, index: u32, len: u64, now: Instant) -> Verdict {
        let share = self.budget.limit() / 2;
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return Verdict::Done };
        let rings = entry.landing > 0 && entry.landing + ring_bytes(len) > RINGS_PER_CLIENT_BYTES;
        if rings || (entry.held > 0 && entry.held + len > share) {
            return Verdict::ClientFull;
        }
        let made = match self.make_room(client, index, len, now) {
            None if self.trim() => self.make_room(client, index, len, now),
            made => made,
        };
        self.shortage |= made.is_none();
        made.unwrap_or(Verdict::Exhausted)
    }

    /// `None` if the budget does not allow it.
    fn make_room(&mut self, client: u32, index: u32, len: u64, now: Instant) -> Option<Verdict> {
        let entry = self.entries.get_mut(client as usize)?.as_deref_mut()?;
        let made = usize::try_from(len).ok().and_then(|bytes| {
            let whole = self.assembly.take(bytes).transpose()?;
            let ring = entry.ring(len, &self.budget).transpose()?;
            Some(whole.and_then(|whole| Ok((whole, ring?))))
        })?;
        let (whole, ring) = match made {
            Ok(made) => made,
            Err(error) => {
                // The system has no memory, whatever the budget says: the calls end by the loss of
                // their connection instead of waiting for ever.
                tracing::warn!(%error, len, "no memory for a large request");
                self.broken.push(client);
                return Some(Verdict::Done);
            }
        };
        let incoming = Incoming::new(len)?;
        let RemoteRegion { addr, rkey, .. } = ring.region.remote();
        let region = RemoteRegion::new(addr, rkey, ring_bytes(len));
        let grant = Grant { region: region.into(), chunk: (CHUNK_BYTES as u32).into() };
        entry.held += len;
        entry.landing += ring_bytes(len);
        entry.moved = now;
        entry.slots[index as usize].phase = Phase::Landing;
        let generation = entry.slots[index as usize].generation;
        *entry.large(index) = Large::Landing { incoming, ring, whole };
        entry.link.post_control(index, generation, Kind::Grant, grant.as_bytes());
        self.touch(client);
        Some(Verdict::Done)
    }

    /// One more chunk is in the ring.
    #[cold]
    pub(crate) fn landed(
        &mut self,
        client: u32,
        index: u32,
        byte_len: u64,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Drop> {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return Ok(()) };
        let Large::Landing { incoming, ring, whole } = entry.large(index) else {
            return Err("a chunk that no request waits for".into());
        };
        let Some(chunk) = incoming.land(byte_len) else {
            return Err("a chunk of another length than is due".into());
        };
        let (from, to) = (chunk.ring_offset as usize, chunk.offset as usize);
        // Read once, into memory that the client cannot write.
        ring.region.copy_out(from, &mut whole[to..to + byte_len as usize]);
        let (owes_credit, is_done) = (incoming.owes_credit(), incoming.is_done());
        entry.moved = now;
        if owes_credit {
            entry.link.post_op(Op::Chunk, index);
            self.touch(client);
        }
        if is_done {
            self.hand_over(client, index, sink);
            self.serve_waiting(now);
        }
        Ok(())
    }

    /// A request is whole: its handler gets it.
    fn hand_over(&mut self, client: u32, index: u32, sink: &mut dyn RequestSink) {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return };
        if let Large::Landing { whole, ring, .. } = entry.take_large(index) {
            entry.held -= whole.len() as u64;
            entry.landing -= ring_bytes(whole.len() as u64);
            entry.put_ring(ring);
            entry.slots[index as usize].phase = Phase::Busy;
            sink.request(entry.token(index), owned(whole), self);
        }
    }

    /// The client does not want its announced request any more. All chunks that it wrote have landed:
    /// they were posted before, on the same queue pair.
    pub(crate) fn drop_announced(&mut self, client: u32, index: u32, now: Instant) {
        self.waiting.remove(client, index);
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return };
        if let Large::Landing { whole, ring, .. } = entry.take_large(index) {
            entry.held -= whole.len() as u64;
            entry.landing -= ring_bytes(whole.len() as u64);
            entry.put_ring(ring);
        }
        entry.slots[index as usize].phase = Phase::Idle;
        entry.link.post_op(Op::Dropped, index);
        self.touch(client);
        self.serve_waiting(now);
    }

    /// The client has read its response.
    pub(crate) fn released(&mut self, client: u32, index: u32, now: Instant) {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return };
        if let Large::Reply(buffer) = entry.take_large(index) {
            entry.held -= buffer.len() as u64;
        }
        entry.slots[index as usize].phase = Phase::Idle;
        entry.moved = now;
        if !self.waiting.is_empty() {
            self.serve_waiting(now);
        }
    }

    /// Frees the memory that is kept for later; `false` if there was none.
    pub(crate) fn trim(&mut self) -> bool {
        let mut freed = self.assembly.trim();
        for entry in self.entries.iter_mut().flatten() {
            freed |= entry.trim();
        }
        freed
    }

    /// Finds clients that hold memory which others wait for, and do not move on.
    pub(crate) fn find_stalled(&mut self, now: Instant) {
        if now < self.stall_check {
            return;
        }
        self.stall_check = now.saturating_add_nanos(STALL_CHECK_NANOS);
        for entry in self.entries.iter_mut().flatten() {
            if entry.held == 0 {
                continue;
            }
            // Responses are lent outside of polls, where the time is not known.
            if entry.moved == Instant::ZERO {
                entry.moved = now;
            }
            if entry.moved.saturating_add_nanos(STALL_NANOS) < now {
                tracing::warn!(client = entry.client, "it holds memory and does not move on");
                self.broken.push(entry.client);
            }
        }
    }
}
