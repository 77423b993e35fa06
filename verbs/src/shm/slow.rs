//! Work that cannot be executed immediately. It waits, in order, for the peer to post a receive, to empty
//! its inbox, or to connect. Pollers and the control thread retry it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::completion_queue::SendDone;
use super::outbox::Outbox;
use super::pair::{Pair, gate};
use super::window::{Bind, Window};
use crate::{CompletionOpcode, RemoteSlice, SharedSlice, Status};

/// The `rnr_retry` value that means: retry forever.
const RETRY_FOREVER: u8 = 7;

/// The result of trying a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Completed, with this many bytes.
    Done(u32),
    /// Must wait.
    Wait(Wait),
    /// Failed.
    Failed(Status),
}

/// What a work request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The peer has not connected.
    NotReady,
    /// The peer has not told where its region is.
    Region,
    /// The peer has posted no receive.
    Receive,
    /// The peer's inbox is full.
    Room,
    /// The peer has not processed a message that may be too long for its receive.
    Verdict,
    /// The peer is accessing memory through a window.
    Access,
}

/// The source bytes of a send.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In a private buffer that the queue pair holds until the work request is retired, or in the caller's
    /// slice during the post.
    At(*const u8, usize),
    /// Copied, because the caller's slice could not be sent at once.
    Copied(Box<[u8]>),
    /// In a shared region.
    Shared(SharedSlice),
}

impl Bytes {
    /// The bytes as a slice, unless a peer may write them.
    #[inline]
    pub(super) fn private(&self) -> Option<&[u8]> {
        match self {
            // SAFETY: the queue pair holds the buffer, or the caller of the post holds its slice. Neither is
            // written before the work request has been executed.
            Bytes::At(start, len) => Some(unsafe { std::slice::from_raw_parts(*start, *len) }),
            Bytes::Copied(bytes) => Some(bytes),
            Bytes::Shared(_) => None,
        }
    }

    #[inline]
    pub(super) fn start(&self) -> *const u8 {
        match self {
            Bytes::At(start, _) => *start,
            Bytes::Copied(bytes) => bytes.as_ptr(),
            Bytes::Shared(slice) => slice.start(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Bytes::At(_, len) => *len,
            Bytes::Copied(bytes) => bytes.len(),
            Bytes::Shared(slice) => slice.len(),
        }
    }
}

/// The destination of a READ or atomic.
#[derive(Debug)]
pub(super) enum Room {
    /// In a private buffer that the queue pair holds until the work request is retired.
    At(*mut u8),
    /// In a shared region.
    Shared(SharedSlice),
}

impl Room {
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        match self {
            Room::At(start) => *start,
            Room::Shared(slice) => slice.start(),
        }
    }
}

/// The operation of an atomic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    CompareAndSwap { expected: u64, new: u64 },
    Add(u64),
}

impl Change {
    pub(super) fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            Change::Add(add) => word.fetch_add(add, Ordering::SeqCst),
            Change::CompareAndSwap { expected, new } => {
                match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) enum Task {
    /// `sent`: the number of bytes already in the inbox, once sending has begun.
    Send {
        bytes: Bytes,
        imm: Option<u32>,
        sent: Option<usize>,
    },
    Datagram {
        bytes: Bytes,
        imm: Option<u32>,
        /// The route and the queue key there. `None`: the receiver does not exist.
        route: Option<usize>,
        qkey: u32,
    },
    Write {
        bytes: Bytes,
        remote: RemoteSlice,
        imm: Option<u32>,
    },
    Read {
        room: Room,
        remote: RemoteSlice,
    },
    Atomic {
        room: Room,
        remote: RemoteSlice,
        change: Change,
    },
    BindWindow(Bind),
    /// `inside`: how often the peer had begun or ended an access through a window when the window had been invalidated.
    InvalidateWindow {
        window: Arc<Window>,
        inside: Option<u32>,
    },
}

impl Task {
    pub(super) fn len(&self) -> u64 {
        match self {
            Task::Send { bytes, .. } | Task::Datagram { bytes, .. } | Task::Write { bytes, .. } => {
                bytes.len() as u64
            }
            Task::Read { remote, .. } | Task::Atomic { remote, .. } => remote.len,
            Task::BindWindow(_) | Task::InvalidateWindow { .. } => 0,
        }
    }

    fn opcode(&self) -> CompletionOpcode {
        match self {
            Task::Send { .. } | Task::Datagram { .. } => CompletionOpcode::Send,
            Task::Write { .. } => CompletionOpcode::Write,
            Task::Read { .. } => CompletionOpcode::Read,
            Task::Atomic { change: Change::Add(_), .. } => CompletionOpcode::FetchAdd,
            Task::Atomic { .. } => CompletionOpcode::CompareAndSwap,
            Task::BindWindow(_) => CompletionOpcode::BindWindow,
            Task::InvalidateWindow { .. } => CompletionOpcode::InvalidateWindow,
        }
    }
}

/// An accepted work request.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) task: Task,
    /// Its number among the send work requests of its queue pair.
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) signaled: bool,
    /// The id of the queue pair that it completes on.
    pub(super) pair: u64,
    pub(super) qp: u32,
}

// SAFETY: the addresses in `Bytes::At` and `Room::At` lead to a private buffer that stays with the queue
// pair until this item is retired or dropped. No other code uses it meanwhile.
unsafe impl Send for Item {}

impl Item {
    /// Its completion.
    pub(super) fn done(&self, status: Status, byte_len: u32) -> SendDone {
        SendDone {
            pair: self.pair,
            qp: self.qp,
            number: self.number,
            id: self.id,
            opcode: self.task.opcode(),
            status,
            byte_len,
        }
    }

    /// Copies the caller's slice, which is about to go out of scope.
    pub(super) fn keep_bytes(&mut self) {
        if let Task::Send { bytes, .. } | Task::Write { bytes, .. } | Task::Datagram { bytes, .. } =
            &mut self.task
            && let Bytes::At(start, len) = *bytes
        {
            // SAFETY: the caller's slice, still borrowed by the post that calls this.
            let slice = unsafe { std::slice::from_raw_parts(start, len) };
            *bytes = Bytes::Copied(slice.into());
        }
    }
}

/// Waiting work, oldest first.
#[derive(Debug, Default)]
pub(super) struct SlowQueue {
    items: VecDeque<Item>,
    /// What the oldest item waits for, and since when.
    waiting: Option<(Wait, u64)>,
}

impl SlowQueue {
    pub(super) fn push(&mut self, item: Item) {
        self.items.push_back(item);
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        self.waiting = None;
        self.items.pop_front()
    }

    /// The status of the oldest item when the queue pair fails. The caller holds the lock.
    pub(super) fn status_of_oldest(&self, pair: &Pair) -> Status {
        let Some(oldest) = self.items.front() else { return Status::Flushed };
        // SAFETY: the lock is held (`self` is what it guards) and the queue is not empty.
        let outbox = unsafe { pair.side() }.outbox.as_ref();
        let begun = matches!(oldest.task, Task::Send { sent: Some(_), .. });
        match pair.peer_gone.load(Ordering::SeqCst) {
            _ if begun && outbox.is_some_and(Outbox::is_refused) => Status::RemoteInvalidRequest,
            true => Status::RetryExceeded,
            false => Status::Flushed,
        }
    }

    /// Retries the waiting work. The caller holds the lock. Returns whether some is still waiting.
    pub(super) fn run(&mut self, pair: &Pair) -> bool {
        while let Some(item) = self.items.front_mut() {
            // SAFETY: the lock is held (`self` is what it guards) and the queue is not empty.
            let side = unsafe { pair.side() };
            match side.execute(pair, item) {
                Outcome::Done(len) => {
                    let done = item.done(Status::Success, len);
                    if item.signaled {
                        pair.complete(done);
                    }
                    self.pop();
                    side.ring_for_writes();
                }
                Outcome::Wait(wait) => {
                    let now = pair.context.now_ns();
                    let since = match self.waiting {
                        Some((same, since)) if same == wait => since,
                        _ => now,
                    };
                    self.waiting = Some((wait, since));
                    let waited = now.saturating_sub(since);
                    let (limit, status) = match wait {
                        // A live peer is inside for the time of a copy.
                        Wait::NotReady | Wait::Access => {
                            (side.retry_timeout_ns, Status::RetryExceeded)
                        }
                        Wait::Receive if side.rnr_retry == RETRY_FOREVER => return true,
                        Wait::Receive => {
                            let limit = side.rnr_timer_ns.saturating_mul(side.rnr_retry.into());
                            (limit, Status::RnrRetryExceeded)
                        }
                        // No time limit while the peer lives: its death is told.
                        Wait::Region | Wait::Room | Wait::Verdict => return true,
                    };
                    if waited < limit {
                        return true;
                    }
                    self.fail(pair, status);
                }
                Outcome::Failed(status) => self.fail(pair, status),
            }
        }
        pair.gate.fetch_and(!gate::SLOW, Ordering::SeqCst);
        false
    }

    /// Completes the oldest item with `status` and flushes the rest and everything posted later.
    fn fail(&mut self, pair: &Pair, status: Status) {
        if let Some(item) = self.pop() {
            pair.complete(item.done(status, 0));
        }
        pair.enter_error();
        pair.flush(self);
    }
}
