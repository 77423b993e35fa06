//! Operations of a polling client that travel together.

use farcall_transports::remote_memory::{
    Action, BatchError, BatchId, Counted, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MemoryError,
    Operation, Remote,
};

use super::{PendingBatch, PollMemory, check_write};

/// Operations that travel together: see [`PollMemory::batch`].
#[derive(Debug)]
#[must_use = "a batch does nothing until it is started"]
pub struct PollBatch<'a> {
    memory: &'a mut PollMemory,
    /// `None` when it was started.
    id: Option<BatchId>,
    count: usize,
    bytes: u64,
    refused: Option<BatchError>,
}

impl<'a> PollBatch<'a> {
    pub(super) fn new(memory: &'a mut PollMemory) -> PollBatch<'a> {
        let id = Some(memory.begin());
        PollBatch { memory, id, count: 0, bytes: 0, refused: None }
    }

    /// Reads all of it.
    #[inline]
    pub fn read(self, at: &Remote) -> Self {
        self.with(Operation { at: *at, action: Action::Read })
    }

    /// Writes these bytes, as many as the memory has. They are copied.
    #[inline]
    pub fn write(mut self, at: &Remote, bytes: &[u8]) -> Self {
        if self.accepts(at, check_write(at, bytes))
            && let Some(id) = self.id
        {
            self.memory.local.batches.push_write(id, at, bytes);
        }
        self
    }

    /// Replaces the [word](Remote::word) by `new` if it equals `expected`.
    pub fn compare_and_swap(self, at: &Remote, expected: u64, new: u64) -> Self {
        self.with(Operation { at: *at, action: Action::CompareAndSwap { expected, new } })
    }

    /// Adds to the [word](Remote::word), wrapping.
    pub fn fetch_add(self, at: &Remote, add: u64) -> Self {
        self.with(Operation { at: *at, action: Action::FetchAdd { add } })
    }

    /// What follows begins when what is before has ended: see [`Batch::fence`](crate::memory::Batch::fence).
    pub fn fence(self) -> Self {
        if let Some(id) = self.id {
            self.memory.local.batches.fence(id);
        }
        self
    }

    #[inline]
    fn with(mut self, operation: Operation) -> Self {
        if self.accepts(&operation.at, operation.check())
            && let Some(id) = self.id
        {
            self.memory.local.batches.push(id, operation);
        }
        self
    }

    /// Counts an operation. `false`: it, or one before it, cannot be done.
    #[inline]
    fn accepts(&mut self, at: &Remote, checked: Result<(), MemoryError>) -> bool {
        let index = self.count as u32;
        self.count += 1;
        self.bytes = self.bytes.saturating_add(at.len());
        if self.refused.is_none() {
            self.refused = checked.err().map(|error| BatchError { at: index, error });
        }
        self.refused.is_none() && self.count <= MAX_BATCH_OPERATIONS
    }

    /// Sends them, and leaves them under way: [`PollMemory::take`] gives what they have come to.
    ///
    /// # Errors
    /// [`BatchError`]: nothing was sent, because one of them cannot be done, or there is no room.
    #[inline]
    pub fn start(mut self) -> Result<PendingBatch, BatchError> {
        let too_many = |what, len, max| {
            let error = MemoryError::TooLong { what, len, max };
            Err(BatchError { at: 0, error })
        };
        let (count, most) = (self.count as u64, MAX_BATCH_OPERATIONS as u64);
        if count > most {
            return too_many(Counted::Operations, count, most);
        }
        if self.bytes > MAX_BATCH_BYTES {
            return too_many(Counted::Bytes, self.bytes, MAX_BATCH_BYTES);
        }
        match (self.refused.take(), self.id.take()) {
            (None, Some(id)) => self.memory.submit(id),
            (Some(error), id) => {
                self.id = id;
                Err(error)
            }
            (None, None) => unreachable!("it is started once"),
        }
    }
}

impl Drop for PollBatch<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.memory.local.batches.release(id);
        }
    }
}
