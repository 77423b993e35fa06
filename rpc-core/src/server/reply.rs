//! The reply handle of one call.

use super::context::CallContext;
use super::deferred::DeferredReply;
use super::executor::{Executor, Task};
use super::turn::Turn;
use crate::codec::{self, DecodeError, EncodeError, Payload};
use crate::error::ReserveError;
use crate::time::Instant;
use crate::transport::{Body, CallToken, MIN_REPLY_BYTES, Replies};
use crate::wire::{HEADER_BYTES, OVER_QUOTA, PARTS_FROM_BYTES, SHARED_FROM_BYTES};
use crate::wire::{Status, too_large_body};
use core::fmt::{self, Display};

/// Longest explanation that goes with an error, in bytes.
const MAX_TEXT_BYTES: usize = 240;

/// The right to answer one call once: each method consumes it. If it is dropped without an answer, as when a handler
/// panics, the call ends in [`HandlerPanicked`](crate::RpcError::HandlerPanicked).
pub struct Reply<'a> {
    state: &'a mut UnansweredCall<'a>,
}

/// A call that is not answered yet, and what answers it. A reply is a reference to it, so that it moves in a register:
/// see [`CallToken`] for what moving it through memory would cost.
pub(super) struct UnansweredCall<'a> {
    /// `None` once answered.
    call: Option<CallToken>,
    row: u32,
    arrived: Instant,
    deadline: Instant,
    replies: &'a mut dyn Replies,
    turn: &'a mut Turn,
    executor: Option<&'a mut Executor>,
}

impl<'a> UnansweredCall<'a> {
    #[inline]
    pub(super) fn new(
        task: Task,
        replies: &'a mut dyn Replies,
        turn: &'a mut Turn,
        executor: Option<&'a mut Executor>,
    ) -> Self {
        let Task { call, row, arrived, deadline, .. } = task;
        UnansweredCall { call: Some(call), row, arrived, deadline, replies, turn, executor }
    }

    /// The handle that answers it.
    #[inline]
    pub(super) fn reply(&'a mut self) -> Reply<'a> {
        Reply { state: self }
    }
}

impl Reply<'_> {
    /// Answers with the method's value, which is encoded straight into the transport's send buffer.
    #[inline]
    pub fn value<P: Payload + ?Sized>(mut self, payload: &P) {
        self.answer(Status::Value, payload);
    }

    /// Answers with the service's own error.
    #[inline]
    pub fn service_error<P: Payload + ?Sized>(mut self, payload: &P) {
        self.answer(Status::ServiceError, payload);
    }

    /// Refuses arguments that cannot be decoded. `method` is written as `Kv.get`, `argument` as `key`.
    #[cold]
    pub fn malformed(mut self, method: &'static str, argument: &'static str, why: DecodeError) {
        self.explain(Status::Malformed, &format_args!("{argument} of {method}: {why}"));
    }

    /// Refuses a method id that no service has.
    #[cold]
    pub(super) fn no_such_method(mut self, method: u32) {
        self.fail(Status::NoSuchMethod, &u64::from(method).to_le_bytes());
    }

    /// Runs an `async` handler on this thread, then gives its output and the reply to `finish`. The future is polled at
    /// once; if it is ready then, the call is answered in this turn.
    ///
    /// When the caller gives up or the deadline passes, the future is dropped (see
    /// [`CancelPolicy`](super::CancelPolicy)). `finish` must not call `spawn`: the call would end in
    /// [`HandlerPanicked`](crate::RpcError::HandlerPanicked).
    pub fn spawn<F, D>(mut self, future: F, finish: D)
    where
        F: Future + 'static,
        D: FnOnce(F::Output, Reply<'_>) + 'static,
    {
        let Some(executor) = self.state.executor.take() else { return };
        if !executor.has_room() {
            return self.fail(Status::Overloaded, &[]);
        }
        if let Some(call) = self.state.call.take() {
            let UnansweredCall { row, arrived, deadline, .. } = *self.state;
            let task = Task::new(call, self.state.turn.transport, row, arrived, deadline);
            executor.spawn(task, future, finish, self.state.turn, self.state.replies);
        }
    }

    /// The call's client has so many answers waiting that it is to make no further calls.
    #[inline]
    pub(super) fn is_client_full(&self) -> bool {
        let UnansweredCall { call, turn, .. } = &*self.state;
        call.as_ref().is_some_and(|call| turn.is_client_full(call))
    }

    /// Adds to the call's context who makes it. Apart from the context's other parts, so that calls of a server that authenticates
    /// nobody cost one comparison.
    #[inline]
    pub(super) fn identify_caller(&self) {
        if !self.state.turn.clients.are_anonymous() {
            self.look_up_caller();
        }
    }

    #[inline(never)]
    fn look_up_caller(&self) {
        let UnansweredCall { call, turn, .. } = &*self.state;
        let identity = call.as_ref().and_then(|call| turn.clients.identity(turn.transport, call));
        CallContext::identify(identity);
    }

    /// Refuses a call of a client that is over its quota.
    #[cold]
    pub(super) fn over_quota(mut self) {
        self.fail(Status::Overloaded, &OVER_QUOTA);
    }

    /// Ends the call with one of farcall's own errors.
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
        if let Some(body) = payload.as_bytes().filter(|body| body.len() >= PARTS_FROM_BYTES) {
            return self.answer_in_parts(status, payload, body);
        }
        let Some(call) = &self.state.call else { return };
        match self.state.replies.reserve(call, len) {
            Ok(bytes) => {
                status.write_with(self.state.turn.advice, bytes);
                if let Err(error) = codec::encode(payload, &mut bytes[HEADER_BYTES..]) {
                    return self.unencodable(error);
                }
            }
            Err(error) => return self.no_room(error, status, payload, len),
        }
        self.post(status, len);
    }

    /// Answers with a value that is in one piece.
    fn answer_in_parts<P: Payload + ?Sized>(&mut self, status: Status, payload: &P, body: &[u8]) {
        let mut header = [0; HEADER_BYTES];
        status.write_with(self.state.turn.advice, &mut header);
        let shared = if body.len() < SHARED_FROM_BYTES { None } else { payload.shared() };
        let parts = shared.as_ref().map_or(Body::Borrowed(body), Body::Shared);
        let UnansweredCall { call, replies, .. } = &mut *self.state;
        match replies.post_parts(call, &header, parts) {
            Ok(()) => self.count(status),
            Err(error) => self.no_room(error, status, payload, HEADER_BYTES + body.len()),
        }
    }

    #[inline]
    fn post(&mut self, status: Status, len: usize) {
        if let Some(call) = self.state.call.take() {
            self.state.replies.post(call, len);
            self.count(status);
        }
    }

    #[inline]
    fn count(&mut self, status: Status) {
        self.state.turn.counters.ended(self.state.row, status);
        if self.state.arrived == self.state.turn.arrival() {
            self.state.turn.record_in_place(self.state.row);
        } else {
            // Its handler has run since the clock was last read.
            let nanos = self.state.turn.nanos_since(self.state.arrived);
            self.state.turn.counters.latency(self.state.row, nanos, 1);
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
                self.fail(Status::TooLarge, &too_large_body(len, max));
            }
            ReserveError::Closed => {
                self.state.call = None;
                self.count(Status::Cancelled);
            }
            ReserveError::Backpressure(_) => {
                if !self.may_wait(len) {
                    return self.fail(Status::ResponseDropped, &[]);
                }
                let mut bytes = vec![0; len];
                status.write_with(self.state.turn.advice, &mut bytes);
                if let Err(error) = codec::encode(payload, &mut bytes[HEADER_BYTES..]) {
                    return self.unencodable(error);
                }
                self.defer(bytes, status);
            }
        }
    }

    /// Whether an answer of `len` bytes may wait until there is memory for it.
    fn may_wait(&mut self, len: usize) -> bool {
        let UnansweredCall { call, turn, replies, .. } = &mut *self.state;
        let Some(call) = call else { return false };
        turn.may_defer(call, len, replies.waiting_limit())
    }

    /// Keeps the answer until there is memory, or room in the send queue.
    #[cold]
    fn defer(&mut self, bytes: Vec<u8>, status: Status) {
        if let Some(call) = self.state.call.take() {
            let UnansweredCall { row, turn, replies, .. } = &mut *self.state;
            let (transport, counted) = (turn.transport, Some((*row, status)));
            let reply = DeferredReply { transport, call, bytes, counted };
            turn.defer(reply, replies.waiting_limit());
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

    /// Answers with an error. If there is no room for the whole body, sends the part that always has room.
    #[cold]
    fn fail(&mut self, status: Status, body: &[u8]) {
        let Some(call) = &self.state.call else { return };
        let always = body.len().min(MIN_REPLY_BYTES - HEADER_BYTES);
        for body in [body, &body[..always]] {
            match self.state.replies.reserve(call, HEADER_BYTES + body.len()) {
                Ok(bytes) => {
                    status.write_with(self.state.turn.advice, bytes);
                    bytes[HEADER_BYTES..].copy_from_slice(body);
                    return self.post(status, HEADER_BYTES + body.len());
                }
                Err(ReserveError::Backpressure(_)) => {
                    let mut bytes = vec![0; HEADER_BYTES + always];
                    status.write_with(self.state.turn.advice, &mut bytes);
                    bytes[HEADER_BYTES..].copy_from_slice(&body[..always]);
                    return self.defer(bytes, status);
                }
                Err(ReserveError::TooLarge { .. } | ReserveError::Closed) => {}
            }
        }
        // The shortest answer has no room only if the client is gone.
        self.state.call = None;
        self.count(status);
    }
}

impl Drop for Reply<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.state.call.is_some() {
            self.fail(Status::HandlerPanicked, &[]);
        }
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("call", &self.state.call).finish_non_exhaustive()
    }
}
