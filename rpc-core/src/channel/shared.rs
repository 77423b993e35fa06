//! What callers and the I/O thread share.

use super::job::{Job, Outcome, Ticket};
use crate::error::RpcError;
use crate::transport::Unpark;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use std::sync::{Arc, Mutex, PoisonError};

/// Queues of jobs, and the wake-up of the I/O thread.
pub(super) struct Shared {
    submitted: ArrayQueue<Box<Job>>,
    free: ArrayQueue<Box<Job>>,
    /// Jobs that exist; never more than each queue has room for.
    jobs: AtomicUsize,
    cancels: CachePadded<AtomicU64>,
    sleeping: CachePadded<AtomicBool>,
    /// Taken only to wake a sleeping thread, which is a system call anyway.
    unparker: Mutex<Arc<dyn Unpark>>,
    stop: AtomicBool,
    /// The I/O thread has ended: nobody will look at the queue any more.
    dead: AtomicBool,
}

impl Shared {
    pub(super) fn new(max_calls: usize, unparker: Arc<dyn Unpark>) -> Self {
        let capacity = max_calls.max(1);
        Shared {
            submitted: ArrayQueue::new(capacity),
            free: ArrayQueue::new(capacity),
            jobs: AtomicUsize::new(0),
            cancels: CachePadded::new(AtomicU64::new(0)),
            sleeping: CachePadded::new(AtomicBool::new(false)),
            unparker: Mutex::new(unparker),
            stop: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// A job for a new call; none if there are as many as there may be.
    pub(super) fn job(&self) -> Option<Box<Job>> {
        self.free.pop().or_else(|| self.new_job())
    }

    #[cold]
    fn new_job(&self) -> Option<Box<Job>> {
        let more = |n| (n < self.free.capacity()).then_some(n + 1);
        self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Job::new())
    }

    /// Takes a job back whose call is over.
    pub(super) fn recycle(&self, mut job: Box<Job>) {
        job.clear();
        let pushed = self.free.push(job);
        debug_assert!(pushed.is_ok(), "there are no more jobs than room for them");
    }

    /// Hands a job to the I/O thread.
    pub(super) fn submit(&self, job: Box<Job>) {
        let pushed = self.submitted.push(job);
        debug_assert!(pushed.is_ok(), "there are no more jobs than room for them");
        self.rouse();
        if self.dead.load(Ordering::SeqCst) {
            self.fail_submitted();
        }
    }

    /// A job that the I/O thread has not seen.
    pub(super) fn next(&self) -> Option<Box<Job>> {
        self.submitted.pop()
    }

    pub(super) fn submitted(&self) -> usize {
        self.submitted.len()
    }

    /// A caller gave up a job that the I/O thread has.
    pub(super) fn cancelled_one(&self) {
        self.cancels.fetch_add(1, Ordering::Release);
        self.rouse();
    }

    pub(super) fn cancels(&self) -> u64 {
        self.cancels.load(Ordering::Acquire)
    }

    /// Gives a finished job to its caller.
    pub(super) fn finish(&self, job: Box<Job>) {
        if let Some(job) = Ticket::finish(job) {
            self.recycle(job);
        }
    }

    /// Asks the I/O thread to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.rouse();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The I/O thread has ended. What was submitted fails, and so does what will be.
    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.fail_submitted();
    }

    fn fail_submitted(&self) {
        while let Some(mut job) = self.submitted.pop() {
            job.outcome = Outcome::Failed(RpcError::PeerGone { may_have_run: false });
            self.finish(job);
        }
    }

    /// Wakes the I/O thread if it sleeps.
    fn rouse(&self) {
        // Orders what was made known before the look at the flag; `fall_asleep` has the two the other way round, so
        // that at least one side sees the other.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            self.unpark();
        }
    }

    /// Wakes the I/O thread, asleep or about to be.
    #[cold]
    pub(super) fn unpark(&self) {
        let unparker = self.unparker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        unparker.unpark();
    }

    /// How to wake the I/O thread from now on; only itself says so, awake.
    pub(super) fn set_unparker(&self, unparker: Arc<dyn Unpark>) {
        *self.unparker.lock().unwrap_or_else(PoisonError::into_inner) = unparker;
    }

    /// The I/O thread is about to sleep. Answers whether something came that it has not seen: then it must not.
    pub(super) fn fall_asleep(&self, seen_cancels: u64) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        !self.submitted.is_empty() || self.cancels() != seen_cancels || self.stopped()
    }

    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
