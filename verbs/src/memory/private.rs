//! Private memory: owned by one holder at a time, so real references are sound.

use std::ops::{Deref, DerefMut};

use crate::RemoteRegion;

/// Memory that no peer can reach, to be used whole or cut into buffers.
#[derive(Debug)]
pub struct PrivateRegion {
    _private: (),
}

impl PrivateRegion {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Whether it has no bytes; never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One buffer of all of it.
    pub fn into_buffer(self) -> Buffer {
        unimplemented!()
    }

    /// Buffers of `buffer_size` bytes each (the last bytes stay unused where it does not divide).
    pub fn into_pool(self, buffer_size: usize) -> BufferPool {
        unimplemented!()
    }
}

/// Buffers of one size. Clones are the same pool; taking and giving back takes no lock.
#[derive(Clone, Debug)]
pub struct BufferPool {
    _private: (),
}

impl BufferPool {
    /// A buffer at full length, unless all are out.
    pub fn take(&self) -> Option<Buffer> {
        unimplemented!()
    }

    /// How many are there to be taken.
    pub fn available(&self) -> usize {
        unimplemented!()
    }

    /// The size of each.
    pub fn buffer_size(&self) -> usize {
        unimplemented!()
    }
}

/// A piece of private memory: what is moved into a queue pair. A dropped buffer goes back to its pool.
#[derive(Debug)]
pub struct Buffer {
    _private: (),
}

impl Buffer {
    /// The most bytes it can have.
    #[inline]
    pub fn capacity(&self) -> usize {
        unimplemented!()
    }

    /// The name under which peers may READ it, if it was allocated to be
    /// [published](crate::ProtectionDomain::alloc_published). It covers the present length.
    pub fn remote(&self) -> Option<RemoteRegion> {
        unimplemented!()
    }

    /// Cuts off the first `n` bytes as a buffer of their own. The memory goes back to its pool when all
    /// parts are dropped.
    ///
    /// # Panics
    /// If `n` is over the length.
    pub fn split_to(&mut self, n: usize) -> Buffer {
        unimplemented!()
    }

    /// Joins a part that starts where this one's capacity ends; anything else is given back.
    pub fn unsplit(&mut self, tail: Buffer) -> Result<(), Buffer> {
        unimplemented!()
    }

    /// Sets how many bytes of it count; bytes beyond the old length keep what they held.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        unimplemented!()
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        unimplemented!()
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
