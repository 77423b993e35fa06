//! The poll-mode connection.

use super::calls::{Calls, read_into};
use super::{ConnectionOptions, PendingCall};
use crate::blocking;
use crate::codec::{self, Payload};
use crate::compatibility::{Compatibility, Fit};
use crate::error::{Backpressure, ConnectError, RpcError, TransportFailure, Waited};
use crate::home::Home;
use crate::idle::{IdlePolicy, Idler, Rest};
use crate::service::{Answer, Method, ServiceDescription};
use crate::site::Site;
use crate::time::{Instant, PollAt, Progress, saturating_nanos};
use crate::transport::{
    Body, ClientTransport, Closing, Delivery, Dial, Message, NewConnection, ReplySink, SlotId,
};
use crate::wire::{self, HEADER_BYTES, PARTS_FROM_BYTES, RequestHeader, SHARED_FROM_BYTES};
use core::any::Any;
use core::ops::Range;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

mod forked;

/// A connection that the thread that owns it drives by polling: the lowest latency, and no other thread is involved.
///
/// [`call`](Self::call) makes one call and spins until it ends. For a window of calls: [`start`](Self::start) some,
/// [`poll`](Self::poll), [`take`](Self::take) the results of those that have ended. Dropping a [`PendingCall`] cancels it.
///
/// A handler runs at most once per call, unless its method is marked idempotent. A call ends by its deadline at the
/// latest, which counts from the poll that sends it. When the server is gone, every call ends in
/// [`RpcError::PeerGone`]; make a new connection then.
pub struct Connection {
    transport: Box<dyn ClientTransport>,
    /// `None`: the server's declaration fits, which costs a call one comparison.
    compatibility: Option<Box<Compatibility>>,
    /// Where calls for an older server are encoded.
    older_call: Vec<u8>,
    site: Site,
    calls: Calls,
    now: Instant,
    timeout_ns: u64,
    timeout_us: u32,
    has_unflushed: bool,
    /// Reserved for a request whose arguments panicked while they were encoded.
    unposted: Option<SlotId>,
    empty_polls: u32,
    idle: IdlePolicy,
    /// A forked child does not have the connection.
    home: Home,
}

/// A longer buffer is freed after use instead of kept for the next call.
const KEPT_BYTES: usize = 64 << 10;

/// Polls without work between two readings of the clock; see [`Idler`].
const EMPTY_POLLS_PER_CLOCK: u32 = 32;

impl Connection {
    /// Connects to a server. Blocks, at most for [`ConnectionOptions::dial_timeout`].
    ///
    /// # Errors
    /// [`ConnectError`] says why there is no connection: the address, the server, or this machine.
    pub fn connect(
        address: &dyn Dial,
        service: &'static ServiceDescription,
        options: &ConnectionOptions,
    ) -> Result<Connection, ConnectError> {
        let site = options.site.clone().unwrap_or_default();
        let dialled = address.dial(service, &site, &options.dial)?;
        Ok(Connection::new(dialled, &site, options))
    }

    /// A connection that was dialled for `site`.
    pub fn new(
        dialled: impl Into<NewConnection>,
        site: &Site,
        options: &ConnectionOptions,
    ) -> Connection {
        let NewConnection { transport, compatibility, .. } = dialled.into();
        let calls = Calls::new(transport.limits().window, transport.slots());
        let mut connection = Connection {
            transport,
            compatibility,
            older_call: Vec::new(),
            site: site.clone(),
            calls,
            now: site.now(),
            timeout_ns: 0,
            timeout_us: 0,
            has_unflushed: false,
            unposted: None,
            empty_polls: 0,
            idle: options.idle,
            home: Home::here(),
        };
        connection.set_timeout(options.timeout);
        connection
    }

    /// The site that the connection was made for.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Sets the timeout of later calls, counted from when each leaves. Zero fails them at once. The server learns of at
    /// most 71 minutes; a longer timeout holds at this end only, and the server may give a call up earlier.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout_ns = saturating_nanos(timeout);
        self.timeout_us = wire::timeout_us(self.timeout_ns);
    }

    /// The timeout of later calls: see [`set_timeout`](Self::set_timeout).
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns)
    }

    /// The limit of calls in flight at once.
    pub fn window(&self) -> u32 {
        self.transport.limits().window
    }

    /// Calls in flight now. One whose token was dropped counts until the next poll.
    pub fn in_flight(&self) -> u32 {
        self.calls.waiting()
    }

    /// The connection is over: each further call ends in [`RpcError::PeerGone`].
    pub fn is_closed(&self) -> bool {
        self.calls.why_closed().is_some()
    }

    /// Calls a method and waits until the call ends, at the latest at its deadline. When the window is full, waits for room
    /// as well.
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
        self.transport.flush();
        self.has_unflushed = false;
        // Read after the request has left: the answer takes longer than the clock.
        self.now = self.site.now();
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
                Ended::Panicked(panic) => resume_unwind(panic),
            }
            if !progress.is_idle() {
                idler.worked();
                continue;
            }
            if !idler.wants_clock() {
                continue;
            }
            self.now = self.site.now();
            if self.now >= deadline {
                self.transport.abandon(slot);
                self.transport.flush();
                return M::read(Answer::Failed(blocking::late_answer()));
            }
            if self.now >= sink.calls.earliest() {
                sink.calls.expire(self.now, &mut *self.transport);
            }
            if sink.calls.has_dropped() {
                sink.calls.cancel_dropped(&mut *self.transport);
                self.transport.flush();
            }
            let wake = deadline.min(sink.calls.earliest());
            rest(&self.site, &mut *self.transport, &mut idler, self.now, wake, progress.next);
        }
    }

    /// Starts a call. It leaves with the next [`poll`](Self::poll) (calls started together share a doorbell).
    ///
    /// # Errors
    /// - [`RpcError::Overloaded`]: the window is full, too many results were not taken, or ([`Backpressure::SendQueue`])
    ///   answers have overtaken the acknowledgements of their requests. Nothing was sent: poll and take, then start the call
    ///   again.
    /// - Any other: the call cannot be sent.
    #[inline(always)]
    pub fn start<M: Method, P: Payload + ?Sized>(
        &mut self,
        arguments: &P,
    ) -> Result<PendingCall<M::Output>, RpcError>
    where
        M::Output: 'static,
    {
        if !self.calls.has_room() && !self.makes_room() {
            return Err(RpcError::Overloaded(Backpressure::Calls));
        }
        let slot = self.post::<M, P>(arguments)?;
        self.has_unflushed = true;
        Ok(PendingCall::new(self.calls.start(slot, self.timeout_ns, read_into::<M>)))
    }

    /// Sends the started calls, takes the answers that arrived, and ends the calls whose deadline has passed.
    #[inline]
    pub fn poll(&mut self) -> Progress {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.calls.has_unstamped() || self.empty_polls.is_multiple_of(EMPTY_POLLS_PER_CLOCK) {
            self.now = self.site.now();
        }
        self.turn(self.now)
    }

    /// [`poll`](Self::poll) at `now` on the site's clock, for a driver that has read it: a simulator.
    #[inline]
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.check_home();
        self.now = now;
        if self.calls.has_unstamped() {
            self.calls.stamp(now);
        }
        if self.calls.has_dropped() {
            self.cancel_dropped();
        }
        if self.has_unflushed {
            self.has_unflushed = false;
            self.transport.flush();
        }
        let mut progress = self.transport.poll(self.now, &mut self.calls);
        if self.now >= self.calls.earliest() {
            self.calls.expire(self.now, &mut *self.transport);
            self.transport.flush();
            progress.worked += 1;
        }
        if self.calls.earliest() != Instant::FAR_FUTURE && self.calls.waiting() > 0 {
            progress.next = progress.next.earlier(PollAt::At(self.calls.earliest()));
        }
        progress
    }

    /// The result of a started call, once it has ended; `None` before that, and after it was taken.
    #[inline]
    pub fn take<R: 'static>(&mut self, pending: &mut PendingCall<R>) -> Option<R> {
        self.calls.take(pending)
    }

    /// Polls until a started call has ended. `None` if its result was taken before.
    pub fn wait<R: 'static>(&mut self, mut pending: PendingCall<R>) -> Option<R> {
        let mut idler = Idler::new(self.idle);
        loop {
            let progress = self.poll();
            if let Some(result) = self.take(&mut pending) {
                return Some(result);
            }
            if !self.calls.is_waiting(&pending) {
                return None; // taken before, or of another connection
            }
            if !progress.is_idle() {
                idler.worked();
            } else if idler.wants_clock() {
                self.now = self.site.now();
                let deadline = self.calls.earliest();
                let (site, transport) = (&self.site, &mut *self.transport);
                rest(site, transport, &mut idler, self.now, deadline, progress.next);
            }
        }
    }

    /// Gives up a started call: its answer is dropped when it comes, and the server is told to stop working on it.
    /// Dropping its token does the same, with the next poll.
    pub fn cancel<R>(&mut self, pending: PendingCall<R>) {
        self.check_home();
        if let Some(slot) = self.calls.cancel(pending) {
            self.transport.abandon(slot);
            self.has_unflushed = true;
        }
    }

    /// The tokens of some calls were dropped.
    #[cold]
    fn cancel_dropped(&mut self) {
        self.calls.cancel_dropped(&mut *self.transport);
        self.has_unflushed = true;
    }

    /// All calls are started and not taken. Returns whether some of them had been dropped.
    #[cold]
    fn makes_room(&mut self) -> bool {
        self.check_home();
        self.cancel_dropped();
        self.calls.has_room()
    }

    /// Sleeps until something arrives, or until `until` or the next deadline. May return early. Poll again afterwards.
    ///
    /// Wakes for the site's other connections too.
    pub fn park(&mut self, until: Option<Instant>) {
        self.check_home();
        let deadline = self.calls.earliest();
        let until = until.unwrap_or(Instant::FAR_FUTURE).min(deadline);
        if !self.calls.has_dropped() {
            sleep(&self.site, &mut *self.transport, until);
        }
        self.now = self.site.now();
    }

    /// Prepares for the thread to sleep at its site, for all its connections at once: what arrives from now on wakes it.
    /// `false`: there is work, poll again first.
    ///
    /// Call it between [`Site::fall_asleep`] and [`Asleep::sleep`](crate::site::Asleep::sleep).
    pub fn arm(&mut self) -> bool {
        self.check_home();
        // Calls that were dropped leave with the next poll.
        !self.calls.has_dropped() && self.transport.arm(None).may_sleep()
    }

    /// Closes the connection. Calls in flight end in [`RpcError::PeerGone`].
    pub fn close(&mut self) {
        self.check_home();
        self.transport.close(Closing::Goodbye);
        self.calls.close();
    }

    /// Encodes the request straight into a slot of the transport, and posts it.
    #[inline(always)]
    fn post<M: Method, P: Payload + ?Sized>(&mut self, arguments: &P) -> Result<SlotId, RpcError> {
        let len = match codec::encoded_len(arguments) {
            Ok(len) => len + HEADER_BYTES,
            Err(error) => return Err(unencodable(M::NAME, error)),
        };
        if self.timeout_ns == 0 {
            return Err(RpcError::NO_TIME);
        }
        self.check_home();
        let delivery = match &self.compatibility {
            None => const { Delivery::of(M::IDEMPOTENT) },
            // For other methods the arguments need not be in memory before there is a slot.
            Some(_) if !M::OLDER.is_empty() => return self.post_versioned::<M, P>(arguments, len),
            Some(compatibility) => compatibility.delivery(M::ID, Delivery::of(M::IDEMPOTENT))?,
        };
        self.post_newest::<M, P>(arguments, len, delivery)
    }

    /// Posts a request of `len` bytes.
    #[inline(always)]
    fn post_newest<M: Method, P: Payload + ?Sized>(
        &mut self,
        arguments: &P,
        len: usize,
        delivery: Delivery,
    ) -> Result<SlotId, RpcError> {
        if self.unposted.is_some() {
            self.release_unposted();
        }
        let header = RequestHeader::new(M::ID, self.timeout_us);
        if let Some(body) = arguments.as_bytes().filter(|body| body.len() >= PARTS_FROM_BYTES) {
            let shared = if body.len() < SHARED_FROM_BYTES { None } else { arguments.shared() };
            let body = shared.as_ref().map_or(Body::Borrowed(body), Body::Shared);
            let posted = self.transport.post_parts(header.bytes(), body, delivery);
            return posted.map_err(|error| self.no_slot(error.into()));
        }
        let (slot, bytes) = match self.transport.reserve(len) {
            Ok(reserved) => reserved,
            Err(error) => return Err(self.no_slot(error.into())),
        };
        header.write(bytes);
        let encoding = Encoding { slot, unposted: &mut self.unposted };
        let encoded = codec::encode(arguments, &mut bytes[HEADER_BYTES..]);
        core::mem::forget(encoding);
        if let Err(error) = encoded {
            self.transport.release(slot);
            return Err(unencodable(M::NAME, error));
        }
        self.transport.post(slot, delivery);
        Ok(slot)
    }

    /// Posts a request of a method with older versions to a server that declares the service differently.
    #[cold]
    fn post_versioned<M: Method, P: Payload + ?Sized>(
        &mut self,
        arguments: &P,
        len: usize,
    ) -> Result<SlotId, RpcError> {
        let delivery = Delivery::of(M::IDEMPOTENT);
        let checked =
            self.compatibility.as_ref().map(|it| it.check(M::ID, delivery)).transpose()?;
        let Some(Fit { delivery, older: Some(older) }) = checked else {
            let delivery = checked.map_or(delivery, |fit| fit.delivery);
            return self.post_newest::<M, P>(arguments, len, delivery);
        };
        let arguments = older.encode::<M, P>(arguments, &mut self.older_call)?;
        let header = RequestHeader::new(older.id, self.timeout_us);
        let posted = self.transport.post_parts(header.bytes(), Body::Borrowed(arguments), delivery);
        if self.older_call.capacity() > KEPT_BYTES {
            self.older_call = Vec::new();
        }
        posted.map_err(|error| self.no_slot(error.into()))
    }

    #[cold]
    fn release_unposted(&mut self) {
        if let Some(slot) = self.unposted.take() {
            self.transport.release(slot);
        }
    }

    /// Why there is no slot. If the connection is closed, the reason says more than that it is.
    #[cold]
    fn no_slot(&self, error: RpcError) -> RpcError {
        match (error, self.calls.why_closed()) {
            (RpcError::PeerGone { .. }, Some(why)) => {
                RpcError::from(TransportFailure { may_have_run: false, ..why })
            }
            (error, _) => error,
        }
    }

    /// The window is full: polls until one of the started calls ends, at most until this call's deadline.
    #[cold]
    fn post_when_possible<M: Method, P: Payload + ?Sized>(
        &mut self,
        arguments: &P,
    ) -> Result<SlotId, RpcError> {
        self.now = self.site.now();
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
                self.now = self.site.now();
                if self.now >= deadline {
                    let waited = Waited::ForWindow;
                    return Err(RpcError::DeadlineExceeded { may_have_run: false, waited });
                }
                let wake = deadline.min(self.calls.earliest());
                let (site, transport) = (&self.site, &mut *self.transport);
                rest(site, transport, &mut idler, self.now, wake, progress.next);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.check_home();
        self.transport.close(Closing::Goodbye);
    }
}

#[cold]
pub(crate) fn unencodable(method: &str, error: codec::EncodeError) -> RpcError {
    let what = format!("arguments of {method}: {error}").into();
    RpcError::Malformed { may_have_run: false, what }
}

/// Rests after an empty poll, after the clock was read.
fn rest(
    site: &Site,
    transport: &mut dyn ClientTransport,
    idler: &mut Idler,
    now: Instant,
    deadline: Instant,
    next: PollAt,
) {
    match (idler.rest(now), next) {
        (Rest::Spin, _) | (_, PollAt::Now) => {}
        (Rest::Yield, _) => std::thread::yield_now(),
        (Rest::Park, PollAt::At(at)) => sleep(site, transport, at.min(deadline)),
        (Rest::Park, PollAt::OnEvent) => sleep(site, transport, deadline),
    }
}

/// Sleeps until an event or `until`, unless something has arrived already.
fn sleep(site: &Site, transport: &mut dyn ClientTransport, until: Instant) {
    blocking::warn_of_server_thread();
    let asleep = site.fall_asleep();
    if transport.arm(None).may_sleep() {
        asleep.sleep((until != Instant::FAR_FUTURE).then_some(until));
    }
}

/// Takes the answer of one call, and keeps the answers of others for their callers.
struct Awaited<'a, M: Method> {
    calls: &'a mut Calls,
    slot: SlotId,
    ended: Ended<M::Output>,
    short: Short,
}

/// A request is encoded into this slot. Only dropped by a panic.
struct Encoding<'c> {
    slot: SlotId,
    unposted: &'c mut Option<SlotId>,
}

impl Drop for Encoding<'_> {
    fn drop(&mut self) {
        *self.unposted = Some(self.slot);
    }
}

/// How the awaited call has ended.
enum Ended<R> {
    Not,
    /// With a value of this many bytes, which the caller reads.
    Short(usize),
    /// With a result that was read straight from the transport's buffer.
    Read(R),
    /// Code of the caller's panicked that reads the result. It unwinds when the transport's poll is over.
    Panicked(Box<dyn Any + Send>),
}

/// The longest value that the caller reads itself.
const SHORT_BYTES: usize = 64;

/// A short value, on its way from the transport's buffer to the caller.
///
/// The caller decodes it straight into the result. A result that is decoded in the callback would have to be moved there.
/// Moving a `Result<[u8; 32], _>`, whose value follows a one-byte tag, takes loads that straddle the stores just made;
/// each such load waits until the earlier stores have left the core.
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

    fn read(&mut self, answer: Answer<'_>) {
        let read = catch_unwind(AssertUnwindSafe(|| M::read(answer)));
        self.ended = read.map_or_else(Ended::Panicked, Ended::Read);
    }
}

impl<M: Method> ReplySink for Awaited<'_, M> {
    #[inline]
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        if slot != self.slot {
            return self.calls.reply(slot, message);
        }
        match wire::open_response(message) {
            Answer::Value(Message::Borrowed(body)) if body.len() <= SHORT_BYTES => {
                self.short.0[..body.len()].copy_from_slice(body);
                self.ended = Ended::Short(body.len());
            }
            answer => self.read(answer),
        }
    }

    #[cold]
    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        if slot == self.slot {
            self.read(Answer::Failed(why.into()));
        } else {
            self.calls.failed(slot, why);
        }
    }

    #[cold]
    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        if slots.contains(&self.slot.index) && matches!(self.ended, Ended::Not) {
            self.read(Answer::Failed(why.into()));
        }
        self.calls.lane_lost(slots, why);
    }

    #[cold]
    fn closed(&mut self, why: TransportFailure) {
        if matches!(self.ended, Ended::Not) {
            self.read(Answer::Failed(why.into()));
        }
        self.calls.closed(why);
    }
}
