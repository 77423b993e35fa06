//! Many to one, and one to many: the two experiments of most figures.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::{Costs, NicCounters};

use super::rig::{Rack, Receiver, Thread, Verb, Work};

/// Virtual nanoseconds of a measurement, after a warm-up of the same length.
pub(super) const MEASURED_NS: u64 = 150_000;

/// The length of a measurement, which is longer if much work is outstanding, or only one operation.
pub(super) fn measured_ns(outstanding: usize) -> u64 {
    let least_ns = if outstanding == 1 { 10 * MEASURED_NS } else { MEASURED_NS };
    least_ns.max(800 * outstanding as u64)
}

/// Threads of many machines, each with its own queue pair, access one server.
pub(super) struct Inbound {
    pub(super) costs: Costs,
    pub(super) ty: QpType,
    pub(super) work: Work,
    pub(super) machines: usize,
    pub(super) threads: usize,
}

impl Inbound {
    pub(super) fn rate(&self) -> Result<f64> {
        let Inbound { costs, ty, work, machines, threads } = self;
        let mut rack = Rack::new(costs);
        let server = rack.machine()?;
        let clients = rack.machines(*machines)?;
        let mut kept = Vec::new();
        for (number, client) in clients.iter().cycle().take(machines * threads).enumerate() {
            let program = rack.program(client)?;
            let mut thread = Thread::new(&rack, &program, *work, number as u64)?;
            let offset = if work.spread { 64 * number as u64 } else { 0 };
            let block = [(offset, work.len as u64)];
            let block = if work.len == 0 { &[] } else { &block[..] };
            kept.push(thread.connect(*ty, &server, block)?);
            rack.spawn(client.node, thread);
        }
        let measured_ns = measured_ns(machines * threads * work.window);
        match ty {
            QpType::Rc => Ok(rack.rate(measured_ns)),
            _ => Ok(rack.arriving(&server, measured_ns)),
        }
    }
}

/// Threads of one server, each with its own queue pairs, access many machines.
pub(super) struct Outbound {
    pub(super) costs: Costs,
    pub(super) ty: QpType,
    pub(super) work: Work,
    pub(super) threads: usize,
    /// Queue pairs of each thread.
    pub(super) pairs: usize,
    pub(super) machines: usize,
}

impl Outbound {
    pub(super) fn rate(&self) -> Result<f64> {
        Ok(self.run()?.0)
    }

    /// Millions of operations per second, and the server's NIC counters per operation.
    pub(super) fn run(&self) -> Result<(f64, NicCounters)> {
        self.run_on(Rack::new(&self.costs))
    }

    /// Simulates it on a rack that has no machines yet.
    pub(super) fn run_on(&self, mut rack: Rack) -> Result<(f64, NicCounters)> {
        let Outbound { ty, work, threads, pairs, machines, .. } = self;
        let server = rack.machine()?;
        let clients = rack.machines(*machines)?;
        let (mut kept, mut receivers) = (Vec::new(), Vec::new());
        for client in &clients {
            let mut receiver = Receiver::new(client, work.len, &Default::default())?;
            if *ty == QpType::Ud {
                receiver.pair(QpType::Ud, 64)?;
            }
            receivers.push(receiver);
        }
        for number in 0..*threads {
            let program = rack.program(&server)?;
            let mut thread = Thread::new(&rack, &program, *work, number as u64)?;
            for pair in 0..*pairs {
                let client = (number * pairs + pair) % machines;
                match ty {
                    QpType::Ud => thread.send_to(&[&receivers[client].qps[0]])?,
                    _ => {
                        let block = [(0, work.len as u64)];
                        kept.push(thread.connect(*ty, &clients[client], &block)?);
                    }
                }
            }
            rack.spawn(server.node, thread);
        }
        if work.verb == Verb::Send {
            for (client, receiver) in clients.iter().zip(receivers) {
                rack.spawn(client.node, receiver);
            }
        }
        let rate = rack.rate(measured_ns(threads * pairs * work.window));
        Ok((rate, rack.counters(&server)))
    }
}

/// Datagrams of `len` bytes that 14 threads of a server receive from 64 threads of 16 machines.
pub(super) fn received(costs: &Costs, len: usize) -> Result<f64> {
    let mut rack = Rack::new(costs);
    let server = rack.machine()?;
    let clients = rack.machines(16)?;
    let mut receivers = Vec::new();
    for _ in 0..14 {
        let mut receiver = Receiver::new(&rack.program(&server)?, len, &rack.done)?;
        receiver.pair(QpType::Ud, 1024)?;
        receivers.push(receiver);
    }
    for number in 0..64 {
        let client = &clients[number % 16];
        let mut thread =
            Thread::new(&rack, &rack.program(client)?, Work::of(Verb::Send, len), number as u64)?
                .uncounted();
        thread.send_to(&[&receivers[number % 14].qps[0]])?;
        rack.spawn(client.node, thread);
    }
    for receiver in receivers {
        rack.spawn(server.node, receiver);
    }
    Ok(rack.rate(MEASURED_NS))
}
