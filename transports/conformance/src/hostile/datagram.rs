//! One end of a `datagram` session, driven by hand: the layout is said again here, byte by byte, so that a change of it
//! does not go unnoticed. It can also send as somebody else, or as nobody.

use std::{
    collections::VecDeque,
    io::Write,
    time::{Duration, Instant},
};

use farcall_core::ServiceDescription;
use farcall_transports::handshake::{Frame, Hello, Reject, Terms, Welcome};
use farcall_verbs::{
    Access, AddressHandle, CompletionOpcode, CompletionQueue, Device, Endpoint, GRH_BYTES,
    ProtectionDomain, QpType, QueuePair, QueuePairConfig, SharedRegion, Status, WorkCompletion,
    WorkRequest,
};
use serde::{Deserialize, Serialize};

use super::{Ambush, BreakIn, Pace, RealTime, Stream, decoded, encoded, receive};
use crate::patience::patient;

/// Kinds of messages.
pub mod kind {
    /// A whole request.
    pub const REQUEST: u8 = 1;
    /// A long request wants to come.
    pub const ANNOUNCE: u8 = 2;
    /// A part of a long message.
    pub const PART: u8 = 3;
    /// What has become of it, or some parts of the response?
    pub const ASK: u8 = 4;
    /// Nobody waits any more.
    pub const CANCEL: u8 = 5;
    /// The long response was taken.
    pub const RELEASE: u8 = 6;
    /// Nothing follows.
    pub const GOODBYE: u8 = 7;
    /// A whole response.
    pub const RESPONSE: u8 = 8;
    /// A long response waits.
    pub const OFFER: u8 = 9;
    /// What has come of a long request.
    pub const PROGRESS: u8 = 10;
    /// The handler has it.
    pub const RUNNING: u8 = 12;
    /// The announced request is too long.
    pub const OVER_LIMIT: u8 = 15;
}

/// The first word of every datagram.
pub const VERSION: u32 = 0xfa55_0001;

/// Bytes in front of every datagram, and of every message in it.
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 10;

/// The longest datagram that any end of the suite's devices takes.
const MAX_BYTES: usize = 4096;

/// Work requests of each kind that may be outstanding.
const DEPTH: usize = 256;

/// The id of this end's sends.
const OUR_ID: u64 = u64::MAX;

/// Parts of a long message that may be under way.
const CREDITS: u32 = 16;

/// The Q_Key of everybody who keeps no rule.
pub const QKEY: u32 = 0x0bad_0bad;

/// What each end says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndSetup {
    /// Its queue pair.
    pub endpoint: Vec<u8>,
    /// What datagrams to it must carry.
    pub qkey: u32,
    /// Its number of the session.
    pub session: u32,
    /// From the server: the secret of the session.
    pub epoch: u64,
    /// Its longest datagram.
    pub mtu: u32,
    /// Parts that may be under way.
    pub credits: u32,
}

/// A message, as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// One of [`kind`].
    pub kind: u8,
    /// Which slot of the window.
    pub slot: u16,
    /// Which request in that slot.
    pub generation: u32,
    /// All that follows.
    pub body: Vec<u8>,
}

/// One message of a datagram.
pub fn message(kind: u8, slot: u16, generation: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend(slot.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend((body.len() as u16).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A request of the core: method, no deadline, arguments.
pub fn request(slot: u16, generation: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    let mut body = method.to_le_bytes().to_vec();
    body.extend([0; 4]);
    body.extend(arguments);
    message(kind::REQUEST, slot, generation, &body)
}

/// A datagram of these messages, to a session.
pub fn datagram(session: u32, epoch: u64, messages: &[u8]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend(session.to_le_bytes());
    bytes.extend(epoch.to_le_bytes());
    bytes.extend(messages);
    bytes
}

/// A queue pair that sends what it likes to whom it likes.
pub struct Port {
    qp: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    scratch: SharedRegion,
    received: VecDeque<Heard>,
    device: Device,
}

impl Port {
    /// A queue pair with receives.
    pub fn open(device: &Device) -> Port {
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(2 * DEPTH, None).expect("a completion queue");
        let handle = cq.handle();
        let config = QueuePairConfig::new(QpType::Ud, &handle, &handle)
            .max_send_wr(DEPTH)
            .max_recv_wr(DEPTH);
        let mut qp = pd.create_qp(config).expect("a queue pair");
        let room = GRH_BYTES + MAX_BYTES;
        let receives = pd.alloc_private(DEPTH * room).expect("receives").into_pool(room);
        while let Some(buffer) = receives.take() {
            qp.post_recv(0, Some(buffer)).expect("a receive");
        }
        qp.activate(QKEY).expect("ready");
        let scratch = pd.alloc_shared(MAX_BYTES, Access::empty()).expect("scratch");
        Port { qp, cq, pd, scratch, received: VecDeque::new(), device: device.clone() }
    }

    /// What the other end must know, where that is this end.
    pub fn setup(&self) -> EndSetup {
        let endpoint = self.qp.endpoint().to_bytes().to_vec();
        let (session, epoch, mtu) = (0, 0x5eed, MAX_BYTES as u32);
        EndSetup { endpoint, qkey: QKEY, session, epoch, mtu, credits: CREDITS }
    }

    /// The way to another end.
    fn way(&self, to: &EndSetup) -> (AddressHandle, Endpoint) {
        let endpoint = Endpoint::from_bytes(&to.endpoint).expect("an endpoint");
        (self.pd.create_address_handle(&endpoint).expect("a way"), endpoint)
    }

    /// Sends any bytes under any key, and waits until they have left.
    pub fn send(&mut self, to: &EndSetup, qkey: u32, bytes: &[u8], pace: &dyn Pace) {
        let (handle, endpoint) = self.way(to);
        self.scratch.copy_in(0, bytes);
        let request = WorkRequest::send(self.scratch.slice(0, bytes.len()));
        let request = request.to(&handle, endpoint.qp(), qkey).signaled(OUR_ID);
        self.qp.post_send_one(request).map_err(|(error, _)| error).expect("a datagram is posted");
        let end = pace.now() + patient(Duration::from_secs(10));
        while !self.poll() {
            assert!(pace.now() < end, "a datagram does not leave");
            pace.turn();
        }
    }

    /// Takes what has come; whether what was sent has left.
    fn poll(&mut self) -> bool {
        let mut completions: [WorkCompletion; 16] = Default::default();
        let found = self.cq.poll(&mut completions).expect("its own completion queue");
        let mut has_left = false;
        for completion in &mut completions[..found] {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            if completion.opcode != CompletionOpcode::Recv {
                has_left = true;
                continue;
            }
            let Some(mut buffer) = completion.buffer.take() else { continue };
            let datagram = &buffer[GRH_BYTES..completion.byte_len as usize];
            self.received.extend(messages(&datagram[HEADER_BYTES..]));
            buffer.set_len(buffer.capacity());
            self.qp.post_recv(0, Some(buffer)).expect("a receive");
        }
        has_left
    }
}

/// The messages behind a datagram's header, which must make sense.
fn messages(mut rest: &[u8]) -> Vec<Heard> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (header, behind) = rest.split_at(MESSAGE_BYTES);
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let generation = u32::from(short(4)) | u32::from(short(6)) << 16;
        let (body, behind) = behind.split_at(short(8).into());
        all.push(Heard { kind: header[0], slot: short(2), generation, body: body.to_vec() });
        rest = behind;
    }
    all
}

/// An end with a session.
pub struct End {
    /// What it sends from.
    pub port: Port,
    /// What the other end has said of itself.
    pub theirs: EndSetup,
    /// The secret of the session.
    pub epoch: u64,
    /// What was agreed.
    pub terms: Terms,
    /// How it waits.
    pub pace: Box<dyn Pace>,
    /// The server may keep it as long as the session.
    _stream: Box<dyn Stream>,
}

/// A hello of a client.
pub fn hello(service: &ServiceDescription, terms: Terms, setup: Vec<u8>) -> Frame {
    Frame::Hello(Hello {
        backend: "datagram".to_owned(),
        service: service.name.to_owned(),
        fingerprint: service.fingerprint,
        terms,
        setup,
    })
}

/// Shakes hands as a client that keeps the rules so far.
pub fn break_in(
    into: BreakIn,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let BreakIn { device, mut stream, pace, .. } = into;
    let port = Port::open(&device);
    let hello = hello(service, wanted, encoded(&port.setup()));
    stream.write_all(&hello.to_bytes()).expect("say hello");
    match receive(&mut *stream).expect("an answer") {
        Frame::Welcome(Welcome { terms, setup }) => {
            stream.write_all(&Frame::Ready.to_bytes()).expect("say ready");
            let theirs: EndSetup = decoded(&setup);
            Ok(End { port, epoch: theirs.epoch, theirs, terms, pace, _stream: stream })
        }
        Frame::Reject(reject) => Err(reject),
        other => panic!("{other:?} is no answer to a hello"),
    }
}

/// Shakes hands as a server that keeps the rules so far.
pub fn ambush(ambush: &mut Ambush, most: Terms) -> End {
    let mut stream = (ambush.accept)().expect("a client");
    let Ok(Frame::Hello(hello)) = receive(&mut *stream) else { panic!("a client says hello") };
    let terms = Terms {
        window: hello.terms.window.min(most.window),
        slot: hello.terms.slot.min(most.slot),
        max_message: hello.terms.max_message.min(most.max_message),
    };
    let port = Port::open(&ambush.device);
    let (theirs, ours): (EndSetup, _) = (decoded(&hello.setup), port.setup());
    let setup = encoded(&ours);
    stream.write_all(&Frame::Welcome(Welcome { terms, setup }).to_bytes()).expect("say welcome");
    match receive(&mut *stream) {
        Ok(Frame::Ready) => {}
        other => panic!("{other:?} instead of ready"),
    }
    let pace = Box::new(RealTime(Instant::now()));
    End { port, epoch: ours.epoch, theirs, terms, pace, _stream: stream }
}

impl End {
    /// A datagram of these messages in this session.
    pub fn datagram(&self, messages: &[u8]) -> Vec<u8> {
        datagram(self.theirs.session, self.epoch, messages)
    }

    /// Sends any bytes to the other end's queue pair, with its key.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let (to, pace) = (&self.theirs, &*self.pace);
        self.port.send(to, to.qkey, bytes, pace);
    }

    /// Sends messages as the rules are.
    pub fn send(&mut self, messages: &[u8]) {
        let datagram = self.datagram(messages);
        self.send_raw(&datagram);
    }

    /// The next message that the other end has sent, if it has come; otherwise everything else goes on.
    pub fn try_message(&mut self) -> Option<Heard> {
        if self.port.received.is_empty() {
            self.port.poll();
            self.pace.turn();
        }
        self.port.received.pop_front()
    }

    /// The next message that the other end has sent; nothing after a second.
    pub fn next_message(&mut self) -> Option<Heard> {
        let end = self.pace.now() + patient(Duration::from_secs(1));
        loop {
            let heard = self.try_message();
            if heard.is_some() || self.pace.now() > end {
                return heard;
            }
        }
    }

    /// Sends a message of that slot and generation, and gives what is answered to it. What is lost, as a datagram may
    /// be, is sent again.
    pub fn ask(&mut self, message: &[u8]) -> Heard {
        let [asked] = &messages(message)[..] else { panic!("one message at a time") };
        for _ in 0..20 {
            self.send(message);
            while let Some(heard) = self.next_message() {
                if (heard.slot, heard.generation) == (asked.slot, asked.generation) {
                    return heard;
                }
            }
        }
        panic!("no answer to {asked:?}");
    }

    /// A queue pair of the same device that has no session.
    pub fn stranger(&self) -> Port {
        Port::open(&self.port.device)
    }
}
