//! Blocking a thread on a call.

use super::drive::{Driven, Leave};
use super::job::Job;
use super::shared::Shared;
use super::ticket::{GRACE, Ticket};
use crate::blocking;
use crate::panics::catch;
use crate::time::Instant;
use core::task::Waker;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, Thread};

/// Looks at the ticket before the thread yields, while another caller drives.
const SPINS: u32 = 512;

/// Looks in between which the thread tries to drive.
const SPINS_PER_TRY: u32 = 32;

/// Looks that yield the core in between, before the thread sleeps.
const YIELDS: u32 = 16;

struct Unparker(Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One per thread, so that a call makes none.
    static WAKER: Waker = Waker::from(Arc::new(Unparker(thread::current())));
}

/// Sleeps until the call has ended, or something else wakes the thread.
fn sleep(ticket: &Ticket, bound: Duration) -> Option<Box<Job>> {
    // There is no handle of a thread that has ended, either.
    let registered = catch(|| WAKER.try_with(|waker| ticket.register(waker)));
    let Ok(Ok(())) = registered else { return sleep_without_variables(ticket, bound) };
    let ended = ticket.take();
    if ended.is_none() {
        thread::park_timeout(bound);
    }
    ended
}

/// The same when the thread's variables are gone: the destructor of another one waits, or a function that runs when the process ends.
#[cold]
fn sleep_without_variables(ticket: &Ticket, bound: Duration) -> Option<Box<Job>> {
    let bell = Arc::new(Bell::default());
    ticket.register(&Waker::from(Arc::clone(&bell)));
    let ended = ticket.take();
    if ended.is_none() {
        bell.wait(bound);
    }
    ended
}

#[derive(Default)]
struct Bell {
    is_rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn wait(&self, bound: Duration) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.changed.wait_timeout_while(is_rung, bound, |is_rung| !*is_rung);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// Whether a caller looks in this round whether it can drive: seldom while it spins, as that takes a lock.
#[inline]
fn tries_to_drive(round: u32) -> bool {
    round >= SPINS || round.is_multiple_of(SPINS_PER_TRY)
}

/// Waits for a call that was submitted, and drives when nobody does. `None` if it has not ended some time after its deadline: the one who
/// drives is stopped.
pub(super) fn until_done(
    shared: &Shared,
    ticket: &Arc<Ticket>,
    mut round: u32,
) -> Option<Box<Job>> {
    // Who has just left the call to the I/O thread sleeps first: that thread may need this one's core.
    let mut may_drive = round < PARK;
    loop {
        if let Some(job) = ticket.take() {
            return Some(job);
        }
        if may_drive
            && tries_to_drive(round)
            && let Some(mut drive) = shared.drive()
        {
            // The one who drove before may have ended it.
            if let Some(job) = ticket.take() {
                drive.leave(Leave::Done);
                return Some(job);
            }
            drive.set_own(ticket.id());
            if let Driven::Ended(job) = drive.until_done(ticket.id()) {
                return Some(job);
            }
            round = PARK;
            may_drive = false;
        } else if round == 0 {
            shared.leave_to_driver();
        }
        if round < SPINS {
            core::hint::spin_loop();
        } else if round < PARK {
            thread::yield_now();
        } else {
            let now = shared.site.now();
            let deadline = ticket.deadline(now).unwrap_or(Instant::FAR_FUTURE);
            let left = deadline + GRACE - now;
            if left.is_zero() {
                return None;
            }
            blocking::warn_of_server_thread();
            // A wake-up that was meant for an earlier call ends this early; the loop looks again.
            if let Some(job) = sleep(ticket, left) {
                return Some(job);
            }
            ticket.clear_to_drive();
            may_drive = true;
            continue;
        }
        round += 1;
    }
}

/// The round from which on the thread sleeps.
pub(super) const PARK: u32 = SPINS + YIELDS;

#[cfg(test)]
mod tests {
    use super::*;

    type Sleep = fn(&Ticket, Duration) -> Option<Box<Job>>;

    const SLEEPS: [Sleep; 2] = [sleep, sleep_without_variables];

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_thread_sleeps_for_the_time_that_is_left_unless_its_call_has_ended() {
        const LEFT: Duration = Duration::from_millis(20);
        for sleep in SLEEPS {
            let job = Job::new(0);
            let ticket = Arc::clone(&job.ticket);
            let began = std::time::Instant::now();
            assert!(sleep(&ticket, LEFT).is_none());
            assert!(began.elapsed() >= LEFT, "{:?}", began.elapsed());
            assert!(ticket.finish(job).is_ok());
            let began = std::time::Instant::now();
            assert!(sleep(&ticket, LONG).is_some() && began.elapsed() < LONG);
        }
    }

    #[test]
    fn a_thread_that_sleeps_is_woken_by_the_end_of_its_call() {
        for sleep in SLEEPS {
            let job = Job::new(0);
            let ticket = Arc::clone(&job.ticket);
            let began = std::time::Instant::now();
            // It may be woken for nothing, when it registers while another looks whether it has.
            let sleeps = move || {
                while began.elapsed() < LONG {
                    if let Some(job) = sleep(&ticket, LONG).or_else(|| ticket.take()) {
                        return Some(job);
                    }
                }
                None
            };
            let sleeper = thread::spawn(sleeps);
            // To drive, as soon as it can be woken. It then sleeps again.
            let called = loop {
                match job.ticket.call_to_drive() {
                    Some(waker) => break waker,
                    None => thread::yield_now(),
                }
                assert!(began.elapsed() < LONG, "nothing wakes it");
            };
            called.wake();
            let ticket = Arc::clone(&job.ticket);
            let waker = ticket.finish(job).ok().expect("it waits");
            waker.into_iter().for_each(Waker::wake);
            assert!(sleeper.join().expect("no panic").is_some() && began.elapsed() < LONG);
        }
    }

    #[test]
    fn a_caller_that_spins_seldom_tries_to_drive_and_one_that_yields_always() {
        let tries = |rounds: core::ops::Range<u32>| rounds.filter(|it| tries_to_drive(*it)).count();
        assert_eq!(tries(0..SPINS), (SPINS / SPINS_PER_TRY) as usize);
        assert_eq!(tries(SPINS..PARK), (PARK - SPINS) as usize);
    }
}
