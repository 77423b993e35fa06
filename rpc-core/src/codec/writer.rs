//! A message that is being written.

use super::EncodeError;

/// The longest encoding of a length: seven bits in each byte.
const MAX_LENGTH_BYTES: usize = usize::BITS.div_ceil(7) as usize;

/// How many bytes [`Writer::put_length`] writes for `length`.
#[inline]
pub(super) fn length_size(length: usize) -> usize {
    let bits = usize::BITS - (length | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Fills reserved memory from front to back.
#[derive(Debug)]
pub struct Writer<'s> {
    rest: &'s mut [u8],
    promised: usize,
}

impl<'s> Writer<'s> {
    /// Starts at the front of `reserved`, all of which must be filled.
    #[inline]
    pub fn new(reserved: &'s mut [u8]) -> Self {
        Self { promised: reserved.len(), rest: reserved }
    }

    /// Writes these bytes as they are.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let Some((front, rest)) = std::mem::take(&mut self.rest).split_at_mut_checked(bytes.len())
        else {
            return Err(self.beyond());
        };
        front.copy_from_slice(bytes);
        self.rest = rest;
        Ok(())
    }

    /// Writes one byte.
    #[inline]
    pub fn put_byte(&mut self, byte: u8) -> Result<(), EncodeError> {
        self.put(&[byte])
    }

    /// Writes a length: seven bits in each byte, the lowest first, the high bit set in all but the last.
    #[inline]
    pub fn put_length(&mut self, length: usize) -> Result<(), EncodeError> {
        if length < 0x80 {
            return self.put_byte(length as u8);
        }
        let mut bytes = [0; MAX_LENGTH_BYTES];
        let mut used = 0;
        let mut left = length;
        while left >= 0x80 {
            bytes[used] = left as u8 | 0x80;
            left >>= 7;
            used += 1;
        }
        bytes[used] = left as u8;
        self.put(&bytes[..=used])
    }

    /// How many bytes are not filled yet.
    #[inline]
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Checks that `reserved` is filled, after everything is written.
    #[inline]
    pub fn finish(self) -> Result<(), EncodeError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(EncodeError::Unstable {
            promised: self.promised,
            found: self.promised - self.rest.len(),
        })
    }

    #[cold]
    pub(super) fn beyond(&self) -> EncodeError {
        EncodeError::Unstable { promised: self.promised, found: self.promised.saturating_add(1) }
    }
}
