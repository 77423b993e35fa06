//! Operations that a client has prepared: futures, or blocking waits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use farcall_core::Backpressure;
use farcall_transports::remote_memory::{BatchError, Counted, MemoryError, Outcome};

use super::lane::OnLane;
use crate::buffers::Buffer;
use crate::{Call, CallError, RpcError};

/// An operation on lent memory: await it on any executor, or [`wait`](Self::wait) for it. It is sent when it is first polled.
///
/// It borrows nothing. Dropping it gives it up: a write or an atomic operation may land or not, and nothing of this end is used later.
#[must_use = "an operation is sent when it is awaited or waited for"]
pub struct MemoryCall<T>(State<T>);

/// The operations of a [`Batch`](super::Batch), in their order: await it on any executor, or [`wait`](Self::wait) for it.
#[must_use = "a batch is sent when it is awaited or waited for"]
pub struct BatchCall(State<Vec<Outcome>, BatchError>);

enum State<T, E = MemoryError> {
    Call(Box<dyn Pending<T, E>>),
    /// It cannot succeed, so it is not sent.
    Refused(Option<E>),
}

/// What becomes the result of an operation.
pub(super) trait Pending<T, E>: Send {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, E>>;
    fn wait(self: Box<Self>) -> Result<T, E>;
    fn timeout(self: Box<Self>, timeout: Duration) -> Box<dyn Pending<T, E>>;
}

struct Mapped<R, F> {
    call: Call<R>,
    result: F,
}

impl<T, E, R, F> Pending<T, E> for Mapped<R, F>
where
    R: Send + 'static,
    F: Fn(R) -> Result<T, E> + Send + 'static,
    T: 'static,
    E: 'static,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, E>> {
        Pin::new(&mut self.call).poll(cx).map(&self.result)
    }

    fn wait(self: Box<Self>) -> Result<T, E> {
        let Mapped { call, result } = *self;
        result(call.wait())
    }

    fn timeout(self: Box<Self>, timeout: Duration) -> Box<dyn Pending<T, E>> {
        let Mapped { call, result } = *self;
        Box::new(Mapped { call: call.timeout(timeout), result })
    }
}

impl<T: 'static, E: 'static> State<T, E> {
    fn of<R: Send + 'static>(
        call: Call<R>,
        result: impl Fn(R) -> Result<T, E> + Send + 'static,
    ) -> Self {
        State::Call(Box::new(Mapped { call, result }))
    }

    fn poll(&mut self, cx: &mut Context<'_>, again: impl FnOnce() -> E) -> Poll<Result<T, E>> {
        match self {
            State::Call(call) => call.poll(cx),
            State::Refused(why) => Poll::Ready(Err(why.take().unwrap_or_else(again))),
        }
    }

    fn wait(self, again: impl FnOnce() -> E) -> Result<T, E> {
        match self {
            State::Call(call) => call.wait(),
            State::Refused(why) => Err(why.unwrap_or_else(again)),
        }
    }

    fn timeout(self, timeout: Duration) -> Self {
        match self {
            State::Call(call) => State::Call(call.timeout(timeout)),
            refused @ State::Refused(_) => refused,
        }
    }
}

/// What a refused operation gives that is polled after it has ended.
fn polled_again() -> MemoryError {
    let why = "an operation was polled after it had ended".into();
    MemoryError::Gone { may_have_landed: false, why }
}

/// An operation that is a batch of its own.
struct OnlyOne<T> {
    batch: BatchCall,
    result: fn(Outcome) -> Option<T>,
}

fn only(ended: Result<Vec<Outcome>, BatchError>) -> Result<Outcome, MemoryError> {
    let only = ended.map_err(|error| error.error)?.into_iter().next();
    only.ok_or_else(answered_another)
}

#[cold]
fn answered_another() -> MemoryError {
    gone(true, "the server answered another operation")
}

impl<T> OnlyOne<T> {
    fn result_of(
        result: fn(Outcome) -> Option<T>,
        ended: Result<Vec<Outcome>, BatchError>,
    ) -> Result<T, MemoryError> {
        result(only(ended)?).ok_or_else(answered_another)
    }
}

impl<T: 'static> Pending<T, MemoryError> for OnlyOne<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, MemoryError>> {
        Pin::new(&mut self.batch).poll(cx).map(|ended| Self::result_of(self.result, ended))
    }

    fn wait(self: Box<Self>) -> Result<T, MemoryError> {
        Self::result_of(self.result, self.batch.wait())
    }

    fn timeout(self: Box<Self>, timeout: Duration) -> Box<dyn Pending<T, MemoryError>> {
        let OnlyOne { batch, result } = *self;
        Box::new(OnlyOne { batch: batch.timeout(timeout), result })
    }
}

/// An operation with a buffer of the program, which gets it back.
struct WithBuffer(Box<OnLane>);

impl WithBuffer {
    fn result(
        lane: &mut OnLane,
        ended: Result<Vec<Outcome>, BatchError>,
    ) -> Result<Buffer, MemoryError> {
        let outcome = only(ended)?;
        lane.take_given(&outcome).ok_or_else(answered_another)
    }
}

impl Pending<Buffer, MemoryError> for WithBuffer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Buffer, MemoryError>> {
        let WithBuffer(lane) = self;
        lane.poll(cx).map(|ended| Self::result(lane, ended))
    }

    fn wait(mut self: Box<Self>) -> Result<Buffer, MemoryError> {
        let ended = self.0.wait_here();
        Self::result(&mut self.0, ended)
    }

    fn timeout(mut self: Box<Self>, timeout: Duration) -> Box<dyn Pending<Buffer, MemoryError>> {
        self.0.set_timeout(timeout);
        self
    }
}

impl MemoryCall<Buffer> {
    pub(super) fn with_buffer(lane: Box<OnLane>) -> Self {
        MemoryCall(State::Call(Box::new(WithBuffer(lane))))
    }
}

impl<T: 'static> MemoryCall<T> {
    pub(super) fn of<R: Send + 'static>(
        call: Call<Result<R, CallError<MemoryError>>>,
        result: impl Fn(R) -> Result<T, MemoryError> + Send + 'static,
    ) -> Self {
        MemoryCall(State::of(call, move |ended| ended.map_err(own_error).and_then(&result)))
    }

    /// A call whose end is a result in any case.
    pub(super) fn of_any<R: Send + 'static>(
        call: Call<R>,
        result: impl Fn(R) -> T + Send + 'static,
    ) -> Self {
        MemoryCall(State::of(call, move |ended| Ok(result(ended))))
    }

    /// An operation that is a batch of its own.
    pub(super) fn of_one(batch: BatchCall, result: fn(Outcome) -> Option<T>) -> Self {
        MemoryCall(State::Call(Box::new(OnlyOne { batch, result })))
    }

    pub(super) fn refused(why: MemoryError) -> Self {
        MemoryCall(State::Refused(Some(why)))
    }

    /// Ends it at the latest this long after its first poll, with [`MemoryError::Gone`]. Default: the client's timeout.
    pub fn timeout(self, timeout: Duration) -> Self {
        MemoryCall(self.0.timeout(timeout))
    }

    /// Sends it and blocks this thread until it ends.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn wait(self) -> Result<T, MemoryError> {
        self.0.wait(polled_again)
    }
}

impl BatchCall {
    pub(super) fn on_lane(lane: Box<OnLane>) -> Self {
        BatchCall(State::Call(lane))
    }

    /// A call that answers more than outcomes.
    pub(super) fn of_more<R: Send + 'static>(
        call: Call<Result<R, CallError<BatchError>>>,
        result: impl Fn(R) -> Vec<Outcome> + Send + 'static,
    ) -> Self {
        BatchCall(State::of(call, move |ended| ended.map_err(batch_error).map(&result)))
    }

    pub(super) fn of(call: Call<Result<Vec<Outcome>, CallError<BatchError>>>, len: usize) -> Self {
        BatchCall(State::of(call, move |ended| {
            let outcomes = ended.map_err(batch_error)?;
            if outcomes.len() == len {
                return Ok(outcomes);
            }
            let error = gone(true, "the server answered another number of operations");
            Err(BatchError { at: 0, error })
        }))
    }

    pub(super) fn refused(why: BatchError) -> Self {
        BatchCall(State::Refused(Some(why)))
    }

    /// Ends it at the latest this long after its first poll, with [`MemoryError::Gone`]. Default: the client's timeout.
    pub fn timeout(self, timeout: Duration) -> Self {
        BatchCall(self.0.timeout(timeout))
    }

    /// Sends it and blocks this thread until it ends: with the outcomes in the order of the operations.
    ///
    /// # Errors
    /// [`BatchError`]: the first operation that failed.
    pub fn wait(self) -> Result<Vec<Outcome>, BatchError> {
        self.0.wait(|| BatchError { at: 0, error: polled_again() })
    }
}

fn own_error(error: CallError<MemoryError>) -> MemoryError {
    match error {
        CallError::Service(error) => error,
        CallError::Rpc(error) => not_answered(&error),
    }
}

pub(super) fn batch_error(error: CallError<BatchError>) -> BatchError {
    match error {
        CallError::Service(error) => error,
        CallError::Rpc(error) => BatchError { at: 0, error: not_answered(&error) },
    }
}

#[cold]
fn not_answered(error: &RpcError) -> MemoryError {
    match error {
        RpcError::Overloaded(Backpressure::Calls) => {
            MemoryError::Full { what: Counted::Operations }
        }
        error => gone(error.may_have_run(), &error.to_string()),
    }
}

#[cold]
pub(super) fn gone(may_have_landed: bool, why: &str) -> MemoryError {
    MemoryError::Gone { may_have_landed, why: why.into() }
}

impl<T: 'static> Future for MemoryCall<T> {
    type Output = Result<T, MemoryError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx, polled_again)
    }
}

impl Future for BatchCall {
    type Output = Result<Vec<Outcome>, BatchError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx, || BatchError { at: 0, error: polled_again() })
    }
}

impl<T> fmt::Debug for MemoryCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCall").finish_non_exhaustive()
    }
}

impl fmt::Debug for BatchCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchCall").finish_non_exhaustive()
    }
}
