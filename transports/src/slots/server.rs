//! The server's half: one thread's connections.

use std::sync::Arc;

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{Replies, RequestSink, ServerTransport, WindDown};
use farcall_verbs::{CqError, Device, Drafts, Status};

use super::carrier::{ServerCarrier, Shared};
use super::connection::Connection;
use super::requests::{Clients, Disconnect};
use crate::contract::{Config, SetupError};
use crate::kit::accept_queue::Arrivals;
use crate::kit::clusters::{ClusterQueue, Clusters};
use crate::kit::completions::DiscardRequests;
use crate::kit::lending::{Lending, Shortage};
use crate::kit::memory::{Budget, Exposure, LargeBuffers};
use crate::kit::roster::Roster;
use crate::kit::scratch::Scratch;

/// All connections of one server thread.
#[derive(Debug)]
pub(crate) struct Server<C: ServerCarrier, S: Shared<C>> {
    // Dropped in this order: queue pairs, completion queues.
    clients: Clients<C>,
    queues: Vec<ClusterQueue>,
    /// Queues that have failed, while clients that were placed there may still arrive.
    failed: Vec<ClusterQueue>,
    clusters: Arc<Clusters>,
    shared: S,
    scratch: Scratch,
    is_closed: bool,
}

impl<C: ServerCarrier, S: Shared<C>> Server<C, S> {
    /// A server thread's half for the clients that arrive, whose completions come to the queues of these clusters.
    pub(crate) fn new(
        device: &Device,
        config: &Config,
        arrivals: Arrivals<Connection<C>>,
        clusters: &Arc<Clusters>,
        shared: S,
    ) -> Result<Server<C, S>, SetupError> {
        let budget = Budget::new(config.memory);
        let assembly = LargeBuffers::new(&device.alloc_pd()?, Exposure::Private, &budget);
        let (roster, lending) = (Roster::new(arrivals), Lending::new(budget));
        Ok(Server {
            clients: Clients::new(roster, lending, assembly, Drafts::new(device)),
            queues: clusters.take_new().collect(),
            failed: Vec::new(),
            clusters: Arc::clone(clusters),
            shared,
            scratch: Scratch::new(config.slot as usize),
            is_closed: false,
        })
    }

    /// A completion queue lost completions, or its device is gone: none of its connections can go on, those of other queues can. New
    /// clients get another queue.
    #[cold]
    fn give_up_queue(
        &mut self,
        number: usize,
        error: CqError,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        if error == CqError::DeviceLost {
            return self.lose_device(sink);
        }
        tracing::error!(%error, "dropping the clients of a completion queue that has failed");
        let queue = self.queues.swap_remove(number);
        self.clusters.forget(&queue);
        self.failed.push(queue);
        self.drop_clients_of_failed(sink);
        // Those that have come in this poll may complete at a new one.
        self.queues.extend(self.clusters.take_new());
        self.shared.replenish();
        Progress { worked: 1, next: PollAt::Now, scanned: 0 }
    }

    /// The device is gone: nobody can go on.
    #[cold]
    fn lose_device(&mut self, sink: &mut dyn RequestSink) -> Progress {
        tracing::error!(
            "dropping all clients of this thread: its device was removed, or has failed"
        );
        // Those that arrive from now on are dropped too.
        self.failed.append(&mut self.queues);
        self.drop_clients_of_failed(sink);
        sink.device_lost();
        Progress::IDLE
    }

    /// Drops clients whose completion queue has failed, those too that were placed there and arrive only now.
    #[cold]
    fn drop_clients_of_failed(&mut self, sink: &mut dyn RequestSink) {
        for client in 0..self.clients.roster.end() {
            let Some(connection) = self.clients.roster.get(client) else { continue };
            if self.failed.iter().any(|queue| connection.completes_at(queue)) {
                self.clients.remove(client, Disconnect::Lost(Status::LocalProtection), sink);
            }
        }
        // The entries of a client that is on its way are taken.
        self.failed.retain(|queue| queue.entries.used() > 0);
    }

    /// The rare work: clients whose posts failed, requests that wait for memory.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn RequestSink) -> PollAt {
        let clients = &mut self.clients;
        match clients.lending.take_shortage() {
            Shortage::None => {}
            Shortage::Shares => clients.find_stalled(Shortage::Shares, now),
            Shortage::Memory => {
                clients.trim();
                clients.find_stalled(Shortage::Memory, now);
                clients.serve_waiting(now);
            }
        }
        let reads_on = clients.read_requests();
        // Grants leave at once: the turn may have nothing else to send.
        clients.ring();
        while let Some(client) = clients.broken.pop() {
            let Some(connection) = clients.roster.get(client) else { continue };
            let why = match connection.link.is_flooded() {
                true => "it asks on and on, and takes no answers".into(),
                false => Disconnect::Lost(Status::Flushed),
            };
            clients.remove(client, why, sink);
        }
        if reads_on { PollAt::Now } else { clients.lending.poll_at(now) }
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

impl<C: ServerCarrier, S: Shared<C>> ServerTransport for Server<C, S> {
    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let mut progress = Progress::IDLE;
        let mut have_come = false;
        for (number, ClusterQueue { completions: queue, .. }) in self.queues.iter_mut().enumerate()
        {
            let completed = match queue.poll() {
                Ok(completed) => completed,
                Err(error) => return progress.and(self.give_up_queue(number, error, sink)),
            };
            let found = completed.len();
            // After the poll: a client that has sent a request was announced before.
            if self.clients.roster.has_news() {
                self.clients.take_arrivals(sink);
                have_come = true;
            }
            for completion in completed {
                self.clients.complete(completion, &mut self.scratch, now, sink);
                self.shared.recycle(completion);
            }
            progress.worked += found as u32;
            progress.scanned += queue.scanned();
            if queue.is_batch(found) {
                progress.next = PollAt::Now;
            }
        }
        if progress.worked == 0 {
            self.scratch.read_ahead();
        }
        if self.queues.is_empty() && self.clients.roster.has_news() {
            self.clients.take_arrivals(sink);
            have_come = true;
        }
        if have_come {
            self.queues.extend(self.clusters.take_new());
            if !self.failed.is_empty() {
                self.drop_clients_of_failed(sink);
            }
            self.shared.replenish();
            progress.next = PollAt::Now;
        }
        if C::LOOKS {
            let Server { clients, shared, scratch, .. } = self;
            progress = progress.and(shared.look(clients, scratch, now, sink));
        }
        if self.clients.need_attention() {
            progress.next = progress.next.earlier(self.attend(now, sink));
        }
        progress
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
        if C::LOOKS && !self.shared.arm(&mut self.clients) {
            return false;
        }
        let Server { clients, queues, .. } = self;
        if clients.can_read() {
            return false;
        }
        let has_work = || clients.roster.has_news() || !clients.broken.is_empty();
        if queues.is_empty() && has_work() {
            return false;
        }
        queues.iter_mut().all(|queue| queue.completions.arm(has_work))
    }

    fn connections(&self) -> usize {
        self.clients.roster.count()
    }

    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool {
        if step == WindDown::Drain {
            if C::LOOKS {
                self.clients.stop_placing();
            }
            return !self.clients.has_unfetched();
        }
        self.say_goodbye();
        self.poll(now, &mut DiscardRequests);
        self.clients.ring();
        self.clients.roster.iter().all(|connection| connection.link.has_left())
    }
}

impl<C: ServerCarrier, S: Shared<C>> Drop for Server<C, S> {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}
