//! Both ends, joined without sockets or threads.

use std::time::{Duration, Instant as WallClock};

use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{
    CallToken, ClientEvent, ClientId, ClientInfo, MESSAGE_HEADER_BYTES, Message, Replies,
    RequestSink, ServerTransport, WindDown,
};
use farcall_verbs::{
    CompletionOpcode, CompletionQueue, Device, GRH_BYTES, QpNumber, WorkCompletion,
};

use crate::contract::{Config, Fabric, Intake, NewClient, Placement, Source};
use crate::datagram::ablation::Without;
use crate::datagram::port::{Peer, Port, PortAddress};
use crate::datagram::server::{DatagramIntake, Server};
use crate::datagram::setup::{EndSetup, Sizes};
use crate::datagram::wire::{CHALLENGE_BYTES, Header, Id, Kind};

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(20);

pub(super) const WINDOW: u32 = 4;

/// A message as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) kind: Kind,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) body: Vec<u8>,
}

/// A server's handlers: echo at once, or hold until told.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    pub(super) hold: bool,
    /// The server declares its methods idempotent.
    pub(super) idempotent: bool,
    pub(super) held: Vec<(CallToken, Vec<u8>)>,
    pub(super) requests: usize,
    pub(super) cancelled: usize,
    pub(super) disconnected: usize,
}

impl RequestSink for Handlers {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.requests += 1;
        if self.hold {
            return self.held.push((call, message.to_vec()));
        }
        answer(call, &message, replies);
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        self.idempotent
    }

    fn client(&mut self, _: ClientId, event: ClientEvent) {
        match event {
            ClientEvent::Cancelled { .. } => self.cancelled += 1,
            ClientEvent::Left => self.disconnected += 1,
            ClientEvent::Joined(_) => {}
        }
    }
}

fn answer(call: CallToken, bytes: &[u8], replies: &mut dyn Replies) {
    replies.reserve(&call, bytes.len()).unwrap().copy_from_slice(bytes);
    replies.post(call, bytes.len());
}

pub(super) struct Host {
    pub(super) site: Site,
    transport: Server,
    intake: DatagramIntake,
    device: Device,
    config: Config,
    pub(super) handlers: Handlers,
    now: u64,
}

/// A client's queue pair, and the server as its peer.
pub(super) struct Hand {
    pub(super) port: Port,
    pub(super) peer: Peer,
    pub(super) qp: QpNumber,
    cq: CompletionQueue,
}

/// The body of a client's [`Kind::Challenge`].
pub(super) const QUESTION: [u8; CHALLENGE_BYTES] = [0; CHALLENGE_BYTES];

impl Host {
    pub(super) fn new() -> Host {
        let device = Device::open("shm").unwrap();
        let max_message = (1 << 20) - MESSAGE_HEADER_BYTES as u64;
        let config = Config {
            window: WINDOW,
            slot: 512,
            max_message,
            memory: 16 << 20,
            ..Config::default()
        };
        let site = Site::new();
        let (transport, intake) =
            Server::new(&Placement::new(&site, Fabric::Verbs(&device)), &device, &config, 64)
                .unwrap();
        let handlers = Handlers { idempotent: true, ..Handlers::default() };
        Host { site, transport, intake, device, config, handlers, now: 1 }
    }

    /// What a client with this queue pair and the server tell each other.
    pub(super) fn shake_hands(&mut self, address: &PortAddress) -> (Vec<u8>, Vec<u8>) {
        let ours = EndSetup::new(address, 0, 0, self.sizes().mtu).to_bytes();
        let client = NewClient {
            terms: &self.config.terms(),
            setup: &ours,
            timeout: BOUND,
            source: Source::Unknown,
            info: &ClientInfo::default(),
        };
        let theirs = self.intake.accept(client).unwrap().setup;
        (ours, theirs)
    }

    /// Of clients.
    fn sizes(&self) -> Sizes {
        Sizes::of_client(WINDOW, self.device.caps(), Without::of(&Config::default()))
    }

    /// A queue pair of a client.
    pub(super) fn open_port(&self, device: &Device) -> (Port, PortAddress, CompletionQueue) {
        let cq = device.create_cq(self.sizes().completions(), None).unwrap();
        let pd = device.alloc_pd().unwrap();
        let (port, address) = Port::open(device, &pd, &cq.handle(), &self.sizes()).unwrap();
        (port, address, cq)
    }

    /// A client that has shaken hands.
    pub(super) fn introduce(&mut self) -> Hand {
        self.introduce_from(&self.device.clone())
    }

    /// The same, at another device.
    pub(super) fn introduce_from(&mut self, device: &Device) -> Hand {
        let (port, address, cq) = self.open_port(device);
        let (_, theirs) = self.shake_hands(&address);
        let theirs = EndSetup::from_bytes(&theirs).unwrap();
        let pd = device.alloc_pd().unwrap();
        let peer = theirs.peer(&pd, theirs.epoch, self.sizes().mtu).unwrap();
        Hand { port, qp: address.endpoint.qp(), peer, cq }
    }

    /// A client that has told the server that it receives where it said.
    pub(super) fn admit(&mut self) -> Hand {
        let mut hand = self.introduce();
        hand.peer.epoch = epoch_of(&hand.ask(self, Kind::Challenge, 0, 0, &QUESTION));
        hand
    }

    pub(super) fn turn(&mut self) {
        self.now += 1000;
        let now = Instant::from_nanos(self.now);
        let requests = self.handlers.requests;
        let progress = self.transport.poll(now, &mut self.handlers);
        let has_handed_over = self.handlers.requests > requests;
        assert!(!has_handed_over || !progress.is_idle(), "requests came in a poll without work");
        self.transport.flush();
    }

    /// A turn after a while in which nothing else happens.
    pub(super) fn rest(&mut self, time: Duration) {
        self.now += time.as_nanos() as u64;
        self.turn();
    }

    /// Turns until a handler holds a request.
    pub(super) fn wait_for_request(&mut self) {
        let begin = WallClock::now();
        while self.handlers.held.is_empty() {
            self.turn();
            assert!(begin.elapsed() < BOUND, "no request comes; the handlers: {:?}", self.handlers);
        }
    }

    /// Answers what was held first.
    pub(super) fn answer(&mut self, bytes: &[u8]) {
        let (call, _) = self.handlers.held.remove(0);
        answer(call, bytes, self.transport.replies());
        self.transport.flush();
    }

    /// What a device does when a work request fails.
    pub(super) fn break_queue_pair(&mut self) {
        self.transport.sessions.outgoing.port.qp_mut().to_error();
    }

    pub(super) fn is_drained(&mut self) -> bool {
        self.transport.wind_down(Instant::from_nanos(self.now), WindDown::Drain)
    }

    /// Turns of a server that ends, until it has ended.
    pub(super) fn close(&mut self) {
        let begin = WallClock::now();
        loop {
            self.now += 1_000_000;
            if self.transport.wind_down(Instant::from_nanos(self.now), WindDown::Close) {
                return;
            }
            assert!(begin.elapsed() < BOUND, "it does not end");
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.transport.connections()
    }
}

/// What the server has said that datagrams must carry.
pub(super) fn epoch_of(challenge: &[Heard]) -> u64 {
    let [Heard { kind: Kind::Challenge, slot: 0, generation: 0, body }] = challenge else {
        panic!("no challenge: {challenge:?}");
    };
    u64::from_le_bytes(body[..].try_into().unwrap())
}

impl Hand {
    /// Sends one message in a datagram of its own.
    pub(super) fn send(&mut self, kind: Kind, slot: u32, generation: u32, body: &[u8]) {
        let id = Id { slot, generation, mark: 0 };
        assert!(self.port.put(&self.peer, kind, id, (body, &[])));
        self.port.post(&self.peer);
        self.port.ring();
    }

    /// What has come now.
    pub(super) fn poll(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut completion = [WorkCompletion::default()];
        while self.cq.poll(&mut completion).unwrap() > 0 {
            let [completion] = &mut completion;
            if completion.opcode != CompletionOpcode::Recv {
                self.port.retire(completion);
                continue;
            }
            let buffer = completion.buffer.take().unwrap();
            let datagram = &buffer[GRH_BYTES..completion.byte_len as usize];
            let (session, epoch, messages) = Header::split(datagram).unwrap();
            assert_eq!((session, epoch), (0, self.peer.their_epoch));
            heard.extend(messages.map(|message| Heard {
                kind: message.kind,
                slot: message.id.slot,
                generation: message.id.generation,
                body: message.body.to_vec(),
            }));
            self.port.recycle(buffer);
        }
        heard
    }

    /// The next messages, after some turns of the server.
    pub(super) fn hear(&mut self, host: &mut Host) -> Vec<Heard> {
        let begin = WallClock::now();
        loop {
            host.turn();
            let heard = self.poll();
            if !heard.is_empty() {
                return heard;
            }
            assert!(begin.elapsed() < BOUND, "nothing is heard; the handlers: {:?}", host.handlers);
        }
    }

    /// Sends a message, and hears what comes next.
    pub(super) fn ask(
        &mut self,
        host: &mut Host,
        kind: Kind,
        slot: u32,
        generation: u32,
        body: &[u8],
    ) -> Vec<Heard> {
        self.send(kind, slot, generation, body);
        self.hear(host)
    }
}

pub(super) fn heard(kind: Kind, slot: u32, generation: u32, body: &[u8]) -> Vec<Heard> {
    vec![Heard { kind, slot, generation, body: body.to_vec() }]
}
