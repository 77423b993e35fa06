//! The client's queue pair for one-sided operations on lent memory.
//!
//! Batches are posted in their order, each with one doorbell as far as there is room; a batch behind a full queue pair waits. All operations
//! complete in the order in which they were posted, so only the last of those posted together is signaled; one that fails has its number in its
//! completion. Their bytes belong to the lane until then, or until the queue pair is gone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::Armed;
use farcall_verbs::{
    Buffer, CompletionQueue, ConnectOptions, Device, Endpoint, Operation as VerbsOperation, QpType,
    QueuePair, QueuePairConfig, RemoteSlice, Status, Visibility, WorkCompletion,
};

use super::batches::{Batches, Record};
use super::lane::{LaneError, Window};
use super::local_memory::{LocalMemory, SMALL_BYTES};
use super::planted;
use super::step::{Step, StepMemory, Work};
use super::{BatchId, Counted, LaneEnd, MAX_OPERATION_BYTES, MemoryError, Remote, Rights};
use crate::kit::device_channel::DeviceChannel;

/// Most operations posted at once. Those behind them wait for room.
const MAX_POSTED: usize = 128;

/// Most operations that wait for room.
const MAX_WAITING: usize = 4096;

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
    max_inline: usize,
    max_message: u64,
    visibility: Visibility,
    atomics: Atomics,
    /// The device carries flushes.
    flushes: bool,
    /// Most operations posted at once.
    depth: usize,
    /// Its number at the owner, which is a secret of the two.
    number: u64,
    /// By lend and epoch. `None`: the owner has bound none.
    windows: HashMap<LendId, Option<Known>>,
    /// The window that was used last.
    recent: Option<(LendId, Known)>,
    /// Operations that were posted together, in their order. They are posted until the completion of the last.
    runs: VecDeque<Run>,
    /// How many operations these are.
    posted: usize,
    /// The number of the next operation.
    next: u64,
    /// Batches of which operations wait for room, or for a fence.
    waiting: VecDeque<u32>,
    /// How many operations of these were not posted when they were queued.
    queued: usize,
    /// What the queue pair has given back, in the order of its operations.
    filled: VecDeque<Buffer>,
    completions: Box<[WorkCompletion; POLLED_AT_ONCE]>,
    /// Of batches that have ended since the last poll.
    ended: Vec<Waker>,
    /// No batch's deadline is before this.
    earliest: Instant,
    is_over: bool,
    site: Site,
    /// Dropped last: it makes events for the queue.
    _channel: Arc<DeviceChannel>,
}

/// Whether atomic operations are done one-sided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// They are.
    OneSided,
    /// The device's atomic operations are not atomic with those of a CPU, so they travel as calls, and the owner's CPU does all of them.
    Calls,
}

/// A window, and when this end stops to use it.
///
/// The owner takes the access away when the lease is over. It may be stopped then, so a client that keeps the rules asks it.
#[derive(Clone, Debug)]
struct Known {
    window: Window,
    until: Instant,
}

/// Operations of one batch that were posted together.
#[derive(Debug)]
struct Run {
    batch: u32,
    count: u32,
    /// The number of the last one.
    last: u64,
}

/// What a lane has made of a batch.
#[derive(Debug)]
pub enum Submitted {
    /// It is under way, or waits for room.
    Accepted,
    /// It must travel as a call. The owner was not asked for a window of this lend.
    Unknown(Remote),
    /// It must travel as a call.
    Refused,
}

impl ClientLane {
    /// A lane on this device that is not connected yet, for callers whose thread has this site, and who have these batches.
    ///
    /// # Errors
    /// The device cannot carry one, or has no memory for it.
    pub fn prepare(
        device: &Device,
        site: &Site,
        batches: &mut Batches,
    ) -> Result<ClientLane, LaneError> {
        let caps = device.caps();
        let depth = MAX_POSTED.min(caps.max_send_wr).min(caps.max_cqe);
        let channel = DeviceChannel::at(site, device)?;
        let domain = batches.memory_on(device)?.domain();
        let cq = device.create_cq(depth + 1, Some(channel.channel()))?;
        let config = QueuePairConfig::new(QpType::Rc, cq.handle(), cq.handle());
        let qp = domain.create_qp(config.max_send_wr(depth).max_recv_wr(1))?;
        Ok(ClientLane {
            qp,
            cq,
            max_inline: caps.max_inline.min(SMALL_BYTES),
            max_message: caps.max_message.min(MAX_OPERATION_BYTES),
            visibility: caps.visibility,
            atomics: if caps.atomics_include_cpu { Atomics::OneSided } else { Atomics::Calls },
            flushes: caps.supports(QpType::Rc, VerbsOperation::Flush),
            depth,
            number: 0,
            windows: HashMap::new(),
            recent: None,
            runs: VecDeque::with_capacity(depth),
            posted: 0,
            next: 1,
            waiting: VecDeque::new(),
            queued: 0,
            filled: VecDeque::new(),
            completions: Box::default(),
            ended: Vec::new(),
            earliest: Instant::FAR_FUTURE,
            is_over: false,
            site: site.clone(),
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

    /// Whether operations are under way, or wait.
    pub fn is_busy(&self) -> bool {
        self.posted > 0 || !self.waiting.is_empty()
    }

    /// What the end of an operation means.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// How atomic operations travel.
    pub fn atomics(&self) -> Atomics {
        self.atomics
    }

    /// Whether flushes are done by the devices. Otherwise they travel as calls.
    pub fn flushes(&self) -> bool {
        self.flushes
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
        self.recent = None;
        self.windows.insert(lend_id(at), known);
    }

    /// Takes a batch of operations, if all can be done without the owner's CPU, as far as this end knows, and posts what there is room for.
    ///
    /// # Errors
    /// [`MemoryError::Full`]: so much waits that this does not find a place. Nothing was posted.
    #[inline]
    pub fn submit(&mut self, batches: &mut Batches, id: BatchId) -> Result<Submitted, MemoryError> {
        let record = batches.record_mut(id);
        if !self.flushes && record.steps.iter().any(Step::is_flush) {
            return Ok(Submitted::Refused);
        }
        let mut unknown = None;
        for step in &mut record.steps {
            match self.target(&step.at, step.needs()) {
                Some(target) => step.target = target,
                None if self.windows.contains_key(&lend_id(&step.at)) => {
                    return Ok(unknown.map_or(Submitted::Refused, Submitted::Unknown));
                }
                None => unknown = unknown.or(Some(step.at)),
            }
        }
        if let Some(lend) = unknown {
            return Ok(Submitted::Unknown(lend));
        }
        let count = record.steps.len();
        if count == 0 {
            return Ok(Submitted::Refused);
        }
        if self.queued + count > MAX_WAITING {
            return Err(MemoryError::Full { what: Counted::Operations });
        }
        self.earliest = self.earliest.min(record.deadline);
        record.is_queued = true;
        self.queued += count;
        self.waiting.push_back(id.index() as u32);
        self.post_waiting(batches);
        Ok(Submitted::Accepted)
    }

    /// The batch has this deadline, as it now turns out.
    pub fn set_deadline(&mut self, batches: &mut Batches, id: BatchId, deadline: Instant) {
        batches.record_mut(id).deadline = deadline;
        self.earliest = self.earliest.min(deadline);
    }

    /// Where the bytes are, if they and the right are within a window.
    #[inline]
    fn target(&mut self, at: &Remote, needs: Rights) -> Option<RemoteSlice> {
        let id = lend_id(at);
        let is_recent = self.recent.as_ref().is_some_and(|(recent, _)| *recent == id);
        if !is_recent {
            self.recent = self.windows.get(&id)?.clone().map(|known| (id, known));
        }
        let (_, Known { window, until }) = self.recent.as_ref()?;
        let is_possible = at.len > 0 && at.len <= self.max_message;
        let is_permitted = Rights::from_bits_truncate(window.rights).contains(needs);
        let is_alive = || *until == Instant::FAR_FUTURE || self.site.now() < *until;
        if window.key != at.key || !is_possible || !is_permitted || !is_alive() {
            return None;
        }
        let offset = at.offset.checked_sub(window.begin)?;
        window.memory.slice(offset, at.len).ok()
    }

    /// Posts what waits, as far as there is room, with one doorbell.
    #[inline]
    fn post_waiting(&mut self, batches: &mut Batches) {
        let mut has_posted = false;
        while let Some(index) = self.waiting.front().copied() {
            let (record, memory) = batches.parts(index);
            if record.is_over() {
                self.end_waiting(batches);
                continue;
            }
            let most = self.depth - self.posted;
            let until = record.may_post_until().min(record.posted + most);
            let posted = match memory {
                Some(memory) if record.posted < until => {
                    self.post_run(index, record, memory, until)
                }
                _ => break,
            };
            match posted {
                Ok(()) => has_posted = true,
                // Completions give memory and room back.
                Err(NotPosted::NoRoom) if self.posted > 0 => break,
                // The program has all memory. A call needs none.
                Err(NotPosted::NoRoom) => {
                    self.ended.extend(record.end(LaneEnd::NotDone));
                }
                Err(NotPosted::Broken) => {
                    self.is_over = true;
                    break;
                }
            }
            if record.posted == record.steps.len() {
                self.end_waiting(batches);
            }
        }
        if has_posted {
            self.qp.ring();
        }
    }

    /// The first batch that waits does not wait any more.
    #[inline]
    fn end_waiting(&mut self, batches: &mut Batches) {
        let Some(index) = self.waiting.pop_front() else { return };
        let (record, _) = batches.parts(index);
        record.is_queued = false;
        self.queued -= record.steps.len();
        batches.free_if_unused(index);
    }

    /// Posts the operations of a batch up to this index, or up to the first for which there is no memory, without ringing.
    #[inline]
    fn post_run(
        &mut self,
        index: u32,
        record: &mut Record,
        memory: &mut LocalMemory,
        until: usize,
    ) -> Result<(), NotPosted> {
        let from = record.posted;
        let mut steps = record.steps[from..until].iter_mut();
        let lacking = steps.position(|step| !self.has_memory(step, memory));
        let count = lacking.unwrap_or(until - from);
        if count == 0 {
            return Err(NotPosted::NoRoom);
        }
        let last = self.next + count as u64 - 1;
        let (steps, kept) = record.steps_and_kept();
        let steps = steps[from..from + count].iter_mut();
        for (number, step) in (self.next..).zip(steps) {
            let request = step.request(kept);
            let request = match number == last {
                true => request.signaled(number),
                false => request.failing_as(number),
            };
            if self.qp.post_unrung(request).is_err() {
                self.note_posted(index, record, (number - self.next) as usize);
                return Err(NotPosted::Broken);
            }
        }
        self.note_posted(index, record, count);
        Ok(())
    }

    /// So many operations of a batch were posted.
    #[inline]
    fn note_posted(&mut self, index: u32, record: &mut Record, count: usize) {
        if count == 0 {
            return;
        }
        self.next += count as u64;
        self.posted += count;
        record.posted += count;
        record.under_way += count;
        self.runs.push_back(Run { batch: index, count: count as u32, last: self.next - 1 });
    }

    /// Gets the memory that the step needs. `false`: there is none at present.
    #[inline]
    fn has_memory(&self, step: &mut Step, memory: &mut LocalMemory) -> bool {
        let bytes: Option<&[u8]> = match &step.work {
            _ if matches!(step.memory, StepMemory::Here(_)) => return true,
            Work::Flush => return true,
            Work::Write(bytes) if bytes.len() <= self.max_inline => return true,
            Work::WriteKept(_) if step.at.len as usize <= self.max_inline => return true,
            Work::Write(bytes) => Some(bytes),
            // Its bytes are copied when it is posted.
            _ => None,
        };
        let Some(mut taken) = memory.take(step.at.len as usize) else { return false };
        if let Some(bytes) = bytes {
            taken.bytes.copy_in(0, bytes);
        }
        step.memory = StepMemory::Here(taken);
        true
    }

    /// Takes what has completed at `now`, and posts what waited for it. Adds what wakes callers whose batches have ended.
    #[inline]
    pub fn poll(
        &mut self,
        batches: &mut Batches,
        now: Instant,
        woken: &mut Vec<Waker>,
    ) -> Progress {
        let mut progress = Progress::IDLE;
        if self.is_over {
            self.end_all(batches, LaneEnd::Lost, woken);
            return progress;
        }
        if self.posted > 0 {
            progress.worked += self.take_completions(batches, woken);
        }
        if now >= self.earliest {
            progress.worked += self.expire(batches, now, woken);
        }
        if !self.waiting.is_empty() {
            self.post_waiting(batches);
            if self.is_over {
                self.end_all(batches, LaneEnd::Lost, woken);
            }
        }
        woken.append(&mut self.ended);
        if self.posted > 0 {
            let look = now.saturating_add_nanos(LOOK_NS);
            progress.next = PollAt::At(look.min(self.earliest));
        }
        progress
    }

    #[inline]
    fn take_completions(&mut self, batches: &mut Batches, woken: &mut Vec<Waker>) -> u32 {
        let mut taken = 0;
        loop {
            let count = match self.cq.poll(&mut self.completions[..]) {
                Ok(0) => return taken,
                Ok(count) => count,
                Err(_) => {
                    self.is_over = true;
                    self.end_all(batches, LaneEnd::Lost, woken);
                    return taken + 1;
                }
            };
            taken += count as u32;
            let filled = &mut self.filled;
            self.qp.reclaim(&mut |buffer| filled.push_back(buffer));
            for at in 0..count {
                let (id, status) = (self.completions[at].id, self.completions[at].status);
                if status != Status::Success {
                    self.fail(batches, id, status, woken);
                    return taken;
                }
                self.complete_until(batches, id, woken);
            }
            if count < POLLED_AT_ONCE {
                return taken;
            }
        }
    }

    /// The operations up to this number have been done.
    #[inline]
    fn complete_until(&mut self, batches: &mut Batches, number: u64, woken: &mut Vec<Waker>) {
        while let Some(run) = self.runs.front_mut() {
            let first = run.last + 1 - u64::from(run.count);
            if number < first {
                return;
            }
            let count = (number.min(run.last) + 1 - first) as u32;
            run.count -= count;
            let (index, is_whole) = (run.batch, run.count == 0);
            if is_whole {
                self.runs.pop_front();
            }
            self.complete(batches, index, count as usize, woken);
            if !is_whole {
                return;
            }
        }
    }

    /// So many further operations of a batch have been done.
    #[inline]
    fn complete(
        &mut self,
        batches: &mut Batches,
        index: u32,
        count: usize,
        woken: &mut Vec<Waker>,
    ) {
        self.posted -= count;
        let (record, mut memory) = batches.parts(index);
        record.under_way -= count;
        let done = record.done;
        if !planted::leaves_buffer_to_next(record) {
            for step in &mut record.steps[done..done + count] {
                step.take_back(&mut self.filled);
            }
        }
        woken.extend(record.note_done(count, &mut memory));
        batches.free_if_unused(index);
    }

    /// The operation of this number has failed, and those behind it with it.
    #[cold]
    fn fail(&mut self, batches: &mut Batches, number: u64, status: Status, woken: &mut Vec<Waker>) {
        self.is_over = true;
        if let Some(before) = number.checked_sub(1) {
            self.complete_until(batches, before, woken);
        }
        self.end_all(batches, end_of(status), woken);
    }

    /// Ends the batches whose deadlines have passed. What they have posted goes on.
    #[cold]
    fn expire(&mut self, batches: &mut Batches, now: Instant, woken: &mut Vec<Waker>) -> u32 {
        let (mut earliest, mut ended) = (Instant::FAR_FUTURE, 0);
        let is_here = |record: &&mut Record| record.under_way > 0 || record.is_queued;
        for record in batches.records_mut().filter(is_here).filter(|record| !record.is_over()) {
            if record.deadline <= now {
                let how = if record.posted == 0 { LaneEnd::NotDone } else { LaneEnd::Late };
                woken.extend(record.end(how));
                ended += 1;
            } else {
                earliest = earliest.min(record.deadline);
            }
        }
        self.earliest = earliest;
        ended
    }

    /// Ends all batches: those that were posted in this way, the others have not been done.
    #[cold]
    fn end_all(&mut self, batches: &mut Batches, how: LaneEnd, woken: &mut Vec<Waker>) {
        self.take_back_flushed(batches);
        for Run { batch, count, .. } in self.runs.drain(..) {
            let (record, _) = batches.parts(batch);
            record.under_way -= count as usize;
            woken.extend(record.end(how));
            batches.free_if_unused(batch);
        }
        self.posted = 0;
        while let Some(index) = self.waiting.front().copied() {
            woken.extend(batches.parts(index).0.end(LaneEnd::NotDone));
            self.end_waiting(batches);
        }
    }

    /// The buffers of operations that were not done, as far as the device has left them by now, so that their bytes are not lost.
    fn take_back_flushed(&mut self, batches: &mut Batches) {
        while self.cq.poll(&mut self.completions[..]).is_ok_and(|count| count > 0) {}
        let filled = &mut self.filled;
        self.qp.reclaim(&mut |buffer| filled.push_back(buffer));
        for run in &self.runs {
            let (record, _) = batches.parts(run.batch);
            let posted = record.posted;
            let from = posted.saturating_sub(record.under_way);
            for step in &mut record.steps[from..posted] {
                step.take_back(&mut self.filled);
            }
        }
    }

    /// Ends it, and all that is under way: it may have landed.
    pub fn end(&mut self, batches: &mut Batches, woken: &mut Vec<Waker>) {
        self.is_over = true;
        self.end_all(batches, LaneEnd::Lost, woken);
    }

    /// Prepares for the thread to sleep: from now on, a completion makes an event at the site. To be called before the last
    /// [`poll`](Self::poll).
    pub fn arm(&mut self) -> Armed {
        if self.posted == 0 {
            return Armed::ByWaker;
        }
        self.cq.arm();
        Armed::AtSite
    }
}

/// Why operations were not posted.
enum NotPosted {
    /// There is no memory for them at present.
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
