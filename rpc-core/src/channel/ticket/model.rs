//! The end of a call as loom explores it: the one who drives hands the job over, and its caller takes it, waits for it or gives it up.
//!
//! Each atomic is of the real protocol, with its orderings; of the waker's cell, only that it is exchanged.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

struct Ticket {
    /// 1 for the job.
    done: AtomicU32,
    is_done: AtomicBool,
    is_cancelled: AtomicBool,
    /// 1 for a waker.
    waker: AtomicU32,
}

/// What became of the job that was to be handed over.
#[derive(PartialEq, Eq)]
enum Finished {
    Given,
    /// To a caller that must be woken.
    GivenToSleeper,
    Kept,
}

impl Ticket {
    fn new() -> Arc<Ticket> {
        Arc::new(Ticket {
            done: AtomicU32::new(0),
            is_done: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            waker: AtomicU32::new(0),
        })
    }

    fn exchange_job(&self, job: u32) -> bool {
        self.done.swap(job, Ordering::AcqRel) == 1
    }

    fn register(&self) {
        self.waker.swap(1, Ordering::AcqRel);
    }

    fn take(&self) -> bool {
        self.is_done.load(Ordering::Acquire) && self.exchange_job(0)
    }

    fn cancel(&self) -> bool {
        self.is_cancelled.store(true, Ordering::Release);
        self.exchange_job(0)
    }

    fn finish(&self) -> Finished {
        self.is_done.store(true, Ordering::Release);
        self.exchange_job(1);
        if self.is_cancelled.load(Ordering::Acquire) && self.exchange_job(0) {
            return Finished::Kept;
        }
        match self.waker.swap(0, Ordering::AcqRel) {
            0 => Finished::Given,
            _ => Finished::GivenToSleeper,
        }
    }

    /// As the caller does with its job, for the next call.
    fn reset(&self) {
        self.is_done.store(false, Ordering::Relaxed);
        self.is_cancelled.store(false, Ordering::Relaxed);
    }
}

/// The one who drives ends a call while `caller` runs.
fn against(
    caller: impl Fn(&Ticket) -> bool + Sync + Send + 'static,
    check: impl Fn(bool, Finished) + Sync + Send + 'static,
) {
    loom::model(move || {
        let ticket = Ticket::new();
        let driver = {
            let ticket = Arc::clone(&ticket);
            thread::spawn(move || ticket.finish())
        };
        let has_job = caller(&ticket);
        check(has_job, driver.join().expect("no panic"));
    });
}

#[test]
fn loom_a_caller_that_waits_has_its_job_or_is_woken() {
    let wait = |ticket: &Ticket| {
        ticket.register();
        ticket.take()
    };
    against(wait, |has_job, finished| {
        assert!(finished != Finished::Kept, "nobody gave the call up");
        assert!(has_job || finished == Finished::GivenToSleeper);
    });
}

#[test]
fn loom_a_job_whose_caller_gives_up_is_kept_by_one_of_them() {
    against(Ticket::cancel, |has_job, finished| {
        assert!(has_job != (finished == Finished::Kept));
    });
}

#[test]
fn loom_the_end_of_a_call_does_not_touch_the_next_one() {
    let take_and_call_again = |ticket: &Ticket| {
        if !ticket.take() {
            return false;
        }
        ticket.reset();
        // The next call is given up at once, and has not ended.
        assert!(!ticket.cancel() && !ticket.is_done.load(Ordering::Relaxed));
        true
    };
    against(take_and_call_again, |has_job, finished| {
        assert!(!has_job || finished != Finished::Kept, "the next call's job is not there");
    });
}
