//! The server's large messages: where the requests of one connection land, and when its responses are given back.

use std::ops::Range;

use bytes::Bytes;
use farcall_core::error::ReserveError;
use farcall_core::time::Instant;
use farcall_verbs::VerbsError;
use farcall_verbs::{
    Access, Buffer, Drafts, ProtectionDomain, RemoteRegion, RemoteSlice, SharedRegion,
};

use super::chunks::{Incoming, RING_CHUNKS, chunk_bytes, most_chunk_bytes, part_bytes, ring_bytes};
use super::reads::{IncomingRead, Read};
use super::wire::{Grant, Here, Lent};
use crate::buffers::export::{Export, Exports};
use crate::kit::counts;
use crate::kit::lending::{Lending, Loan};
use crate::kit::memory::{Charge, Exposure, LargeBuffers, size_class};

/// Landing rings that one client may have at a time: one that it writes, and one that is ready when that is full. More would only
/// be colder.
const RINGS_PER_CLIENT: u64 = 2;

/// Pieces of a client's memory that this end maps, where it maps what it reads.
const MOST_KEYS: usize = 256;

/// A large message of a slot.
#[derive(Debug)]
enum Large {
    None,
    /// A request that is written: what has landed is copied out of the ring into private memory.
    Landing {
        incoming: Incoming,
        ring: Ring,
        whole: Buffer,
    },
    /// A request that waits at its client to be read.
    Waiting(Here),
    /// A request that is read.
    Reading(IncomingRead),
    /// A response that a handler fills.
    Draft(Buffer),
    /// A response that the client reads.
    Lent(Buffer),
    /// The same, in memory of the program's.
    LentHere(Export),
}

/// Where chunks land. Only this client knows its key.
#[derive(Debug)]
struct Ring {
    region: SharedRegion,
    _charge: Charge,
}

/// The rule that a client broke.
pub(crate) type Misbehaved = &'static str;

/// What the arrival of a chunk came to.
#[derive(Debug)]
pub(crate) struct Landed {
    /// The client needs a credit for the place of the chunk.
    pub(crate) owes_credit: bool,
    /// The request, if this was its last chunk.
    pub(crate) whole: Option<Buffer>,
}

/// What making room for a request came to.
#[derive(Debug)]
pub(crate) enum Room {
    Granted(Grant),
    /// The request is to be read.
    Reading,
    /// The budget does not allow it now.
    Exhausted,
    /// The system has no memory, whatever the budget says.
    Failed,
}

/// The large messages of one connection.
#[derive(Debug)]
pub(crate) struct LargeMessages {
    pub(crate) loan: Loan,
    /// Bytes of the rings that its requests land in now.
    landing: u64,
    /// By slot; empty until the first large message.
    large: Vec<Large>,
    /// The slot whose response was lent in parts: as long as it is, others are lent whole.
    in_parts: Option<u32>,
    window: usize,
    rings: Vec<Ring>,
    responses: Option<LargeBuffers>,
    /// Where requests are read into.
    requests: Option<LargeBuffers>,
    /// The keys of the client's memory that requests were read from.
    keys: Vec<u32>,
    exports: Exports,
    pd: ProtectionDomain,
}

impl LargeMessages {
    pub(crate) fn new(window: u32, pd: ProtectionDomain) -> LargeMessages {
        LargeMessages {
            loan: Loan::default(),
            landing: 0,
            large: Vec::new(),
            in_parts: None,
            window: window as usize,
            rings: Vec::new(),
            responses: None,
            requests: None,
            keys: Vec::new(),
            exports: Exports::new(&pd),
            pd,
        }
    }

    fn at(&mut self, slot: u32) -> &mut Large {
        if self.large.is_empty() {
            self.large.resize_with(self.window, || Large::None);
        }
        &mut self.large[slot as usize]
    }

    fn take(&mut self, slot: u32) -> Large {
        std::mem::replace(self.at(slot), Large::None)
    }

    /// Whether the client may have memory for one more request of `len` bytes now.
    pub(crate) fn may_land(&self, slot: u32, len: u64, lending: &Lending) -> bool {
        let most = RINGS_PER_CLIENT * RING_CHUNKS * most_chunk_bytes(self.pd.caps());
        let ring = ring_bytes(len, self.chunk_of(len));
        let has_rings = self.landing == 0 || self.landing + ring <= most || self.is_here(slot);
        has_rings && lending.is_within_share(&self.loan, len)
    }

    /// Bytes of a chunk of a message of `len` bytes.
    fn chunk_of(&self, len: u64) -> u64 {
        chunk_bytes(len, self.pd.caps())
    }

    fn is_here(&self, slot: u32) -> bool {
        matches!(self.large.get(slot as usize), Some(Large::Waiting(_)))
    }

    /// The slot's request waits at its client. If it is not to be read, because the client has named too many pieces of its memory, it is
    /// written like any other.
    pub(crate) fn wait_to_read(&mut self, slot: u32, here: Here) {
        let key = RemoteRegion::from(here.region).rkey;
        // A NIC keeps nothing of a peer's memory.
        let is_known = self.pd.caps().network || self.keys.contains(&key);
        if !is_known && self.keys.len() == MOST_KEYS {
            return;
        }
        if !is_known {
            self.keys.push(key);
        }
        *self.at(slot) = Large::Waiting(here);
    }

    /// Memory to read the slot's request into.
    fn make_room_to_read(
        &mut self,
        slot: u32,
        here: &Here,
        lending: &Lending,
        now: Instant,
    ) -> Room {
        let LargeMessages { requests, pd, .. } = self;
        let requests = requests
            .get_or_insert_with(|| LargeBuffers::new(pd, Exposure::Private, lending.budget()));
        let len = here.message_len();
        let taken = usize::try_from(len).ok().map(|len| requests.take(len));
        match taken {
            Some(Ok(Some(memory))) => {
                self.loan.take(slot, len, now);
                *self.at(slot) = Large::Reading(IncomingRead::new(here, memory));
                Room::Reading
            }
            Some(Ok(None)) => Room::Exhausted,
            Some(Err(error)) => {
                tracing::warn!(%error, len, "no memory for a large request");
                Room::Failed
            }
            None => Room::Failed,
        }
    }

    /// What to read next of the slot's request, if it is read and another part may be under way.
    pub(crate) fn next_read(&mut self, slot: u32) -> Option<(Buffer, RemoteSlice)> {
        let part = most_chunk_bytes(self.pd.caps());
        match self.at(slot) {
            Large::Reading(read) => read.next(part),
            _ => None,
        }
    }

    /// One more part of the slot's request has been read.
    pub(crate) fn add_read(&mut self, slot: u32, part: Buffer, now: Instant) -> Read {
        self.loan.move_on(now);
        let Large::Reading(read) = self.at(slot) else { return Read::Partly };
        match read.add(part) {
            Read::Partly => Read::Partly,
            ended => {
                self.take(slot);
                self.loan.give_back(slot);
                ended
            }
        }
    }

    /// The slot's request is not wanted any more. `false`: parts of it are still being read.
    pub(crate) fn give_up_request(&mut self, slot: u32) -> bool {
        if let Large::Reading(read) = self.at(slot)
            && !read.give_up()
        {
            return false;
        }
        match self.at(slot) {
            Large::Waiting(_) | Large::Reading(_) => {
                self.take(slot);
                self.loan.give_back(slot);
            }
            _ => drop(self.take_request(slot)),
        }
        true
    }

    /// Makes room for the slot's request: a landing ring, and a buffer of `assembly` to put it together in.
    pub(crate) fn make_room(
        &mut self,
        slot: u32,
        len: u64,
        (assembly, lending): (&mut LargeBuffers, &Lending),
        now: Instant,
    ) -> Room {
        if let &mut Large::Waiting(here) = self.at(slot) {
            return self.make_room_to_read(slot, &here, lending, now);
        }
        let made = usize::try_from(len).ok().and_then(|bytes| {
            let whole = assembly.take(bytes).transpose()?;
            let ring = self.ring(len, lending).transpose()?;
            Some(whole.and_then(|whole| Ok((whole, ring?))))
        });
        let (whole, ring) = match made {
            None => return Room::Exhausted,
            Some(Ok(made)) => made,
            Some(Err(error)) => {
                tracing::warn!(%error, len, "no memory for a large request");
                return Room::Failed;
            }
        };
        let chunk = self.chunk_of(len);
        let Some(incoming) = Incoming::new(len, chunk) else { return Room::Failed };
        let RemoteRegion { addr, rkey, .. } = ring.region.remote();
        let region = RemoteRegion::new(addr, rkey, incoming.ring_bytes());
        self.loan.take(slot, len, now);
        self.landing += incoming.ring_bytes();
        *self.at(slot) = Large::Landing { incoming, ring, whole };
        Room::Granted(Grant { region: region.into(), chunk: (chunk as u32).into() })
    }

    /// A ring for a request of `len` bytes; `None` if the budget does not allow a new one.
    fn ring(&mut self, len: u64, lending: &Lending) -> Result<Option<Ring>, VerbsError> {
        let size = size_class(ring_bytes(len, self.chunk_of(len)) as usize);
        if let Some(at) = self.rings.iter().rposition(|ring| ring.region.len() == size) {
            return Ok(Some(self.rings.swap_remove(at)));
        }
        let Some(charge) = lending.budget().charge(size as u64) else { return Ok(None) };
        // Looked at only when the completion of a chunk says that it has landed.
        let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let region = self.pd.alloc_shared(size, access)?;
        Ok(Some(Ring { region, _charge: charge }))
    }

    /// One more chunk of the slot's request is in its ring.
    pub(crate) fn land(
        &mut self,
        slot: u32,
        byte_len: u64,
        now: Instant,
    ) -> Result<Landed, Misbehaved> {
        self.loan.move_on(now);
        let Large::Landing { incoming, ring, whole } = self.at(slot) else {
            return Err("a chunk that no request waits for");
        };
        let Some(chunk) = incoming.land(byte_len) else {
            return Err("a chunk of another length than is due");
        };
        let (from, to) = (chunk.ring_offset as usize, chunk.offset as usize);
        // Read once, into memory that the client cannot write.
        ring.region.copy_out(from, &mut whole[to..to + byte_len as usize]);
        let (owes_credit, is_done) = (incoming.owes_credit(), incoming.is_done());
        let whole = if is_done { self.take_request(slot) } else { None };
        Ok(Landed { owes_credit, whole })
    }

    /// The slot's request, whole or not: nothing of it lands any more.
    pub(crate) fn take_request(&mut self, slot: u32) -> Option<Buffer> {
        let Large::Landing { incoming, whole, ring } = self.take(slot) else { return None };
        self.loan.give_back(slot);
        self.landing -= incoming.ring_bytes();
        self.rings.push(ring);
        Some(whole)
    }

    /// A buffer for the slot's response of `len` bytes.
    #[cold]
    pub(crate) fn reserve(
        &mut self,
        slot: u32,
        len: usize,
        lending: &mut Lending,
    ) -> Result<&mut Buffer, ReserveError> {
        let buffer = self.take_buffer(len, lending)?;
        let large = self.at(slot);
        *large = Large::Draft(buffer);
        match large {
            Large::Draft(buffer) => Ok(buffer),
            _ => Err(ReserveError::Closed),
        }
    }

    fn take_buffer(&mut self, len: usize, lending: &mut Lending) -> Result<Buffer, ReserveError> {
        let LargeMessages { responses, pd, loan, .. } = self;
        let responses = responses
            .get_or_insert_with(|| LargeBuffers::new(pd, Exposure::Published, lending.budget()));
        Ok(lending.take_for_response(loan, len, |len| responses.take_for_response(len))?)
    }

    /// The slot's response is written, in so many bytes. Gives its buffer.
    pub(crate) fn finish(&mut self, slot: u32, len: usize, drafts: &mut Drafts) -> Option<Buffer> {
        let Large::Draft(mut buffer) = self.take(slot) else { return None };
        buffer.set_len(len);
        drafts.publish(&mut buffer);
        Some(buffer)
    }

    /// Lends the slot's response to the client until it is [given back](LargeMessages::give_back).
    pub(crate) fn lend(&mut self, slot: u32, response: Buffer) -> Option<Lent> {
        // Published memory always has a name.
        let region = response.remote()?;
        self.loan.take_response_to_read(slot, region.len);
        *self.at(slot) = Large::Lent(response);
        Some(Lent { region: region.into(), part: region.len.into() })
    }

    /// Lends the slot's response, which is `front` and then these bytes, where they are. `None`: they have to be copied.
    #[cold]
    pub(crate) fn lend_here(
        &mut self,
        slot: u32,
        front: &[u8],
        body: &Bytes,
        lending: &Lending,
    ) -> Option<Here> {
        if !lending.is_within_share(&self.loan, body.len() as u64) {
            return None;
        }
        let export = self.exports.export(body)?;
        let here = Here::new(front, export.region)?;
        counts::count_offered();
        self.loan.take_response_to_read(slot, export.region.len);
        *self.at(slot) = Large::LentHere(export);
        Some(here)
    }

    /// A response may be lent in parts: the client copies it itself, and no other one is lent in parts, so that it has a receive for
    /// each.
    pub(crate) fn may_part(&self) -> bool {
        !self.pd.caps().network && self.in_parts.is_none()
    }

    /// Lends the slot's response, which consists of these pieces, while it is copied: tells where it is when its first part is
    /// there, and then of each further one, if `may_part`.
    #[cold]
    pub(crate) fn lend_pieces(
        &mut self,
        slot: u32,
        pieces: [&[u8]; 2],
        may_part: bool,
        lending: &mut Lending,
        mut tell: impl FnMut(Option<Lent>),
    ) -> Result<(), ReserveError> {
        let len = pieces[0].len() + pieces[1].len();
        let mut response = self.take_buffer(len, lending)?;
        // Published memory always has a name.
        let region = response.remote().ok_or(ReserveError::Closed)?;
        let part =
            if may_part { part_bytes(region.len, self.chunk_of(region.len)) } else { region.len };
        if part < region.len {
            self.in_parts = Some(slot);
        }
        let mut lent = Some(Lent { region: region.into(), part: part.into() });
        for from in (0..len).step_by(part as usize) {
            copy_pieces(&mut response, pieces, from..len.min(from + part as usize));
            tell(lent.take());
        }
        self.loan.take_response_to_read(slot, region.len);
        *self.at(slot) = Large::Lent(response);
        Ok(())
    }

    /// The client has read its response.
    pub(crate) fn give_back(&mut self, slot: u32, now: Instant) {
        self.loan.move_on(now);
        self.in_parts.take_if(|lent| *lent == slot);
        match self.take(slot) {
            Large::Lent(response) => drop(response),
            Large::LentHere(export) => drop(export),
            _ => return,
        }
        self.loan.give_back(slot);
    }

    /// Frees the memory that is kept for later; `false` if there was none.
    pub(crate) fn trim(&mut self) -> bool {
        let rings = !self.rings.is_empty();
        self.rings.clear();
        let halves = [&mut self.responses, &mut self.requests].into_iter().flatten();
        halves.fold(rings, |freed, half| half.trim() | freed)
    }
}

/// Copies this range of a message that consists of two pieces.
fn copy_pieces(message: &mut Buffer, [front, body]: [&[u8]; 2], range: Range<usize>) {
    let in_front = range.start.min(front.len())..range.end.min(front.len());
    message.copy_in(in_front.start, &front[in_front]);
    let at = range.start.max(front.len());
    message.copy_in(at, &body[at - front.len()..range.end.max(at) - front.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::memory::Budget;
    use farcall_verbs::Device;

    /// Of a request with a whole landing ring; a client may have two rings.
    const LONG: u64 = 1 << 20;

    /// A client's large messages, and the memory of its server thread.
    fn bench(memory: u64) -> (LargeMessages, LargeBuffers, Lending) {
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let budget = Budget::new(memory);
        let assembly = LargeBuffers::new(&pd, Exposure::Private, &budget);
        (LargeMessages::new(8, pd), assembly, Lending::new(budget))
    }

    #[test]
    fn a_client_has_two_landing_rings_however_much_memory_there_is() {
        let (mut large, mut assembly, lending) = bench(1 << 30);
        for slot in 0..2 {
            assert!(large.may_land(0, LONG, &lending));
            let room = large.make_room(slot, LONG, (&mut assembly, &lending), Instant::ZERO);
            assert!(matches!(room, Room::Granted(_)), "{room:?}");
        }
        assert!(lending.is_within_share(&large.loan, LONG) && !large.may_land(0, LONG, &lending));
        assert!(large.take_request(0).is_some());
        assert!(large.may_land(0, LONG, &lending));
    }

    #[test]
    fn nothing_lands_beyond_the_share_of_a_client_that_has_its_landing_rings() {
        let (mut large, _, lending) = bench(2 * LONG);
        large.loan.take_response_to_read(0, LONG);
        assert!(!large.may_land(0, 1, &lending));
        large.loan.give_back(0);
        assert!(large.may_land(0, LONG, &lending));
    }
}
