//! The owner's handle of memory that it can lend.

use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;

use farcall_core::CallContext;
use farcall_core::identity::Identity;

use super::backing::Backing;
use super::remote::bytes_of;
use super::{Borrower, Memory, MemoryError, Remote, Revoking, Rights, Until};

/// Memory that its owner can lend: see [`Memory::region`]. Clones refer to the same memory. When the last one is dropped, all its lends
/// are revoked, and the memory is freed.
///
/// Borrowers may write at any time, so there are no references to its bytes: the owner copies in and out, and loads and stores words. The
/// offsets are the owner's own: one out of range panics.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Memory,
    number: u32,
    bytes: Backing,
}

impl Region {
    pub(super) fn new(memory: Memory, number: u32, bytes: Backing) -> Region {
        Region { inner: Arc::new(Inner { memory, number, bytes }) }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.inner.bytes.shared().len()
    }

    /// Whether it has no bytes. Always false.
    pub fn is_empty(&self) -> bool {
        self.inner.bytes.shared().is_empty()
    }

    /// Whether both are the same memory.
    pub fn is_same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Copies into it, low addresses first. A borrower that reads meanwhile may see some of the old bytes.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.inner.bytes.copy_in(offset, bytes);
    }

    /// Copies out of it. If a borrower writes meanwhile, it may be a mixture of old and new bytes.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.inner.bytes.shared().copy_out(offset, into);
    }

    /// Loads the aligned word at `offset`, with acquire ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.inner.bytes.shared().load_u64(offset)
    }

    /// Stores the aligned word at `offset`, with release ordering. A borrower's atomic operation at the same time may undo it: a NIC's
    /// atomic operations are atomic among each other, and not with the owner's CPU. Let one side alone change such a word.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    pub fn store_release_u64(&self, offset: usize, value: u64) {
        self.inner.bytes.store_release_u64(offset, value);
    }

    /// Whether its bytes can be made to survive the server: it is of [`Memory::persistent_region`].
    pub fn is_persistent(&self) -> bool {
        self.inner.bytes.is_persistent()
    }

    /// Makes the visible bytes of a part durable: writes them back from this CPU's caches, and waits for that. Of persistent memory.
    ///
    /// # Errors
    /// [`NotPersistent`](MemoryError::NotPersistent); [`OutOfRange`](MemoryError::OutOfRange); [`Gone`](MemoryError::Gone): the memory is
    /// lost, and with it what was not durable.
    pub fn persist(&self, part: impl RangeBounds<u64>) -> Result<(), MemoryError> {
        let (begin, len) = bytes_of(part, self.len() as u64)?;
        self.inner.bytes.persist(begin as usize..(begin + len) as usize)
    }

    /// Lends a part to every client that is told of it.
    ///
    /// # Errors
    /// [`OutOfRange`](MemoryError::OutOfRange): the part does not lie in the region. [`Full`](MemoryError::Full): there are as many lends
    /// as an owner can have.
    pub fn lend(
        &self,
        part: impl RangeBounds<u64>,
        rights: Rights,
        until: Until,
    ) -> Result<Remote, MemoryError> {
        self.lend_as(part, rights, until, Borrower::Everyone)
    }

    /// Lends a part to the clients with this identity: see [`CallContext::identity`](farcall_core::CallContext::identity).
    ///
    /// # Errors
    /// [`MemoryError`], for the reasons that [`lend`](Self::lend) has.
    pub fn lend_to(
        &self,
        borrower: Identity,
        part: impl RangeBounds<u64>,
        rights: Rights,
        until: Until,
    ) -> Result<Remote, MemoryError> {
        self.lend_as(part, rights, until, Borrower::Identity(borrower))
    }

    /// Lends a part to one connection: that of the client whose call the handler answers which calls this. The lend ends with the connection.
    /// The client may give the value away, but nobody else can use it.
    ///
    /// # Errors
    /// [`MemoryError`], for the reasons that [`lend`](Self::lend) has.
    ///
    /// # Panics
    /// Outside of a handler, where there is no such client.
    pub fn lend_to_connection(
        &self,
        part: impl RangeBounds<u64>,
        rights: Rights,
        until: Until,
    ) -> Result<Remote, MemoryError> {
        let client = CallContext::client();
        let (_, client) = client.expect("lend to the connection of a call, in its handler");
        self.lend_as(part, rights, until, Borrower::Connection(client))
    }

    fn lend_as(
        &self,
        part: impl RangeBounds<u64>,
        rights: Rights,
        until: Until,
        borrower: Borrower,
    ) -> Result<Remote, MemoryError> {
        let (begin, len) = bytes_of(part, self.len() as u64)?;
        self.inner.memory.lend(self.inner.number, begin..begin + len, rights, until, borrower)
    }

    /// Ends all lends of the region: see [`Memory::revoke`]. Returns their number.
    pub fn revoke(&self) -> usize {
        let revoking = self.start_revoke();
        let lends = revoking.lends();
        revoking.wait();
        lends
    }

    /// Begins to end all lends of the region: see [`Memory::start_revoke`].
    pub fn start_revoke(&self) -> Revoking {
        self.inner.memory.start_revoke_region(self.inner.number)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.memory.forget_region(self.number);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("number", &self.inner.number)
            .field("len", &self.len())
            .finish()
    }
}
