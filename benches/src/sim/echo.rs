//! ECHO: messages to a server and back, by WRITE or by SEND.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};
use farcall_verbs::sim::{Actor, Costs, Next, Turn};
use farcall_verbs::{
    Access, AddressHandle, CompletionQueue, GRH_BYTES, ProtectionDomain, QpNumber, QpType,
    QueuePair, QueuePairConfig, RemoteSlice, SharedRegion, WorkCompletion, WorkRequest,
};

use super::flows::measured_ns;
use super::rig::{INLINE, Machine, QKEY, Rack, join};

/// The verb of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EchoVerb {
    Write,
    Send,
}

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Echo {
    pub(super) request: EchoVerb,
    pub(super) response: EchoVerb,
    /// RC; otherwise UC.
    pub(super) reliable: bool,
    /// SENDs use UD.
    pub(super) datagrams: bool,
    pub(super) signaled: bool,
    pub(super) inline: bool,
    pub(super) len: usize,
    pub(super) server_threads: usize,
    /// UD queue pairs of each server thread.
    pub(super) server_pairs: usize,
    /// Whether the responses of one turn are sent with one doorbell per queue pair.
    pub(super) batched: bool,
    pub(super) clients: usize,
    pub(super) window: usize,
}

/// Machines of the clients.
const MACHINES: usize = 16;

impl Echo {
    /// Unreliable, unsignaled and inline messages of 32 bytes with a window of 8.
    pub(super) fn of(request: EchoVerb, response: EchoVerb) -> Echo {
        Echo {
            request,
            response,
            reliable: false,
            datagrams: false,
            signaled: false,
            inline: true,
            len: 32,
            server_threads: 14,
            server_pairs: 1,
            batched: false,
            clients: 14,
            window: 8,
        }
    }

    /// Millions of ECHOs per second.
    pub(super) fn rate(&self, costs: &Costs) -> Result<f64> {
        self.rate_on(Rack::new(costs))
    }

    /// Millions of ECHOs per second, on a rack that has no machines yet.
    pub(super) fn rate_on(&self, mut rack: Rack) -> Result<f64> {
        let server = rack.machine()?;
        let machines = rack.machines(MACHINES.min(self.clients))?;
        let mut servers = Vec::new();
        for _ in 0..self.server_threads {
            let peers = self.clients.div_ceil(self.server_threads);
            let mut side = Side::new(*self, false, &rack.program(&server)?, peers, &rack.done)?;
            for _ in 0..self.server_pairs {
                side.open_datagrams()?;
            }
            servers.push(side);
        }
        for number in 0..self.clients {
            let machine = &machines[number % machines.len()];
            let mut client = Side::new(*self, true, &rack.program(machine)?, 1, &rack.done)?;
            client.open_datagrams()?;
            let thread = number % self.server_threads;
            client.connect(&mut servers[thread])?;
            client.spawn(&mut rack, machine);
        }
        for side in servers {
            side.spawn(&mut rack, &server);
        }
        Ok(rack.rate(measured_ns(self.clients * self.window)))
    }
}

/// One thread of the server or of a client.
struct Side {
    echo: Echo,
    is_client: bool,
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    pairs: Vec<QueuePair>,
    datagrams: Vec<QueuePair>,
    peers: Vec<Peer>,
    /// The memory that peers write: a cell for each message of each window.
    cells: SharedRegion,
    source: SharedRegion,
    begun: bool,
    batch: [WorkCompletion; 32],
    done: Rc<Cell<u64>>,
}

struct Peer {
    /// The index of the connected queue pair, if there is one.
    pair: Option<usize>,
    datagram: usize,
    way: Option<(AddressHandle, QpNumber)>,
    cells: Vec<RemoteSlice>,
    /// The number by which it identifies this side.
    name: u8,
    sent: usize,
    received: usize,
}

/// The byte of a message that identifies its sender.
const NAME: usize = 8;

const CELL_BYTES: usize = 256;

/// Receives that are posted for each peer.
const RECEIVES: usize = 64;

impl Side {
    fn new(
        echo: Echo,
        is_client: bool,
        machine: &Machine,
        peers: usize,
        done: &Rc<Cell<u64>>,
    ) -> Result<Side> {
        let (device, pd) = (&machine.device, &machine.pd);
        let access = Access::all().difference(Access::RELAXED_ORDERING);
        Ok(Side {
            echo,
            is_client,
            pd: pd.clone(),
            send_cq: device.create_cq(1 << 14, None)?,
            receive_cq: device.create_cq(1 << 14, None)?,
            pairs: Vec::new(),
            datagrams: Vec::new(),
            peers: Vec::new(),
            cells: pd.alloc_shared(peers * echo.window * CELL_BYTES, access)?,
            source: pd.alloc_shared(peers * echo.window * CELL_BYTES, Access::empty())?,
            begun: false,
            batch: Default::default(),
            done: Rc::clone(done),
        })
    }

    fn config<'a>(&self, ty: QpType, receives: usize) -> QueuePairConfig<'a> {
        let config = QueuePairConfig::new(ty, &self.send_cq, &self.receive_cq);
        config.max_send_wr(1024).max_recv_wr(receives)
    }

    fn open_datagrams(&mut self) -> Result<()> {
        let mut qp = self.pd.create_qp(self.config(QpType::Ud, 16 * RECEIVES))?;
        qp.activate(QKEY)?;
        let id = self.datagrams.len() as u64;
        post_receives(&self.pd, &mut qp, 16 * RECEIVES, id)?;
        self.datagrams.push(qp);
        Ok(())
    }

    fn connect(&mut self, server: &mut Side) -> Result<()> {
        let ty = if self.echo.reliable { QpType::Rc } else { QpType::Uc };
        let mut here = self.pd.create_qp(self.config(ty, RECEIVES))?;
        let mut there = server.pd.create_qp(server.config(ty, RECEIVES))?;
        join(&mut here, &mut there)?;
        post_receives(&self.pd, &mut here, RECEIVES, CONNECTED | self.peers.len() as u64)?;
        post_receives(&server.pd, &mut there, RECEIVES, CONNECTED | server.peers.len() as u64)?;
        let datagram = server.peers.len() % server.datagrams.len();
        let (my, its) = (&self.datagrams[0], &server.datagrams[datagram]);
        let way = |pd: &ProtectionDomain, to: &QueuePair| -> Result<_> {
            Ok((pd.create_address_handle(&to.endpoint())?, to.number()))
        };
        let (forth, back) = (way(&self.pd, its)?, way(&server.pd, my)?);
        let name = u8::try_from(server.peers.len()).context("too many clients of one thread")?;
        let (my_cells, its_cells) = (self.cells_of(0)?, server.cells_of(server.peers.len())?);
        self.add(here, forth, 0, its_cells, name);
        server.add(there, back, datagram, my_cells, 0);
        Ok(())
    }

    fn cells_of(&self, peer: usize) -> Result<Vec<RemoteSlice>> {
        let first = peer * self.echo.window;
        let cells = (first..first + self.echo.window).map(|cell| {
            self.cells.remote().slice((cell * CELL_BYTES) as u64, self.echo.len as u64)
        });
        Ok(cells.collect::<Result<_, _>>()?)
    }

    fn add(
        &mut self,
        pair: QueuePair,
        way: (AddressHandle, QpNumber),
        datagram: usize,
        cells: Vec<RemoteSlice>,
        name: u8,
    ) {
        self.pairs.push(pair);
        let pair = Some(self.pairs.len() - 1);
        let way = Some(way);
        self.peers.push(Peer { pair, datagram, way, cells, name, sent: 0, received: 0 });
    }

    fn spawn(self, rack: &mut Rack, machine: &Machine) {
        let cells = self.cells.remote();
        let actor = rack.spawn(machine.node, self);
        rack.sim.watch(actor, &cells);
    }

    /// How this side sends.
    fn out(&self) -> EchoVerb {
        if self.is_client { self.echo.request } else { self.echo.response }
    }

    /// How the other side sends.
    fn back(&self) -> EchoVerb {
        if self.is_client { self.echo.response } else { self.echo.request }
    }

    fn send(&mut self, to: usize) -> Result<()> {
        let (way, Echo { len, inline, signaled, datagrams, batched, .. }) = (self.out(), self.echo);
        let peer = &mut self.peers[to];
        let place = (to * self.echo.window + peer.sent % self.echo.window) * CELL_BYTES;
        peer.sent += 1;
        let mut bytes = INLINE;
        bytes[..8].copy_from_slice(&(peer.sent as u64).to_ne_bytes());
        bytes[NAME] = peer.name;
        if !inline {
            self.source.copy_in(place, &bytes[..len]);
        }
        let place = self.source.slice(place, len);
        let datagram = way == EchoVerb::Send && datagrams;
        let request: WorkRequest<'_> = match way {
            EchoVerb::Write => {
                let cell = peer.cells[(peer.sent - 1) % peer.cells.len()];
                match inline {
                    true => WorkRequest::write(&bytes[..len], cell).unsignaled(),
                    false => WorkRequest::write(place, cell).unsignaled(),
                }
            }
            EchoVerb::Send => {
                let send = match inline {
                    true => WorkRequest::send(&bytes[..len]),
                    false => WorkRequest::send(place),
                };
                match &peer.way {
                    Some((handle, qp)) if datagram => send.to(handle, *qp, QKEY).unsignaled(),
                    _ => send.unsignaled(),
                }
            }
        };
        let every = if signaled { 1 } else { SIGNAL_EVERY };
        let request = if peer.sent.is_multiple_of(every) { request.signaled(0) } else { request };
        let qp = match (datagram, peer.pair) {
            (true, _) => &mut self.datagrams[peer.datagram],
            (false, pair) => &mut self.pairs[pair.context("a queue pair")?],
        };
        let posted = match batched && !self.is_client {
            true => qp.post_unrung(request),
            false => qp.post_send_one(request),
        };
        posted.map_err(|(error, _)| error).context("an ECHO")
    }

    /// Handles the messages that have arrived. Returns their number, and how many cells were examined.
    fn receive(&mut self) -> Result<(usize, u32)> {
        let mut messages = 0;
        if self.back() == EchoVerb::Write {
            let mut scanned = 0;
            for peer in 0..self.peers.len() {
                loop {
                    scanned += 1;
                    let received = self.peers[peer].received;
                    let cell = peer * self.echo.window + received % self.echo.window;
                    if self.cells.load_u64(cell * CELL_BYTES) != received as u64 + 1 {
                        break;
                    }
                    self.peers[peer].received += 1;
                    messages += 1;
                    self.answer(peer)?;
                }
            }
            return Ok((messages, scanned));
        }
        let count = self.receive_cq.poll(&mut self.batch)?;
        for at in 0..count {
            let completion = &mut self.batch[at];
            let id = completion.id;
            let buffer = completion.buffer.take();
            let connected = id & CONNECTED != 0;
            let index = (id & !CONNECTED) as usize;
            let qp = if connected { &mut self.pairs[index] } else { &mut self.datagrams[index] };
            let name = match &buffer {
                Some(buffer) if !connected && !self.is_client => buffer[GRH_BYTES + NAME].into(),
                _ => 0,
            };
            if let Some(mut buffer) = buffer {
                buffer.set_len(buffer.capacity());
                qp.post_recv(id, Some(buffer))?;
            }
            let peer = match connected {
                true => index,
                false => name,
            };
            self.peers[peer].received += 1;
            self.answer(peer)?;
            messages += 1;
        }
        Ok((messages, 0))
    }

    fn answer(&mut self, peer: usize) -> Result<()> {
        if self.is_client {
            self.done.set(self.done.get() + 1);
        }
        self.send(peer)
    }

    fn step(&mut self) -> Result<Turn> {
        if self.is_client && !std::mem::replace(&mut self.begun, true) {
            for _ in 0..self.echo.window {
                self.send(0)?;
            }
        }
        let (messages, scanned) = self.receive()?;
        if self.echo.batched && !self.is_client {
            self.datagrams.iter_mut().for_each(QueuePair::ring);
        }
        let mut sent = 0;
        if self.echo.signaled || messages > 0 {
            sent = self.send_cq.poll(&mut self.batch)?;
        }
        let next = if messages + sent > 0 { Next::Now } else { Next::OnEvent };
        Ok(Turn::then(next).scanned(scanned))
    }
}

/// Marks receives of connected queue pairs.
const CONNECTED: u64 = 1 << 32;

/// One in this many is signaled if most are unsignaled.
const SIGNAL_EVERY: usize = 16;

fn post_receives(pd: &ProtectionDomain, qp: &mut QueuePair, count: usize, id: u64) -> Result<()> {
    let pool = pd.alloc_private(count * 512)?.into_pool(512);
    while let Some(buffer) = pool.take() {
        qp.post_recv(id, Some(buffer))?;
    }
    Ok(())
}

impl Actor for Side {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        match self.step() {
            Ok(turn) => turn,
            Err(error) => panic!("an experiment went wrong: {error:#}"),
        }
    }
}
