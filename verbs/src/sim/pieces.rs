//! The pieces in which a message meets memory: cache lines of the responder, or several lines at a time; words where a device reads so.

use std::ops::Range;

use super::config::Landing;
use crate::dice::Dice;

/// The most pieces of a message, and one for a message that does not begin with a line; more would only slow the simulation down.
const MAX_PIECES: usize = 64;

/// The smallest piece: a cache line.
const LINE_BYTES: usize = 64;

/// The smallest piece of a READ whose words are read in any order.
const WORD_BYTES: usize = 8;

/// The most pieces of such a READ: the words of 4 KiB.
const MAX_WORDS: usize = 512;

/// The fewest pieces that a piece may be ahead of its turn in [`Landing::AnyOrder`].
const LEAST_REACH: u64 = 4;

/// The division of a message of `len` bytes at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    len: usize,
    bytes: usize,
    /// Bytes of the first line before the message.
    lead: usize,
}

impl Pieces {
    pub(super) fn of(addr: u64, len: u64) -> Pieces {
        Pieces::at_least(LINE_BYTES, MAX_PIECES, addr, len as usize)
    }

    /// Of a READ whose words are read in any order.
    pub(super) fn words_of(addr: u64, len: u64) -> Pieces {
        Pieces::at_least(WORD_BYTES, MAX_WORDS, addr, len as usize)
    }

    /// Pieces of `least` bytes, or longer ones where there would be more than `most`.
    fn at_least(least: usize, most: usize, addr: u64, len: usize) -> Pieces {
        let bytes = len.div_ceil(most).next_power_of_two().max(least);
        let lead = if bytes == least { (addr % least as u64) as usize } else { 0 };
        Pieces { len, bytes, lead }
    }

    pub(super) fn count(&self) -> usize {
        if self.len == 0 { 0 } else { (self.len + self.lead).div_ceil(self.bytes) }
    }

    /// The bytes of the message in a piece.
    pub(super) fn range(&self, piece: u32) -> Range<usize> {
        let start = piece as usize * self.bytes;
        start.saturating_sub(self.lead)..(start + self.bytes - self.lead).min(self.len)
    }

    /// The order in which the pieces meet memory. In any order, a piece of every second message may be ahead of all others, and one of the
    /// rest is ahead of those of the same packet and the next. So a message that fails in the midst may be short or long.
    pub(super) fn order(&self, how: Landing, mtu_bytes: u64, dice: &mut Dice) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.count() as u32).collect();
        if how == Landing::AnyOrder && order.len() > 1 {
            let near = (2 * mtu_bytes).div_ceil(self.bytes as u64).max(LEAST_REACH);
            if near >= order.len() as u64 || dice.chance(0.5) {
                dice.shuffle(&mut order);
            } else {
                order.sort_by_cached_key(|piece| u64::from(*piece) + dice.below(near));
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_of_memory_and_not_too_many() {
        for len in [1, 63, 64, 65, 4096, 4097, 100_000, 128 << 20] {
            for addr in [0, 8, 56, 63] {
                let pieces = Pieces::of(addr, len);
                assert!(pieces.count() <= MAX_PIECES + 1, "{len} at {addr}: {pieces:?}");
                let mut end = 0;
                for piece in 0..pieces.count() as u32 {
                    let range = pieces.range(piece);
                    assert!(range.start == end && range.end > end, "{len} at {addr}: {range:?}");
                    end = range.end;
                    let at_line = (addr + end as u64).is_multiple_of(LINE_BYTES as u64);
                    assert!(at_line || len > 4096 || end as u64 == len, "{len} at {addr}: {end}");
                }
                assert_eq!(end as u64, len);
            }
        }
        assert_eq!(Pieces::of(0, 0).count(), 0);
    }

    #[test]
    fn words_are_whole_words_of_memory_up_to_4_kib() {
        for (addr, len, pieces) in
            [(0, 64, 8), (8, 64, 8), (4, 64, 9), (0, 4096, 512), (0, 8192, 512)]
        {
            let words = Pieces::words_of(addr, len);
            assert_eq!(words.count(), pieces, "{len} at {addr}");
            assert_eq!(words.range(0).start, 0);
            assert_eq!(words.range(pieces as u32 - 1).end as u64, len);
        }
    }

    #[test]
    fn any_order_has_each_piece_once() {
        let mut dice = Dice::new(5);
        for len in [64, 4096, 20_000, 1 << 20] {
            let pieces = Pieces::of(8, len);
            let mut order = pieces.order(Landing::AnyOrder, 4096, &mut dice);
            order.sort_unstable();
            assert_eq!(order, (0..pieces.count() as u32).collect::<Vec<_>>());
        }
    }
}
