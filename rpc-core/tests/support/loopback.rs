//! A transport inside one process, for tests: client and server ends joined by queues.
//!
//! Its clock is either the real one, or virtual: a thread that sleeps at a site in virtual time jumps to the moment until
//! which it would sleep. It keeps its buffers, so that allocations counted over it are those of core.

use farcall_core::Site;
use farcall_core::error::{
    Backpressure, BindError, ConnectError, FailureKind, ReserveError, TransportFailure,
};
use farcall_core::service::ServiceDescription;
use farcall_core::site::{self, EventChannel, SiteResource};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Acceptor, Armed, BindOptions, Binding, Bound, BoundHalf, CallToken, ClientEvent, ClientId,
    ClientTransport, Closing, Delivery, Dial, DialOptions, Limits, Message, NewConnection, Replies,
    ReplySink, RequestSink, ServerTransport, SlotId, WindDown,
};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Duration;

/// The clock of both ends.
#[derive(Clone)]
pub enum Clock {
    Virtual(Arc<AtomicU64>),
    Real(std::time::Instant),
}

impl Clock {
    pub fn virtual_time() -> Clock {
        Clock::Virtual(Arc::default())
    }

    pub fn real() -> Clock {
        Clock::Real(std::time::Instant::now())
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(match self {
            Clock::Virtual(nanos) => nanos.load(Ordering::SeqCst),
            Clock::Real(origin) => origin.elapsed().as_nanos() as u64,
        })
    }

    pub fn advance(&self, by: Duration) {
        match self {
            Clock::Virtual(nanos) => nanos.fetch_add(by.as_nanos() as u64, Ordering::SeqCst),
            Clock::Real(_) => panic!("real time advances by itself"),
        };
    }
}

impl site::Clock for Clock {
    fn now(&self) -> Instant {
        Clock::now(self)
    }
}

/// Ends each sleep of a site in virtual time at once, at the moment until which it would have lasted.
struct VirtualSleep {
    clock: Clock,
    never_readable: File,
}

impl SiteResource for VirtualSleep {
    fn events(&self) -> Option<&dyn EventChannel> {
        Some(self)
    }
}

impl EventChannel for VirtualSleep {
    fn wait(&self, timeout: Duration) {
        self.clock.advance(timeout);
    }

    fn wake(&self) {}

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.never_readable.as_fd()
    }
}

type Frame = (SlotId, Vec<u8>);

/// What is on its way on one connection.
#[derive(Default)]
struct Wires {
    to_server: VecDeque<Frame>,
    to_client: VecDeque<Frame>,
    cancels: VecDeque<SlotId>,
    client_closed: bool,
    server_closed: Option<FailureKind>,
    buffers: Vec<Vec<u8>>,
}

struct Link {
    wires: Mutex<Wires>,
    client: Site,
    server: Site,
}

impl Wires {
    /// With room for all that a window of small calls can have on its way: how much of it is used depends on how the
    /// two ends alternate.
    fn for_window(window: u32) -> Wires {
        let window = window as usize;
        Wires {
            to_server: VecDeque::with_capacity(window),
            to_client: VecDeque::with_capacity(window),
            cancels: VecDeque::with_capacity(window),
            buffers: (0..2 * window).map(|_| Vec::with_capacity(64)).collect(),
            ..Wires::default()
        }
    }
}

impl Link {
    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap()
    }
}

/// An address where servers listen and clients dial.
#[derive(Clone)]
pub struct Loopback {
    pub clock: Clock,
    pub window: u32,
    pub max_message: usize,
    pub name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The server's threads; empty without a server.
    threads: Mutex<Vec<Arc<AcceptQueue>>>,
    next_thread: AtomicU64,
    dials: AtomicU64,
    unanswered: AtomicUsize,
    /// Replies longer than 32 bytes find no memory.
    no_reply_memory: AtomicBool,
    /// So many replies find some all the same.
    spare_replies: AtomicU64,
    /// How many replies found no memory.
    refused_replies: AtomicU64,
    /// Bytes of replies that may wait for memory; no limit if not set.
    waiting_limit: OnceLock<u64>,
    /// The drain of a server takes as many steps.
    drain_steps: AtomicU64,
    /// Times that a server thread was about to sleep.
    server_sleeps: AtomicU64,
    /// Held while dialling must not get anywhere.
    dialling: Mutex<()>,
    /// The sites that were dialled for.
    client_sites: Mutex<Vec<Site>>,
}

/// New connections of one server thread.
struct AcceptQueue {
    links: Mutex<Vec<Arc<Link>>>,
    site: Site,
}

impl Loopback {
    pub fn new(clock: Clock, window: u32) -> Loopback {
        Loopback { clock, window, max_message: 1 << 20, name: "loopback", shared: Arc::default() }
    }

    /// A site with the clock of the loopback.
    pub fn site(&self) -> Site {
        let site = Site::with_clock(Arc::new(self.clock.clone()));
        self.hang_on(&site);
        site
    }

    /// In virtual time, keeps what ends the site's sleeps in the ends that hang on it.
    fn hang_on(&self, site: &Site) -> Option<Arc<VirtualSleep>> {
        let clock = self.clock.clone();
        let make = || {
            let never_readable = File::open("/dev/null").expect("every system has it");
            Ok::<_, Infallible>(VirtualSleep { clock, never_readable })
        };
        match self.clock {
            Clock::Virtual(_) => site.share(|_| true, make).ok(),
            Clock::Real(_) => None,
        }
    }

    /// The server's end, to be driven by hand.
    pub fn listen(&self, site: &Site) -> ServerEnd {
        let queue = Arc::new(AcceptQueue { links: Mutex::default(), site: site.clone() });
        self.shared.threads.lock().unwrap().push(queue.clone());
        let clients = Clients {
            links: Vec::new(),
            max_message: self.max_message,
            shared: self.shared.clone(),
        };
        ServerEnd { queue, clients, drain_steps: 0, _sleep: self.hang_on(site) }
    }

    /// The end of a server that takes the place of the earlier ones.
    pub fn listen_again(&self, site: &Site) -> ServerEnd {
        self.shared.threads.lock().unwrap().clear();
        self.listen(site)
    }

    /// A client's end; none without a server.
    pub fn dial_end(&self, site: &Site) -> Option<ClientEnd> {
        self.shared.dials.fetch_add(1, Ordering::SeqCst);
        let _unblocked = self.shared.dialling.lock().unwrap();
        self.shared.client_sites.lock().unwrap().push(site.clone());
        let threads = self.shared.threads.lock().unwrap();
        let turn = self.shared.next_thread.fetch_add(1, Ordering::SeqCst) as usize;
        let queue = threads.get(turn % threads.len().max(1))?;
        let link = Arc::new(Link {
            wires: Wires::for_window(self.window).into(),
            client: site.clone(),
            server: queue.site.clone(),
        });
        queue.links.lock().unwrap().push(link.clone());
        queue.site.rouse();
        let slot = |_| Slot { generation: 0, state: SlotState::Free, bytes: Vec::new() };
        Some(ClientEnd {
            max_message: self.max_message,
            slots: (0..self.window).map(slot).collect(),
            posted: Vec::with_capacity(self.window as usize),
            closed: false,
            link,
            _sleep: self.hang_on(site),
        })
    }

    /// A server listens.
    pub fn has_server(&self) -> bool {
        !self.shared.threads.lock().unwrap().is_empty()
    }

    /// Attempts to dial so far.
    pub fn dials(&self) -> u64 {
        self.shared.dials.load(Ordering::SeqCst)
    }

    /// Times that server threads were about to sleep.
    pub fn server_sleeps(&self) -> u64 {
        self.shared.server_sleeps.load(Ordering::SeqCst)
    }

    /// Requests that a server has taken and not answered.
    pub fn unanswered(&self) -> usize {
        self.shared.unanswered.load(Ordering::SeqCst)
    }

    /// Whether replies longer than 32 bytes find memory.
    pub fn set_reply_memory(&self, there_is: bool) {
        self.shared.no_reply_memory.store(!there_is, Ordering::SeqCst);
    }

    /// So many replies find memory although there is none for others.
    pub fn spare_replies(&self, count: u64) {
        self.shared.spare_replies.store(count, Ordering::SeqCst);
    }

    /// How many replies found no memory.
    pub fn refused_replies(&self) -> u64 {
        self.shared.refused_replies.load(Ordering::SeqCst)
    }

    /// Limits the bytes of replies that may wait for memory.
    pub fn limit_waiting(&self, bytes: u64) {
        self.shared.waiting_limit.set(bytes).unwrap();
    }

    /// Blocks all attempts to dial while the guard lives.
    pub fn hold_dials(&self) -> MutexGuard<'_, ()> {
        self.shared.dialling.lock().unwrap()
    }

    /// The sites that were dialled for, in order.
    pub fn client_sites(&self) -> Vec<Site> {
        self.shared.client_sites.lock().unwrap().clone()
    }

    /// How many steps the drain of a server takes.
    pub fn set_drain_steps(&self, steps: u64) {
        self.shared.drain_steps.store(steps, Ordering::SeqCst);
    }
}

impl Dial for Loopback {
    fn dial(
        &self,
        _service: &'static ServiceDescription,
        site: &Site,
        _options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        match self.dial_end(site) {
            Some(end) => Ok(Box::new(end).into()),
            None => {
                let hint = "start one".into();
                Err(ConnectError::NoServer { address: self.name.into(), hint })
            }
        }
    }
}

impl Binding for Loopback {
    fn bind(
        &self,
        sites: &[Site],
        _services: &[&'static ServiceDescription],
        _options: &BindOptions,
    ) -> Result<Bound, BindError> {
        if self.has_server() {
            return Err(BindError::InUse { address: self.name.into() });
        }
        let transports =
            sites.iter().map(|site| Box::new(self.listen(site)) as Box<dyn ServerTransport>);
        let transports = transports.collect();
        let acceptor = Box::new(Listening(self.shared.clone()));
        let halves = vec![BoundHalf { transports, renewal: None }];
        Ok(Bound { halves, acceptor, address: self.name.into(), adviser: None })
    }
}

struct Listening(Arc<Shared>);

impl Acceptor for Listening {
    fn stop(&mut self) {
        self.0.threads.lock().unwrap().clear();
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Slot {
    generation: u32,
    state: SlotState,
    bytes: Vec<u8>,
}

#[derive(PartialEq)]
enum SlotState {
    Free,
    Reserved,
    Posted,
    Abandoned,
}

/// A client's end.
pub struct ClientEnd {
    max_message: usize,
    slots: Vec<Slot>,
    posted: Vec<SlotId>,
    closed: bool,
    link: Arc<Link>,
    _sleep: Option<Arc<VirtualSleep>>,
}

impl ClientEnd {
    /// Slots that the transport owns: posted, or abandoned and not answered yet.
    pub fn owned_slots(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state != SlotState::Free).count()
    }
}

impl ClientTransport for ClientEnd {
    fn limits(&self) -> Limits {
        Limits { window: self.slots.len() as u32, max_message: self.max_message as u64 }
    }

    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if self.closed {
            return Err(ReserveError::Closed);
        }
        if len > self.max_message {
            let (len, max) = (len as u64, self.max_message as u64);
            return Err(ReserveError::TooLarge { len, max });
        }
        let mut slots = self.slots.iter_mut().enumerate();
        let Some((index, slot)) = slots.find(|(_, slot)| slot.state == SlotState::Free) else {
            return Err(Backpressure::Credits.into());
        };
        slot.state = SlotState::Reserved;
        slot.generation += 1;
        slot.bytes.resize(len, 0xa5);
        let id = SlotId { index: index as u32, generation: slot.generation };
        Ok((id, &mut slot.bytes))
    }

    fn release(&mut self, slot: SlotId) {
        self.slots[slot.index as usize].state = SlotState::Free;
    }

    fn post(&mut self, slot: SlotId, _delivery: Delivery) {
        let state = &mut self.slots[slot.index as usize].state;
        assert!(*state == SlotState::Reserved, "only a reserved slot can be posted");
        *state = SlotState::Posted;
        self.posted.push(slot);
    }

    fn flush(&mut self) {
        if self.posted.is_empty() {
            return;
        }
        let mut wires = self.link.wires();
        for id in self.posted.drain(..) {
            let mut bytes = wires.buffers.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&self.slots[id.index as usize].bytes);
            wires.to_server.push_back((id, bytes));
        }
        drop(wires);
        self.link.server.rouse();
    }

    fn abandon(&mut self, slot: SlotId) {
        let state = &mut self.slots[slot.index as usize].state;
        assert!(*state == SlotState::Posted, "only a posted slot can be abandoned");
        *state = SlotState::Abandoned;
        self.link.wires().cancels.push_back(slot);
        self.link.server.rouse();
    }

    fn poll(&mut self, _now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let mut worked = 0;
        loop {
            let Some((id, bytes)) = self.link.wires().to_client.pop_front() else { break };
            worked += 1;
            let slot = &mut self.slots[id.index as usize];
            assert_eq!(slot.generation, id.generation, "a slot is not used again before its reply");
            let wanted = slot.state == SlotState::Posted;
            slot.state = SlotState::Free;
            if wanted {
                sink.reply(id, Message::Borrowed(&bytes));
            }
            self.link.wires().buffers.push(bytes);
        }
        let over = self.link.wires().server_closed;
        if let (false, Some(kind)) = (self.closed, over) {
            self.closed = true;
            worked += 1;
            sink.closed(TransportFailure::new(kind, true));
        }
        Progress { worked, next: PollAt::OnEvent, scanned: 0 }
    }

    fn arm(&mut self, _: Option<&Waker>) -> Armed {
        let wires = self.link.wires();
        let is_idle = wires.to_client.is_empty() && (self.closed || wires.server_closed.is_none());
        Armed::of(is_idle, false)
    }

    fn close(&mut self, _why: Closing) {
        self.closed = true;
        self.link.wires().client_closed = true;
        self.link.server.rouse();
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.close(Closing::Goodbye);
    }
}

/// One server thread's end.
pub struct ServerEnd {
    queue: Arc<AcceptQueue>,
    clients: Clients,
    /// Steps of the drain so far.
    drain_steps: u64,
    _sleep: Option<Arc<VirtualSleep>>,
}

struct Clients {
    links: Vec<Option<Client>>,
    max_message: usize,
    shared: Arc<Shared>,
}

struct Client {
    link: Arc<Link>,
    reserved: Vec<u8>,
    unanswered: Vec<SlotId>,
}

impl ServerEnd {
    /// Ends all connections, as a server that dies does.
    pub fn die(&mut self, how: FailureKind) {
        for index in 0..self.clients.links.len() {
            if let Some(client) = self.clients.remove(index) {
                client.link.wires().server_closed.get_or_insert(how);
                client.link.client.rouse();
            }
        }
    }

    fn accept(&mut self) {
        for link in self.queue.links.lock().unwrap().drain(..) {
            let client = Client { link, reserved: Vec::new(), unanswered: Vec::new() };
            self.clients.links.push(Some(client));
        }
    }

    fn close(&mut self) {
        self.accept();
        self.die(FailureKind::Goodbye);
    }
}

impl Clients {
    fn remove(&mut self, index: usize) -> Option<Client> {
        let client = self.links[index].take()?;
        self.shared.unanswered.fetch_sub(client.unanswered.len(), Ordering::SeqCst);
        Some(client)
    }
}

/// The client of this link.
fn id_of(index: usize) -> ClientId {
    ClientId { number: index as u32, generation: 0 }
}

impl ServerTransport for ServerEnd {
    fn poll(&mut self, _now: Instant, sink: &mut dyn RequestSink) -> Progress {
        self.accept();
        let mut worked = 0;
        for index in 0..self.clients.links.len() {
            let Some(client) = &mut self.clients.links[index] else { continue };
            let link = client.link.clone();
            if link.wires().client_closed {
                self.clients.remove(index);
                sink.client(id_of(index), ClientEvent::Left);
                worked += 1;
                continue;
            }
            loop {
                let Some((id, bytes)) = link.wires().to_server.pop_front() else { break };
                worked += 1;
                if let Some(client) = &mut self.clients.links[index] {
                    client.unanswered.push(id);
                    self.clients.shared.unanswered.fetch_add(1, Ordering::SeqCst);
                }
                let call = CallToken::new(index as u32, 0, id.index, id.generation);
                sink.request(call, Message::Borrowed(&bytes), &mut self.clients);
                link.wires().buffers.push(bytes);
            }
            loop {
                let Some(id) = link.wires().cancels.pop_front() else { break };
                worked += 1;
                let SlotId { index: slot, generation } = id;
                sink.client(id_of(index), ClientEvent::Cancelled { slot, generation });
            }
        }
        Progress { worked, next: PollAt::OnEvent, scanned: 0 }
    }

    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.clients
    }

    fn flush(&mut self) {
        for client in self.clients.links.iter().flatten() {
            client.link.client.rouse();
        }
    }

    fn arm(&mut self) -> bool {
        let is_idle = |client: &Client| {
            let wires = client.link.wires();
            wires.to_server.is_empty() && wires.cancels.is_empty() && !wires.client_closed
        };
        let may_sleep = self.queue.links.lock().unwrap().is_empty()
            && self.clients.links.iter().flatten().all(is_idle);
        self.clients.shared.server_sleeps.fetch_add(may_sleep.into(), Ordering::SeqCst);
        may_sleep
    }

    fn connections(&self) -> usize {
        self.clients.links.iter().flatten().count()
    }

    fn wind_down(&mut self, _now: Instant, step: WindDown) -> bool {
        match step {
            WindDown::Drain => {
                self.drain_steps += 1;
                self.drain_steps > self.clients.shared.drain_steps.load(Ordering::SeqCst)
            }
            WindDown::Close => {
                self.close();
                true
            }
        }
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.close();
    }
}

impl Replies for Clients {
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        if len > self.max_message {
            let (len, max) = (len as u64, self.max_message as u64);
            return Err(ReserveError::TooLarge { len, max });
        }
        let client = self.links.get_mut(call.client() as usize).and_then(Option::as_mut);
        let client = client.ok_or(ReserveError::Closed)?;
        let take_one = |spare: u64| spare.checked_sub(1);
        let spare = &self.shared.spare_replies;
        if len > 32
            && self.shared.no_reply_memory.load(Ordering::SeqCst)
            && spare.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take_one).is_err()
        {
            self.shared.refused_replies.fetch_add(1, Ordering::SeqCst);
            return Err(Backpressure::Memory.into());
        }
        client.reserved.resize(len, 0x5a);
        Ok(&mut client.reserved)
    }

    fn post(&mut self, call: CallToken, len: usize) {
        let client = self.links[call.client() as usize].as_mut().expect("reserved before");
        let id = SlotId { index: call.slot(), generation: call.generation() };
        let at = client.unanswered.iter().position(|other| *other == id);
        client.unanswered.swap_remove(at.expect("each request is answered once"));
        self.shared.unanswered.fetch_sub(1, Ordering::SeqCst);
        let mut wires = client.link.wires();
        let mut bytes = wires.buffers.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&client.reserved[..len]);
        wires.to_client.push_back((id, bytes));
    }

    fn waiting_limit(&self) -> u64 {
        self.shared.waiting_limit.get().copied().unwrap_or(u64::MAX)
    }
}
