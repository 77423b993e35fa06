//! A test rig for NICs: machines, connections, and threads that keep work outstanding.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use farcall_verbs::sim::{Actor, ActorId, Costs, Next, NicCounters, NodeId, Sim, SimConfig, Turn};
use farcall_verbs::{
    Access, AddressHandle, BufferPool, CompletionQueue, ConnectOptions, Device, ProtectionDomain,
    QpNumber, QpType, QueuePair, QueuePairConfig, RemoteSlice, SharedRegion, Status,
    WorkCompletion, WorkRequest,
};

/// The queue key of all datagrams.
pub(super) const QKEY: u32 = 7;

/// A rack of machines with one kind of NIC.
pub(super) struct Rack {
    pub(super) sim: Sim,
    /// The number of operations completed by threads.
    pub(super) done: Rc<Cell<u64>>,
    start: Start,
    random: u64,
}

/// How the programs of a rack start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The seed of the rack, and of the times at which programs start.
    pub(super) seed: u64,
    /// Each program starts at a random time before this. With 0, all start at once.
    pub(super) spread_ns: u64,
}

impl Default for Start {
    fn default() -> Start {
        Start { seed: 1, spread_ns: 0 }
    }
}

/// A machine whose device is opened once. Each of its programs opens it separately, or shares this.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) node: NodeId,
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    /// The memory that others write and read.
    pub(super) memory: Rc<SharedRegion>,
}

/// A verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Write,
    Read,
    Send,
    FetchAdd,
    /// A WRITE and, with the same doorbell, a READ of the same bytes, which makes the WRITE durable.
    WriteRead,
}

/// The operations of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) verb: Verb,
    pub(super) len: usize,
    pub(super) inline: bool,
    /// Outstanding operations on each queue pair, or of the whole thread if it picks queue pairs at random.
    pub(super) window: usize,
    /// One in this many is signaled.
    pub(super) signal_every: usize,
    /// Work requests per doorbell.
    pub(super) batch: usize,
    /// Queue pairs are picked at random instead of in rotation.
    pub(super) random: bool,
    /// Each thread accesses separate memory.
    pub(super) spread: bool,
}

impl Work {
    /// Small inline operations with a window of 16 and no batches, a quarter of them signaled.
    pub(super) fn of(verb: Verb, len: usize) -> Work {
        let inline = matches!(verb, Verb::Write | Verb::Send | Verb::WriteRead) && len <= 256;
        Work {
            verb,
            len,
            inline,
            window: 16,
            signal_every: 4,
            batch: 1,
            random: false,
            spread: true,
        }
    }

    pub(super) fn fetched(self) -> Work {
        Work { inline: false, ..self }
    }

    pub(super) fn window(self, window: usize) -> Work {
        Work { window, signal_every: self.signal_every.min(window.div_ceil(2)), ..self }
    }

    pub(super) fn all_signaled(self) -> Work {
        Work { signal_every: 1, ..self }
    }

    pub(super) fn batch(self, batch: usize) -> Work {
        Work { batch, ..self }
    }

    /// `window` outstanding in all, on randomly chosen queue pairs.
    pub(super) fn random(self, window: usize) -> Work {
        Work { window, signal_every: 1, random: true, ..self }
    }
}

impl Rack {
    pub(super) fn new(costs: &Costs) -> Rack {
        Rack::starting(costs, Start::default())
    }

    /// A rack whose programs start like this.
    pub(super) fn starting(costs: &Costs, start: Start) -> Rack {
        let config = SimConfig::default().costs(costs.clone()).cores(64);
        let sim = Sim::with_config(start.seed, config);
        let random = start.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Rack { sim, done: Rc::default(), start, random }
    }

    /// Starts a program on a machine.
    pub(super) fn spawn(&mut self, node: NodeId, program: impl Actor + 'static) -> ActorId {
        if self.start.spread_ns == 0 {
            return self.sim.spawn(node, program);
        }
        self.random = next_random(self.random);
        let from_ns = self.sim.now_ns() + (self.random >> 16) % self.start.spread_ns;
        self.sim.spawn(node, Starting { from_ns, program })
    }

    pub(super) fn machine(&mut self) -> Result<Machine> {
        self.machine_with(1 << 20)
    }

    /// A machine with this much shared memory.
    pub(super) fn machine_with(&mut self, bytes: usize) -> Result<Machine> {
        let node = self.sim.add_node();
        self.open(node, bytes)
    }

    /// Another program of the machine, which opens the device separately.
    pub(super) fn program(&self, machine: &Machine) -> Result<Machine> {
        self.program_with(machine, 4096)
    }

    /// Another program of the machine, with this much shared memory.
    pub(super) fn program_with(&self, machine: &Machine, bytes: usize) -> Result<Machine> {
        self.open(machine.node, bytes)
    }

    fn open(&self, node: NodeId, bytes: usize) -> Result<Machine> {
        let device = self.sim.node(node).device();
        let pd = device.alloc_pd()?;
        let all = Access::all().difference(Access::RELAXED_ORDERING);
        let memory = Rc::new(pd.alloc_shared(bytes, all)?);
        Ok(Machine { node, device, pd, memory })
    }

    pub(super) fn machines(&mut self, count: usize) -> Result<Vec<Machine>> {
        (0..count).map(|_| self.machine()).collect()
    }

    /// Messages that arrive at a machine per microsecond, if their senders get no acknowledgement; measured as
    /// [`rate`](Self::rate).
    pub(super) fn arriving(&mut self, machine: &Machine, measured_ns: u64) -> f64 {
        self.sim.run_for(measured_ns);
        let before = self.counters(machine).messages_in;
        self.sim.run_for(measured_ns);
        (self.counters(machine).messages_in - before) as f64 * 1e3 / measured_ns as f64
    }

    pub(super) fn counters(&self, machine: &Machine) -> NicCounters {
        self.sim.node(machine.node).nic_counters()
    }

    /// Completed operations per microsecond, i.e. millions per second, over `measured_ns` after a warm-up of the same
    /// length.
    pub(super) fn rate(&mut self, measured_ns: u64) -> f64 {
        self.sim.run_for(measured_ns);
        self.done.set(0);
        self.sim.run_for(measured_ns);
        self.done.get() as f64 * 1e3 / measured_ns as f64
    }
}

/// A program that starts later than it is spawned.
struct Starting<A> {
    from_ns: u64,
    program: A,
}

impl<A: Actor> Actor for Starting<A> {
    fn turn(&mut self, now_ns: u64) -> Turn {
        match now_ns < self.from_ns {
            true => Turn::then(Next::At(self.from_ns)),
            false => self.program.turn(now_ns),
        }
    }
}

/// The random number after this one (xorshift).
pub(super) fn next_random(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^ random << 17
}

/// A thread that keeps work outstanding.
pub(super) struct Thread {
    work: Work,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    targets: Vec<Target>,
    source: SharedRegion,
    outstanding: usize,
    at: usize,
    random: u64,
    batch: [WorkCompletion; 32],
    done: Rc<Cell<u64>>,
}

/// A queue pair with the memory that it accesses.
pub(super) struct Target {
    qp: QueuePair,
    blocks: Vec<RemoteSlice>,
    way: Option<(AddressHandle, QpNumber)>,
    outstanding: usize,
    posted: usize,
}

impl Thread {
    pub(super) fn new(rack: &Rack, machine: &Machine, work: Work, seed: u64) -> Result<Thread> {
        let cq = machine.device.create_cq(1 << 16, None)?;
        let source = machine.pd.alloc_shared(work.len.max(64), Access::empty())?;
        Ok(Thread {
            work,
            cq,
            pd: machine.pd.clone(),
            targets: Vec::new(),
            source,
            outstanding: 0,
            at: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            batch: Default::default(),
            done: Rc::clone(&rack.done),
        })
    }

    /// Does not count its completions.
    pub(super) fn uncounted(self) -> Thread {
        Thread { done: Rc::default(), ..self }
    }

    fn pair(&self, ty: QpType) -> Result<QueuePair> {
        let depth = (2 * self.work.window).max(64);
        let config = QueuePairConfig::new(ty, &self.cq, &self.cq).max_send_wr(depth);
        Ok(self.pd.create_qp(config)?)
    }

    /// Connects the thread to another machine, whose memory it accesses in `blocks` (offset and length).
    pub(super) fn connect(
        &mut self,
        ty: QpType,
        to: &Machine,
        blocks: &[(u64, u64)],
    ) -> Result<(QueuePair, CompletionQueue)> {
        let cq = to.device.create_cq(1 << 10, None)?;
        let mut there = to.pd.create_qp(QueuePairConfig::new(ty, &cq, &cq))?;
        let mut here = self.pair(ty)?;
        join(&mut here, &mut there)?;
        self.add(here, to, blocks)?;
        Ok((there, cq))
    }

    fn add(&mut self, qp: QueuePair, to: &Machine, blocks: &[(u64, u64)]) -> Result<()> {
        let remote = to.memory.remote();
        let blocks = blocks.iter().map(|(offset, len)| remote.slice(*offset, *len));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        self.targets.push(Target { qp, blocks, way: None, outstanding: 0, posted: 0 });
        Ok(())
    }

    /// Adds a UD queue pair that sends to these.
    pub(super) fn send_to(&mut self, to: &[&QueuePair]) -> Result<()> {
        let mut qp = self.pair(QpType::Ud)?;
        qp.activate(QKEY)?;
        let mut qp = Some(qp);
        for peer in to {
            let name = peer.endpoint();
            let way = (self.pd.create_address_handle(&name)?, name.qp());
            let qp = match qp.take() {
                Some(qp) => qp,
                None => {
                    let mut qp = self.pair(QpType::Ud)?;
                    qp.activate(QKEY)?;
                    qp
                }
            };
            let target =
                Target { qp, blocks: Vec::new(), way: Some(way), outstanding: 0, posted: 0 };
            self.targets.push(target);
        }
        Ok(())
    }

    /// The target of the next work request.
    fn pick(&mut self) -> Option<usize> {
        let (count, window) = (self.targets.len(), self.work.window);
        if self.work.random {
            if self.outstanding >= window {
                return None;
            }
            self.random = next_random(self.random);
            return Some((self.random >> 33) as usize % count);
        }
        for _ in 0..count {
            self.at = if self.at + 1 < count { self.at + 1 } else { 0 };
            if self.targets[self.at].outstanding + self.work.batch <= window {
                return Some(self.at);
            }
        }
        None
    }

    fn post(&mut self, at: usize) -> Result<()> {
        let Work { verb, len, inline, signal_every, batch, .. } = self.work;
        let Target { qp, blocks, way, outstanding, posted } = &mut self.targets[at];
        let mut doorbell = qp.doorbell();
        for _ in 0..batch {
            let block = if blocks.is_empty() { None } else { blocks.get(*posted % blocks.len()) };
            let request: WorkRequest<'_> = match (verb, block) {
                (Verb::Write, Some(block)) if inline => {
                    WorkRequest::write(&INLINE[..len], *block).unsignaled()
                }
                (Verb::Write, Some(block)) => {
                    WorkRequest::write(self.source.slice(0, len), *block).unsignaled()
                }
                (Verb::WriteRead, Some(block)) => {
                    let write = match inline {
                        true => WorkRequest::write(&INLINE[..len], *block),
                        false => WorkRequest::write(self.source.slice(0, len), *block),
                    };
                    let write = doorbell.post(write.unsignaled());
                    write.map_err(|(error, _)| error).context("a WRITE")?;
                    WorkRequest::read(self.source.slice(0, len), *block)
                }
                (Verb::Read, Some(block)) => WorkRequest::read(self.source.slice(0, len), *block),
                (Verb::FetchAdd, Some(block)) => {
                    WorkRequest::fetch_add(self.source.slice(0, 8), *block, 1)
                }
                _ => {
                    let send = match inline {
                        true => WorkRequest::send(&INLINE[..len]),
                        false => WorkRequest::send(self.source.slice(0, len)),
                    };
                    match way {
                        Some((handle, qp)) => send.to(handle, *qp, QKEY).unsignaled(),
                        None => send.unsignaled(),
                    }
                }
            };
            *posted += 1;
            let request = match *posted % signal_every {
                0 => request.signaled(at as u64),
                _ => request,
            };
            doorbell.post(request).map_err(|(error, _)| error).context("a work request")?;
        }
        *outstanding += batch;
        self.outstanding += batch;
        Ok(())
    }

    fn step(&mut self) -> Result<Next> {
        let count = self.cq.poll(&mut self.batch)?;
        for completion in &self.batch[..count] {
            if completion.status != Status::Success {
                return Err(anyhow!("a work request failed: {:?}", completion.status));
            }
            let ended = self.work.signal_every;
            self.targets[completion.id as usize].outstanding -= ended;
            self.outstanding -= ended;
            self.done.set(self.done.get() + ended as u64);
        }
        for _ in 0..POSTS_PER_TURN.div_ceil(self.work.batch) {
            match self.pick() {
                Some(at) => self.post(at)?,
                None if count == self.batch.len() => return Ok(Next::Now),
                None => return Ok(Next::OnEvent),
            }
        }
        Ok(Next::Now)
    }
}

/// The number of posts after which a thread polls for completions.
const POSTS_PER_TURN: usize = 4;

pub(super) const INLINE: [u8; 256] = [7; 256];

impl Actor for Thread {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        match self.step() {
            Ok(next) => Turn::then(next),
            Err(error) => panic!("an experiment went wrong: {error:#}"),
        }
    }
}

pub(super) fn join(a: &mut QueuePair, b: &mut QueuePair) -> Result<()> {
    a.connect(&b.endpoint(), &ConnectOptions::default())?;
    b.connect(&a.endpoint(), &ConnectOptions::default())?;
    Ok(())
}

/// A thread that receives messages and reposts their receives.
pub(super) struct Receiver {
    pub(super) qps: Vec<QueuePair>,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    room: usize,
    pools: Vec<BufferPool>,
    batch: [WorkCompletion; 32],
    count: Rc<Cell<u64>>,
}

impl Receiver {
    /// For messages of up to `room` bytes.
    pub(super) fn new(machine: &Machine, room: usize, count: &Rc<Cell<u64>>) -> Result<Receiver> {
        Ok(Receiver {
            qps: Vec::new(),
            cq: machine.device.create_cq(1 << 16, None)?,
            pd: machine.pd.clone(),
            room: room + 64,
            pools: Vec::new(),
            batch: Default::default(),
            count: Rc::clone(count),
        })
    }

    pub(super) fn pair(&mut self, ty: QpType, receives: usize) -> Result<&mut QueuePair> {
        let config = QueuePairConfig::new(ty, &self.cq, &self.cq).max_recv_wr(receives);
        let mut qp = self.pd.create_qp(config)?;
        if ty == QpType::Ud {
            qp.activate(QKEY)?;
        }
        let pool = self.pd.alloc_private(self.room * receives)?.into_pool(self.room);
        while let Some(buffer) = pool.take() {
            qp.post_recv(self.qps.len() as u64, Some(buffer))?;
        }
        self.pools.push(pool);
        self.qps.push(qp);
        self.qps.last_mut().context("a queue pair")
    }
}

impl Actor for Receiver {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        let count = self.cq.poll(&mut self.batch).unwrap_or(0);
        for completion in &mut self.batch[..count] {
            if let Some(mut buffer) = completion.buffer.take() {
                buffer.set_len(self.room);
                let _ = self.qps[completion.id as usize].post_recv(completion.id, Some(buffer));
            }
        }
        self.count.set(self.count.get() + count as u64);
        Turn::then(if count > 0 { Next::Now } else { Next::OnEvent })
    }
}
