//! Calls of HERD (Kalia, Kaminsky, Andersen, SIGCOMM 2014), as its authors' program makes them: requests by UC WRITE into a region
//! in which each thread of the server has slots for each client, responses by UD SEND.
//!
//! A client picks a thread at random for each request, as HERD's keys do, writes inline with a doorbell for each request, and posts
//! receives for a batch at once. A thread passes over the slots of all clients, at most one request of each, and sends what it
//! found as a list with one doorbell.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use farcall_verbs::sim::{Actor, Next, Node, Turn};
use farcall_verbs::{
    Access, AddressHandle, Buffer, CompletionQueue, GRH_BYTES, QpNumber, QpType, QueuePair,
    QueuePairConfig, RemoteSlice, SharedRegion, Status, WorkCompletion, WorkRequest,
};

use super::rig::{Machine, QKEY, Rack, join};
use super::verbs_calls::{Calls, MESSAGE_BYTES, Tally, VerbsCalls};

/// A slot holds one request of 32 bytes.
const SLOT_BYTES: usize = 64;

/// Responses that leave with one doorbell at most.
const POSTLIST: usize = 32;

/// One work request in this many of a queue pair is signaled.
const SIGNAL_EVERY: u64 = 64;

/// Work requests of a queue pair that are not known to have ended.
const DEPTH: u64 = 2 * SIGNAL_EVERY;

/// Runs the experiment on a rack without machines.
pub(super) fn run(calls: &VerbsCalls, mut rack: Rack) -> Result<Calls> {
    let server = rack.machine()?;
    let machines = rack.machines(calls.machines)?;
    let tally = Tally::new()?;
    let worker = |_| Worker::open(calls, &rack, &server);
    let mut workers = (0..calls.server_threads).map(worker).collect::<Result<Vec<_>>>()?;
    let cq = server.device.create_cq(1 << 10, None)?;
    // The server only receives WRITEs on them.
    let mut connected = Vec::with_capacity(calls.clients);
    for number in 0..calls.clients {
        let machine = &machines[number % machines.len()];
        let program = rack.program(machine)?;
        let mut client = Client::open(calls, &program, number, &tally)?;
        let mut there = server.pd.create_qp(QueuePairConfig::new(QpType::Uc, &cq, &cq))?;
        join(&mut client.requests, &mut there)?;
        connected.push(there);
        for worker in &mut workers {
            client.slots.push(worker.add(&client.responses)?);
        }
        rack.spawn(machine.node, client);
    }
    for worker in workers {
        let slots = worker.slots.remote();
        let actor = rack.spawn(server.node, worker);
        rack.sim.watch(actor, &slots);
    }
    Ok(tally.measure(&mut rack, &server, calls.measured_ns))
}

/// The work requests of a queue pair that sends.
struct Sends {
    cq: CompletionQueue,
    completions: [WorkCompletion; 4],
    posted: u64,
    ended: u64,
}

impl Sends {
    fn new(program: &Machine) -> Result<Sends> {
        let cq = program.device.create_cq(DEPTH as usize, None)?;
        Ok(Sends { cq, completions: Default::default(), posted: 0, ended: 0 })
    }

    /// Whether so many can be posted. Polls only if they seem to be too many.
    fn have_room(&mut self, count: usize) -> Result<bool> {
        let fit = |sends: &Sends| sends.posted - sends.ended + count as u64 <= DEPTH;
        if !fit(self) {
            self.ended += SIGNAL_EVERY * self.cq.poll(&mut self.completions)? as u64;
        }
        Ok(fit(self))
    }

    /// Counts one that is posted. Returns whether it must be signaled.
    fn count(&mut self) -> bool {
        self.posted += 1;
        self.posted.is_multiple_of(SIGNAL_EVERY)
    }
}

/// A thread of the server.
struct Worker {
    node: Node,
    program: Machine,
    work_ns: u64,
    window: usize,
    slots: Rc<SharedRegion>,
    responses: QueuePair,
    sends: Sends,
    clients: Vec<ClientOfWorker>,
    /// Whose slot it looks at next.
    at: usize,
}

struct ClientOfWorker {
    way: (AddressHandle, QpNumber),
    received: u64,
}

impl Worker {
    fn open(calls: &VerbsCalls, rack: &Rack, server: &Machine) -> Result<Worker> {
        let program = rack.program(server)?;
        let access = Access::all().difference(Access::RELAXED_ORDERING);
        let bytes = calls.clients * calls.batch * SLOT_BYTES;
        let slots = Rc::new(server.pd.alloc_shared(bytes, access)?);
        let sends = Sends::new(&program)?;
        let config = QueuePairConfig::new(QpType::Ud, &sends.cq, &sends.cq);
        let config = config.max_send_wr(DEPTH as usize);
        let mut responses = program.pd.create_qp(config)?;
        responses.activate(QKEY)?;
        Ok(Worker {
            node: rack.sim.node(server.node),
            program,
            work_ns: calls.dispatch_ns,
            window: calls.batch,
            slots,
            responses,
            sends,
            clients: Vec::with_capacity(calls.clients),
            at: 0,
        })
    }

    /// Adds a client, which receives on this queue pair. Returns its slots.
    fn add(&mut self, to: &QueuePair) -> Result<Vec<RemoteSlice>> {
        let name = to.endpoint();
        let way = (self.program.pd.create_address_handle(&name)?, name.qp());
        let first = self.clients.len() * self.window;
        self.clients.push(ClientOfWorker { way, received: 0 });
        let remote = self.slots.remote();
        let slot = |at: usize| remote.slice((at * SLOT_BYTES) as u64, MESSAGE_BYTES as u64);
        Ok((first..first + self.window).map(slot).collect::<Result<_, _>>()?)
    }

    /// Whether the next request of a client has landed, which is then received.
    fn receive(&mut self, client: usize) -> bool {
        let received = &mut self.clients[client].received;
        let slot = client * self.window + *received as usize % self.window;
        let has_landed =
            self.slots.load_u64(slot * SLOT_BYTES + MESSAGE_BYTES - 8) == *received + 1;
        *received += u64::from(has_landed);
        has_landed
    }

    fn respond(&mut self, client: usize) -> Result<()> {
        let (handle, qp) = &self.clients[client].way;
        let message = [7; MESSAGE_BYTES];
        let mut response = WorkRequest::send(&message[..]).to(handle, *qp, QKEY).unsignaled();
        if self.sends.count() {
            response = response.signaled(0);
        }
        self.responses.post_unrung(response).map_err(|(error, _)| error).context("a response")
    }

    /// A pass over the slots, which ends early if a list is full.
    fn step(&mut self) -> Result<Turn> {
        if !self.sends.have_room(POSTLIST)? {
            return Ok(Turn::then(Next::OnEvent));
        }
        let (mut scanned, mut found) = (0, 0);
        while (scanned as usize) < self.clients.len() && found < POSTLIST {
            let client = self.at;
            self.at = (self.at + 1) % self.clients.len();
            scanned += 1;
            if self.receive(client) {
                found += 1;
                self.node.busy(self.work_ns);
                self.respond(client)?;
            }
        }
        if found > 0 {
            self.responses.ring();
        }
        Ok(Turn::then(if found > 0 { Next::Now } else { Next::OnEvent }).scanned(scanned))
    }
}

/// A client.
struct Client {
    batch: usize,
    requests: QueuePair,
    responses: QueuePair,
    sends: Sends,
    receive_cq: CompletionQueue,
    completions: [WorkCompletion; 32],
    /// Of each worker.
    slots: Vec<Vec<RemoteSlice>>,
    /// Requests to each worker.
    sent: Vec<u64>,
    outstanding: usize,
    /// Receives that are not posted.
    buffers: Vec<Buffer>,
    random: u64,
    began_ns: u64,
    tally: Tally,
}

impl Client {
    fn open(calls: &VerbsCalls, program: &Machine, number: usize, tally: &Tally) -> Result<Client> {
        ensure!(calls.batch <= 32, "a batch is answered in one poll");
        let sends = Sends::new(program)?;
        let receive_cq = program.device.create_cq(calls.batch, None)?;
        let config = |ty| QueuePairConfig::new(ty, &sends.cq, &receive_cq);
        let requests = program.pd.create_qp(config(QpType::Uc).max_send_wr(DEPTH as usize))?;
        let mut responses = program.pd.create_qp(config(QpType::Ud).max_recv_wr(calls.batch))?;
        responses.activate(QKEY)?;
        let room = GRH_BYTES + SLOT_BYTES;
        let pool = program.pd.alloc_private(room * calls.batch)?.into_pool(room);
        Ok(Client {
            batch: calls.batch,
            requests,
            responses,
            sends,
            receive_cq,
            completions: Default::default(),
            slots: Vec::with_capacity(calls.server_threads),
            sent: vec![0; calls.server_threads],
            outstanding: 0,
            buffers: std::iter::from_fn(|| pool.take()).collect(),
            random: (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            began_ns: 0,
            tally: tally.clone(),
        })
    }

    fn receive(&mut self, now_ns: u64) -> Result<()> {
        let count = self.receive_cq.poll(&mut self.completions)?;
        for completion in &mut self.completions[..count] {
            ensure!(completion.status == Status::Success, "a response failed: {completion:?}");
            let mut buffer = completion.buffer.take().context("a response without bytes")?;
            buffer.set_len(buffer.capacity());
            self.buffers.push(buffer);
            self.tally.record(self.began_ns, now_ns);
        }
        self.outstanding -= count;
        Ok(())
    }

    fn random_worker(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % self.slots.len()
    }

    fn request(&mut self) -> Result<()> {
        let worker = self.random_worker();
        let (slots, sent) = (&self.slots[worker], &mut self.sent[worker]);
        let slot = slots[*sent as usize % slots.len()];
        *sent += 1;
        let mut message = [7; MESSAGE_BYTES];
        message[MESSAGE_BYTES - 8..].copy_from_slice(&sent.to_ne_bytes());
        let mut request = WorkRequest::write(&message[..], slot).unsignaled();
        if self.sends.count() {
            request = request.signaled(0);
        }
        self.requests.post_send_one(request).map_err(|(error, _)| error).context("a request")
    }

    fn step(&mut self, now_ns: u64) -> Result<Turn> {
        self.receive(now_ns)?;
        if self.outstanding == 0 && self.sends.have_room(self.batch)? {
            while let Some(buffer) = self.buffers.pop() {
                self.responses.post_recv(0, Some(buffer))?;
            }
            self.began_ns = now_ns;
            for _ in 0..self.batch {
                self.request()?;
            }
            self.outstanding = self.batch;
        }
        Ok(Turn::then(Next::OnEvent))
    }
}

impl Actor for Worker {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        self.step().unwrap_or_else(|error| panic!("an experiment went wrong: {error:#}"))
    }
}

impl Actor for Client {
    fn turn(&mut self, now_ns: u64) -> Turn {
        self.step(now_ns).unwrap_or_else(|error| panic!("an experiment went wrong: {error:#}"))
    }
}
