//! A large request's way through its landing ring: arithmetic of both ends.
//!
//! The request is cut into chunks; chunk `k` lands at position `k` modulo the ring's length. The
//! client may be a ring ahead of the server; each chunk that the server has taken out gives one
//! credit back, as long as there are chunks that need it.

use std::ops::RangeInclusive;

use farcall_verbs::Capabilities;

use super::wire::Grant;

/// Bytes of the longest chunk: its completion costs a NIC nothing beside its bytes.
pub(crate) const LONGEST_CHUNK_BYTES: u64 = 128 << 10;

/// Bytes of a chunk where the CPUs of both ends copy it, one while the other copies the next. Measured: shorter ones cost more than
/// they gain, and so do longer ones, of messages of which they are more than a quarter.
const COPIED_CHUNK_BYTES: RangeInclusive<u64> = 32 << 10..=64 << 10;

/// Bytes of a chunk of a message of `len` bytes, on a device with these capabilities.
pub(crate) fn chunk_bytes(len: u64, caps: &Capabilities) -> u64 {
    let (least, most) = COPIED_CHUNK_BYTES.into_inner();
    if caps.network { LONGEST_CHUNK_BYTES } else { (len / 4 / least * least).clamp(least, most) }
}

/// Bytes of the longest chunk on a device with these capabilities.
pub(crate) fn most_chunk_bytes(caps: &Capabilities) -> u64 {
    chunk_bytes(u64::MAX, caps)
}

/// Chunks of a whole landing ring.
pub(crate) const RING_CHUNKS: u64 = 8;

/// Bytes of the landing ring for a request of `len` bytes.
pub(crate) fn ring_bytes(len: u64, chunk: u64) -> u64 {
    len.min(chunk * RING_CHUNKS).next_multiple_of(4096)
}

/// Parts of a response whose client is told of each, at most: each takes a receive of the client.
const MOST_PARTS: u64 = 8;

/// Operations by which a server tells of one large message that its peer has not received, at most: the credits of a landing ring, or the
/// parts of a response.
pub(crate) const MOST_OPERATIONS: usize =
    if RING_CHUNKS > MOST_PARTS { RING_CHUNKS as usize } else { MOST_PARTS as usize };

/// Bytes of each part of a response of `len` bytes but the last, if the client reads one while the server copies the next.
pub(crate) fn part_bytes(len: u64, chunk: u64) -> u64 {
    len.div_ceil(MOST_PARTS).next_multiple_of(chunk)
}

/// One chunk: where it lies in the message and in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) offset: u64,
    pub(crate) ring_offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    len: u64,
    chunk: u64,
    ring: u64,
    count: u64,
}

impl Plan {
    fn new(len: u64, chunk: u64, region: u64) -> Option<Plan> {
        if len == 0 || chunk == 0 {
            return None;
        }
        let count = len.div_ceil(chunk);
        // A request of one chunk needs only its own length.
        let ring = if count == 1 { u64::from(region >= len) } else { region / chunk };
        let ring = if region >= len { count } else { ring };
        (ring > 0).then_some(Plan { len, chunk, ring, count })
    }

    fn at(&self, index: u64) -> Chunk {
        let offset = index * self.chunk;
        Chunk {
            offset,
            ring_offset: index % self.ring * self.chunk,
            len: self.chunk.min(self.len - offset),
        }
    }
}

/// The client's half.
#[derive(Debug)]
pub(crate) struct Outgoing {
    plan: Plan,
    sent: u64,
    allowed: u64,
}

impl Outgoing {
    /// A request of `len` bytes under this grant; `None` if the grant makes no sense.
    pub(crate) fn new(len: u64, grant: &Grant, region_len: u64) -> Option<Outgoing> {
        let plan = Plan::new(len, grant.chunk.get().into(), region_len)?;
        Some(Outgoing { plan, sent: 0, allowed: plan.ring })
    }

    /// The next chunk that may be written.
    pub(crate) fn next(&self) -> Option<Chunk> {
        (self.sent < self.allowed.min(self.plan.count)).then(|| self.plan.at(self.sent))
    }

    /// That chunk was posted.
    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }

    /// The server took a chunk out of the ring; `false` if it cannot have.
    pub(crate) fn credit(&mut self) -> bool {
        self.allowed += 1;
        self.allowed - self.plan.ring <= self.sent && self.allowed <= self.plan.count
    }

    /// All chunks were posted.
    pub(crate) fn is_done(&self) -> bool {
        self.sent == self.plan.count
    }

    /// Bytes of each chunk but the last.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.plan.chunk
    }
}

/// The server's half.
#[derive(Debug)]
pub(crate) struct Incoming {
    plan: Plan,
    landed: u64,
}

impl Incoming {
    /// A request of `len` bytes, not 0, through a ring of [`ring_bytes`].
    pub(crate) fn new(len: u64, chunk: u64) -> Option<Incoming> {
        Some(Incoming { plan: Plan::new(len, chunk, ring_bytes(len, chunk))?, landed: 0 })
    }

    /// Bytes of its ring.
    pub(crate) fn ring_bytes(&self) -> u64 {
        ring_bytes(self.plan.len, self.plan.chunk)
    }

    /// A chunk of `byte_len` bytes has landed; `None` if none of that length was due.
    pub(crate) fn land(&mut self, byte_len: u64) -> Option<Chunk> {
        if self.is_done() {
            return None;
        }
        let chunk = self.plan.at(self.landed);
        if chunk.len != byte_len {
            return None;
        }
        self.landed += 1;
        Some(chunk)
    }

    /// Whether the chunk that landed last owes the client a credit.
    pub(crate) fn owes_credit(&self) -> bool {
        self.landed + self.plan.ring <= self.plan.count
    }

    /// The whole request is here.
    pub(crate) fn is_done(&self) -> bool {
        self.landed == self.plan.count
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::RemoteRegion;
    use proptest::prelude::*;

    fn grant(chunk: u32, len: u64) -> Grant {
        Grant { region: RemoteRegion::new(0, 0, len).into(), chunk: chunk.into() }
    }

    const CHUNK: u64 = 32 << 10;

    fn start(len: u64, chunk: u64) -> (Outgoing, Incoming) {
        let region = ring_bytes(len, chunk);
        let outgoing = Outgoing::new(len, &grant(chunk as u32, region), region).unwrap();
        (outgoing, Incoming::new(len, chunk).unwrap())
    }

    #[test]
    fn a_request_within_the_ring_needs_no_credit() {
        let (mut outgoing, mut incoming) = start(8 * CHUNK, CHUNK);
        while let Some(chunk) = outgoing.next() {
            outgoing.sent();
            assert_eq!(incoming.land(chunk.len), Some(chunk));
            assert!(!incoming.owes_credit());
        }
        assert!(outgoing.is_done() && incoming.is_done());
        assert!(!outgoing.credit(), "a credit that nobody owes");
    }

    #[test]
    fn a_credit_for_a_chunk_that_was_not_sent_is_refused() {
        let new = || Outgoing::new(100, &grant(10, 30), 30).unwrap();
        assert!(!new().credit());
        let mut outgoing = new();
        outgoing.sent();
        assert!(outgoing.credit());
        assert!(!outgoing.credit(), "it was given back before");
    }

    #[test]
    fn grants_without_room_are_refused() {
        for (len, chunk, region) in [(10, 0, 10), (10, 16, 9), (100, 16, 15), (0, 16, 16)] {
            assert!(Outgoing::new(len, &grant(chunk, region), region).is_none());
        }
    }

    #[test]
    fn a_chunk_of_another_length_is_refused() {
        let mut incoming = Incoming::new(CHUNK + 1, CHUNK).unwrap();
        assert!(incoming.land(CHUNK + 1).is_none());
        assert!(incoming.land(CHUNK).is_some());
        assert!(incoming.land(0).is_none());
        assert!(incoming.land(1).is_some());
        assert!(incoming.land(1).is_none());
    }

    proptest! {
        /// The client never writes where an untaken chunk lies, and never outside.
        #[test]
        fn no_chunk_overwrites_another(len in 1u64..(20 << 20), lead in 1usize..12) {
            let chunk = if lead % 2 == 0 { CHUNK } else { LONGEST_CHUNK_BYTES };
            let (mut outgoing, mut incoming) = start(len, chunk);
            let mut flying = std::collections::VecDeque::new();
            let mut next_offset = 0;
            while !incoming.is_done() {
                while flying.len() < lead && let Some(chunk) = outgoing.next() {
                    outgoing.sent();
                    prop_assert!(chunk.ring_offset + chunk.len <= incoming.ring_bytes());
                    let apart = |other: &Chunk| chunk.ring_offset + chunk.len <= other.ring_offset
                        || other.ring_offset + other.len <= chunk.ring_offset;
                    prop_assert!(flying.iter().all(apart));
                    flying.push_back(chunk);
                }
                let chunk = flying.pop_front().expect("it never gets stuck");
                prop_assert_eq!(incoming.land(chunk.len), Some(chunk));
                prop_assert_eq!(chunk.offset, next_offset);
                next_offset += chunk.len;
                if incoming.owes_credit() {
                    prop_assert!(outgoing.credit());
                }
            }
            prop_assert_eq!(next_offset, len);
            prop_assert!(outgoing.is_done());
        }
    }
}
