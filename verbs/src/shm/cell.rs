//! The ring of cells: one writer (the sending peer), one reader (the owner of the inbox), in memory that
//! both map.
//!
//! A cell is one cache line: a header word, a length word, 48 bytes of payload. The header carries a tag
//! that names the message's position in the stream; storing it, with release ordering, publishes the
//! cell. The reader knows from the tag alone whether the next cell is there: the two share no index on
//! the common path.
//!
//! The ring is as long as the receiver has receives, but while the reader keeps up, the writer goes round
//! in its first [`SMALL_LAP`] cells: lines that both cores have at hand. With 16 or more lines in play a
//! round trip takes twice as long (measured). Each header says where the next cell is: beside it, or at
//! the start of the ring, or behind the small lap.

use super::sync::{AtomicU64, Ordering};

/// Payload bytes of one cell.
pub(crate) const CELL_PAYLOAD_BYTES: usize = 48;

/// The fewest and the most cells of a ring. An acknowledgement has 16 bits, which must tell twice as many
/// positions apart.
pub(crate) const MIN_CELLS: u32 = 64;
pub(crate) const MAX_CELLS: u32 = 1 << 15;

/// Cells that are used while the reader keeps up.
pub(crate) const SMALL_LAP: u32 = 8;

/// Neighbours in the ring lie this far apart in memory (odd, so that every cell has its place): side by
/// side, the stream prefetcher of the polling core takes the next lines from the writer's cache.
const STRIDE: u32 = 5;

/// Where the cell after this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Next {
    /// Beside it.
    Beside = 0,
    /// At the start of the ring.
    Start = 1,
    /// Behind the small lap.
    BehindSmallLap = 2,
    /// Where it was: this is an answer in the line of the message it answers (see `duplex`).
    Unchanged = 3,
}

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

/// The first word of a cell, taken apart. All but the tag is what the writer claims: to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64);

impl Header {
    /// `extra` is an acknowledgement on a connection, and the length of a datagram.
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

/// The second word of a cell: a message's length, or a datagram's key; and its immediate.
#[inline]
pub(crate) fn second_word(length: u32, imm: u32) -> u64 {
    u64::from(length) | u64::from(imm) << 32
}

/// One cell. All its words are atomics: whoever else maps it may write at any time.
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

    /// The second word: length or key, and immediate.
    #[inline]
    pub(crate) fn second_word(&self) -> (u32, u32) {
        let word = self.second.load(Ordering::Relaxed);
        (word as u32, (word >> 32) as u32)
    }

    /// All payload words; those beyond what the cell carries are left over from earlier laps.
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[inline]
    pub(crate) fn payload(&self, into: &mut [u64; CELL_PAYLOAD_BYTES / 8]) {
        // 16 bytes at a time, because readers will load as many at once: a load that spans several
        // stores in flight has to wait until these have reached the cache.
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

    /// All payload words; those beyond what the cell carries are left over from earlier laps.
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    #[inline]
    pub(crate) fn payload(&self, into: &mut [u64; CELL_PAYLOAD_BYTES / 8]) {
        for (word, cell) in into.iter_mut().zip(&self.payload) {
            *word = cell.load(Ordering::Relaxed);
        }
    }

    /// Fills the cell; [`publish`](Cell::publish) shows it to the reader.
    #[inline]
    pub(crate) fn fill(&self, second: u64, payload: &[u64]) {
        self.second.store(second, Ordering::Relaxed);
        for (cell, word) in self.payload.iter().zip(payload) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    /// No message: whatever it held is read.
    #[inline]
    pub(crate) fn clear(&self) {
        self.header.store(0, Ordering::Relaxed);
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
        // SAFETY: the place is below the count that `new` was promised.
        unsafe { &*self.cells.add(place as usize) }
    }

    /// The index after `index`, where the header says so. The last is followed by the first in any case.
    #[inline]
    pub(crate) fn after(&self, index: u32, next: u8) -> u32 {
        if next == Next::Beside as u8 {
            index.wrapping_add(1) & self.mask
        } else if next == Next::BehindSmallLap as u8 {
            SMALL_LAP & self.mask
        } else {
            0
        }
    }

    /// The tag of the message at a position that only grows (and wraps). Never 0, as in a cell that has
    /// not been used.
    #[inline]
    pub(crate) fn tag(&self, position: u32) -> u32 {
        position | 1 << 31
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
                assert!(ring.after(index, next) < 64);
            }
        }
        assert_eq!((ring.after(63, 0), ring.after(7, 0), ring.after(7, 1)), (0, 8, 0));
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

    /// A reader that sees a message's tag sees its length and payload, lap after lap, whatever the
    /// interleaving, when the writer reuses a cell only after the reader has said so.
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
                    let mut index = 0;
                    for position in 0..MESSAGES {
                        while position.wrapping_sub(shared.1.load(Ordering::Acquire)) >= COUNT {
                            thread::yield_now();
                        }
                        let cell = ring.cell(index);
                        cell.fill(second_word(position + 10, 0), &[u64::from(position) + 20]);
                        let (tag, next) = (ring.tag(position), Next::Beside);
                        cell.publish(Header::new(tag, CellKind::WriteImm, next, 8, 0));
                        index = ring.after(index, next as u8);
                    }
                })
            };
            // SAFETY: `shared` has COUNT cells and outlives the ring.
            let ring = unsafe { CellRing::new(shared.0.as_ptr(), COUNT) };
            let mut index = 0;
            for position in 0..MESSAGES {
                let header = loop {
                    let header = ring.cell(index).header();
                    if header.tag() == ring.tag(position) {
                        break header;
                    }
                    thread::yield_now();
                };
                let mut words = [0; CELL_PAYLOAD_BYTES / 8];
                ring.cell(index).payload(&mut words);
                assert_eq!(ring.cell(index).second_word(), (position + 10, 0));
                assert_eq!(words[0], u64::from(position) + 20);
                index = ring.after(index, header.next());
                shared.1.store(position + 1, Ordering::Release);
            }
            writer.join().unwrap();
        });
    }

    /// A cell that is cleared before the message in front of it is published is never taken for a message
    /// of long ago that had the same tag.
    #[test]
    fn ring_reader_never_takes_a_cleared_cell() {
        loom::model(|| {
            let shared = shared(2);
            // SAFETY: `shared` has 2 cells and outlives the ring.
            let ring = unsafe { CellRing::new(shared.0.as_ptr(), 2) };
            let stale = Header::new(ring.tag(1), CellKind::WriteImm, Next::Beside, 8, 7);
            ring.cell(1).publish(stale);
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    // SAFETY: as above.
                    let ring = unsafe { CellRing::new(shared.0.as_ptr(), 2) };
                    ring.cell(1).clear();
                    let header = Header::new(ring.tag(0), CellKind::WriteImm, Next::Beside, 8, 0);
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
