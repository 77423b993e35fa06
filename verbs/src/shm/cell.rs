//! The ring of cells in memory that both peers map. It has one writer (the sending peer) and one reader
//! (the owner of the inbox).
//!
//! A cell is one cache line: a header word, a length word, and 48 bytes of payload. The header carries a
//! tag derived from the message's position in the stream. Storing the header with release ordering
//! publishes the cell. The tag alone tells the reader whether the next cell has arrived, so the two share
//! no index on the common path.
//!
//! The ring has as many cells as the receiver has receives. While the reader keeps up, the writer only uses
//! the first [`SMALL_LAP`] cells, whose lines stay in both cores' caches. With 16 or more lines in use, a
//! round trip takes twice as long (measured). Each header says where the next cell is: adjacent, at the
//! start of the ring, behind the small lap, or behind the cell from which the writer last went back to the start.

use super::sync::{AtomicU64, Ordering};

pub(crate) use crate::memory::bytes::LINE_BYTES;

/// Payload bytes of one cell.
pub(crate) const CELL_PAYLOAD_BYTES: usize = 48;

/// The smallest and largest number of cells in a ring. An acknowledgement has 16 bits, which must
/// distinguish twice as many positions.
pub(crate) const MIN_CELLS: u32 = 64;
pub(crate) const MAX_CELLS: u32 = 1 << 15;

/// The number of cells used while the reader keeps up.
pub(crate) const SMALL_LAP: u32 = 8;

/// Successive cells lie this many lines apart in memory. It is odd, so that the mapping is a permutation.
/// If they were adjacent, the polling core's stream prefetcher would take the next lines from the writer's
/// cache.
const STRIDE: u32 = 5;

/// Where the cell after this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Next {
    /// Adjacent in the ring.
    Adjacent = 0,
    /// At the start of the ring.
    Start = 1,
    /// Right after the small lap.
    BehindSmallLap = 2,
    /// The same cell: this message is an answer in the line of the message it answers (see `duplex`).
    Unchanged = 3,
    /// Right after the cell from which the writer last went back to the start.
    PastReturn = 4,
}

/// What a cell carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CellKind {
    /// The immediate of a WRITE_WITH_IMM. Its bytes are already in the target's memory.
    WriteImm = 1,
    /// The first bytes of a SEND.
    Send = 2,
    /// The first bytes of a SEND with immediate.
    SendImm = 3,
    /// More bytes of the preceding SEND.
    More = 4,
    /// A SEND that is longer than its receive. The cell carries only its length.
    TooLong = 5,
}

impl CellKind {
    pub(crate) fn of(byte: u8) -> Option<CellKind> {
        Some(match byte {
            1 => CellKind::WriteImm,
            2 => CellKind::Send,
            3 => CellKind::SendImm,
            4 => CellKind::More,
            5 => CellKind::TooLong,
            _ => return None,
        })
    }
}

/// The `carried` value of a cell without payload.
pub(crate) const CARRIES_NOTHING: u8 = 255;

/// The first word of a cell. All of it except the tag is claimed by the writer and must be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64);

impl Header {
    /// `extra` is an acknowledgement on a connection, or the length of a datagram.
    #[inline]
    pub(crate) fn new(tag: u32, kind: CellKind, next: Next, carried: u8, extra: u16) -> Header {
        Header(
            u64::from(tag)
                | u64::from(kind as u8 | (next as u8) << 4) << 32
                | u64::from(carried) << 40
                | u64::from(extra) << 48,
        )
    }

    #[inline]
    pub(crate) fn tag(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(crate) fn kind(self) -> u8 {
        (self.0 >> 32) as u8 & 0xF
    }

    #[inline]
    pub(crate) fn next(self) -> u8 {
        (self.0 >> 36) as u8 & 0xF
    }

    #[inline]
    pub(crate) fn carried(self) -> u8 {
        (self.0 >> 40) as u8
    }

    #[inline]
    pub(crate) fn extra(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The second word of a cell: the length of a message or the queue key of a datagram, and the immediate.
#[inline]
pub(crate) fn second_word(length: u32, imm: u32) -> u64 {
    u64::from(length) | u64::from(imm) << 32
}

/// One cell. All its words are atomics, because the peer that maps it may write at any time.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Cell {
    header: AtomicU64,
    second: AtomicU64,
    payload: [AtomicU64; CELL_PAYLOAD_BYTES / 8],
}

impl Cell {
    #[inline]
    pub(crate) fn header(&self) -> Header {
        Header(self.header.load(Ordering::Acquire))
    }

    /// The second word: length or queue key, and immediate.
    #[inline]
    pub(crate) fn second_word(&self) -> (u32, u32) {
        let word = self.second.load(Ordering::Relaxed);
        (word as u32, (word >> 32) as u32)
    }

    /// The first word of the payload.
    #[inline]
    pub(crate) fn first_word(&self) -> u64 {
        self.payload[0].load(Ordering::Relaxed)
    }

    /// Copies all payload words. Words beyond `carried` hold data of earlier laps.
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[inline]
    pub(crate) fn payload(&self, into: &mut [u64; CELL_PAYLOAD_BYTES / 8]) {
        // Copies 16 bytes at a time, as readers load the copy in such units: a load that spans several stores in
        // flight waits until they reach the cache.
        // SAFETY: reads the 48 bytes of this payload and writes those of `into`; asm, because the peer may
        // write the cell meanwhile.
        unsafe {
            std::arch::asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups [{into}], {a}",
                "movups [{into} + 16], {b}",
                "movups [{into} + 32], {c}",
                from = in(reg) self.payload.as_ptr(),
                into = in(reg) into.as_mut_ptr(),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Copies all payload words. Words beyond `carried` hold data of earlier laps.
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    #[inline]
    pub(crate) fn payload(&self, into: &mut [u64; CELL_PAYLOAD_BYTES / 8]) {
        for (word, cell) in into.iter_mut().zip(&self.payload) {
            *word = cell.load(Ordering::Relaxed);
        }
    }

    /// Fills the cell. [`publish`](Cell::publish) makes it visible to the reader.
    #[inline]
    pub(crate) fn fill(&self, second: u64, payload: &[u64]) {
        self.second.store(second, Ordering::Relaxed);
        // A full cell is a call of 32 bytes, the usual case: no loop.
        if let Ok(full) = <&[u64; CELL_PAYLOAD_BYTES / 8]>::try_from(payload) {
            return self.store_payload(full);
        }
        self.store_payload(payload);
    }

    #[inline(always)]
    fn store_payload<'w>(&self, words: impl IntoIterator<Item = &'w u64>) {
        for (cell, word) in self.payload.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    /// Marks the cell as holding no message.
    #[inline]
    pub(crate) fn clear(&self) {
        self.header.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn publish(&self, header: Header) {
        self.header.store(header.0, Ordering::Release);
    }
}

/// The cells of a ring. It does not own the memory: its creator must keep it mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRing {
    cells: *const Cell,
    mask: u32,
}

// SAFETY: it is an address; the cells behind it are atomics.
unsafe impl Send for CellRing {}
// SAFETY: as above.
unsafe impl Sync for CellRing {}

impl CellRing {
    /// # Safety
    /// `cells` must point to `count` cells that stay mapped as long as the ring is used, and `count` must
    /// be a power of two.
    pub(crate) unsafe fn new(cells: *const Cell, count: u32) -> CellRing {
        debug_assert!(count.is_power_of_two());
        CellRing { cells, mask: count - 1 }
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.mask + 1
    }

    /// The cell at an index.
    #[inline]
    pub(crate) fn cell(&self, index: u32) -> &Cell {
        let place = index.wrapping_mul(STRIDE) & self.mask;
        // SAFETY: the index is below the count that the caller of `new` promised.
        unsafe { &*self.cells.add(place as usize) }
    }

    /// The tag of the message at a position that only grows (and wraps). It is never 0, the tag of an unused
    /// cell.
    #[inline]
    pub(crate) fn tag(&self, position: u32) -> u32 {
        position | 1 << 31
    }
}

/// Where one end is in the ring. Both ends go the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Of the next cell.
    pub(crate) index: u32,
    /// From which the writer last went back to the start, outside of the small lap.
    pub(crate) returned_from: u32,
}

impl Walk {
    /// Behind the cell here, whose header says `next`. The cell adjacent to the last is the first.
    #[inline(always)]
    pub(crate) fn after(self, ring: &CellRing, next: u8) -> Walk {
        if next == Next::Adjacent as u8 {
            return Walk { index: self.index.wrapping_add(1) & ring.mask, ..self };
        }
        self.after_jump(ring, next)
    }

    #[inline]
    fn after_jump(self, ring: &CellRing, next: u8) -> Walk {
        let Walk { index, returned_from } = self;
        if next == Next::BehindSmallLap as u8 {
            Walk { index: SMALL_LAP & ring.mask, returned_from }
        } else if next == Next::PastReturn as u8 {
            Walk { index: returned_from.wrapping_add(1) & ring.mask, returned_from }
        } else if index < SMALL_LAP {
            Walk { index: 0, returned_from }
        } else {
            Walk { index: 0, returned_from: index }
        }
    }
}

/// Converts up to 48 bytes to words, padded with zeros.
#[inline]
pub(crate) fn words_of(bytes: &[u8]) -> [u64; CELL_PAYLOAD_BYTES / 8] {
    debug_assert!(bytes.len() <= CELL_PAYLOAD_BYTES);
    let mut words = [0; CELL_PAYLOAD_BYTES / 8];
    let (whole, rest) = bytes.as_chunks::<8>();
    // A full cell is a call of 32 bytes, the usual case: no loop.
    if let Ok(full) = <&[[u8; 8]; CELL_PAYLOAD_BYTES / 8]>::try_from(whole) {
        return full.map(u64::from_ne_bytes);
    }
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if !rest.is_empty() && whole.len() < words.len() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()] = u64::from_ne_bytes(last);
    }
    words
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cells(count: u32) -> Vec<Cell> {
        (0..count).map(|_| Cell::default()).collect()
    }

    #[test]
    fn a_cell_is_a_cache_line() {
        assert_eq!((size_of::<Cell>(), align_of::<Cell>()), (64, 64));
    }

    #[test]
    fn every_index_has_a_cell_of_its_own() {
        let memory = cells(64);
        // SAFETY: `memory` has 64 cells and outlives the ring.
        let ring = unsafe { CellRing::new(memory.as_ptr(), 64) };
        let mut seen: Vec<_> = (0..64).map(|i| std::ptr::from_ref(ring.cell(i)).addr()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 64);
    }

    #[test]
    fn whatever_a_header_says_the_next_cell_is_in_the_ring() {
        let memory = cells(64);
        // SAFETY: `memory` has 64 cells and outlives the ring.
        let ring = unsafe { CellRing::new(memory.as_ptr(), 64) };
        for next in 0..16 {
            for index in 0..64 {
                let here = Walk { index, returned_from: 63 - index };
                assert!(here.after(&ring, next).index < 64);
            }
        }
        let after = |index, next: Next| {
            let there = Walk { index, returned_from: 20 }.after(&ring, next as u8);
            (there.index, there.returned_from)
        };
        assert_eq!((after(63, Next::Adjacent), after(7, Next::Adjacent)), ((0, 20), (8, 20)));
        assert_eq!((after(7, Next::Start), after(9, Next::Start)), ((0, 20), (0, 9)));
        assert_eq!(after(3, Next::BehindSmallLap), (8, 20));
        assert_eq!(after(3, Next::PastReturn), (21, 20));
    }

    proptest! {
        #[test]
        fn bytes_become_words_and_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..=48)) {
            let words = words_of(&bytes);
            let back: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            prop_assert_eq!(&back[..bytes.len()], &bytes[..]);
            prop_assert!(back[bytes.len()..].iter().all(|byte| *byte == 0));
        }

        #[test]
        fn a_header_carries_its_parts(tag: u32, carried: u8, extra: u16) {
            let next = Next::BehindSmallLap;
            let header = Header::new(tag, CellKind::SendImm, next, carried, extra);
            prop_assert_eq!((header.tag(), header.carried(), header.extra()), (tag, carried, extra));
            prop_assert_eq!(CellKind::of(header.kind()), Some(CellKind::SendImm));
            prop_assert_eq!(header.next(), next as u8);
        }
    }
}

#[cfg(all(test, loom))]
mod ring_loom {
    use super::super::sync::AtomicU32;
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn shared(count: u32) -> Arc<(Vec<Cell>, AtomicU32)> {
        Arc::new(((0..count).map(|_| Cell::default()).collect(), AtomicU32::new(0)))
    }

    /// A reader that sees a message's tag also sees its length and payload. This holds on every lap and in
    /// every interleaving, if the writer reuses a cell only after the reader has released it.
    #[test]
    fn ring_reader_sees_whole_cells() {
        loom::model(|| {
            const COUNT: u32 = 2;
            const MESSAGES: u32 = 3;
            let shared = shared(COUNT);
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    // SAFETY: `shared` has COUNT cells and outlives the ring.
                    let ring = unsafe { CellRing::new(shared.0.as_ptr(), COUNT) };
                    let mut at = Walk::default();
                    for position in 0..MESSAGES {
                        while position.wrapping_sub(shared.1.load(Ordering::Acquire)) >= COUNT {
                            thread::yield_now();
                        }
                        let cell = ring.cell(at.index);
                        cell.fill(second_word(position + 10, 0), &[u64::from(position) + 20]);
                        let (tag, next) = (ring.tag(position), Next::Adjacent);
                        cell.publish(Header::new(tag, CellKind::WriteImm, next, 8, 0));
                        at = at.after(&ring, next as u8);
                    }
                })
            };
            // SAFETY: `shared` has COUNT cells and outlives the ring.
            let ring = unsafe { CellRing::new(shared.0.as_ptr(), COUNT) };
            let mut at = Walk::default();
            for position in 0..MESSAGES {
                let header = loop {
                    let header = ring.cell(at.index).header();
                    if header.tag() == ring.tag(position) {
                        break header;
                    }
                    thread::yield_now();
                };
                let mut words = [0; CELL_PAYLOAD_BYTES / 8];
                ring.cell(at.index).payload(&mut words);
                assert_eq!(ring.cell(at.index).second_word(), (position + 10, 0));
                assert_eq!(words[0], u64::from(position) + 20);
                at = at.after(&ring, header.next());
                shared.1.store(position + 1, Ordering::Release);
            }
            writer.join().unwrap();
        });
    }

    /// A cell that is cleared before the preceding message is published is never mistaken for an old message
    /// with the same tag.
    #[test]
    fn ring_reader_never_takes_a_cleared_cell() {
        loom::model(|| {
            let shared = shared(2);
            // SAFETY: `shared` has 2 cells and outlives the ring.
            let ring = unsafe { CellRing::new(shared.0.as_ptr(), 2) };
            let stale = Header::new(ring.tag(1), CellKind::WriteImm, Next::Adjacent, 8, 7);
            ring.cell(1).publish(stale);
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    // SAFETY: as above.
                    let ring = unsafe { CellRing::new(shared.0.as_ptr(), 2) };
                    ring.cell(1).clear();
                    let header = Header::new(ring.tag(0), CellKind::WriteImm, Next::Adjacent, 8, 0);
                    ring.cell(0).publish(header);
                })
            };
            while ring.cell(0).header().tag() != ring.tag(0) {
                thread::yield_now();
            }
            assert_ne!(ring.cell(1).header().tag(), ring.tag(1));
            writer.join().unwrap();
        });
    }
}
