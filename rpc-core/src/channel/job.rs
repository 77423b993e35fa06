//! A call on its way between its caller and the one who drives.

use super::arguments::{Arguments, KEPT_BYTES};
use crate::error::{ReserveError, RpcError};
use crate::older::{Ends, Older};
use crate::service::Answer;
use crate::time::Instant;
use crate::transport::{ClientTransport, Delivery, Message, SlotId};
use crate::wire::{self, HEADER_BYTES, PARTS_FROM_BYTES, RequestHeader, Status};
use atomic_waker::AtomicWaker;
use bytes::Bytes;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use core::task::Waker;
use crossbeam_utils::atomic::AtomicCell;
use std::sync::Arc;

impl Ticket {
    /// Tells calls apart while they last.
    #[inline]
    pub(super) fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }
}

/// One call. The owner of the box owns the call's bytes.
pub(super) struct Job {
    pub(super) ticket: Arc<Ticket>,
    pub(super) method: u32,
    /// The method's row in the counters; the one who drives sets it.
    pub(super) row: u32,
    /// The id on the wire: the method's, or that of its older version.
    pub(super) sent_as: u32,
    pub(super) delivery: Delivery,
    pub(super) timeout_ns: u64,
    /// The caller's deadline, which makes the timeout when the call is submitted.
    pub(super) until: Option<std::time::Instant>,
    /// The arguments as they are sent, encoded.
    pub(super) arguments: Arguments,
    /// All arguments, while those of an older version are sent.
    newest: Arguments,
    /// Where the arguments of older versions end.
    pub(super) ends: Ends,
    pub(super) deadline: Instant,
    /// When it left, and in which slot; only the one who drives reads them.
    pub(super) sent: Option<Instant>,
    pub(super) slot: SlotId,
    /// Its caller has waited long, and does not drive any more.
    pub(super) is_left: bool,
    pub(super) outcome: Outcome,
    response: Vec<u8>,
}

/// How a call ended.
pub(super) enum Outcome {
    Pending,
    /// The response is in the job's buffer.
    Replied,
    RepliedOwned(Bytes),
    Failed(RpcError),
}

impl Job {
    pub(super) fn new() -> Box<Job> {
        Box::new(Job {
            ticket: Arc::default(),
            method: 0,
            row: 0,
            sent_as: 0,
            delivery: Delivery::AtMostOnce,
            timeout_ns: 0,
            until: None,
            arguments: Arguments::default(),
            newest: Arguments::default(),
            ends: Ends::default(),
            deadline: Instant::FAR_FUTURE,
            sent: None,
            slot: SlotId { index: 0, generation: 0 },
            is_left: false,
            outcome: Outcome::Pending,
            response: Vec::new(),
        })
    }

    /// Leaves only what this older version of the method has.
    ///
    /// # Errors
    /// As [`Older::part`].
    pub(super) fn send_as(&mut self, older: &Older) -> Result<(), RpcError> {
        let part = older.part(self.arguments.as_slice(), &self.ends)?;
        core::mem::swap(&mut self.arguments, &mut self.newest);
        self.arguments.copy(&self.newest.as_slice()[part]);
        self.sent_as = older.id;
        Ok(())
    }

    /// Undoes [`send_as`](Self::send_as): the next server may be newer.
    pub(super) fn send_as_newest(&mut self) {
        if self.sent_as != self.method {
            core::mem::swap(&mut self.arguments, &mut self.newest);
            self.sent_as = self.method;
        }
    }

    /// Keeps a reply for the caller.
    pub(super) fn reply(&mut self, message: Message<'_>) {
        self.outcome = match message {
            Message::Borrowed(bytes) => {
                self.response.clear();
                self.response.extend_from_slice(bytes);
                Outcome::Replied
            }
            Message::Owned(bytes) => Outcome::RepliedOwned(bytes),
        };
    }

    /// The answer, for the caller.
    pub(super) fn answer(&mut self) -> Answer<'_> {
        match core::mem::replace(&mut self.outcome, Outcome::Pending) {
            Outcome::Replied => wire::open_response(Message::Borrowed(&self.response)),
            Outcome::RepliedOwned(bytes) => wire::open_response(Message::Owned(bytes)),
            Outcome::Failed(error) => Answer::Failed(error),
            Outcome::Pending => Answer::Failed(RpcError::Cancelled),
        }
    }

    /// How it ended, for the counters.
    pub(super) fn status(&self) -> Status {
        let number = match &self.outcome {
            Outcome::Replied => self.response.first(),
            Outcome::RepliedOwned(bytes) => bytes.first(),
            Outcome::Failed(RpcError::DeadlineExceeded { may_have_run: false }) => {
                return Status::Late;
            }
            Outcome::Failed(RpcError::DeadlineExceeded { .. }) => return Status::Expired,
            Outcome::Failed(RpcError::TooLarge { .. }) => return Status::TooLarge,
            Outcome::Failed(RpcError::NoSuchMethod { .. }) => return Status::NoSuchMethod,
            Outcome::Failed(_) => return Status::Gone,
            Outcome::Pending => return Status::Cancelled,
        };
        let known = number.and_then(|number| Status::ALL.get(usize::from(*number)));
        known.copied().unwrap_or(Status::Malformed)
    }

    /// Posts the request, whose timeout is so many nanoseconds.
    ///
    /// # Errors
    /// Those of [`ClientTransport::reserve`].
    #[inline]
    pub(super) fn post(
        &self,
        transport: &mut dyn ClientTransport,
        timeout_ns: u64,
    ) -> Result<SlotId, ReserveError> {
        let header = RequestHeader::new(self.sent_as, wire::timeout_us(timeout_ns));
        let arguments = self.arguments.as_slice();
        if arguments.len() >= PARTS_FROM_BYTES {
            return transport.post_parts(header.bytes(), arguments, self.delivery);
        }
        let (slot, bytes) = transport.reserve(HEADER_BYTES + arguments.len())?;
        header.write(bytes);
        bytes[HEADER_BYTES..].copy_from_slice(arguments);
        transport.post(slot, self.delivery);
        Ok(slot)
    }

    /// Prepares the job for the next call.
    pub(super) fn clear(&mut self) {
        self.arguments.clear();
        self.newest.clear();
        self.response.clear();
        if self.response.capacity() > KEPT_BYTES {
            self.response = Vec::new();
        }
        self.outcome = Outcome::Pending;
        (self.until, self.sent, self.is_left) = (None, None, false);
        self.ticket.reset();
    }
}

/// The job is in its ticket's cell.
const DONE: u8 = 1;

/// The caller has given up.
const CANCELLED: u8 = 2;

/// How a finished job reaches its caller.
#[derive(Default)]
pub(super) struct Ticket {
    /// [`DONE`] and [`CANCELLED`]. Of two threads that set one of them, the later one sees the other's, and takes the job back.
    state: AtomicU8,
    done: AtomicCell<Option<Box<Job>>>,
    waker: AtomicWaker,
    /// A waker may be registered: taking one out costs two exchanges, even if there is none.
    has_waker: AtomicBool,
    /// Its caller was woken to drive, and has not come yet.
    is_to_drive: AtomicBool,
}

impl Ticket {
    /// Wakes this waker when the job is done. The caller calls [`take`](Self::take) afterwards.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
        self.has_waker.store(true, Ordering::Relaxed);
    }

    /// The finished job, for the caller.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<Job>> {
        if self.state.load(Ordering::Acquire) & DONE == 0 {
            return None;
        }
        self.done.take()
    }

    /// The caller gives up. Returns the job if it is done; otherwise the one who drives has it, and will see the cancellation.
    pub(super) fn cancel(&self) -> Option<Box<Job>> {
        let before = self.state.fetch_or(CANCELLED, Ordering::AcqRel);
        if before & DONE == 0 { None } else { self.done.take() }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.state.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Hands the finished job to its caller, and gives what wakes it; or the job, if the caller has given up.
    pub(super) fn finish(job: Box<Job>) -> Result<Option<Waker>, Box<Job>> {
        let ticket = job.ticket.clone();
        // It comes for its job, and not to drive.
        ticket.clear_to_drive();
        ticket.done.store(Some(job));
        let before = ticket.state.fetch_or(DONE, Ordering::AcqRel);
        if before & CANCELLED != 0
            && let Some(job) = ticket.done.take()
        {
            return Err(job);
        }
        let waker = ticket.waker.take();
        if waker.is_some() {
            ticket.has_waker.store(false, Ordering::Relaxed);
        }
        Ok(waker)
    }

    /// What wakes the caller to drive; it registers again if its call goes on.
    pub(super) fn call_to_drive(&self) -> Option<Waker> {
        let waker = self.waker.take()?;
        self.is_to_drive.store(true, Ordering::Relaxed);
        Some(waker)
    }

    /// The caller is about to try to drive, or need not any more.
    #[inline]
    pub(super) fn clear_to_drive(&self) {
        if self.is_to_drive() {
            self.is_to_drive.store(false, Ordering::Relaxed);
        }
    }

    /// Its caller was [called to drive](Self::call_to_drive), and has not tried yet.
    #[inline]
    pub(super) fn is_to_drive(&self) -> bool {
        self.is_to_drive.load(Ordering::Relaxed)
    }

    #[inline]
    fn reset(&self) {
        self.state.store(0, Ordering::Release);
        self.clear_to_drive();
        // Its caller recycles it, and registered if anyone did.
        if self.has_waker.load(Ordering::Relaxed) {
            self.has_waker.store(false, Ordering::Relaxed);
            self.waker.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_job_is_handed_over_without_a_lock() {
        assert!(AtomicCell::<Option<Box<Job>>>::is_lock_free());
    }

    #[test]
    fn a_job_goes_either_to_its_caller_or_back() {
        let job = Job::new();
        let ticket = job.ticket.clone();
        assert!(Ticket::finish(job).is_ok());
        let job = ticket.take().expect("done");
        assert!(ticket.cancel().is_none(), "it was taken already");
        assert!(Ticket::finish(job).is_err(), "its caller gave up");
        assert!(ticket.take().is_none());
    }

    #[test]
    fn caller_and_io_thread_never_both_keep_a_job() {
        let mut job = Job::new();
        for _ in 0..500 {
            let ticket = job.ticket.clone();
            let io = std::thread::spawn(move || Ticket::finish(job));
            let (mine, its) = (ticket.cancel(), io.join().expect("no panic"));
            assert!(mine.is_some() != its.is_err());
            job = mine.or(its.err()).expect("one of them");
            job.clear();
        }
    }
}
