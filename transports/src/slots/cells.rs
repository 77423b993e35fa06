//! The cells in which requests arrive.
//!
//! The client fills the server's cells in turn. A message ends at the end of its cell, with a trailer whose place the server
//! therefore knows: it lands last, and says that the rest has landed. The trailer counts the requests, so that no cell has to
//! be cleared. The message is padded to whole words, so that its WRITE begins at a word too: the last one then lands whole.
//!
//! A cell is never filled too early. As many calls as there are cells may be outstanding; so when the next one is sent, one
//! of the last that went into all the cells has ended. The server takes requests in order, so it has taken that which was
//! in this cell.

const WORD_BYTES: usize = 8;

/// Room for the trailer and the padding before it.
pub(crate) const TRAILER_BYTES: usize = 2 * WORD_BYTES - 1;

/// Bytes that a message and its trailer take.
#[inline]
pub(crate) const fn sealed_bytes(len: usize) -> usize {
    len.next_multiple_of(WORD_BYTES) + WORD_BYTES
}

/// Where the trailer is in a cell that ends there.
#[inline]
pub(crate) const fn trailer_at(cell_end: usize) -> usize {
    cell_end - WORD_BYTES
}

/// What stands behind a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// Which request of the connection, from 1 on.
    pub(crate) number: u16,
    /// How many operations the client had sent before, by immediates. The server may see them later than this, and a
    /// cancellation of the slot's last call must not hit this one.
    pub(crate) operations: u16,
    /// The slot of the call.
    pub(crate) slot: u32,
    /// Bytes of the message, without the trailer.
    pub(crate) len: u32,
}

const SLOT_BITS: u32 = 10;

impl Trailer {
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        debug_assert!(self.slot < 1 << SLOT_BITS && self.len < 1 << (32 - SLOT_BITS));
        u64::from(self.number)
            | u64::from(self.operations) << 16
            | u64::from(self.slot | self.len << SLOT_BITS) << 32
    }

    #[inline]
    pub(crate) fn from_word(word: u64) -> Trailer {
        let rest = (word >> 32) as u32;
        Trailer {
            number: word as u16,
            operations: (word >> 16) as u16,
            slot: rest & ((1 << SLOT_BITS) - 1),
            len: rest >> SLOT_BITS,
        }
    }
}

/// Which cell is next, at either end.
#[derive(Debug)]
pub(crate) struct CellTurn {
    cells: u32,
    cell: u32,
    number: u16,
}

impl CellTurn {
    pub(crate) fn new(cells: u32) -> CellTurn {
        CellTurn { cells, cell: 0, number: 1 }
    }

    /// The next cell.
    #[inline]
    pub(crate) fn cell(&self) -> u32 {
        self.cell
    }

    /// The number of the request that goes there.
    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    #[inline]
    pub(crate) fn advance(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.cell = if self.cell + 1 == self.cells { 0 } else { self.cell + 1 };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_trailer_is_read_back(number: u16, operations: u16, slot in 0..1024u32, len in 0..1u32 << 20) {
            let trailer = Trailer { number, operations, slot, len };
            prop_assert_eq!(Trailer::from_word(trailer.to_word()), trailer);
        }
    }

    #[test]
    fn cells_come_in_turn_and_numbers_go_on() {
        let mut turn = CellTurn::new(3);
        let mut next = || {
            let next = (turn.cell(), turn.number());
            turn.advance();
            next
        };
        let seen: Vec<_> = (0..5).map(|_| next()).collect();
        assert_eq!(seen, [(0, 1), (1, 2), (2, 3), (0, 4), (1, 5)]);
    }
}
