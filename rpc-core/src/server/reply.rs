//! The right, and the duty, to answer one call.

use super::executor::{Executor, Task};
use super::turn::Turn;
use crate::codec::{self, DecodeError, EncodeError, Payload};
use crate::error::ReserveError;
use crate::time::Instant;
use crate::transport::{CallToken, MIN_REPLY_BYTES, Replies};
use crate::wire::{HEADER_BYTES, Status};
use core::fmt::{self, Display};

/// Longest explanation that goes with an error, in bytes.
const MAX_TEXT_BYTES: usize = 240;

/// The right, and the duty, to answer one call: each method consumes it. Dropped without an answer (a handler that
/// panics does so), it answers [`HandlerPanicked`](crate::RpcError::HandlerPanicked).
pub struct Reply<'a> {
    open: &'a mut Open<'a>,
}

/// A call that is to be answered, and what answers it. A reply is a reference to it, so that it moves in a register:
/// see [`CallToken`] for what moving it through memory would cost.
pub(super) struct Open<'a> {
    /// None once answered.
    call: Option<CallToken>,
    row: u32,
    arrived: Instant,
    deadline: Instant,
    replies: &'a mut dyn Replies,
    turn: &'a mut Turn,
    executor: Option<&'a mut Executor>,
}

impl<'a> Open<'a> {
    #[inline]
    pub(super) fn new(
        task: Task,
        replies: &'a mut dyn Replies,
        turn: &'a mut Turn,
        executor: Option<&'a mut Executor>,
    ) -> Self {
        let Task { call, row, arrived, deadline, .. } = task;
        Open { call: Some(call), row, arrived, deadline, replies, turn, executor }
    }

    /// The duty to answer it.
    #[inline]
    pub(super) fn reply(&'a mut self) -> Reply<'a> {
        Reply { open: self }
    }
}

impl Reply<'_> {
    /// Answers with the method's value, written straight into the registered memory that it leaves from.
    #[inline]
    pub fn value<P: Payload + ?Sized>(mut self, payload: &P) {
        self.answer(Status::Value, payload);
    }

    /// Answers with the service's own error.
    #[inline]
    pub fn service_error<P: Payload + ?Sized>(mut self, payload: &P) {
        self.answer(Status::ServiceError, payload);
    }

    /// Refuses arguments that could not be decoded: `method` as `Kv.get`, `argument` as `key`.
    #[cold]
    pub fn malformed(mut self, method: &'static str, argument: &'static str, why: DecodeError) {
        self.explain(Status::Malformed, &format_args!("{argument} of {method}: {why}"));
    }

    /// Refuses a method id that the service does not have.
    #[cold]
    pub fn no_such_method(mut self, method: u32) {
        self.fail(Status::NoSuchMethod, &u64::from(method).to_le_bytes());
    }

    /// Runs an `async` handler on this thread, and hands its output with the reply to `finish`. It is polled at once;
    /// a future that is ready by then is answered in this turn.
    ///
    /// When the caller gives up or its deadline passes, the future is dropped (see
    /// [`CancelPolicy`](super::CancelPolicy)). Calling `spawn` from `finish` is refused: the call then ends in
    /// [`HandlerPanicked`](crate::RpcError::HandlerPanicked).
    pub fn spawn<F, D>(mut self, future: F, finish: D)
    where
        F: Future + 'static,
        D: FnOnce(F::Output, Reply<'_>) + 'static,
    {
        let Some(executor) = self.open.executor.take() else { return };
        if !executor.has_room() {
            return self.fail(Status::Overloaded, &[]);
        }
        if let Some(call) = self.open.call.take() {
            let task = Task::new(call, self.open.row, self.open.arrived, self.open.deadline);
            executor.spawn(task, future, finish, self.open.turn, self.open.replies);
        }
    }

    /// Ends the call with an error of the RPC's own.
    #[cold]
    pub(super) fn fail_with(mut self, status: Status) {
        self.fail(status, &[]);
    }

    #[inline]
    fn answer<P: Payload + ?Sized>(&mut self, status: Status, payload: &P) {
        let len = match codec::encoded_len(payload) {
            Ok(len) => len + HEADER_BYTES,
            Err(error) => return self.unencodable(error),
        };
        let Some(call) = &self.open.call else { return };
        match self.open.replies.reserve(call, len) {
            Ok(bytes) => {
                status.write(bytes);
                if let Err(error) = codec::encode(payload, &mut bytes[HEADER_BYTES..]) {
                    return self.unencodable(error);
                }
            }
            Err(error) => return self.no_room(error, status, payload, len),
        }
        self.post(status, len);
    }

    #[inline]
    fn post(&mut self, status: Status, len: usize) {
        if let Some(call) = self.open.call.take() {
            self.open.replies.post(call, len);
            self.count(status);
        }
    }

    #[inline]
    fn count(&mut self, status: Status) {
        self.open.turn.counters.ended(self.open.row, status);
        if self.open.arrived == self.open.turn.arrival() {
            self.open.turn.answered_in_place(self.open.row);
        } else {
            let nanos = (self.open.turn.now - self.open.arrived).as_nanos() as u64;
            self.open.turn.counters.latency(self.open.row, nanos, 1);
        }
    }

    #[cold]
    fn no_room<P: Payload + ?Sized>(
        &mut self,
        error: ReserveError,
        status: Status,
        payload: &P,
        len: usize,
    ) {
        match error {
            ReserveError::TooLarge { len, max } => {
                let mut body = [0; 16];
                body[..8].copy_from_slice(&len.to_le_bytes());
                body[8..].copy_from_slice(&max.to_le_bytes());
                self.fail(Status::TooLarge, &body);
            }
            ReserveError::Closed => {
                self.open.call = None;
                self.count(Status::Cancelled);
            }
            ReserveError::Backpressure(_) => {
                let mut bytes = vec![0; len];
                status.write(&mut bytes);
                if let Err(error) = codec::encode(payload, &mut bytes[HEADER_BYTES..]) {
                    return self.unencodable(error);
                }
                self.defer(bytes, status);
            }
        }
    }

    /// The answer leaves when there is memory, or room in the send queue.
    #[cold]
    fn defer(&mut self, bytes: Vec<u8>, status: Status) {
        if let Some(call) = self.open.call.take() {
            self.open.turn.defer(call, bytes, self.open.row, status);
        }
    }

    #[cold]
    fn unencodable(&mut self, error: EncodeError) {
        self.explain(Status::Unencodable, &error);
    }

    #[cold]
    fn explain(&mut self, status: Status, why: &dyn Display) {
        let text = why.to_string();
        let end = text.floor_char_boundary(MAX_TEXT_BYTES);
        self.fail(status, &text.as_bytes()[..end]);
    }

    /// Answers with an error; if the whole body has no room, with as much of it as always has.
    #[cold]
    fn fail(&mut self, status: Status, body: &[u8]) {
        let Some(call) = &self.open.call else { return };
        let always = body.len().min(MIN_REPLY_BYTES - HEADER_BYTES);
        for body in [body, &body[..always]] {
            match self.open.replies.reserve(call, HEADER_BYTES + body.len()) {
                Ok(bytes) => {
                    status.write(bytes);
                    bytes[HEADER_BYTES..].copy_from_slice(body);
                    return self.post(status, HEADER_BYTES + body.len());
                }
                Err(ReserveError::Backpressure(_)) => {
                    let mut bytes = vec![0; HEADER_BYTES + always];
                    status.write(&mut bytes);
                    bytes[HEADER_BYTES..].copy_from_slice(&body[..always]);
                    return self.defer(bytes, status);
                }
                Err(ReserveError::TooLarge { .. } | ReserveError::Closed) => {}
            }
        }
        // Only a client that is gone has no room for the least answer.
        self.open.call = None;
        self.count(status);
    }
}

impl Drop for Reply<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.open.call.is_some() {
            self.fail(Status::HandlerPanicked, &[]);
        }
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("call", &self.open.call).finish_non_exhaustive()
    }
}
