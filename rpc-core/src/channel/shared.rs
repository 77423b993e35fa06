//! What callers and the I/O thread share.

use super::job::{Job, Outcome, Ticket};
use crate::error::RpcError;
use crate::site::Site;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

/// Queues of jobs, and the site of the I/O thread.
pub(super) struct Shared {
    submitted: ArrayQueue<Box<Job>>,
    free: ArrayQueue<Box<Job>>,
    /// Jobs that exist; never more than each queue has room for.
    jobs: AtomicUsize,
    cancels: CachePadded<AtomicU64>,
    site: Site,
    stop: AtomicBool,
    /// The channel's I/O has ended: the queue is not read any more.
    dead: AtomicBool,
}

impl Shared {
    pub(super) fn new(max_calls: usize, site: Site) -> Self {
        let capacity = max_calls.max(1);
        Shared {
            submitted: ArrayQueue::new(capacity),
            free: ArrayQueue::new(capacity),
            jobs: AtomicUsize::new(0),
            cancels: CachePadded::new(AtomicU64::new(0)),
            site,
            stop: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// A job for a new call; `None` at the limit of calls.
    pub(super) fn job(&self) -> Option<Box<Job>> {
        self.free.pop().or_else(|| self.new_job())
    }

    #[cold]
    fn new_job(&self) -> Option<Box<Job>> {
        let more = |n| (n < self.free.capacity()).then_some(n + 1);
        self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Job::new())
    }

    /// Takes back the job of a call that is over.
    pub(super) fn recycle(&self, mut job: Box<Job>) {
        job.clear();
        let pushed = self.free.push(job);
        debug_assert!(pushed.is_ok(), "each queue has room for all jobs");
    }

    /// Hands a job to the I/O thread.
    pub(super) fn submit(&self, job: Box<Job>) {
        let pushed = self.submitted.push(job);
        debug_assert!(pushed.is_ok(), "each queue has room for all jobs");
        self.site.rouse();
        if self.dead.load(Ordering::SeqCst) {
            self.fail_submitted();
        }
    }

    /// The next job that callers submitted.
    pub(super) fn next(&self) -> Option<Box<Job>> {
        self.submitted.pop()
    }

    pub(super) fn submitted(&self) -> usize {
        self.submitted.len()
    }

    /// A caller gave up a call whose job is with the I/O thread.
    pub(super) fn cancel_one(&self) {
        self.cancels.fetch_add(1, Ordering::Release);
        self.site.rouse();
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

    /// Asks the I/O thread to end the channel.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.site.rouse();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The channel's I/O has ended: submitted calls fail, and so do later ones.
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

    /// Callers submitted or gave up a call, or closed the channel, and the I/O thread has not seen it yet.
    pub(super) fn has_news(&self, seen_cancels: u64) -> bool {
        !self.submitted.is_empty() || self.cancels() != seen_cancels || self.stopped()
    }
}
