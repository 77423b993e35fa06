//! How much memory the values of a message may take, in proportion to its bytes.
//!
//! A byte can stand for a value that is much larger in memory: the missing `Option` of a large struct, an enum's smallest variant, a
//! struct that may grow and came without fields. Some megabytes of such bytes would take gigabytes. So the values of a message are
//! counted by their sizes in memory as they are read, and a message whose values exceed the limit is refused.
//!
//! Small values are not counted: they take a byte of the message or more, and so are within the limit by themselves.

use super::DecodeError;

/// What the values of a message may take for each of its bytes: a sequence of short strings takes 24, one of small maps some 50.
const PER_BYTE: usize = 64;

/// What the values of any message may take: a few thousand large values that are nearly empty are no attack.
const OF_ANY_MESSAGE: usize = 4 << 20;

/// The limit of values without any bytes in the sequences, maps, structs and tuples of a message.
const MAX_EMPTY: u32 = 65_536;

/// Values of at most this size are not counted, except in maps.
const SMALL_BYTES: usize = 32;

/// Entries that a map has room for when it has one: a node of a `BTreeMap`.
pub(super) const FIRST_ENTRIES: usize = 11;

/// Elements that a vector has room for when it has one, if no memory was reserved for it before.
pub(super) const fn first_elements<T>() -> usize {
    if size_of::<T>() <= 1024 { 4 } else { 1 }
}

/// Whether values of this type are not counted.
pub(super) const fn is_small<T>() -> bool {
    size_of::<T>() <= SMALL_BYTES
}

/// What the values of a message took so far.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    message_bytes: usize,
    taken: usize,
    empty: u32,
}

impl Budget {
    /// Of a message of this length.
    #[inline]
    pub(super) fn new(message_bytes: usize) -> Budget {
        Budget { message_bytes, taken: 0, empty: 0 }
    }

    /// So many more values of this type are about to be read.
    #[inline]
    pub(super) fn take<T>(&mut self, values: usize) -> Result<(), DecodeError> {
        self.take_bytes(values.saturating_mul(size_of::<T>()))
    }

    /// A value took no bytes: a few bytes can claim any number of such.
    #[inline]
    pub(super) fn take_empty(&mut self) -> Result<(), DecodeError> {
        self.empty += 1;
        if self.empty > MAX_EMPTY {
            return Err(DecodeError::Format("too many elements that take no bytes"));
        }
        Ok(())
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<(), DecodeError> {
        let limit = self.message_bytes.saturating_mul(PER_BYTE).saturating_add(OF_ANY_MESSAGE);
        self.taken = self.taken.saturating_add(bytes);
        if self.taken > limit { Err(DecodeError::TooMuchMemory { limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_that_a_byte_may_not_stand_for_are_counted() {
        assert!(is_small::<[u8; SMALL_BYTES]>());
        assert!(!is_small::<[u8; SMALL_BYTES + 1]>());
        const { assert!(SMALL_BYTES <= PER_BYTE) }
    }

    #[test]
    fn what_exceeds_the_limit_is_refused() {
        let limit = 3 * PER_BYTE + OF_ANY_MESSAGE;
        let mut budget = Budget::new(3);
        assert_eq!(budget.take::<[u8; 100]>(limit / 100), Ok(()));
        assert_eq!(budget.take::<u8>(limit % 100), Ok(()));
        assert_eq!(budget.take::<u8>(1), Err(DecodeError::TooMuchMemory { limit }));
        assert!(Budget::new(usize::MAX).take::<[u8; 100]>(usize::MAX).is_ok());
    }
}
