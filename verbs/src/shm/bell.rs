//! How a sender wakes the owner of an inbox that asked for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::completion_queue::CqShared;
use crate::event_fd::ring;

/// Wakes the owner of one inbox.
#[derive(Debug)]
pub(super) enum Bell {
    /// The owner polls and never sleeps.
    None,
    /// The event of the owner, in another process.
    Event(Arc<OwnedFd>),
    /// The owner's completion queue is in this process, and is told which of its queue pairs has a message.
    Own {
        cq: Arc<CqShared>,
        /// The queue pair's id at its completion queues.
        pair: u64,
    },
}

impl Bell {
    pub(super) fn of_event(event: Option<Arc<OwnedFd>>) -> Bell {
        event.map_or(Bell::None, Bell::Event)
    }

    #[cold]
    pub(super) fn ring(&self) {
        match self {
            Bell::None => {}
            Bell::Event(event) => ring((**event).as_fd()),
            Bell::Own { cq, pair } => cq.call_on(*pair),
        }
    }
}
