//! A call through a channel: a future, or a blocking wait.

use super::block;
use super::handle::Channel;
use super::job::{Job, Ticket};
use crate::error::RpcError;
use crate::service::Answer;
use crate::time::saturating_nanos;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

/// A call through a [`Channel`]: await it on any executor, or [`wait`](Self::wait) for it.
///
/// It is sent when first polled. Dropping it cancels the call: its answer is dropped when it comes, and the server is told
/// to stop working on it. It borrows neither the arguments nor the client.
#[must_use = "a call is sent when it is awaited or waited for"]
pub struct Call<R> {
    channel: Channel,
    state: State,
    read: fn(Answer<'_>) -> R,
}

enum State {
    Prepared(Box<Job>),
    Submitted(Arc<Ticket>),
    Failed(RpcError),
    Over,
}

impl<R> Call<R> {
    pub(super) fn new(channel: Channel, job: Box<Job>, read: fn(Answer<'_>) -> R) -> Self {
        Call { channel, state: State::Prepared(job), read }
    }

    pub(super) fn failed(channel: Channel, error: RpcError, read: fn(Answer<'_>) -> R) -> Self {
        Call { channel, state: State::Failed(error), read }
    }

    /// Ends the call at the latest this long after its first poll, which sends it. Has no effect after that.
    ///
    /// Zero fails the call at once. The server learns of at most 71 minutes; a longer timeout holds at this end only, and
    /// the server may give the call up earlier.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let State::Prepared(job) = &mut self.state {
            (job.timeout_ns, job.until) = (saturating_nanos(timeout), None);
        }
        self
    }

    /// Ends the call at this moment at the latest, instead of after a [`timeout`](Self::timeout). Has no effect after the
    /// first poll.
    ///
    /// A moment in the past fails the call at once. On a simulated rack, where time is not the system's, use a timeout.
    pub fn deadline(mut self, deadline: std::time::Instant) -> Self {
        if let State::Prepared(job) = &mut self.state {
            job.until = Some(deadline);
        }
        self
    }

    /// Sends the call and blocks this thread until it ends, at the latest at its deadline.
    pub fn wait(self) -> R {
        block::on(self)
    }

    fn submit(&mut self, mut job: Box<Job>, waker: &Waker) {
        if let Some(until) = job.until.take() {
            job.timeout_ns =
                saturating_nanos(until.saturating_duration_since(std::time::Instant::now()));
        }
        if job.timeout_ns == 0 {
            let error = RpcError::DeadlineExceeded { may_have_run: false };
            self.channel.shared().recycle(job);
            self.state = State::Failed(error);
            return;
        }
        let ticket = job.ticket.clone();
        ticket.register(waker);
        self.channel.shared().submit(job);
        self.state = State::Submitted(ticket);
    }
}

impl<R> Future for Call<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let call = &mut *self;
        match core::mem::replace(&mut call.state, State::Over) {
            State::Prepared(job) => call.submit(job, cx.waker()),
            State::Submitted(ticket) => {
                ticket.register(cx.waker());
                call.state = State::Submitted(ticket);
            }
            state => call.state = state,
        }
        match &call.state {
            State::Submitted(ticket) => {
                let Some(mut job) = ticket.take() else { return Poll::Pending };
                call.state = State::Over;
                let result = (call.read)(job.answer());
                call.channel.shared().recycle(job);
                Poll::Ready(result)
            }
            State::Failed(error) => {
                let error = error.clone();
                call.state = State::Over;
                Poll::Ready((call.read)(Answer::Failed(error)))
            }
            State::Prepared(_) | State::Over => {
                let what = "a call was polled after it had ended";
                Poll::Ready((call.read)(Answer::Failed(RpcError::Misuse { what })))
            }
        }
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        let shared = self.channel.shared();
        match core::mem::replace(&mut self.state, State::Over) {
            State::Prepared(job) => shared.recycle(job),
            State::Submitted(ticket) => match ticket.cancel() {
                Some(job) => shared.recycle(job),
                None => shared.cancel_one(),
            },
            State::Failed(_) | State::Over => {}
        }
    }
}

impl<R> fmt::Debug for Call<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Prepared(_) => "prepared",
            State::Submitted(_) => "submitted",
            State::Failed(_) => "failed",
            State::Over => "over",
        };
        write!(f, "Call({state})")
    }
}
