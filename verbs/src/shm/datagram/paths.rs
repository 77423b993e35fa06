//! The inboxes of a datagram queue pair, one per sender, created on first use.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::event_fd::new_event;
use crate::shm::completion_queue::Change;
use crate::shm::events::Channel;
use crate::shm::inbox::{Inbox, InboxLayout, InboxState};
use crate::shm::pair::Pair;
use crate::shm::peer::lock;
use crate::shm::wire::Gid;
use crate::{DatagramSource, QpNumber, QpState};

/// Cells of a datagram inbox: room for two dozen of the longest datagrams, or a thousand short ones.
const CELLS: u32 = 2048;

/// The most senders that one queue pair accepts at once.
const MAX_SENDERS: usize = 1 << 14;

/// The inbox of one sender at one receiver.
#[derive(Debug)]
pub(in crate::shm) struct Path {
    inbox: Inbox,
    event: Option<OwnedFd>,
    channel: Option<Arc<Channel>>,
    source: DatagramSource,
    closed: AtomicBool,
}

impl Path {
    pub(in crate::shm) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(in crate::shm) fn event(&self) -> Option<&OwnedFd> {
        self.event.as_ref()
    }

    pub(in crate::shm) fn source(&self) -> &DatagramSource {
        &self.source
    }

    pub(in crate::shm) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The sender is gone.
    pub(in crate::shm) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        if let (Some(channel), Some(event)) = (&self.channel, &self.event) {
            channel.remove(event.as_fd());
        }
    }
}

/// The inboxes of a datagram queue pair, as the control thread and the owner use them.
#[derive(Debug, Default)]
pub(in crate::shm) struct Paths {
    open: Mutex<Vec<Weak<Path>>>,
}

impl Paths {
    /// Creates an inbox for a sender. Returns its file too.
    pub(in crate::shm) fn open(
        &self,
        pair: &Arc<Pair>,
        gid: Gid,
        qp: u32,
    ) -> Option<(Arc<Path>, OwnedFd)> {
        let mut open = lock(&self.open);
        open.retain(|path| path.strong_count() > 0);
        if open.len() >= MAX_SENDERS {
            return None;
        }
        let (inbox, file) = Inbox::create(InboxLayout { cells: CELLS, lengths: 16 }).ok()?;
        let channel = pair.recv_cq.channel().cloned();
        let event = match &channel {
            Some(channel) => {
                let event = new_event().ok()?;
                channel.add(event.as_fd()).ok()?;
                Some(event)
            }
            None => None,
        };
        let source = DatagramSource { qp: QpNumber(qp), gid: Some(gid) };
        let ready = pair.state() == QpState::ReadyToSend;
        inbox.set_state(if ready { InboxState::Ready } else { InboxState::Init });
        let path = Arc::new(Path { inbox, event, channel, source, closed: AtomicBool::new(false) });
        open.push(Arc::downgrade(&path));
        drop(open);
        pair.recv_cq.change(Change::Path(pair.id, Arc::clone(&path)));
        Some((path, file))
    }

    /// Publishes the new state of the queue pair to all senders.
    pub(in crate::shm) fn set_state(&self, state: InboxState) {
        for path in lock(&self.open).iter().filter_map(Weak::upgrade) {
            path.inbox.set_state(state);
        }
    }
}
