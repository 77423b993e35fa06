//! What the callers of a channel share, with each other and with the I/O thread.

use super::baton::Baton;
use super::io::ChannelIo;
use super::job::{Job, Outcome};
use super::parking::Parking;
use super::ticket::Ticket;
use super::waking;
use crate::error::{GoneReason, RpcError};
use crate::growing_queue::GrowingQueue;
use crate::home::Home;
use crate::panics::{catch, contain};
use crate::site::Site;
use crate::time::Instant;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::task::Waker;
use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Queues of jobs, the I/O of the channel while nobody drives it, and the site of the I/O thread.
pub(super) struct Shared {
    /// Empty for good if a simulator drives the channel: see [`ChannelDriver`](super::ChannelDriver).
    pub(super) io: Baton<ChannelIo>,
    /// The ticket of the task that has announced to poll again soon, and to take a turn then; 0 for none. Other tasks leave their jobs
    /// for it.
    attendant: CachePadded<AtomicUsize>,
    submitted: GrowingQueue<Box<Job>>,
    free: GrowingQueue<Box<Job>>,
    /// The job that was recycled last: one exchange, where the queue takes several steps.
    spare: CachePadded<AtomicCell<Option<Box<Job>>>>,
    /// Jobs that exist; never more than each queue has room for.
    jobs: AtomicUsize,
    /// The tickets of all jobs.
    tickets: Mutex<Vec<Arc<Ticket>>>,
    /// The I/O thread sleeps until something wakes it, and sees no deadline if the one who drives is stopped.
    is_unwatched: AtomicBool,
    /// The I/O thread has the I/O for a moment, and puts it back without driving if callers do.
    is_looking: AtomicBool,
    cancels: CachePadded<AtomicU64>,
    pub(super) site: Site,
    /// A forked child has none of it.
    home: Home,
    stop: AtomicBool,
    /// The channel's I/O has ended: the queue is not read any more.
    dead: AtomicBool,
    pub(super) parking: Parking,
}

impl Shared {
    pub(super) fn new(max_calls: usize, site: Site) -> Self {
        let capacity = max_calls.max(1);
        Shared {
            io: Baton::new(),
            attendant: CachePadded::new(AtomicUsize::new(0)),
            submitted: GrowingQueue::new(capacity),
            free: GrowingQueue::new(capacity),
            spare: CachePadded::default(),
            jobs: AtomicUsize::new(0),
            tickets: Mutex::default(),
            is_unwatched: AtomicBool::new(false),
            is_looking: AtomicBool::new(false),
            cancels: CachePadded::new(AtomicU64::new(0)),
            site,
            home: Home::here(),
            stop: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            parking: Parking::default(),
        }
    }

    /// This process has the channel, and is not a child that was forked since.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Has the I/O thread look at this channel.
    pub(super) fn rouse(&self) {
        // A forked child would wake its parent's thread.
        if !self.is_here() {
            return;
        }
        self.parking.unpark();
        self.site.rouse();
    }

    /// A job for a new call; `None` at the limit of calls.
    #[inline]
    pub(super) fn job(&self) -> Option<Box<Job>> {
        self.spare.take().or_else(|| self.other_job())
    }

    fn other_job(&self) -> Option<Box<Job>> {
        self.free.pop().or_else(|| self.new_job())
    }

    #[cold]
    fn new_job(&self) -> Option<Box<Job>> {
        let more = |n| (n < self.free.capacity()).then_some(n + 1);
        let number = self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let job = Job::new(number);
        self.tickets().push(Arc::clone(&job.ticket));
        Some(job)
    }

    fn tickets(&self) -> MutexGuard<'_, Vec<Arc<Ticket>>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The I/O thread is about to sleep longer than a nap, or looks again.
    #[inline]
    pub(super) fn set_unwatched(&self, is_unwatched: bool) {
        self.is_unwatched.store(is_unwatched, Ordering::Relaxed);
    }

    /// The I/O thread's [take](Baton::take): callers that get nothing meanwhile try again.
    pub(super) fn take_to_look(&self) -> Option<Box<ChannelIo>> {
        self.is_looking.store(true, Ordering::Relaxed);
        let io = self.io.take();
        if io.is_none() {
            self.is_looking.store(false, Ordering::Relaxed);
        }
        io
    }

    /// The I/O thread's [put](Baton::put).
    pub(super) fn put_after_look(&self, io: Box<ChannelIo>) {
        self.io.put(io);
        // Who sees this also sees that the I/O is back.
        self.end_look();
    }

    /// The I/O thread does not look any more.
    pub(super) fn end_look(&self) {
        self.is_looking.store(false, Ordering::Release);
    }

    /// After a failed try to drive, which makes visible what who has the I/O has stored before.
    #[inline]
    pub(super) fn is_looking(&self) -> bool {
        self.is_looking.load(Ordering::Acquire)
    }

    /// A task waits for the one who drives: has the I/O thread see to its deadline. After a failed try to drive, which makes visible what
    /// the I/O thread [set](Self::set_unwatched) before it put the I/O back.
    #[inline]
    pub(super) fn have_watched(&self) {
        if self.is_unwatched.load(Ordering::Relaxed)
            && self.is_unwatched.swap(false, Ordering::Relaxed)
        {
            self.rouse();
        }
    }

    /// Collects what wakes the callers whose calls should have ended: the one who drives is stopped, so they end them themselves.
    #[cold]
    pub(super) fn wake_overdue(&self, now: Instant, woken: &mut Vec<Waker>) {
        let tickets = self.tickets();
        let overdue = tickets.iter().filter(|ticket| ticket.is_overdue(now));
        woken.extend(overdue.filter_map(|ticket| ticket.take_waker()));
    }

    /// The job of a call, as long as its caller has it.
    #[inline]
    pub(super) fn lend(&self, job: Box<Job>) -> LentJob<'_> {
        LentJob { shared: self, job: Some(job) }
    }

    /// Takes back the job of a call that is over.
    #[inline]
    pub(super) fn recycle(&self, job: Box<Job>) {
        let mut clearing = Clearing(self, Some(job));
        clearing.1.as_mut().into_iter().for_each(|job| job.clear());
        clearing.1.take().into_iter().for_each(|job| self.keep_spare(job));
    }

    /// The same while a panic unwinds, or on a thread that others need.
    #[cold]
    fn recycle_contained(&self, job: Box<Job>) {
        contain("dropping what a call was given", || self.recycle(job));
    }

    #[inline]
    fn keep_spare(&self, job: Box<Job>) {
        if let Some(before) = self.spare.swap(Some(job)) {
            let pushed = self.free.push(before);
            debug_assert!(pushed.is_ok(), "each queue has room for all jobs");
        }
    }

    /// Leaves a job for the one who drives. The caller then tries to [drive](Self::drive).
    pub(super) fn submit(&self, job: Box<Job>) {
        job.ticket.set_timeout(job.timeout_ns);
        let pushed = self.submitted.push(job);
        debug_assert!(pushed.is_ok(), "each queue has room for all jobs");
    }

    /// The caller has left something, and could not drive: somebody else does, or the channel has ended, or a simulator drives it.
    pub(super) fn leave_to_driver(&self) {
        if self.site.is_driven() {
            self.site.rouse();
        }
        if self.dead.load(Ordering::SeqCst) {
            self.fail_submitted(GoneReason::Closed);
        } else if !self.is_here() {
            self.fail_submitted(GoneReason::Forked);
        }
    }

    /// The task that takes the next turn.
    #[inline]
    pub(super) fn attendant(&self) -> usize {
        self.attendant.load(Ordering::Relaxed)
    }

    /// The same after [`submit`](Self::submit): its turn comes after that.
    #[inline]
    pub(super) fn attendant_after_submit(&self) -> usize {
        fence(Ordering::SeqCst);
        self.attendant()
    }

    /// Only the one who drives sets it.
    #[inline]
    pub(super) fn set_attendant(&self, ticket: usize) {
        self.attendant.store(ticket, Ordering::Relaxed);
    }

    /// No task has announced a turn any more. Returns whether one had.
    #[inline]
    pub(super) fn clear_attendant(&self) -> bool {
        let had_one = self.attendant.load(Ordering::Relaxed) != 0;
        if had_one {
            self.attendant.store(0, Ordering::Relaxed);
            // A caller submits, and then reads the attendant: at least one side sees the other.
            fence(Ordering::SeqCst);
        }
        had_one
    }

    /// The next job that callers submitted.
    pub(super) fn next(&self) -> Option<Box<Job>> {
        self.submitted.pop()
    }

    pub(super) fn submitted(&self) -> usize {
        if self.submitted.is_empty() { 0 } else { self.submitted.len() }
    }

    /// A caller gave up a call whose job is with the one who drives. The caller then tries to [drive](Self::drive).
    pub(super) fn cancel_one(&self) {
        self.cancels.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(super) fn cancels(&self) -> u64 {
        self.cancels.load(Ordering::Acquire)
    }

    /// Gives a finished job, of this ticket, to its caller. Returns what wakes it.
    #[must_use = "the caller waits for it"]
    pub(super) fn finish(&self, ticket: &Ticket, job: Box<Job>) -> Option<Waker> {
        match ticket.finish(job) {
            Ok(waker) => waker,
            Err(job) => {
                // What the caller gave it is dropped here, on a thread that others need.
                self.recycle_contained(job);
                None
            }
        }
    }

    /// Asks the I/O thread, or the caller that drives, to end the channel.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.rouse();
    }

    /// Ends the channel when there is no I/O thread any more.
    pub(super) fn retire(&self) {
        self.stop.store(true, Ordering::SeqCst);
        // A caller that drives ends it when it has put the I/O back.
        drop(self.io.take());
    }

    /// The channel's I/O has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The channel's I/O has ended: submitted calls fail, and so do later ones.
    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.fail_submitted(GoneReason::Closed);
    }

    fn fail_submitted(&self, why: GoneReason) {
        while let Some(mut job) = self.submitted.pop() {
            job.outcome = Outcome::Failed(RpcError::not_sent(why.clone()));
            let ticket = Arc::clone(&job.ticket);
            if let Some(waker) = self.finish(&ticket, job) {
                waking::wake_one(waker);
            }
        }
    }

    /// Callers submitted or gave up a call, or closed the channel, and the one who drives has not seen it yet.
    #[inline]
    pub(super) fn has_news(&self, seen_cancels: u64) -> bool {
        !self.submitted.is_empty() || self.cancels() != seen_cancels || self.stopped()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_here() {
            // A forked child: to drop it would say goodbye to the server in the parent's name.
            core::mem::forget(self.io.take());
        }
    }
}

/// A job that its caller has. It returns to the channel also when code of the caller's panics that writes its arguments or reads its answer.
pub(super) struct LentJob<'s> {
    shared: &'s Shared,
    /// `None` when it is kept or recycled.
    job: Option<Box<Job>>,
}

impl LentJob<'_> {
    /// The caller keeps it.
    #[inline]
    pub(super) fn keep(mut self) -> Box<Job> {
        self.job.take().expect("this uses it up")
    }

    /// The call is over.
    #[inline]
    pub(super) fn recycle(mut self) {
        self.job.take().into_iter().for_each(|job| self.shared.recycle(job));
    }
}

impl Deref for LentJob<'_> {
    type Target = Job;

    #[inline]
    fn deref(&self) -> &Job {
        self.job.as_ref().expect("what takes it uses this up")
    }
}

impl DerefMut for LentJob<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Job {
        self.job.as_mut().expect("what takes it uses this up")
    }
}

impl Drop for LentJob<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.shared.recycle_contained(job);
        }
    }
}

/// Values of its caller that a job keeps: the arguments, those for an older server, and the waker.
const KEPT_VALUES: usize = 3;

/// A job that is cleared. Dropped with the job if that panicked.
struct Clearing<'s>(&'s Shared, Option<Box<Job>>);

impl Drop for Clearing<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut job) = self.1.take() {
            // A value whose destructor panicked is gone.
            let _ = (0..KEPT_VALUES).find(|_| catch(|| job.clear()).is_ok());
            self.0.keep_spare(job);
        }
    }
}
