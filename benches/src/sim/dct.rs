//! Dynamic connections next to reliable ones and to `scale`.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::{Actor, Costs, Next, Turn};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Endpoint, QpType, QueuePair, QueuePairConfig,
    RemoteSlice, SharedRegion, Status, WorkCompletion, WorkRequest,
};

use super::rig::{INLINE, Machine, Rack, join};
use super::scale_calls::{SCALE, by_backend, program};
use super::study::{Goal, Studied, Study};
use crate::chart::{Lines, charts};

const KEY: u64 = 7;

/// The warm-up, and the time that is measured.
const MEASURED_NS: u64 = 200_000;

/// Threads of each of FaSST's machines, and operations that each keeps outstanding.
const THREADS: usize = 14;
const WINDOW: usize = 16;

/// Machines of the clients of one server, and its threads, as in ScaleRPC's figures.
const CLIENT_MACHINES: usize = 11;
const SERVER_THREADS: usize = 10;

/// Queue pairs of each server thread that writes over dynamic connections: the best number of FaSST's.
const INITIATORS: usize = 4;

pub(super) fn study() -> Study {
    Study {
        name: "dct",
        title: "Dynamic connections, reliable ones, and scale: Connect-IB",
        notes: "Dynamically connected queue pairs (DCT): one reaches any target, and connects when the target changes. FaSST's authors published the code with which they measured them on Connect-IB. Their READs have 16 B: of one thread with one outstanding, from the same target or from another each time; with 16 outstanding, where the time is that of Little's law; and of each of 5 machines with 14 threads that all read from each other, with 16 outstanding for each thread on 1 to 16 queue pairs. Below them is one server whose 10 threads write 32 B, inlined, to a random one of many clients, with 16 outstanding for each thread: over a reliable connection (RC) to each client, or over 4 dynamically connected queue pairs of each thread. The rates of `scale` and `write_imm` are of calls of the same size with as many clients, one outstanding each, by the programs of [ScaleRPC's Fig. 8](figures-queue-pairs.md#calls-of-32-b-by-the-number-of-clients-connectx-3). The model has no constant for dynamic connections: a connect and a disconnect are packets without bytes, a reply is an acknowledgement, and a responder's context takes room in the NIC's cache. Any READ takes 0.8 us more here than in the measurement; what another target costs is met within a third of a microsecond, and so is that four queue pairs of a thread are best: with fewer, each waits for its targets, with more, their responders no longer fit into the cache. Calls are bound by the CPU time of the ten threads, for which even 1,600 contexts of Connect-IB are few: [with ConnectX-3](#scale-by-the-number-of-clients), which has no dynamic connections, they are not.",
        run,
    }
}

/// How a thread reaches others.
enum Reach {
    /// By a queue pair for each.
    Connected(Vec<(QueuePair, RemoteSlice)>),
    /// By initiators in rotation.
    Dynamic { initiators: Vec<QueuePair>, targets: Vec<(Endpoint, RemoteSlice)>, next: usize },
}

/// Which target is next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Same,
    Random,
    /// Another one each time.
    Rotation,
}

/// A thread that keeps operations outstanding.
struct Thread {
    reach: Reach,
    cq: CompletionQueue,
    into: SharedRegion,
    reads: bool,
    order: Order,
    credits: usize,
    last: usize,
    random: u64,
    done: Rc<Cell<u64>>,
}

impl Thread {
    fn pick(&mut self, count: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.last = match self.order {
            Order::Same => 0,
            Order::Random => (self.random >> 33) as usize % count,
            Order::Rotation => (self.last + 1) % count,
        };
        self.last
    }

    fn post(&mut self) -> Result<()> {
        let count = match &self.reach {
            Reach::Connected(pairs) => pairs.len(),
            Reach::Dynamic { targets, .. } => targets.len(),
        };
        let at = self.pick(count);
        let (qp, there) = match &mut self.reach {
            Reach::Connected(pairs) => {
                let (qp, there) = &mut pairs[at];
                (qp, *there)
            }
            Reach::Dynamic { initiators, targets, next } => {
                *next = (*next + 1) % initiators.len();
                let (qp, (target, there)) = (&mut initiators[*next], &targets[at]);
                qp.connect_dynamically(target, KEY, &ConnectOptions::default())?;
                (qp, *there)
            }
        };
        let len = there.len() as usize;
        let request: WorkRequest<'_> = match self.reads {
            true => WorkRequest::read(self.into.slice(0, len), there),
            false => WorkRequest::write(&INLINE[..len], there).into(),
        };
        let posted = qp.post_send_one(request.signaled(0));
        posted.map_err(|(error, _)| error).context("an operation")?;
        self.credits -= 1;
        Ok(())
    }

    fn step(&mut self) -> Result<Next> {
        let mut batch: [WorkCompletion; 16] = Default::default();
        let count = self.cq.poll(&mut batch)?;
        for completion in &batch[..count] {
            let status = completion.status;
            ensure!(status == Status::Success, "an operation failed: {status:?}");
        }
        self.credits += count;
        self.done.set(self.done.get() + count as u64);
        if self.credits == 0 {
            return Ok(Next::OnEvent);
        }
        self.post()?;
        Ok(Next::Now)
    }
}

impl Actor for Thread {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        match self.step() {
            Ok(next) => Turn::then(next),
            Err(error) => panic!("an experiment went wrong: {error:#}"),
        }
    }
}

/// Threads, and whom they reach.
struct Setup {
    rack: Rack,
    bytes: u64,
    reads: bool,
    order: Order,
    window: usize,
    kept: Vec<(QueuePair, CompletionQueue)>,
    seed: u64,
}

impl Setup {
    fn new(bytes: u64, reads: bool, order: Order, window: usize) -> Setup {
        let rack = Rack::new(&Costs::connect_ib());
        Setup { rack, bytes, reads, order, window, kept: Vec::new(), seed: 0 }
    }

    /// A queue pair of that machine, kept until the end.
    fn there(&mut self, machine: &Machine) -> Result<(&mut QueuePair, RemoteSlice)> {
        let cq = machine.device.create_cq(16, None)?;
        let qp = machine.pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq))?;
        let memory = machine.memory.remote().slice(0, self.bytes)?;
        self.kept.push((qp, cq));
        let (qp, _) = self.kept.last_mut().context("a queue pair")?;
        Ok((qp, memory))
    }

    /// A target of dynamic connections.
    fn target(&mut self, machine: &Machine) -> Result<(Endpoint, RemoteSlice)> {
        let (qp, memory) = self.there(machine)?;
        qp.accept_dynamically(KEY)?;
        Ok((qp.endpoint(), memory))
    }

    /// A thread of that program that reaches these machines by a reliable connection each.
    fn spawn_connected(&mut self, program: &Machine, to: &[&Machine]) -> Result<()> {
        let cq = program.device.create_cq(1 << 10, None)?;
        let mut pairs = Vec::new();
        for machine in to {
            let config = QueuePairConfig::new(QpType::Rc, &cq, &cq);
            let mut here = program.pd.create_qp(config)?;
            let (there, memory) = self.there(machine)?;
            join(&mut here, there)?;
            pairs.push((here, memory));
        }
        self.spawn(program, cq, Reach::Connected(pairs))
    }

    /// A thread of that program that reaches these targets by so many initiators.
    fn spawn_dynamic(
        &mut self,
        program: &Machine,
        targets: Vec<(Endpoint, RemoteSlice)>,
        initiators: usize,
    ) -> Result<()> {
        let cq = program.device.create_cq(1 << 10, None)?;
        let config = || QueuePairConfig::new(QpType::Rc, &cq, &cq);
        let initiators = (0..initiators).map(|_| program.pd.create_qp(config()));
        let initiators = initiators.collect::<Result<_, _>>()?;
        self.spawn(program, cq, Reach::Dynamic { initiators, targets, next: 0 })
    }

    fn spawn(&mut self, program: &Machine, cq: CompletionQueue, reach: Reach) -> Result<()> {
        self.seed += 1;
        let thread = Thread {
            reach,
            cq,
            into: program.pd.alloc_shared(64, Access::empty())?,
            reads: self.reads,
            order: self.order,
            credits: self.window,
            last: 0,
            random: self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            done: Rc::clone(&self.rack.done),
        };
        self.rack.sim.spawn(program.node, thread);
        Ok(())
    }
}

/// Operations per microsecond of one thread of one machine to others.
fn one_thread(order: Order, window: usize, initiators: Option<usize>) -> Result<f64> {
    let mut setup = Setup::new(16, true, order, window);
    let machines = setup.rack.machines(5)?;
    let program = setup.rack.program(&machines[0])?;
    match initiators {
        None => setup.spawn_connected(&program, &machines[1..].iter().collect::<Vec<_>>())?,
        Some(count) => {
            let targets = machines[1..].iter().map(|machine| setup.target(machine));
            let targets = targets.collect::<Result<_>>()?;
            setup.spawn_dynamic(&program, targets, count)?;
        }
    }
    Ok(setup.rack.rate(MEASURED_NS))
}

/// READs per microsecond of each of 5 machines.
fn all_to_all(initiators: Option<usize>) -> Result<f64> {
    let mut setup = Setup::new(16, true, Order::Random, WINDOW);
    let machines = setup.rack.machines(5)?;
    for _ in 0..THREADS {
        let targets = match initiators {
            None => Vec::new(),
            Some(_) => machines.iter().map(|it| setup.target(it)).collect::<Result<Vec<_>>>()?,
        };
        for (number, machine) in machines.iter().enumerate() {
            let program = setup.rack.program(machine)?;
            let others = (0..machines.len()).filter(|it| *it != number);
            match initiators {
                None => {
                    let others: Vec<_> = others.map(|it| &machines[it]).collect();
                    setup.spawn_connected(&program, &others)?;
                }
                Some(count) => {
                    let others = others.map(|it| targets[it].clone()).collect();
                    setup.spawn_dynamic(&program, others, count)?;
                }
            }
        }
    }
    Ok(setup.rack.rate(MEASURED_NS) / machines.len() as f64)
}

/// WRITEs per microsecond out of one server to so many clients.
fn out(clients: usize, initiators: Option<usize>) -> Result<f64> {
    let mut setup = Setup::new(32, false, Order::Random, WINDOW);
    let server = setup.rack.machine()?;
    let machines = setup.rack.machines(CLIENT_MACHINES)?;
    for thread in 0..SERVER_THREADS {
        let program = setup.rack.program(&server)?;
        let own = (thread..clients).step_by(SERVER_THREADS);
        let own: Vec<_> = own.map(|client| &machines[client % CLIENT_MACHINES]).collect();
        match initiators {
            None => setup.spawn_connected(&program, &own)?,
            Some(count) => {
                let targets = own.iter().map(|machine| setup.target(machine));
                let targets = targets.collect::<Result<_>>()?;
                setup.spawn_dynamic(&program, targets, count)?;
            }
        }
    }
    Ok(setup.rack.rate(MEASURED_NS))
}

/// Calls per microsecond.
fn calls(options: &str, clients: usize) -> Result<f64> {
    let point = program(options, clients, 1);
    // At least a round of all groups of 40.
    let measured_ns = point.measured_ns.max((clients.div_ceil(40) * 100_000) as u64);
    let config = SimConfig::default().cores(64).costs(Costs::connect_ib());
    let point = crate::rack_calls::Point { config, warm_up_ns: measured_ns, measured_ns, ..point };
    Ok(by_backend(&point)?.rate)
}

fn run() -> Result<Studied> {
    let mut rows = Vec::new();
    let mut row = |what: &str, published: Option<f64>, measured: f64| {
        let error = published.map(|it| format!("{:+.0} %", (measured / it - 1.0) * 100.0));
        rows.push(vec![
            what.to_owned(),
            published.map(|it| it.to_string()).unwrap_or_default(),
            format!("{measured:.1}"),
            error.unwrap_or_default(),
        ]);
        measured
    };
    let us =
        |order, window, reach| one_thread(order, window, reach).map(|rate| window as f64 / rate);
    let same = row("READ over DCT, same target, us", Some(1.9), us(Order::Same, 1, Some(1))?);
    let other =
        row("READ over DCT, another target, us", Some(2.9), us(Order::Rotation, 1, Some(1))?);
    row(
        "the same with 16 outstanding, same target, us",
        Some(4.0),
        us(Order::Same, WINDOW, Some(1))?,
    );
    row("the same, another target, us", Some(26.0), us(Order::Rotation, WINDOW, Some(1))?);
    row("READ over RC, another target, us", None, us(Order::Rotation, 1, None)?);
    let mut all = Vec::new();
    for (initiators, published) in [(1, 9.1), (2, 13.8), (4, 22.0), (16, 20.0)] {
        let what =
            format!("READs of each of 5 machines, {initiators} DCT queue pairs per thread, M/s");
        all.push(row(&what, Some(published), all_to_all(Some(initiators))?));
    }
    row("READs of each of 5 machines over RC, M/s", None, all_to_all(None)?);
    let (mut lines, mut rates) = ([const { Vec::new() }; 4], Vec::new());
    for clients in [40, 400, 1600] {
        let values = [
            row(&format!("WRITEs to {clients} clients over RC, M/s"), None, out(clients, None)?),
            row(
                &format!("WRITEs to {clients} clients over DCT, M/s"),
                None,
                out(clients, Some(INITIATORS))?,
            ),
            row(
                &format!("calls of {clients} clients by write_imm, M/s"),
                None,
                calls("backend=write_imm&slot=4096", clients)?,
            ),
            row(&format!("calls of {clients} clients by scale, M/s"), None, calls(SCALE, clients)?),
        ];
        for (line, value) in lines.iter_mut().zip(values) {
            line.push((clients as f64, value));
        }
        rates.push(values);
    }
    let names = ["WRITEs over RC", "WRITEs over DCT", "calls by write_imm", "calls by scale"];
    let chart = Lines {
        title: "one server, Connect-IB".to_owned(),
        x_label: "clients",
        y_label: "M/s",
        series: names.map(str::to_owned).into_iter().zip(lines).collect(),
        is_logarithmic: true,
    };
    Ok(Studied {
        header: &["", "published", "simulated", "error"],
        rows,
        picture: charts(&[chart], 1)?,
        goals: vec![
            Goal::at_least("microseconds that another target costs", other - same, 0.7),
            Goal::at_most("microseconds that another target costs", other - same, 1.5),
            Goal::at_least("4 queue pairs per thread, relative to 1", all[2] / all[0], 2.0),
            Goal::at_most("16 queue pairs per thread, relative to 4", all[3] / all[2], 1.0),
            Goal::at_least(
                "DCT with 1,600 clients, relative to 40",
                rates[2][1] / rates[0][1],
                0.8,
            ),
        ],
    })
}
