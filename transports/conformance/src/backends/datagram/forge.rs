//! One end of a `datagram` session, driven by hand. The layout is written down a second time, byte by byte, so that a
//! change of it is noticed. It can also send from a queue pair that has no session.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use farcall_core::ServiceDescription;
use farcall_transports::contract::Terms;
use farcall_transports::handshake::Reject;
use farcall_verbs::{
    Access, AddressHandle, CompletionOpcode, CompletionQueue, Device, Endpoint, GRH_BYTES,
    ProtectionDomain, QpNumber, QpType, QueuePair, QueuePairConfig, SharedRegion, Status,
    WorkCompletion, WorkRequest,
};
use serde::{Deserialize, Serialize};

use super::NAME;
use crate::{
    backends::UnconnectedEnd,
    hostile::{
        Clock, RawConnection, RawListener, RealClock, Stream, decode_setup, encode_setup, hello,
        shake_hands, welcome_client_and,
    },
    patience::patient,
    pattern,
};

/// Kinds of messages.
pub(super) mod kind {
    /// A whole request.
    pub(crate) const REQUEST: u8 = 1;
    /// A large request asks to be sent in parts.
    pub(crate) const ANNOUNCE: u8 = 2;
    /// A part of a large message.
    pub(crate) const PART: u8 = 3;
    /// Asks how the request stands, or for parts of the response.
    pub(crate) const ASK: u8 = 4;
    /// The caller does not wait any more.
    pub(crate) const CANCEL: u8 = 5;
    /// The large response was taken.
    pub(crate) const RELEASE: u8 = 6;
    /// Nothing follows.
    pub(crate) const GOODBYE: u8 = 7;
    /// A whole response.
    pub(crate) const RESPONSE: u8 = 8;
    /// A large response can be fetched.
    pub(crate) const OFFER: u8 = 9;
    /// Which parts of a large request have arrived.
    pub(crate) const PROGRESS: u8 = 10;
    /// A handler has the request.
    pub(crate) const RUNNING: u8 = 12;
    /// The announced request is too long.
    pub(crate) const OVER_LIMIT: u8 = 15;
    /// A whole request that may run more than once.
    pub(crate) const IDEMPOTENT: u8 = 16;
    /// The request was answered so long ago that its response is gone.
    pub(crate) const FORGOTTEN: u8 = 17;
    /// A question for what datagrams to the server must carry, and the answer.
    pub(crate) const CHALLENGE: u8 = 18;
    /// Any other kind is unknown.
    pub(crate) const LAST: u8 = CHALLENGE;
}

/// What datagrams to a server of ours carry.
const ANSWER: u64 = 0xa45e4;

/// The first word of every datagram.
pub(super) const VERSION: u32 = 0xfa55_0001;

/// Bytes in front of every datagram, and of every message in it.
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 10;

/// The longest datagram that any end of the suite's devices takes.
const MAX_BYTES: usize = 4096;

/// Work requests of each kind that may be outstanding.
const DEPTH: usize = 256;

/// Datagrams that one end may have under way.
const UNDER_WAY: usize = 16;

/// The id of this end's sends.
const OUR_ID: u64 = u64::MAX;

/// Parts of a large message that may be in flight.
const CREDITS: u32 = 16;

/// The Q_Key of ends made by hand.
pub(super) const QKEY: u32 = 0x0bad_0bad;

/// What each end says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndSetup {
    /// Its queue pair.
    pub(crate) endpoint: Vec<u8>,
    /// What datagrams to it must carry.
    pub(crate) qkey: u32,
    /// Its number of the session.
    pub(crate) session: u32,
    /// From the server: what its datagrams carry, and questions for what others to it must carry.
    pub(crate) epoch: u64,
    /// Its longest datagram.
    pub(crate) mtu: u32,
    /// Parts that may be under way.
    pub(crate) credits: u32,
}

/// A message, as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// One of [`kind`].
    pub(crate) kind: u8,
    /// Which slot of the window.
    pub(crate) slot: u16,
    /// Which request in that slot.
    pub(crate) generation: u32,
    /// All that follows.
    pub(crate) body: Vec<u8>,
}

/// One message of a datagram.
pub(super) fn message(kind: u8, slot: u16, generation: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend(slot.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend((body.len() as u16).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A request of the core: method, no deadline, arguments.
pub(super) fn request(slot: u16, generation: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    let mut body = method.to_le_bytes().to_vec();
    body.extend([0; 4]);
    body.extend(arguments);
    message(kind::REQUEST, slot, generation, &body)
}

/// A datagram of these messages, to a session.
pub(super) fn datagram(session: u32, epoch: u64, messages: &[u8]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend(session.to_le_bytes());
    bytes.extend(epoch.to_le_bytes());
    bytes.extend(messages);
    bytes
}

/// A queue pair that sends any bytes to any other.
pub(super) struct RawPair {
    qp: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    /// A place for each datagram that may be under way.
    scratch: SharedRegion,
    /// Datagrams sent so far, and of these those that have left.
    sent: usize,
    left: usize,
    received: VecDeque<Message>,
    device: Device,
}

impl RawPair {
    /// A queue pair with receives.
    pub(super) fn open(device: &Device) -> RawPair {
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
        let scratch = pd.alloc_shared(UNDER_WAY * MAX_BYTES, Access::empty()).expect("scratch");
        let received = VecDeque::new();
        RawPair { qp, cq, pd, scratch, sent: 0, left: 0, received, device: device.clone() }
    }

    /// Its number, which queue pairs of other devices may have too.
    pub(super) fn number(&self) -> QpNumber {
        self.qp.number()
    }

    /// What the other end must know of this one.
    pub(super) fn end_setup(&self) -> EndSetup {
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
    pub(super) fn send(&mut self, to: &EndSetup, qkey: u32, bytes: &[u8], clock: &dyn Clock) {
        self.post(to, qkey, bytes, clock);
        self.wait_left(self.sent, clock);
    }

    /// Sends any bytes under any key, while earlier ones are still under way.
    pub(super) fn post(&mut self, to: &EndSetup, qkey: u32, bytes: &[u8], clock: &dyn Clock) {
        self.wait_left((self.sent + 1).saturating_sub(UNDER_WAY), clock);
        let (handle, endpoint) = self.way(to);
        let at = self.sent % UNDER_WAY * MAX_BYTES;
        self.scratch.copy_in(at, bytes);
        let request = WorkRequest::send(self.scratch.slice(at, bytes.len()));
        let request = request.to(&handle, endpoint.qp(), qkey).signaled(OUR_ID);
        self.qp.post_send_one(request).map_err(|(error, _)| error).expect("a datagram is posted");
        self.sent += 1;
    }

    /// Waits until so many datagrams have left.
    fn wait_left(&mut self, count: usize, clock: &dyn Clock) {
        let end = clock.now() + patient(Duration::from_secs(10));
        while self.left < count {
            self.poll();
            if self.left < count {
                assert!(clock.now() < end, "a datagram does not leave");
                clock.turn();
            }
        }
    }

    /// What has come, from anybody.
    pub(super) fn take_received(&mut self) -> Vec<Message> {
        self.poll();
        self.received.drain(..).collect()
    }

    /// Tells a client what its datagrams must carry, until it is heard to know that.
    fn answer_questions(&mut self, client: &EndSetup, clock: &dyn Clock) {
        let answer = message(kind::CHALLENGE, 0, 0, &ANSWER.to_le_bytes());
        let answer = datagram(client.session, self.end_setup().epoch, &answer);
        let end = clock.now() + patient(Duration::from_secs(10));
        loop {
            self.poll();
            match self.received.pop_front() {
                Some(Message { kind: kind::CHALLENGE, slot: 0, .. }) => {
                    self.send(client, client.qkey, &answer, clock);
                }
                Some(Message { kind: kind::CHALLENGE, slot: u16::MAX, .. }) => return,
                Some(other) => panic!("{other:?} before the client is ready"),
                None => assert!(clock.now() < end, "the client asks nothing"),
            }
            clock.turn();
        }
    }

    /// Takes completions.
    fn poll(&mut self) {
        let mut completions: [WorkCompletion; 16] = Default::default();
        let found = self.cq.poll(&mut completions).expect("its own completion queue");
        for completion in &mut completions[..found] {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            if completion.opcode != CompletionOpcode::Recv {
                self.left += 1;
                continue;
            }
            let Some(mut buffer) = completion.buffer.take() else { continue };
            let datagram = &buffer[GRH_BYTES..completion.byte_len as usize];
            self.received.extend(messages(&datagram[HEADER_BYTES..]));
            buffer.set_len(buffer.capacity());
            self.qp.post_recv(0, Some(buffer)).expect("a receive");
        }
    }
}

/// The messages behind a datagram's header, which must be well-formed.
fn messages(mut rest: &[u8]) -> Vec<Message> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (header, behind) = rest.split_at(MESSAGE_BYTES);
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let generation = u32::from(short(4)) | u32::from(short(6)) << 16;
        let (body, behind) = behind.split_at(short(8).into());
        all.push(Message { kind: header[0], slot: short(2), generation, body: body.to_vec() });
        rest = behind;
    }
    all
}

/// An end with a session.
pub(super) struct End {
    /// What it sends from.
    pub(crate) pair: RawPair,
    /// What the other end has said of itself.
    pub(crate) theirs: EndSetup,
    /// What datagrams to the other end carry.
    pub(crate) epoch: u64,
    /// What was agreed.
    pub(crate) terms: Terms,
    /// How it waits.
    pub(crate) clock: Box<dyn Clock>,
    /// The server may keep it as long as the session.
    _stream: Box<dyn Stream>,
}

impl UnconnectedEnd for RawPair {
    fn setup(&self) -> Vec<u8> {
        encode_setup(&self.end_setup())
    }
}

/// Setups that either end must refuse.
pub(super) fn broken_setups(device: &Device) -> Vec<Vec<u8>> {
    let good = RawPair::open(device).end_setup();
    let forged = [
        EndSetup { endpoint: vec![], ..good.clone() },
        EndSetup { endpoint: vec![0xff; 64], ..good.clone() },
        EndSetup { endpoint: pattern::make(1, 1000), ..good.clone() },
        EndSetup { mtu: 0, ..good.clone() },
        EndSetup { mtu: 60, ..good.clone() },
        EndSetup { credits: 0, ..good },
    ];
    forged.iter().map(encode_setup).collect()
}

/// Shakes hands as a client that keeps the rules so far, and learns what its datagrams must carry.
pub(super) fn connect(
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let mut end = introduce(to, service, wanted)?;
    let challenge = end.ask(&question());
    end.epoch = epoch_of(&challenge);
    Ok(end)
}

/// Asks what datagrams to the server must carry.
pub(super) fn question() -> Vec<u8> {
    message(kind::CHALLENGE, 0, 0, &[0; 8])
}

/// What the server has said that datagrams to it must carry.
pub(super) fn epoch_of(challenge: &Message) -> u64 {
    assert_eq!(challenge.kind, kind::CHALLENGE, "{challenge:?}");
    u64::from_le_bytes(challenge.body[..].try_into().expect("an epoch"))
}

/// Shakes hands as a client, and sends nothing.
pub(super) fn introduce(
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let pair = RawPair::open(&to.device);
    introduce_as(pair.setup(), pair, to, service, wanted)
}

/// The same, with this setup, which may name the queue pair of another.
pub(super) fn introduce_as(
    setup: Vec<u8>,
    pair: RawPair,
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let RawConnection { mut stream, clock, .. } = to;
    let welcome = shake_hands(&mut *stream, &hello(NAME, service, wanted, setup))?;
    let theirs: EndSetup = decode_setup(&welcome.setup);
    let (epoch, terms) = (theirs.epoch, welcome.terms);
    Ok(End { pair, epoch, theirs, terms, clock, _stream: stream })
}

/// Shakes hands as a server that keeps the rules so far.
pub(super) fn accept(listener: &mut RawListener, most: Terms) -> End {
    let pair = RawPair::open(&listener.device);
    let ours = pair.end_setup();
    let clock = RealClock(Instant::now());
    let ((pair, theirs), terms, stream) = welcome_client_and(
        listener,
        most,
        |_, setup| ((pair, decode_setup::<EndSetup>(setup)), encode_setup(&ours)),
        |(pair, theirs)| pair.answer_questions(theirs, &clock),
    );
    End { pair, epoch: ours.epoch, theirs, terms, clock: Box::new(clock), _stream: stream }
}

impl End {
    /// A datagram of these messages in this session.
    pub(super) fn datagram(&self, messages: &[u8]) -> Vec<u8> {
        datagram(self.theirs.session, self.epoch, messages)
    }

    /// Sends any bytes to the other end's queue pair, with its key.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) {
        let (to, clock) = (&self.theirs, &*self.clock);
        self.pair.send(to, to.qkey, bytes, clock);
    }

    /// The same, while earlier ones are still under way.
    pub(super) fn post_raw(&mut self, bytes: &[u8]) {
        let (to, clock) = (&self.theirs, &*self.clock);
        self.pair.post(to, to.qkey, bytes, clock);
    }

    /// Sends messages in this session, as the rules are.
    pub(super) fn send(&mut self, messages: &[u8]) {
        let datagram = self.datagram(messages);
        self.send_raw(&datagram);
    }

    /// The next message from the other end, if it is here; otherwise lets everything else proceed.
    pub(super) fn try_message(&mut self) -> Option<Message> {
        if self.pair.received.is_empty() {
            self.pair.poll();
            self.clock.turn();
        }
        self.pair.received.pop_front()
    }

    /// The next message from the other end; nothing after a second.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        let end = self.clock.now() + patient(Duration::from_secs(1));
        loop {
            let message = self.try_message();
            if message.is_some() || self.clock.now() > end {
                return message;
            }
        }
    }

    /// Sends a message until it is answered: a datagram may be lost. That its handler runs is no answer: on a busy machine any may seem to
    /// run long.
    pub(super) fn ask(&mut self, message: &[u8]) -> Message {
        self.ask_until(message, |answer| answer.kind != kind::RUNNING)
    }

    /// Sends a message until anything is answered, also that its handler runs.
    pub(super) fn ask_once(&mut self, message: &[u8]) -> Message {
        self.ask_until(message, |_| true)
    }

    fn ask_until(&mut self, message: &[u8], is_wanted: impl Fn(&Message) -> bool) -> Message {
        let [asked] = &messages(message)[..] else { panic!("one message at a time") };
        for _ in 0..20 {
            self.send(message);
            while let Some(answer) = self.next_message() {
                let is_of_it = (answer.slot, answer.generation) == (asked.slot, asked.generation);
                if is_of_it && is_wanted(&answer) {
                    return answer;
                }
            }
        }
        panic!("no answer to {asked:?}");
    }

    /// Another queue pair of the same device, without a session.
    pub(super) fn other_sender(&self) -> RawPair {
        RawPair::open(&self.pair.device)
    }
}
