//! The server's half: one thread's sessions.

use std::sync::Arc;

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{Replies, RequestSink, ServerTransport, Unpark};
use farcall_verbs::{CqError, Device, ProtectionDomain};

use super::intake::{Contact, DatagramIntake, MAX_SESSIONS, Us};
use super::port::Port;
use super::round_trip::CAP_NANOS;
use super::sessions::{End, STEPS_PER_POLL, Sessions};
use super::setup::{Sizes, qkey};
use crate::address::Limits;
use crate::backend::SetupError;
use crate::completions::{Completions, Nobody};
use crate::door::Door;
use crate::memory::{self, Budget, Exposure, LargeBuffers};

/// A client that misses an answer asks again within this time; afterwards it has it.
const LINGER_NANOS: u64 = 2 * CAP_NANOS;

/// So long a server that ends waits until its clients have answered its goodbye. Those that do not look at it are
/// told by the end of their tether.
const PARTING_NANOS: u64 = 50_000_000;

/// How often it is said meanwhile.
const GOODBYE_EVERY_NANOS: u64 = 5_000_000;

/// How often a server thread whose queues are in error makes new ones.
const ANEW_EVERY_NANOS: u64 = 100_000_000;

/// All sessions of one server thread.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped in this order: queue pair, completion queue.
    pub(super) sessions: Sessions,
    completions: Completions,
    /// When answers left last.
    answered: Instant,
    closed: bool,
    /// Until when clients may answer the goodbye, and when they are told it again.
    parting: Option<(Instant, Instant)>,
    us: Arc<Us>,
    /// Broken queues are not made anew before this.
    anew_at: Instant,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and where they come in.
    pub(crate) fn new(
        device: &Device,
        limits: &Limits,
        max_clients: usize,
    ) -> Result<(Server, DatagramIntake), SetupError> {
        let sizes = Sizes::of_server(device.caps(), limits.without);
        let completions = Completions::in_batches(device, sizes.completions(), sizes.batch)?;
        let pd = device.alloc_pd()?;
        let (port, contact) = open(device, &pd, &completions, &sizes)?;
        let budget = Budget::new(limits.memory);
        let buffers = LargeBuffers::new(&pd, Exposure::Private, &budget);
        let us = Arc::new(Us::new(device, pd, contact, sizes));
        let (door, arrivals) = Door::new(&completions, max_clients.min(MAX_SESSIONS));
        let server = Server {
            sessions: Sessions::new(device, port, arrivals, buffers, budget, limits.silence),
            completions,
            answered: Instant::ZERO,
            closed: false,
            parting: None,
            us: Arc::clone(&us),
            anew_at: Instant::ZERO,
        };
        Ok((server, DatagramIntake { door, us }))
    }

    /// The queues are in error: no session of this thread can go on, and no other can begin until there are new ones.
    #[cold]
    fn begin_anew(
        &mut self,
        error: &dyn std::fmt::Display,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        let us = Arc::clone(&self.us);
        let mut contact = us.contact();
        // Also those who were told of the old queue pair, and do not know yet.
        self.sessions.take_arrivals(sink);
        self.end_all(error, sink);
        if self.closed {
            return Progress::IDLE;
        }
        if now >= self.anew_at {
            self.anew_at = now.saturating_add_nanos(ANEW_EVERY_NANOS);
            let Us { device, pd, sizes, .. } = &*us;
            let renewed = self.completions.renew();
            match renewed.and_then(|()| open(device, pd, &self.completions, sizes)) {
                Ok((port, told)) => {
                    (self.sessions.port, *contact) = (port, told);
                    self.sessions.failed = false;
                    return Progress::IDLE;
                }
                Err(error) => tracing::error!(%error, "a server thread has no queue pair"),
            }
        }
        Progress { next: PollAt::At(self.anew_at), ..Progress::IDLE }
    }

    fn end_all(&mut self, error: &dyn std::fmt::Display, sink: &mut dyn RequestSink) {
        if self.sessions.count > 0 {
            tracing::error!(%error, "dropping all clients of this thread");
        }
        for number in 0..self.sessions.entries.len() as u32 {
            self.sessions.remove(number, End::Lost, sink);
        }
    }

    /// The rare work: parts of long answers, requests that wait for memory.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn RequestSink) -> (usize, PollAt) {
        let sessions = &mut self.sessions;
        if std::mem::take(&mut sessions.shortage) {
            sessions.buffers.trim();
            sessions.find_stalled(now);
            // Sets it again if there is still none.
            sessions.serve_waiting(now);
        }
        while let Some(number) = sessions.stalled.pop() {
            sessions.remove(number, End::Stalled, sink);
        }
        // What is said here leaves at once: the turn may have nothing else to send.
        let parts = sessions.ring();
        let next = if parts == STEPS_PER_POLL {
            PollAt::Now
        } else if sessions.shortage {
            // Memory comes back from handlers without an event.
            PollAt::At(now.saturating_add_nanos(memory::RETRY_NANOS))
        } else {
            PollAt::OnEvent
        };
        (parts, next)
    }

    fn needs_attention(&self) -> bool {
        self.sessions.has_posts() || self.sessions.shortage || !self.sessions.stalled.is_empty()
    }
}

/// A queue pair for these completions, and what clients are told of it.
fn open(
    device: &Device,
    pd: &ProtectionDomain,
    completions: &Completions,
    sizes: &Sizes,
) -> Result<(Port, Contact), SetupError> {
    let mut port = Port::open(device, pd, &completions.queue(), sizes)?;
    let endpoint = port.qp().endpoint();
    let qkey = qkey(&endpoint, device.now_ns());
    port.activate(qkey)?;
    Ok((port, Contact { endpoint, qkey }))
}

impl ServerTransport for Server {
    #[inline]
    fn now(&self) -> Instant {
        self.completions.now()
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let completed = match self.completions.poll() {
            Ok(completed) => completed,
            Err(error @ CqError::DeviceLost) => {
                self.end_all(&error, sink);
                return Progress::IDLE;
            }
            Err(error) => return self.begin_anew(&error, now, sink),
        };
        let found = completed.len();
        self.sessions.turn = self.sessions.turn.wrapping_add(1);
        // After the poll: whoever has sent a request has been announced before.
        if self.sessions.arrivals.has_news() {
            self.sessions.take_arrivals(sink);
        }
        for completion in completed {
            self.sessions.complete(completion, now, sink);
        }
        if self.sessions.failed || self.sessions.port.is_broken() {
            return self.begin_anew(&"its queue pair is in error", now, sink);
        }
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        // Where requests came, what there is to say leaves with their answers, in the turn's flush.
        if self.needs_attention() && (found == 0 || self.sessions.shortage) {
            let (parts, next) = self.attend(now, sink);
            progress.worked += parts as u32;
            progress.next = next;
        }
        let Sessions { settling, entries, .. } = &mut self.sessions;
        if settling.is_due(now) {
            settling.step(entries, now);
        }
        progress.next = progress.next.earlier(settling.poll_at());
        if self.completions.is_batch(found) {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.completions.scanned();
        progress
    }

    #[inline]
    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.sessions
    }

    #[inline]
    fn flush(&mut self, now: Instant) {
        if self.sessions.has_answers() {
            self.answered = now;
        }
        if self.sessions.has_posts() {
            self.sessions.ring();
        }
    }

    fn park(&mut self, until: Option<Instant>) {
        let sessions = &self.sessions;
        self.completions.park(until, || sessions.has_news());
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.completions.unparker()
    }

    fn connections(&self) -> usize {
        self.sessions.count
    }

    fn has_unfetched(&self) -> bool {
        // Whole answers are acknowledged only by the next request; a client that misses one asks for it soon.
        let lingers = self.answered.saturating_add_nanos(LINGER_NANOS) > self.now()
            && self.sessions.count > 0
            && self.answered > Instant::ZERO;
        lingers || self.sessions.has_posts() || self.sessions.has_offers()
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.sessions.say_goodbye();
        }
    }

    fn has_left(&mut self, now: Instant) -> bool {
        // Requests that come now are not taken: their clients are told goodbye.
        self.poll(now, &mut Nobody);
        let again = now.saturating_add_nanos(GOODBYE_EVERY_NANOS);
        let first = (now.saturating_add_nanos(PARTING_NANOS), again);
        let (until, say_at) = self.parting.get_or_insert(first);
        if now >= *say_at {
            *say_at = again;
            self.sessions.say_goodbye();
        }
        let is_over = self.sessions.count == 0 || now >= *until;
        self.sessions.ring();
        is_over && !self.sessions.has_posts() && self.sessions.port.has_left()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}
