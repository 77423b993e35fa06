//! The server's half: one thread's connections.

use std::sync::Arc;

use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{Replies, RequestSink, ServerTransport, WindDown};
use farcall_verbs::{CompletionQueueHandle, CqError, Device, Drafts, Status};

use super::connection::Connection;
use super::layout::MAX_CLIENTS;
use super::requests::{Clients, Disconnect};
use super::setup::{Port, Side, Sizes};
use crate::contract::{Accepted, Config, Intake, NewClient, OnDisconnect, SetupError};
use crate::kit::accept_queue::{AcceptQueue, ClientId};
use crate::kit::completions::{Completions, DiscardRequests};
use crate::kit::lending::Lending;
use crate::kit::memory::{Budget, Exposure, LargeBuffers};
use crate::kit::roster::Roster;
use crate::rendezvous::server::LargeMessages;

/// All connections of one server thread.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped in this order: queue pairs, completion queue.
    clients: Clients,
    completions: Completions,
    scratch: Box<[u8]>,
    is_closed: bool,
}

/// Where the accepting threads make the server's ends of connections.
#[derive(Debug)]
pub(crate) struct WriteImmIntake {
    queue: Arc<AcceptQueue<Connection>>,
    device: Device,
    cq: CompletionQueueHandle,
    /// Entries of the completion queue, of which each client has its own.
    completions: Arc<Budget>,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and where they come in.
    pub(crate) fn new(
        site: &Site,
        device: &Device,
        config: &Config,
        max_clients: usize,
    ) -> Result<(Server, WriteImmIntake), SetupError> {
        let each = Sizes::new(&config.terms(), device.caps()).completions();
        let capacity = each.saturating_mul(max_clients).clamp(each, device.caps().max_cqe);
        let completions = Completions::new(site, device, capacity)?;
        let cq = completions.queue();
        let (queue, arrivals) = AcceptQueue::new(site, max_clients.min(MAX_CLIENTS as usize));
        let budget = Budget::new(config.memory);
        let assembly = LargeBuffers::new(&device.alloc_pd()?, Exposure::Private, &budget);
        let (roster, lending) = (Roster::new(arrivals), Lending::new(budget));
        let server = Server {
            clients: Clients::new(roster, lending, assembly, Drafts::new(device)),
            completions,
            scratch: vec![0; config.slot as usize].into(),
            is_closed: false,
        };
        let (device, completions) = (device.clone(), Budget::new(capacity as u64));
        Ok((server, WriteImmIntake { queue, device, cq, completions }))
    }

    /// The completion queue lost completions, or its device is gone: no connection of this thread can go on.
    #[cold]
    fn drop_all(&mut self, error: CqError, sink: &mut dyn RequestSink) -> Progress {
        if self.clients.roster.count() > 0 {
            tracing::error!(%error, "dropping all clients of this thread");
        }
        for client in 0..self.clients.roster.end() {
            self.clients.remove(client, Disconnect::Lost(Status::LocalProtection), sink);
        }
        Progress::IDLE
    }

    /// The rare work: clients whose posts failed, requests that wait for memory.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn RequestSink) -> PollAt {
        let clients = &mut self.clients;
        if clients.lending.take_shortage() {
            clients.trim();
            clients.find_stalled(now);
            clients.serve_waiting(now);
        }
        // Grants leave at once: the turn may have nothing else to send.
        clients.ring();
        while let Some(client) = clients.broken.pop() {
            clients.remove(client, Disconnect::Lost(Status::Flushed), sink);
        }
        clients.lending.poll_at(now)
    }

    fn say_goodbye(&mut self) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.clients.ring();
        for client in 0..self.clients.roster.end() {
            if let Some(connection) = self.clients.roster.get(client) {
                connection.link.post_goodbye();
                self.clients.roster.enter_line(client);
            }
        }
        self.clients.ring();
    }
}

impl ServerTransport for Server {
    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let completed = match self.completions.poll() {
            Ok(completed) => completed,
            Err(error) => return self.drop_all(error, sink),
        };
        let found = completed.len();
        // After the poll: a client that has sent a request was announced before.
        if self.clients.roster.has_news() {
            self.clients.take_arrivals(sink);
        }
        for completion in completed {
            self.clients.complete(completion, &mut self.scratch, now, sink);
        }
        let mut next = PollAt::OnEvent;
        if self.clients.need_attention() {
            next = self.attend(now, sink);
        }
        if self.completions.is_batch(found) {
            next = PollAt::Now;
        }
        Progress { worked: found as u32, next, scanned: self.completions.scanned() }
    }

    #[inline]
    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.clients
    }

    #[inline]
    fn flush(&mut self) {
        self.clients.ring();
    }

    fn arm(&mut self) -> bool {
        let Server { clients, completions, .. } = self;
        completions.arm(|| clients.roster.has_news() || !clients.broken.is_empty())
    }

    fn connections(&self) -> usize {
        self.clients.roster.count()
    }

    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool {
        if step == WindDown::Drain {
            return !self.clients.has_unfetched();
        }
        self.say_goodbye();
        self.poll(now, &mut DiscardRequests);
        self.clients.ring();
        self.clients.roster.iter().all(|connection| connection.link.has_left())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

impl WriteImmIntake {
    /// The server's end of a connection, and what its client must know of it.
    fn make(
        &self,
        id: ClientId,
        client: &NewClient<'_>,
        on_disconnect: &OnDisconnect,
    ) -> Result<(Vec<u8>, Connection), SetupError> {
        let NewClient { terms, setup, timeout } = *client;
        let completions = Sizes::new(terms, self.device.caps()).completions() as u64;
        let Some(completions) = self.completions.charge(completions) else {
            return Err(SetupError::Full(format!(
                "the completion queue of {} entries is full; more server threads, or a smaller window, make room",
                self.completions.limit()
            )));
        };
        let port = Port::open(&self.device, &self.cq, terms, id.number)?;
        let ours = port.setup();
        let (link, pd) = port.connect(&self.device, terms, setup, Side::Server, timeout)?;
        let large = LargeMessages::new(terms.window, pd);
        let guard = on_disconnect.guard();
        Ok((ours, Connection::new(link, large, id, terms, completions, guard)))
    }
}

impl Intake for WriteImmIntake {
    fn accept(&self, client: NewClient<'_>) -> Result<Accepted, SetupError> {
        self.queue.accept(|id, on_disconnect| self.make(id, &client, on_disconnect))
    }
}
