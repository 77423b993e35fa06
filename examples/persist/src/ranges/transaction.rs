//! A transaction on ranges.

use super::{Active, Memory, Ranges, RangesError, entry};
use crate::level::{Ack, Level};
use crate::log::Waiter;

/// Writes that take effect together or not at all. Others see them after the commit. Dropping it aborts it.
pub struct Transaction<'a> {
    ranges: &'a Ranges,
    number: u64,
    is_over: bool,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(ranges: &'a Ranges, number: u64) -> Self {
        Self { ranges, number, is_over: false }
    }

    /// Its number, as in the log.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// [`RangesError::OutOfRange`], [`RangesError::Conflict`] if another transaction that has not ended has written there, and
    /// [`RangesError::Log`]. The transaction has not written then, and goes on.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), RangesError> {
        let mut memory = self.ranges.memory();
        let range = memory.range(at, bytes.len())?;
        if let Some(other) = memory.conflict(self.number, &range) {
            return Err(RangesError::Conflict(other));
        }
        let before = memory.bytes[range.clone()].to_vec();
        // The log first. Both under the lock: what is in memory is in the log, and in the same order.
        let entry = entry(range.start, &before, bytes);
        let lsn = self.ranges.log.append_in(self.number, &entry, Level::Received)?.lsn();
        let Memory { bytes: contents, active } = &mut *memory;
        let new = || Active { first: lsn, before: Vec::new() };
        active.entry(self.number).or_insert_with(new).before.push((range.start, before));
        contents[range].copy_from_slice(bytes);
        Ok(())
    }

    /// Reads bytes, with what this transaction has written.
    ///
    /// # Errors
    ///
    /// [`RangesError::OutOfRange`].
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, RangesError> {
        let mut bytes = self.ranges.read(at, length)?;
        let memory = self.ranges.memory();
        let range = memory.range(at, length)?;
        for (from, before) in memory.active.get(&self.number).iter().flat_map(|own| &own.before) {
            let written = &memory.bytes[*from..from + before.len()];
            super::overlay(&mut bytes, range.start, written, *from);
        }
        Ok(bytes)
    }

    /// Commits, and waits for a level.
    ///
    /// # Errors
    ///
    /// [`RangesError::Log`]: it is not known then whether the transaction is committed, until the store is opened again.
    pub fn commit(self, level: Level) -> Result<Ack, RangesError> {
        Ok(self.start_commit(level)?.wait()?)
    }

    /// Commits, and leaves the waiting to the caller. Others see the writes at once.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub fn start_commit(mut self, level: Level) -> Result<Waiter, RangesError> {
        let mut memory = self.ranges.memory();
        let waiter = self.ranges.log.commit(self.number, level)?;
        memory.active.remove(&self.number);
        self.is_over = true;
        Ok(waiter)
    }

    /// Takes back all writes.
    ///
    /// # Errors
    ///
    /// [`RangesError::Log`]: the writes are taken back all the same.
    pub fn abort(mut self) -> Result<(), RangesError> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), RangesError> {
        self.is_over = true;
        let mut memory = self.ranges.memory();
        let Memory { bytes, active } = &mut *memory;
        let Some(own) = active.remove(&self.number) else { return Ok(()) };
        for (at, before) in own.before.iter().rev() {
            bytes[*at..at + before.len()].copy_from_slice(before);
        }
        // Later writes to the same bytes come after this in the log.
        drop(self.ranges.log.abort(self.number, Level::Received)?);
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // A log that takes no records is not written to by others either; recovery undoes the transaction.
            let _ = self.take_back();
        }
    }
}
