//! The server's half: one thread's sessions.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientId, Replies, RequestSink, ServerTransport, WindDown};
use farcall_verbs::{CqError, Device, ProtectionDomain};

use super::ablation::Without;
use super::idle_sessions::IdleSessions;
use super::outgoing::{Outgoing, STEPS_PER_POLL};
use super::port::{Peer, Port, PortAddress};
use super::requests::{Disconnect, Sessions};
use super::session::{Bounds, Session};
use super::setup::{EndSetup, Sizes, max_small, part_bytes};
use crate::contract::{
    Accepted, Config, Intake, NewClient, OnDisconnect, Placement, SetupError, Source, Terms,
};
use crate::kit::accept_queue::AcceptQueue;
use crate::kit::completions::{Completions, DiscardRequests};
use crate::kit::lending::{Lending, Shortage};
use crate::kit::memory::{Budget, Exposure, LargeBuffers};
use crate::kit::roster::Roster;
use crate::repair::round_trip::CAP_NANOS;

/// Most sessions of one server thread.
const MAX_SESSIONS: usize = 1 << 20;

/// A client that misses a response asks again within this time; afterwards it has it.
const LINGER_NANOS: u64 = 2 * CAP_NANOS;

/// How long a server that ends waits until its clients have answered its goodbye. Those that do not poll learn of its end
/// by the liveness socket.
const GOODBYE_NANOS: u64 = 50_000_000;

/// How often it says goodbye meanwhile.
const GOODBYE_EVERY_NANOS: u64 = 5_000_000;

/// How often a server thread whose queues are in error tries to make new ones.
const RENEW_EVERY_NANOS: u64 = 100_000_000;

/// All sessions of one server thread.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped in this order: queue pair, completion queue.
    pub(super) sessions: Sessions,
    completions: Completions,
    local: Arc<LocalEnd>,
    polled_at: Instant,
    /// When replies left last.
    replied_at: Instant,
    /// When it stops to wait for its clients' goodbyes, and when it says its own again.
    goodbye: Option<(Instant, Instant)>,
    is_closed: bool,
    /// When it may try to make new queues.
    renew_at: Instant,
}

/// Where the accepting threads make the server's ends of sessions.
#[derive(Debug)]
pub(crate) struct DatagramIntake {
    queue: Arc<AcceptQueue<Session>>,
    local: Arc<LocalEnd>,
}

/// The local end of all sessions of a server thread.
#[derive(Debug)]
struct LocalEnd {
    device: Device,
    pd: ProtectionDomain,
    sizes: Sizes,
    port: Mutex<PortAddress>,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and where they come in.
    pub(crate) fn new(
        at: &Placement<'_>,
        device: &Device,
        config: &Config,
        max_clients: usize,
    ) -> Result<(Server, DatagramIntake), SetupError> {
        let site = at.site;
        let sizes = Sizes::of_server(device.caps(), Without::of(config));
        let completions = Completions::in_batches(site, device, sizes.completions(), sizes.batch)?;
        let pd = device.alloc_pd()?;
        let (port, address) = Port::open(device, &pd, &completions.queue(), &sizes)?;
        let budget = Budget::new(config.memory);
        let places = at.places_for(config, max_clients);
        let (queue, arrivals) = AcceptQueue::new(site, (places, max_clients.min(MAX_SESSIONS)));
        let sessions = Sessions {
            roster: Roster::new(arrivals),
            outgoing: Outgoing::new(port),
            buffers: LargeBuffers::new(&pd, Exposure::Private, &budget),
            lending: Lending::new(budget),
            idle: IdleSessions::new(config.silence),
            broken: Vec::new(),
        };
        let (device, port) = (device.clone(), Mutex::new(address));
        let local = Arc::new(LocalEnd { device, pd, sizes, port });
        let server = Server {
            sessions,
            completions,
            local: Arc::clone(&local),
            polled_at: Instant::ZERO,
            replied_at: Instant::ZERO,
            goodbye: None,
            is_closed: false,
            renew_at: Instant::ZERO,
        };
        Ok((server, DatagramIntake { queue, local }))
    }

    /// The queues are in error: no session of this thread can go on, and none can begin until there are new queues.
    #[cold]
    fn renew(&mut self, error: &dyn Display, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let local = Arc::clone(&self.local);
        let mut address = local.port();
        // Also those that were told of the old queue pair, and have not sent anything yet.
        self.sessions.take_arrivals(sink);
        self.drop_all(error, sink);
        if self.is_closed {
            return Progress::IDLE;
        }
        if now >= self.renew_at {
            self.renew_at = now.saturating_add_nanos(RENEW_EVERY_NANOS);
            let LocalEnd { device, pd, sizes, .. } = &*local;
            let renewed = self.completions.renew();
            match renewed.and_then(|()| Port::open(device, pd, &self.completions.queue(), sizes)) {
                Ok((port, new_address)) => {
                    (self.sessions.outgoing.port, *address) = (port, new_address);
                    return Progress::IDLE;
                }
                Err(error) => tracing::error!(%error, "a server thread has no queue pair"),
            }
        }
        Progress { next: PollAt::At(self.renew_at), ..Progress::IDLE }
    }

    #[cold]
    fn drop_all(&mut self, error: &dyn Display, sink: &mut dyn RequestSink) {
        if self.sessions.roster.count() > 0 {
            tracing::error!(%error, "dropping all clients of this thread");
        }
        for client in 0..self.sessions.roster.end() {
            self.sessions.remove(client, Disconnect::Lost, sink);
        }
    }

    /// The rare work: parts of large responses, requests that wait for memory.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn RequestSink) -> (usize, PollAt) {
        let sessions = &mut self.sessions;
        match sessions.lending.take_shortage() {
            Shortage::None => {}
            Shortage::Shares => sessions.find_stalled(Shortage::Shares, now),
            Shortage::Memory => {
                sessions.buffers.trim();
                sessions.find_stalled(Shortage::Memory, now);
                sessions.serve_waiting(now);
            }
        }
        while let Some(client) = sessions.broken.pop() {
            sessions.remove(client, Disconnect::Stalled, sink);
        }
        // Grants leave at once: the turn may have nothing else to send.
        let parts = sessions.ring();
        let next = match parts {
            STEPS_PER_POLL => PollAt::Now,
            _ => sessions.lending.poll_at(now),
        };
        (parts, next)
    }

    fn say_goodbye(&mut self) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.sessions.say_goodbye();
        }
    }

    /// No client lacks a response. Small ones are acknowledged only by the next request.
    fn is_drained(&self, now: Instant) -> bool {
        let lingers = self.replied_at.saturating_add_nanos(LINGER_NANOS) > now
            && self.sessions.roster.count() > 0
            && self.replied_at > Instant::ZERO;
        let has_lent = self.sessions.roster.iter().any(Session::has_lent);
        !(lingers || self.sessions.has_posts() || has_lent)
    }

    /// Says goodbye again and again, until all clients have answered or for long enough.
    fn close(&mut self, now: Instant) -> bool {
        self.say_goodbye();
        self.poll(now, &mut DiscardRequests);
        let again = now.saturating_add_nanos(GOODBYE_EVERY_NANOS);
        let first = (now.saturating_add_nanos(GOODBYE_NANOS), again);
        let (until, next) = self.goodbye.get_or_insert(first);
        if now >= *next {
            *next = again;
            self.sessions.say_goodbye();
        }
        let is_over = self.sessions.roster.count() == 0 || now >= *until;
        self.sessions.ring();
        is_over && !self.sessions.has_posts() && self.sessions.outgoing.port.has_left()
    }
}

impl ServerTransport for Server {
    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        self.polled_at = now;
        let completed = match self.completions.poll() {
            Ok(completed) => completed,
            Err(error @ CqError::DeviceLost) => {
                self.drop_all(&error, sink);
                sink.device_lost();
                return Progress::IDLE;
            }
            Err(error) => return self.renew(&error, now, sink),
        };
        let found = completed.len();
        let sessions = &mut self.sessions;
        sessions.outgoing.turn = sessions.outgoing.turn.wrapping_add(1);
        // After the poll: a client that has sent a request was announced before.
        if sessions.roster.has_news() {
            sessions.take_arrivals(sink);
        }
        for completion in completed {
            sessions.complete(completion, now, sink);
        }
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        if sessions.outgoing.port.is_broken() {
            return progress.and(self.renew(&"its queue pair is in error", now, sink));
        }
        let has_shortage = sessions.lending.has_shortage();
        let needs_attention = sessions.has_posts() || has_shortage || !sessions.broken.is_empty();
        // Where requests arrived, what waits leaves with their replies, in the turn's flush.
        if needs_attention && (found == 0 || has_shortage) {
            let (parts, next) = self.attend(now, sink);
            progress.worked += parts as u32;
            progress.next = next;
        }
        let Sessions { idle, roster, .. } = &mut self.sessions;
        if idle.is_due(now) {
            idle.step(roster, now);
        }
        progress.next = progress.next.earlier(idle.poll_at());
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
    fn flush(&mut self) {
        if self.sessions.has_replies() {
            self.replied_at = self.polled_at;
        }
        if self.sessions.has_posts() {
            self.sessions.ring();
        }
    }

    fn arm(&mut self) -> bool {
        let Server { sessions, completions, .. } = self;
        completions.arm(|| sessions.has_work())
    }

    fn connections(&self) -> usize {
        self.sessions.roster.count()
    }

    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool {
        match step {
            WindDown::Drain => self.is_drained(now),
            WindDown::Close => self.close(now),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

impl LocalEnd {
    /// Held from a look at it until the session is announced: who replaces the port then knows all sessions that were
    /// made with the one before.
    fn port(&self) -> MutexGuard<'_, PortAddress> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's end of a session, and what its client must know of it.
    fn make(
        &self,
        port: &PortAddress,
        id: ClientId,
        terms: &Terms,
        peer: Peer,
        on_disconnect: &OnDisconnect,
    ) -> Result<(Vec<u8>, Session), SetupError> {
        let (epoch, their_epoch) = (self.device.random()?, self.device.random()?);
        let peer = Peer { epoch, their_epoch, ..peer };
        let ours = EndSetup::new(port, id.number, epoch, peer.mtu());
        let bounds = Bounds {
            window: terms.window,
            max_message: terms.max_message,
            max_small: max_small(terms, peer.mtu()),
            part_bytes: part_bytes(peer.mtu()) as u32,
        };
        Ok((ours.to_bytes(), Session::new(peer, id, bounds, on_disconnect.guard())))
    }
}

impl Intake for DatagramIntake {
    fn accept(&self, client: NewClient<'_>) -> Result<Accepted, SetupError> {
        let NewClient { terms, setup, source, info, .. } = client;
        let theirs = EndSetup::from_bytes(setup)?;
        // Before the lock: the client's address may have to be resolved.
        let peer = theirs.peer(&self.local.pd, 0, self.local.sizes.mtu)?;
        let port = self.local.port();
        self.queue.accept((source, info), |id, on_disconnect| {
            self.local.make(&port, id, terms, peer, on_disconnect)
        })
    }

    fn make_room(&self, source: Source, wait: Duration) -> bool {
        self.queue.make_room(source, wait)
    }
}
