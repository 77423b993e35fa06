//! One buffer of a pool.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;

use super::pool::{InUse, Pool};
use super::slab::Slab;

/// Registered memory that is this program's alone, until it is sent. Dropping it gives it back to its [pool](super::Buffers).
///
/// It is a `[u8]` of a fixed length: fill it as any other. `&mut buffer[..]` is a `std::io::Write` and a `bytes::BufMut`, too.
pub struct Buffer {
    memory: farcall_verbs::Buffer,
    of_pool: OfPool,
}

/// What a buffer keeps of its pool, while a device has its memory.
pub(crate) struct OfPool {
    /// Finds the memory as long as the buffer lives, though the pool may be gone.
    _slab: Arc<Slab>,
    in_use: InUse,
}

impl Buffer {
    pub(super) fn new(memory: farcall_verbs::Buffer, slab: Arc<Slab>, pool: &Arc<Pool>) -> Buffer {
        let in_use = InUse::new(pool, slab.buffer_size() as u64);
        Buffer { memory, of_pool: OfPool { _slab: slab, in_use } }
    }

    /// Its memory, for a work request, and the rest, to put it [together](Self::join) again.
    pub(crate) fn split(self) -> (farcall_verbs::Buffer, OfPool) {
        (self.memory, self.of_pool)
    }

    /// Takes the memory of a buffer that was [split](Self::split) back from a work request.
    pub(crate) fn join(memory: farcall_verbs::Buffer, of_pool: OfPool) -> Buffer {
        Buffer { memory, of_pool }
    }

    /// Whether it is of this pool.
    pub(crate) fn is_of(&self, pool: &super::Buffers) -> bool {
        self.of_pool.in_use.is_of(pool)
    }

    /// Keeps the first `len` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.memory.len(), "{len} bytes of a buffer of {}", self.memory.len());
        self.memory.set_len(len);
    }

    /// The bytes, which do not change any more. They can be cloned and cut, and sent any number of times, to several peers at once. The memory
    /// goes back to its pool when the last of them is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl fmt::Debug for OfPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfPool")
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        buffer.freeze()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}
