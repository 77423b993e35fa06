//! The owner's end: its regions, its lends, and the operations on them.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::BytesMut;
use farcall_core::CallContext;
use farcall_core::site::{Caller, Companion, Site};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::Armed;
use farcall_verbs::{Access, Device, DeviceKind, OpenError, ProtectionDomain, VerbsError};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::backing::Backing;
use super::grants::{Grant, Granted, Grants, MAX_LENDS};
use super::host_lanes::{Grip, HostLanes};
use super::lane::SHARED_MEMORY;
use super::unflushed::Unflushed;
use super::{
    Action, BatchError, Borrower, MemoryError, Operation, Outcome, Region, Remote, Revoking,
    Rights, Until, Who,
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
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) device: Device,
    pub(super) domain: ProtectionDomain,
    /// A number of this owner alone, which values that it has lent bear.
    life: u64,
    clock: Site,
    /// Operations hold it shared while they access memory: who has it exclusively knows that none is under way.
    tables: RwLock<Tables>,
    /// Locked after the tables.
    lanes: Mutex<HostLanes>,
    /// When the next lease ends, in nanoseconds.
    next_expiry: AtomicU64,
    /// Lanes that are being opened.
    pub(super) opening: AtomicUsize,
}

pub(super) struct Tables {
    pub(super) grants: Grants,
    keys: Keys,
    /// By their number.
    pub(super) regions: Vec<Option<Backing>>,
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
        Memory::on(&Device::open(SHARED_MEMORY)?)
    }

    /// Memory without regions, of the RDMA device of this name, such as `rxe0`: see [`on`](Self::on).
    ///
    /// # Errors
    /// [`AllocError`]: there is no such device, or it refuses.
    pub fn open(device: &str) -> Result<Memory, AllocError> {
        Memory::on(&Device::open(device)?)
    }

    /// Memory without regions, of this device. Clients that have a device of the same kind, on the same network or machine, can access it
    /// one-sided.
    ///
    /// # Errors
    /// [`AllocError`]: the device refuses.
    pub fn on(device: &Device) -> Result<Memory, AllocError> {
        let mut secret = [0; 64];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&device.random()?.to_ne_bytes());
        }
        let life = device.random()?;
        let (grants, keys) = (Grants::new(life, MAX_LENDS), Keys { secret, made: 0 });
        let tables = RwLock::new(Tables { grants, keys, regions: Vec::new() });
        let (domain, clock) = (device.alloc_pd()?, Site::new());
        let (device, lanes) = (device.clone(), Mutex::default());
        let next_expiry = AtomicU64::new(Instant::FAR_FUTURE.as_nanos());
        let opening = AtomicUsize::new(0);
        let inner = Inner { device, domain, life, clock, tables, lanes, next_expiry, opening };
        Ok(Memory { inner: Arc::new(inner) })
    }

    /// Allocates so many bytes, all zero, which are freed when the last clone of the region is dropped.
    ///
    /// # Errors
    /// [`AllocError`]: the device has no such memory, or there are too many regions.
    pub fn region(&self, len: usize) -> Result<Region, AllocError> {
        self.insert(Backing::Volatile(self.inner.domain.alloc_shared(len, self.windows())?))
    }

    /// Opens persistent memory of this name, as long as it was when it was first opened; new memory is all zero. It has the bytes that were
    /// durable when the server ended, or lost its power: clients make theirs so by a [`Flush`](Action::Flush), the owner by
    /// [`Region::persist`]. What clients write, swap or add by calls is durable when the call ends.
    ///
    /// # Errors
    /// [`AllocError`]: the device has no persistent memory, which so far only simulated racks have; or the name cannot be opened.
    pub fn persistent_region(&self, name: &str, len: usize) -> Result<Region, AllocError> {
        let bytes = self.inner.domain.open_persistent(name, len, self.windows())?;
        self.insert(Backing::Persistent(Arc::new(bytes)))
    }

    /// What a region must allow so that access to parts of it can be given.
    fn windows(&self) -> Access {
        match Grip::of(&self.inner.device) {
            Grip::Windows => Access::MW_BIND,
            Grip::Registrations | Grip::None => Access::empty(),
        }
    }

    fn insert(&self, bytes: Backing) -> Result<Region, AllocError> {
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
    /// A client with one-sided operations on shared memory that is stopped in the midst of one holds this up. There is a bound, of some
    /// seconds: then the log has an error, and that client may still write when it goes on. On a simulated rack, where nothing can wait, this
    /// destroys the queue pairs that have access to the lend; [`start_revoke`](Self::start_revoke) leaves them to their clients.
    pub fn revoke(&self, remote: &Remote) -> bool {
        self.start_revoke(remote).wait()
    }

    /// Begins to end the lend that this value, or a slice of it, names. No operation begins from now on that travels as a call; access has
    /// ended for certain when the result has been awaited or waited for. Dropping that does not take the revoke back.
    pub fn start_revoke(&self, remote: &Remote) -> Revoking {
        let mut tables = self.exclusive();
        let was_lent = tables.grants.revoke(remote);
        if was_lent {
            self.revoke_lanes(&[remote.lend]);
        }
        self.note_expiry(&tables);
        drop(tables);
        // Of one that has ended before, access may still be under way.
        let lends = if remote.life == self.inner.life { vec![remote.lend] } else { Vec::new() };
        Revoking::new(self.clone(), lends, usize::from(was_lent))
    }

    /// What there is, and what is lent.
    pub fn snapshot(&self) -> MemorySnapshot {
        let mut tables = self.exclusive();
        let now = self.now();
        self.expire(&mut tables, now);
        let regions = || tables.regions.iter().flatten();
        let bytes = regions().map(|region| region.shared().len() as u64).sum();
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
    /// [`MemoryError`], of any kind but [`Gone`](MemoryError::Gone).
    pub fn execute(
        &self,
        operation: &Operation,
        who: Who<'_>,
        now: Instant,
    ) -> Result<Outcome, MemoryError> {
        let mut unflushed = Unflushed::default();
        let outcome = self.execute_next(operation, who, now, &mut unflushed)?;
        unflushed.persist()?;
        Ok(outcome)
    }

    fn execute_next(
        &self,
        operation: &Operation,
        who: Who<'_>,
        now: Instant,
        unflushed: &mut Unflushed,
    ) -> Result<Outcome, MemoryError> {
        operation.check()?;
        let tables = self.shared();
        let granted = tables.grants.check(&operation.at, who, operation.needs(), now)?;
        tables.access(granted, &operation.action, unflushed)
    }

    /// Does operations one after the other, until one fails.
    ///
    /// # Errors
    /// [`BatchError`] says which failed and why.
    pub fn execute_all(
        &self,
        operations: &[Operation],
        who: Who<'_>,
        now: Instant,
    ) -> Result<Vec<Outcome>, BatchError> {
        Operation::check_together(operations).map_err(|error| BatchError { at: 0, error })?;
        let mut unflushed = Unflushed::default();
        let execute = |(at, operation)| {
            let done = self.execute_next(operation, who, now, &mut unflushed);
            done.map_err(|error| BatchError { at, error })
        };
        let outcomes = (0..).zip(operations).map(execute).collect();
        // What was done before an operation failed is done, too.
        unflushed.persist().map_err(|error| BatchError { at: 0, error })?;
        outcomes
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
        if let Borrower::Connection(_) = borrower {
            self.learn_of_ends();
        }
        let grant = Grant { region, part, rights, borrower, until: until.moment(now) };
        let mut tables = self.exclusive();
        self.expire(&mut tables, now);
        let key = tables.keys.next();
        let lent = tables.grants.lend(grant, key, now);
        self.note_expiry(&tables);
        lent
    }

    /// In a handler: the thread tells of the ends of its clients from now on.
    pub(super) fn learn_of_ends(&self) -> Option<(Site, Caller)> {
        let (site, client) = CallContext::client()?;
        let companion: Arc<dyn Companion> = self.inner.clone();
        site.attach(&companion);
        Some((site, client))
    }

    pub(super) fn start_revoke_region(&self, region: u32) -> Revoking {
        let lends = self.end_lends(&mut self.exclusive(), region);
        let count = lends.len();
        Revoking::new(self.clone(), lends, count)
    }

    fn end_lends(&self, tables: &mut Tables, region: u32) -> Vec<u32> {
        let ended = tables.grants.revoke_region(region);
        self.revoke_lanes(&ended);
        self.note_expiry(tables);
        ended
    }

    fn revoke_lanes(&self, lends: &[u32]) {
        self.inner.revoke_lanes(lends);
    }

    /// Ends the lends whose leases are over.
    fn expire(&self, tables: &mut Tables, now: Instant) {
        let ended = tables.grants.expire(now);
        self.revoke_lanes(&ended);
        self.note_expiry(tables);
    }

    fn note_expiry(&self, tables: &Tables) {
        let next = tables.grants.next_expiry().as_nanos();
        self.inner.next_expiry.store(next, Ordering::Relaxed);
    }

    /// The last handle of a region is gone. Windows that still give access to its bytes keep them until they are invalidated.
    pub(super) fn forget_region(&self, region: u32) {
        let mut tables = self.exclusive();
        self.end_lends(&mut tables, region);
        if let Some(bytes) = tables.regions.get_mut(region as usize) {
            *bytes = None;
        }
    }

    /// A secret number, for a lane.
    pub(super) fn next_number(&self) -> u64 {
        self.exclusive().keys.next()
    }

    pub(super) fn is_shared_memory(&self) -> bool {
        self.inner.device.kind() == DeviceKind::SharedMemory
    }

    /// Whether nothing can wait for the device here: time is virtual.
    pub(super) fn is_simulated(&self) -> bool {
        self.inner.device.kind() == DeviceKind::Simulated
    }

    /// Does this with the lanes, and wakes who is to look again.
    pub(super) fn with_lanes<R>(&self, work: impl FnOnce(&mut HostLanes) -> R) -> R {
        self.inner.with_lanes(work)
    }

    /// The time of the thread's turn, or of the process.
    fn now(&self) -> Instant {
        CallContext::current().map_or_else(|| self.inner.clock.now(), |call| call.now())
    }

    /// For work under the tables' lock, after which somebody is to call [`with_lanes`](Self::with_lanes).
    pub(super) fn lanes(&self) -> MutexGuard<'_, HostLanes> {
        self.inner.lanes()
    }

    pub(super) fn shared(&self) -> RwLockReadGuard<'_, Tables> {
        self.inner.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Tables> {
        self.inner.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn lanes(&self) -> MutexGuard<'_, HostLanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the access to lends away that clients have by lanes. Under the tables' lock.
    fn revoke_lanes(&self, lends: &[u32]) {
        let mut lanes = self.lanes();
        lends.iter().for_each(|lend| lanes.revoke(*lend));
        let roused = lanes.take_roused();
        drop(lanes);
        roused.iter().for_each(Site::rouse);
    }

    /// Lends to these connections end with them.
    fn end_of_connections(&self, is_gone: impl Fn(&Caller) -> bool) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let ended = tables.grants.revoke_connections(&is_gone);
        self.revoke_lanes(&ended);
        let next = tables.grants.next_expiry().as_nanos();
        self.next_expiry.store(next, Ordering::Relaxed);
        drop(tables);
        self.with_lanes(|lanes| lanes.close_of(is_gone));
    }

    fn with_lanes<R>(&self, work: impl FnOnce(&mut HostLanes) -> R) -> R {
        let mut lanes = self.lanes();
        let result = work(&mut lanes);
        let (woken, roused) = (lanes.take_woken(), lanes.take_roused());
        drop(lanes);
        woken.into_iter().for_each(Waker::wake);
        roused.iter().for_each(Site::rouse);
        result
    }
}

/// The owner's share of the turns of a server thread: leases end, and completions of lanes are taken.
impl Companion for Inner {
    fn turn(&self, now: Instant) -> Progress {
        let mut progress = Progress::IDLE;
        if now.as_nanos() >= self.next_expiry.load(Ordering::Relaxed) {
            let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
            let ended = tables.grants.expire(now);
            let next = tables.grants.next_expiry().as_nanos();
            self.next_expiry.store(next, Ordering::Relaxed);
            self.revoke_lanes(&ended);
            progress.worked += ended.len() as u32;
        }
        let (worked, is_busy) = self.with_lanes(|lanes| (lanes.poll(), lanes.is_busy()));
        progress.worked += worked;
        progress.next = match self.next_expiry.load(Ordering::Relaxed) {
            // The device of shared memory makes no event when a client leaves its access.
            _ if is_busy && self.device.kind() == DeviceKind::SharedMemory => PollAt::Now,
            next if next == Instant::FAR_FUTURE.as_nanos() => PollAt::OnEvent,
            next => PollAt::At(Instant::from_nanos(next)),
        };
        progress
    }

    fn arm(&self) -> Armed {
        let found = self.with_lanes(|lanes| {
            lanes.arm();
            (lanes.poll() > 0, lanes.is_busy())
        });
        match found {
            (true, _) => Armed::No,
            (false, true) => Armed::AtSite,
            (false, false) => Armed::ByWaker,
        }
    }

    fn client_left(&self, client: &Caller) {
        self.end_of_connections(|of| of == client);
    }

    fn thread_ended(&self, site: &Site) {
        self.end_of_connections(|of| of.is_at(site));
    }
}

impl Tables {
    /// Accesses memory as granted. The number of bytes fits the action: [`Operation::check`] has seen to that.
    fn access(
        &self,
        granted: Granted,
        action: &Action,
        unflushed: &mut Unflushed,
    ) -> Result<Outcome, MemoryError> {
        let Granted { region, offset, len } = granted;
        // A region's lends end before it is forgotten.
        let Some(Some(bytes)) = self.regions.get(region as usize) else {
            return Err(MemoryError::Revoked);
        };
        // It lies in the region, whose length is a usize.
        let (offset, len) = (offset as usize, len as usize);
        let outcome = match action {
            Action::Read => {
                let mut read = BytesMut::new();
                bytes.shared().append_to(offset, len, &mut read);
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
            Action::Flush => {
                bytes.persist(offset..offset + len)?;
                Outcome::Flushed
            }
        };
        if bytes.is_persistent() {
            match action {
                Action::Read => {}
                Action::Flush => unflushed.forget(region, offset..offset + len),
                _ => unflushed.add(region, bytes, offset..offset + len),
            }
        }
        Ok(outcome)
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
