//! Operations that are done one-sided if that is possible, and as calls otherwise.

mod on_lane;

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use farcall_core::site::{Companion, Site};
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::Armed;
use farcall_transports::buffers::{Buffer, BufferError, Buffers};
use farcall_transports::remote_memory::{
    Action, Atomics, BatchError, BatchId, Batches, ClientLane, MemoryError, Operation, Outcome,
    Remote, Submitted, Taking, lane_devices,
};
use farcall_verbs::{Device, Visibility, process_word};

use super::operation::{BatchCall, MemoryCall};
use super::service::LentMemoryClient;
use crate::{Bytes, CallError};

pub(super) use self::on_lane::OnLane;

/// The lane of a client and its clones.
#[derive(Clone)]
pub(super) struct SharedLane {
    /// Of the process that has the lane. A forked child has none, and must not touch its parent's.
    process: u64,
    cell: Arc<LaneCell>,
}

/// A lane, which is driven by who waits for an operation on it, and by the site's thread for those who sleep.
struct LaneCell {
    state: Mutex<State>,
    site: Site,
    /// How many of the devices at the site the owner has refused.
    refused: AtomicUsize,
    /// Those who sleep until an operation has ended.
    sleepers: AtomicUsize,
    /// The site gives it turns: as of the first sleeper.
    is_attached: AtomicBool,
}

/// A lane, and the operations on it and on those before it.
#[derive(Default)]
struct State {
    lane: Lane,
    batches: Batches,
}

#[derive(Default)]
enum Lane {
    #[default]
    Closed,
    /// The server is asked to connect to it.
    Opening(ClientLane),
    Open(ClientLane),
    /// It is impossible here.
    Unavailable,
}

/// What is possible on a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneCaps {
    pub(super) visibility: Visibility,
    pub(super) atomics: Atomics,
    pub(super) flushes: bool,
}

impl LaneCaps {
    pub(super) fn of(lane: &ClientLane) -> LaneCaps {
        LaneCaps { visibility: lane.visibility(), atomics: lane.atomics(), flushes: lane.flushes() }
    }
}

/// What a batch does next.
enum Next {
    End(Result<Vec<Outcome>, BatchError>),
    Open(MemoryCall<()>),
    /// The owner is asked for a window, and the batch waits for it.
    Bind(BatchCall),
    Call(BatchCall),
    Wait(BatchId),
}

impl LaneCell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has completed on the lane, and wakes who waits for it.
    fn drive(&self, now: Instant) -> Progress {
        let mut woken = Vec::new();
        let progress = self.lock().drive(now, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        progress
    }

    /// The owner does not connect to this device. The next one is tried with the next operation, if there is one.
    fn refuse(&self) -> Lane {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused < self.devices().len() { Lane::Closed } else { Lane::Unavailable }
    }

    fn devices(&self) -> Vec<Device> {
        lane_devices(&self.site)
    }

    /// The next device that has not been refused.
    fn device(&self) -> Option<Device> {
        let refused = self.refused.load(Ordering::Relaxed);
        self.devices().into_iter().nth(refused)
    }

    /// A lane on the next device that has not been refused.
    fn prepare(&self, batches: &mut Batches) -> Option<ClientLane> {
        ClientLane::prepare(&self.device()?, &self.site, batches).ok()
    }

    fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }
}

impl State {
    /// Takes what has completed on the lane. Adds what wakes those who wait for it.
    fn drive(&mut self, now: Instant, woken: &mut Vec<Waker>) -> Progress {
        let State { lane, batches } = self;
        let Lane::Open(open) = lane else { return Progress::IDLE };
        let progress = open.poll(batches, now, woken);
        if open.is_over() {
            *lane = Lane::Closed;
        }
        progress
    }
}

/// Who waits without sleeping drives the lane.
impl Companion for LaneCell {
    fn turn(&self, now: Instant) -> Progress {
        if self.has_sleepers() { self.drive(now) } else { Progress::IDLE }
    }

    fn arm(&self) -> Armed {
        if !self.has_sleepers() {
            return Armed::ByWaker;
        }
        let armed = match &mut self.lock().lane {
            Lane::Open(open) => open.arm(),
            _ => Armed::ByWaker,
        };
        // What has completed before made no event.
        let progress = self.drive(self.site.now());
        if progress.is_idle() { armed } else { Armed::No }
    }

    /// No thread drives the lane any more for callers that sleep.
    fn thread_ended(&self, _: &Site) {
        let mut woken = Vec::new();
        let mut state = self.lock();
        let State { lane, batches } = &mut *state;
        if let Lane::Open(open) = lane {
            open.end(batches, &mut woken);
        }
        *lane = Lane::Unavailable;
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl SharedLane {
    /// The lane of a client whose channel has this site.
    pub(super) fn new(site: &Site) -> SharedLane {
        let cell = Arc::new(LaneCell {
            state: Mutex::default(),
            site: site.clone(),
            refused: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            is_attached: AtomicBool::new(false),
        });
        SharedLane { process: this_process(), cell }
    }

    /// None, for a client that has not asked for one.
    pub(super) fn none(site: &Site) -> SharedLane {
        let none = SharedLane::new(site);
        none.lock().lane = Lane::Unavailable;
        none
    }

    fn is_here(&self) -> bool {
        self.process == this_process()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.cell.lock()
    }

    /// What the end of an operation on the lane means, how atomic ones travel, and whether its device flushes, if there is one.
    pub(super) fn caps(&self) -> Option<LaneCaps> {
        if !self.is_here() {
            return None;
        }
        match &self.lock().lane {
            Lane::Open(open) => Some(LaneCaps::of(open)),
            _ => None,
        }
    }

    /// The pool of the buffers with which operations on the lane need no copy.
    pub(super) fn buffers(&self) -> Result<Buffers, BufferError> {
        match self.cell.device() {
            Some(device) if self.is_here() => {
                self.lock().batches.buffers_on(&device).cloned().or_else(|_| Buffers::new())
            }
            _ => Buffers::new(),
        }
    }

    /// Does operations, which were checked, in their order. Those at the indices of `fences` begin when those before them have ended.
    pub(super) fn post(
        &self,
        calls: &LentMemoryClient,
        operations: Vec<Operation>,
        fences: Vec<u32>,
        only_one_sided: bool,
    ) -> Box<OnLane> {
        let mut posted = Box::new(OnLane::new(self, calls, operations, fences, None));
        posted.set_only_one_sided(only_one_sided);
        posted
    }

    /// Does one operation, which was checked, with this buffer: a read into it, or a write of its bytes, for which `operation` has none.
    pub(super) fn post_with(
        &self,
        calls: &LentMemoryClient,
        operation: Operation,
        buffer: Buffer,
    ) -> Box<OnLane> {
        Box::new(OnLane::new(self, calls, vec![operation], Vec::new(), Some(buffer)))
    }

    /// The first step, or the one after the lane was to be opened.
    fn begin(&self, batch: &mut Begun<'_>, may_open: bool) -> Next {
        if !self.is_here() {
            return batch.call("this process has inherited its connection");
        }
        let mut state = self.lock();
        let State { lane, batches } = &mut *state;
        if may_open && let Lane::Closed = lane {
            if let Some(prepared) = self.cell.prepare(batches) {
                let endpoint = prepared.endpoint();
                *lane = Lane::Opening(prepared);
                drop(state);
                return Next::Open(self.open(batch.calls, endpoint));
            }
            *lane = Lane::Unavailable;
        }
        let Lane::Open(open) = lane else {
            drop(state);
            return batch.call("there is no lane to the owner of the memory");
        };
        let id = batch.push(batches);
        let submitted = open.submit(batches, id);
        let number = open.number();
        let lend = match submitted {
            Ok(Submitted::Accepted) => return Next::Wait(id),
            Ok(Submitted::Unknown(lend)) => Some(lend),
            Ok(Submitted::Refused) | Err(_) => None,
        };
        batch.take_back(batches, id);
        drop(state);
        match (submitted, lend) {
            (Err(error), _) => Next::End(Err(BatchError { at: 0, error })),
            (_, Some(lend)) if batch.only_one_sided => Next::Bind(self.bind(batch, number, lend)),
            (_, Some(lend)) => Next::Call(self.bind(batch, number, lend)),
            (_, None) => batch.call(
                "the lend has ended or lacks the right, the device has no such operation, or there are too many bytes",
            ),
        }
    }

    /// Asks the server to connect, and connects.
    fn open(&self, calls: &LentMemoryClient, endpoint: Bytes) -> MemoryCall<()> {
        let opening = Opening { lane: self.clone(), is_decided: AtomicBool::new(false) };
        MemoryCall::of_any(calls.open_lane(endpoint), move |answer| opening.end(answer))
    }

    /// A call that also has the server bind a window to a lend. It does the operations, unless those are to be one-sided.
    fn bind(&self, batch: &mut Begun<'_>, number: u64, lend: Remote) -> BatchCall {
        let (shared, asked) = (self.clone(), batch.now);
        let operations = if batch.only_one_sided { Vec::new() } else { batch.take_operations() };
        let call = batch.calls.bind(number, lend, operations);
        BatchCall::of_more(call, move |(outcomes, window)| {
            // Another lane may have been opened meanwhile, for which it is not.
            if shared.is_here()
                && let Lane::Open(open) = &mut shared.lock().lane
                && open.number() == number
            {
                open.learn(&lend, window, asked);
            }
            outcomes
        })
    }
}

/// A batch that has not been posted.
struct Begun<'a> {
    calls: &'a LentMemoryClient,
    operations: &'a mut Vec<Operation>,
    fences: &'a [u32],
    given: &'a mut Option<Buffer>,
    only_one_sided: bool,
    now: Instant,
    deadline: Instant,
}

impl Begun<'_> {
    /// Makes it a batch of the lane.
    fn push(&mut self, batches: &mut Batches) -> BatchId {
        let id = batches.begin(Taking::Values, self.deadline);
        match self.given.take_if(|buffer| batches.can_use(buffer)) {
            Some(buffer) => {
                let Operation { at, action } = &self.operations[0];
                match action {
                    Action::Read => batches.push_read_into(id, at, buffer),
                    _ => batches.push_write_from(id, at, buffer),
                }
            }
            None => {
                let mut fences = self.fences.iter().copied().peekable();
                for (at, operation) in (0..).zip(self.take_operations()) {
                    if fences.next_if_eq(&at).is_some() {
                        batches.fence(id);
                    }
                    batches.push(id, operation);
                }
            }
        }
        id
    }

    /// The lane does not do it.
    fn take_back(&mut self, batches: &mut Batches, id: BatchId) {
        match batches.take_buffer(id, 0) {
            Some(buffer) => *self.given = Some(buffer),
            None => *self.operations = batches.operations_from(id, 0).unwrap_or_default(),
        }
        batches.release(id);
    }

    /// The operations, as they travel in a call.
    fn take_operations(&mut self) -> Vec<Operation> {
        take_operations(self.operations, self.given.as_deref())
    }

    /// It travels as a call, if it may. Else `why` is the reason that it is not done.
    fn call(&mut self, why: &str) -> Next {
        if self.only_one_sided {
            return Next::End(Err(not_one_sided(0, why)));
        }
        Next::Call(plain(self.calls, self.take_operations()))
    }
}

#[cold]
fn not_one_sided(at: usize, why: &str) -> BatchError {
    BatchError { at: at as u32, error: MemoryError::NotOneSided { why: why.into() } }
}

fn is_flush(operation: &Operation) -> bool {
    operation.action == Action::Flush
}

/// Operations, with the bytes of a buffer that is to be written.
fn take_operations(operations: &mut Vec<Operation>, given: Option<&[u8]>) -> Vec<Operation> {
    let mut taken = mem::take(operations);
    if let ([Operation { action: Action::Write(bytes), .. }], Some(given)) = (&mut taken[..], given)
    {
        *bytes = Bytes::copy_from_slice(given);
    }
    taken
}

fn this_process() -> u64 {
    process_word().load(Ordering::Relaxed)
}

/// A forked child leaves its parent's lane as it is.
impl Drop for SharedLane {
    fn drop(&mut self) {
        if !self.is_here() {
            mem::forget(Arc::clone(&self.cell));
        }
    }
}

fn plain(calls: &LentMemoryClient, operations: Vec<Operation>) -> BatchCall {
    let len = operations.len();
    BatchCall::of(calls.batch(operations), len)
}

/// A lane that the server is asked to connect to.
struct Opening {
    lane: SharedLane,
    is_decided: AtomicBool,
}

impl Opening {
    fn end(&self, answer: Result<(u64, Bytes), CallError<String>>) {
        if !self.lane.is_here() {
            return;
        }
        self.is_decided.store(true, Ordering::Relaxed);
        let lane = &mut self.lane.lock().lane;
        *lane = match (mem::take(lane), answer) {
            (Lane::Opening(mut prepared), Ok((number, endpoint))) => {
                match prepared.connect(number, &endpoint) {
                    Ok(()) => Lane::Open(prepared),
                    Err(_) => self.lane.cell.refuse(),
                }
            }
            (Lane::Opening(_), Err(CallError::Service(_))) => self.lane.cell.refuse(),
            // The call has failed, and the next operation tries again.
            (Lane::Opening(_), Err(CallError::Rpc(_))) => Lane::Closed,
            (other, _) => other,
        };
    }
}

/// The operation that was to open it was given up.
impl Drop for Opening {
    fn drop(&mut self) {
        if !self.lane.is_here() {
            return;
        }
        let lane = &mut self.lane.lock().lane;
        if !self.is_decided.load(Ordering::Relaxed) && matches!(lane, Lane::Opening(_)) {
            *lane = Lane::Closed;
        }
    }
}

impl fmt::Debug for SharedLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_here() {
            return f.write_str("SharedLane(of the parent)");
        }
        let state = match &self.lock().lane {
            Lane::Closed => "closed",
            Lane::Opening(_) => "opening",
            Lane::Open(_) => "open",
            Lane::Unavailable => "unavailable",
        };
        write!(f, "SharedLane({state})")
    }
}
