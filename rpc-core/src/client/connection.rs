//! A connection that its thread drives.

use super::calls::{Calls, read_into};
use super::{ConnectionOptions, PendingCall};
use crate::codec::{self, Payload};
use crate::error::{Backpressure, ConnectError, RpcError, TransportFailure};
use crate::idle::{IdlePolicy, Idler, Rest};
use crate::service::{Answer, Method, ServiceDescription};
use crate::time::{Instant, PollAt, Progress, saturating_nanos};
use crate::transport::{ClientTransport, Dial, Message, ReplySink, SlotId};
use crate::wire::{self, HEADER_BYTES, RequestHeader};
use core::time::Duration;

/// A connection driven by the thread that owns it: the last nanosecond, no other thread involved.
///
/// [`call`](Self::call) makes one call and spins until it ends. For a window of calls: [`start`](Self::start) some,
/// [`poll`](Self::poll), [`take`](Self::take) what has ended.
///
/// A handler runs at most once per call, unless its method is marked idempotent. A call ends by its deadline at the
/// latest, which counts from the poll that sends it. When the server is gone, every call ends in [`RpcError::PeerGone`]; make a new connection then.
pub struct Connection {
    transport: Box<dyn ClientTransport>,
    calls: Calls,
    now: Instant,
    timeout_ns: u64,
    timeout_us: u32,
    unflushed: bool,
    empty_polls: u32,
    idle: IdlePolicy,
}

/// Polls without work between two readings of the clock; see [`Idler`].
const EMPTY_POLLS_PER_CLOCK: u32 = 32;

impl Connection {
    /// Dials, and makes a connection of it.
    pub fn connect(
        address: &dyn Dial,
        service: &'static ServiceDescription,
        options: &ConnectionOptions,
    ) -> Result<Connection, ConnectError> {
        Ok(Connection::new(address.dial(service, &options.dial)?, options))
    }

    /// A connection over a transport that is connected already.
    pub fn new(transport: Box<dyn ClientTransport>, options: &ConnectionOptions) -> Connection {
        let now = transport.now();
        let window = transport.limits().window;
        let mut connection = Connection {
            transport,
            calls: Calls::new(window),
            now,
            timeout_ns: 0,
            timeout_us: 0,
            unflushed: false,
            empty_polls: 0,
            idle: options.idle,
        };
        connection.set_deadline(options.deadline);
        connection
    }

    /// The deadline of the calls that follow, counted from when each leaves.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.timeout_ns = saturating_nanos(deadline);
        self.timeout_us = wire::timeout_us(self.timeout_ns);
    }

    /// Most calls in flight at once.
    pub fn window(&self) -> u32 {
        self.transport.limits().window
    }

    /// Calls in flight now.
    pub fn in_flight(&self) -> u32 {
        self.calls.waiting()
    }

    /// Is the connection over? Then each further call ends in [`RpcError::PeerGone`].
    pub fn is_closed(&self) -> bool {
        self.calls.why_closed().is_some()
    }

    /// Calls a method and spins until the call ends.
    #[inline]
    pub fn call<M: Method, P: Payload + ?Sized>(&mut self, arguments: &P) -> M::Output {
        let slot = match self.post::<M, P>(arguments) {
            Ok(slot) => slot,
            Err(RpcError::Overloaded(_)) => match self.post_when_possible::<M, P>(arguments) {
                Ok(slot) => slot,
                Err(error) => return M::read(Answer::Failed(error)),
            },
            Err(error) => return M::read(Answer::Failed(error)),
        };
        self.transport.flush(self.now);
        self.unflushed = false;
        // Read after the request has left: the answer takes longer than the clock.
        self.now = self.transport.now();
        self.calls.stamp(self.now);
        let deadline = self.now.saturating_add_nanos(self.timeout_ns);
        let mut sink = Awaited::<M>::new(&mut self.calls, slot);
        let mut idler = Idler::new(self.idle);
        loop {
            let progress = self.transport.poll(self.now, &mut sink);
            match sink.ended {
                Ended::Not => {}
                Ended::Short(len) => return M::read_short(sink.short.value(len)),
                Ended::Read(result) => return result,
            }
            if !progress.is_idle() {
                idler.worked();
                continue;
            }
            if !idler.wants_clock() {
                continue;
            }
            self.now = self.transport.now();
            if self.now >= deadline {
                self.transport.abandon(slot);
                self.transport.flush(self.now);
                return M::read(Answer::Failed(RpcError::DeadlineExceeded { may_have_run: true }));
            }
            if self.now >= sink.calls.earliest() {
                sink.calls.expire(self.now, &mut *self.transport);
            }
            rest(&mut *self.transport, &mut idler, self.now, deadline, progress.next);
        }
    }

    /// Starts a call. It leaves with the next [`poll`](Self::poll) (calls started together share a doorbell).
    ///
    /// [`RpcError::Overloaded`] says that the window is full, or that too many answers were not taken: poll and take,
    /// then start again. Nothing is lost then.
    #[inline]
    pub fn start<M: Method, P: Payload + ?Sized>(
        &mut self,
        arguments: &P,
    ) -> Result<PendingCall<M::Output>, RpcError>
    where
        M::Output: 'static,
    {
        if !self.calls.has_room() {
            return Err(RpcError::Overloaded(Backpressure::Calls));
        }
        let slot = self.post::<M, P>(arguments)?;
        self.unflushed = true;
        let (index, generation) = self.calls.start(slot, self.timeout_ns, read_into::<M>);
        Ok(PendingCall::new(index, generation))
    }

    /// Sends what was started, takes in what arrived, ends what is past its deadline.
    #[inline]
    pub fn poll(&mut self) -> Progress {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.calls.has_unstamped() || self.empty_polls.is_multiple_of(EMPTY_POLLS_PER_CLOCK) {
            self.now = self.transport.now();
        }
        self.turn(self.now)
    }

    /// [`poll`](Self::poll) at `now`, the time on the device's clock, for who knows it: a simulator's program.
    #[inline]
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.now = now;
        if self.calls.has_unstamped() {
            self.calls.stamp(now);
        }
        if self.unflushed {
            self.unflushed = false;
            self.transport.flush(self.now);
        }
        let mut progress = self.transport.poll(self.now, &mut self.calls);
        if self.now >= self.calls.earliest() {
            self.calls.expire(self.now, &mut *self.transport);
            self.transport.flush(self.now);
            progress.worked += 1;
        }
        if self.calls.earliest() != Instant::FAR_FUTURE && self.calls.waiting() > 0 {
            progress.next = progress.next.earlier(PollAt::At(self.calls.earliest()));
        }
        progress
    }

    /// The result of a started call, once it has ended; `None` before, and after it was taken.
    #[inline]
    pub fn take<R: 'static>(&mut self, pending: &mut PendingCall<R>) -> Option<R> {
        self.calls.take(pending.index(), pending.generation())
    }

    /// Polls until a started call has ended.
    pub fn wait<R: 'static>(&mut self, mut pending: PendingCall<R>) -> Option<R> {
        let mut idler = Idler::new(self.idle);
        loop {
            let progress = self.poll();
            if let Some(result) = self.take(&mut pending) {
                return Some(result);
            }
            if !self.calls.is_waiting(pending.index(), pending.generation()) {
                return None; // taken or cancelled before
            }
            if !progress.is_idle() {
                idler.worked();
            } else if idler.wants_clock() {
                self.now = self.transport.now();
                let deadline = self.calls.earliest();
                rest(&mut *self.transport, &mut idler, self.now, deadline, progress.next);
            }
        }
    }

    /// Gives a started call up: its answer is dropped when it comes, and the server is told not to work on it.
    pub fn cancel<R>(&mut self, pending: PendingCall<R>) {
        if let Some(slot) = self.calls.cancel(pending.index(), pending.generation()) {
            self.transport.abandon(slot);
            self.unflushed = true;
        }
    }

    /// Sleeps until something arrives, or until `until` or the next deadline. Poll again afterwards.
    pub fn park(&mut self, until: Option<Instant>) {
        let deadline = self.calls.earliest();
        let until = until.unwrap_or(Instant::FAR_FUTURE).min(deadline);
        self.transport.park(some_time(until));
        self.now = self.transport.now();
    }

    /// Says goodbye. Calls in flight end in [`RpcError::PeerGone`].
    pub fn close(&mut self) {
        self.transport.close();
        self.calls.closed_here();
    }

    /// Writes the request into a slot and hands it over.
    #[inline]
    fn post<M: Method, P: Payload + ?Sized>(&mut self, arguments: &P) -> Result<SlotId, RpcError> {
        let len = match codec::encoded_len(arguments) {
            Ok(len) => len + HEADER_BYTES,
            Err(error) => return Err(unencodable(M::NAME, error)),
        };
        if self.timeout_ns == 0 {
            return Err(RpcError::DeadlineExceeded { may_have_run: false });
        }
        let (slot, bytes) = match self.transport.reserve(len) {
            Ok(reserved) => reserved,
            Err(error) => return Err(self.no_slot(error.into())),
        };
        RequestHeader::new(M::ID, self.timeout_us).write(bytes);
        if let Err(error) = codec::encode(arguments, &mut bytes[HEADER_BYTES..]) {
            self.transport.release(slot);
            return Err(unencodable(M::NAME, error));
        }
        if M::IDEMPOTENT {
            self.transport.post_idempotent(slot, self.now);
        } else {
            self.transport.post(slot, self.now);
        }
        Ok(slot)
    }

    /// A closed connection's own reason says more than that it is closed.
    #[cold]
    fn no_slot(&self, error: RpcError) -> RpcError {
        match (error, self.calls.why_closed()) {
            (RpcError::PeerGone { .. }, Some(why)) => {
                RpcError::from(TransportFailure { may_have_run: false, ..why })
            }
            (error, _) => error,
        }
    }

    /// The window is full of started calls: polls until one of them ends, at most until this call's deadline.
    #[cold]
    fn post_when_possible<M: Method, P: Payload + ?Sized>(
        &mut self,
        arguments: &P,
    ) -> Result<SlotId, RpcError> {
        self.now = self.transport.now();
        let deadline = self.now.saturating_add_nanos(self.timeout_ns);
        let mut idler = Idler::new(self.idle);
        loop {
            let progress = self.poll();
            match self.post::<M, P>(arguments) {
                Err(RpcError::Overloaded(_)) => {}
                other => return other,
            }
            if !progress.is_idle() {
                idler.worked();
            } else if idler.wants_clock() {
                self.now = self.transport.now();
                if self.now >= deadline {
                    return Err(RpcError::DeadlineExceeded { may_have_run: false });
                }
                let wake = deadline.min(self.calls.earliest());
                rest(&mut *self.transport, &mut idler, self.now, wake, progress.next);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.transport.close();
    }
}

#[cold]
pub(crate) fn unencodable(method: &str, error: codec::EncodeError) -> RpcError {
    RpcError::Malformed { what: format!("arguments of {method}: {error}").into() }
}

/// Rests after an empty poll whose clock was read.
fn rest(
    transport: &mut dyn ClientTransport,
    idler: &mut Idler,
    now: Instant,
    deadline: Instant,
    next: PollAt,
) {
    match (idler.rest(now), next) {
        (Rest::Spin, _) | (_, PollAt::Now) => {}
        (Rest::Yield, _) => std::thread::yield_now(),
        (Rest::Park, PollAt::At(at)) => transport.park(some_time(at.min(deadline))),
        (Rest::Park, PollAt::OnEvent) => transport.park(some_time(deadline)),
    }
}

/// A moment to wake at; none if it is never.
fn some_time(at: Instant) -> Option<Instant> {
    (at != Instant::FAR_FUTURE).then_some(at)
}

/// Takes the answer of one call; those of others are kept for them.
struct Awaited<'a, M: Method> {
    calls: &'a mut Calls,
    slot: SlotId,
    ended: Ended<M::Output>,
    short: Short,
}

/// How the awaited call has ended.
enum Ended<R> {
    Not,
    /// With a value of so many bytes, which its caller reads.
    Short(usize),
    /// With something that was read straight from the transport's scratch.
    Read(R),
}

/// Longest value that its caller reads.
const SHORT_BYTES: usize = 64;

/// A short value, on its way from the transport's scratch to its caller.
///
/// Read by the caller, it becomes the result in the result's own place. A result that is read in the callback has to be
/// moved there, and one like `Result<[u8; 32], _>`, whose value follows a byte that tells which it is, moves by loads
/// that straddle the stores just made: each waits until the processor's stores have left, to other cores as well.
#[repr(align(16))]
struct Short([u8; SHORT_BYTES]);

impl Short {
    #[inline]
    fn value(&self, len: usize) -> &[u8] {
        &self.0[..len]
    }
}

impl<'a, M: Method> Awaited<'a, M> {
    #[inline]
    fn new(calls: &'a mut Calls, slot: SlotId) -> Self {
        Awaited { calls, slot, ended: Ended::Not, short: Short([0; SHORT_BYTES]) }
    }
}

impl<M: Method> ReplySink for Awaited<'_, M> {
    #[inline]
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        if slot != self.slot {
            return self.calls.reply(slot, message);
        }
        self.ended = match wire::open_response(message) {
            Answer::Value(Message::Borrowed(body)) if body.len() <= SHORT_BYTES => {
                self.short.0[..body.len()].copy_from_slice(body);
                Ended::Short(body.len())
            }
            answer => Ended::Read(M::read(answer)),
        };
    }

    #[cold]
    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        if slot == self.slot {
            self.ended = Ended::Read(M::read(Answer::Failed(why.into())));
        } else {
            self.calls.failed(slot, why);
        }
    }

    #[cold]
    fn closed(&mut self, why: TransportFailure) {
        if matches!(self.ended, Ended::Not) {
            self.ended = Ended::Read(M::read(Answer::Failed(why.into())));
        }
        self.calls.closed(why);
    }
}
