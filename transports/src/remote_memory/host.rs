//! The owner's end: its regions, its lends, and the operations on them.

use core::fmt;
use core::ops::Range;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::{Bytes, BytesMut};
use farcall_core::CallContext;
use farcall_core::identity::Identity;
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_verbs::{Access, Device, OpenError, ProtectionDomain, SharedRegion, VerbsError};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::grants::{Grant, Granted, Grants, MAX_LENDS};
use super::host_lanes::{HostLanes, Lend};
use super::lane::{LaneError, SHARED_MEMORY, Window};
use super::{
    Action, BatchError, Borrower, MemoryError, Operation, Outcome, Region, Remote, Rights, Until,
};

/// Most regions of one owner.
const MAX_REGIONS: usize = 1 << 14;

/// Why there is no memory to lend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device has no such memory.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// There are as many regions as an owner can have.
    #[error(
        "this memory has {MAX_REGIONS} regions already; drop some, or lend parts of one region"
    )]
    TooManyRegions,
}

/// The memory that a server lends. Clones refer to the same memory.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    /// Lanes run on it.
    is_shared_memory: bool,
    domain: ProtectionDomain,
    /// A number of this owner alone, which values that it has lent bear.
    life: u64,
    clock: Site,
    /// Operations hold it shared while they access memory: who has it exclusively knows that none is under way.
    tables: RwLock<Tables>,
    /// Locked after the tables.
    lanes: Mutex<HostLanes>,
}

struct Tables {
    grants: Grants,
    keys: Keys,
    /// By their number.
    regions: Vec<Option<SharedRegion>>,
}

/// Makes the keys of lends.
struct Keys {
    /// As long as a block of the hash.
    secret: [u8; 64],
    made: u64,
}

/// What an owner has and lends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// The number of regions.
    pub regions: usize,
    /// The bytes of all regions.
    pub bytes: u64,
    /// The number of lends that have not ended.
    pub lends: usize,
    /// The number of lanes of clients that use one-sided operations.
    pub lanes: usize,
    /// The lend that has lasted longest of those that have not ended.
    pub oldest: Option<OldestLend>,
}

/// The lend of an owner that has lasted longest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OldestLend {
    /// For how long.
    pub age: Duration,
    /// Who may use it.
    pub borrower: Borrower,
}

impl Memory {
    /// Memory without regions, of shared memory.
    ///
    /// # Errors
    /// [`AllocError`]: this process has no shared memory.
    pub fn new() -> Result<Memory, AllocError> {
        Memory::of(&Device::open(SHARED_MEMORY)?, true)
    }

    /// Memory without regions, of this device.
    ///
    /// # Errors
    /// [`AllocError`]: the device refuses.
    pub fn on(device: &Device) -> Result<Memory, AllocError> {
        Memory::of(device, false)
    }

    fn of(device: &Device, is_shared_memory: bool) -> Result<Memory, AllocError> {
        let mut secret = [0; 64];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&device.random()?.to_ne_bytes());
        }
        let life = device.random()?;
        let (grants, keys) = (Grants::new(life, MAX_LENDS), Keys { secret, made: 0 });
        let tables = RwLock::new(Tables { grants, keys, regions: Vec::new() });
        let (domain, clock) = (device.alloc_pd()?, Site::new());
        let (device, lanes) = (device.clone(), Mutex::default());
        let inner = Inner { device, is_shared_memory, domain, life, clock, tables, lanes };
        Ok(Memory { inner: Arc::new(inner) })
    }

    /// Allocates so many bytes, all zero, which are freed when the last clone of the region is dropped.
    ///
    /// # Errors
    /// [`AllocError`]: the device has no such memory, or there are too many regions.
    pub fn region(&self, len: usize) -> Result<Region, AllocError> {
        let windows =
            if self.inner.domain.caps().max_mw > 0 { Access::MW_BIND } else { Access::empty() };
        let bytes = self.inner.domain.alloc_shared(len, windows)?;
        let mut tables = self.exclusive();
        let regions = &mut tables.regions;
        let number = regions.iter().position(Option::is_none).unwrap_or(regions.len());
        if number == MAX_REGIONS {
            return Err(AllocError::TooManyRegions);
        }
        if number == regions.len() {
            regions.push(None);
        }
        regions[number] = Some(bytes.clone());
        drop(tables);
        Ok(Region::new(self.clone(), number as u32, bytes))
    }

    /// Ends the lend that this value, or a slice of it, names. Returns whether there was one that had not ended.
    ///
    /// Access has ended for certain when this returns: operations that were under way are over, nothing lands any more, and a later one
    /// gets [`MemoryError::Revoked`]. The same holds for a lend whose lease was over before. So the memory may be used for something else.
    ///
    /// A client with one-sided operations that is stopped in the midst of one holds this up. There is a bound, some tens of seconds: then the
    /// log has an error, and that client may still write when it goes on.
    pub fn revoke(&self, remote: &Remote) -> bool {
        let mut tables = self.exclusive();
        let is_lent = tables.grants.revoke(remote);
        if is_lent {
            self.lanes().revoke(remote.lend);
        }
        is_lent
    }

    /// Connects a lane to a client's endpoint: a queue pair on which the client accesses lends without this end's CPU. Returns its number,
    /// which is a secret, and the endpoint of this end.
    ///
    /// # Errors
    /// [`LaneError`]: the client's end cannot be reached from here, or there are too many lanes.
    pub fn open_lane(&self, client: &[u8]) -> Result<(u64, Bytes), LaneError> {
        if !self.inner.is_shared_memory {
            return Err(LaneError::Unsupported);
        }
        let number = self.exclusive().keys.next();
        let Inner { device, domain, .. } = &*self.inner;
        let endpoint = self.lanes().open(number, device, domain, client)?;
        Ok((number, endpoint))
    }

    /// Gives the client of a lane a window to a lend, if it may use that. `None`: it must use calls. A lend with a lease has none: the
    /// owner's CPU looks at the clock.
    pub fn bind(
        &self,
        lane: u64,
        remote: &Remote,
        who: Option<&Identity>,
        now: Instant,
    ) -> Option<Window> {
        // Until the window is bound and known, nobody revokes the lend.
        let tables = self.shared();
        let grant = tables.grants.granted(remote, who, now).ok()?;
        if grant.until != Instant::FAR_FUTURE {
            return None;
        }
        let bytes = tables.regions.get(grant.region as usize)?.as_ref()?;
        let (begin, len) = (grant.part.start, grant.part.end - grant.part.start);
        let lend = Lend { remote: *remote, bytes, begin, len, rights: grant.rights };
        self.lanes().bind(lane, &self.inner.domain, &lend)
    }

    /// What there is, and what is lent.
    pub fn snapshot(&self) -> MemorySnapshot {
        let mut tables = self.exclusive();
        let now = self.now();
        tables.grants.expire(now);
        let regions = || tables.regions.iter().flatten();
        let bytes = regions().map(|region| region.len() as u64).sum();
        let oldest = tables.grants.oldest().map(|(since, borrower)| OldestLend {
            age: now.saturating_since(since),
            borrower: borrower.clone(),
        });
        let (lends, lanes) = (tables.grants.len(), self.lanes().len());
        MemorySnapshot { regions: regions().count(), bytes, lends, lanes, oldest }
    }

    /// Does one operation for this client, if it may.
    ///
    /// # Errors
    /// Those of [`MemoryError`], except that nobody is gone.
    pub fn execute(
        &self,
        operation: &Operation,
        who: Option<&Identity>,
        now: Instant,
    ) -> Result<Outcome, MemoryError> {
        operation.check()?;
        let tables = self.shared();
        let granted = tables.grants.check(&operation.at, who, operation.needs(), now)?;
        tables.access(granted, &operation.action)
    }

    /// Does operations one after the other, until one fails.
    ///
    /// # Errors
    /// [`BatchError`] says which failed and why.
    pub fn execute_all(
        &self,
        operations: &[Operation],
        who: Option<&Identity>,
        now: Instant,
    ) -> Result<Vec<Outcome>, BatchError> {
        Operation::check_together(operations).map_err(|error| BatchError { at: 0, error })?;
        let execute = |(at, operation)| {
            self.execute(operation, who, now).map_err(|error| BatchError { at, error })
        };
        (0..).zip(operations).map(execute).collect()
    }

    pub(super) fn lend(
        &self,
        region: u32,
        part: Range<u64>,
        rights: Rights,
        until: Until,
        borrower: Borrower,
    ) -> Result<Remote, MemoryError> {
        let now = self.now();
        let grant = Grant { region, part, rights, borrower, until: until.moment(now) };
        let Tables { grants, keys, .. } = &mut *self.exclusive();
        grants.lend(grant, keys.next(), now)
    }

    pub(super) fn revoke_region(&self, region: u32) -> usize {
        self.end_lends(&mut self.exclusive(), region)
    }

    fn end_lends(&self, tables: &mut Tables, region: u32) -> usize {
        let ended = tables.grants.revoke_region(region);
        let mut lanes = self.lanes();
        ended.iter().for_each(|lend| lanes.revoke(*lend));
        ended.len()
    }

    /// The last handle of a region is gone.
    pub(super) fn forget_region(&self, region: u32) {
        let mut tables = self.exclusive();
        self.end_lends(&mut tables, region);
        if let Some(bytes) = tables.regions.get_mut(region as usize) {
            *bytes = None;
        }
    }

    /// The time of the thread's turn, or of the process.
    fn now(&self) -> Instant {
        CallContext::current().map_or_else(|| self.inner.clock.now(), |call| call.now())
    }

    fn lanes(&self) -> MutexGuard<'_, HostLanes> {
        self.inner.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> RwLockReadGuard<'_, Tables> {
        self.inner.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Tables> {
        self.inner.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Accesses memory as granted. The number of bytes fits the action: [`Operation::check`] has seen to that.
    fn access(&self, granted: Granted, action: &Action) -> Result<Outcome, MemoryError> {
        let Granted { region, offset, len } = granted;
        // A region's lends end before it is forgotten.
        let Some(Some(bytes)) = self.regions.get(region as usize) else {
            return Err(MemoryError::Revoked);
        };
        // It lies in the region, whose length is a usize.
        let (offset, len) = (offset as usize, len as usize);
        Ok(match action {
            Action::Read => {
                let mut read = BytesMut::new();
                bytes.append_to(offset, len, &mut read);
                Outcome::Read(read.freeze())
            }
            Action::Write(written) => {
                bytes.copy_in(offset, written);
                Outcome::Written
            }
            Action::CompareAndSwap { expected, new } => {
                Outcome::Word(bytes.compare_and_swap_u64(offset, *expected, *new))
            }
            Action::FetchAdd { add } => Outcome::Word(bytes.fetch_add_u64(offset, *add)),
        })
    }
}

impl Keys {
    /// Another key, which nobody can guess who does not know the secret.
    fn next(&mut self) -> u64 {
        self.made += 1;
        let mut mac = Hmac::<Sha256>::new(&self.secret.into());
        mac.update(&self.made.to_ne_bytes());
        let tag = mac.finalize().into_bytes();
        let mut key = [0; 8];
        key.copy_from_slice(&tag[..8]);
        u64::from_ne_bytes(key)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("life", &self.inner.life).finish_non_exhaustive()
    }
}
