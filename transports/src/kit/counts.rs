//! What became of large messages, counted for the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

static OFFERED: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);
static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);

/// What became of large messages of this process, over all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LargeMessageCounts {
    /// Messages that a peer has read, or is reading, in buffers of this program.
    pub sent_in_place: u64,
    /// Messages that were copied when they had arrived, because the program keeps so many that others would have no memory.
    pub copied_for_keepers: u64,
    /// The bytes of those.
    pub copied_bytes: u64,
}

impl LargeMessageCounts {
    /// Until now.
    pub fn now() -> LargeMessageCounts {
        let [sent_in_place, copied_for_keepers, copied_bytes] =
            [&OFFERED, &COPIED, &COPIED_BYTES].map(|count| count.load(Ordering::Relaxed));
        LargeMessageCounts { sent_in_place, copied_for_keepers, copied_bytes }
    }
}

pub(crate) fn count_offered() {
    OFFERED.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count_copied(bytes: u64) {
    COPIED.fetch_add(1, Ordering::Relaxed);
    COPIED_BYTES.fetch_add(bytes, Ordering::Relaxed);
}
