//! How a log works.

use std::time::Duration;

use crate::error::Error;
use crate::segment::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};

/// How a log works. `Options::default()` suits most.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The length of each segment's file, for a log that is made; one that exists keeps its own. A multiple of 8.
    pub segment_bytes: u64,
    /// How many bytes of records may wait to be written. The log has two such buffers.
    pub queue_bytes: usize,
    /// How long a leader waits at most for the writers of the batch before to come back. It also waits at most a quarter of what the last
    /// sync took, and not at all after a batch of one record.
    pub gather: Duration,
    /// How many files of truncated segments are kept for later segments.
    pub spare_segments: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            queue_bytes: 4 << 20,
            gather: Duration::from_millis(1),
            spare_segments: 2,
        }
    }
}

impl Options {
    /// These options with segments of another length, in bytes.
    #[must_use]
    pub fn segment_bytes(self, segment_bytes: u64) -> Self {
        Self { segment_bytes, ..self }
    }

    /// These options with a queue of another length, in bytes.
    #[must_use]
    pub fn queue_bytes(self, queue_bytes: usize) -> Self {
        Self { queue_bytes, ..self }
    }

    /// These options with another bound on how long a leader waits for the writers of the batch before.
    #[must_use]
    pub fn gather(self, gather: Duration) -> Self {
        Self { gather, ..self }
    }

    /// These options with another number of spare files.
    #[must_use]
    pub fn spare_segments(self, spare_segments: usize) -> Self {
        Self { spare_segments, ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(8)
        {
            return Err(Error::Option(format!(
                "segments of {} bytes are not possible: {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}, in multiples of 8",
                self.segment_bytes
            )));
        }
        if !(MIN_QUEUE_BYTES..=MAX_QUEUE_BYTES).contains(&self.queue_bytes) {
            return Err(Error::Option(format!(
                "a queue of {} bytes is not possible: {MIN_QUEUE_BYTES} to {MAX_QUEUE_BYTES}",
                self.queue_bytes
            )));
        }
        Ok(())
    }
}

/// A queue must take a few records.
const MIN_QUEUE_BYTES: usize = 1 << 10;

/// Two queues are in memory.
const MAX_QUEUE_BYTES: usize = 1 << 30;
