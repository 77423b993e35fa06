//! Both ends, joined without sockets or threads.

use std::time::{Duration, Instant as WallClock};

use farcall_core::time::Instant;
use farcall_core::transport::{CallToken, Message, Replies, RequestSink, ServerTransport};
use farcall_verbs::{CompletionOpcode, CompletionQueue, Device, GRH_BYTES, WorkCompletion};

use crate::address::Limits;
use crate::backend::Intake;
use crate::datagram::intake::DatagramIntake;
use crate::datagram::port::{Port, Way};
use crate::datagram::server::Server;
use crate::datagram::setup::{EndSetup, Sizes};
use crate::datagram::wire::{Header, Kind};

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
pub(super) struct Desk {
    pub(super) hold: bool,
    pub(super) held: Vec<(CallToken, Vec<u8>)>,
    pub(super) requests: usize,
    pub(super) cancelled: usize,
    pub(super) disconnected: usize,
}

impl RequestSink for Desk {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.requests += 1;
        if self.hold {
            return self.held.push((call, message.to_vec()));
        }
        answer(call, &message, replies);
    }

    fn cancelled(&mut self, _: u32, _: u32, _: u32, _: u32) {
        self.cancelled += 1;
    }

    fn disconnected(&mut self, _: u32, _: u32) {
        self.disconnected += 1;
    }
}

fn answer(call: CallToken, bytes: &[u8], replies: &mut dyn Replies) {
    replies.reserve(&call, bytes.len()).unwrap().copy_from_slice(bytes);
    replies.post(call, bytes.len());
}

pub(super) struct Host {
    transport: Server,
    intake: DatagramIntake,
    device: Device,
    limits: Limits,
    pub(super) desk: Desk,
    now: u64,
}

/// A client's queue pair and its way to the server.
pub(super) struct Hand {
    pub(super) port: Port,
    pub(super) way: Way,
    cq: CompletionQueue,
}

impl Host {
    pub(super) fn new() -> Host {
        let device = Device::open("shm").unwrap();
        let max_message = 1 << 20;
        let limits = Limits {
            window: WINDOW,
            slot: 512,
            max_message,
            memory: 16 << 20,
            ..Limits::default()
        };
        let (transport, intake) = Server::new(&device, &limits, 8).unwrap();
        Host { transport, intake, device, limits, desk: Desk::default(), now: 1 }
    }

    pub(super) fn admit(&mut self) -> Hand {
        let sizes = Sizes::of_client(WINDOW, self.device.caps(), self.limits.without);
        let cq = self.device.create_cq(sizes.completions(), None).unwrap();
        let pd = self.device.alloc_pd().unwrap();
        let mut port = Port::open(&self.device, &pd, &cq.handle(), &sizes).unwrap();
        port.activate(7).unwrap();
        let ours = EndSetup::new(&port.qp().endpoint(), 7, 0, 0, sizes.mtu).to_bytes();
        let accepted = self.intake.accept(&self.limits.terms(), &ours, BOUND).unwrap();
        let theirs = EndSetup::from_bytes(&accepted.setup).unwrap();
        let way = theirs.way(&pd, theirs.epoch, sizes.mtu).unwrap();
        Hand { port, way, cq }
    }

    pub(super) fn turn(&mut self) {
        self.now += 1000;
        let now = Instant::from_nanos(self.now);
        self.transport.poll(now, &mut self.desk);
        self.transport.flush(now);
    }

    /// A turn after a while in which nothing else happens.
    pub(super) fn rest(&mut self, time: Duration) {
        self.now += time.as_nanos() as u64;
        self.turn();
    }

    /// Turns until the desk holds a request.
    pub(super) fn take_in(&mut self) {
        let begin = WallClock::now();
        while self.desk.held.is_empty() {
            self.turn();
            assert!(begin.elapsed() < BOUND, "no request comes; the desk: {:?}", self.desk);
        }
    }

    /// Answers what was held first.
    pub(super) fn answer(&mut self, bytes: &[u8]) {
        let (call, _) = self.desk.held.remove(0);
        answer(call, bytes, self.transport.replies());
        self.transport.flush(Instant::from_nanos(self.now));
    }

    /// What a device does when a work request fails.
    pub(super) fn break_queue_pair(&mut self) {
        self.transport.sessions.port.qp_mut().to_error();
    }

    pub(super) fn connections(&self) -> usize {
        self.transport.connections()
    }
}

impl Hand {
    /// Sends one message in a datagram of its own.
    pub(super) fn send(&mut self, kind: Kind, slot: u32, generation: u32, body: &[u8]) {
        assert!(self.port.put(&self.way, kind, (slot, generation, 0), (body, &[])));
        self.port.seal(&self.way);
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
            assert_eq!((session, epoch), (0, self.way.epoch));
            heard.extend(messages.map(|message| Heard {
                kind: message.kind,
                slot: message.slot,
                generation: message.generation,
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
            assert!(begin.elapsed() < BOUND, "nothing is heard; the desk: {:?}", host.desk);
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
