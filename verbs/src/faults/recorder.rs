//! A layer that changes nothing, and counts what passes it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::injector::{FaultInjector, Incoming, Outgoing, Reception, Verdict};
use crate::Operation;

/// Counts work requests by their operation, and datagrams that arrive. Around a device with faults it counts
/// what is posted; with faults around it, what they leave.
#[derive(Debug, Default)]
pub struct Recorder {
    posted: [Count; Operation::ALL.len()],
    received: Count,
}

#[derive(Debug, Default)]
struct Count {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Recorder {
    /// Work requests with this operation so far.
    pub fn posted(&self, operation: Operation) -> u64 {
        self.posted[operation as usize].messages.load(Ordering::Relaxed)
    }

    /// Bytes that they moved.
    pub fn posted_bytes(&self, operation: Operation) -> u64 {
        self.posted[operation as usize].bytes.load(Ordering::Relaxed)
    }

    /// Datagrams that arrived so far.
    pub fn received(&self) -> u64 {
        self.received.messages.load(Ordering::Relaxed)
    }

    /// Bytes that they had.
    pub fn received_bytes(&self) -> u64 {
        self.received.bytes.load(Ordering::Relaxed)
    }
}

impl FaultInjector for Recorder {
    fn outgoing(&self, request: &Outgoing<'_>) -> Verdict {
        self.posted[request.operation as usize].add(request.len);
        Verdict::Pass
    }

    fn incoming(&self, datagram: &Incoming<'_>) -> Reception {
        self.received.add(datagram.len);
        Reception::Deliver
    }
}
