//! The arguments of a call, from when the call is made until it is sent.

use crate::codec::{self, EncodeError, Payload};
use crate::transport::Body;
use bytes::Bytes;

/// Longer buffers are freed after use instead of kept for the next call.
pub(super) const KEPT_BYTES: usize = 64 << 10;

/// From this length on, arguments that are one `Bytes` are kept instead of copied: below, the copy costs less than two changes of a
/// reference count.
const LEAST_LENT: usize = 1024;

/// Encoded arguments. They are written once here, unless the caller's own memory can be kept, and once into the transport's slot.
#[derive(Default)]
pub(super) struct Arguments {
    /// The caller's own memory; the buffer is not used then.
    lent: Option<Bytes>,
    /// At least `len` bytes. What is behind them was written by earlier calls, and needs not be written again to encode there.
    buffer: Vec<u8>,
    len: usize,
}

impl Arguments {
    /// Encodes them. With `may_lend`, keeps the caller's memory instead if that is the whole message.
    ///
    /// # Errors
    /// They cannot be encoded.
    #[inline]
    pub(super) fn encode<P: Payload + ?Sized>(
        &mut self,
        payload: &P,
        may_lend: bool,
    ) -> Result<(), EncodeError> {
        let len = codec::encoded_len(payload)?;
        if may_lend && len >= LEAST_LENT {
            self.lent = payload.shared();
            if self.lent.is_some() {
                return Ok(());
            }
        }
        codec::encode(payload, self.reserve(len))
    }

    /// Takes these bytes instead.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.lent = None;
        self.reserve(bytes.len()).copy_from_slice(bytes);
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> &mut [u8] {
        if self.buffer.len() < len {
            self.grow(len);
        }
        self.len = len;
        &mut self.buffer[..len]
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        if self.buffer.capacity() < len {
            // Memory that comes zeroed need not be written before it is used.
            self.buffer = vec![0; len];
        } else {
            self.buffer.resize(len, 0);
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        match &self.lent {
            None => &self.buffer[..self.len],
            Some(lent) => lent,
        }
    }

    /// The same, with their memory if that can be shared.
    #[inline]
    pub(super) fn body(&self) -> Body<'_> {
        match &self.lent {
            None => Body::Borrowed(&self.buffer[..self.len]),
            Some(lent) => Body::Shared(lent),
        }
    }

    /// The call is over.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.lent.is_some() {
            self.lent = None;
        }
        self.len = 0;
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{As, Whole};

    fn whole(bytes: &Bytes) -> As<'_, Whole, Bytes> {
        As::new(bytes)
    }

    #[test]
    fn long_bytes_are_kept_where_they_are_and_short_ones_are_copied() {
        let mut arguments = Arguments::default();
        for len in [LEAST_LENT - 1, LEAST_LENT, 1 << 20] {
            let bytes = Bytes::from(vec![7; len]);
            for may_lend in [true, false] {
                arguments.encode(&whole(&bytes), may_lend).expect("bytes");
                assert_eq!(arguments.as_slice(), &bytes[..]);
                let is_lent = arguments.as_slice().as_ptr() == bytes.as_ptr();
                assert_eq!(is_lent, may_lend && len >= LEAST_LENT, "{len} bytes");
                arguments.clear();
                assert!(arguments.as_slice().is_empty());
                assert!(bytes.is_unique(), "the call is over");
            }
        }
        // In a tuple of one too, as generated code has it; not as one of two.
        let bytes = Bytes::from(vec![7; LEAST_LENT]);
        arguments.encode(&(whole(&bytes),), true).expect("bytes");
        assert_eq!(arguments.as_slice().as_ptr(), bytes.as_ptr());
        arguments.encode(&(whole(&bytes), whole(&bytes)), true).expect("bytes");
        assert_eq!(arguments.as_slice(), [&bytes[..], &bytes[..]].concat());
    }

    #[test]
    fn a_buffer_is_used_again_and_a_long_one_is_not_kept() {
        let mut arguments = Arguments::default();
        for (len, is_kept) in [(100, true), (10, true), (KEPT_BYTES + 1, false)] {
            let bytes = Bytes::from(vec![len as u8; len]);
            arguments.encode(&whole(&bytes), false).expect("bytes");
            assert_eq!(arguments.as_slice(), &bytes[..]);
            arguments.copy(b"older");
            assert_eq!(arguments.as_slice(), b"older");
            arguments.clear();
            assert_eq!(arguments.buffer.capacity() >= len, is_kept);
        }
    }
}
