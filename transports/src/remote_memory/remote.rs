//! The value that names lent memory.

use core::fmt;
use core::ops::{Bound, RangeBounds};

use farcall_core::shape::{Node, Shape};
use serde::{Deserialize, Serialize};

use super::MemoryError;

/// Names memory that a server has lent. Plain data: it travels in arguments, results and structs, and can be stored.
///
/// It gives access as long as the lend lasts, and errors afterwards. A [slice](Self::slice) of it names a part; nothing names more than what
/// was lent: the owner checks each operation, whatever a value says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Remote {
    /// The owner's life: a number of no other owner, before or after.
    pub(super) life: u64,
    /// The lend's number at its owner.
    pub(super) lend: u32,
    /// Which lend of that number.
    pub(super) epoch: u32,
    /// What only those know who were told of the lend.
    pub(super) key: u64,
    /// Where the bytes begin in the owner's region.
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Remote {
    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, by offsets from its own begin.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]: the part does not lie in it.
    pub fn slice(&self, part: impl RangeBounds<u64>) -> Result<Remote, MemoryError> {
        let (begin, len) = bytes_of(part, self.len)?;
        Ok(Remote { offset: self.offset + begin, len, ..*self })
    }

    /// The 8 bytes at this offset, for an atomic operation.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]: they do not lie in it.
    pub fn word(&self, offset: u64) -> Result<Remote, MemoryError> {
        self.slice(offset..offset.saturating_add(8))
    }
}

/// The begin and the length of a part of `of` bytes.
pub(super) fn bytes_of(part: impl RangeBounds<u64>, of: u64) -> Result<(u64, u64), MemoryError> {
    let begin = match part.start_bound() {
        Bound::Included(begin) => *begin,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match part.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => of,
    };
    let len = end.saturating_sub(begin);
    match begin <= end && end <= of {
        true => Ok((begin, len)),
        false => Err(MemoryError::OutOfRange { offset: begin, len, of }),
    }
}

/// The key is all that it takes to use the lend, so it is in no log.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("lend", &self.lend)
            .field("epoch", &self.epoch)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Shape for Remote {
    const SHAPE: &'static Node = &Node::opaque("farcall::memory::Remote 1");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(offset: u64, len: u64) -> Remote {
        Remote { life: 1, lend: 2, epoch: 3, key: 4, offset, len }
    }

    #[test]
    fn a_slice_of_a_slice_narrows_and_never_widens() {
        let whole = remote(100, 50);
        let part = whole.slice(10..30).unwrap();
        assert_eq!(part, remote(110, 20));
        assert_eq!(part.slice(..=4).unwrap(), remote(110, 5));
        assert_eq!(part.slice(20..).unwrap(), remote(130, 0));
        assert_eq!(part.word(12).unwrap(), remote(122, 8));
        let refused = |offset, len| MemoryError::OutOfRange { offset, len, of: 20 };
        assert_eq!(part.slice(0..21), Err(refused(0, 21)));
        assert_eq!(part.slice(21..), Err(refused(21, 0)));
        assert_eq!(part.word(13), Err(refused(13, 8)));
        assert_eq!(part.slice(u64::MAX..), Err(refused(u64::MAX, 0)));
        assert_eq!(part.slice(1..=u64::MAX), Err(refused(1, u64::MAX - 1)));
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = part.slice(5..3);
        assert_eq!(reversed, Err(refused(5, 0)));
    }

    #[test]
    fn the_key_is_not_printed() {
        let shown = format!("{:?}", Remote { key: 4711, ..remote(0, 1) });
        assert!(!shown.contains("4711"), "{shown}");
    }
}
