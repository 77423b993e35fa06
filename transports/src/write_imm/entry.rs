//! One client, as its server thread keeps it.

use farcall_core::time::Instant;
use farcall_core::transport::CallToken;
use farcall_verbs::{Access, Buffer, ProtectionDomain, QpNumber, SharedRegion, VerbsError};

use super::chunks::{Incoming, ring_bytes};
use super::link::Link;
use crate::backend::Custody;
use crate::door::Seat;
use crate::handshake::Terms;
use crate::memory::{Budget, Charge, Exposure, LargeBuffers, size_class};
use std::sync::Arc;

/// Whose turn it is with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client's: it may send a request.
    Idle,
    /// The server's: an announced request waits for memory.
    Waiting,
    /// The client's: it writes an announced request.
    Landing,
    /// The server's: a handler has the request.
    Busy,
    /// The client's: it reads the response.
    Lent,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    /// The response was reserved outside the slot.
    pub(crate) large_reply: bool,
}

/// A large message of a slot.
#[derive(Debug)]
pub(crate) enum Large {
    None,
    /// A request that is written: what has landed is taken out of the ring into private memory.
    Landing {
        incoming: Incoming,
        ring: Ring,
        whole: Buffer,
    },
    /// A response that a handler fills, or the client reads.
    Reply(Buffer),
}

/// Where chunks land. Only this client knows its key.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) region: SharedRegion,
    _charge: Charge,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) link: Link,
    pub(crate) qp: QpNumber,
    pub(crate) client: u32,
    pub(crate) generation: u32,
    pub(crate) slots: Box<[Slot]>,
    /// It has replies that wait for the doorbell.
    pub(crate) dirty: bool,
    pub(crate) max_message: u64,
    /// The longest response that goes in its slot.
    pub(crate) max_small: usize,
    /// Bytes of its large messages that wait for the client.
    pub(crate) held: u64,
    /// Bytes of the rings that its requests land in now.
    pub(crate) landing: u64,
    /// When one of them last moved on.
    pub(crate) moved: Instant,
    /// Empty until the first large message.
    large: Vec<Large>,
    rings: Vec<Ring>,
    replies: Option<LargeBuffers>,
    pd: ProtectionDomain,
    /// Entries of the completion queue that are its own.
    _completions: Charge,
    // Last: what the client sees of its end comes after the queue pair's.
    _custody: Custody,
}

impl Entry {
    pub(crate) fn new(
        link: Link,
        pd: ProtectionDomain,
        seat: Seat,
        terms: &Terms,
        completions: Charge,
        custody: Custody,
    ) -> Entry {
        let slot = Slot { generation: 0, phase: Phase::Idle, large_reply: false };
        Entry {
            qp: link.qp().number(),
            client: seat.number,
            generation: seat.generation,
            slots: vec![slot; terms.window as usize].into(),
            dirty: false,
            max_message: terms.max_message,
            max_small: link
                .max_in_slot()
                .min(usize::try_from(terms.max_message).unwrap_or(usize::MAX)),
            link,
            held: 0,
            landing: 0,
            moved: Instant::ZERO,
            large: Vec::new(),
            rings: Vec::new(),
            replies: None,
            pd,
            _completions: completions,
            _custody: custody,
        }
    }

    /// The right to answer what is in this slot now.
    #[inline]
    pub(crate) fn token(&self, slot: u32) -> CallToken {
        let generation = self.slots[slot as usize].generation;
        CallToken::new(self.client, self.generation, slot, generation)
    }

    pub(crate) fn large(&mut self, slot: u32) -> &mut Large {
        if self.large.is_empty() {
            self.large.resize_with(self.slots.len(), || Large::None);
        }
        &mut self.large[slot as usize]
    }

    pub(crate) fn take_large(&mut self, slot: u32) -> Large {
        std::mem::replace(self.large(slot), Large::None)
    }

    /// A ring for a request of `len` bytes; `None` if the budget does not allow a new one.
    pub(crate) fn ring(
        &mut self,
        len: u64,
        budget: &Arc<Budget>,
    ) -> Result<Option<Ring>, VerbsError> {
        let size = size_class(ring_bytes(len) as usize);
        if let Some(at) = self.rings.iter().rposition(|ring| ring.region.len() == size) {
            return Ok(Some(self.rings.swap_remove(at)));
        }
        let Some(charge) = budget.charge(size as u64) else { return Ok(None) };
        // Looked at only when the completion of a chunk says that it has landed.
        let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let region = self.pd.alloc_shared(size, access)?;
        Ok(Some(Ring { region, _charge: charge }))
    }

    /// A ring that nothing lands in any more.
    pub(crate) fn put_ring(&mut self, ring: Ring) {
        self.rings.push(ring);
    }

    /// A buffer for a large response; `None` if the budget does not allow it.
    pub(crate) fn reply_buffer(
        &mut self,
        len: usize,
        budget: &Arc<Budget>,
    ) -> Result<Option<Buffer>, VerbsError> {
        let Entry { replies, pd, .. } = self;
        replies.get_or_insert_with(|| LargeBuffers::new(pd, Exposure::Published, budget)).take(len)
    }

    /// Frees the memory that it keeps for later.
    pub(crate) fn trim(&mut self) -> bool {
        let rings = !self.rings.is_empty();
        self.rings.clear();
        self.replies.as_mut().is_some_and(LargeBuffers::trim) | rings
    }
}
