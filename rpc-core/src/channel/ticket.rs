//! How a call that is under way looks to its caller: whether it has ended, when it must have, and what wakes the caller.

use super::job::Job;
use crate::time::Instant;
use atomic_waker::AtomicWaker;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Waker;
use core::time::Duration;
use crossbeam_utils::atomic::AtomicCell;
use std::sync::Arc;

/// Of a ticket's deadline: the timeout is not counted yet.
const NOT_COUNTED: u64 = 1 << 63;

/// How long after its deadline a caller ends its call itself. Usually the one who drives does, at its next turn; it may be stopped in one.
pub(super) const GRACE: Duration = Duration::from_millis(5);

/// A deadline as a ticket stores it.
#[inline]
fn after(now: Instant, timeout_ns: u64) -> u64 {
    now.saturating_add_nanos(timeout_ns).as_nanos().min(!NOT_COUNTED)
}

/// What a caller and the one who drives share of one call.
#[derive(Default)]
pub(super) struct Ticket {
    /// The finished job. A thread that exchanges something here sees what the one before has set.
    done: AtomicCell<Option<Box<Job>>>,
    /// The job is in `done`, or about to be: looking there costs an exchange.
    is_done: AtomicBool,
    /// The caller has given up.
    is_cancelled: AtomicBool,
    waker: AtomicWaker,
    /// A waker may be registered: taking one out costs two exchanges, even if there is none.
    has_waker: AtomicBool,
    /// Its caller was woken to drive, and has not come yet.
    is_to_drive: AtomicBool,
    /// In nanoseconds on the site's clock; with [`NOT_COUNTED`], the timeout instead; 0 for none.
    deadline: AtomicU64,
}

impl Ticket {
    /// Tells calls apart while they last.
    #[inline]
    pub(super) fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// The call is left to the one who drives, who has not taken it yet.
    #[inline]
    pub(super) fn set_timeout(&self, timeout_ns: u64) {
        self.deadline.store(timeout_ns | NOT_COUNTED, Ordering::Relaxed);
    }

    /// The one who drives has taken the call at `now`. Returns its deadline; its timeout counts from now, unless a thread that waited for
    /// the one who drives counts it already.
    #[inline]
    pub(super) fn start(&self, timeout_ns: u64, now: Instant) -> Instant {
        match self.deadline.load(Ordering::Relaxed) {
            counted if counted != 0 && counted & NOT_COUNTED == 0 => Instant::from_nanos(counted),
            _ => {
                let deadline = after(now, timeout_ns);
                self.deadline.store(deadline, Ordering::Relaxed);
                Instant::from_nanos(deadline)
            }
        }
    }

    /// The deadline of a call that is under way. If nobody has taken it yet, its timeout counts from `now`.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let count = |set: u64| {
            let timeout_ns = set & !NOT_COUNTED;
            (set != timeout_ns).then(|| after(now, timeout_ns))
        };
        let _ = self.deadline.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        match self.deadline.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Instant::from_nanos(at)),
        }
    }

    /// The call should have ended some time ago: the one who drives is stopped.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline(now).is_some_and(|deadline| deadline + GRACE <= now)
    }

    /// Wakes this waker when the job is done. The caller calls [`take`](Self::take) afterwards.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
        self.has_waker.store(true, Ordering::Relaxed);
    }

    /// The finished job, for the caller.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<Job>> {
        if self.is_done.load(Ordering::Acquire) { self.done.take() } else { None }
    }

    /// The caller gives up. Returns the job if it is done; otherwise the one who drives has it, and will see the cancellation.
    pub(super) fn cancel(&self) -> Option<Box<Job>> {
        self.is_cancelled.store(true, Ordering::Release);
        self.done.take()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Hands the finished job to its caller, and gives what wakes it; or the job, if the caller has given up.
    pub(super) fn finish(&self, job: Box<Job>) -> Result<Option<Waker>, Box<Job>> {
        // It comes for its job, and not to drive.
        self.clear_to_drive();
        // Before the job is there: it may be another call's at once.
        self.is_done.store(true, Ordering::Release);
        let before = self.done.swap(Some(job));
        debug_assert!(before.is_none(), "a call ends once");
        if self.is_cancelled()
            && let Some(job) = self.done.take()
        {
            return Err(job);
        }
        let waker = self.waker.take();
        if waker.is_some() {
            self.has_waker.store(false, Ordering::Relaxed);
        }
        Ok(waker)
    }

    /// What wakes the caller, to look again.
    pub(super) fn take_waker(&self) -> Option<Waker> {
        self.waker.take()
    }

    /// What wakes the caller to drive; it registers again if its call goes on.
    pub(super) fn call_to_drive(&self) -> Option<Waker> {
        let waker = self.take_waker()?;
        self.is_to_drive.store(true, Ordering::Relaxed);
        Some(waker)
    }

    /// The caller is about to try to drive, or need not any more.
    #[inline]
    pub(super) fn clear_to_drive(&self) {
        if self.is_to_drive() {
            self.is_to_drive.store(false, Ordering::Relaxed);
        }
    }

    /// Its caller was [called to drive](Self::call_to_drive), and has not tried yet.
    #[inline]
    pub(super) fn is_to_drive(&self) -> bool {
        self.is_to_drive.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn reset(&self) {
        self.is_done.store(false, Ordering::Relaxed);
        self.is_cancelled.store(false, Ordering::Relaxed);
        self.deadline.store(0, Ordering::Relaxed);
        self.clear_to_drive();
        // Its caller recycles it, and registered if anyone did.
        if self.has_waker.load(Ordering::Relaxed) {
            self.has_waker.store(false, Ordering::Relaxed);
            self.waker.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_job_is_handed_over_without_a_lock() {
        assert!(AtomicCell::<Option<Box<Job>>>::is_lock_free());
    }

    #[test]
    fn a_timeout_counts_from_the_first_time_that_someone_looks() {
        let at = Instant::from_nanos;
        let ticket = Ticket::default();
        assert_eq!(ticket.deadline(at(1)), None, "no call is under way");
        // Nobody takes the call while others wait for it.
        ticket.set_timeout(100);
        assert_eq!(ticket.deadline(at(10)), Some(at(110)));
        assert_eq!(ticket.deadline(at(50)), Some(at(110)));
        assert_eq!(ticket.start(100, at(60)), at(110));
        let overdue = at(110) + GRACE;
        assert!(!ticket.is_overdue(at(overdue.as_nanos() - 1)) && ticket.is_overdue(overdue));
        ticket.reset();
        assert!(!ticket.is_overdue(overdue));
        // It is taken at once, or never left.
        ticket.set_timeout(100);
        assert_eq!(ticket.start(100, at(60)), at(160));
        ticket.reset();
        assert_eq!(ticket.start(100, at(70)), at(170));
        assert_eq!(ticket.deadline(at(90)), Some(at(170)));
        // Longer than any clock runs.
        ticket.reset();
        ticket.set_timeout(u64::MAX);
        assert!(ticket.deadline(at(10)).is_some() && !ticket.is_overdue(at(u64::MAX >> 2)));
        assert!(ticket.start(u64::MAX, at(20)) > at(u64::MAX >> 2));
    }

    #[test]
    fn a_job_goes_either_to_its_caller_or_back() {
        let job = Job::new(0);
        let ticket = job.ticket.clone();
        assert!(ticket.finish(job).is_ok());
        let job = ticket.take().expect("done");
        assert!(ticket.cancel().is_none(), "it was taken already");
        assert!(ticket.finish(job).is_err(), "its caller gave up");
        assert!(ticket.take().is_none());
    }

    #[test]
    fn caller_and_io_thread_never_both_keep_a_job() {
        let mut job = Job::new(0);
        for _ in 0..500 {
            let ticket = job.ticket.clone();
            let finished = ticket.clone();
            let io = std::thread::spawn(move || finished.finish(job));
            let (mine, its) = (ticket.cancel(), io.join().expect("no panic"));
            assert!(mine.is_some() != its.is_err());
            job = mine.or(its.err()).expect("one of them");
            job.clear();
        }
    }
}

#[cfg(test)]
mod model;
