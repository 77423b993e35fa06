//! The clients: of threads that poll, and of ordinary programs.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use farcall::buffers::Buffer;
use farcall::memory::{
    BatchCall, Carrier, MemoryCall, Outcome, PendingBatch, PollMemory, Remote, RemoteMemory,
};
use futures_executor::block_on;

use super::{Contender, Kind, Pattern};

/// What both do.
struct Client {
    memory: RemoteMemory,
    kind: Kind,
    targets: Vec<Remote>,
    bytes: Bytes,
}

fn targets(lent: Remote, pattern: Pattern) -> Result<Vec<Remote>> {
    let Pattern { size, batch, .. } = pattern;
    let of = |at: usize| lent.slice((at * size) as u64..((at + 1) * size) as u64);
    Ok((0..batch).map(of).collect::<Result<_, _>>()?)
}

/// A pattern that is to be sent.
enum Prepared {
    Read(MemoryCall<Bytes>),
    Write(MemoryCall<()>),
    Batch(BatchCall),
}

impl Client {
    fn start(address: &str, lent: Remote, pattern: Pattern) -> Result<Client> {
        let Pattern { kind, size, batch } = pattern;
        let memory = RemoteMemory::connect(address).wait()?.one_sided();
        let targets = targets(lent, pattern)?;
        let client = Client { memory, kind, targets, bytes: vec![7; size].into() };
        // The second finds the lane that the first opens.
        for _ in 0..2 {
            ensure!(client.prepare().wait()? == batch, "an outcome is missing");
        }
        ensure!(client.memory.caps().carrier == Carrier::OneSided, "there is no lane");
        Ok(client)
    }

    fn prepare(&self) -> Prepared {
        match (self.kind, &self.targets[..]) {
            (Kind::Read, [target]) => Prepared::Read(self.memory.read(target)),
            (Kind::Write, [target]) => {
                Prepared::Write(self.memory.write(target, self.bytes.clone()))
            }
            (Kind::Read, targets) => Prepared::Batch(
                targets.iter().fold(self.memory.batch(), |batch, at| batch.read(at)).post(),
            ),
            (Kind::Write, targets) => {
                let write = |batch: farcall::memory::Batch, at| batch.write(at, self.bytes.clone());
                Prepared::Batch(targets.iter().fold(self.memory.batch(), write).post())
            }
        }
    }
}

impl Prepared {
    /// Returns the number of outcomes.
    fn wait(self) -> Result<usize> {
        Ok(match self {
            Prepared::Read(call) => call.wait().map(|_| 1)?,
            Prepared::Write(call) => call.wait().map(|()| 1)?,
            Prepared::Batch(call) => count(&call.wait()?),
        })
    }

    async fn end(self) -> Result<usize> {
        Ok(match self {
            Prepared::Read(call) => call.await.map(|_| 1)?,
            Prepared::Write(call) => call.await.map(|()| 1)?,
            Prepared::Batch(call) => count(&call.await?),
        })
    }
}

fn count(outcomes: &[Outcome]) -> usize {
    outcomes.len()
}

/// `.wait()`.
pub(super) struct Waiting(Client);

impl Waiting {
    pub(super) fn start(address: &str, lent: Remote, pattern: Pattern) -> Result<Waiting> {
        Client::start(address, lent, pattern).map(Waiting)
    }
}

impl Contender for Waiting {
    fn name(&self) -> &'static str {
        ".wait()"
    }

    fn once(&mut self) -> Result<()> {
        let outcomes = self.0.prepare().wait()?;
        ensure!(outcomes == self.0.targets.len(), "an outcome is missing");
        Ok(())
    }
}

/// `.await`.
pub(super) struct Awaiting(Client);

impl Awaiting {
    pub(super) fn start(address: &str, lent: Remote, pattern: Pattern) -> Result<Awaiting> {
        Client::start(address, lent, pattern).map(Awaiting)
    }
}

impl Contender for Awaiting {
    fn name(&self) -> &'static str {
        ".await"
    }

    fn once(&mut self) -> Result<()> {
        let outcomes = block_on(self.0.prepare().end())?;
        ensure!(outcomes == self.0.targets.len(), "an outcome is missing");
        Ok(())
    }
}

/// The polling client.
pub(super) struct Polling {
    memory: PollMemory,
    kind: Kind,
    targets: Vec<Remote>,
    bytes: Vec<u8>,
}

impl Polling {
    pub(super) fn start(address: &str, lent: Remote, pattern: Pattern) -> Result<Polling> {
        /// The lane is opened while the first operations travel as calls.
        const MOST_CALLS: u32 = 10_000;
        let memory = PollMemory::connect(address).wait()?.one_sided();
        let (targets, bytes) = (targets(lent, pattern)?, vec![7; pattern.size]);
        let mut polling = Polling { memory, kind: pattern.kind, targets, bytes };
        let mut calls = 0;
        while polling.memory.caps().carrier != Carrier::OneSided {
            polling.once()?;
            calls += 1;
            ensure!(calls < MOST_CALLS, "there is no lane");
        }
        // Its window.
        polling.once()?;
        Ok(polling)
    }

    fn begin(&mut self) -> Result<PendingBatch> {
        let Polling { memory, kind, targets, bytes } = self;
        Ok(match (*kind, &targets[..]) {
            (Kind::Read, [target]) => memory.start_read(target)?,
            (Kind::Write, [target]) => memory.start_write(target, bytes)?,
            (Kind::Read, targets) => {
                targets.iter().fold(memory.batch(), |batch, at| batch.read(at)).start()?
            }
            (Kind::Write, targets) => {
                targets.iter().fold(memory.batch(), |batch, at| batch.write(at, bytes)).start()?
            }
        })
    }
}

impl Contender for Polling {
    fn name(&self) -> &'static str {
        "polling"
    }

    fn once(&mut self) -> Result<()> {
        let mut pending = self.begin()?;
        loop {
            self.memory.poll();
            let Some(outcomes) = self.memory.take(&mut pending) else { continue };
            let outcomes = outcomes?;
            ensure!(outcomes.len() == self.targets.len(), "an outcome is missing");
            let expected = if self.kind == Kind::Read { self.bytes.len() } else { 0 };
            ensure!(outcomes.bytes(0).len() == expected, "a read was short");
            return Ok(());
        }
    }
}

/// `.wait()`, with a buffer of the program that is used again.
pub(super) struct WithBuffer {
    client: Client,
    buffer: Option<Buffer>,
}

impl WithBuffer {
    pub(super) fn start(address: &str, lent: Remote, pattern: Pattern) -> Result<WithBuffer> {
        let client = Client::start(address, lent, pattern)?;
        let buffer = client.memory.buffers()?.buffer(pattern.size)?;
        Ok(WithBuffer { client, buffer: Some(buffer) })
    }
}

impl Contender for WithBuffer {
    fn name(&self) -> &'static str {
        "own buffer"
    }

    fn once(&mut self) -> Result<()> {
        let WithBuffer { client, buffer } = self;
        let given = buffer.take().context("the buffer is lost")?;
        let target = client.targets.first().context("there is no target")?;
        *buffer = Some(match client.kind {
            Kind::Read => client.memory.read_into(target, given).wait()?,
            Kind::Write => client.memory.write_from(target, given).wait()?,
        });
        Ok(())
    }
}
