//! The client's queue pair for one-sided operations on lent memory.
//!
//! Batches are posted in their order, each with one doorbell as far as there is room; a batch behind a full queue pair waits. All operations
//! complete in the order in which they were posted. Their bytes belong to the lane until then, or until the queue pair is gone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::Armed;
use farcall_verbs::{
    Buffer, BufferPool, CompletionQueue, ConnectOptions, Device, Endpoint, QpType, QueuePair,
    QueuePairConfig, RemoteSlice, Status, Visibility, WorkCompletion, WorkRequest,
};

use super::lane::{LaneError, Window};
use super::lane_batch::{LaneBatch, LaneEnd};
use super::{Action, Counted, MemoryError, Operation, Remote, Rights};
use crate::kit::device_channel::DeviceChannel;

/// Longer operations travel as calls: so many bytes of registered memory are each client's.
pub const MAX_ONE_SIDED_BYTES: usize = 64 << 10;

/// Most operations posted at once. Those behind them wait for room.
const MAX_POSTED: usize = 128;

/// Most operations that wait for room.
const MAX_WAITING: usize = 4096;

/// Buffers of operations of up to [`SMALL_BYTES`], and of longer ones. Their pages are touched when they are first used.
const SMALL_BUFFERS: usize = MAX_POSTED;
const LARGE_BUFFERS: usize = 8;
const SMALL_BYTES: usize = 1024;

/// Lends whose windows are remembered. The owner tells those that were forgotten again.
const MAX_KNOWN_WINDOWS: usize = 256;

/// The clocks of two ends differ by less than one part in so many: those of virtual machines that are moved, by one in 100.
const DRIFT: u64 = 32;

/// How many completions one poll takes.
const POLLED_AT_ONCE: usize = 16;

/// While operations are under way they are looked for at least that often: not each device makes an event of an end that it has waited for.
const LOOK_NS: u64 = 5_000_000;

/// The owner's life, the lend's number, and its epoch.
type LendId = (u64, u32, u32);

fn lend_id(at: &Remote) -> LendId {
    (at.life, at.lend, at.epoch)
}

/// A lane: a queue pair that is connected to one of the owner's, and the windows that the owner has bound on that.
#[derive(Debug)]
pub struct ClientLane {
    /// First: it drops its buffers before their pools.
    qp: QueuePair,
    cq: CompletionQueue,
    small: BufferPool,
    large: BufferPool,
    max_inline: usize,
    visibility: Visibility,
    /// Most operations posted at once.
    depth: usize,
    /// Its number at the owner, which is a secret of the two.
    number: u64,
    /// By lend and epoch. `None`: the owner has bound none.
    windows: HashMap<LendId, Option<Known>>,
    /// In the order in which they were posted.
    posted: VecDeque<PostedOperation>,
    waiting: VecDeque<WaitingOperation>,
    /// Of operations that have completed, in their order.
    filled: VecDeque<Buffer>,
    /// No batch's deadline is before this.
    earliest: Instant,
    is_over: bool,
    /// Dropped last: it makes events for the queue.
    _channel: Arc<DeviceChannel>,
}

/// A window, and when this end stops to use it.
///
/// The owner takes the access away when the lease is over. It may be stopped then, so a client that keeps the rules asks it.
#[derive(Debug)]
struct Known {
    window: Window,
    until: Instant,
}

/// Where the bytes of a batch's operations are, in their order.
#[derive(Debug)]
pub struct Targets(Vec<RemoteSlice>);

#[derive(Debug)]
struct WaitingOperation {
    batch: Arc<LaneBatch>,
    at: usize,
    target: RemoteSlice,
}

#[derive(Debug)]
struct PostedOperation {
    batch: Arc<LaneBatch>,
    has_buffer: bool,
}

impl ClientLane {
    /// A lane on this device that is not connected yet, for callers whose thread has this site.
    ///
    /// # Errors
    /// The device cannot carry one, or has no memory for it.
    pub fn prepare(device: &Device, site: &Site) -> Result<ClientLane, LaneError> {
        let caps = device.caps();
        let depth = MAX_POSTED.min(caps.max_send_wr).min(caps.max_cqe);
        let channel = DeviceChannel::at(site, device)?;
        let domain = device.alloc_pd()?;
        let cq = device.create_cq(depth + 1, Some(channel.channel()))?;
        let config = QueuePairConfig::new(QpType::Rc, cq.handle(), cq.handle());
        let qp = domain.create_qp(config.max_send_wr(depth).max_recv_wr(1))?;
        let pool = |count: usize, size: usize| {
            domain.alloc_private_on_demand(count * size).map(|region| region.into_pool(size))
        };
        let small = pool(SMALL_BUFFERS, SMALL_BYTES)?;
        let large = pool(LARGE_BUFFERS, MAX_ONE_SIDED_BYTES)?;
        Ok(ClientLane {
            qp,
            cq,
            small,
            large,
            max_inline: caps.max_inline.min(SMALL_BYTES),
            visibility: caps.visibility,
            depth,
            number: 0,
            windows: HashMap::new(),
            posted: VecDeque::with_capacity(depth),
            waiting: VecDeque::new(),
            filled: VecDeque::new(),
            earliest: Instant::FAR_FUTURE,
            is_over: false,
            _channel: channel,
        })
    }

    /// What the owner needs to connect.
    pub fn endpoint(&self) -> Bytes {
        Bytes::copy_from_slice(self.qp.endpoint().to_bytes())
    }

    /// Connects to what the owner has answered.
    ///
    /// # Errors
    /// The owner's queue pair cannot be reached.
    pub fn connect(&mut self, number: u64, endpoint: &[u8]) -> Result<(), LaneError> {
        self.qp.connect(&Endpoint::from_bytes(endpoint)?, &ConnectOptions::default())?;
        self.number = number;
        Ok(())
    }

    /// Its number at the owner.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Nothing more can be done on it: what was under way has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// What the end of an operation means.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// Whether the owner was asked for a window of this lend.
    pub fn knows(&self, at: &Remote) -> bool {
        self.windows.contains_key(&lend_id(at))
    }

    /// The owner, who was asked at this moment, has bound a window of this lend, or has said that it does not.
    pub fn learn(&mut self, at: &Remote, window: Option<Window>, asked: Instant) {
        if self.windows.len() == MAX_KNOWN_WINDOWS {
            self.windows.clear();
        }
        let known = window.map(|window| {
            let until = match window.left_ns {
                None => Instant::FAR_FUTURE,
                Some(left_ns) => asked.saturating_add_nanos(left_ns - left_ns / DRIFT),
            };
            Known { window, until }
        });
        self.windows.insert(lend_id(at), known);
    }

    /// Where the bytes of these operations are, if all can be done now without the owner's CPU, as far as this end knows.
    pub fn targets(&self, operations: &[Operation], now: Instant) -> Option<Targets> {
        let targets = operations.iter().map(|it| self.target(&it.at, it.needs(), now));
        targets.collect::<Option<_>>().map(Targets)
    }

    /// Takes a batch with the [targets](Self::targets) of its operations, and posts what there is room for.
    ///
    /// # Errors
    /// [`MemoryError::Full`]: so much waits that this does not find a place. Nothing was posted.
    pub fn submit(&mut self, batch: &Arc<LaneBatch>, targets: Targets) -> Result<(), MemoryError> {
        if self.waiting.len() + targets.0.len() > MAX_WAITING {
            return Err(MemoryError::Full { what: Counted::Operations });
        }
        self.earliest = self.earliest.min(batch.deadline());
        let operations = targets.0.into_iter().enumerate();
        self.waiting.extend(operations.map(|(at, target)| WaitingOperation {
            batch: Arc::clone(batch),
            at,
            target,
        }));
        self.post_waiting();
        Ok(())
    }

    /// Where the bytes are, if they and the right are within a window.
    fn target(&self, at: &Remote, needs: Rights, now: Instant) -> Option<RemoteSlice> {
        let Known { window, until } = self.windows.get(&lend_id(at))?.as_ref()?;
        let is_small = at.len as usize <= MAX_ONE_SIDED_BYTES && at.len > 0;
        let is_permitted = Rights::from_bits_truncate(window.rights).contains(needs);
        if window.key != at.key || !is_small || !is_permitted || now >= *until {
            return None;
        }
        let offset = at.offset.checked_sub(window.begin)?;
        window.memory.slice(offset, at.len).ok()
    }

    /// Posts what waits, as far as there is room, with one doorbell.
    fn post_waiting(&mut self) {
        let mut has_posted = false;
        while let Some(next) = self.waiting.front() {
            if next.batch.is_over() {
                self.waiting.pop_front();
                continue;
            }
            if self.posted.len() >= self.depth || !next.batch.may_begin(next.at) {
                break;
            }
            let (batch, at, target) = (Arc::clone(&next.batch), next.at, next.target);
            match self.post(batch.action(at), target) {
                Ok(has_buffer) => {
                    batch.note_posted();
                    self.waiting.pop_front();
                    self.posted.push_back(PostedOperation { batch, has_buffer });
                    has_posted = true;
                }
                // Completions give buffers and room back.
                Err(NotPosted::NoRoom) if !self.posted.is_empty() => break,
                Err(_) => {
                    self.is_over = true;
                    break;
                }
            }
        }
        if has_posted {
            self.qp.ring();
        }
    }

    /// Posts an operation without ringing. Returns whether it has a buffer.
    fn post(&mut self, action: &Action, target: RemoteSlice) -> Result<bool, NotPosted> {
        let len = target.len() as usize;
        if let Action::Write(bytes) = action
            && bytes.len() <= self.max_inline
        {
            let request = WorkRequest::write(&bytes[..], target).signaled(0);
            let posted = self.qp.post_unrung(request);
            return posted.map(|()| false).map_err(|_| NotPosted::Broken);
        }
        let pool = if len <= SMALL_BYTES { &self.small } else { &self.large };
        let mut buffer = pool.take().ok_or(NotPosted::NoRoom)?;
        buffer.set_len(len);
        let request = match action {
            Action::Read => WorkRequest::read(buffer, target),
            Action::Write(bytes) => {
                buffer.copy_from_slice(bytes);
                WorkRequest::write(buffer, target).unsignaled()
            }
            Action::CompareAndSwap { expected, new } => {
                WorkRequest::compare_and_swap(buffer, target, *expected, *new)
            }
            Action::FetchAdd { add } => WorkRequest::fetch_add(buffer, target, *add),
        };
        let posted = self.qp.post_unrung(request.signaled(0));
        posted.map(|()| true).map_err(|_| NotPosted::Broken)
    }

    /// Takes what has completed at `now`, and posts what waited for it. Adds what wakes callers whose batches have ended.
    pub fn poll(&mut self, now: Instant, woken: &mut Vec<Waker>) -> Progress {
        let mut progress = Progress::IDLE;
        if self.is_over {
            self.end_all(LaneEnd::Lost, woken);
            return progress;
        }
        if !self.posted.is_empty() {
            progress.worked += self.take_completions(woken);
        }
        if now >= self.earliest {
            progress.worked += self.expire(now, woken);
        }
        if !self.waiting.is_empty() {
            self.post_waiting();
        }
        if self.is_over {
            self.end_all(LaneEnd::Lost, woken);
        }
        if !self.posted.is_empty() {
            let look = now.saturating_add_nanos(LOOK_NS);
            progress.next = PollAt::At(look.min(self.earliest));
        }
        progress
    }

    fn take_completions(&mut self, woken: &mut Vec<Waker>) -> u32 {
        let mut completions: [WorkCompletion; POLLED_AT_ONCE] = Default::default();
        let mut taken = 0;
        loop {
            let count = match self.cq.poll(&mut completions) {
                Ok(0) => return taken,
                Ok(count) => count,
                Err(_) => {
                    self.is_over = true;
                    return taken + 1;
                }
            };
            taken += count as u32;
            let filled = &mut self.filled;
            self.qp.reclaim(&mut |buffer| filled.push_back(buffer));
            for completion in &completions[..count] {
                if completion.status != Status::Success {
                    self.is_over = true;
                    self.end_all(end_of(completion.status), woken);
                    return taken;
                }
                let Some(done) = self.posted.pop_front() else { return taken };
                let buffer = if done.has_buffer { self.filled.pop_front() } else { None };
                let filled = buffer.as_deref().unwrap_or_default();
                woken.extend(done.batch.note_done(filled));
            }
        }
    }

    /// Ends the batches whose deadlines have passed. What they have posted goes on.
    fn expire(&mut self, now: Instant, woken: &mut Vec<Waker>) -> u32 {
        let (mut earliest, mut ended) = (Instant::FAR_FUTURE, 0);
        let posted = self.posted.iter().map(|it| &it.batch);
        for batch in posted.chain(self.waiting.iter().map(|it| &it.batch)) {
            if batch.is_over() {
                continue;
            }
            if batch.deadline() <= now {
                let how = if batch.is_unposted() { LaneEnd::NotDone } else { LaneEnd::Late };
                woken.extend(batch.end(how));
                ended += 1;
            } else {
                earliest = earliest.min(batch.deadline());
            }
        }
        self.earliest = earliest;
        ended
    }

    /// Ends all batches: those that were posted in this way, the others have not been done.
    fn end_all(&mut self, how: LaneEnd, woken: &mut Vec<Waker>) {
        for PostedOperation { batch, .. } in self.posted.drain(..) {
            woken.extend(batch.end(how));
        }
        for WaitingOperation { batch, .. } in self.waiting.drain(..) {
            woken.extend(batch.end(LaneEnd::NotDone));
        }
    }

    /// Ends it, and all that is under way: it may have landed.
    pub fn end(&mut self, woken: &mut Vec<Waker>) {
        self.is_over = true;
        self.end_all(LaneEnd::Lost, woken);
    }

    /// Prepares for the thread to sleep: from now on, a completion makes an event at the site. To be called before the last
    /// [`poll`](Self::poll).
    pub fn arm(&mut self) -> Armed {
        if self.posted.is_empty() {
            return Armed::ByWaker;
        }
        self.cq.arm();
        Armed::AtSite
    }
}

/// Why an operation was not posted.
enum NotPosted {
    /// There is no buffer at present.
    NoRoom,
    /// The queue pair takes nothing any more.
    Broken,
}

/// What a failed operation says of itself and of those posted behind it.
fn end_of(status: Status) -> LaneEnd {
    match status {
        // The owner's device refuses it, and takes nothing behind it.
        Status::RemoteAccess | Status::RemoteInvalidRequest => LaneEnd::NotDone,
        _ => LaneEnd::Lost,
    }
}
