//! A call on its way between its caller and the one who drives.

use super::arguments::{Arguments, KEPT_BYTES};
use super::ticket::Ticket;
use crate::blocking;
use crate::error::{ReserveError, RpcError};
use crate::older::{Ends, Older};
use crate::service::Answer;
use crate::time::Instant;
use crate::transport::{ClientTransport, Delivery, Message, SlotId};
use crate::wire::{self, HEADER_BYTES, PARTS_FROM_BYTES, RequestHeader, Status};
use bytes::Bytes;
use std::sync::Arc;

/// One call. The owner of the box owns the call's bytes.
pub(super) struct Job {
    /// Of the channel's jobs, from 0.
    pub(super) number: usize,
    pub(super) ticket: Arc<Ticket>,
    /// The caller's share of the ticket, which it takes when it leaves the job to the one who drives, and gives back with it: counting
    /// each time would be two atomic operations per call.
    callers: Option<Arc<Ticket>>,
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
    pub(super) fn new(number: usize) -> Box<Job> {
        Box::new(Job {
            number,
            ticket: Arc::default(),
            callers: None,
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

    /// The ticket, for the caller that leaves the job to the one who drives.
    #[inline]
    pub(super) fn take_ticket(&mut self) -> Arc<Ticket> {
        self.callers.take().unwrap_or_else(|| Arc::clone(&self.ticket))
    }

    /// The caller has its job again, and needs its ticket no more.
    #[inline]
    pub(super) fn put_ticket(&mut self, ticket: Arc<Ticket>) {
        self.callers = Some(ticket);
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

    /// The answer, for a caller that was woken.
    #[inline]
    pub(super) fn answer(&mut self) -> Answer<'_> {
        self.answer_or(|error| error)
    }

    /// The answer, for a caller that has blocked its thread.
    #[inline]
    pub(super) fn answer_blocked(&mut self) -> Answer<'_> {
        self.answer_or(blocking::on_this_thread)
    }

    #[inline]
    fn answer_or(&mut self, failed: impl FnOnce(RpcError) -> RpcError) -> Answer<'_> {
        match core::mem::replace(&mut self.outcome, Outcome::Pending) {
            Outcome::Replied => wire::open_response(Message::Borrowed(&self.response)),
            Outcome::RepliedOwned(bytes) => wire::open_response(Message::Owned(bytes)),
            Outcome::Failed(error) => Answer::Failed(failed(error)),
            Outcome::Pending => Answer::Failed(RpcError::Cancelled),
        }
    }

    /// How it ended, for the counters.
    pub(super) fn status(&self) -> Status {
        let number = match &self.outcome {
            Outcome::Replied => self.response.first(),
            Outcome::RepliedOwned(bytes) => bytes.first(),
            Outcome::Failed(RpcError::DeadlineExceeded { may_have_run: false, .. }) => {
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
            return transport.post_parts(header.bytes(), self.arguments.body(), self.delivery);
        }
        let (slot, bytes) = transport.reserve(HEADER_BYTES + arguments.len())?;
        header.write(bytes);
        bytes[HEADER_BYTES..].copy_from_slice(arguments);
        transport.post(slot, self.delivery);
        Ok(slot)
    }

    /// Prepares the job for the next call.
    pub(super) fn clear(&mut self) {
        self.response.clear();
        if self.response.capacity() > KEPT_BYTES {
            self.response = Vec::new();
        }
        self.outcome = Outcome::Pending;
        (self.until, self.sent, self.is_left) = (None, None, false);
        // What the caller gave it comes last: its destructors may panic.
        self.ticket.reset();
        self.arguments.clear();
        self.newest.clear();
    }
}
