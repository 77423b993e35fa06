//! Private memory: one holder owns it at a time, so references into it are sound.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::bytes::{LINE_BYTES, copy_unordered};
use crate::memory::growing_queue::GrowingQueue;
use crate::memory::prefetch;
use crate::memory::region::Region;
use crate::{Access, RemoteRegion};

/// Memory that no peer can write. Use it as one buffer or split it into a pool of buffers.
#[derive(Debug)]
pub struct PrivateRegion {
    memory: Region,
}

impl PrivateRegion {
    pub(crate) fn new(memory: Region) -> PrivateRegion {
        PrivateRegion { memory }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no bytes. Always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Turns the whole region into one buffer.
    pub fn into_buffer(self) -> Buffer {
        let len = self.len();
        let pool = self.into_pool(len);
        pool.take().expect("a pool of one holds one")
    }

    /// Splits the region into buffers of `buffer_size` bytes. A remainder at the end stays unused.
    ///
    /// # Panics
    /// If `buffer_size` is 0 or longer than the region.
    pub fn into_pool(self, buffer_size: usize) -> BufferPool {
        assert!(
            buffer_size > 0 && buffer_size <= self.len(),
            "buffers of {buffer_size} bytes cannot be cut from a region of {}",
            self.len()
        );
        let count = u32::try_from(self.len() / buffer_size).unwrap_or(u32::MAX);
        let free = GrowingQueue::new(count as usize);
        let parts = (0..count).map(|_| AtomicU32::new(0)).collect();
        let taken = AtomicU32::new(0);
        BufferPool {
            shared: Arc::new(PoolShared { free, taken, parts, buffer_size, memory: self.memory }),
        }
    }
}

/// A pool of buffers of one size. Clones refer to the same pool. Taking and returning a buffer takes no
/// lock.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    /// Indices of buffers that are free again.
    free: GrowingQueue<u32>,
    /// So many buffers have ever been taken: the first ones.
    taken: AtomicU32,
    /// For each buffer that is taken, the number of parts it is split into.
    parts: Box<[AtomicU32]>,
    buffer_size: usize,
    memory: Region,
}

impl PoolShared {
    /// A buffer that has never been taken.
    #[cold]
    fn take_unused(&self) -> Option<u32> {
        let next = |taken| ((taken as usize) < self.parts.len()).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    fn unused(&self) -> usize {
        self.parts.len() - self.taken.load(Ordering::Relaxed) as usize
    }
}

impl BufferPool {
    /// Takes a buffer at full length, or `None` if all are taken. It still holds its last user's bytes.
    #[inline]
    pub fn take(&self) -> Option<Buffer> {
        let index = self.shared.free.pop().or_else(|| self.shared.take_unused())?;
        self.shared.parts[index as usize].store(1, Ordering::Relaxed);
        let len = self.shared.buffer_size;
        // SAFETY: `index` is below the number of buffers, each of `buffer_size` bytes, that the memory
        // has room for; a mapping never starts at null.
        let start =
            unsafe { NonNull::new_unchecked(self.shared.memory.start().add(index as usize * len)) };
        Some(Buffer { start, len, capacity: len, index, pool: Arc::clone(&self.shared) })
    }

    /// The number of buffers that can be taken now.
    pub fn available(&self) -> usize {
        self.shared.free.len() + self.shared.unused()
    }

    /// What its buffers were cut from.
    pub(crate) fn memory(&self) -> &Region {
        &self.shared.memory
    }

    /// Where its memory starts, and how many bytes it has: to find the pool of bytes.
    pub fn span(&self) -> (usize, usize) {
        (self.memory().start().addr(), self.memory().len())
    }

    /// The size of each buffer in bytes.
    pub fn buffer_size(&self) -> usize {
        self.shared.buffer_size
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("buffer_size", &self.buffer_size())
            .field("available", &self.available())
            .finish()
    }
}

/// A piece of private memory, to be moved into a work request. A dropped buffer returns to its pool.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    index: u32,
    pool: Arc<PoolShared>,
}

// SAFETY: a buffer owns its range of the pool's pages. No other buffer covers it, and no peer can write
// it. Peers may at most read a published buffer, which no reference of ours can observe.
unsafe impl Send for Buffer {}
// SAFETY: through `&Buffer` the bytes can only be read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The largest length it can be set to.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the length. Bytes beyond the old length keep what they held.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "{len} bytes in a buffer of {}", self.capacity);
        self.len = len;
    }

    /// Copies bytes to this offset, in any order, as is fastest where a peer has read the buffer before.
    ///
    /// # Panics
    /// If they go beyond the end.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        let target = &mut self[offset..offset + bytes.len()];
        // In whole lines: the peer may have them.
        let to_line = target.as_ptr().align_offset(LINE_BYTES).min(bytes.len());
        let (head, rest) = bytes.split_at(to_line);
        let (front, back) = target.split_at_mut(to_line);
        front.copy_from_slice(head);
        // SAFETY: both have the same length, and the target is exclusively ours. A peer that READs it meanwhile gets a mixture.
        unsafe { copy_unordered(back.as_mut_ptr(), rest.as_ptr(), rest.len()) };
    }

    /// The address and key under which peers may READ it, if it was allocated with
    /// [`alloc_published`](crate::ProtectionDomain::alloc_published). They cover the present length.
    pub fn remote(&self) -> Option<RemoteRegion> {
        let memory = &self.pool.memory;
        memory.access().contains(Access::REMOTE_READ).then(|| {
            let addr = memory.address_of(self.start.as_ptr());
            RemoteRegion::new(addr, memory.rkey(), self.len as u64)
        })
    }

    /// Splits off the first `n` bytes as a separate buffer. The memory returns to its pool when all parts are
    /// dropped.
    ///
    /// # Panics
    /// If `n` is over the length.
    pub fn split_to(&mut self, n: usize) -> Buffer {
        assert!(n <= self.len, "{n} bytes cut off a buffer of {}", self.len);
        // Relaxed, as in any reference count: this part itself keeps the count above zero.
        self.pool.parts[self.index as usize].fetch_add(1, Ordering::Relaxed);
        let head = Buffer {
            start: self.start,
            len: n,
            capacity: n,
            index: self.index,
            pool: Arc::clone(&self.pool),
        };
        // SAFETY: `n <= len <= capacity`, so the rest still lies in the buffer; the two do not overlap.
        self.start = unsafe { self.start.add(n) };
        self.len -= n;
        self.capacity -= n;
        head
    }

    /// Appends a part that starts where this buffer's capacity ends. The new length is this buffer's capacity
    /// plus the part's length.
    ///
    /// # Errors
    /// Returns `tail` if it is not adjacent.
    pub fn unsplit(&mut self, tail: Buffer) -> Result<(), Buffer> {
        let end = self.start.as_ptr().addr() + self.capacity;
        let adjacent = Arc::ptr_eq(&self.pool, &tail.pool)
            && self.index == tail.index
            && end == tail.start.as_ptr().addr();
        if !adjacent {
            return Err(tail);
        }
        self.len = self.capacity + tail.len;
        self.capacity += tail.capacity;
        Ok(()) // Dropping the tail only decrements the count: this part holds another.
    }

    /// The protection domain it belongs to.
    #[inline]
    pub(crate) fn pd(&self) -> u32 {
        self.pool.memory.pd()
    }

    /// The local key of its memory, for our own work requests.
    #[cfg(feature = "ibverbs")]
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.pool.memory.lkey()
    }

    /// Prefetches for writing the lines that most datagrams occupy.
    #[inline]
    pub(crate) fn prefetch_front(&self) {
        for offset in [0, 64, 128] {
            prefetch::to_write(self.start().wrapping_add(offset));
        }
    }

    /// Its start, which does not change when the buffer is moved.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // Release this part's writes; acquire the other parts' writes before the next user takes the buffer.
        if self.pool.parts[self.index as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            let back = self.pool.free.push(self.index);
            debug_assert!(back.is_ok(), "a buffer came back twice");
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are this buffer's alone, and initialised (pages start zeroed).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
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
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::Population;
    use crate::shm;

    fn region(len: usize) -> PrivateRegion {
        PrivateRegion::new(shm::private_region(len, 0, Population::AtOnce).unwrap())
    }

    #[test]
    fn a_dropped_buffer_goes_back_to_its_pool() {
        let pool = region(10_000).into_pool(4096);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        drop(first);
        assert_eq!(pool.available(), 1);
        drop(second);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let mut buffer = region(100).into_buffer();
        buffer[99] = 7;
        assert_eq!((buffer.len(), buffer[99]), (100, 7));
    }

    #[test]
    fn parts_of_a_buffer_come_back_as_one() {
        let pool = region(4096).into_pool(4096);
        let mut tail = pool.take().unwrap();
        let mut head = tail.split_to(1000);
        head.fill(1);
        tail.fill(2);
        assert_eq!((head.len(), tail.len()), (1000, 3096));
        let mut middle = tail.split_to(96);
        drop(tail);
        assert_eq!(pool.available(), 0);
        assert!(middle.unsplit(head).is_err());
        drop(middle);
        assert_eq!(pool.available(), 1, "every part is gone");
    }

    #[test]
    fn joined_parts_are_whole_again() {
        let mut buffer = region(4096).into_buffer();
        let mut head = buffer.split_to(64);
        head.unsplit(buffer).unwrap();
        assert_eq!((head.len(), head.capacity()), (4096, 4096));
    }
}
