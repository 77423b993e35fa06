//! A transport inside one process, for tests: client and server ends joined by queues.
//!
//! Its clock is either virtual, and then `park` jumps to the moment it would sleep until, or the real one, and then
//! `park` sleeps. It keeps its buffers, so that allocations counted over it are those of core.

use farcall_core::error::{
    Backpressure, BindError, ConnectError, FailureKind, ReserveError, TransportFailure,
};
use farcall_core::service::ServiceDescription;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Acceptor, BindOptions, Binding, Bound, CallToken, ClientTransport, Dial, DialOptions, Limits,
    Message, Replies, ReplySink, RequestSink, ServerTransport, SlotId, Unpark,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
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

    fn park(&self, parker: &Parker, until: Option<Instant>) {
        match self {
            Clock::Virtual(nanos) => {
                let until = until.expect("in virtual time nothing else would ever happen");
                nanos.fetch_max(until.as_nanos(), Ordering::SeqCst);
            }
            Clock::Real(_) => parker.park(until.map(|until| until - self.now())),
        }
    }
}

/// A sleeping place with a token, as `std::thread::park` has.
#[derive(Default)]
struct Parker {
    token: Mutex<bool>,
    event: Condvar,
    parked: AtomicU64,
}

impl Parker {
    fn park(&self, timeout: Option<Duration>) {
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut token = self.token.lock().unwrap();
        let timeout = timeout.unwrap_or(Duration::from_secs(3600));
        if !*token {
            token = self.event.wait_timeout(token, timeout).unwrap().0;
        }
        *token = false;
    }
}

impl Unpark for Parker {
    fn unpark(&self) {
        *self.token.lock().unwrap() = true;
        self.event.notify_all();
    }
}

type Frame = (SlotId, Vec<u8>);

/// What is under way on one connection.
#[derive(Default)]
struct Wires {
    to_server: VecDeque<Frame>,
    to_client: VecDeque<Frame>,
    cancels: VecDeque<SlotId>,
    client_closed: bool,
    server_closed: Option<FailureKind>,
    buffers: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Link {
    wires: Mutex<Wires>,
    client: Arc<Parker>,
    server: Arc<Parker>,
}

impl Wires {
    /// With room for all that a window of small calls can have under way: how much of it is used depends
    /// on how the two ends take turns.
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

/// A place where servers listen and clients dial.
#[derive(Clone)]
pub struct Loopback {
    pub clock: Clock,
    pub window: u32,
    pub max_message: usize,
    place: Arc<Place>,
}

#[derive(Default)]
struct Place {
    /// One list of new connections per server thread; empty without a server.
    threads: Mutex<Vec<Arc<Arrivals>>>,
    dealt: AtomicU64,
    dials: AtomicU64,
    /// Replies longer than 32 bytes find no memory.
    no_reply_memory: AtomicBool,
}

#[derive(Default)]
struct Arrivals {
    links: Mutex<Vec<Arc<Link>>>,
    parker: Arc<Parker>,
}

impl Loopback {
    pub fn new(clock: Clock, window: u32) -> Loopback {
        Loopback { clock, window, max_message: 1 << 20, place: Arc::default() }
    }

    /// The server's end, to be driven by hand.
    pub fn listen(&self) -> ServerEnd {
        let arrivals = Arc::<Arrivals>::default();
        self.place.threads.lock().unwrap().push(arrivals.clone());
        ServerEnd {
            clock: self.clock.clone(),
            arrivals,
            desk: Desk {
                clients: Vec::new(),
                max_message: self.max_message,
                place: self.place.clone(),
                clock: self.clock.clone(),
            },
        }
    }

    /// A client's end; none without a server.
    pub fn dial_end(&self) -> Option<ClientEnd> {
        self.place.dials.fetch_add(1, Ordering::SeqCst);
        let threads = self.place.threads.lock().unwrap();
        let turn = self.place.dealt.fetch_add(1, Ordering::SeqCst) as usize;
        let arrivals = threads.get(turn % threads.len().max(1))?;
        let link = Arc::new(Link {
            wires: Wires::for_window(self.window).into(),
            server: arrivals.parker.clone(),
            ..Link::default()
        });
        arrivals.links.lock().unwrap().push(link.clone());
        arrivals.parker.unpark();
        let slot = |_| Slot { generation: 0, state: SlotState::Free, bytes: Vec::new() };
        Some(ClientEnd {
            clock: self.clock.clone(),
            max_message: self.max_message,
            slots: (0..self.window).map(slot).collect(),
            posted: Vec::with_capacity(self.window as usize),
            closed: false,
            link,
        })
    }

    /// Attempts to dial so far.
    pub fn dials(&self) -> u64 {
        self.place.dials.load(Ordering::SeqCst)
    }

    /// Times that server threads went to sleep.
    pub fn server_parks(&self) -> u64 {
        let threads = self.place.threads.lock().unwrap();
        threads.iter().map(|t| t.parker.parked.load(Ordering::SeqCst)).sum()
    }

    /// Whether replies longer than 32 bytes find memory.
    pub fn set_reply_memory(&self, there_is: bool) {
        self.place.no_reply_memory.store(!there_is, Ordering::SeqCst);
    }
}

impl Dial for Loopback {
    fn dial(
        &self,
        _service: &'static ServiceDescription,
        _options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError> {
        match self.dial_end() {
            Some(end) => Ok(Box::new(end)),
            None => {
                let hint = "start one".into();
                Err(ConnectError::NoServer { address: "loopback".into(), hint })
            }
        }
    }
}

impl Binding for Loopback {
    fn bind(
        &self,
        threads: usize,
        _services: &[&'static ServiceDescription],
        _options: &BindOptions,
    ) -> Result<Bound, BindError> {
        if !self.place.threads.lock().unwrap().is_empty() {
            return Err(BindError::InUse { address: "loopback".into() });
        }
        let transports =
            (0..threads).map(|_| Box::new(self.listen()) as Box<dyn ServerTransport>).collect();
        let acceptor = Box::new(Listening(self.place.clone()));
        Ok(Bound { transports, acceptor, address: "loopback".into() })
    }
}

struct Listening(Arc<Place>);

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
    clock: Clock,
    max_message: usize,
    slots: Vec<Slot>,
    posted: Vec<SlotId>,
    closed: bool,
    link: Arc<Link>,
}

impl ClientEnd {
    /// Slots that the transport owns: posted, or abandoned and not answered yet.
    pub fn owned_slots(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state != SlotState::Free).count()
    }
}

impl ClientTransport for ClientEnd {
    fn now(&self) -> Instant {
        self.clock.now()
    }

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

    fn post(&mut self, slot: SlotId, _now: Instant) {
        let state = &mut self.slots[slot.index as usize].state;
        assert!(*state == SlotState::Reserved, "only a reserved slot can be posted");
        *state = SlotState::Posted;
        self.posted.push(slot);
    }

    fn flush(&mut self, _now: Instant) {
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
        self.link.server.unpark();
    }

    fn abandon(&mut self, slot: SlotId) {
        let state = &mut self.slots[slot.index as usize].state;
        assert!(*state == SlotState::Posted, "only a posted slot can be abandoned");
        *state = SlotState::Abandoned;
        self.link.wires().cancels.push_back(slot);
        self.link.server.unpark();
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

    fn park(&mut self, until: Option<Instant>) {
        let wires = self.link.wires();
        let pending = !wires.to_client.is_empty() || wires.server_closed.is_some();
        drop(wires);
        if !pending {
            self.clock.park(&self.link.client, until);
        }
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.link.client.clone()
    }

    fn close(&mut self) {
        self.closed = true;
        self.link.wires().client_closed = true;
        self.link.server.unpark();
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.close();
    }
}

/// One server thread's end.
pub struct ServerEnd {
    clock: Clock,
    arrivals: Arc<Arrivals>,
    desk: Desk,
}

struct Desk {
    clients: Vec<Option<Client>>,
    max_message: usize,
    place: Arc<Place>,
    clock: Clock,
}

struct Client {
    link: Arc<Link>,
    reserved: Vec<u8>,
    unanswered: Vec<SlotId>,
}

impl ServerEnd {
    /// Ends all connections, as a server that dies does.
    pub fn die(&mut self, how: FailureKind) {
        for client in self.desk.clients.iter_mut().filter_map(Option::take) {
            client.link.wires().server_closed.get_or_insert(how);
            client.link.client.unpark();
        }
    }

    /// Requests that were not answered yet.
    pub fn unanswered(&self) -> usize {
        self.desk.clients.iter().flatten().map(|client| client.unanswered.len()).sum()
    }

    fn take_in(&mut self) {
        for link in self.arrivals.links.lock().unwrap().drain(..) {
            let client = Client { link, reserved: Vec::new(), unanswered: Vec::new() };
            self.desk.clients.push(Some(client));
        }
    }
}

impl ServerTransport for ServerEnd {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn poll(&mut self, _now: Instant, sink: &mut dyn RequestSink) -> Progress {
        self.take_in();
        let mut worked = 0;
        for index in 0..self.desk.clients.len() {
            let Some(client) = &mut self.desk.clients[index] else { continue };
            let link = client.link.clone();
            if link.wires().client_closed {
                self.desk.clients[index] = None;
                sink.disconnected(index as u32, 0);
                worked += 1;
                continue;
            }
            loop {
                let Some((id, bytes)) = link.wires().to_server.pop_front() else { break };
                worked += 1;
                if let Some(client) = &mut self.desk.clients[index] {
                    client.unanswered.push(id);
                }
                let call = CallToken::new(index as u32, 0, id.index, id.generation);
                sink.request(call, Message::Borrowed(&bytes), &mut self.desk);
                link.wires().buffers.push(bytes);
            }
            loop {
                let Some(id) = link.wires().cancels.pop_front() else { break };
                worked += 1;
                sink.cancelled(index as u32, 0, id.index, id.generation);
            }
        }
        Progress { worked, next: PollAt::OnEvent, scanned: 0 }
    }

    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.desk
    }

    fn flush(&mut self, _now: Instant) {
        for client in self.desk.clients.iter().flatten() {
            client.link.client.unpark();
        }
    }

    fn park(&mut self, until: Option<Instant>) {
        let pending = |client: &Client| {
            let wires = client.link.wires();
            !wires.to_server.is_empty() || !wires.cancels.is_empty() || wires.client_closed
        };
        let arrived = !self.arrivals.links.lock().unwrap().is_empty();
        if !arrived && !self.desk.clients.iter().flatten().any(pending) {
            self.clock.park(&self.arrivals.parker, until);
        }
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.arrivals.parker.clone()
    }

    fn connections(&self) -> usize {
        self.desk.clients.iter().flatten().count()
    }

    fn close(&mut self) {
        self.take_in();
        self.die(FailureKind::Goodbye);
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.close();
    }
}

impl Replies for Desk {
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        if len > self.max_message {
            let (len, max) = (len as u64, self.max_message as u64);
            return Err(ReserveError::TooLarge { len, max });
        }
        if len > 32 && self.place.no_reply_memory.load(Ordering::SeqCst) {
            return Err(Backpressure::Memory.into());
        }
        let client = self.clients[call.client() as usize].as_mut().ok_or(ReserveError::Closed)?;
        client.reserved.resize(len, 0x5a);
        Ok(&mut client.reserved)
    }

    fn post(&mut self, call: CallToken, len: usize) {
        let client = self.clients[call.client() as usize].as_mut().expect("reserved before");
        let id = SlotId { index: call.slot(), generation: call.generation() };
        let at = client.unanswered.iter().position(|other| *other == id);
        client.unanswered.swap_remove(at.expect("each request is answered once"));
        let mut wires = client.link.wires();
        let mut bytes = wires.buffers.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&client.reserved[..len]);
        wires.to_client.push_back((id, bytes));
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}
