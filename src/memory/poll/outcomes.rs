//! What a batch has come to, where the device has put it.

use farcall_transports::remote_memory::{BatchId, Batches, Outcome};

/// What the operations of a batch have come to, in their order. All have been done.
#[derive(Debug)]
pub struct Outcomes<'a> {
    batches: &'a Batches,
    id: BatchId,
    /// Of those behind what was done on a lane.
    called: &'a [Outcome],
}

impl<'a> Outcomes<'a> {
    #[inline]
    pub(super) fn new(batches: &'a Batches, id: BatchId, called: &'a [Outcome]) -> Outcomes<'a> {
        Outcomes { batches, id, called }
    }

    /// How many operations there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.batches.len_of(self.id)
    }

    /// Whether it is a batch without operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the operation with this index has read; none of another operation.
    #[inline]
    pub fn bytes(&self, at: usize) -> &'a [u8] {
        match self.called(at) {
            None => self.batches.bytes_of(self.id, at),
            Some(outcome) => outcome.bytes(),
        }
    }

    /// The word before the atomic operation with this index; `None` of another operation.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        match self.called(at) {
            None => self.batches.word_of(self.id, at),
            Some(outcome) => outcome.word(),
        }
    }

    /// All of them, as values.
    pub fn to_vec(&self) -> Vec<Outcome> {
        let outcome = |at| match self.called(at) {
            None => self.batches.outcome_of(self.id, at),
            Some(outcome) => outcome.clone(),
        };
        (0..self.len()).map(outcome).collect()
    }

    fn called(&self, at: usize) -> Option<&'a Outcome> {
        if self.called.is_empty() {
            return None;
        }
        self.called.get(at.checked_sub(self.batches.done_of(self.id))?)
    }
}
