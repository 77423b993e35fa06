//! The hand-over as loom explores it: callers that leave a job and try to drive, the I/O thread that falls asleep.
//!
//! What the callers leave is a counter of jobs. Each atomic is of the real protocol, with its orderings; the site's count of sleeping threads
//! and the transport's armed queue are modelled by one flag each.

use super::{Baton, Exchange};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::thread;
use std::collections::HashMap;
use std::sync::Mutex;

/// crossbeam's cell of a pointer as loom sees it: an exchange of one word.
struct Cell<T> {
    /// 0 for none.
    number: AtomicUsize,
    /// By number. The mutex is the standard library's: loom sees no order by it.
    states: Mutex<HashMap<usize, Box<T>>>,
}

impl<T> Default for Cell<T> {
    fn default() -> Self {
        Cell { number: AtomicUsize::new(0), states: Mutex::default() }
    }
}

impl<T> Exchange<T> for Cell<T> {
    fn exchange(&self, state: Option<Box<T>>) -> Option<Box<T>> {
        let number = state.as_ref().map_or(0, |state| &raw const **state as usize);
        let mut states = self.states.lock().expect("no panic");
        states.extend(state.map(|state| (number, state)));
        drop(states);
        let before = self.number.swap(number, Ordering::AcqRel);
        self.states.lock().expect("no panic").remove(&before)
    }
}

/// What a driver has taken.
struct Io {
    jobs_done: usize,
    is_armed: bool,
}

struct Shared {
    baton: Baton<Io, Cell<Io>>,
    /// Jobs that callers left.
    left: AtomicUsize,
    attendant: AtomicBool,
    is_looking: AtomicBool,
    /// A caller was woken to drive, and has not come yet.
    is_to_drive: AtomicBool,
    /// The I/O thread sleeps, or is about to.
    asleep: AtomicBool,
    /// The I/O thread was woken.
    is_woken: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let shared = Shared {
            baton: Baton::new(),
            left: AtomicUsize::new(0),
            attendant: AtomicBool::new(false),
            is_looking: AtomicBool::new(false),
            is_to_drive: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
        };
        shared.baton.put(Box::new(Io { jobs_done: 0, is_armed: false }));
        Arc::new(shared)
    }

    /// As `Shared::drive`, a turn, and `Drive::leave`.
    fn drive(&self) {
        while let Some(mut io) = self.baton.take() {
            if self.attendant.load(Ordering::Relaxed) {
                self.attendant.store(false, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
            io.jobs_done = self.left.load(Ordering::Acquire);
            let (was_armed, done) = (std::mem::replace(&mut io.is_armed, false), io.jobs_done);
            self.baton.put(io);
            if was_armed {
                self.rouse();
            }
            if self.left.load(Ordering::Acquire) == done {
                return;
            }
        }
    }

    fn take_to_look(&self) -> Option<Box<Io>> {
        self.is_looking.store(true, Ordering::Relaxed);
        let io = self.baton.take();
        if io.is_none() {
            self.is_looking.store(false, Ordering::Relaxed);
        }
        io
    }

    fn put_after_look(&self, io: Box<Io>) {
        self.baton.put(io);
        self.is_looking.store(false, Ordering::Release);
    }

    /// As `Shared::drive_or_wait_for_look`, without giving up: a look ends.
    fn take_or_wait_for_look(&self) -> Option<Box<Io>> {
        self.baton.take().or_else(|| {
            while self.is_looking.load(Ordering::Acquire) {
                thread::yield_now();
            }
            self.baton.take()
        })
    }

    fn submit(&self) {
        self.left.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if !self.attendant.load(Ordering::Relaxed) {
            self.drive();
        }
    }

    fn rouse(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.is_woken.store(true, Ordering::SeqCst);
        }
    }

    /// As the I/O thread's `fall_asleep`: whether it sleeps.
    fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let Some(mut io) = self.baton.take() else { return false };
        let done = io.jobs_done;
        io.is_armed = self.left.load(Ordering::Acquire) == done;
        let is_armed = io.is_armed;
        self.baton.put(io);
        is_armed && self.left.load(Ordering::Acquire) == done
    }
}

/// When all threads are done, and none will look again, no job is left.
fn all_jobs_are_done(shared: &Shared) -> bool {
    let io = shared.baton.take().expect("nobody drives");
    io.jobs_done == shared.left.load(Ordering::Acquire)
}

/// All interleavings with few preemptions: unoptimized, all of them take minutes.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn loom_a_job_left_while_another_drives_is_seen() {
    model(|| {
        let shared = Shared::new();
        let caller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.submit())
        };
        shared.submit();
        caller.join().expect("no panic");
        assert!(all_jobs_are_done(&shared));
    });
}

#[test]
fn loom_a_job_left_while_the_io_thread_falls_asleep_is_seen() {
    model(|| {
        let shared = Shared::new();
        let caller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.submit())
        };
        let sleeps = shared.fall_asleep();
        caller.join().expect("no panic");
        // If it does not sleep, it takes another turn.
        if !sleeps || shared.is_woken.load(Ordering::SeqCst) {
            shared.drive();
        }
        assert!(all_jobs_are_done(&shared));
    });
}

#[test]
fn loom_a_task_that_attends_no_more_leaves_no_job_behind() {
    model(|| {
        let shared = Shared::new();
        // The task has announced its next turn.
        shared.attendant.store(true, Ordering::Relaxed);
        let caller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.submit())
        };
        // Its last turn: its call has ended, or was dropped.
        shared.drive();
        caller.join().expect("no panic");
        assert!(all_jobs_are_done(&shared));
    });
}

#[test]
fn loom_the_io_thread_that_sleeps_armed_hears_of_a_caller_that_took_its_events() {
    model(|| {
        let shared = Shared::new();
        let caller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.submit())
        };
        let sleeps = shared.fall_asleep();
        caller.join().expect("no panic");
        let io = shared.baton.take().expect("nobody drives");
        // It sleeps only armed, or is woken.
        assert!(!sleeps || io.is_armed || shared.is_woken.load(Ordering::SeqCst));
    });
}

#[test]
fn loom_a_caller_that_came_to_drive_too_early_is_noticed() {
    model(|| {
        let shared = Shared::new();
        shared.is_to_drive.store(true, Ordering::Relaxed);
        let io = shared.baton.take().expect("the I/O is at rest");
        let caller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.is_to_drive.store(false, Ordering::Relaxed);
                let io = shared.baton.take();
                let drives = io.is_some();
                io.into_iter().for_each(|io| shared.baton.put(io));
                drives
            })
        };
        // The one who drives leaves, and wakes no other caller if this one is on its way.
        let is_expected = shared.is_to_drive.load(Ordering::Relaxed);
        shared.baton.put(io);
        let has_come = !shared.is_to_drive.load(Ordering::Relaxed);
        let drove = caller.join().expect("no panic");
        assert!(!is_expected || has_come || drove);
    });
}

#[test]
fn loom_a_caller_that_comes_while_the_io_thread_looks_drives() {
    model(|| {
        let shared = Shared::new();
        let io_thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let io = shared.take_to_look();
                io.into_iter().for_each(|io| shared.put_after_look(io));
            })
        };
        let io = shared.take_or_wait_for_look();
        let drives = io.is_some();
        io.into_iter().for_each(|io| shared.baton.put(io));
        io_thread.join().expect("no panic");
        assert!(drives);
    });
}
