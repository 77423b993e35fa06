//! The client's large messages: requests that it writes, responses that it reads.
//!
//! The client drives both (Octopus s3.3, client-active I/O). Each is moved in chunks, and all that
//! are under way take turns, so that none keeps the others, or small calls, waiting.

use std::collections::VecDeque;

use bytes::Bytes;
use farcall_verbs::{Buffer, ProtectionDomain, RemoteRegion, RemoteSlice};

use super::chunks::{Outgoing, RING_CHUNKS, most_chunk_bytes};
use super::source::{MOST_FRONT_BYTES, Source};
use super::wire::{FRONT_BYTES, Grant, Here, Lent};
use crate::buffers::export::Export;
use crate::kit::by_slot::BySlot;
use crate::kit::counts;
use crate::kit::memory::{Budget, Exposure, LargeBuffers};

/// One step, to be posted.
#[derive(Debug)]
pub(crate) enum Transfer {
    Chunk { chunk: Source, remote: RemoteSlice, last: bool },
    Fetch { into: Buffer, remote: RemoteSlice },
}

/// Whose turn it is after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The same slot's: what it touches is in the caches.
    Same,
    /// Another's: it has had its turn of a ring's length.
    Other,
    /// It waits for a credit, or is done.
    Wait,
}

impl Next {
    /// After the chunk at `offset`.
    fn after(offset: u64, chunk: u64, more: bool) -> Next {
        match (more, (offset / chunk + 1).is_multiple_of(RING_CHUNKS)) {
            (false, _) => Next::Wait,
            (true, true) => Next::Other,
            (true, false) => Next::Same,
        }
    }
}

#[derive(Debug)]
enum Large {
    /// A request that is filled, or waits for its grant.
    Request(Source),
    /// A request that the server reads, or asks to be written after all.
    Here { source: Source, _export: Export },
    /// What remains of a request that is written.
    Sending { rest: Source, outgoing: Outgoing, landing: RemoteRegion },
    /// A response for which there is no memory yet.
    Waiting { lent: Response },
    /// A response that is read.
    Fetching { lent: Response, rest: Buffer, offset: u64, filled: Option<Buffer> },
}

/// A response that the server lends.
#[derive(Debug, Clone, Copy)]
struct Response {
    region: RemoteRegion,
    /// So many of its bytes are there: all, or some of these parts.
    there: u64,
    part: u64,
    /// What is in front of them, if they are not all of it.
    front: Option<[u8; FRONT_BYTES]>,
}

impl Response {
    /// Bytes of the whole response.
    fn message_len(&self) -> u64 {
        self.region.len + self.front.map_or(0, |front| front.len() as u64)
    }

    /// The memory of the whole response, of which the front is there: its first part, and the rest.
    fn split(&self, mut memory: Buffer) -> (Option<Buffer>, Buffer) {
        let front = self.front.map(|front| {
            let mut part = memory.split_to(front.len());
            part.copy_from_slice(&front);
            part
        });
        (front, memory)
    }
}

#[derive(Debug)]
pub(crate) struct Transfers {
    requests: LargeBuffers,
    /// Apart, so that requests which wait for the server never hold what a response needs, while the
    /// server waits for its response to be read: neither would move again.
    responses: LargeBuffers,
    /// Bytes of a response that are read at a time.
    part: u64,
    /// Each of as many bytes can be posted inline, and its CPU copies it.
    shares: bool,
    large: BySlot<Large>,
    /// Slots whose next step can be posted, in turn.
    ready: VecDeque<u32>,
    /// Slots that wait for memory.
    waiting: VecDeque<u32>,
    /// Slots whose response is whole.
    whole: VecDeque<u32>,
    /// Responses that are read now.
    fetching: u32,
}

impl Transfers {
    pub(crate) fn new(window: u32, pd: &ProtectionDomain, memory: u64) -> Transfers {
        let part = most_chunk_bytes(pd.caps());
        let half = || LargeBuffers::new(pd, Exposure::Private, &Budget::new(memory / 2));
        Transfers {
            requests: half(),
            responses: half(),
            part,
            shares: !pd.caps().network && pd.caps().max_inline as u64 >= part,
            large: BySlot::new(window),
            ready: VecDeque::with_capacity(window as usize),
            waiting: VecDeque::with_capacity(window as usize),
            whole: VecDeque::with_capacity(window as usize),
            fetching: 0,
        }
    }

    /// Nothing to do, now or after a completion.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.fetching == 0 && self.ready.is_empty() && self.waiting.is_empty()
    }

    /// Something can be posted or handed over at once.
    #[inline]
    pub(crate) fn can_move(&self) -> bool {
        !self.ready.is_empty() || !self.whole.is_empty()
    }

    /// Some response waits for memory, which comes back without an event.
    pub(crate) fn wants_memory(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Memory for a request of this slot, if there is some now.
    pub(crate) fn reserve(&mut self, slot: u32, len: usize) -> Option<&mut [u8]> {
        let buffer = buffer(&mut self.requests, len)?;
        match self.large.put(slot, Large::Request(Source::Registered(buffer))) {
            Large::Request(Source::Registered(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// A request may be written out of memory that is not registered, with so many bytes in front.
    pub(crate) fn can_share(&self, front: usize) -> bool {
        self.shares && front <= MOST_FRONT_BYTES
    }

    /// The request of this slot is `front` and then this memory: see [`can_share`](Transfers::can_share).
    pub(crate) fn share(&mut self, slot: u32, front: &[u8], body: &Bytes) {
        self.large.put(slot, Large::Request(Source::shared(front, body)));
    }

    /// The request of this slot is `front` and then this memory, which the server may read, or ask to be written: a device on which it
    /// does that [can share](Transfers::can_share).
    pub(crate) fn offer(&mut self, slot: u32, front: &[u8], body: &Bytes, export: Export) {
        counts::count_offered();
        let source = Source::shared(front, body);
        self.large.put(slot, Large::Here { source, _export: export });
    }

    /// The server reads the slot's request, as far as is known.
    pub(crate) fn is_offered(&self, slot: u32) -> bool {
        matches!(self.large.get(slot), Some(Large::Here { .. }))
    }

    /// The length of the slot's request.
    pub(crate) fn request_len(&self, slot: u32) -> u64 {
        match self.large.get(slot) {
            Some(Large::Request(source)) => source.len() as u64,
            _ => 0,
        }
    }

    /// The server's answer to the announced request; `false` if it makes no sense.
    pub(crate) fn granted(&mut self, slot: u32, grant: &Grant) -> bool {
        let landing: RemoteRegion = grant.region.into();
        let rest = match self.large.take(slot) {
            Some(Large::Request(rest)) => rest,
            Some(Large::Here { source, .. }) if self.shares => source,
            _ => return false,
        };
        let Some(outgoing) = Outgoing::new(rest.len() as u64, grant, landing.len) else {
            return false;
        };
        let shared_chunks = MOST_FRONT_BYTES as u64..=self.part;
        if rest.is_shared() && !shared_chunks.contains(&outgoing.chunk_bytes()) {
            return false;
        }
        self.large.put(slot, Large::Sending { rest, outgoing, landing });
        self.ready.push_back(slot);
        true
    }

    /// The server took a chunk out; `false` if it cannot have.
    pub(crate) fn credit(&mut self, slot: u32) -> bool {
        let Some(Large::Sending { outgoing, .. }) = self.large.get_mut(slot) else {
            return false;
        };
        let stalled = outgoing.next().is_none();
        if stalled {
            self.ready.push_back(slot);
        }
        outgoing.credit()
    }

    /// The slot's response waits at the server; `false` if it is over the limit, or makes no sense.
    pub(crate) fn lent(&mut self, slot: u32, lent: &Lent, max_message: u64) -> bool {
        let (region, part) = (RemoteRegion::from(lent.region), lent.part.get());
        let is_within = (1..=max_message).contains(&region.len) && part > 0;
        if !is_within || usize::try_from(region.len).is_err() {
            return false;
        }
        self.wait(slot, Response { region, there: part.min(region.len), part, front: None });
        true
    }

    /// The same of a response whose front is here.
    pub(crate) fn lent_here(&mut self, slot: u32, here: &Here, max_message: u64) -> bool {
        let (region, len) = (RemoteRegion::from(here.region), here.message_len());
        if region.len == 0 || len > max_message || usize::try_from(len).is_err() {
            return false;
        }
        let (there, front) = (region.len, Some(here.front));
        self.wait(slot, Response { region, there, part: there, front });
        true
    }

    fn wait(&mut self, slot: u32, lent: Response) {
        self.large.put(slot, Large::Waiting { lent });
        self.waiting.push_back(slot);
    }

    /// One more part of the slot's response is there; `false` if all were.
    pub(crate) fn more_is_there(&mut self, slot: u32) -> bool {
        let (lent, has_read) = match self.large.get_mut(slot) {
            Some(Large::Waiting { lent }) => (lent, None),
            Some(Large::Fetching { lent, offset, .. }) => (lent, Some(*offset)),
            _ => return false,
        };
        if lent.there == lent.region.len {
            return false;
        }
        if has_read == Some(lent.there) {
            self.ready.push_front(slot);
        }
        lent.there = lent.there.saturating_add(lent.part).min(lent.region.len);
        true
    }

    /// Gives memory to those that wait for it, in order.
    ///
    /// One response is always read, even beyond the budget: answers that came in another order than their caller takes
    /// them may hold all of it, and the caller waits for this one.
    fn admit(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            if let Some(&Large::Waiting { lent }) = self.large.get(slot) {
                let len = lent.message_len() as usize;
                let within = buffer(&mut self.responses, len);
                let must = self.fetching == 0;
                let beyond = || must.then(|| buffer_beyond(&mut self.responses, len)).flatten();
                let Some(memory) = within.or_else(beyond) else { return };
                let (filled, rest) = lent.split(memory);
                self.large.put(slot, Large::Fetching { lent, rest, offset: 0, filled });
                self.fetching += 1;
                // First: the end of one call frees memory at both ends, and is still in the caches.
                self.ready.push_front(slot);
            }
            self.waiting.pop_front();
        }
    }

    /// The next step of the slot whose turn it is.
    pub(crate) fn next(&mut self) -> Option<(u32, Transfer)> {
        self.admit();
        while let Some(slot) = self.ready.pop_front() {
            if let Some((transfer, next)) = self.step(slot) {
                match next {
                    Next::Same => self.ready.push_front(slot),
                    Next::Other => self.ready.push_back(slot),
                    Next::Wait => {}
                }
                return Some((slot, transfer));
            }
        }
        None
    }

    fn step(&mut self, slot: u32) -> Option<(Transfer, Next)> {
        match self.large.get_mut(slot)? {
            Large::Sending { rest, outgoing, landing } => {
                let next = outgoing.next()?;
                let remote = landing.slice(next.ring_offset, next.len).ok()?;
                let chunk = rest.split_to(next.len as usize);
                outgoing.sent();
                let (more, last) = (outgoing.next().is_some(), outgoing.is_done());
                let next = Next::after(next.offset, outgoing.chunk_bytes(), more);
                if last {
                    self.large.take(slot);
                }
                Some((Transfer::Chunk { chunk, remote, last }, next))
            }
            Large::Fetching { lent, rest, offset, .. } => {
                let len = self.part.min(lent.there - *offset);
                let remote = lent.region.slice(*offset, len).ok()?;
                let into = rest.split_to(len as usize);
                let next = Next::after(*offset, self.part, *offset + len < lent.there);
                *offset += len;
                Some((Transfer::Fetch { into, remote }, next))
            }
            _ => None,
        }
    }

    /// A part of the slot's response has arrived; parts arrive in order.
    pub(crate) fn fetched(&mut self, slot: u32, part: Buffer) {
        let Some(Large::Fetching { lent, filled, .. }) = self.large.get_mut(slot) else { return };
        let len = match filled {
            None => filled.insert(part).len(),
            Some(front) => {
                // Cut from one buffer, in order: they join again.
                let joined = front.unsplit(part);
                debug_assert!(joined.is_ok());
                front.len()
            }
        };
        if len as u64 == lent.message_len() {
            self.whole.push_back(slot);
        }
    }

    /// A whole response, for the program.
    pub(crate) fn hand_over(&self, response: Buffer) -> Bytes {
        self.responses.budget().hand_over(response)
    }

    /// A response that is whole, and is now the caller's.
    pub(crate) fn take_whole(&mut self) -> Option<(u32, Buffer)> {
        let slot = self.whole.pop_front()?;
        match self.large.take(slot) {
            Some(Large::Fetching { filled: Some(buffer), .. }) => {
                self.fetching -= 1;
                Some((slot, buffer))
            }
            _ => None,
        }
    }

    /// The slot's request will not be sent, or not on, and is not read.
    pub(crate) fn forget(&mut self, slot: u32) {
        let is_request = |large: &Large| {
            matches!(large, Large::Request(_) | Large::Here { .. } | Large::Sending { .. })
        };
        if self.large.get(slot).is_some_and(is_request) {
            self.large.take(slot);
            self.ready.retain(|ready| *ready != slot);
        }
    }
}

fn buffer(buffers: &mut LargeBuffers, len: usize) -> Option<Buffer> {
    let taken = buffers.take(len).unwrap_or_else(|error| {
        tracing::warn!(%error, len, "no memory for a large message");
        None
    });
    if taken.is_some() || !buffers.trim() {
        return taken;
    }
    buffers.take(len).unwrap_or_default()
}

#[cold]
fn buffer_beyond(buffers: &mut LargeBuffers, len: usize) -> Option<Buffer> {
    buffers.take_beyond(len).unwrap_or_else(|error| {
        tracing::warn!(%error, len, "no memory for a large message");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::Device;

    const LIMIT: u64 = 1 << 20;

    fn transfers() -> Transfers {
        let device = Device::open("shm").expect("shared memory");
        Transfers::new(1, &device.alloc_pd().expect("a domain"), 4 * LIMIT)
    }

    fn lent(len: u64, part: u64) -> Lent {
        Lent { region: RemoteRegion::new(4096, 7, len).into(), part: part.into() }
    }

    /// The lengths of what is read next, one after the other.
    fn reads(transfers: &mut Transfers) -> Vec<u64> {
        let mut lens = Vec::new();
        while let Some((slot, Transfer::Fetch { into, remote })) = transfers.next() {
            lens.push(remote.len());
            transfers.fetched(slot, into);
        }
        lens
    }

    /// Its call is cancelled, and whatever the server says of it.
    #[test]
    fn a_slot_without_a_large_message_takes_no_memory_for_one() {
        let mut transfers = transfers();
        transfers.forget(0);
        assert!(!transfers.credit(0) && !transfers.more_is_there(0));
        assert!(transfers.large.takes_no_memory());
    }

    #[test]
    fn a_response_is_read_as_far_as_it_is_there() {
        let mut transfers = transfers();
        assert!(transfers.lent(0, &lent(100_000, 40_000), LIMIT));
        assert_eq!(reads(&mut transfers), [40_000]);
        assert!(reads(&mut transfers).is_empty() && transfers.take_whole().is_none());
        assert!(transfers.more_is_there(0) && transfers.more_is_there(0));
        assert_eq!(reads(&mut transfers).iter().sum::<u64>(), 60_000);
        assert!(!transfers.more_is_there(0), "all of it was there");
        let (slot, whole) = transfers.take_whole().expect("a whole response");
        assert_eq!((slot, whole.len()), (0, 100_000));
    }

    #[test]
    fn parts_may_be_announced_before_there_is_memory() {
        let mut transfers = transfers();
        assert!(!transfers.more_is_there(0), "nothing was lent");
        assert!(transfers.lent(0, &lent(50_000, 40_000), LIMIT));
        assert!(transfers.more_is_there(0));
        assert_eq!(reads(&mut transfers).iter().sum::<u64>(), 50_000);
    }

    #[test]
    fn responses_without_bytes_or_over_the_limit_are_refused() {
        for (len, part) in [(0, 1), (100, 0), (LIMIT + 1, 1)] {
            assert!(!transfers().lent(0, &lent(len, part), LIMIT), "{len} bytes by {part}");
        }
    }

    /// Its front would not go in one chunk, or a chunk not inline.
    #[test]
    fn a_shared_request_takes_no_chunk_that_is_too_short_or_too_long() {
        let body = Bytes::from(vec![7; 200_000]);
        for (chunk, is_taken) in [(4, false), (16, true), (64 << 10, true), (65 << 10, false)] {
            let mut transfers = transfers();
            assert!(transfers.can_share(8) && !transfers.can_share(17));
            transfers.share(0, b"12345678", &body);
            assert_eq!(transfers.request_len(0), 200_008);
            let region = RemoteRegion::new(0, 1, 200_008).into();
            assert_eq!(transfers.granted(0, &Grant { region, chunk: chunk.into() }), is_taken);
        }
    }
}
