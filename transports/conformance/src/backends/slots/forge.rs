//! One end of a `write_imm`, `send_recv`, `rfp` or `scale` connection, driven by hand. The layout is written down a second time, byte by
//! byte, so that a change of it is noticed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use farcall_core::ServiceDescription;
use farcall_transports::contract::Terms;
use farcall_transports::handshake::Reject;
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, QpType, QueuePair, QueuePairConfig,
    RemoteRegion, RemoteSlice, SharedRegion, Status, WorkCompletion, WorkRequest,
};
use serde::{Deserialize, Serialize};

use super::forge_pool::{
    ClientSetup, GROWN, LEFT, Log, Pool, STOP, STOP_NOTE, ServerSetup, take_note,
};
use crate::{
    backends::{UnconnectedEnd, rfp, scale, send_recv, write_imm},
    hostile::{
        Clock, RawConnection, RawListener, RealClock, Stream, decode_setup, encode_setup, hello,
        shake_hands, welcome_client,
    },
    patience::patient,
    pattern,
    world::World,
};

/// What carries the messages of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// `write_imm`: WRITEs into slots.
    Writes,
    /// `send_recv`: SENDs into receives.
    Sends,
    /// `rfp`, whose server was told to send: WRITEs to the ends of cells, and back into slots.
    Cells,
    /// `scale`, out of the client's log: WRITEs back into slots.
    Logs,
}

impl Carrier {
    /// That of the backend under test.
    pub(crate) fn of(world: &World) -> Carrier {
        let all = [Carrier::Writes, Carrier::Sends, Carrier::Cells, Carrier::Logs];
        let carrier = all.into_iter().find(|carrier| carrier.backend() == world.backend().name);
        carrier.expect("a backend of slots")
    }

    /// Whether that of an end is [`Logs`](Carrier::Logs).
    pub(crate) fn is_of_logs(end: &End) -> bool {
        end.pair.carrier == Carrier::Logs
    }

    fn backend(self) -> &'static str {
        match self {
            Carrier::Writes => write_imm::NAME,
            Carrier::Sends => send_recv::NAME,
            Carrier::Cells => rfp::NAME,
            Carrier::Logs => scale::NAME,
        }
    }
}

/// Kinds of messages.
pub(crate) mod kind {
    /// A whole message.
    pub(crate) const INLINE: u8 = 1;
    /// A large request asks where it may land.
    pub(crate) const ANNOUNCE: u8 = 2;
    /// It may land there.
    pub(crate) const GRANT: u8 = 3;
    /// A large response waits there.
    pub(crate) const LENT: u8 = 4;
    /// The announced request is too long.
    pub(crate) const OVER_LIMIT: u8 = 5;
}

/// Operations of an immediate.
pub(crate) mod op {
    /// A message is in the slot.
    pub(crate) const MESSAGE: u32 = 0;
    /// A chunk has landed, or may land.
    pub(crate) const CHUNK: u32 = 1;
    /// The caller does not wait any more.
    pub(crate) const CANCEL: u32 = 2;
    /// The lent response has been read.
    pub(crate) const RELEASE: u32 = 3;
    /// Nothing follows.
    pub(crate) const GOODBYE: u32 = 4;
    /// How responses travel, in `rfp`.
    pub(crate) const MODE: u32 = 6;
}

/// Bytes that can be written at once.
const SCRATCH_BYTES: usize = 1 << 20;

/// Work requests of each kind that may be outstanding.
const DEPTH: usize = 4096;

/// Receives with buffers.
const RECEIVES_OF_SENDS: usize = 256;

/// The id of this end's work requests; receives have small ones.
const OUR_ID: u64 = u64::MAX;

/// The id of none.
const NO_ID: u64 = u64::MAX - 1;

/// The id of a READ of a log.
const LOG_ID: u64 = u64::MAX - 2;

/// What each end of `write_imm` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct WritesSetup {
    endpoint: Vec<u8>,
    slots: RemoteRegion,
    client: u32,
}

/// What each end of `send_recv` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SendsSetup {
    endpoint: Vec<u8>,
    client: u32,
    credits: u32,
}

/// What the server of `rfp` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CellsSetup {
    cells: Vec<u8>,
    responses: RemoteRegion,
    most_lines: u32,
    looks: bool,
}

/// The argument of [`op::MODE`] by which a client of `rfp` asks that responses are sent.
const SEND: u32 = 1;

/// A queue pair with receives, and slots for the other end.
pub(crate) struct RawPair {
    carrier: Carrier,
    qp: QueuePair,
    cq: CompletionQueue,
    slots: SharedRegion,
    window: u32,
    slot: u32,
    /// Messages into the other end's cells, and out of our own; operations sent.
    sent: u32,
    taken: u32,
    operations: u32,
    /// Where an `rfp` client fetches responses: there are none.
    responses: Option<SharedRegion>,
    log: Option<Log>,
    /// Where a `scale` client has its log.
    their_log: Option<RemoteRegion>,
    scratch: SharedRegion,
    _device: Device,
}

/// An end that is connected.
pub(crate) struct End {
    pair: RawPair,
    completions: Vec<WorkCompletion>,
    received: VecDeque<(u32, Vec<u8>)>,
    /// Where this end may write.
    pub(crate) theirs: RemoteRegion,
    /// This client's number at its server.
    pub(crate) client: u32,
    is_server: bool,
    /// Where an `rfp` server leaves responses.
    pub(crate) responses: Option<RemoteRegion>,
    /// The message pool of a `scale` server.
    pub(crate) pool: Option<Pool>,
    /// Which place of it this client has, and how often it had one.
    pub(crate) place: Option<u32>,
    pub(crate) stays: u32,
    /// What was agreed.
    pub(crate) terms: Terms,
    broken: bool,
    stream: Box<dyn Stream>,
    is_liveness_socket: bool,
    clock: Box<dyn Clock>,
}

/// A message: eight bytes of header, and its body.
pub(crate) fn message(generation: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = generation.to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// A request of the core: method, no deadline, arguments.
pub(crate) fn request(generation: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    let mut body = method.to_le_bytes().to_vec();
    body.extend([0; 4]);
    body.extend(arguments);
    message(generation, kind::INLINE, &body)
}

/// Bytes from the beginning of one slot to that of the next: an odd number of cache lines, at least three.
pub(crate) fn stride(slot: u32) -> u32 {
    let lines = slot.div_ceil(64) | 1;
    64 * lines.max(3)
}

/// A region's name as it travels in a message.
pub(crate) fn wire_region(addr: u64, len: u64, rkey: u32) -> Vec<u8> {
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &rkey.to_le_bytes()].concat()
}

impl RawPair {
    pub(crate) fn open(carrier: Carrier, device: &Device, terms: &Terms) -> RawPair {
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
        match carrier {
            Carrier::Writes | Carrier::Cells | Carrier::Logs => {
                qp.post_recvs(0..DEPTH as u64).expect("receives");
            }
            Carrier::Sends => {
                let size = terms.slot as usize;
                let region = pd.alloc_private(RECEIVES_OF_SENDS * size).expect("buffers");
                let buffers = region.into_pool(size);
                while let Some(buffer) = buffers.take() {
                    qp.post_recv(0, Some(buffer)).expect("a receive");
                }
            }
        }
        let Terms { window, slot, .. } = *terms;
        let responses = (carrier == Carrier::Cells).then(|| {
            let bytes = (2 * window + 1) * 64 + window * stride(slot);
            pd.alloc_shared(bytes as usize, Access::REMOTE_READ).expect("responses")
        });
        let log = (carrier == Carrier::Logs).then(|| Log::new(&pd, terms));
        let (sent, taken, operations, _device) = (0, 0, 0, device.clone());
        RawPair {
            carrier,
            qp,
            cq,
            slots,
            window,
            slot,
            sent,
            taken,
            operations,
            responses,
            log,
            their_log: None,
            scratch,
            _device,
        }
    }

    fn setup_as(&self, client: u32) -> Vec<u8> {
        let endpoint = self.qp.endpoint().to_bytes().to_vec();
        self.setup_with(endpoint, client)
    }

    fn setup_with(&self, endpoint: Vec<u8>, client: u32) -> Vec<u8> {
        match self.carrier {
            Carrier::Writes | Carrier::Cells => {
                encode_setup(&WritesSetup { endpoint, slots: self.slots.remote(), client })
            }
            Carrier::Sends => encode_setup(&SendsSetup { endpoint, client, credits: self.window }),
            Carrier::Logs => {
                let port = WritesSetup { endpoint, slots: self.slots.remote(), client };
                let log = self.log.as_ref().expect("a log").region.remote();
                encode_setup(&ClientSetup {
                    port: encode_setup(&port),
                    log,
                    wants_pin: false,
                    caller: 0,
                })
            }
        }
    }

    /// What a server says of itself.
    fn server_setup(&self, client: u32, terms: &Terms) -> Vec<u8> {
        let setup = self.setup_as(client);
        if let Some(log) = &self.log {
            let port = decode_setup::<ClientSetup>(&setup).port;
            let (pool, layout) = (log.pool.remote(), log.layout(terms));
            return encode_setup(&ServerSetup {
                port,
                pool,
                layout,
                key: 7,
                first_rkey: None,
                looks: true,
                is_pinned: false,
            });
        }
        match &self.responses {
            None => setup,
            Some(responses) => encode_setup(&CellsSetup {
                cells: setup,
                responses: responses.remote(),
                most_lines: 1,
                looks: true,
            }),
        }
    }

    /// Connects to the server with that setup, as [`connect`](RawPair::connect).
    fn connect_to_server(&mut self, setup: &[u8]) -> (RemoteRegion, u32) {
        match self.carrier {
            Carrier::Cells => self.connect(&decode_setup::<CellsSetup>(setup).cells),
            Carrier::Logs => self.connect_port(&decode_setup::<ServerSetup>(setup).port),
            _ => self.connect(setup),
        }
    }

    /// Connects to the end with that setup; gives where this one may write, and the client's number.
    fn connect(&mut self, setup: &[u8]) -> (RemoteRegion, u32) {
        if self.carrier != Carrier::Logs {
            return self.connect_port(setup);
        }
        let ClientSetup { port, log, .. } = decode_setup(setup);
        self.their_log = Some(log);
        self.connect_port(&port)
    }

    fn connect_port(&mut self, setup: &[u8]) -> (RemoteRegion, u32) {
        let (endpoint, slots, client) = match self.carrier {
            Carrier::Writes | Carrier::Cells | Carrier::Logs => {
                let WritesSetup { endpoint, slots, client } = decode_setup(setup);
                (endpoint, slots, client)
            }
            Carrier::Sends => {
                let SendsSetup { endpoint, client, .. } = decode_setup(setup);
                (endpoint, RemoteRegion::new(0, 0, 0), client)
            }
        };
        let endpoint = Endpoint::from_bytes(&endpoint).expect("an endpoint");
        let options = ConnectOptions::default().setup_timeout(patient(Duration::from_secs(5)));
        self.qp.connect(&endpoint, &options).expect("connect");
        (slots, client)
    }
}

impl RawPair {
    /// The request in the next of our cells, and its slot.
    fn take_cell(&mut self) -> Option<(u32, Vec<u8>)> {
        let end = ((self.taken % self.window + 1) * stride(self.slot)) as usize;
        let trailer = self.slots.load_u64(end - 8);
        if trailer as u16 != (self.taken + 1) as u16 {
            return None;
        }
        self.taken += 1;
        let (slot, len) = ((trailer >> 32) as u32 & 0x3ff, (trailer >> 42) as usize);
        let mut bytes = vec![0; len];
        self.slots.copy_out(end - 8 - len.next_multiple_of(8), &mut bytes);
        Some((slot, bytes))
    }
}

impl UnconnectedEnd for RawPair {
    fn setup(&self) -> Vec<u8> {
        self.setup_as(0)
    }
}

/// Setups that either end must refuse.
pub(crate) fn broken_setups(carrier: Carrier, device: &Device) -> Vec<Vec<u8>> {
    let terms = Terms { window: 1, slot: 64, max_message: 64 };
    let good = RawPair::open(carrier, device, &terms);
    let endpoints = [vec![], vec![0xff; 64], pattern::make(1, 1000)];
    endpoints.map(|endpoint| good.setup_with(endpoint, 0)).to_vec()
}

/// Shakes hands as a client that keeps the rules so far.
pub(crate) fn connect(
    carrier: Carrier,
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let RawConnection { device, mut stream, is_liveness_socket, clock } = to;
    let mut pair = RawPair::open(carrier, &device, &wanted);
    let welcome =
        shake_hands(&mut *stream, &hello(carrier.backend(), service, wanted, pair.setup()))?;
    let (theirs, client) = pair.connect_to_server(&welcome.setup);
    let mut end =
        End::new(pair, (theirs, client), welcome.terms, (stream, is_liveness_socket), clock);
    if carrier == Carrier::Cells {
        end.responses = Some(decode_setup::<CellsSetup>(&welcome.setup).responses);
        end.operate(op::MODE, SEND);
    }
    if let Some(log) = &mut end.pair.log {
        end.pool = Some(Pool::of(decode_setup(&welcome.setup)));
        log.set_terms(&end.terms);
    }
    Ok(end)
}

/// Shakes hands as a server that keeps the rules so far.
pub(crate) fn accept(carrier: Carrier, listener: &mut RawListener, most: Terms) -> End {
    /// The number that this server gives its client.
    const CLIENT: u32 = 3;
    let device = listener.device.clone();
    let ((pair, theirs), terms, stream) = welcome_client(listener, most, |terms, setup| {
        let mut pair = RawPair::open(carrier, &device, &terms);
        let (theirs, _) = pair.connect(setup);
        let ours = pair.server_setup(CLIENT, &terms);
        ((pair, theirs), ours)
    });
    let clock = Box::new(RealClock(Instant::now()));
    let mut end = End::new(pair, (theirs, CLIENT), terms, (stream, false), clock);
    end.is_server = true;
    if carrier == Carrier::Cells {
        // It has not begun to fetch yet.
        end.operate(op::MODE, 0);
    }
    end
}

impl End {
    fn new(
        pair: RawPair,
        (theirs, client): (RemoteRegion, u32),
        terms: Terms,
        (stream, is_liveness_socket): (Box<dyn Stream>, bool),
        clock: Box<dyn Clock>,
    ) -> End {
        End {
            pair,
            completions: (0..64).map(|_| WorkCompletion::default()).collect(),
            received: VecDeque::new(),
            theirs,
            client,
            is_server: false,
            responses: None,
            pool: None,
            place: None,
            stays: 0,
            terms,
            broken: false,
            stream,
            is_liveness_socket,
            clock,
        }
    }

    /// The immediate of an operation on one of this connection's slots.
    pub(crate) fn immediate(&self, op: u32, slot: u32) -> u32 {
        op << 29 | self.client << 10 | slot
    }

    /// Where a slot of the other end begins.
    pub(crate) fn slot_address(&self, slot: u32) -> u64 {
        self.theirs.addr + u64::from(slot) * u64::from(stride(self.terms.slot))
    }

    /// WRITEs bytes to any address under any key, with or without an immediate, and waits for its completion; `false` if
    /// the connection has failed.
    pub(crate) fn write(&mut self, addr: u64, rkey: u32, bytes: &[u8], imm: Option<u32>) -> bool {
        if self.broken {
            return false;
        }
        self.pair.scratch.copy_in(0, bytes);
        let remote = RemoteSlice::new(addr, rkey, bytes.len() as u64);
        let request = WorkRequest::write(self.pair.scratch.slice(0, bytes.len()), remote);
        let request = match imm {
            Some(imm) => request.imm(imm),
            None => request,
        };
        self.execute(request.signaled(OUR_ID))
    }

    /// Posts a work request and waits for its completion; `false` if the connection has failed.
    fn execute(&mut self, request: WorkRequest<'_>) -> bool {
        if self.pair.qp.post_send_one(request).is_err() {
            self.broken = true;
            return false;
        }
        let end = self.clock.now() + patient(Duration::from_secs(10));
        while self.clock.now() < end {
            match self.poll(OUR_ID) {
                Some(Status::Success) => return true,
                Some(_) => {
                    self.broken = true;
                    return false;
                }
                // The device retries for long before it reports the failure.
                None if self.is_hung_up() => {
                    self.broken = true;
                    return false;
                }
                None => self.clock.turn(),
            }
        }
        panic!("a work request does not end");
    }

    /// Sends a message into a slot of the other end, as the rules are.
    pub(crate) fn send(&mut self, slot: u32, message: &[u8]) -> bool {
        let imm = self.immediate(op::MESSAGE, slot);
        self.send_as(imm, slot, message)
    }

    /// The same under any immediate.
    pub(crate) fn send_as(&mut self, imm: u32, slot: u32, message: &[u8]) -> bool {
        match self.pair.carrier {
            Carrier::Writes => {
                self.write(self.slot_address(slot), self.theirs.rkey, message, Some(imm))
            }
            Carrier::Cells if self.is_server || message.is_empty() => {
                self.pair.operations += 1;
                self.write(self.slot_address(slot), self.theirs.rkey, message, Some(imm))
            }
            Carrier::Cells => {
                let cell = self.pair.sent % self.terms.window;
                self.pair.sent += 1;
                let number = self.pair.sent & 0xffff | self.pair.operations << 16;
                let trailer = [number, slot | (message.len() as u32) << 10];
                let mut bytes = message.to_vec();
                bytes.resize(message.len().next_multiple_of(8), 0);
                bytes.extend(trailer.map(u32::to_le_bytes).concat());
                let at = self.slot_address(cell + 1) - bytes.len() as u64;
                self.write(at, self.theirs.rkey, &bytes, Some(imm))
            }
            Carrier::Logs if self.is_server || message.is_empty() => {
                self.write(self.slot_address(slot), self.theirs.rkey, message, Some(imm))
            }
            Carrier::Logs => {
                let log = self.pair.log.as_mut().expect("a log");
                log.append(slot, message);
                let end = log.end;
                self.grow(&end.to_le_bytes())
            }
            Carrier::Sends if self.broken => false,
            Carrier::Sends => {
                self.pair.scratch.copy_in(0, message);
                let request = WorkRequest::send(self.pair.scratch.slice(0, message.len()));
                self.execute(request.imm(imm).signaled(OUR_ID))
            }
        }
    }

    /// Says how far the log of a `scale` client has grown.
    pub(crate) fn grow(&mut self, end: &[u8]) -> bool {
        let imm = self.immediate(op::MODE, GROWN);
        let at = self.theirs.addr + u64::from(8 * (self.pair.sent % self.terms.window));
        self.pair.sent += 1;
        self.write(at, self.theirs.rkey, end, Some(imm))
    }

    /// Sends an immediate alone.
    pub(crate) fn operate(&mut self, op: u32, slot: u32) -> bool {
        let imm = self.immediate(op, slot);
        self.raw(imm)
    }

    /// Sends any immediate alone.
    pub(crate) fn raw(&mut self, imm: u32) -> bool {
        self.send_as(imm, 0, &[])
    }

    /// Takes completions; gives the status of the work request with this id, if it has completed. Messages are kept for
    /// [`next_message`](End::next_message).
    fn poll(&mut self, id: u64) -> Option<Status> {
        let is_of_cells = self.pair.carrier == Carrier::Cells;
        while is_of_cells
            && self.is_server
            && let Some((slot, request)) = self.pair.take_cell()
        {
            self.received.push_back((self.immediate(op::MESSAGE, slot), request));
        }
        let found = self.pair.cq.poll(&mut self.completions).unwrap_or(0);
        let mut status = None;
        for completion in &mut self.completions[..found] {
            match (completion.status, completion.imm) {
                (ended, _) if completion.id == id => status = Some(ended),
                (Status::Success, None) if completion.id == LOG_ID => {
                    let requests = self.pair.log.as_mut().expect("a log").take_read();
                    let head = op::MESSAGE << 29 | self.client << 10;
                    let named = requests.into_iter().map(|(slot, bytes)| (head | slot, bytes));
                    self.received.extend(named);
                }
                (Status::Success, Some(imm)) => {
                    let mut bytes = match &completion.buffer {
                        Some(buffer) => buffer.to_vec(),
                        None => {
                            let at = (imm & 0x3ff) as usize % self.terms.window as usize;
                            let len = completion.byte_len.min(self.terms.slot) as usize;
                            let mut bytes = vec![0; len];
                            self.pair
                                .slots
                                .copy_out(at * stride(self.terms.slot) as usize, &mut bytes);
                            bytes
                        }
                    };
                    let of = imm >> 29;
                    if self.pair.carrier == Carrier::Logs {
                        if self.is_server && (of, imm & 0x3ff) == (op::MODE, GROWN) {
                            let at = 8 * (self.pair.taken % self.terms.window) as usize;
                            self.pair.taken += 1;
                            let end = u64::from_le(self.pair.slots.load_u64(at));
                            self.pair.log.as_mut().expect("a log").end = end;
                        }
                        let note = if of == op::MODE { 0 } else { take_note(&mut bytes) };
                        if (of, imm & 0x3ff) == (op::MODE, STOP) || note == STOP_NOTE {
                            self.place = None;
                            let nothing = self.pair.scratch.slice(0, 0);
                            let at = RemoteSlice::new(self.theirs.addr, self.theirs.rkey, 0);
                            let imm = op::MODE << 29 | self.client << 10 | LEFT;
                            let left = WorkRequest::write(nothing, at).imm(imm).unsignaled();
                            self.broken |= self.pair.qp.post_send_one(left).is_err();
                        } else if note > 0 {
                            self.place = Some(u32::from(note) - 1);
                            self.stays += 1;
                            self.pool.as_mut().expect("a pool").enter();
                        }
                    }
                    let is_of_logs = self.pair.carrier == Carrier::Logs;
                    let is_in_cell = self.is_server && of == op::MESSAGE;
                    if is_of_cells {
                        // How long the server had the request.
                        take_note(&mut bytes);
                    }
                    if !(is_of_cells && is_in_cell)
                        && !(of == op::MODE && (is_of_cells || is_of_logs))
                    {
                        self.received.push_back((imm, bytes));
                    }
                    let buffer = completion.buffer.take().map(|mut buffer| {
                        buffer.set_len(buffer.capacity());
                        buffer
                    });
                    self.broken |= self.pair.qp.post_recv(0, buffer).is_err();
                }
                (Status::Success, None) => {}
                _ => self.broken = true,
            }
        }
        self.read_log();
        status
    }

    /// Reads on in the log of a `scale` client.
    fn read_log(&mut self) {
        let (Some(log), Some(theirs)) = (&mut self.pair.log, self.pair.their_log) else { return };
        let Some(remote) = log.next_read(theirs) else { return };
        log.reading = remote.len();
        let into = log.copy_of(remote.len() as usize);
        let read = WorkRequest::read(into, remote).signaled(LOG_ID);
        self.broken |= self.pair.qp.post_send_one(read).is_err();
    }

    /// The next immediate from the other end, with its message; nothing if the connection has failed, or after a
    /// second.
    pub(crate) fn next_message(&mut self) -> Option<(u32, Vec<u8>)> {
        let end = self.clock.now() + patient(Duration::from_secs(1));
        loop {
            if let Some(message) = self.received.pop_front() {
                return Some(message);
            }
            if self.broken || self.clock.now() > end {
                return None;
            }
            let _ = self.poll(NO_ID);
            self.clock.turn();
        }
    }

    /// Takes the other end's access to our slots.
    pub(crate) fn deregister_slots(&mut self) {
        self.pair.slots = self.pair.scratch.clone();
    }

    /// Whether the other end ends the connection within ten seconds.
    pub(crate) fn is_dropped(&mut self) -> bool {
        let end = self.clock.now() + patient(Duration::from_secs(10));
        while self.clock.now() < end {
            if self.has_failed() {
                return true;
            }
            self.clock.turn();
        }
        false
    }

    /// Whether the connection has failed already.
    pub(crate) fn has_failed(&mut self) -> bool {
        let _ = self.poll(NO_ID);
        self.broken || self.is_hung_up() || !self.write_nothing()
    }

    /// Whether the other end has closed the stream that it keeps as long as the connection.
    fn is_hung_up(&self) -> bool {
        self.is_liveness_socket && self.stream.is_readable()
    }

    /// A WRITE that fails when the peer is gone. It goes where nothing stands that the peer may not have read yet: cells and
    /// SENDs leave the beginning free, messages in slots and the words of logs the end.
    fn write_nothing(&mut self) -> bool {
        let RemoteRegion { addr, len, rkey, .. } = self.theirs;
        match self.pair.carrier {
            Carrier::Sends => self.write(addr, rkey, &[], None),
            Carrier::Cells => self.write(addr, rkey, &[0], None),
            Carrier::Writes | Carrier::Logs => self.write(addr + len - 1, rkey, &[0], None),
        }
    }
}
