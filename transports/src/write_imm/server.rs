//! The server's half: one thread's connections.

use std::sync::Arc;

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{Replies, RequestSink, ServerTransport, Unpark};
use farcall_verbs::{CqError, Device, Status};

use super::clients::{Clients, Drop as Why};
use super::intake::WriteImmIntake;
use super::layout::MAX_CLIENTS;
use super::setup::Sizes;
use crate::address::Limits;
use crate::backend::SetupError;
use crate::completions::{Completions, Nobody};
use crate::door::Door;
use crate::memory::{self, Budget, Exposure, LargeBuffers};

/// All connections of one server thread.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped in this order: queue pairs, completion queue.
    clients: Clients,
    completions: Completions,
    scratch: Box<[u8]>,
    closed: bool,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and where they come in.
    pub(crate) fn new(
        device: &Device,
        limits: &Limits,
        max_clients: usize,
    ) -> Result<(Server, WriteImmIntake), SetupError> {
        let each = Sizes::new(&limits.terms(), device.caps()).completions();
        let capacity = each.saturating_mul(max_clients).clamp(each, device.caps().max_cqe);
        let completions = Completions::new(device, capacity)?;
        let cq = completions.queue();
        let (door, arrivals) = Door::new(&completions, max_clients.min(MAX_CLIENTS as usize));
        let budget = Budget::new(limits.memory);
        let assembly = LargeBuffers::new(&device.alloc_pd()?, Exposure::Private, &budget);
        let server = Server {
            clients: Clients::new(device, arrivals, assembly, budget),
            completions,
            scratch: vec![0; limits.slot as usize].into(),
            closed: false,
        };
        let (device, completions) = (device.clone(), Budget::new(capacity as u64));
        Ok((server, WriteImmIntake { door, device, cq, completions }))
    }

    /// The completion queue lost completions, or its device is gone: no connection of this thread can go on.
    #[cold]
    fn end_all(&mut self, error: CqError, sink: &mut dyn RequestSink) -> Progress {
        if self.clients.count > 0 {
            tracing::error!(%error, "dropping all clients of this thread");
        }
        for client in 0..self.clients.entries.len() as u32 {
            self.clients.remove(client, Why::Lost(Status::LocalProtection), sink);
        }
        Progress::IDLE
    }

    /// The rare work: clients whose posts failed, requests that wait for memory.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn RequestSink) -> PollAt {
        if std::mem::take(&mut self.clients.shortage) {
            self.clients.trim();
            self.clients.find_stalled(now);
            // Sets it again if there is still none.
            self.clients.serve_waiting(now);
        }
        // Grants leave at once: the turn may have nothing else to send.
        self.clients.ring();
        while let Some(client) = self.clients.broken.pop() {
            self.clients.remove(client, Why::Lost(Status::Flushed), sink);
        }
        if self.clients.need_attention() {
            // Memory comes back from handlers without an event.
            PollAt::At(now.saturating_add_nanos(memory::RETRY_NANOS))
        } else {
            PollAt::OnEvent
        }
    }
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
            Err(error) => return self.end_all(error, sink),
        };
        let found = completed.len();
        // After the poll: whoever has sent a request has been announced before.
        if self.clients.arrivals.has_news() {
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
    fn flush(&mut self, _now: Instant) {
        self.clients.ring();
    }

    fn park(&mut self, until: Option<Instant>) {
        let clients = &self.clients;
        let news = || clients.arrivals.has_news() || !clients.broken.is_empty();
        self.completions.park(until, news);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.completions.unparker()
    }

    fn connections(&self) -> usize {
        self.clients.count
    }

    fn has_unfetched(&self) -> bool {
        self.clients.has_unfetched()
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.clients.ring();
        for client in 0..self.clients.entries.len() as u32 {
            if let Some(entry) = &mut self.clients.entries[client as usize] {
                entry.link.post_goodbye();
            }
            self.clients.touch(client);
        }
        self.clients.ring();
    }

    fn has_left(&mut self, now: Instant) -> bool {
        // Requests that come now are not taken: their clients are told goodbye.
        self.poll(now, &mut Nobody);
        self.clients.ring();
        self.clients.entries.iter().flatten().all(|entry| entry.link.has_left())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}
