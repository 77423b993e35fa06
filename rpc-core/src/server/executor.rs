//! The executor of one server thread: runs `async` handlers, allocates nothing in the steady state.
//!
//! All futures of one handler have the same type. They live in a pool of boxes of that type, and a box is reused after
//! its future has ended. Tasks and their wakers are reused as well. A waker may outlive its future: it then wakes the
//! task that has its slot now, which finds nothing to do.

use super::CancelPolicy;
use super::call_index::{CallIndex, Cancel, ClientSlot};
use super::clients::ClientKey;
use super::context::CallContext;
use super::dispatcher::SLICE_NS;
use super::panics;
use super::paths::ReplyPaths;
use super::pool::{Pool, TypedPool};
use super::reply::{Reply, UnansweredCall};
use super::turn::Turn;
use crate::identity::Identity;
use crate::panics::{catch, contain};
use crate::site::Site;
use crate::time::Instant;
use crate::transport::{CallToken, Replies};
use crate::wire::Status;
use core::any::TypeId;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use crossbeam_queue::ArrayQueue;
use foldhash::{HashMap, HashMapExt};
use std::sync::Arc;
use std::task::Wake;

/// A call that a handler works on.
pub(super) struct Task {
    pub(super) call: CallToken,
    /// The number of the transport that brought it.
    pub(super) transport: u32,
    /// The method's row in the counters.
    pub(super) row: u32,
    /// When the request was noticed.
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    /// Who the caller is; unknown until the task is spawned.
    identity: Option<Identity>,
    /// The caller has given up.
    is_cancelled: bool,
}

impl Task {
    #[inline]
    pub(super) fn new(
        call: CallToken,
        transport: u32,
        row: u32,
        arrived: Instant,
        deadline: Instant,
    ) -> Self {
        let identity = None;
        Task { call, transport, row, arrived, deadline, identity, is_cancelled: false }
    }
}

/// The tasks that were woken, and the site of their thread.
struct WokenTasks {
    queue: ArrayQueue<u32>,
    site: Site,
}

struct TaskWaker {
    id: u32,
    /// In the queue already: each task is there at most once, so the queue never overflows.
    is_queued: AtomicBool,
    woken: Arc<WokenTasks>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            let pushed = self.woken.queue.push(self.id);
            debug_assert!(pushed.is_ok(), "the queue has room for every task");
            self.woken.site.rouse();
        }
    }
}

struct TaskSlot {
    task: Option<Task>,
    /// Where the task's call came from, also after the task was taken.
    from: ClientSlot,
    pool: u32,
    entry: u32,
    wake: Arc<TaskWaker>,
    waker: Waker,
}

/// The `async` handlers of one thread.
pub(super) struct Executor {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
    /// The tasks that did not end at their first poll.
    index: CallIndex,
    /// Tasks that are to end because their callers have given up; each once.
    cancelled: Vec<u32>,
    pools: Vec<Box<dyn Pool>>,
    pool_of: HashMap<TypeId, u32>,
    woken: Arc<WokenTasks>,
    capacity: usize,
    /// No task's deadline is before this.
    earliest: Instant,
    /// Woken tasks ran for longer than a slice: read the clock after each.
    is_slow: bool,
    policy: CancelPolicy,
}

impl Executor {
    pub(super) fn new(capacity: usize, policy: CancelPolicy, site: Site) -> Self {
        Executor {
            slots: Vec::new(),
            free: Vec::new(),
            index: CallIndex::default(),
            cancelled: Vec::new(),
            pools: Vec::new(),
            pool_of: HashMap::new(),
            woken: Arc::new(WokenTasks { queue: ArrayQueue::new(capacity.max(1)), site }),
            capacity,
            earliest: Instant::FAR_FUTURE,
            is_slow: false,
            policy,
        }
    }

    /// Tasks that have not ended.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.capacity
    }

    /// A task was woken. If no task is left, the queue holds only wake-ups of calls that are over.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.len() > 0 && !self.woken.queue.is_empty()
    }

    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.earliest
    }

    /// Adds the future of the current call's handler, and polls it once. The caller has checked [`has_room`](Self::has_room).
    pub(super) fn spawn<F, D>(
        &mut self,
        mut task: Task,
        future: F,
        finish: D,
        turn: &mut Turn,
        replies: &mut dyn Replies,
    ) where
        F: Future + 'static,
        D: FnOnce(F::Output, Reply<'_>) + 'static,
    {
        task.identity = CallContext::caller();
        let pool = self.pool::<F, D>();
        let typed = self.pools[pool as usize].as_any().downcast_mut::<TypedPool<F, D>>();
        let typed = typed.expect("pools are found by the type that they are made for");
        let entry = typed.insert(future, finish);
        let from = ClientSlot::of(task.transport, &task.call);
        let id = self.allocate_slot(from);
        let slot = &mut self.slots[id as usize];
        (slot.task, slot.from, slot.pool, slot.entry) = (Some(task), from, pool, entry);
        self.run_one(id, turn, replies);
        if let Some(task) = &mut self.slots[id as usize].task {
            task.deadline = turn.postponed(task.deadline);
            if self.policy == CancelPolicy::Abort {
                self.earliest = self.earliest.min(task.deadline);
            }
            self.index.insert(from, id);
        }
    }

    fn pool<F, D>(&mut self) -> u32
    where
        F: Future + 'static,
        D: FnOnce(F::Output, Reply<'_>) + 'static,
    {
        *self.pool_of.entry(TypeId::of::<TypedPool<F, D>>()).or_insert_with(|| {
            self.pools.push(Box::new(TypedPool::<F, D>::new()));
            self.pools.len() as u32 - 1
        })
    }

    fn allocate_slot(&mut self, from: ClientSlot) -> u32 {
        if let Some(id) = self.free.pop() {
            return id;
        }
        let id = self.slots.len() as u32;
        let woken = self.woken.clone();
        let wake = Arc::new(TaskWaker { id, is_queued: AtomicBool::new(false), woken });
        let waker = Waker::from(wake.clone());
        self.slots.push(TaskSlot { task: None, from, pool: 0, entry: 0, wake, waker });
        self.free.reserve(self.slots.len());
        id
    }

    /// Polls the tasks that were woken before this turn, for a slice of time at most. Returns how many.
    pub(super) fn run(&mut self, turn: &mut Turn, paths: &mut ReplyPaths<'_>) -> u32 {
        // Tasks that are woken meanwhile run in the next turn: the transports are polled in between.
        let woken = self.woken.queue.len() as u32;
        let began = turn.now;
        for ran in 1..=woken {
            let Some(id) = self.woken.queue.pop() else { break };
            let slot = &self.slots[id as usize];
            // Before the poll: a wake-up during it must queue the task again.
            slot.wake.is_queued.swap(false, Ordering::AcqRel);
            if let Some(task) = &slot.task {
                let client = ClientKey::of(task.transport, &task.call);
                let replies = paths.enter(task.transport, turn);
                turn.begin_work();
                self.run_one(id, turn, replies);
                turn.end_work(client);
            }
            if (self.is_slow || ran.is_multiple_of(8)) && turn.nanos_since(began) >= SLICE_NS {
                self.is_slow = true;
                return ran;
            }
        }
        self.is_slow = false;
        woken
    }

    fn run_one(&mut self, id: u32, turn: &mut Turn, replies: &mut dyn Replies) {
        let TaskSlot { task, pool, entry, waker, .. } = &mut self.slots[id as usize];
        let Some(running) = task else { return };
        let client = ClientKey::of(running.transport, &running.call);
        CallContext::enter(running.deadline, turn.now, running.is_cancelled, client);
        CallContext::identify(running.identity.as_ref());
        let pool = &mut self.pools[*pool as usize];
        let mut cx = Context::from_waker(waker);
        let ended = catch(|| pool.poll(*entry, &mut cx, task, &mut *turn, &mut *replies));
        match ended {
            Ok(false) => {}
            Ok(true) => self.end(id, Status::HandlerPanicked, turn, replies),
            Err(panic) => {
                let panic = panics::describe(&panic);
                tracing::error!(
                    panic,
                    "an async handler panicked; its call failed, the server goes on"
                );
                self.end(id, Status::HandlerPanicked, turn, replies);
            }
        }
        CallContext::leave();
    }

    /// Frees a task's slot and drops its future. If the call has no answer yet, it ends with this status.
    fn end(&mut self, id: u32, status: Status, turn: &mut Turn, replies: &mut dyn Replies) {
        let slot = &mut self.slots[id as usize];
        let task = slot.task.take();
        let (pool, entry) = (slot.pool, slot.entry);
        self.index.remove(slot.from, id);
        self.free.push(id);
        let pool = &mut self.pools[pool as usize];
        contain("dropping an async handler", || pool.clear(entry));
        if let Some(task) = task {
            UnansweredCall::new(task, replies, turn, None).reply().fail_with(status);
        }
    }

    /// Ends each task that satisfies the condition with this status. Returns how many.
    fn end_where(
        &mut self,
        condition: impl Fn(&Task) -> bool,
        status: Status,
        turn: &mut Turn,
        paths: &mut ReplyPaths<'_>,
    ) -> u32 {
        let mut ended = 0;
        for id in 0..self.slots.len() {
            let task = self.slots[id].task.as_ref();
            if let Some(task) = task.filter(|task| condition(task)) {
                let replies = paths.enter(task.transport, turn);
                self.end(id as u32, status, turn, replies);
                ended += 1;
            }
        }
        ended
    }

    /// A client gave up calls: marks them, so that [`end_cancelled`](Self::end_cancelled) drops their handlers. Of a call that is
    /// marked already, or over, this costs a look at its place.
    #[cold]
    pub(super) fn cancel(&mut self, cancel: &Cancel) {
        let Executor { index, slots, cancelled, policy, .. } = self;
        for &id in index.candidates(cancel) {
            let slot = slots.get_mut(id as usize);
            let Some(task) = slot.and_then(|slot| slot.task.as_mut()) else { continue };
            if task.is_cancelled || !cancel.is_meant(task.transport, &task.call) {
                continue;
            }
            task.is_cancelled = true;
            if *policy == CancelPolicy::Abort {
                cancelled.push(id);
            }
        }
    }

    /// Callers of handlers that are to be dropped have given up.
    #[inline]
    pub(super) fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Drops the handlers whose callers have given up. Returns how many.
    #[cold]
    pub(super) fn end_cancelled(&mut self, turn: &mut Turn, paths: &mut ReplyPaths<'_>) -> u32 {
        let mut ended = 0;
        let mut cancelled = core::mem::take(&mut self.cancelled);
        for id in cancelled.drain(..) {
            let task = self.slots[id as usize].task.as_ref().filter(|task| task.is_cancelled);
            if let Some(task) = task {
                let replies = paths.enter(task.transport, turn);
                self.end(id, Status::Cancelled, turn, replies);
                ended += 1;
            }
        }
        self.cancelled = cancelled;
        ended
    }

    /// Drops the handlers whose deadline has passed.
    #[cold]
    pub(super) fn expire(&mut self, turn: &mut Turn, paths: &mut ReplyPaths<'_>) -> u32 {
        let now = turn.now;
        let ended = self.end_where(|task| task.deadline <= now, Status::Expired, turn, paths);
        let tasks = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        self.earliest = tasks.map(|task| task.deadline).min().unwrap_or(Instant::FAR_FUTURE);
        ended
    }

    /// Drops the handlers of the calls that this transport brought: the thread has panicked.
    #[cold]
    pub(super) fn end_of(
        &mut self,
        transport: u32,
        turn: &mut Turn,
        paths: &mut ReplyPaths<'_>,
    ) -> u32 {
        let is_meant = |task: &Task| task.transport == transport;
        self.end_where(is_meant, Status::HandlerPanicked, turn, paths)
    }

    /// Drops all handlers. Returns how many there were.
    pub(super) fn abort_all(&mut self, turn: &mut Turn, paths: &mut ReplyPaths<'_>) -> u32 {
        self.end_where(|_| true, Status::Cancelled, turn, paths)
    }
}
