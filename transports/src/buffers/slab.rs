//! Memory that buffers are cut from, and the table in which it is found by the address of a byte.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use farcall_verbs::{BufferPool, ProtectionDomain, Publication, RemoteRegion, VerbsError};

/// All slabs of the process, by the address of their first byte.
static SLABS: RwLock<BTreeMap<usize, Weak<Slab>>> = RwLock::new(BTreeMap::new());

/// The memory of some buffers of one size.
#[derive(Debug)]
pub(crate) struct Slab {
    buffers: BufferPool,
    count: usize,
    keys: Mutex<Vec<Weak<Key>>>,
}

/// What lets the peers of one connection READ a slab, until the connection or the slab is gone.
#[derive(Debug)]
pub(super) struct Key(Mutex<Option<Publication>>);

impl Key {
    /// Where these bytes are; `None` if the slab is gone.
    pub(super) fn remote(&self, bytes: &[u8]) -> Option<RemoteRegion> {
        lock(&self.0).as_ref()?.remote(bytes)
    }
}

/// The content is valid whatever a panic has cut short.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slab {
    /// Of the buffers of this pool, all of which are free.
    pub(super) fn new(buffers: BufferPool) -> Arc<Slab> {
        let (start, _) = buffers.span();
        let count = buffers.available();
        let slab = Arc::new(Slab { buffers, count, keys: Mutex::default() });
        let mut slabs = SLABS.write().unwrap_or_else(PoisonError::into_inner);
        slabs.insert(start, Arc::downgrade(&slab));
        slab
    }

    /// The slab that these bytes lie in.
    pub(super) fn find(bytes: &[u8]) -> Option<Arc<Slab>> {
        let first = bytes.as_ptr().addr();
        let slabs = SLABS.read().unwrap_or_else(PoisonError::into_inner);
        let (start, slab) = slabs.range(..=first).next_back()?;
        let slab = slab.upgrade()?;
        let (_, len) = slab.buffers.span();
        (first + bytes.len() <= start + len).then_some(slab)
    }

    pub(super) fn take(&self) -> Option<farcall_verbs::Buffer> {
        self.buffers.take()
    }

    pub(super) fn buffer_size(&self) -> usize {
        self.buffers.buffer_size()
    }

    /// Bytes of all its buffers.
    pub(super) fn bytes(&self) -> u64 {
        (self.count * self.buffer_size()) as u64
    }

    /// None of its buffers is in use.
    pub(super) fn is_free(&self) -> bool {
        self.buffers.available() == self.count
    }

    /// Lets the peers of this domain READ these bytes.
    pub(super) fn publish(
        &self,
        pd: &ProtectionDomain,
        bytes: &[u8],
    ) -> Result<Publication, VerbsError> {
        pd.publish(&self.buffers, bytes)
    }

    /// Lets the peers of this domain READ these bytes, which are all of it, until the key or the slab is dropped.
    pub(super) fn publish_whole(
        &self,
        pd: &ProtectionDomain,
        bytes: &[u8],
    ) -> Result<Arc<Key>, VerbsError> {
        let key = Arc::new(Key(Mutex::new(Some(self.publish(pd, bytes)?))));
        let mut keys = lock(&self.keys);
        keys.retain(|key| key.strong_count() > 0);
        keys.push(Arc::downgrade(&key));
        Ok(key)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let (start, _) = self.buffers.span();
        let mut slabs = SLABS.write().unwrap_or_else(PoisonError::into_inner);
        slabs.remove(&start);
        drop(slabs);
        // Connections that live on do not keep its pages.
        for key in lock(&self.keys).drain(..) {
            if let Some(key) = key.upgrade() {
                lock(&key.0).take();
            }
        }
    }
}
