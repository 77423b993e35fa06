//! The clients of ordinary programs: `.wait()` and `.await`.

use anyhow::{Result, ensure};
use bytes::Bytes;
use farcall::memory::{BatchCall, Carrier, MemoryCall, Outcome, Remote, RemoteMemory};
use futures_executor::block_on;

use super::{Contender, Kind, Pattern};

/// What both do.
struct Client {
    memory: RemoteMemory,
    kind: Kind,
    targets: Vec<Remote>,
    bytes: Bytes,
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
        let of = |at: usize| lent.slice((at * size) as u64..((at + 1) * size) as u64);
        let targets: Vec<_> = (0..batch).map(of).collect::<Result<_, _>>()?;
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
