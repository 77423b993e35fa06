//! How a sender wakes the owner of an inbox that asked for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use super::calls::PeersCalls;
use super::completion_queue::CqShared;
use crate::event_fd::ring;

/// Wakes the owner of one inbox.
#[derive(Clone, Debug)]
pub(super) enum Bell {
    /// The owner polls and never sleeps.
    None,
    /// The owner is in another process.
    Remote {
        at: Arc<RemoteBell>,
        /// Where the queue pair is called for, if it need not be looked at otherwise.
        index: Option<u32>,
    },
    /// The owner's completion queue is in this process, and is told which of its queue pairs has a message.
    Own {
        cq: Arc<CqShared>,
        /// The queue pair's id at its completion queues.
        pair: u64,
    },
}

/// What all queue pairs of this device ring at one channel of another process.
#[derive(Debug)]
pub(super) struct RemoteBell {
    pub(super) event: OwnedFd,
    /// Comes with the first queue pair that is called for.
    pub(super) calls: OnceLock<PeersCalls>,
}

impl Bell {
    #[cold]
    pub(super) fn ring(&self) {
        match self {
            Bell::None => {}
            Bell::Remote { at, index } => {
                if let (Some(index), Some(calls)) = (index, at.calls.get()) {
                    calls.call(*index);
                }
                ring(at.event.as_fd());
            }
            Bell::Own { cq, pair } => cq.call_on(*pair),
        }
    }
}
