//! A call through a channel: a future, or a blocking wait.

use super::block;
use super::drive::{Drive, Driven, Leave};
use super::handle::Channel;
use super::job::Job;
use super::ticket::Ticket;
use crate::error::{GoneReason, RpcError, Waited};
use crate::service::Answer;
use crate::time::saturating_nanos;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

const POLLED_AGAIN: &str = "a call was polled after it had ended";

/// The one who drives has not ended the call, and may have sent it.
const OVERDUE: RpcError =
    RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForDriver };

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

    /// Sends the call and blocks this thread until it ends, at the latest at its deadline. The thread drives the connection meanwhile,
    /// unless another does.
    ///
    /// In a handler, this blocks the thread of the server, on which no other handler runs meanwhile: a call to the same server may wait
    /// for itself.
    pub fn wait(mut self) -> R {
        let answer = match core::mem::replace(&mut self.state, State::Over) {
            State::Prepared(job) => match self.begin(job) {
                Ok(job) => self.wait_for(job),
                Err(error) => Err(error),
            },
            State::Submitted(ticket) => self.wait_on(ticket, 0),
            State::Failed(error) => Err(error),
            State::Over => Err(RpcError::Misuse { what: POLLED_AGAIN }),
        };
        self.end(answer, Job::answer_blocked)
    }

    /// Counts the timeout from now.
    #[inline]
    fn begin(&self, mut job: Box<Job>) -> Result<Box<Job>, RpcError> {
        if let Some(until) = job.until.take() {
            job.timeout_ns =
                saturating_nanos(until.saturating_duration_since(std::time::Instant::now()));
        }
        if job.timeout_ns == 0 {
            self.channel.shared().recycle(job);
            return Err(RpcError::NO_TIME);
        }
        Ok(job)
    }

    #[inline]
    fn wait_for(&mut self, mut job: Box<Job>) -> Result<Box<Job>, RpcError> {
        let shared = self.channel.shared();
        let Some(mut drive) = shared.drive_unstamped() else {
            let ticket = job.take_ticket();
            shared.submit(job);
            return self.wait_on(ticket, 0);
        };
        let own = job.ticket.id();
        drive.send_own(job);
        match drive.until_done(own) {
            Driven::Ended(job) => Ok(job),
            Driven::GivenUp(Some(ticket)) => self.wait_on(ticket, block::PARK),
            Driven::GivenUp(None) => {
                Err(RpcError::PeerGone { may_have_run: true, why: GoneReason::Closed })
            }
        }
    }

    /// Waits for a call that was submitted.
    #[cold]
    fn wait_on(&mut self, ticket: Arc<Ticket>, round: u32) -> Result<Box<Job>, RpcError> {
        if !self.channel.shared().is_here() {
            return self.in_forked_child(&ticket);
        }
        // If the wait panics, the call is cancelled.
        self.state = State::Submitted(ticket.clone());
        let ended = block::until_done(self.channel.shared(), &ticket, round);
        if ended.is_some() {
            self.state = State::Over;
        }
        ended.ok_or(OVERDUE)
    }

    /// Reads the answer.
    #[inline]
    fn end(
        &mut self,
        ended: Result<Box<Job>, RpcError>,
        answer: impl FnOnce(&mut Job) -> Answer<'_>,
    ) -> R {
        match ended {
            Ok(job) => {
                let mut job = self.channel.shared().lend(job);
                let result = (self.read)(answer(&mut job));
                job.recycle();
                result
            }
            Err(error) => (self.read)(Answer::Failed(error)),
        }
    }

    /// The first poll: sends the call, or leaves it to the one who drives.
    fn submit(&mut self, mut job: Box<Job>, waker: &Waker) -> Poll<Box<Job>> {
        let ticket = job.take_ticket();
        let shared = self.channel.shared();
        if shared.attendant() == 0
            && let Some(mut drive) = shared.drive_unstamped()
        {
            drive.send_own(job);
            return take_turn(drive, ticket, waker, &mut self.state);
        }
        ticket.register(waker);
        shared.submit(job);
        // Whoever drove may have left in between.
        if shared.attendant_after_submit() == 0
            && let Some(drive) = shared.drive_or_wait_for_look()
        {
            return take_turn(drive, ticket, waker, &mut self.state);
        }
        shared.leave_to_driver();
        self.pending(ticket)
    }

    /// A later poll: takes the next turn if it is this task's, or nobody else's.
    fn poll_submitted(
        &mut self,
        ticket: Arc<Ticket>,
        waker: &Waker,
    ) -> Poll<Result<Box<Job>, RpcError>> {
        if let Some(job) = ticket.take() {
            return ready(job, ticket).map(Ok);
        }
        ticket.clear_to_drive();
        let shared = self.channel.shared();
        let attendant = shared.attendant();
        if (attendant == 0 || attendant == ticket.id())
            && let Some(drive) = shared.drive_or_wait_for_look()
        {
            return take_turn(drive, ticket, waker, &mut self.state).map(Ok);
        }
        if !shared.is_here() {
            return Poll::Ready(self.in_forked_child(&ticket));
        }
        ticket.register(waker);
        if ticket.is_overdue(shared.site.now()) {
            return Poll::Ready(self.expire(&ticket));
        }
        self.pending(ticket).map(Ok)
    }

    /// The call ended before the fork, or ends in the parent alone.
    #[cold]
    fn in_forked_child(&self, ticket: &Ticket) -> Result<Box<Job>, RpcError> {
        self.channel.shared().leave_to_driver();
        ticket.take().ok_or(RpcError::PeerGone { may_have_run: true, why: GoneReason::Forked })
    }

    /// The one who drives is stopped, and does not end the call at its deadline.
    #[cold]
    fn expire(&self, ticket: &Ticket) -> Result<Box<Job>, RpcError> {
        ticket.cancel().ok_or_else(|| {
            self.channel.shared().cancel_one();
            OVERDUE
        })
    }

    /// The waker is registered. Unless the call has ended before, somebody will use it.
    fn pending(&mut self, ticket: Arc<Ticket>) -> Poll<Box<Job>> {
        if let Some(job) = ticket.take() {
            return ready(job, ticket);
        }
        self.channel.shared().have_watched();
        self.state = State::Submitted(ticket);
        Poll::Pending
    }
}

/// The call has ended, and this is its job.
fn ready(mut job: Box<Job>, ticket: Arc<Ticket>) -> Poll<Box<Job>> {
    job.put_ticket(ticket);
    Poll::Ready(job)
}

/// A turn of a task that drives.
fn take_turn(
    mut drive: Drive<'_>,
    ticket: Arc<Ticket>,
    waker: &Waker,
    state: &mut State,
) -> Poll<Box<Job>> {
    // The one who drove before may have ended it.
    if let Some(job) = ticket.take().or_else(|| drive.for_task(ticket.id())) {
        drive.leave(Leave::Done);
        return ready(job, ticket);
    }
    // Nobody ends the call before this drive is over.
    ticket.register(waker);
    if drive.leave_pending(ticket.id()) {
        waker.wake_by_ref();
    }
    *state = State::Submitted(ticket);
    Poll::Pending
}

impl<R> Future for Call<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let call = &mut *self;
        let answer = match core::mem::replace(&mut call.state, State::Over) {
            State::Prepared(job) => match call.begin(job) {
                Ok(job) => call.submit(job, cx.waker()).map(Ok),
                Err(error) => Poll::Ready(Err(error)),
            },
            State::Submitted(ticket) => call.poll_submitted(ticket, cx.waker()),
            State::Failed(error) => Poll::Ready(Err(error)),
            State::Over => Poll::Ready(Err(RpcError::Misuse { what: POLLED_AGAIN })),
        };
        answer.map(|answer| call.end(answer, Job::answer))
    }
}

impl<R> Drop for Call<R> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Over) {
            self.give_up();
        }
    }
}

impl<R> Call<R> {
    /// It is dropped before it has ended.
    #[cold]
    fn give_up(&mut self) {
        let shared = self.channel.shared();
        match core::mem::replace(&mut self.state, State::Over) {
            State::Prepared(job) => shared.recycle(job),
            State::Submitted(ticket) => match ticket.cancel() {
                Some(job) => shared.recycle(job),
                None => {
                    shared.cancel_one();
                    shared.turn_once();
                }
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
