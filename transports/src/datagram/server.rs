//! The server's half: one thread's sessions.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{CallToken, Message, Replies, RequestSink, ServerTransport, Unpark};
use farcall_verbs::{CompletionChannel, CompletionQueue, Device, WorkCompletion};

use super::intake::{Arrival, Door, Us};
use super::port::Port;
use super::round_trip::CAP_NANOS;
use super::sessions::{End, STEPS_PER_POLL, Sessions};
use super::setup::{Sizes, qkey};
use crate::address::Limits;
use crate::backend::SetupError;
use crate::memory::{Budget, Exposure, LargeBuffers};
use crate::write_imm::pace::{MEMORY_RETRY_NANOS, POLL_BATCH, Waker, sleep_time};

/// A client that misses an answer asks again within this time; afterwards it has it.
const LINGER_NANOS: u64 = 2 * CAP_NANOS;

/// So long a server that ends waits until its clients have answered its goodbye. Those that do not look at it are
/// told by the end of their tether.
const PARTING_NANOS: u64 = 50_000_000;

/// How often it is said meanwhile.
const GOODBYE_EVERY_NANOS: u64 = 5_000_000;

/// All sessions of one server thread.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped in this order: queue pair, completion queue, channel, device.
    sessions: Sessions,
    cq: CompletionQueue,
    channel: CompletionChannel,
    completions: Box<[WorkCompletion]>,
    /// Completions found while going to sleep, for the next poll.
    held: usize,
    arrivals: Receiver<Arrival>,
    /// When answers left last.
    answered: Instant,
    closed: bool,
    /// Until when clients may answer the goodbye, and when they are told it again.
    parting: Option<(Instant, Instant)>,
    device: Device,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and the door through which they come.
    pub(crate) fn new(
        device: &Device,
        limits: &Limits,
        max_clients: usize,
    ) -> Result<(Server, Arc<Door>), SetupError> {
        let channel = device.create_completion_channel()?;
        let sizes = Sizes::of_server(device.caps());
        let cq = device.create_cq(sizes.completions(), Some(&channel))?;
        let pd = device.alloc_pd()?;
        let mut port = Port::open(device, &pd, &cq.handle(), &sizes)?;
        let endpoint = port.qp().endpoint();
        let qkey = qkey(&endpoint, device.now_ns());
        port.activate(qkey)?;
        let budget = Budget::new(limits.memory);
        let buffers = LargeBuffers::new(&pd, Exposure::Private, &budget);
        let us = Us { device: device.clone(), pd, endpoint, qkey, mtu: sizes.mtu };
        let (door, arrivals) = Door::new(us, &channel, max_clients);
        let server = Server {
            sessions: Sessions::new(device, port, Arc::clone(&door), buffers, budget),
            cq,
            channel,
            completions: std::iter::repeat_with(WorkCompletion::default).take(POLL_BATCH).collect(),
            held: 0,
            arrivals,
            answered: Instant::ZERO,
            closed: false,
            parting: None,
            device: device.clone(),
        };
        Ok((server, door))
    }

    #[cold]
    fn take_arrivals(&mut self, sink: &mut dyn RequestSink) {
        // First the flag, then the news: what comes in between raises it again.
        self.sessions.door.take_news();
        for arrival in self.arrivals.try_iter() {
            match arrival {
                Arrival::New(session) => self.sessions.insert(session),
                Arrival::Withdrawn { number, generation } => {
                    let session = self.sessions.get(number);
                    if session.is_some_and(|session| session.generation == generation) {
                        self.sessions.remove(number, End::Lost, sink);
                    }
                }
            }
        }
    }

    /// The queues are in error, or their device is gone: no session of this thread can go on.
    #[cold]
    fn end_all(&mut self, error: &dyn std::fmt::Display, sink: &mut dyn RequestSink) -> Progress {
        if self.sessions.count > 0 {
            tracing::error!(%error, "dropping all clients of this thread");
        }
        for number in 0..self.sessions.entries.len() as u32 {
            self.sessions.remove(number, End::Lost, sink);
        }
        Progress::IDLE
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
            PollAt::At(now.saturating_add_nanos(MEMORY_RETRY_NANOS))
        } else {
            PollAt::OnEvent
        };
        (parts, next)
    }

    fn needs_attention(&self) -> bool {
        self.sessions.has_posts() || self.sessions.shortage || !self.sessions.stalled.is_empty()
    }

    fn has_news(&self) -> bool {
        let posts = self.sessions.has_posts() && self.sessions.port.has_room();
        posts || self.sessions.door.has_news() || !self.sessions.stalled.is_empty()
    }
}

impl ServerTransport for Server {
    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(self.device.now_ns())
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let found = match std::mem::take(&mut self.held) {
            0 => self.cq.poll(&mut self.completions),
            held => Ok(held),
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.end_all(&error, sink),
        };
        // After the poll: whoever has sent a request has been announced before.
        if self.sessions.door.has_news() {
            self.take_arrivals(sink);
        }
        for completion in &mut self.completions[..found] {
            self.sessions.complete(completion, now, sink);
        }
        if self.sessions.failed || self.sessions.port.is_broken() {
            return self.end_all(&"its queue pair is in error", sink);
        }
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        // Where requests came, what there is to say leaves with their answers, in the turn's flush.
        if self.needs_attention() && (found == 0 || self.sessions.shortage) {
            let (parts, next) = self.attend(now, sink);
            progress.worked += parts as u32;
            progress.next = next;
        }
        if found == self.completions.len() {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.cq.scanned();
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
        if self.held > 0 || self.has_news() {
            return;
        }
        self.cq.arm();
        // What came before the queue was armed makes no event.
        self.held = self.cq.poll(&mut self.completions).unwrap_or(0);
        if self.held > 0 || self.has_news() {
            return;
        }
        let sleep = sleep_time(until, self.now());
        // A failure to sleep is a spurious wake-up: the driver polls and comes back.
        let _ = self.channel.wait(sleep);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Waker(self.channel.clone()))
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

/// Takes no requests.
struct Nobody;

impl RequestSink for Nobody {
    fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {}
    fn cancelled(&mut self, _: u32, _: u32, _: u32, _: u32) {}
    fn disconnected(&mut self, _: u32, _: u32) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}
