//! A server that lends what its clients ask for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use farcall::memory::{Memory, MemoryError, Region, Remote, RemoteMemory, Rights, Until};
use farcall::{Bytes, CallContext};

pub(crate) const REGION_BYTES: usize = 64 << 10;

/// A client of the server, and of the memory that it lends.
pub(crate) struct Borrowed<M = RemoteMemory> {
    pub(crate) lender: LenderClient,
    pub(crate) memory: M,
}

#[farcall::service]
pub(crate) trait Lending {
    /// Lends a part of the region, with these rights, and ends the lease after so many milliseconds.
    fn lend(
        &self,
        begin: u64,
        end: u64,
        rights: u8,
        lease_ms: Option<u64>,
    ) -> Result<Remote, MemoryError>;
    fn lend_to_caller(&self, begin: u64, end: u64) -> Result<Remote, MemoryError>;
    fn lend_to_connection(&self, begin: u64, end: u64) -> Result<Remote, MemoryError>;
    async fn revoke(&self, lent: Remote) -> bool;
    /// What the owner's own code writes and reads.
    fn store(&self, offset: u64, bytes: Bytes);
    fn load(&self, offset: u64, len: u64) -> Bytes;
    /// Blocks its thread: see [`Lender::block`].
    fn block(&self);
    /// Drops the region, and allocates another one.
    fn replace_region(&self);
}

pub(crate) use LendingClient as LenderClient;
pub(crate) use LendingServer as LenderServer;

#[derive(Clone)]
pub(crate) struct Lender {
    pub(crate) memory: Memory,
    region: Arc<Mutex<Option<Region>>>,
    blocked: Arc<Mutex<()>>,
    is_blocked: Arc<AtomicBool>,
}

impl Lender {
    pub(crate) fn new() -> Lender {
        Lender::of(Memory::new().unwrap())
    }

    pub(crate) fn of(memory: Memory) -> Lender {
        let region = memory.region(REGION_BYTES).unwrap();
        let region = Arc::new(Mutex::new(Some(region)));
        Lender { memory, region, blocked: Arc::default(), is_blocked: Arc::default() }
    }

    /// A call of `block` blocks from now on until the guard is dropped, and says so.
    pub(crate) fn block(&self) -> (MutexGuard<'_, ()>, &AtomicBool) {
        (self.blocked.lock().unwrap(), &self.is_blocked)
    }

    pub(crate) fn region(&self) -> Region {
        self.region.lock().unwrap().clone().unwrap()
    }
}

impl Lending for Lender {
    fn lend(
        &self,
        begin: u64,
        end: u64,
        rights: u8,
        lease_ms: Option<u64>,
    ) -> Result<Remote, MemoryError> {
        let lease = |ms| Until::after(Duration::from_millis(ms));
        let rights = Rights::from_bits_truncate(rights);
        self.region().lend(begin..end, rights, lease_ms.map_or(Until::REVOKED, lease))
    }

    fn lend_to_caller(&self, begin: u64, end: u64) -> Result<Remote, MemoryError> {
        let caller = CallContext::current().and_then(|call| call.identity()).unwrap();
        self.region().lend_to(caller, begin..end, Rights::READ, Until::REVOKED)
    }

    fn lend_to_connection(&self, begin: u64, end: u64) -> Result<Remote, MemoryError> {
        self.region().lend_to_connection(begin..end, Rights::all(), Until::REVOKED)
    }

    async fn revoke(&self, lent: Remote) -> bool {
        self.memory.start_revoke(&lent).await
    }

    fn store(&self, offset: u64, bytes: Bytes) {
        self.region().write(offset as usize, &bytes);
    }

    fn load(&self, offset: u64, len: u64) -> Bytes {
        let mut bytes = vec![0; len as usize];
        self.region().read(offset as usize, &mut bytes);
        bytes.into()
    }

    fn block(&self) {
        self.is_blocked.store(true, Ordering::Release);
        drop(self.blocked.lock().unwrap());
    }

    fn replace_region(&self) {
        let mut region = self.region.lock().unwrap();
        *region = None;
        *region = Some(self.memory.region(REGION_BYTES).unwrap());
    }
}

/// Waits with a bound.
pub(crate) fn wait_until(done: impl Fn() -> bool, what: &str) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        thread::yield_now();
    }
}
