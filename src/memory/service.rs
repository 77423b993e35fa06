//! The built-in service that does what clients ask for on lent memory.

use bytes::Bytes;
use farcall_transports::remote_memory::{
    Action, BatchError, Memory, MemoryError, Operation, Outcome, Remote, Who, Window,
};

use super::usage::MemoryUsage;
use crate::{CallContext, Identity};

/// Operations on lent memory as calls.
#[crate::service(name = "farcall.memory", crate = crate)]
pub trait LentMemory {
    /// Reads all of it.
    #[rpc(idempotent)]
    fn read(&self, at: Remote) -> Result<Bytes, MemoryError>;
    /// Writes as many bytes as it has.
    fn write(&self, at: Remote, bytes: Bytes) -> Result<(), MemoryError>;
    /// Does the operations one after the other, until one fails.
    fn batch(&self, operations: Vec<Operation>) -> Result<Vec<Outcome>, BatchError>;
    /// Connects a lane to the client's endpoint. Answers its number and the endpoint of this end.
    async fn open_lane(&self, endpoint: Bytes) -> Result<(u64, Bytes), String>;
    /// Does a batch, and binds a window for a lend of it on a lane, so that the next operation can be one-sided.
    async fn bind(
        &self,
        lane: u64,
        lend: Remote,
        operations: Vec<Operation>,
    ) -> Result<(Vec<Outcome>, Option<Window>), BatchError>;
    /// What the owner has and lends.
    #[rpc(idempotent)]
    fn usage(&self) -> MemoryUsage;
}

/// The context of a call of the service.
fn called() -> Result<CallContext, MemoryError> {
    // Handlers always have one.
    let why = "the service was not called by a server's thread";
    let outside = || MemoryError::Gone { may_have_landed: false, why: why.into() };
    CallContext::current().ok_or_else(outside)
}

/// Who makes the call whose handler runs now, with this identity.
fn caller(identity: Option<&Identity>) -> Who<'_> {
    let connection = CallContext::client().map(|(_, client)| client);
    Who { identity, connection }
}

fn execute(memory: &Memory, at: Remote, action: Action) -> Result<Outcome, MemoryError> {
    let call = called()?;
    memory.execute(&Operation { at, action }, caller(call.identity().as_ref()), call.now())
}

impl LentMemory for Memory {
    fn read(&self, at: Remote) -> Result<Bytes, MemoryError> {
        match execute(self, at, Action::Read)? {
            Outcome::Read(bytes) => Ok(bytes),
            // It has one outcome.
            _ => Ok(Bytes::new()),
        }
    }

    fn write(&self, at: Remote, bytes: Bytes) -> Result<(), MemoryError> {
        execute(self, at, Action::Write(bytes)).map(drop)
    }

    fn batch(&self, operations: Vec<Operation>) -> Result<Vec<Outcome>, BatchError> {
        let call = called().map_err(|error| BatchError { at: 0, error })?;
        self.execute_all(&operations, caller(call.identity().as_ref()), call.now())
    }

    async fn open_lane(&self, endpoint: Bytes) -> Result<(u64, Bytes), String> {
        Memory::open_lane(self, &endpoint).await.map_err(|why| why.to_string())
    }

    async fn bind(
        &self,
        lane: u64,
        lend: Remote,
        operations: Vec<Operation>,
    ) -> Result<(Vec<Outcome>, Option<Window>), BatchError> {
        let call = called().map_err(|error| BatchError { at: 0, error })?;
        let (identity, now) = (call.identity(), call.now());
        let who = caller(identity.as_ref());
        let outcomes = self.execute_all(&operations, who, now)?;
        let binding = Memory::bind(self, lane, &lend, who, now);
        Ok((outcomes, binding.await))
    }

    fn usage(&self) -> MemoryUsage {
        self.snapshot().into()
    }
}
