//! What a completion belongs to: the upper half of its `wr_id` names an attachment of its completion
//! queue, the lower half a place there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::queue_pair::QpShared;
use super::receive::ReceiveSlots;

/// Names an attachment. Not used twice before 2^32 others: what a queue pair that is gone has left in a
/// completion queue is never taken for another's, as it could be by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u32);

impl Key {
    pub(super) fn fresh() -> Key {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Key(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The `wr_id` of the work request at `place`.
    #[inline]
    pub(super) fn wr_id(self, place: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(place)
    }

    /// What a `wr_id` says.
    #[inline]
    pub(super) fn of(wr_id: u64) -> (Key, u32) {
        (Key((wr_id >> 32) as u32), wr_id as u32)
    }
}

/// Whose completions come to a queue.
#[derive(Clone, Debug)]
pub(super) enum Attached {
    /// Send work requests of a queue pair; places are their numbers, cut to 32 bits.
    Sends(Arc<QpShared>),
    /// Receives, of a queue pair or of a shared queue; places are their slots.
    Receives(Arc<ReceiveSlots>),
}

/// What the poller of a completion queue has to know.
#[derive(Debug)]
pub(super) enum Change {
    /// Completions with this key come from now on.
    Attach(Key, Attached),
    /// No more, and what is still there is of no interest.
    Detach(Key),
    /// A queue pair receives from a shared queue.
    Join(Arc<QpShared>),
    /// It does no more.
    Leave(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wr_id_names_its_place() {
        let key = Key::fresh();
        assert_ne!(key, Key::fresh());
        for place in [0, 1, u32::MAX] {
            assert_eq!(Key::of(key.wr_id(place)), (key, place));
        }
    }
}
