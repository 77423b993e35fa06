//! The inboxes of a datagram queue pair, one per sender, created on first use.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::shm::completion_queue::Change;
use crate::shm::events::Caller;
use crate::shm::inbox::{Inbox, InboxLayout, InboxState};
use crate::shm::pair::Pair;
use crate::shm::peer::lock;
use crate::shm::queue_pair::new_id;
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
    /// Identifies it at its completion queue, among queue pairs and others.
    id: u64,
    /// Where the sender rings, if the owner of the receives sleeps at all.
    caller: Option<Caller>,
    source: DatagramSource,
    closed: AtomicBool,
}

impl Path {
    pub(in crate::shm) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(in crate::shm) fn id(&self) -> u64 {
        self.id
    }

    pub(in crate::shm) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
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
        let id = new_id();
        let caller = Caller::of(gid, &pair.recv_cq, id).ok()?;
        let source = DatagramSource { qp: QpNumber(qp), gid: Some(gid) };
        let ready = pair.state() == QpState::ReadyToSend;
        inbox.set_state(if ready { InboxState::Ready } else { InboxState::Init });
        let path = Arc::new(Path { inbox, id, caller, source, closed: AtomicBool::new(false) });
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
