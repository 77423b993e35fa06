//! A message that is being read.

use bytes::Bytes;

use super::DecodeError;
use super::budget::Budget;
use crate::transport::Message;

/// A `Bytes` of at least this length shares the memory of the large message that it came in. A shorter one is copied, so
/// that a key of ten bytes does not keep a value of sixteen megabytes alive.
const SHARE_AT_LEAST_BYTES: usize = 1024;

/// A message being read from front to back.
///
/// It keeps the error, and [`into_error`](Self::into_error) returns it. A read therefore returns either the value or
/// [`Malformed`], which has no size, and a value such as an array of bytes is copied from the message once. (A union of
/// value and error would be moved in unaligned parts, at several nanoseconds each time.)
#[derive(Clone, Debug)]
pub struct Reader<'m> {
    rest: &'m [u8],
    owner: Option<&'m Bytes>,
    error: Option<DecodeError>,
    pub(super) budget: Budget,
}

/// A [`Reader`] found bytes that are not an encoding of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(());

impl<'m> Reader<'m> {
    /// Reads a message whose memory lives for `'m` only.
    #[inline]
    pub fn borrowed(message: &'m [u8]) -> Self {
        Self { rest: message, owner: None, error: None, budget: Budget::new(message.len()) }
    }

    /// Reads a message in memory that can be kept: long `Bytes` share it.
    #[inline]
    pub fn owned(message: &'m Bytes) -> Self {
        Self { owner: Some(message), ..Self::borrowed(message) }
    }

    /// Reads a message, in memory that can be kept or not.
    #[inline]
    pub fn of(message: &'m Message<'_>) -> Self {
        match message {
            Message::Borrowed(bytes) => Self::borrowed(bytes),
            Message::Owned(bytes) => Self::owned(bytes),
        }
    }

    /// How many bytes are left.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Keeps the error.
    #[cold]
    pub fn fail(&mut self, error: DecodeError) -> Malformed {
        self.error = Some(error);
        Malformed(())
    }

    /// The error.
    #[cold]
    pub fn into_error(self) -> DecodeError {
        self.error.unwrap_or(DecodeError::Format("nothing was wrong"))
    }

    /// The next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<Piece<'m>, Malformed> {
        self.try_take(len).map_err(|why| self.fail(why))
    }

    /// The next byte.
    #[inline]
    pub fn take_byte(&mut self) -> Result<u8, Malformed> {
        self.try_take_byte().map_err(|why| self.fail(why))
    }

    /// A length, as [`Writer::put_length`](super::Writer::put_length) writes it.
    #[inline]
    pub fn take_length(&mut self) -> Result<usize, Malformed> {
        self.try_take_length().map_err(|why| self.fail(why))
    }

    #[inline]
    pub(super) fn try_take(&mut self, len: usize) -> Result<Piece<'m>, DecodeError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(DecodeError::Truncated { missing: len - self.rest.len() });
        };
        self.rest = rest;
        Ok(Piece { bytes, owner: self.owner })
    }

    /// Ends the message after `len` more bytes, until [`unlimit`](Self::unlimit) gets what is behind them.
    #[inline]
    pub(super) fn try_limit(&mut self, len: usize) -> Result<&'m [u8], DecodeError> {
        let Some((bytes, behind)) = self.rest.split_at_checked(len) else {
            return Err(DecodeError::Truncated { missing: len - self.rest.len() });
        };
        self.rest = bytes;
        Ok(behind)
    }

    /// Goes on behind the limit, whatever is left in front of it.
    #[inline]
    pub(super) fn unlimit(&mut self, behind: &'m [u8]) {
        self.rest = behind;
    }

    /// The rest of the message.
    #[inline]
    pub fn take_rest(&mut self) -> Piece<'m> {
        Piece { bytes: std::mem::take(&mut self.rest), owner: self.owner }
    }

    #[inline]
    pub(super) fn try_take_byte(&mut self) -> Result<u8, DecodeError> {
        let Some((&byte, rest)) = self.rest.split_first() else {
            return Err(DecodeError::Truncated { missing: 1 });
        };
        self.rest = rest;
        Ok(byte)
    }

    #[inline]
    pub(super) fn try_take_length(&mut self) -> Result<usize, DecodeError> {
        let first = self.try_take_byte()?;
        if first < 0x80 {
            return Ok(usize::from(first));
        }
        self.take_long_length(usize::from(first & 0x7f))
    }

    fn take_long_length(&mut self, low: usize) -> Result<usize, DecodeError> {
        let mut length = low;
        let mut shift = 7;
        loop {
            let byte = self.try_take_byte()?;
            let bits = usize::from(byte & 0x7f);
            let shifted = bits << shift;
            if shifted >> shift != bits {
                return Err(DecodeError::Format("a length has more bits than memory has"));
            }
            length |= shifted;
            if byte < 0x80 {
                return Ok(length);
            }
            shift += 7;
            if shift >= usize::BITS {
                return Err(DecodeError::Format("a length does not end"));
            }
        }
    }

    /// Checks that no bytes are left over, after all values are read.
    #[inline]
    pub fn finish(&mut self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.fail(DecodeError::Trailing { left: self.rest.len() }))
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'m> {
    bytes: &'m [u8],
    owner: Option<&'m Bytes>,
}

impl<'m> Piece<'m> {
    /// The bytes, borrowed from the message.
    #[inline]
    pub fn as_slice(self) -> &'m [u8] {
        self.bytes
    }

    /// The bytes, owned: shared with the message if its memory can be kept and they are long, copied otherwise.
    #[inline]
    pub fn into_bytes(self) -> Bytes {
        match self.owner {
            Some(owner) if self.bytes.len() >= SHARE_AT_LEAST_BYTES => owner.slice_ref(self.bytes),
            _ => Bytes::copy_from_slice(self.bytes),
        }
    }
}
