//! Operations that are done one-sided if that is possible, and as calls otherwise.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use farcall_core::site::{Companion, Site};
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::Armed;
use farcall_transports::buffers::{Buffer, BufferError, Buffers};
use farcall_transports::remote_memory::{
    Action, Atomics, BatchError, BatchId, Batches, ClientLane, LaneEnd, Operation,
    Outcome, Remote, Submitted, Taking, lane_devices,
};
use farcall_verbs::{Device, Visibility, process_word};

use super::operation::{BatchCall, MemoryCall, Pending, gone};
use super::service::LentMemoryClient;
use crate::{Bytes, CallError};

/// So often a thread that waits polls the lane before it sleeps until its operation has ended: for some 100 microseconds.
const POLLS_BEFORE_SLEEP: u32 = 4096;

/// So many of these polls follow each other at once; after the others, the thread yields its core.
const SPINS: u32 = 64;

/// How much longer than its deadline a thread that waits sleeps at most: the thread of the site ends the operation then.
const GRACE: Duration = Duration::from_millis(5);

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

/// What a batch does next.
enum Next {
    End(Result<Vec<Outcome>, BatchError>),
    Open(MemoryCall<()>),
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

    /// What the end of an operation on the lane means, and how atomic ones travel, if there is one.
    pub(super) fn caps(&self) -> Option<(Visibility, Atomics)> {
        if !self.is_here() {
            return None;
        }
        match &self.lock().lane {
            Lane::Open(open) => Some((open.visibility(), open.atomics())),
            _ => None,
        }
    }

    /// The pool of the buffers with which operations on the lane need no copy.
    pub(super) fn buffers(&self) -> Result<Buffers, BufferError> {
        match self.cell.device() {
            Some(device) if self.is_here() => self
                .lock()
                .batches
                .buffers_on(&device)
                .cloned()
                .or_else(|_| Buffers::new()),
            _ => Buffers::new(),
        }
    }

    /// Does operations, which were checked, in their order. Those at the indices of `fences` begin when those before them have ended.
    pub(super) fn post(
        &self,
        calls: &LentMemoryClient,
        operations: Vec<Operation>,
        fences: Vec<u32>,
    ) -> Box<OnLane> {
        Box::new(OnLane {
            lane: self.clone(),
            calls: calls.clone(),
            operations,
            fences,
            given: None,
            timeout: calls.channel().default_timeout(),
            deadline: None,
            done: Vec::new(),
            is_asleep: false,
            stage: Stage::Begin { may_open: true },
        })
    }

    /// Does one operation, which was checked, with this buffer: a read into it, or a write of its bytes, for which `operation` has none.
    pub(super) fn post_with(
        &self,
        calls: &LentMemoryClient,
        operation: Operation,
        buffer: Buffer,
    ) -> Box<OnLane> {
        let mut posted = self.post(calls, vec![operation], Vec::new());
        posted.given = Some(buffer);
        posted
    }

    /// The first step, or the one after the lane was to be opened.
    fn begin(&self, batch: &mut Begun<'_>, may_open: bool) -> Next {
        if !self.is_here() {
            return Next::Call(batch.plain());
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
            return Next::Call(batch.plain());
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
            (_, Some(lend)) => Next::Call(self.bind(batch, number, lend)),
            (_, None) => Next::Call(batch.plain()),
        }
    }

    /// Asks the server to connect, and connects.
    fn open(&self, calls: &LentMemoryClient, endpoint: Bytes) -> MemoryCall<()> {
        let opening = Opening { lane: self.clone(), is_decided: AtomicBool::new(false) };
        MemoryCall::of_any(calls.open_lane(endpoint), move |answer| opening.end(answer))
    }

    /// A call that also has the server bind a window to a lend.
    fn bind(&self, batch: &mut Begun<'_>, number: u64, lend: Remote) -> BatchCall {
        let (shared, asked) = (self.clone(), batch.now);
        let call = batch.calls.bind(number, lend, batch.take_operations());
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

    fn plain(&mut self) -> BatchCall {
        plain(self.calls, self.take_operations())
    }
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

/// A batch that is done one-sided if that is possible.
pub(super) struct OnLane {
    lane: SharedLane,
    calls: LentMemoryClient,
    operations: Vec<Operation>,
    fences: Vec<u32>,
    /// What the only operation reads into, or writes.
    given: Option<Buffer>,
    timeout: Duration,
    /// Counted from the first step.
    deadline: Option<Instant>,
    /// What has been done on the lane, of which the rest travels as a call.
    done: Vec<Outcome>,
    /// It is among the lane's sleepers.
    is_asleep: bool,
    stage: Stage,
}

enum Stage {
    Begin { may_open: bool },
    Opening(MemoryCall<()>),
    Waiting(BatchId),
    Calling(BatchCall),
}

impl OnLane {
    /// The buffer that it was given, after it has ended, with the bytes that were read. `None`: it was lost with the lane.
    pub(super) fn take_given(&mut self, outcome: &Outcome) -> Option<Buffer> {
        let mut given = self.given.take()?;
        match outcome {
            Outcome::Read(bytes) if bytes.len() == given.len() => given.copy_from_slice(bytes),
            _ => {}
        }
        Some(given)
    }

    fn site(&self) -> &Site {
        &self.lane.cell.site
    }

    /// The time now, the deadline, and what is left until then.
    fn times(&mut self) -> (Instant, Instant, Duration) {
        let now = self.site().now();
        let deadline = *self.deadline.get_or_insert(now + self.timeout);
        (now, deadline, deadline.saturating_since(now))
    }

    fn begin(&mut self, may_open: bool) -> Option<Result<Vec<Outcome>, BatchError>> {
        let (now, deadline, left) = self.times();
        let OnLane { lane, calls, operations, fences, given, .. } = self;
        let mut begun = Begun { calls, operations, fences, given, now, deadline };
        // It has no time: the call says so.
        let next = match left.is_zero() {
            true => Next::Call(begun.plain()),
            false => lane.begin(&mut begun, may_open),
        };
        self.stage = match next {
            Next::End(ended) => return Some(ended),
            Next::Open(call) => Stage::Opening(call.timeout(left)),
            Next::Call(call) => Stage::Calling(call.timeout(left)),
            Next::Wait(batch) => Stage::Waiting(batch),
        };
        None
    }

    /// A look at a batch on the lane. `Ready(None)`: there is another step.
    fn look(
        &mut self,
        id: BatchId,
        waker: Option<&Waker>,
    ) -> Poll<Option<Result<Vec<Outcome>, BatchError>>> {
        let now = self.site().now();
        let mut woken = Vec::new();
        let mut state = self.lane.cell.lock();
        state.drive(now, &mut woken);
        let end = state.batches.end_of(id, waker);
        let ended = end.map(|end| Ended::take(&mut state.batches, id, end));
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        match ended {
            None => Poll::Pending,
            Some(ended) => {
                self.wake_up();
                Poll::Ready(self.after(ended))
            }
        }
    }

    /// Leaves the lane to the site's thread.
    fn fall_asleep(&mut self) {
        if !mem::replace(&mut self.is_asleep, true) {
            self.lane.cell.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        let cell = &self.lane.cell;
        if !cell.is_attached.swap(true, Ordering::SeqCst) {
            let companion: Arc<dyn Companion> = cell.clone();
            cell.site.attach(&companion);
        } else if !cell.site.is_driven() {
            cell.site.rouse();
        }
    }

    fn wake_up(&mut self) {
        if mem::replace(&mut self.is_asleep, false) {
            self.lane.cell.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// What comes after the lane.
    fn after(&mut self, ended: Ended) -> Option<Result<Vec<Outcome>, BatchError>> {
        self.stage = Stage::Begin { may_open: false };
        let Ended { outcomes, end, rest, may_have_landed, buffer } = ended;
        let at = outcomes.len();
        let is_given = buffer.is_some();
        self.given = buffer.or_else(|| self.given.take());
        self.done = outcomes;
        let why = match end {
            LaneEnd::Done => return Some(Ok(mem::take(&mut self.done))),
            LaneEnd::NotDone => None,
            // The call says what has become of the owner.
            LaneEnd::Lost if !may_have_landed => None,
            LaneEnd::Lost => Some("the owner's queue pair does not answer any more"),
            LaneEnd::Late => Some("it took longer than its timeout"),
        };
        let error = |may_have_landed, why| BatchError { at: at as u32, error: gone(may_have_landed, why) };
        if let Some(why) = why {
            return Some(Err(error(may_have_landed, why)));
        }
        match rest {
            Some(_) if is_given => {}
            Some(rest) => self.operations = rest,
            None => return Some(Err(error(false, "its lane has ended with the bytes of its buffer"))),
        }
        let (.., left) = self.times();
        let rest = take_operations(&mut self.operations, self.given.as_deref());
        self.stage = Stage::Calling(plain(&self.calls, rest).timeout(left));
        None
    }

    /// The outcomes of all operations, of which the last were done by a call.
    fn all(
        &mut self,
        called: Result<Vec<Outcome>, BatchError>,
    ) -> Result<Vec<Outcome>, BatchError> {
        let mut done = mem::take(&mut self.done);
        match called {
            Ok(outcomes) if done.is_empty() => Ok(outcomes),
            Ok(mut outcomes) => {
                done.append(&mut outcomes);
                Ok(done)
            }
            Err(BatchError { at, error }) => {
                Err(BatchError { at: at.saturating_add(done.len() as u32), error })
            }
        }
    }

    /// Waits for a batch on the lane. `None`: there is another step.
    fn wait_on_lane(&mut self, id: BatchId) -> Option<Result<Vec<Outcome>, BatchError>> {
        for polls in 0..POLLS_BEFORE_SLEEP {
            if let Poll::Ready(ended) = self.look(id, None) {
                return ended;
            }
            if polls < SPINS { core::hint::spin_loop() } else { thread::yield_now() }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            self.fall_asleep();
            if let Poll::Ready(ended) = self.look(id, Some(&waker)) {
                return ended;
            }
            thread::park_timeout(self.times().2 + GRACE);
        }
    }
}

/// What has become of a batch on the lane.
struct Ended {
    outcomes: Vec<Outcome>,
    end: LaneEnd,
    /// The operations without an outcome. `None`: the bytes of one are lost.
    rest: Option<Vec<Operation>>,
    may_have_landed: bool,
    buffer: Option<Buffer>,
}

impl Ended {
    fn take(batches: &mut Batches, id: BatchId, end: LaneEnd) -> Ended {
        let outcomes = batches.take(id);
        let (rest, may_have_landed) = match end {
            LaneEnd::Done => (None, false),
            _ => {
                let at = outcomes.len();
                (batches.operations_from(id, at), batches.changes_from(id, at))
            }
        };
        let buffer = batches.take_buffer(id, 0);
        batches.release(id);
        Ended { outcomes, end, rest, may_have_landed, buffer }
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Drop for OnLane {
    fn drop(&mut self) {
        if !self.lane.is_here() {
            return;
        }
        self.wake_up();
        if let Stage::Waiting(id) = self.stage {
            self.lane.lock().batches.release(id);
        }
    }
}

impl Pending<Vec<Outcome>, BatchError> for OnLane {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Outcome>, BatchError>> {
        loop {
            let may_open = match &mut self.stage {
                Stage::Begin { may_open } => *may_open,
                Stage::Calling(call) => {
                    return match Pin::new(call).poll(cx) {
                        Poll::Ready(called) => Poll::Ready(self.all(called)),
                        Poll::Pending => Poll::Pending,
                    };
                }
                Stage::Opening(call) => match Pin::new(call).poll(cx) {
                    // Whether it was opened or not: see `Opening::end`.
                    Poll::Ready(_) => false,
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Waiting(id) => {
                    let id = *id;
                    match self.look(id, Some(cx.waker())) {
                        Poll::Ready(Some(ended)) => return Poll::Ready(ended),
                        Poll::Ready(None) => {}
                        Poll::Pending => {
                            self.fall_asleep();
                            return Poll::Pending;
                        }
                    }
                    continue;
                }
            };
            if let Some(ended) = self.begin(may_open) {
                return Poll::Ready(ended);
            }
        }
    }

    fn wait(mut self: Box<Self>) -> Result<Vec<Outcome>, BatchError> {
        self.wait_here()
    }

    fn timeout(
        mut self: Box<Self>,
        timeout: Duration,
    ) -> Box<dyn Pending<Vec<Outcome>, BatchError>> {
        self.timeout = timeout;
        self
    }
}

impl OnLane {
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Blocks this thread until it has ended.
    pub(super) fn wait_here(&mut self) -> Result<Vec<Outcome>, BatchError> {
        loop {
            let may_open = match mem::replace(&mut self.stage, Stage::Begin { may_open: false }) {
                Stage::Begin { may_open } => may_open,
                Stage::Calling(call) => {
                    let called = call.wait();
                    return self.all(called);
                }
                Stage::Opening(call) => {
                    let _ = call.wait();
                    false
                }
                Stage::Waiting(id) => {
                    // If this panics, the batch is given up.
                    self.stage = Stage::Waiting(id);
                    match self.wait_on_lane(id) {
                        Some(ended) => return ended,
                        None => continue,
                    }
                }
            };
            if let Some(ended) = self.begin(may_open) {
                return ended;
            }
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
