//! A batch on its way: to a lane, and behind that to a call.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use farcall_core::site::{Companion, Site};
use farcall_core::time::Instant;
use farcall_transports::buffers::Buffer;
use farcall_transports::remote_memory::{
    BatchError, BatchId, Batches, LaneEnd, Operation, Outcome,
};

use super::super::operation::{BatchCall, MemoryCall, Pending, gone};
use super::super::service::LentMemoryClient;
use super::{Begun, Next, SharedLane, is_flush, not_one_sided, plain, take_operations};

/// So often a thread that waits polls the lane before it sleeps until its operation has ended: for some 100 microseconds.
const POLLS_BEFORE_SLEEP: u32 = 4096;

/// So many of these polls follow each other at once; after the others, the thread yields its core.
const SPINS: u32 = 64;

/// How much longer than its deadline a thread that waits sleeps at most: the thread of the site ends the operation then.
const GRACE: Duration = Duration::from_millis(5);

/// A batch that is done one-sided if that is possible.
pub(in crate::memory) struct OnLane {
    lane: SharedLane,
    calls: LentMemoryClient,
    operations: Vec<Operation>,
    fences: Vec<u32>,
    /// What the only operation reads into, or writes.
    given: Option<Buffer>,
    /// It fails where it would have to travel as a call.
    only_one_sided: bool,
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
    Binding(BatchCall),
    Waiting(BatchId),
    Calling(BatchCall),
}

impl OnLane {
    pub(super) fn new(
        lane: &SharedLane,
        calls: &LentMemoryClient,
        operations: Vec<Operation>,
        fences: Vec<u32>,
        given: Option<Buffer>,
    ) -> OnLane {
        OnLane {
            lane: lane.clone(),
            calls: calls.clone(),
            operations,
            fences,
            given,
            only_one_sided: false,
            timeout: calls.channel().default_timeout(),
            deadline: None,
            done: Vec::new(),
            is_asleep: false,
            stage: Stage::Begin { may_open: true },
        }
    }

    /// The buffer that it was given, after it has ended, with the bytes that were read. `None`: it was lost with the lane.
    pub(in crate::memory) fn take_given(&mut self, outcome: &Outcome) -> Option<Buffer> {
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
        let OnLane { lane, calls, operations, fences, given, only_one_sided, .. } = self;
        let only_one_sided = *only_one_sided;
        let mut begun = Begun { calls, operations, fences, given, only_one_sided, now, deadline };
        // It has no time: the call says so.
        let next = match left.is_zero() {
            true => begun.call("it has no time left"),
            false => lane.begin(&mut begun, may_open),
        };
        self.stage = match next {
            Next::End(ended) => return Some(ended),
            Next::Open(call) => Stage::Opening(call.timeout(left)),
            Next::Bind(call) => Stage::Binding(call.timeout(left)),
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
        let is_split = at > 0 && rest.iter().flatten().any(is_flush);
        let why = match end {
            LaneEnd::Done => return Some(Ok(mem::take(&mut self.done))),
            LaneEnd::Lost if self.only_one_sided && !may_have_landed => {
                return Some(Err(not_one_sided(at, "the owner's queue pair does not answer")));
            }
            LaneEnd::NotDone if self.only_one_sided => {
                return Some(Err(not_one_sided(at, "the lane has ended, or the owner refuses")));
            }
            // The server's CPU cannot make durable what may still be in its device.
            LaneEnd::NotDone if is_split => {
                Some("the lane ended between what was to be flushed and the flush; do both again")
            }
            LaneEnd::NotDone => None,
            // The call says what has become of the owner.
            LaneEnd::Lost if !may_have_landed => None,
            LaneEnd::Lost => Some("the owner's queue pair does not answer any more"),
            LaneEnd::Late => Some("it took longer than its timeout"),
        };
        let error =
            |may_have_landed, why| BatchError { at: at as u32, error: gone(may_have_landed, why) };
        if let Some(why) = why {
            return Some(Err(error(may_have_landed, why)));
        }
        match rest {
            Some(_) if is_given => {}
            Some(rest) => self.operations = rest,
            None => {
                return Some(Err(error(false, "its lane has ended with the bytes of its buffer")));
            }
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
                Stage::Binding(call) => match Pin::new(call).poll(cx) {
                    Poll::Ready(Ok(_)) => false,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                },
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
    /// It fails where it would have to travel as a call.
    pub(super) fn set_only_one_sided(&mut self, only: bool) {
        self.only_one_sided = only;
    }

    pub(in crate::memory) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Blocks this thread until it has ended.
    pub(in crate::memory) fn wait_here(&mut self) -> Result<Vec<Outcome>, BatchError> {
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
                Stage::Binding(call) => match call.wait() {
                    Ok(_) => false,
                    Err(error) => return Err(error),
                },
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
