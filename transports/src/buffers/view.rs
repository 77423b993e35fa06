//! Plain data, viewed in the bytes that carry it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use bytes::Bytes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Buffer;

/// Values of plain data in bytes that were received, or will be sent: numbers, or structs with `zerocopy`'s derives.
///
/// They are viewed where the bytes are. A large message is aligned for values of up to 8 bytes each; if bytes are not aligned, the values are copied
/// once. Bytes in the order of this machine: both ends must have the same, or values say which they have (`zerocopy::little_endian`).
#[derive(Clone)]
pub struct View<T> {
    bytes: Held<T>,
    values: PhantomData<T>,
}

#[derive(Clone)]
enum Held<T> {
    /// Aligned, and of whole values.
    Shared(Bytes),
    Copied(Vec<T>),
}

/// The bytes are not a whole number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes are no whole number of values of {size} bytes")]
pub struct NotValues {
    /// How many bytes there are.
    pub len: usize,
    /// The bytes of a value.
    pub size: usize,
}

impl<T: FromBytes + Immutable + KnownLayout> View<T> {
    /// The values in these bytes, which a peer may have sent.
    ///
    /// # Errors
    /// [`NotValues`].
    pub fn new(bytes: Bytes) -> Result<View<T>, NotValues> {
        let (len, size) = (bytes.len(), size_of::<T>());
        if !len.is_multiple_of(size) {
            return Err(NotValues { len, size });
        }
        let is_aligned = <[T]>::ref_from_bytes(&bytes).is_ok();
        let held = match is_aligned {
            true => Held::Shared(bytes),
            // Each has as many bytes as a value.
            false => Held::Copied(
                bytes
                    .chunks_exact(size)
                    .filter_map(|bytes| T::read_from_bytes(bytes).ok())
                    .collect(),
            ),
        };
        Ok(View { bytes: held, values: PhantomData })
    }
}

impl<T: FromBytes + Immutable + KnownLayout> Deref for View<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.bytes {
            // It was tried before.
            Held::Shared(bytes) => <[T]>::ref_from_bytes(bytes).unwrap_or(&[]),
            Held::Copied(values) => values,
        }
    }
}

impl<T: FromBytes + Immutable + KnownLayout + fmt::Debug> fmt::Debug for View<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Buffer {
    /// The buffer as values of plain data, to be filled. It is aligned for any.
    ///
    /// # Errors
    /// [`NotValues`]: its length is no multiple of a value's.
    pub fn values_mut<T: FromBytes + IntoBytes + KnownLayout>(
        &mut self,
    ) -> Result<&mut [T], NotValues> {
        let (len, size) = (self.len(), size_of::<T>());
        <[T]>::mut_from_bytes(self).map_err(|_| NotValues { len, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Buffers;

    #[test]
    fn values_are_seen_where_they_are_and_copied_only_if_they_are_not_aligned() {
        let buffers = Buffers::with_limit(1 << 20).unwrap();
        let mut buffer = buffers.buffer(8000).unwrap();
        for (at, value) in buffer.values_mut::<f64>().unwrap().iter_mut().enumerate() {
            *value = at as f64;
        }
        let bytes = buffer.freeze();
        let view = View::<f64>::new(bytes.clone()).unwrap();
        assert_eq!((view.len(), view[999]), (1000, 999.0));
        assert_eq!(view.as_ptr().cast(), bytes.as_ptr());
        let shifted = [&[0], &bytes[..]].concat();
        let shifted = View::<f64>::new(Bytes::from(shifted).slice(1..)).unwrap();
        assert_eq!(view[..], shifted[..]);
    }

    #[test]
    fn other_bytes_than_whole_values_are_refused() {
        let refused = NotValues { len: 9, size: 4 };
        assert_eq!(View::<u32>::new(Bytes::from(vec![0; 9])).map(drop), Err(refused));
        let mut buffer = Buffers::with_limit(1 << 20).unwrap().buffer(9).unwrap();
        assert_eq!(buffer.values_mut::<u32>().map(drop), Err(refused));
        assert!(View::<u32>::new(Bytes::new()).unwrap().is_empty());
    }
}
