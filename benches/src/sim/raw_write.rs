//! RawWrite, with which ScaleRPC (EuroSys 2019) was compared: requests by RC WRITE into a message pool where each client has a
//! place of its own, responses by RC WRITE into the client's memory. Both ends poll their memory.

use std::rc::Rc;

use anyhow::{Context, Result};
use farcall_verbs::sim::{Actor, Next, Node, Turn};
use farcall_verbs::{
    CompletionQueue, QpType, QueuePair, QueuePairConfig, RemoteSlice, SharedRegion, WorkCompletion,
    WorkRequest,
};

use super::rig::{Machine, Rack, join};
use super::verbs_calls::{Calls, MESSAGE_BYTES, Tally, VerbsCalls};

/// A block of the message pool holds one message (ScaleRPC, section 4).
const BLOCK_BYTES: usize = 4096;

/// One WRITE in this many of a queue pair is signaled.
const SIGNAL_EVERY: u64 = 16;

/// Runs the experiment on a rack without machines.
pub(super) fn run(calls: &VerbsCalls, mut rack: Rack) -> Result<Calls> {
    let server = rack.machine()?;
    let machines = rack.machines(calls.machines)?;
    let tally = Tally::new()?;
    let places = calls.clients.div_ceil(calls.server_threads) * calls.batch;
    let mut threads = Vec::new();
    for _ in 0..calls.server_threads {
        let program = rack.program_with(&server, places * BLOCK_BYTES)?;
        threads.push(Side::open(program)?);
    }
    for number in 0..calls.clients {
        let machine = &machines[number % machines.len()];
        let program = rack.program_with(machine, calls.batch * BLOCK_BYTES)?;
        let mut side = Side::open(program)?;
        side.connect(&mut threads[number % calls.server_threads], calls.batch)?;
        let client = Client { side, batch: calls.batch, began_ns: 0, tally: tally.clone() };
        let (node, cells) = (machine.node, client.side.machine.memory.remote());
        let actor = rack.spawn(node, client);
        rack.sim.watch(actor, &cells);
    }
    for side in threads {
        let cells = side.machine.memory.remote();
        let node = rack.sim.node(server.node);
        let thread = ServerThread { side, node, work_ns: calls.dispatch_ns };
        let actor = rack.spawn(server.node, thread);
        rack.sim.watch(actor, &cells);
    }
    Ok(tally.measure(&mut rack, &server, calls.measured_ns))
}

/// One thread, of the server or of a client: its memory, and its peers.
struct Side {
    machine: Machine,
    memory: Rc<SharedRegion>,
    cq: CompletionQueue,
    batch: [WorkCompletion; 32],
    peers: Vec<Peer>,
}

/// The other end of a queue pair. Its messages, and those to it, go into the blocks of its place in turn.
struct Peer {
    qp: QueuePair,
    /// Where messages to it go.
    blocks: Vec<RemoteSlice>,
    /// The first block of its messages.
    first: usize,
    sent: u64,
    received: u64,
}

impl Peer {
    fn post(&mut self) -> Result<()> {
        let block = self.blocks[self.sent as usize % self.blocks.len()];
        self.sent += 1;
        let mut message = [7; MESSAGE_BYTES];
        message[MESSAGE_BYTES - 8..].copy_from_slice(&self.sent.to_ne_bytes());
        let mut request = WorkRequest::write(&message[..], block).unsignaled();
        if self.sent.is_multiple_of(SIGNAL_EVERY) {
            request = request.signaled(0);
        }
        self.qp.post_unrung(request).map_err(|(error, _)| error).context("a message")
    }
}

impl Side {
    fn open(machine: Machine) -> Result<Side> {
        let memory = Rc::clone(&machine.memory);
        let cq = machine.device.create_cq(1 << 14, None)?;
        let (batch, peers) = (Default::default(), Vec::new());
        Ok(Side { machine, memory, cq, batch, peers })
    }

    /// Connects a client to a thread of the server, in whose memory it gets the next place.
    fn connect(&mut self, server: &mut Side, blocks: usize) -> Result<()> {
        let first = server.peers.len() * blocks;
        let (mut here, mut there) = (self.pair()?, server.pair()?);
        join(&mut here, &mut there)?;
        let (requests, responses) = (server.blocks(first, blocks)?, self.blocks(0, blocks)?);
        self.peers.push(Peer { qp: here, blocks: requests, first: 0, sent: 0, received: 0 });
        server.peers.push(Peer { qp: there, blocks: responses, first, sent: 0, received: 0 });
        Ok(())
    }

    fn pair(&self) -> Result<QueuePair> {
        let config = QueuePairConfig::new(QpType::Rc, &self.cq, &self.cq).max_send_wr(256);
        Ok(self.machine.pd.create_qp(config)?)
    }

    /// Where messages go in some blocks: each is at the end of its block.
    fn blocks(&self, first: usize, count: usize) -> Result<Vec<RemoteSlice>> {
        let remote = self.memory.remote();
        let slice = |block: usize| {
            remote.slice(((block + 1) * BLOCK_BYTES - MESSAGE_BYTES) as u64, MESSAGE_BYTES as u64)
        };
        Ok((first..first + count).map(slice).collect::<Result<_, _>>()?)
    }

    /// Whether the next message of a peer has landed, which is then received.
    fn receive(&mut self, peer: usize) -> bool {
        let Peer { blocks, first, received, .. } = &mut self.peers[peer];
        let block = *first + *received as usize % blocks.len();
        let has_landed = self.memory.load_u64((block + 1) * BLOCK_BYTES - 8) == *received + 1;
        *received += u64::from(has_landed);
        has_landed
    }

    fn reap(&mut self) -> Result<()> {
        while self.cq.poll(&mut self.batch)? == self.batch.len() {}
        Ok(())
    }
}

/// A thread of the server.
struct ServerThread {
    side: Side,
    node: Node,
    /// Of a call, besides polling and posting.
    work_ns: u64,
}

impl ServerThread {
    /// A pass over the message pool, at most one request of each client, as in HERD's program.
    fn step(&mut self) -> Result<Turn> {
        let (mut scanned, mut messages) = (0, 0);
        for peer in 0..self.side.peers.len() {
            scanned += 1;
            if self.side.receive(peer) {
                scanned += 1;
                messages += 1;
                self.node.busy(self.work_ns);
                let peer = &mut self.side.peers[peer];
                peer.post()?;
                // The NIC does not read from memory what comes with its own doorbell.
                peer.qp.ring();
            }
        }
        if messages > 0 {
            self.side.reap()?;
        }
        Ok(Turn::then(if messages > 0 { Next::Now } else { Next::OnEvent }).scanned(scanned))
    }
}

/// A client.
struct Client {
    side: Side,
    batch: usize,
    began_ns: u64,
    tally: Tally,
}

impl Client {
    fn step(&mut self, now_ns: u64) -> Result<Turn> {
        let mut scanned = 1;
        while self.side.peers[0].received < self.side.peers[0].sent && self.side.receive(0) {
            scanned += 1;
            self.tally.record(self.began_ns, now_ns);
        }
        if self.side.peers[0].received == self.side.peers[0].sent {
            self.side.reap()?;
            self.began_ns = now_ns;
            for _ in 0..self.batch {
                self.side.peers[0].post()?;
            }
            self.side.peers[0].qp.ring();
        }
        Ok(Turn::then(Next::OnEvent).scanned(scanned))
    }
}

impl Actor for ServerThread {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        self.step().unwrap_or_else(|error| panic!("an experiment went wrong: {error:#}"))
    }
}

impl Actor for Client {
    fn turn(&mut self, now_ns: u64) -> Turn {
        self.step(now_ns).unwrap_or_else(|error| panic!("an experiment went wrong: {error:#}"))
    }
}
