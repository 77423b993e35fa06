//! The executor of one server thread: runs `async` handlers, allocates nothing in the steady state.
//!
//! The futures of one handler all have one type; they live in a pool of boxes of that type, and a box is used again
//! after its future has ended. So are the tasks with their wakers. A waker may outlive its future: then it wakes
//! whatever task has its place, which finds nothing to do.

use super::CancelPolicy;
use super::context::CallContext;
use super::pool::{Pool, TypedPool};
use super::reply::{Open, Reply};
use super::turn::{Cancel, Turn};
use crate::time::Instant;
use crate::transport::{CallToken, Replies, Unpark};
use crate::wire::Status;
use core::any::TypeId;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::task::{Context, Waker};
use crossbeam_queue::ArrayQueue;
use foldhash::{HashMap, HashMapExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Wake;

/// A call in the hands of a handler.
pub(super) struct Task {
    pub(super) call: CallToken,
    /// The method's row in the counters.
    pub(super) row: u32,
    /// When the request was noticed.
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    cancelled: bool,
}

impl Task {
    #[inline]
    pub(super) fn new(call: CallToken, row: u32, arrived: Instant, deadline: Instant) -> Self {
        Task { call, row, arrived, deadline, cancelled: false }
    }
}

/// Tasks woken, and whether their thread sleeps.
pub(super) struct Ready {
    queue: ArrayQueue<u32>,
    sleeping: AtomicBool,
    unpark: Arc<dyn Unpark>,
}

impl Ready {
    /// The thread is about to sleep: from now on a wake-up unparks it. The caller must look at
    /// [`Executor::has_ready`] afterwards, and at everything else that could have come before.
    pub(super) fn fall_asleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        // Orders this store before the look at the queue; `wake` has the two the other way round, so that at least
        // one side sees the other.
        fence(Ordering::SeqCst);
    }

    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Unparks the thread if it sleeps.
    pub(super) fn rouse(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            self.unpark.unpark();
        }
    }
}

struct TaskWaker {
    id: u32,
    /// In the queue already: so each task is there at most once, and the queue never overflows.
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let pushed = self.ready.queue.push(self.id);
            debug_assert!(pushed.is_ok(), "the queue has room for every task");
            self.ready.rouse();
        }
    }
}

struct Place {
    task: Option<Task>,
    pool: u32,
    entry: u32,
    wake: Arc<TaskWaker>,
    waker: Waker,
}

/// The `async` handlers of one thread.
pub(super) struct Executor {
    places: Vec<Place>,
    free: Vec<u32>,
    pools: Vec<Box<dyn Pool>>,
    pool_of: HashMap<TypeId, u32>,
    ready: Arc<Ready>,
    capacity: usize,
    /// No task's deadline is before this.
    earliest: Instant,
    policy: CancelPolicy,
}

impl Executor {
    pub(super) fn new(capacity: usize, policy: CancelPolicy, unpark: Arc<dyn Unpark>) -> Self {
        let ready = Ready {
            queue: ArrayQueue::new(capacity.max(1)),
            sleeping: AtomicBool::new(false),
            unpark,
        };
        Executor {
            places: Vec::new(),
            free: Vec::new(),
            pools: Vec::new(),
            pool_of: HashMap::new(),
            ready: Arc::new(ready),
            capacity,
            earliest: Instant::FAR_FUTURE,
            policy,
        }
    }

    pub(super) fn ready(&self) -> &Arc<Ready> {
        &self.ready
    }

    /// Tasks that have not ended.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.capacity
    }

    /// Was a task woken? What is in the queue without a task belongs to calls that are over.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.len() > 0 && !self.ready.queue.is_empty()
    }

    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.earliest
    }

    /// Takes a handler's future in and polls it once. The caller has asked [`has_room`](Self::has_room).
    pub(super) fn spawn<F, D>(
        &mut self,
        task: Task,
        future: F,
        finish: D,
        turn: &mut Turn,
        replies: &mut dyn Replies,
    ) where
        F: Future + 'static,
        D: FnOnce(F::Output, Reply<'_>) + 'static,
    {
        let pool = self.pool::<F, D>();
        let typed = self.pools[pool as usize].as_any().downcast_mut::<TypedPool<F, D>>();
        let typed = typed.expect("pools are found by the type that they are made for");
        let entry = typed.insert(future, finish);
        if self.policy == CancelPolicy::Abort {
            self.earliest = self.earliest.min(task.deadline);
        }
        let id = self.place();
        let place = &mut self.places[id as usize];
        (place.task, place.pool, place.entry) = (Some(task), pool, entry);
        self.run_one(id, turn, replies);
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

    fn place(&mut self) -> u32 {
        if let Some(id) = self.free.pop() {
            return id;
        }
        let id = self.places.len() as u32;
        let ready = self.ready.clone();
        let wake = Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready });
        let waker = Waker::from(wake.clone());
        self.places.push(Place { task: None, pool: 0, entry: 0, wake, waker });
        self.free.reserve(self.places.len());
        id
    }

    /// Polls the tasks that were woken before this turn. Answers how many.
    pub(super) fn run(&mut self, turn: &mut Turn, replies: &mut dyn Replies) -> u32 {
        // Those woken meanwhile come next turn: the transport is polled in between.
        let woken = self.ready.queue.len() as u32;
        for _ in 0..woken {
            let Some(id) = self.ready.queue.pop() else { break };
            // Before the poll: a wake-up during it must queue the task again.
            self.places[id as usize].wake.queued.swap(false, Ordering::AcqRel);
            self.run_one(id, turn, replies);
        }
        woken
    }

    fn run_one(&mut self, id: u32, turn: &mut Turn, replies: &mut dyn Replies) {
        let Place { task, pool, entry, waker, .. } = &mut self.places[id as usize];
        let Some(running) = task else { return };
        CallContext::enter(running.deadline, turn.now, running.cancelled);
        let pool = &mut self.pools[*pool as usize];
        let mut cx = Context::from_waker(waker);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            pool.poll(*entry, &mut cx, task, &mut *turn, &mut *replies)
        }));
        match ended {
            Ok(false) => {}
            Ok(true) => self.end(id, Status::HandlerPanicked, turn, replies),
            Err(_) => {
                tracing::error!("an async handler panicked; its call failed, the server goes on");
                self.end(id, Status::HandlerPanicked, turn, replies);
            }
        }
        CallContext::leave();
    }

    /// Frees a task's place and drops its future. A call that has no answer yet gets this one.
    fn end(&mut self, id: u32, status: Status, turn: &mut Turn, replies: &mut dyn Replies) {
        let place = &mut self.places[id as usize];
        let task = place.task.take();
        let (pool, entry) = (place.pool, place.entry);
        self.free.push(id);
        let pool = &mut self.pools[pool as usize];
        if catch_unwind(AssertUnwindSafe(|| pool.clear(entry))).is_err() {
            tracing::error!("dropping an async handler panicked; the server goes on");
        }
        if let Some(task) = task {
            Open::new(task, replies, turn, None).reply().fail_with(status);
        }
    }

    /// Ends each task that satisfies the condition with this answer. Answers how many.
    fn end_where(
        &mut self,
        condition: impl Fn(&Task) -> bool,
        status: Status,
        turn: &mut Turn,
        replies: &mut dyn Replies,
    ) -> u32 {
        let mut ended = 0;
        for id in 0..self.places.len() {
            if self.places[id].task.as_ref().is_some_and(&condition) {
                self.end(id as u32, status, turn, replies);
                ended += 1;
            }
        }
        ended
    }

    /// A client gave up calls: their handlers are dropped, or told.
    #[cold]
    pub(super) fn cancel(&mut self, wish: &Cancel, turn: &mut Turn, replies: &mut dyn Replies) {
        let meant = |task: &Task| {
            let call = &task.call;
            (call.client(), call.client_generation()) == (wish.client, wish.client_generation)
                && wish.slot.is_none_or(|slot| slot == (call.slot(), call.generation()))
        };
        match self.policy {
            CancelPolicy::Abort => {
                self.end_where(meant, Status::Cancelled, turn, replies);
            }
            CancelPolicy::Finish => {
                let tasks = self.places.iter_mut().filter_map(|place| place.task.as_mut());
                tasks.filter(|task| meant(task)).for_each(|task| task.cancelled = true);
            }
        }
    }

    /// Drops the handlers whose deadline has passed.
    #[cold]
    pub(super) fn expire(&mut self, turn: &mut Turn, replies: &mut dyn Replies) -> u32 {
        let now = turn.now;
        let ended = self.end_where(|task| task.deadline <= now, Status::Expired, turn, replies);
        let deadlines = self.places.iter().filter_map(|place| place.task.as_ref());
        self.earliest = deadlines.map(|task| task.deadline).min().unwrap_or(Instant::FAR_FUTURE);
        ended
    }

    /// Drops all handlers. Answers how many there were.
    pub(super) fn abort_all(&mut self, turn: &mut Turn, replies: &mut dyn Replies) -> u32 {
        self.end_where(|_| true, Status::Cancelled, turn, replies)
    }
}
