//! Two ends, joined without sockets or threads, and sinks that record what arrives.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{
    Body, CallToken, ClientEvent, ClientId, ClientInfo, ClientTransport, Delivery,
    MESSAGE_HEADER_BYTES, Message, Replies, ReplySink, RequestSink, ServerTransport, SlotId,
};
use farcall_verbs::Device;

use crate::buffers::Buffers;
use crate::contract::{
    Accepted, Answer, Backend, Config, Fabric, Intake, NewClient, PendingClient, Placement,
    SetupError, Source, Terms,
};

/// Turns after which something that should happen never will.
const MANY_TURNS: usize = 100_000;

/// For what has to ask the device.
pub(crate) const BOUND: Duration = Duration::from_secs(5);

/// Bytes of the first of two pieces of a message.
const FRONT_BYTES: usize = 8;

/// What a server turn is in virtual time.
pub(crate) const TURN_NANOS: u64 = 1000;

pub(crate) fn limits(window: u32, slot: u32, max_message: u64) -> Config {
    let memory = 3 * max_message + (16 << 20);
    // The transport's limit is that of whole messages.
    let max_message = max_message - MESSAGE_HEADER_BYTES as u64;
    Config { window, slot, max_message, memory, ..Config::default() }
}

/// Bytes that differ from their neighbours, and from those of other seeds.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(|_| byte()).collect()
}

/// What a client heard.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) replies: VecDeque<(SlotId, Vec<u8>)>,
    /// How many of the replies came in memory of their own.
    pub(crate) owned: usize,
    pub(crate) failed: Vec<(SlotId, TransportFailure)>,
    pub(crate) closed: Vec<TransportFailure>,
}

impl ReplySink for Heard {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        self.owned += usize::from(matches!(message, Message::Owned(_)));
        self.replies.push_back((slot, message.to_vec()));
    }

    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        self.failed.push((slot, why));
    }

    fn lane_lost(&mut self, _: std::ops::Range<u32>, _: TransportFailure) {
        panic!("it has one lane");
    }

    fn closed(&mut self, why: TransportFailure) {
        self.closed.push(why);
    }
}

/// How an end posts its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// Into memory of the transport's.
    #[default]
    None,
    /// In two pieces, the second in memory that the transport may keep.
    Kept,
    /// In two pieces, the second in a buffer of the program's.
    InBuffer,
}

impl Pieces {
    pub(crate) const ALL: [Pieces; 3] = [Pieces::None, Pieces::Kept, Pieces::InBuffer];

    /// The second of two pieces.
    fn body(self, bytes: &[u8]) -> Bytes {
        static POOL: OnceLock<Buffers> = OnceLock::new();
        if self != Pieces::InBuffer || bytes.is_empty() {
            return Bytes::copy_from_slice(bytes);
        }
        let pool = POOL.get_or_init(|| Buffers::new().unwrap());
        pool.copy_of(bytes).unwrap().freeze()
    }
}

/// A server's handlers: echo at once, or hold until told.
#[derive(Debug, Default)]
pub(crate) struct Handlers {
    pub(crate) hold: bool,
    pieces: Pieces,
    pub(crate) held: VecDeque<(CallToken, Vec<u8>)>,
    /// Answers that found no memory.
    deferred: VecDeque<(CallToken, Vec<u8>)>,
    pub(crate) requests: usize,
    pub(crate) cancelled: Vec<(u32, u32)>,
    pub(crate) disconnected: Vec<(u32, u32)>,
}

impl RequestSink for Handlers {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.requests += 1;
        if self.hold {
            self.held.push_back((call, message.to_vec()));
        } else if self.pieces != Pieces::None {
            let (front, body) = message.split_at(message.len().min(FRONT_BYTES));
            let mut waiting = Some(call);
            let body = self.pieces.body(body);
            let posted = replies.post_parts(&mut waiting, front, Body::Shared(&body));
            assert_eq!(waiting.is_some(), posted.is_err());
            self.deferred.extend(waiting.map(|call| (call, message.to_vec())));
        } else if let Err(ReserveError::Backpressure(_)) = try_answer(&call, &message, replies) {
            self.deferred.push_back((call, message.to_vec()));
        } else {
            replies.post(call, message.len());
        }
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }

    fn client(&mut self, client: ClientId, event: ClientEvent) {
        match event {
            ClientEvent::Cancelled { slot, .. } => self.cancelled.push((client.number, slot)),
            ClientEvent::Left => self.disconnected.push((client.number, client.generation)),
            ClientEvent::Joined(_) => {}
        }
    }
}

fn try_answer(
    call: &CallToken,
    bytes: &[u8],
    replies: &mut dyn Replies,
) -> Result<(), ReserveError> {
    replies.reserve(call, bytes.len())?.copy_from_slice(bytes);
    Ok(())
}

pub(crate) fn answer(
    call: CallToken,
    bytes: &[u8],
    replies: &mut dyn Replies,
) -> Result<(), ReserveError> {
    try_answer(&call, bytes, replies)?;
    replies.post(call, bytes.len());
    Ok(())
}

pub(crate) fn finish(
    pending: Box<dyn PendingClient>,
    terms: &Terms,
    accepted: &Accepted,
) -> Result<Box<dyn ClientTransport>, SetupError> {
    pending.finish(Answer { terms, setup: &accepted.setup, timeout: BOUND })
}

/// One client, by hand.
pub(crate) struct Caller {
    pub(crate) transport: Box<dyn ClientTransport>,
    pub(crate) heard: Heard,
    pieces: Pieces,
}

impl Caller {
    pub(crate) fn new(transport: Box<dyn ClientTransport>) -> Caller {
        Caller { transport, heard: Heard::default(), pieces: Pieces::None }
    }

    pub(crate) fn post(&mut self, bytes: &[u8]) -> SlotId {
        if self.pieces != Pieces::None {
            let (front, body) = bytes.split_at(bytes.len().min(FRONT_BYTES));
            let body = self.pieces.body(body);
            return self
                .transport
                .post_parts(front, Body::Shared(&body), Delivery::AtMostOnce)
                .unwrap();
        }
        let (slot, room) = self.transport.reserve(bytes.len()).unwrap();
        room.copy_from_slice(bytes);
        self.transport.post(slot, Delivery::AtMostOnce);
        slot
    }

    /// Posts and rings.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> SlotId {
        let slot = self.post(bytes);
        self.transport.flush();
        slot
    }

    pub(crate) fn poll(&mut self, now: Instant) -> u32 {
        let progress = self.transport.poll(now, &mut self.heard);
        self.transport.flush();
        progress.worked
    }
}

/// One server thread, by hand.
pub(crate) struct Host {
    backend: &'static dyn Backend,
    pub(crate) transport: Box<dyn ServerTransport>,
    pub(crate) intake: Box<dyn Intake>,
    pub(crate) handlers: Handlers,
    pub(crate) device: Device,
    pub(crate) config: Config,
    pub(crate) now: Instant,
}

impl Host {
    pub(crate) fn new(backend: &'static dyn Backend, config: Config) -> Host {
        let device = Device::open("shm").unwrap();
        Host::on(&device.clone(), device, backend, (config, 8))
    }

    /// The same, where both ends post their messages like this.
    pub(crate) fn posting(backend: &'static dyn Backend, config: Config, pieces: Pieces) -> Host {
        let mut host = Host::new(backend, config);
        host.handlers.pieces = pieces;
        host
    }

    /// A server on one device for so many clients, which have another device.
    pub(crate) fn on(
        server: &Device,
        device: Device,
        backend: &'static dyn Backend,
        (config, max_clients): (Config, usize),
    ) -> Host {
        let site = Site::new();
        let at = Placement::new(&site, Fabric::Verbs(server));
        let half = backend.serve(&at, &config, max_clients).unwrap();
        Host {
            backend,
            transport: half.transport,
            intake: half.intake,
            handlers: Handlers::default(),
            device,
            config,
            now: Instant::ZERO,
        }
    }

    pub(crate) fn dial(&self, config: &Config) -> Box<dyn PendingClient> {
        let site = Site::new();
        let at = Placement::new(&site, Fabric::Verbs(&self.device));
        self.backend.dial(&at, config).unwrap()
    }

    pub(crate) fn accept_bytes(&self, terms: &Terms, setup: &[u8]) -> Result<Accepted, SetupError> {
        // Clients that have left may not be gone yet.
        self.intake.make_room(Source::Unknown, BOUND);
        self.intake.accept(NewClient {
            terms,
            setup,
            timeout: BOUND,
            source: Source::Unknown,
            info: &ClientInfo::default(),
        })
    }

    fn accept(&self, pending: &dyn PendingClient, terms: &Terms) -> Result<Accepted, SetupError> {
        self.accept_bytes(terms, &pending.setup())
    }

    /// A client that has said hello with these limits, and the terms it gets.
    fn hello(&self, config: &Config) -> (Box<dyn PendingClient>, Terms) {
        let pending = self.dial(config);
        let terms = Terms::agree(&self.config, &config.terms()).unwrap();
        (pending, terms)
    }

    pub(crate) fn try_admit(&self) -> Result<Caller, SetupError> {
        let (pending, terms) = self.hello(&self.config);
        let accepted = self.accept(&*pending, &terms)?;
        let caller = Caller::new(finish(pending, &terms, &accepted)?);
        Ok(Caller { pieces: self.handlers.pieces, ..caller })
    }

    pub(crate) fn admit(&self) -> Caller {
        self.try_admit().unwrap()
    }

    /// One more client, with limits of its own.
    pub(crate) fn admit_with(&self, config: &Config) -> Caller {
        let (pending, terms) = self.hello(config);
        let accepted = self.accept(&*pending, &terms).unwrap();
        Caller::new(finish(pending, &terms, &accepted).unwrap())
    }

    /// A client that takes its own limit on messages for the server's.
    pub(crate) fn admit_trusting(&self, config: &Config) -> Caller {
        let (pending, terms) = self.hello(config);
        let accepted = self.accept(&*pending, &terms).unwrap();
        let terms = Terms { max_message: config.terms().max_message, ..terms };
        let caller = Caller::new(finish(pending, &terms, &accepted).unwrap());
        Caller { pieces: self.handlers.pieces, ..caller }
    }

    /// A client that was accepted, and does not know it yet.
    pub(crate) fn admit_unfinished(&self) -> (Box<dyn PendingClient>, Accepted) {
        let (pending, terms) = self.hello(&self.config);
        let accepted = self.accept(&*pending, &terms).unwrap();
        (pending, accepted)
    }

    pub(crate) fn poll(&mut self) -> u32 {
        self.now = self.now.saturating_add_nanos(TURN_NANOS);
        let progress = self.transport.poll(self.now, &mut self.handlers);
        while let Some((call, bytes)) = self.handlers.deferred.pop_front() {
            if try_answer(&call, &bytes, self.transport.replies()).is_err() {
                self.handlers.deferred.push_front((call, bytes));
                break;
            }
            self.transport.replies().post(call, bytes.len());
        }
        self.transport.flush();
        progress.worked
    }

    /// Answers the request that was held first, with these bytes.
    pub(crate) fn answer(&mut self, bytes: &[u8]) -> Result<(), ReserveError> {
        let (call, _) = self.handlers.held.pop_front().unwrap();
        let outcome = answer(call, bytes, self.transport.replies());
        self.transport.flush();
        outcome
    }

    /// Polls all until `done`.
    pub(crate) fn run(
        &mut self,
        callers: &mut [&mut Caller],
        mut done: impl FnMut(&mut Host, &mut [&mut Caller]) -> bool,
    ) {
        let began = std::time::Instant::now();
        for turn in 0.. {
            if done(self, callers) {
                return;
            }
            if turn > MANY_TURNS {
                if began.elapsed() > BOUND {
                    break;
                }
                // What is waited for may be done on another thread: clients are torn down there.
                std::thread::yield_now();
            }
            self.poll();
            for caller in callers.iter_mut() {
                caller.poll(self.now);
            }
        }
        panic!("it never came to be; the handlers: {:?}", self.handlers);
    }

    /// Polls all until nobody does anything any more.
    pub(crate) fn settle(&mut self, callers: &mut [&mut Caller]) {
        let mut quiet = 0;
        for _ in 0..MANY_TURNS {
            let mut worked = self.poll();
            worked += callers.iter_mut().map(|caller| caller.poll(self.now)).sum::<u32>();
            quiet = if worked == 0 { quiet + 1 } else { 0 };
            if quiet > 100 {
                return;
            }
        }
        panic!("it never became quiet");
    }

    /// One call, to its end.
    pub(crate) fn call(&mut self, caller: &mut Caller, bytes: &[u8]) -> Vec<u8> {
        let slot = caller.send(bytes);
        self.run(&mut [caller], |_, callers| !callers[0].heard.replies.is_empty());
        let (answered, reply) = caller.heard.replies.pop_front().unwrap();
        assert_eq!(answered, slot);
        reply
    }
}
