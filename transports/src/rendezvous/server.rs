//! The server's large messages: where the requests of one connection land, and when its responses are given back.

use std::ops::Range;

use farcall_core::error::ReserveError;
use farcall_core::time::Instant;
use farcall_verbs::VerbsError;
use farcall_verbs::{Access, Buffer, Drafts, ProtectionDomain, RemoteRegion, SharedRegion};

use super::chunks::{Incoming, RING_CHUNKS, chunk_bytes, most_chunk_bytes, part_bytes, ring_bytes};
use super::wire::{Grant, Lent};
use crate::kit::lending::{Lending, Loan};
use crate::kit::memory::{Charge, Exposure, LargeBuffers, size_class};

/// Landing rings that one client may have at a time: one that it writes, and one that is ready when that is full. More would only
/// be colder.
const RINGS_PER_CLIENT: u64 = 2;

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
    /// A response that a handler fills.
    Draft(Buffer),
    /// A response that the client reads.
    Lent(Buffer),
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
    pub(crate) fn may_land(&self, len: u64, lending: &Lending) -> bool {
        let most = RINGS_PER_CLIENT * RING_CHUNKS * most_chunk_bytes(self.pd.caps());
        let ring = ring_bytes(len, self.chunk_of(len));
        let has_rings = self.landing == 0 || self.landing + ring <= most;
        has_rings && lending.is_within_share(&self.loan, len)
    }

    /// Bytes of a chunk of a message of `len` bytes.
    fn chunk_of(&self, len: u64) -> u64 {
        chunk_bytes(len, self.pd.caps())
    }

    /// Makes room for the slot's request: a landing ring, and a buffer of `assembly` to put it together in.
    pub(crate) fn make_room(
        &mut self,
        slot: u32,
        len: u64,
        (assembly, lending): (&mut LargeBuffers, &Lending),
        now: Instant,
    ) -> Room {
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
        if let Large::Lent(response) = self.take(slot) {
            drop(response);
            self.loan.give_back(slot);
        }
    }

    /// Frees the memory that is kept for later; `false` if there was none.
    pub(crate) fn trim(&mut self) -> bool {
        let rings = !self.rings.is_empty();
        self.rings.clear();
        self.responses.as_mut().is_some_and(LargeBuffers::trim) | rings
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
            assert!(large.may_land(LONG, &lending));
            let room = large.make_room(slot, LONG, (&mut assembly, &lending), Instant::ZERO);
            assert!(matches!(room, Room::Granted(_)), "{room:?}");
        }
        assert!(lending.is_within_share(&large.loan, LONG) && !large.may_land(LONG, &lending));
        assert!(large.take_request(0).is_some());
        assert!(large.may_land(LONG, &lending));
    }

    #[test]
    fn nothing_lands_beyond_the_share_of_a_client_that_has_its_landing_rings() {
        let (mut large, _, lending) = bench(2 * LONG);
        large.loan.take_response_to_read(0, LONG);
        assert!(!large.may_land(1, &lending));
        large.loan.give_back(0);
        assert!(large.may_land(LONG, &lending));
    }
}
