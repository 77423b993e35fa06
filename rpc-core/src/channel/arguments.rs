//! The arguments of a call, from when the call is made until it is sent.

use crate::codec::{self, EncodeError, Payload};
use crate::transport::Body;
use bytes::Bytes;

/// Longer buffers are freed after use instead of kept for the next call, so that a transport may share them.
pub(super) const KEPT_BYTES: usize = 64 << 10;

/// From this length on, arguments that are one `Bytes` are kept instead of copied: below, the copy costs less than two changes of a
/// reference count.
const LEAST_SHARED: usize = 1024;

/// Encoded arguments. They are written once here, unless the caller's own memory can be kept, and once into the transport's slot.
#[derive(Default)]
pub(super) struct Arguments {
    /// Memory that a transport can share: the caller's own, or that of long arguments. The buffer is not used then.
    shared: Option<Bytes>,
    /// At least `len` bytes. What is behind them was written by earlier calls, and needs not be written again to encode there.
    buffer: Vec<u8>,
    len: usize,
}

impl Arguments {
    /// Encodes them. With `may_share`, keeps the caller's memory instead if that is the whole message.
    ///
    /// # Errors
    /// They cannot be encoded.
    #[inline]
    pub(super) fn encode<P: Payload + ?Sized>(
        &mut self,
        payload: &P,
        may_share: bool,
    ) -> Result<(), EncodeError> {
        let len = codec::encoded_len(payload)?;
        if may_share && len >= LEAST_SHARED {
            self.shared = payload.shared();
            if self.shared.is_some() {
                return Ok(());
            }
        }
        if len > KEPT_BYTES {
            return self.encode_long(payload, len);
        }
        codec::encode(payload, self.reserve(len))
    }

    #[cold]
    fn encode_long<P: Payload + ?Sized>(
        &mut self,
        payload: &P,
        len: usize,
    ) -> Result<(), EncodeError> {
        // Memory that comes zeroed need not be written before it is used.
        let mut buffer = vec![0; len];
        codec::encode(payload, &mut buffer)?;
        self.shared = Some(buffer.into());
        Ok(())
    }

    /// Takes these bytes instead.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.shared = None;
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
        match &self.shared {
            None => &self.buffer[..self.len],
            Some(shared) => shared,
        }
    }

    /// The same, with their memory if that can be shared.
    #[inline]
    pub(super) fn body(&self) -> Body<'_> {
        match &self.shared {
            None => Body::Borrowed(&self.buffer[..self.len]),
            Some(shared) => Body::Shared(shared),
        }
    }

    /// The call is over.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
        if self.shared.is_some() {
            self.shared = None;
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
        for len in [LEAST_SHARED - 1, LEAST_SHARED, 1 << 20] {
            let bytes = Bytes::from(vec![7; len]);
            for may_share in [true, false] {
                arguments.encode(&whole(&bytes), may_share).expect("bytes");
                assert_eq!(arguments.as_slice(), &bytes[..]);
                let is_shared = arguments.as_slice().as_ptr() == bytes.as_ptr();
                assert_eq!(is_shared, may_share && len >= LEAST_SHARED, "{len} bytes");
                arguments.clear();
                assert!(arguments.as_slice().is_empty());
                assert!(bytes.is_unique(), "the call is over");
            }
        }
        // Long ones need not be copied once they are encoded.
        for (len, is_shared) in [(KEPT_BYTES, false), (KEPT_BYTES + 1, true)] {
            let bytes = Bytes::from(vec![7; len]);
            arguments.encode(&whole(&bytes), false).expect("bytes");
            assert_eq!(arguments.as_slice(), &bytes[..]);
            assert_eq!(matches!(arguments.body(), Body::Shared(_)), is_shared, "{len} bytes");
            arguments.clear();
        }
        // In a tuple of one too, as generated code has it; not as one of two.
        let bytes = Bytes::from(vec![7; LEAST_SHARED]);
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
