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
use farcall_transports::remote_memory::{
    Action, BatchError, ClientLane, LaneBatch, LaneEnd, Operation, Outcome, Remote, lane_devices,
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
    lane: Mutex<Lane>,
    site: Site,
    /// How many of the devices at the site the owner has refused.
    refused: AtomicUsize,
    /// Those who sleep until an operation has ended.
    sleepers: AtomicUsize,
    /// The site gives it turns: as of the first sleeper.
    is_attached: AtomicBool,
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
    Wait(Arc<LaneBatch>),
}

impl LaneCell {
    fn lock(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has completed on the lane, and wakes who waits for it.
    fn drive(&self, now: Instant) -> Progress {
        let mut woken = Vec::new();
        let mut lane = self.lock();
        let Lane::Open(open) = &mut *lane else { return Progress::IDLE };
        let progress = open.poll(now, &mut woken);
        if open.is_over() {
            *lane = Lane::Closed;
        }
        drop(lane);
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

    /// A lane on the next device that has not been refused.
    fn prepare(&self) -> Option<ClientLane> {
        let refused = self.refused.load(Ordering::Relaxed);
        let device = self.devices().into_iter().nth(refused)?;
        ClientLane::prepare(&device, &self.site).ok()
    }

    fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
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
        let armed = match &mut *self.lock() {
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
        let mut lane = self.lock();
        if let Lane::Open(open) = &mut *lane {
            open.end(&mut woken);
        }
        *lane = Lane::Unavailable;
        drop(lane);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl SharedLane {
    /// The lane of a client whose channel has this site.
    pub(super) fn new(site: &Site) -> SharedLane {
        let cell = Arc::new(LaneCell {
            lane: Mutex::default(),
            site: site.clone(),
            refused: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            is_attached: AtomicBool::new(false),
        });
        SharedLane { process: this_process(), cell }
    }

    fn is_here(&self) -> bool {
        self.process == this_process()
    }

    fn lock(&self) -> MutexGuard<'_, Lane> {
        self.cell.lock()
    }

    /// What the end of an operation on the lane means, if there is one.
    pub(super) fn visibility(&self) -> Option<Visibility> {
        if !self.is_here() {
            return None;
        }
        match &*self.lock() {
            Lane::Open(open) => Some(open.visibility()),
            _ => None,
        }
    }

    /// Does operations, which were checked, in their order. Those at the indices of `fences` begin when those before them have ended.
    pub(super) fn post(
        &self,
        calls: &LentMemoryClient,
        operations: Vec<Operation>,
        fences: Vec<u32>,
    ) -> BatchCall {
        let (lane, calls) = (self.clone(), calls.clone());
        let timeout = calls.channel().default_timeout();
        let stage = Stage::Begin { may_open: true };
        BatchCall::pending(OnLane {
            lane,
            calls,
            operations,
            fences,
            timeout,
            deadline: None,
            done: Vec::new(),
            is_asleep: false,
            stage,
        })
    }

    /// The first step, or the one after the lane was to be opened.
    fn begin(&self, batch: &mut Begun<'_>, may_open: bool) -> Next {
        if !self.is_here() {
            return Next::Call(plain(batch.calls, batch.operations));
        }
        let mut lane = self.lock();
        if may_open && let Lane::Closed = &*lane {
            if let Some(prepared) = self.cell.prepare() {
                let endpoint = prepared.endpoint();
                *lane = Lane::Opening(prepared);
                drop(lane);
                return Next::Open(self.open(batch.calls, endpoint));
            }
            *lane = Lane::Unavailable;
        }
        let Lane::Open(open) = &mut *lane else {
            drop(lane);
            return Next::Call(plain(batch.calls, batch.operations));
        };
        if let Some(targets) = open.targets(batch.operations, batch.now)
            && !batch.operations.is_empty()
        {
            let (operations, fences) = (mem::take(batch.operations), mem::take(batch.fences));
            let posted = Arc::new(LaneBatch::new(operations, fences, batch.deadline));
            return match open.submit(&posted, targets) {
                Ok(()) => Next::Wait(posted),
                Err(error) => Next::End(Err(BatchError { at: 0, error })),
            };
        }
        let mut lends = batch.operations.iter().map(|operation| operation.at);
        let unknown = lends.find(|at| !open.knows(at));
        let number = open.number();
        drop(lane);
        match unknown {
            Some(lend) => Next::Call(self.bind(batch, number, lend)),
            None => Next::Call(plain(batch.calls, batch.operations)),
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
        let call = batch.calls.bind(number, lend, mem::take(batch.operations));
        BatchCall::of_more(call, move |(outcomes, window)| {
            // Another lane may have been opened meanwhile, for which it is not.
            if shared.is_here()
                && let Lane::Open(open) = &mut *shared.lock()
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
    fences: &'a mut Vec<u32>,
    now: Instant,
    deadline: Instant,
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

fn plain(calls: &LentMemoryClient, operations: &mut Vec<Operation>) -> BatchCall {
    let len = operations.len();
    BatchCall::of(calls.batch(mem::take(operations)), len)
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
        let mut lane = self.lane.lock();
        *lane = match (mem::take(&mut *lane), answer) {
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
        let mut lane = self.lane.lock();
        if !self.is_decided.load(Ordering::Relaxed) && matches!(&*lane, Lane::Opening(_)) {
            *lane = Lane::Closed;
        }
    }
}

/// A batch that is done one-sided if that is possible.
struct OnLane {
    lane: SharedLane,
    calls: LentMemoryClient,
    operations: Vec<Operation>,
    fences: Vec<u32>,
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
    Waiting(Arc<LaneBatch>),
    Calling(BatchCall),
}

impl OnLane {
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
        let OnLane { lane, calls, operations, fences, .. } = self;
        // It has no time: the call says so.
        let next = if left.is_zero() {
            Next::Call(plain(calls, operations))
        } else {
            lane.begin(&mut Begun { calls, operations, fences, now, deadline }, may_open)
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
        batch: &Arc<LaneBatch>,
        waker: Option<&Waker>,
    ) -> Poll<Option<Result<Vec<Outcome>, BatchError>>> {
        let cell = Arc::clone(&self.lane.cell);
        cell.drive(cell.site.now());
        match batch.take(waker) {
            Some((outcomes, end)) => {
                self.wake_up();
                Poll::Ready(self.after(batch, outcomes, end))
            }
            None => Poll::Pending,
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
    fn after(
        &mut self,
        batch: &LaneBatch,
        outcomes: Vec<Outcome>,
        end: LaneEnd,
    ) -> Option<Result<Vec<Outcome>, BatchError>> {
        let at = outcomes.len();
        self.done = outcomes;
        let rest = &batch.operations()[at..];
        let may_have_landed = !rest.iter().all(|it| it.action == Action::Read);
        let why = match end {
            LaneEnd::Done => return Some(Ok(mem::take(&mut self.done))),
            LaneEnd::NotDone => None,
            // The call says what has become of the owner.
            LaneEnd::Lost if !may_have_landed => None,
            LaneEnd::Lost => Some("the owner's queue pair does not answer any more"),
            LaneEnd::Late => Some("it took longer than its timeout"),
        };
        if let Some(why) = why {
            return Some(Err(BatchError { at: at as u32, error: gone(may_have_landed, why) }));
        }
        self.operations = rest.to_vec();
        let (.., left) = self.times();
        self.stage = Stage::Calling(plain(&self.calls, &mut self.operations).timeout(left));
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
    fn wait_on_lane(&mut self, batch: &Arc<LaneBatch>) -> Option<Result<Vec<Outcome>, BatchError>> {
        for polls in 0..POLLS_BEFORE_SLEEP {
            if let Poll::Ready(ended) = self.look(batch, None) {
                return ended;
            }
            if polls < SPINS { core::hint::spin_loop() } else { thread::yield_now() }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            self.fall_asleep();
            if let Poll::Ready(ended) = self.look(batch, Some(&waker)) {
                return ended;
            }
            thread::park_timeout(self.times().2 + GRACE);
        }
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
        if let Stage::Waiting(batch) = &self.stage {
            batch.abandon();
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
                Stage::Waiting(batch) => {
                    let batch = Arc::clone(batch);
                    match self.look(&batch, Some(cx.waker())) {
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
                Stage::Waiting(batch) => match self.wait_on_lane(&batch) {
                    Some(ended) => return ended,
                    None => continue,
                },
            };
            if let Some(ended) = self.begin(may_open) {
                return ended;
            }
        }
    }

    fn timeout(
        mut self: Box<Self>,
        timeout: Duration,
    ) -> Box<dyn Pending<Vec<Outcome>, BatchError>> {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for SharedLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_here() {
            return f.write_str("SharedLane(of the parent)");
        }
        let state = match &*self.lock() {
            Lane::Closed => "closed",
            Lane::Opening(_) => "opening",
            Lane::Open(_) => "open",
            Lane::Unavailable => "unavailable",
        };
        write!(f, "SharedLane({state})")
    }
}
