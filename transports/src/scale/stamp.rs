//! What stands behind a request in a cell: a stamp and a trailer.
//!
//! A place of the pool belongs to one client after the other. The stamp says whose request it is and of which stay in a place, so
//! nothing that another client writes there by mistake is taken for it. The trailer is the last word, and lands last; the pool
//! clears it before the place is used again.

use farcall_verbs::SharedRegion;

use crate::slots::carrier::Waiting;
use crate::slots::cells::{Trailer, sealed_bytes, trailer_at};

/// Bytes of a stamp.
pub(super) const STAMP_BYTES: usize = 8;

/// The stamp of the connection with this key, during this stay.
#[inline]
pub(super) const fn of(key: u32, epoch: u32) -> u64 {
    (key as u64) << 32 | epoch as u64
}

/// Bytes that a message takes with both.
#[inline]
pub(super) const fn stamped_bytes(len: usize) -> usize {
    sealed_bytes(len) + STAMP_BYTES
}

/// Writes both behind a message of `len` bytes, and says how long it is with them.
#[inline]
pub(super) fn seal(bytes: &mut [u8], len: usize, stamp: u64, trailer: Trailer) -> usize {
    let all = stamped_bytes(len);
    let at = trailer_at(all);
    bytes[at - STAMP_BYTES..at].copy_from_slice(&stamp.to_le_bytes());
    bytes[at..all].copy_from_slice(&trailer.to_word().to_le_bytes());
    all
}

/// What the next request in a cell must say of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) stamp: u64,
    pub(super) number: u16,
    pub(super) operations: u16,
}

/// The request in the cell that ends there, if it is the expected one and has landed.
#[inline]
pub(super) fn look(pool: &SharedRegion, cell_end: usize, expected: &Expected) -> Option<Waiting> {
    let at = trailer_at(cell_end);
    let word = u64::from_le(pool.load_u64(at));
    let Trailer { number, operations, slot, len } = Trailer::from_word(word);
    if number != expected.number || operations != expected.operations {
        return None;
    }
    let stamp = u64::from_le(pool.load_u64(at - STAMP_BYTES));
    (stamp == expected.stamp).then_some(Waiting { slot, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_32_byte_argument_takes_one_cache_line() {
        assert_eq!(stamped_bytes(48), 64);
    }

    #[test]
    fn the_trailer_is_last_and_the_stamp_before_it() {
        let mut bytes = [0; 64];
        let trailer = Trailer { number: 7, operations: 8, slot: 9, len: 11 };
        let all = seal(&mut bytes, 11, of(0xaabb_ccdd, 0x1122_3344), trailer);
        assert_eq!(all, 32);
        assert_eq!(bytes[16..24], 0xaabb_ccdd_1122_3344u64.to_le_bytes());
        assert_eq!(bytes[24..32], trailer.to_word().to_le_bytes());
        assert_eq!(bytes[..16], [0; 16]);
    }
}
