//! The server's half: one thread's connections.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{CallToken, Message, Replies, RequestSink, ServerTransport, Unpark};
use farcall_verbs::{CompletionChannel, CompletionQueue, CqError, Device, Status, WorkCompletion};

use super::clients::{Clients, Drop as Why};
use super::intake::{Arrival, Door};
use super::pace::{MEMORY_RETRY_NANOS, POLL_BATCH, Waker, sleep_time};
use crate::address::Limits;
use crate::backend::SetupError;
use crate::memory::{Budget, Exposure, LargeBuffers};

/// All connections of one server thread.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped in this order: queue pairs, completion queue, channel, device.
    clients: Clients,
    cq: CompletionQueue,
    channel: CompletionChannel,
    completions: Box<[WorkCompletion]>,
    /// Completions found while going to sleep, for the next poll.
    held: usize,
    scratch: Box<[u8]>,
    arrivals: Receiver<Arrival>,
    closed: bool,
    device: Device,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and the door through which they come.
    pub(crate) fn new(
        device: &Device,
        limits: &Limits,
        completions: usize,
        max_clients: usize,
    ) -> Result<(Server, Arc<Door>), SetupError> {
        let channel = device.create_completion_channel()?;
        let capacity =
            completions.saturating_mul(max_clients).clamp(completions, device.caps().max_cqe);
        let cq = device.create_cq(capacity, Some(&channel))?;
        let (door, arrivals) = Door::new(device, cq.handle(), capacity, &channel, max_clients);
        let budget = Budget::new(limits.memory);
        let assembly = LargeBuffers::new(&device.alloc_pd()?, Exposure::Private, &budget);
        let server = Server {
            clients: Clients::new(device, Arc::clone(&door), assembly, budget),
            cq,
            channel,
            completions: std::iter::repeat_with(WorkCompletion::default).take(POLL_BATCH).collect(),
            held: 0,
            scratch: vec![0; limits.slot as usize].into(),
            arrivals,
            closed: false,
            device: device.clone(),
        };
        Ok((server, door))
    }

    #[cold]
    fn take_arrivals(&mut self, sink: &mut dyn RequestSink) {
        // First the flag, then the news: what comes in between raises it again.
        self.clients.door.take_news();
        for arrival in self.arrivals.try_iter() {
            match arrival {
                Arrival::New(entry) => self.clients.insert(entry),
                Arrival::Withdrawn { client, generation } => {
                    let entry = self.clients.entries.get(client as usize);
                    let same = entry
                        .and_then(|entry| entry.as_ref())
                        .is_some_and(|entry| entry.generation == generation);
                    if same {
                        self.clients.remove(client, Why::Goodbye, sink);
                    }
                }
            }
        }
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
            PollAt::At(now.saturating_add_nanos(MEMORY_RETRY_NANOS))
        } else {
            PollAt::OnEvent
        }
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
            Err(error) => return self.end_all(error, sink),
        };
        // After the poll: whoever has sent a request has been announced before.
        if self.clients.door.has_news() {
            self.take_arrivals(sink);
        }
        for completion in &self.completions[..found] {
            self.clients.complete(completion, &mut self.scratch, now, sink);
        }
        let mut next = PollAt::OnEvent;
        if self.clients.need_attention() {
            next = self.attend(now, sink);
        }
        if found == self.completions.len() {
            next = PollAt::Now;
        }
        Progress { worked: found as u32, next, scanned: self.cq.scanned() }
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
        let news = |clients: &Clients| clients.door.has_news() || !clients.broken.is_empty();
        if self.held > 0 || news(&self.clients) {
            return;
        }
        self.cq.arm();
        // What came before the queue was armed makes no event.
        self.held = self.cq.poll(&mut self.completions).unwrap_or(0);
        if self.held > 0 || news(&self.clients) {
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
