//! The client of lent memory for a thread that polls.

mod batch;
mod elsewhere;
mod outcomes;
mod pending;

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use farcall_core::time::Instant;
use farcall_transports::remote_memory::{
    Action, BatchError, BatchId, Batches, ClientLane, LaneEnd, MemoryError, Operation, Remote,
    Submitted, Taking,
};
use farcall_verbs::process_word;

use self::elsewhere::{Elsewhere, Opening};
use self::pending::DroppedBatches;
use super::client::Capabilities;
use super::lane::LaneCaps;
use super::operation::gone;
use super::service::{LentMemoryClient, LentMemoryPollClient};
use crate::{
    Bytes, Connection, PollClient, PollConnecting, Progress, ServiceClient, ServiceDescription,
    Site,
};

pub use self::batch::PollBatch;
pub use self::outcomes::Outcomes;
pub use self::pending::PendingBatch;

/// Polls between two readings of the clock, and between two looks at the connection while all operations are one-sided.
const POLLS_PER_CLOCK: u32 = 32;

/// So many polls of an operation that is waited for follow each other at once; after each further one, the thread yields its core.
const SPINS: u32 = 1024;

/// The memory that the server of a connection lends, for a thread that owns the connection and polls it: the lowest latency, and no memory is
/// allocated for [one-sided](Self::one_sided) operations.
///
/// [`read`](Self::read), [`write`](Self::write), [`compare_and_swap`](Self::compare_and_swap) and [`fetch_add`](Self::fetch_add) do one operation,
/// and poll until it has ended. To have more under way: [`start_read`](Self::start_read) some, or a [`batch`](Self::batch);
/// [`poll`](Self::poll); and [`take`](Self::take) what those have come to that have ended.
///
/// ```
/// # use farcall::{PollClient, Server};
/// # use farcall::memory::{Memory, MemoryServer, PollMemory, Rights, Until};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let address = format!("shm://memory-poll-doc-{}", std::process::id());
/// # let memory = Memory::new()?;
/// # let region = memory.region(4096)?;
/// # region.write(64, b"a row");
/// # let server = Server::builder().service(MemoryServer::new(memory)).listen(&address)?;
/// # let lent = region.lend(.., Rights::all(), Until::REVOKED)?;
/// let mut memory = PollMemory::connect(&address).wait()?.one_sided();
/// let (row, count) = (lent.slice(64..69)?, lent.word(0)?);
/// let mut bytes = [0; 5];
/// memory.read(&row, &mut bytes)?;
/// assert_eq!(&bytes, b"a row");
///
/// let mut reading = memory.batch().fetch_add(&count, 1).fence().read(&row).start()?;
/// loop {
///     memory.poll();
///     if let Some(outcomes) = memory.take(&mut reading) {
///         let outcomes = outcomes?;
///         assert_eq!((outcomes.word(0), outcomes.bytes(1)), (Some(0), &b"a row"[..]));
///         break;
///     }
/// }
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub struct PollMemory {
    local: Local,
    calls: LentMemoryPollClient,
    site: Site,
    /// Of the batches that are not on the lane, by their index.
    elsewhere: Vec<Option<Box<Elsewhere>>>,
    /// How many of these have a call that has not ended.
    calling: usize,
    timeout: Duration,
    /// Batches whose deadline counts from the next poll.
    unstamped: Vec<BatchId>,
    /// The batch whose outcomes the caller may be looking at.
    taken: Option<BatchId>,
    dropped: Arc<DroppedBatches>,
    now: Instant,
    polls: u32,
    /// How many of the devices at the site the owner has refused.
    refused: usize,
}

/// A lane, and the operations on it.
struct Local {
    /// First: its queue pair has buffers of the batches.
    lane: Lane,
    batches: Batches,
    /// A forked child has no lane, and must not touch its parent's.
    process: u64,
}

impl Local {
    #[inline]
    fn is_here(&self) -> bool {
        self.process == process_word().load(Ordering::Relaxed)
    }

    /// A forked child leaves its parent's lane as it is.
    #[cold]
    fn leave_to_parent(&mut self) {
        mem::forget(mem::replace(&mut self.lane, Lane::Unavailable));
        mem::forget(mem::take(&mut self.batches));
        self.process = process_word().load(Ordering::Relaxed);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if !self.is_here() {
            self.leave_to_parent();
        }
    }
}

enum Lane {
    Unwanted,
    Closed,
    Opening(Box<Opening>),
    Open(Box<ClientLane>),
    Unavailable,
}

impl PollMemory {
    /// Connects to a server that lends memory: [`wait`](PollConnecting::wait) does it.
    pub fn connect(address: impl crate::ToAddress) -> PollConnecting<PollMemory> {
        crate::connect::connect_poll(address)
    }

    /// Does operations one-sided from now on, where that is possible: see [`RemoteMemory::one_sided`](super::RemoteMemory::one_sided). The
    /// queue pair is opened while the first operations travel as calls.
    pub fn one_sided(mut self) -> PollMemory {
        if let Lane::Unwanted = self.local.lane {
            self.local.lane = Lane::Closed;
        }
        self
    }

    /// How operations travel at present, and what is possible.
    pub fn caps(&self) -> Capabilities {
        Capabilities::of(match &self.local.lane {
            Lane::Open(lane) if self.local.is_here() => Some(LaneCaps::of(lane)),
            _ => None,
        })
    }

    /// Sets the timeout of later operations, counted from the poll that follows their start. Default 10 s.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.calls.connection().set_timeout(timeout);
    }

    /// Reads all of it into these bytes, which are as many. If it is written at the same time, the bytes may be a mixture of old and new.
    ///
    /// # Errors
    /// [`MemoryError`]; [`OutOfRange`](MemoryError::OutOfRange) if there are more or fewer bytes, too.
    #[inline]
    pub fn read(&mut self, at: &Remote, into: &mut [u8]) -> Result<(), MemoryError> {
        let (len, of) = (into.len() as u64, at.len());
        if len != of {
            return Err(MemoryError::OutOfRange { offset: 0, len, of });
        }
        let mut reading = self.start_read(at)?;
        let read = self.wait_for(&mut reading)?;
        match read.bytes(0) {
            bytes if bytes.len() == into.len() => into.copy_from_slice(bytes),
            _ => return Err(gone(false, "the server answered with another number of bytes")),
        }
        Ok(())
    }

    /// Writes these bytes, as many as the memory has. They are all there when it has ended, and land in no certain order.
    ///
    /// # Errors
    /// [`MemoryError`].
    #[inline]
    pub fn write(&mut self, at: &Remote, bytes: &[u8]) -> Result<(), MemoryError> {
        let mut writing = self.start_write(at, bytes)?;
        self.wait_for(&mut writing)?;
        Ok(())
    }

    /// Replaces the [word](Remote::word) by `new` if it equals `expected`, and gives what it was: see
    /// [`RemoteMemory::compare_and_swap`](super::RemoteMemory::compare_and_swap).
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn compare_and_swap(
        &mut self,
        at: &Remote,
        expected: u64,
        new: u64,
    ) -> Result<u64, MemoryError> {
        let mut swapping = self.start_compare_and_swap(at, expected, new)?;
        self.word(&mut swapping)
    }

    /// Adds to the [word](Remote::word), wrapping, and gives what it was: see [`RemoteMemory::fetch_add`](super::RemoteMemory::fetch_add).
    ///
    /// # Errors
    /// [`MemoryError`]. If it [may have landed](MemoryError::may_have_landed), it must not be repeated blindly.
    pub fn fetch_add(&mut self, at: &Remote, add: u64) -> Result<u64, MemoryError> {
        let mut adding = self.start_fetch_add(at, add)?;
        self.word(&mut adding)
    }

    fn word(&mut self, atomic: &mut PendingBatch) -> Result<u64, MemoryError> {
        let outcomes = self.wait_for(atomic)?;
        outcomes.word(0).ok_or_else(|| gone(true, "the server answered another operation"))
    }

    /// Starts a read, and leaves it under way: [`take`](Self::take) gives the [bytes](Outcomes::bytes).
    ///
    /// # Errors
    /// [`MemoryError`]: it was not started.
    #[inline]
    pub fn start_read(&mut self, at: &Remote) -> Result<PendingBatch, MemoryError> {
        self.start_one(Operation { at: *at, action: Action::Read })
    }

    /// Starts a write of these bytes, as many as the memory has. They are copied.
    ///
    /// # Errors
    /// [`MemoryError`]: it was not started.
    #[inline]
    pub fn start_write(&mut self, at: &Remote, bytes: &[u8]) -> Result<PendingBatch, MemoryError> {
        check_write(at, bytes)?;
        let id = self.begin();
        self.local.batches.push_write(id, at, bytes);
        self.submit(id).map_err(|error| error.error)
    }

    /// Starts a compare-and-swap: [`take`](Self::take) gives the [word](Outcomes::word) as it was.
    ///
    /// # Errors
    /// [`MemoryError`]: it was not started.
    pub fn start_compare_and_swap(
        &mut self,
        at: &Remote,
        expected: u64,
        new: u64,
    ) -> Result<PendingBatch, MemoryError> {
        self.start_one(Operation { at: *at, action: Action::CompareAndSwap { expected, new } })
    }

    /// Starts a fetch-and-add: [`take`](Self::take) gives the [word](Outcomes::word) as it was.
    ///
    /// # Errors
    /// [`MemoryError`]: it was not started.
    pub fn start_fetch_add(&mut self, at: &Remote, add: u64) -> Result<PendingBatch, MemoryError> {
        self.start_one(Operation { at: *at, action: Action::FetchAdd { add } })
    }

    #[inline]
    fn start_one(&mut self, operation: Operation) -> Result<PendingBatch, MemoryError> {
        operation.check()?;
        let id = self.begin();
        self.local.batches.push(id, operation);
        self.submit(id).map_err(|error| error.error)
    }

    /// Several operations that travel together, and are done in their order until one fails: [`start`](PollBatch::start) sends them.
    pub fn batch(&mut self) -> PollBatch<'_> {
        PollBatch::new(self)
    }

    /// Takes what has completed, and ends what has taken too long, once, without waiting.
    #[inline]
    pub fn poll(&mut self) -> Progress {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) || self.uses_connection() {
            self.now = self.site.now();
            return self.turn(self.now);
        }
        self.poll_lane()
    }

    /// [`poll`](Self::poll) at `now` on the site's clock, for a driver that has read it: a simulator.
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.now = now;
        let progress = self.poll_lane();
        let progress = progress.and(self.calls.connection().turn(now));
        if let Lane::Opening(_) = self.local.lane {
            self.end_opening();
        }
        progress
    }

    fn uses_connection(&self) -> bool {
        self.calling > 0 || matches!(self.local.lane, Lane::Opening(_))
    }

    #[inline]
    fn poll_lane(&mut self) -> Progress {
        if !self.local.is_here() {
            self.leave_to_parent();
        }
        if self.dropped.is_some() {
            self.release_dropped();
        }
        let Lane::Open(lane) = &mut self.local.lane else { return Progress::IDLE };
        let mut woken: Vec<Waker> = Vec::new();
        let progress = lane.poll(&mut self.local.batches, self.now, &mut woken);
        if lane.is_over() {
            self.local.lane = Lane::Closed;
        } else if !self.unstamped.is_empty() {
            self.stamp();
        }
        progress
    }

    /// What was started since the last poll gets its deadline, unless it has ended.
    #[inline]
    fn stamp(&mut self) {
        if let Lane::Open(lane) = &mut self.local.lane
            && lane.is_busy()
        {
            self.now = self.site.now();
            let deadline = self.now + self.timeout;
            for id in &self.unstamped {
                lane.set_deadline(&mut self.local.batches, *id, deadline);
            }
        }
        self.unstamped.clear();
    }

    /// What a batch has come to, once it has ended; `None` before that, and after it was taken. The outcomes are where the device has put
    /// them, until something else is done with the client.
    ///
    /// # Errors
    /// [`BatchError`]: the first operation that failed, and why.
    #[inline]
    pub fn take(&mut self, pending: &mut PendingBatch) -> Option<Result<Outcomes<'_>, BatchError>> {
        self.release_taken();
        if !self.has_ended(pending) {
            return None;
        }
        let id = pending.end();
        self.taken = Some(id);
        let called = match self.elsewhere.get_mut(id.index()) {
            Some(Some(elsewhere)) => match &mut **elsewhere {
                Elsewhere::Ended(Ok(outcomes)) => &outcomes[..],
                Elsewhere::Ended(Err(error)) => return Some(Err(error.clone())),
                _ => &[],
            },
            _ => &[],
        };
        Some(Ok(Outcomes::new(&self.local.batches, id, called)))
    }

    /// Gives a batch up. What was not posted is not done. Dropping its token does the same, with the next poll.
    pub fn cancel(&mut self, mut pending: PendingBatch) {
        if pending.is_of(&self.dropped) {
            let id = pending.end();
            self.release(id);
        }
    }

    /// Polls until a batch has ended. `Err` if it was taken before.
    #[inline]
    fn wait_for(&mut self, pending: &mut PendingBatch) -> Result<Outcomes<'_>, MemoryError> {
        let mut polls = 0;
        loop {
            self.poll();
            if self.has_ended(pending) {
                break;
            }
            polls += 1;
            if polls > SPINS {
                thread::yield_now();
            }
        }
        match self.take(pending) {
            Some(ended) => ended.map_err(|error| error.error),
            None => Err(gone(true, "the operation is another client's")),
        }
    }

    /// Whether a batch of this client has ended, so that its outcomes can be taken.
    #[inline]
    fn has_ended(&mut self, pending: &PendingBatch) -> bool {
        if !pending.is_of(&self.dropped) {
            return false;
        }
        let id = pending.id();
        if let Some(Some(_)) = self.elsewhere.get(id.index()) {
            return self.has_ended_elsewhere(id);
        }
        match self.local.batches.end_of(id, None) {
            Some(LaneEnd::Done) => true,
            None => false,
            Some(end) => self.go_on_after_lane(id, end),
        }
    }

    /// A batch without operations.
    #[inline]
    fn begin(&mut self) -> BatchId {
        if !self.local.is_here() {
            self.leave_to_parent();
        }
        self.release_taken();
        self.local.batches.begin(Taking::InPlace, Instant::FAR_FUTURE)
    }

    /// Sends the operations of a batch, which were checked.
    #[inline]
    fn submit(&mut self, id: BatchId) -> Result<PendingBatch, BatchError> {
        if let Lane::Open(lane) = &mut self.local.lane {
            match lane.submit(&mut self.local.batches, id) {
                Ok(Submitted::Accepted) => {
                    self.unstamped.push(id);
                    return Ok(PendingBatch::new(id, &self.dropped));
                }
                Ok(submitted) => return self.submit_elsewhere(id, Some(submitted)),
                Err(error) => {
                    self.release(id);
                    return Err(BatchError { at: 0, error });
                }
            }
        }
        self.submit_elsewhere(id, None)
    }

    #[inline]
    fn release_taken(&mut self) {
        if let Some(id) = self.taken.take() {
            self.release(id);
        }
    }

    #[inline]
    fn release(&mut self, id: BatchId) {
        if let Some(Some(_)) = self.elsewhere.get(id.index()) {
            self.release_elsewhere(id);
        }
        self.local.batches.release(id);
    }

    #[cold]
    fn release_dropped(&mut self) {
        for id in self.dropped.take() {
            self.release(id);
        }
    }

    #[cold]
    fn leave_to_parent(&mut self) {
        self.local.leave_to_parent();
        self.elsewhere.clear();
        self.unstamped.clear();
        // Tokens of the parent's are not this client's.
        self.dropped = Arc::default();
        (self.calling, self.taken) = (0, None);
    }
}

/// Whether these bytes can be written there at all.
#[inline]
fn check_write(at: &Remote, bytes: &[u8]) -> Result<(), MemoryError> {
    Operation { at: *at, action: Action::Write(Bytes::new()) }.check_with(bytes.len() as u64)
}

impl PollClient for PollMemory {
    const DESCRIPTION: &'static ServiceDescription = LentMemoryClient::DESCRIPTION;

    fn from_connection(connection: Connection) -> Self {
        let (site, timeout) = (connection.site().clone(), connection.timeout());
        let process = process_word().load(Ordering::Relaxed);
        PollMemory {
            local: Local { lane: Lane::Unwanted, batches: Batches::default(), process },
            now: site.now(),
            calls: LentMemoryPollClient::from_connection(connection),
            site,
            elsewhere: Vec::new(),
            calling: 0,
            timeout,
            unstamped: Vec::new(),
            taken: None,
            dropped: Arc::default(),
            polls: 0,
            refused: 0,
        }
    }

    fn into_connection(self) -> Connection {
        self.calls.into_connection()
    }

    fn connection(&mut self) -> &mut Connection {
        self.calls.connection()
    }
}

impl fmt::Debug for PollMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollMemory").finish_non_exhaustive()
    }
}
