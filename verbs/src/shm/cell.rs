//! The ring of cells: one writer (the sending peer), one reader (the owner of the inbox), in memory that
//! both map.
//!
//! A cell is one cache line: a header word, a length word, 48 bytes of payload. The header carries a tag
//! that names the lap around the ring; storing it, with release ordering, publishes the cell. The reader
//! knows from the tag alone whether the next cell is there: the two share no index on the common path.

use super::sync::{AtomicU64, Ordering};

/// Payload bytes of one cell.
pub(crate) const CELL_PAYLOAD_BYTES: usize = 48;

/// The fewest and the most cells of a ring. The tag has 16 bits and a position 32, so that a ring may
/// have at most 2^16 cells for the tags to stay in step when positions wrap.
pub(crate) const MIN_CELLS: u32 = 64;
pub(crate) const MAX_CELLS: u32 = 1 << 16;

/// Consecutive messages go to cells this far apart (odd, so that every cell is used once per lap): side
/// by side, the stream prefetcher of the polling core takes the next lines from the writer's cache, which
/// doubles the round trip.
const STRIDE: u32 = 5;

/// What a cell carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CellKind {
    /// The immediate of a WRITE_WITH_IMM, whose bytes are in the target's memory already.
    WriteImm = 1,
    /// The front of a SEND.
    Send = 2,
    /// The front of a SEND with immediate.
    SendImm = 3,
    /// More bytes of the SEND before.
    More = 4,
    /// A SEND that is longer than the receive it met: nothing but its length.
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

/// A `carried` that says: no payload in this cell.
pub(crate) const CARRIES_NOTHING: u8 = 255;

/// The first word of a cell, taken apart. `carried` is what the writer claims: to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64);

impl Header {
    #[inline]
    pub(crate) fn new(tag: u16, kind: CellKind, carried: u8, imm: u32) -> Header {
        Header(
            u64::from(tag)
                | u64::from(kind as u8) << 16
                | u64::from(carried) << 24
                | u64::from(imm) << 32,
        )
    }

    #[inline]
    pub(crate) fn tag(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    pub(crate) fn kind(self) -> u8 {
        (self.0 >> 16) as u8
    }

    #[inline]
    pub(crate) fn carried(self) -> u8 {
        (self.0 >> 24) as u8
    }

    #[inline]
    pub(crate) fn imm(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// One cell. All its words are atomics: whoever else maps it may write at any time.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Cell {
    header: AtomicU64,
    length: AtomicU64,
    payload: [AtomicU64; CELL_PAYLOAD_BYTES / 8],
}

impl Cell {
    #[inline]
    pub(crate) fn header(&self) -> Header {
        Header(self.header.load(Ordering::Acquire))
    }

    /// The second word: a message's whole length, or what the kind says.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// All payload words; those beyond what the cell carries are left over from earlier laps.
    #[inline]
    pub(crate) fn payload(&self, into: &mut [u64; CELL_PAYLOAD_BYTES / 8]) {
        for (word, cell) in into.iter_mut().zip(&self.payload) {
            *word = cell.load(Ordering::Relaxed);
        }
    }

    /// Fills the cell; [`publish`](Cell::publish) shows it to the reader.
    #[inline]
    pub(crate) fn fill(&self, length: u64, payload: &[u64]) {
        self.length.store(length, Ordering::Relaxed);
        for (cell, word) in self.payload.iter().zip(payload) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn publish(&self, header: Header) {
        self.header.store(header.0, Ordering::Release);
    }
}

/// Where the cells of a ring are. It owns nothing: whoever makes one keeps the memory mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRing {
    cells: *const Cell,
    mask: u32,
    shift: u32,
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
        CellRing { cells, mask: count - 1, shift: count.trailing_zeros() }
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.mask + 1
    }

    /// The cell at a position that only grows (and wraps).
    #[inline]
    pub(crate) fn cell(&self, position: u32) -> &Cell {
        let index = position.wrapping_mul(STRIDE) & self.mask;
        // SAFETY: the index is below the count that `new` was promised.
        unsafe { &*self.cells.add(index as usize) }
    }

    /// The tag that a cell at this position carries. Never 0 on the first lap, when memory is zeroed.
    #[inline]
    pub(crate) fn tag(&self, position: u32) -> u16 {
        ((position >> self.shift) as u16).wrapping_add(1)
    }
}

/// Up to 48 bytes as words, zero beyond them.
#[inline]
pub(crate) fn words_of(bytes: &[u8]) -> [u64; CELL_PAYLOAD_BYTES / 8] {
    debug_assert!(bytes.len() <= CELL_PAYLOAD_BYTES);
    let mut words = [0; CELL_PAYLOAD_BYTES / 8];
    let (whole, rest) = bytes.as_chunks::<8>();
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
        let cell = || Cell {
            header: AtomicU64::new(0),
            length: AtomicU64::new(0),
            payload: Default::default(),
        };
        (0..count).map(|_| cell()).collect()
    }

    #[test]
    fn a_cell_is_a_cache_line() {
        assert_eq!((size_of::<Cell>(), align_of::<Cell>()), (64, 64));
    }

    #[test]
    fn every_cell_is_used_once_per_lap() {
        let memory = cells(64);
        // SAFETY: `memory` has 64 cells and outlives the ring.
        let ring = unsafe { CellRing::new(memory.as_ptr(), 64) };
        for lap in 0..3 {
            let mut seen: Vec<_> =
                (0..64).map(|i| std::ptr::from_ref(ring.cell(lap * 64 + i)).addr()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 64);
        }
    }

    #[test]
    fn tags_stay_in_step_when_positions_wrap() {
        for count in [MIN_CELLS, MAX_CELLS] {
            let memory = cells(1);
            // SAFETY: only tags are asked for, no cell.
            let ring = unsafe { CellRing::new(memory.as_ptr(), count) };
            assert_eq!(ring.tag(0), 1);
            let last_lap = 0u32.wrapping_sub(count);
            assert_eq!(ring.tag(0), ring.tag(last_lap).wrapping_add(1));
        }
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
        fn a_header_carries_its_parts(tag: u16, carried: u8, imm: u32) {
            let header = Header::new(tag, CellKind::SendImm, carried, imm);
            prop_assert_eq!(
                (header.tag(), CellKind::of(header.kind()), header.carried(), header.imm()),
                (tag, Some(CellKind::SendImm), carried, imm)
            );
        }
    }
}

#[cfg(all(test, loom))]
mod ring_loom {
    use super::*;
    use loom::thread;

    /// A reader that sees a cell's tag sees its length and payload, lap after lap, whatever the
    /// interleaving; and the writer reuses a cell only after the reader has said so.
    #[test]
    fn ring_reader_sees_whole_cells() {
        loom::model(|| {
            const COUNT: u32 = 2;
            const MESSAGES: u32 = 3;
            let cell = || Cell {
                header: AtomicU64::new(0),
                length: AtomicU64::new(0),
                payload: std::array::from_fn(|_| AtomicU64::new(0)),
            };
            let shared = loom::sync::Arc::new((
                (0..COUNT).map(|_| cell()).collect::<Vec<_>>(),
                super::super::sync::AtomicU32::new(0),
            ));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    // SAFETY: `shared` has COUNT cells and outlives the ring.
                    let ring = unsafe { CellRing::new(shared.0.as_ptr(), COUNT) };
                    for position in 0..MESSAGES {
                        while position.wrapping_sub(shared.1.load(Ordering::Acquire)) >= COUNT {
                            thread::yield_now();
                        }
                        let cell = ring.cell(position);
                        cell.fill(u64::from(position) + 10, &[u64::from(position) + 20]);
                        let tag = ring.tag(position);
                        cell.publish(Header::new(tag, CellKind::WriteImm, 8, position));
                    }
                })
            };
            // SAFETY: `shared` has COUNT cells and outlives the ring.
            let ring = unsafe { CellRing::new(shared.0.as_ptr(), COUNT) };
            for position in 0..MESSAGES {
                let header = loop {
                    let header = ring.cell(position).header();
                    if header.tag() == ring.tag(position) {
                        break header;
                    }
                    thread::yield_now();
                };
                let mut words = [0; CELL_PAYLOAD_BYTES / 8];
                ring.cell(position).payload(&mut words);
                assert_eq!(header.imm(), position);
                assert_eq!(ring.cell(position).length(), u64::from(position) + 10);
                assert_eq!(words[0], u64::from(position) + 20);
                shared.1.store(position + 1, Ordering::Release);
            }
            writer.join().unwrap();
        });
    }
}
