//! A bounded pool of buffers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farcall_verbs::{Device, OpenError, ProtectionDomain, VerbsError};

use super::buffer::Buffer;
use super::slab::Slab;
use crate::kit::memory::size_class;

/// The device of memory that processes of one machine share.
const SHARED_MEMORY: &str = "shm";

/// Bytes of a pool, unless it is told otherwise.
const USUAL_LIMIT_BYTES: u64 = 1 << 30;

/// Small buffers are allocated by the slab of this many bytes: peers keep a key for each slab.
const SLAB_BYTES: usize = 1 << 20;

/// A bounded pool of registered memory, in [buffers](Buffer) that this program owns. Clones are the same pool.
///
/// Memory is allocated when it is first needed, and used again: taking a buffer and giving it back costs the same however often it is done.
/// Sizes are rounded up by a quarter at most, to 4 KiB at least.
#[derive(Clone, Debug)]
pub struct Buffers {
    pool: Arc<Pool>,
}

/// What all buffers of a pool share.
pub(super) struct Pool {
    pd: ProtectionDomain,
    limit: u64,
    slabs: Mutex<Slabs>,
    used: AtomicU64,
    taken: AtomicU64,
}

#[derive(Default)]
struct Slabs {
    bytes: u64,
    by_size: BTreeMap<usize, Class>,
}

#[derive(Default)]
struct Class {
    slabs: Vec<Arc<Slab>>,
    /// Where the last buffer was found: the likeliest place of the next.
    recent: usize,
}

/// A buffer is out of the pool as long as this lives.
pub(super) struct InUse {
    pool: Arc<Pool>,
    bytes: u64,
}

/// Why there is no buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// A buffer has at least one byte.
    #[error("a buffer of 0 bytes; ask for at least 1")]
    Empty,
    /// The pool has less memory than this.
    #[error(
        "a buffer of {len} bytes is longer than its pool, which has {limit}; give the pool a higher limit"
    )]
    TooLong {
        /// Bytes that the buffer was to have.
        len: u64,
        /// Bytes of the pool at most.
        limit: u64,
    },
    /// The pool's memory is in use. Nothing was allocated; try again when buffers were dropped.
    #[error(
        "no memory at present for a buffer of {len} bytes: {used} of {limit} are in use; drop buffers, or give the pool a higher limit"
    )]
    Exhausted {
        /// Bytes that the buffer was to have.
        len: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes of the pool at most.
        limit: u64,
    },
    /// The device cannot be opened.
    #[error("the device of the buffers cannot be opened")]
    Open(#[from] OpenError),
    /// The device has no such memory.
    #[error("the device has no memory for a buffer")]
    Device(#[from] VerbsError),
}

/// What a pool has, and what of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuffersSnapshot {
    /// Bytes that it may allocate.
    pub limit: u64,
    /// Bytes that it has allocated and registered.
    pub bytes: u64,
    /// Bytes of buffers that are in use, rounded up to their sizes.
    pub used: u64,
    /// Buffers that were taken so far.
    pub taken: u64,
}

impl Buffers {
    /// Buffers of shared memory, 1 GiB at most: for `shm://` addresses. Over other devices they are copied.
    ///
    /// # Errors
    /// [`BufferError`]: this process has no shared memory.
    pub fn new() -> Result<Buffers, BufferError> {
        Buffers::with_limit(USUAL_LIMIT_BYTES)
    }

    /// Buffers of shared memory, `limit` bytes at most.
    ///
    /// # Errors
    /// [`BufferError`]: this process has no shared memory.
    pub fn with_limit(limit: u64) -> Result<Buffers, BufferError> {
        Buffers::on(&Device::open(SHARED_MEMORY)?, limit)
    }

    /// Buffers of the RDMA device with this name, `limit` bytes at most: for addresses that use this device. Over others they are copied.
    ///
    /// # Errors
    /// [`BufferError`]: there is no such device, or it refuses.
    pub fn of_device(name: &str, limit: u64) -> Result<Buffers, BufferError> {
        Buffers::on(&Device::open(name)?, limit)
    }

    /// Buffers of this device, `limit` bytes at most.
    ///
    /// # Errors
    /// [`BufferError`]: the device refuses.
    pub fn on(device: &Device, limit: u64) -> Result<Buffers, BufferError> {
        let (pd, slabs) = (device.alloc_pd()?, Mutex::default());
        let (used, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Buffers { pool: Arc::new(Pool { pd, limit, slabs, used, taken }) })
    }

    /// The domain of its memory: work requests of that domain can use its buffers.
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.pool.pd
    }

    /// A buffer of `len` bytes, of any content: it may be that of a buffer which was given back.
    ///
    /// # Errors
    /// [`BufferError`]: the pool's memory is in use, or the device has none.
    pub fn buffer(&self, len: usize) -> Result<Buffer, BufferError> {
        if len == 0 {
            return Err(BufferError::Empty);
        }
        let (mut memory, slab) = self.pool.take(len)?;
        memory.set_len(len);
        self.pool.taken.fetch_add(1, Ordering::Relaxed);
        Ok(Buffer::new(memory, slab, &self.pool))
    }

    /// A buffer with a copy of these bytes.
    ///
    /// # Errors
    /// [`BufferError`], for the reasons that [`buffer`](Self::buffer) has.
    pub fn copy_of(&self, bytes: &[u8]) -> Result<Buffer, BufferError> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Frees what is not in use. It is allocated again when it is needed.
    pub fn trim(&self) {
        self.pool.slabs().trim();
    }

    /// What there is, and what of it is in use.
    pub fn snapshot(&self) -> BuffersSnapshot {
        let bytes = self.pool.slabs().bytes;
        let Pool { limit, used, taken, .. } = &*self.pool;
        let (used, taken) = (used.load(Ordering::Relaxed), taken.load(Ordering::Relaxed));
        BuffersSnapshot { limit: *limit, bytes, used, taken }
    }
}

impl Pool {
    fn slabs(&self) -> std::sync::MutexGuard<'_, Slabs> {
        // The table is valid whatever a panic has cut short.
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, len: usize) -> Result<(farcall_verbs::Buffer, Arc<Slab>), BufferError> {
        let too_long = BufferError::TooLong { len: len as u64, limit: self.limit };
        if len as u64 > self.limit {
            return Err(too_long);
        }
        let size = size_class(len);
        let mut slabs = self.slabs();
        if let Some(taken) = slabs.by_size.entry(size).or_default().take() {
            return Ok(taken);
        }
        let count = (SLAB_BYTES / size).max(1);
        let count = count.min((self.limit / size as u64) as usize).max(1);
        let bytes = (count * size) as u64;
        if slabs.bytes + bytes > self.limit {
            slabs.trim();
        }
        if slabs.bytes + bytes > self.limit {
            let used = self.used.load(Ordering::Relaxed);
            return Err(match slabs.bytes {
                0 => too_long,
                _ => BufferError::Exhausted { len: len as u64, used, limit: self.limit },
            });
        }
        let slab = Slab::new(self.pd.alloc_published(count * size)?.into_pool(size));
        slabs.bytes += bytes;
        let class = slabs.by_size.entry(size).or_default();
        class.recent = class.slabs.len();
        class.slabs.push(slab);
        let full = BufferError::Exhausted { len: len as u64, used: bytes, limit: self.limit };
        class.take().ok_or(full)
    }
}

impl Class {
    fn take(&mut self) -> Option<(farcall_verbs::Buffer, Arc<Slab>)> {
        let count = self.slabs.len();
        let at = (0..count).map(|step| (self.recent + step) % count);
        let (at, memory) = at.map(|at| (at, self.slabs[at].take())).find(|it| it.1.is_some())?;
        self.recent = at;
        Some((memory?, Arc::clone(&self.slabs[at])))
    }
}

impl Slabs {
    fn trim(&mut self) {
        let Slabs { bytes, by_size } = self;
        for class in by_size.values_mut() {
            class.slabs.retain(|slab| !slab.is_free());
            class.recent = 0;
        }
        by_size.retain(|_, class| !class.slabs.is_empty());
        *bytes = by_size.values().flat_map(|class| &class.slabs).map(|slab| slab.bytes()).sum();
    }
}

impl InUse {
    pub(super) fn new(pool: &Arc<Pool>, bytes: u64) -> InUse {
        pool.used.fetch_add(bytes, Ordering::Relaxed);
        InUse { pool: Arc::clone(pool), bytes }
    }

    pub(super) fn is_of(&self, buffers: &Buffers) -> bool {
        Arc::ptr_eq(&self.pool, &buffers.pool)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool { limit, used, .. } = self;
        f.debug_struct("Pool").field("limit", limit).field("used", used).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
