//! What the owner's CPU has written to persistent memory for a client, and is to make durable before it answers.

use std::ops::Range;

use super::MemoryError;
use super::backing::Backing;

/// Ranges of persistent regions that a call has written. At most as many as a batch has operations.
#[derive(Debug, Default)]
pub(super) struct Unflushed(Vec<(u32, Backing, Range<usize>)>);

impl Unflushed {
    /// The CPU has stored there. `region` is the number of the region with these bytes.
    pub(super) fn add(&mut self, region: u32, bytes: &Backing, range: Range<usize>) {
        self.0.push((region, bytes.clone(), range));
    }

    /// A range has become durable.
    pub(super) fn forget(&mut self, region: u32, durable: Range<usize>) {
        let covers =
            |range: &Range<usize>| durable.start <= range.start && range.end <= durable.end;
        self.0.retain(|(of, _, range)| *of != region || !covers(range));
    }

    /// Makes all of them durable.
    pub(super) fn persist(self) -> Result<(), MemoryError> {
        self.0.into_iter().try_for_each(|(_, bytes, range)| bytes.persist(range))
    }
}
