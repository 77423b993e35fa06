//! One end of a `write_imm`, `send_recv`, `rfp` or `scale` connection, driven by hand. The layout is written down a second time, byte by
//! byte, so that a change of it is noticed.

mod layout;
mod raw_pair;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use farcall_core::ServiceDescription;
use farcall_transports::contract::Terms;
use farcall_transports::handshake::Reject;
use farcall_verbs::{Device, RemoteRegion, RemoteSlice, Status, WorkCompletion, WorkRequest};

use super::forge_pool::{GROWN, LEFT, Pool, STOP, STOP_NOTE, take_note};
use crate::{
    backends::{UnconnectedEnd, rfp, scale, send_recv, write_imm},
    hostile::{
        Clock, RawConnection, RawListener, RealClock, Stream, decode_setup, hello, shake_hands,
        welcome_client,
    },
    patience::patient,
    pattern,
    world::World,
};

pub(crate) use self::layout::{kind, message, op, request, stride, wire_region};
use self::raw_pair::CellsSetup;
pub(crate) use self::raw_pair::RawPair;

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

/// The id of this end's work requests; receives have small ones.
const OUR_ID: u64 = u64::MAX;

/// The id of none.
const NO_ID: u64 = u64::MAX - 1;

/// The id of a READ of a log.
const LOG_ID: u64 = u64::MAX - 2;

/// The argument of [`op::MODE`] by which a client of `rfp` asks that responses are sent.
pub(crate) const SEND: u32 = 1;

/// Receives of a client that takes no more answers than these.
const FEW_RECEIVES: usize = 16;

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
    /// It posts no receive again: what is sent to it waits at the sender.
    takes_nothing: bool,
    stream: Box<dyn Stream>,
    is_liveness_socket: bool,
    clock: Box<dyn Clock>,
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
    connect_with(carrier, to, service, wanted, carrier.usual_receives())
}

/// As [`connect`], as a client that takes a few answers and then no more.
pub(crate) fn connect_deaf(
    carrier: Carrier,
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> End {
    let end = connect_with(carrier, to, service, wanted, FEW_RECEIVES);
    End { takes_nothing: true, ..end.expect("welcome") }
}

fn connect_with(
    carrier: Carrier,
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
    receives: usize,
) -> Result<End, Reject> {
    let RawConnection { device, mut stream, is_liveness_socket, clock } = to;
    let mut pair = RawPair::open_with(carrier, &device, &wanted, receives);
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
            takes_nothing: false,
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
                        && !(of == op::CREDIT && self.pair.carrier == Carrier::Sends)
                    {
                        self.received.push_back((imm, bytes));
                    }
                    let buffer = completion.buffer.take().map(|mut buffer| {
                        buffer.set_len(buffer.capacity());
                        buffer
                    });
                    if !self.takes_nothing {
                        self.broken |= self.pair.qp.post_recv(0, buffer).is_err();
                    }
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
