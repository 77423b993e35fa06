//! Ranges as a service: a commit is one call with all its writes, so that no transaction stays open when its client dies.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use bytes::Bytes;
use farcall::Shape;
use serde::{Deserialize, Serialize};

use super::{Ranges, RangesError};
use crate::error::Error;
use crate::level::{Ack, Level};

/// Bytes that survive, and that are written together or not at all.
///
/// A caller that gets no answer to a commit does not know whether it has taken effect.
#[farcall::service]
pub trait RangeStore {
    /// Writes ranges, all of them or none, and answers when that is at `level`. The answer says which level was reached: at least the one asked
    /// for, and never more than what was proved.
    async fn commit(&self, writes: Vec<RangeWrite>, level: Level) -> Result<Ack, StoreError>;

    /// What was committed last: at most [`MAX_READ_BYTES`].
    #[rpc(idempotent)]
    fn read(&self, at: u64, length: u64) -> Result<Bytes, StoreError>;

    /// Makes a checkpoint: recovery will begin there, and the log before it is freed. Writers go on.
    #[rpc(idempotent)]
    async fn checkpoint(&self) -> Result<(), StoreError>;
}

/// The most bytes of one read.
pub const MAX_READ_BYTES: u64 = 1 << 20;

/// The most writes of one commit: it bounds how long it keeps the server's thread.
pub const MAX_WRITES: usize = 1024;

/// A write of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct RangeWrite {
    /// Where, in bytes from the begin of the store.
    pub at: u64,
    /// What.
    pub bytes: Bytes,
}

/// Why the store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize, Shape)]
#[non_exhaustive]
pub enum StoreError {
    /// The range is not in the store.
    #[error("bytes {from} to {to} are not in the store, which has {length}")]
    OutOfRange {
        /// Where the range begins.
        from: u64,
        /// Where it ends.
        to: u64,
        /// The length of the store, in bytes.
        length: u64,
    },
    /// More than one call may ask for.
    #[error("{asked} {what} are too many for one call: at most {limit}; do it in parts")]
    TooMany {
        /// Of what.
        what: String,
        /// How many.
        asked: u64,
        /// How many are possible.
        limit: u64,
    },
    /// Another commit writes there at this moment, and may be taken back.
    #[error("another commit writes there at this moment; try again")]
    Conflict,
    /// Another checkpoint is under way.
    #[error("another checkpoint is under way; this one is not needed")]
    Busy,
    /// The storage of the server failed. A commit may have taken effect. The server takes no commits before it is started again.
    #[error("the server's storage failed: {why}")]
    Storage {
        /// What the server says.
        why: String,
    },
}

impl From<RangesError> for StoreError {
    fn from(error: RangesError) -> Self {
        match error {
            RangesError::OutOfRange { from, to, length } => Self::OutOfRange { from, to, length },
            RangesError::Log(Error::TooLarge { length, limit }) => {
                too_many("bytes of a record", length as u64, limit as u64)
            }
            RangesError::Conflict(_) => Self::Conflict,
            other => Self::Storage { why: other.to_string() },
        }
    }
}

fn too_many(what: &str, asked: u64, limit: u64) -> StoreError {
    StoreError::TooMany { what: what.to_owned(), asked, limit }
}

/// Serves [`Ranges`].
#[derive(Clone)]
pub struct RangesService {
    ranges: Arc<Ranges>,
    checkpoint: Arc<Mutex<Checkpoint>>,
}

impl RangesService {
    /// Serves these, which the caller may also use directly.
    #[must_use]
    pub fn new(ranges: Arc<Ranges>) -> Self {
        Self { ranges, checkpoint: Arc::default() }
    }
}

impl RangeStore for RangesService {
    async fn commit(&self, writes: Vec<RangeWrite>, level: Level) -> Result<Ack, StoreError> {
        if writes.len() > MAX_WRITES {
            return Err(too_many("writes", writes.len() as u64, MAX_WRITES as u64));
        }
        let waiter = {
            // Dropped after an error, which takes back what was written. Commits of other calls begin and end in one turn, too.
            let mut transaction = self.ranges.begin();
            for write in &writes {
                transaction.write(write.at, &write.bytes)?;
            }
            transaction.start_commit(level)?
        };
        Ok(waiter.await.map_err(RangesError::from)?)
    }

    fn read(&self, at: u64, length: u64) -> Result<Bytes, StoreError> {
        if length > MAX_READ_BYTES {
            return Err(too_many("bytes", length, MAX_READ_BYTES));
        }
        Ok(self.ranges.read(at, length as usize)?.into())
    }

    async fn checkpoint(&self) -> Result<(), StoreError> {
        // It copies and syncs all of the store: no thread of the server waits for that.
        {
            let mut state = self.lock();
            if state.is_running {
                return Err(StoreError::Busy);
            }
            *state = Checkpoint { is_running: true, ..Checkpoint::default() };
        }
        let this = self.clone();
        let take = move || {
            let result = this.ranges.checkpoint().map_err(StoreError::from);
            this.end_checkpoint(result);
        };
        if let Err(error) = thread::Builder::new().name("checkpoint".into()).spawn(take) {
            self.end_checkpoint(Err(StoreError::Storage { why: error.to_string() }));
        }
        Checkpointing(self).await
    }
}

/// A checkpoint that a call has asked for.
#[derive(Default)]
struct Checkpoint {
    is_running: bool,
    result: Option<Result<(), StoreError>>,
    waker: Option<Waker>,
}

impl RangesService {
    fn lock(&self) -> std::sync::MutexGuard<'_, Checkpoint> {
        self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_checkpoint(&self, result: Result<(), StoreError>) {
        let mut state = self.lock();
        (state.is_running, state.result) = (false, Some(result));
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Waits for the checkpoint that is under way.
struct Checkpointing<'a>(&'a RangesService);

impl Future for Checkpointing<'_> {
    type Output = Result<(), StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
