//! One end of a `write_imm` connection, driven by hand: the layout is said again here, byte by byte, so that a change
//! of it does not go unnoticed.

use std::{
    collections::VecDeque,
    io::Write,
    time::{Duration, Instant},
};

use farcall_core::ServiceDescription;
use farcall_transports::handshake::{Frame, Hello, Reject, Terms, Welcome};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, QpType, QueuePair, QueuePairConfig,
    RemoteRegion, RemoteSlice, SharedRegion, Status, WorkCompletion, WorkRequest,
};
use serde::{Deserialize, Serialize};

use super::{Ambush, BreakIn, Pace, RealTime, Stream, decoded, encoded, receive};
use crate::patience::patient;

/// Kinds of messages.
pub mod kind {
    /// A whole message.
    pub const INLINE: u8 = 1;
    /// A large request asks where it may land.
    pub const ANNOUNCE: u8 = 2;
    /// It may land there.
    pub const GRANT: u8 = 3;
    /// A large response waits there.
    pub const LENT: u8 = 4;
    /// The announced request is too long.
    pub const OVER_LIMIT: u8 = 5;
    /// The cancelled request was dropped.
    pub const DROPPED: u8 = 6;
}

/// Operations of an immediate.
pub mod op {
    /// A message is in the slot.
    pub const MESSAGE: u32 = 0;
    /// A chunk has landed, or may land.
    pub const CHUNK: u32 = 1;
    /// Nobody waits any more.
    pub const CANCEL: u32 = 2;
    /// The lent response has been read.
    pub const RELEASE: u32 = 3;
    /// Nothing follows.
    pub const GOODBYE: u32 = 4;
}

/// Bytes that can be written at once.
const SCRATCH_BYTES: usize = 1 << 20;

/// Work requests of each kind that may be outstanding.
const DEPTH: usize = 4096;

/// The id of this end's work requests; receives have small ones.
const OUR_ID: u64 = u64::MAX;

/// The id of none.
const NO_ID: u64 = u64::MAX - 1;

/// What each end says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EndSetup {
    endpoint: Vec<u8>,
    slots: RemoteRegion,
    client: u32,
}

/// An end that is not connected.
pub struct Port {
    qp: QueuePair,
    cq: CompletionQueue,
    slots: SharedRegion,
    scratch: SharedRegion,
    device: Device,
}

/// An end that is.
pub struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    completions: Vec<WorkCompletion>,
    received: VecDeque<(u32, Vec<u8>)>,
    /// What the other end writes.
    pub slots: SharedRegion,
    scratch: SharedRegion,
    /// Where this end may write.
    pub theirs: RemoteRegion,
    /// This client's number at its server.
    pub client: u32,
    /// What was agreed.
    pub terms: Terms,
    broken: bool,
    stream: Box<dyn Stream>,
    is_tether: bool,
    pace: Box<dyn Pace>,
    _device: Device,
}

/// The message in front of which eight bytes say what it is.
pub fn message(generation: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = generation.to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// A request of the core: method, no deadline, arguments.
pub fn request(generation: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    let mut body = method.to_le_bytes().to_vec();
    body.extend([0; 4]);
    body.extend(arguments);
    message(generation, kind::INLINE, &body)
}

/// Bytes from the beginning of one slot to that of the next: an odd number of cache lines, at least three.
pub fn stride(slot: u32) -> u32 {
    let lines = slot.div_ceil(64) | 1;
    64 * lines.max(3)
}

/// A region's name as it travels in a message.
pub fn wire_region(addr: u64, len: u64, rkey: u32) -> Vec<u8> {
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &rkey.to_le_bytes()].concat()
}

impl Port {
    /// A queue pair with receives, and slots for the other end.
    pub fn open(device: &Device, terms: &Terms) -> Port {
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(2 * DEPTH, None).expect("a completion queue");
        let slots = pd
            .alloc_shared((terms.window * stride(terms.slot)) as usize, Access::REMOTE_WRITE)
            .expect("slots");
        let scratch = pd.alloc_shared(SCRATCH_BYTES, Access::empty()).expect("scratch");
        let handle = cq.handle();
        let config = QueuePairConfig::new(QpType::Rc, &handle, &handle)
            .max_send_wr(DEPTH)
            .max_recv_wr(DEPTH);
        let mut qp = pd.create_qp(config).expect("a queue pair");
        qp.post_recvs(0..DEPTH as u64).expect("receives");
        Port { qp, cq, slots, scratch, device: device.clone() }
    }

    /// What the other end must know.
    pub fn setup(&self, client: u32) -> Vec<u8> {
        let endpoint = self.qp.endpoint().to_bytes().to_vec();
        let setup = EndSetup { endpoint, slots: self.slots.remote(), client };
        encoded(&setup)
    }

    fn connect(
        mut self,
        setup: &[u8],
        terms: Terms,
        client: Option<u32>,
        (stream, is_tether): (Box<dyn Stream>, bool),
        pace: Box<dyn Pace>,
    ) -> End {
        let setup: EndSetup = decoded(setup);
        let endpoint = Endpoint::from_bytes(&setup.endpoint).expect("an endpoint");
        let options = ConnectOptions::default().setup_timeout(patient(Duration::from_secs(5)));
        self.qp.connect(&endpoint, &options).expect("connect");
        let Port { qp, cq, slots, scratch, device } = self;
        End {
            qp,
            cq,
            completions: (0..64).map(|_| WorkCompletion::default()).collect(),
            received: VecDeque::new(),
            slots,
            scratch,
            theirs: setup.slots,
            client: client.unwrap_or(setup.client),
            terms,
            broken: false,
            stream,
            is_tether,
            pace,
            _device: device,
        }
    }
}

/// Shakes hands as a client that keeps the rules so far.
pub fn break_in(
    into: BreakIn,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let BreakIn { device, mut stream, is_tether, pace } = into;
    let port = Port::open(&device, &wanted);
    let hello = Frame::Hello(Hello {
        backend: "write_imm".to_owned(),
        service: service.name.to_owned(),
        fingerprint: service.fingerprint,
        terms: wanted,
        setup: port.setup(0),
    });
    stream.write_all(&hello.to_bytes()).expect("say hello");
    match receive(&mut *stream).expect("an answer") {
        Frame::Welcome(Welcome { terms, setup }) => {
            stream.write_all(&Frame::Ready.to_bytes()).expect("say ready");
            Ok(port.connect(&setup, terms, None, (stream, is_tether), pace))
        }
        Frame::Reject(reject) => Err(reject),
        other => panic!("{other:?} is no answer to a hello"),
    }
}

/// Shakes hands as a server that keeps the rules so far.
pub fn ambush(ambush: &mut Ambush, slots: Terms) -> End {
    let mut stream = (ambush.accept)().expect("a client");
    let Ok(Frame::Hello(hello)) = receive(&mut *stream) else { panic!("a client says hello") };
    let terms = Terms {
        window: hello.terms.window.min(slots.window),
        slot: hello.terms.slot.min(slots.slot),
        max_message: hello.terms.max_message.min(slots.max_message),
    };
    let port = Port::open(&ambush.device, &terms);
    let welcome = Frame::Welcome(Welcome { terms, setup: port.setup(3) });
    let pace = Box::new(RealTime(Instant::now()));
    let mut end = port.connect(&hello.setup, terms, Some(3), (stream, false), pace);
    end.stream.write_all(&welcome.to_bytes()).expect("say welcome");
    match receive(&mut *end.stream) {
        Ok(Frame::Ready) => {}
        other => panic!("{other:?} instead of ready"),
    }
    end
}

impl End {
    /// The immediate of an operation on one of this connection's slots.
    pub fn immediate(&self, op: u32, slot: u32) -> u32 {
        op << 29 | self.client << 10 | slot
    }

    /// Where a slot of the other end begins.
    pub fn slot_address(&self, slot: u32) -> u64 {
        self.theirs.addr + u64::from(slot) * u64::from(stride(self.terms.slot))
    }

    /// WRITEs bytes to any address under any key, with or without an immediate, and waits for the end of it; `false`
    /// if the connection is over.
    pub fn write(&mut self, addr: u64, rkey: u32, bytes: &[u8], imm: Option<u32>) -> bool {
        if self.broken {
            return false;
        }
        self.scratch.copy_in(0, bytes);
        let remote = RemoteSlice::new(addr, rkey, bytes.len() as u64);
        let request = WorkRequest::write(self.scratch.slice(0, bytes.len()), remote);
        let request = match imm {
            Some(imm) => request.imm(imm),
            None => request,
        };
        if self.qp.post_send_one(request.signaled(OUR_ID)).is_err() {
            self.broken = true;
            return false;
        }
        let end = self.pace.now() + patient(Duration::from_secs(10));
        while self.pace.now() < end {
            match self.poll(OUR_ID) {
                Some(Status::Success) => return true,
                Some(_) => {
                    self.broken = true;
                    return false;
                }
                // The device tries for long before it says so.
                None if self.is_cut() => {
                    self.broken = true;
                    return false;
                }
                None => self.pace.turn(),
            }
        }
        panic!("a WRITE does not end");
    }

    /// Puts a message into a slot of the other end, as the rules are.
    pub fn send(&mut self, slot: u32, message: &[u8]) -> bool {
        let imm = self.immediate(op::MESSAGE, slot);
        self.write(self.slot_address(slot), self.theirs.rkey, message, Some(imm))
    }

    /// Sends an immediate alone.
    pub fn operate(&mut self, op: u32, slot: u32) -> bool {
        let imm = self.immediate(op, slot);
        self.raw(imm)
    }

    /// Sends any immediate alone.
    pub fn raw(&mut self, imm: u32) -> bool {
        self.write(self.theirs.addr, self.theirs.rkey, &[], Some(imm))
    }

    /// Looks at completions: how the work request with this id ended, if it did. What was received is kept for
    /// [`next_message`](End::next_message).
    fn poll(&mut self, id: u64) -> Option<Status> {
        let found = self.cq.poll(&mut self.completions).unwrap_or(0);
        let mut status = None;
        for completion in &self.completions[..found] {
            match (completion.status, completion.imm) {
                (ended, _) if completion.id == id => status = Some(ended),
                (Status::Success, Some(imm)) => {
                    let at = (imm & 0x3ff) as usize % self.terms.window as usize;
                    let len = completion.byte_len.min(self.terms.slot) as usize;
                    let mut bytes = vec![0; len];
                    self.slots.copy_out(at * stride(self.terms.slot) as usize, &mut bytes);
                    self.received.push_back((imm, bytes));
                    self.broken |= self.qp.post_recvs(0..1).is_err();
                }
                (Status::Success, None) => {}
                _ => self.broken = true,
            }
        }
        status
    }

    /// The next immediate that the other end has sent, with the message it came with; nothing if the connection is
    /// over, or after a second.
    pub fn next_message(&mut self) -> Option<(u32, Vec<u8>)> {
        let end = self.pace.now() + patient(Duration::from_secs(1));
        loop {
            if let Some(message) = self.received.pop_front() {
                return Some(message);
            }
            if self.broken || self.pace.now() > end {
                return None;
            }
            let _ = self.poll(NO_ID);
            self.pace.turn();
        }
    }

    /// Has the other end ended the connection? Waits for it, at most ten seconds.
    pub fn is_dropped(&mut self) -> bool {
        let end = self.pace.now() + patient(Duration::from_secs(10));
        while self.pace.now() < end {
            let _ = self.poll(NO_ID);
            if self.broken || self.is_cut() || !self.raw_quietly() {
                return true;
            }
            self.pace.turn();
        }
        false
    }

    /// Has the other end closed the stream that it would keep?
    fn is_cut(&self) -> bool {
        self.is_tether && self.stream.has_news()
    }

    /// A WRITE of nothing, which changes nothing, but ends in an error when nobody is there.
    fn raw_quietly(&mut self) -> bool {
        self.write(self.theirs.addr, self.theirs.rkey, &[0], None)
    }
}
