//! Operations that are done one-sided if that is possible, and as calls otherwise.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use farcall_transports::remote_memory::{
    Action, BatchError, ClientLane, MemoryError, Operation, Outcome, Posted, Remote,
};

use farcall_verbs::process_word;

use super::operation::{BatchCall, MemoryCall, Pending, gone};
use super::service::LentMemoryClient;
use crate::{Bytes, CallError};

/// The lane of a client and its clones.
#[derive(Clone)]
pub(super) struct SharedLane {
    /// Of the process that has the lane. A forked child has none, and must not touch its parent's.
    process: u64,
    lane: Arc<Mutex<Lane>>,
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
}

impl SharedLane {
    pub(super) fn new() -> SharedLane {
        SharedLane { process: this_process(), lane: Arc::default() }
    }

    fn is_here(&self) -> bool {
        self.process == this_process()
    }

    fn lock(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_here() && matches!(&*self.lock(), Lane::Open(_))
    }

    /// Does operations, which were checked, in their order.
    pub(super) fn post(&self, calls: &LentMemoryClient, operations: Vec<Operation>) -> BatchCall {
        let (lane, calls) = (self.clone(), calls.clone());
        let stage = Stage::Begin { may_open: true };
        BatchCall::pending(OnLane { lane, calls, operations, timeout: None, stage })
    }

    /// The first step, or the one after the lane was to be opened.
    fn begin(
        &self,
        calls: &LentMemoryClient,
        operations: &mut Vec<Operation>,
        may_open: bool,
    ) -> Next {
        if !self.is_here() {
            return Next::Call(plain(calls, operations));
        }
        let mut lane = self.lock();
        if may_open && let Lane::Closed = &*lane {
            return match ClientLane::prepare() {
                Ok(prepared) => {
                    let endpoint = prepared.endpoint();
                    *lane = Lane::Opening(prepared);
                    drop(lane);
                    Next::Open(self.open(calls, endpoint))
                }
                Err(_) => {
                    *lane = Lane::Unavailable;
                    drop(lane);
                    self.begin(calls, operations, false)
                }
            };
        }
        let Lane::Open(open) = &mut *lane else { return Next::Call(plain(calls, operations)) };
        if operations.iter().all(|operation| open.can_execute(operation)) {
            let ended = execute(open, operations);
            let Err(BatchError { error, .. }) = &ended else { return Next::End(ended) };
            let only_reads = operations.iter().all(|it| it.action == Action::Read);
            let is_lost = error.may_have_landed() && only_reads;
            *lane = Lane::Closed;
            // The call says what has become of the owner.
            return if is_lost { Next::Call(plain(calls, operations)) } else { Next::End(ended) };
        }
        let unknown = operations.iter().map(|operation| operation.at).find(|at| !open.knows(at));
        match unknown {
            Some(lend) => Next::Call(self.bind(calls, open.number(), lend, operations)),
            None => Next::Call(plain(calls, operations)),
        }
    }

    /// Asks the server to connect, and connects.
    fn open(&self, calls: &LentMemoryClient, endpoint: Bytes) -> MemoryCall<()> {
        let opening = Opening { lane: self.clone(), is_decided: AtomicBool::new(false) };
        MemoryCall::of_any(calls.open_lane(endpoint), move |answer| opening.end(answer))
    }

    /// A call that also has the server bind a window to a lend.
    fn bind(
        &self,
        calls: &LentMemoryClient,
        number: u64,
        lend: Remote,
        operations: &mut Vec<Operation>,
    ) -> BatchCall {
        let shared = self.clone();
        let call = calls.bind(number, lend, mem::take(operations));
        BatchCall::of_more(call, move |(outcomes, window)| {
            // Another lane may have been opened meanwhile, for which it is not.
            if shared.is_here()
                && let Lane::Open(open) = &mut *shared.lock()
                && open.number() == number
            {
                open.learn(&lend, window);
            }
            outcomes
        })
    }
}

fn this_process() -> u64 {
    process_word().load(Ordering::Relaxed)
}

/// A forked child leaves its parent's lane as it is.
impl Drop for SharedLane {
    fn drop(&mut self) {
        if !self.is_here() {
            mem::forget(Arc::clone(&self.lane));
        }
    }
}

fn plain(calls: &LentMemoryClient, operations: &mut Vec<Operation>) -> BatchCall {
    let len = operations.len();
    BatchCall::of(calls.batch(mem::take(operations)), len)
}

/// Does all of them, or those before one that fails: then the lane is over.
fn execute(lane: &mut ClientLane, operations: &[Operation]) -> Result<Vec<Outcome>, BatchError> {
    let mut outcomes = Vec::with_capacity(operations.len());
    for (at, operation) in (0..).zip(operations) {
        let error = match lane.try_execute(operation) {
            Some(Posted::Done(outcome)) => {
                outcomes.push(outcome);
                continue;
            }
            // Its range and its right are within a window that was bound.
            Some(Posted::Denied) => MemoryError::Revoked,
            Some(Posted::Failed) => gone(true, "the owner's queue pair is gone"),
            None => gone(false, "no buffer is free"),
        };
        return Err(BatchError { at, error });
    }
    Ok(outcomes)
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
                    Err(_) => Lane::Unavailable,
                }
            }
            (Lane::Opening(_), Err(CallError::Service(_))) => Lane::Unavailable,
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
    timeout: Option<Duration>,
    stage: Stage,
}

enum Stage {
    Begin { may_open: bool },
    Opening(MemoryCall<()>),
    Calling(BatchCall),
}

impl OnLane {
    fn begin(&mut self, may_open: bool) -> Option<Result<Vec<Outcome>, BatchError>> {
        let timeout = self.timeout;
        self.stage = match self.lane.begin(&self.calls, &mut self.operations, may_open) {
            Next::End(ended) => return Some(ended),
            Next::Open(call) => Stage::Opening(match timeout {
                Some(timeout) => call.timeout(timeout),
                None => call,
            }),
            Next::Call(call) => Stage::Calling(match timeout {
                Some(timeout) => call.timeout(timeout),
                None => call,
            }),
        };
        None
    }
}

impl Pending<Vec<Outcome>, BatchError> for OnLane {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Outcome>, BatchError>> {
        loop {
            let may_open = match &mut self.stage {
                Stage::Begin { may_open } => *may_open,
                Stage::Calling(call) => return Pin::new(call).poll(cx),
                Stage::Opening(call) => match Pin::new(call).poll(cx) {
                    // Whether it was opened or not: see `Opening::end`.
                    Poll::Ready(_) => false,
                    Poll::Pending => return Poll::Pending,
                },
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
                Stage::Calling(call) => return call.wait(),
                Stage::Opening(call) => {
                    let _ = call.wait();
                    false
                }
            };
            if let Some(ended) = self.begin(may_open) {
                return ended;
            }
        }
    }

    fn timeout(self: Box<Self>, timeout: Duration) -> Box<dyn Pending<Vec<Outcome>, BatchError>> {
        Box::new(OnLane { timeout: Some(timeout), ..*self })
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
