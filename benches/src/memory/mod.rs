//! Remote memory: its operations next to the bare verb and to memcpy, by turns.

mod clients;
mod holders;
mod report;
mod verb;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farcall::memory::{Memory, MemoryServer, Region, Rights, Until};
use farcall::{RunningServer, Server};

pub use report::{Cell, Report, Row};

use crate::clock::Clock;
use crate::cores;
use crate::limit::Memcpy;
use clients::{Awaiting, Polling, Waiting, WithBuffer};
use verb::{BareVerb, Key};

/// The length of a turn of one contender.
const TURN: Duration = Duration::from_millis(10);

/// Operations of so many bytes are also done with buffers of the program.
const LONG_BYTES: usize = 64 << 10;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time of each contender in each cell.
    pub time: Duration,
    /// The server's core and the client's.
    pub cores: [usize; 2],
    /// Holders of the lend that is revoked.
    pub holders: usize,
}

/// What the contenders of a cell do.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    kind: Kind,
    /// Bytes of each operation.
    size: usize,
    /// Operations under one doorbell.
    batch: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// One who does the operations of a pattern.
trait Contender {
    /// Its name in the report.
    fn name(&self) -> &'static str;

    /// Does the pattern once.
    fn once(&mut self) -> Result<()>;
}

/// The memory, its server, and what it has lent.
struct Owner {
    server: RunningServer,
    region: Region,
}

impl Owner {
    fn start(len: usize, core: usize, clients: usize) -> Result<Owner> {
        let memory = Memory::new()?;
        let region = memory.region(len)?;
        let server = Server::builder().service(MemoryServer::new(memory)).threads(1).pin([core]);
        let address = crate::address::local("shm", "write_imm", "");
        let server = server.max_clients(clients).listen(&address)?;
        Ok(Owner { server, region })
    }
}

/// Measures each cell, then the revoke.
pub fn run(options: &Options) -> Result<Report> {
    let [server, client] = options.cores;
    cores::pin(client)?;
    let small = |kind| Pattern { kind, size: 32, batch: 1 };
    let patterns = [
        small(Kind::Read),
        small(Kind::Write),
        Pattern { batch: 16, ..small(Kind::Read) },
        Pattern { batch: 16, ..small(Kind::Write) },
        Pattern { kind: Kind::Read, size: 1 << 20, batch: 1 },
        Pattern { kind: Kind::Write, size: 1 << 20, batch: 1 },
    ];
    let cells = patterns.into_iter().map(|pattern| measure(options, server, pattern));
    let cells = cells.collect::<Result<_>>()?;
    let revoke = holders::measure(options.holders, server)?;
    Ok(Report { bench: "memory", cores: options.cores, cells, revoke })
}

/// One cell: all contenders alternate.
fn measure(options: &Options, server: usize, pattern: Pattern) -> Result<Cell> {
    let owner = Owner::start(pattern.size * pattern.batch, server, 8)?;
    let lent = owner.region.lend(.., Rights::READ | Rights::WRITE, Until::REVOKED)?;
    let address = owner.server.address();
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(BareVerb::start(pattern, Key::Region)?),
        Box::new(BareVerb::start(pattern, Key::Window)?),
        Box::new(Polling::start(address, lent, pattern)?),
        Box::new(Waiting::start(address, lent, pattern)?),
        Box::new(Awaiting::start(address, lent, pattern)?),
    ];
    if pattern.batch == 1 && pattern.size >= LONG_BYTES {
        contenders.push(Box::new(WithBuffer::start(address, lent, pattern)?));
    }
    let clock = Clock::new();
    let rounds = (options.time.as_nanos() / TURN.as_nanos()).max(5) as usize;
    let mut turns = vec![Vec::with_capacity(rounds); contenders.len()];
    let mut memcpy = Memcpy::new(pattern.size);
    for _ in 0..rounds {
        for (contender, turns) in contenders.iter_mut().zip(&mut turns) {
            turns.push(turn(&mut **contender, &clock)?);
        }
        memcpy.slice(&clock, TURN);
    }
    let rows =
        contenders.iter().zip(turns).map(|(contender, turns)| Row::of(contender.name(), turns));
    let rows = rows.collect();
    let memcpy_ns = pattern.size as f64 / memcpy.bandwidth() * 1e9;
    drop(contenders);
    let drained = owner.server.shutdown();
    ensure!(drained.stuck_threads == 0, "{drained:?}");
    Ok(Cell::new(pattern, memcpy_ns, rows))
}

/// Nanoseconds of one pattern, on the average of a turn whose first patterns do not count.
fn turn(contender: &mut dyn Contender, clock: &Clock) -> Result<f64> {
    const PER_STAMP: usize = 4;
    for _ in 0..PER_STAMP {
        contender.once().with_context(|| format!("`{}` failed", contender.name()))?;
    }
    let (begin, end) = (clock.stamp(), clock.after(TURN));
    let mut patterns = 0;
    loop {
        for _ in 0..PER_STAMP {
            contender.once().with_context(|| format!("`{}` failed", contender.name()))?;
        }
        patterns += PER_STAMP;
        let now = clock.stamp();
        if now >= end {
            return Ok(clock.nanos_between(begin, now) as f64 / patterns as f64);
        }
    }
}
