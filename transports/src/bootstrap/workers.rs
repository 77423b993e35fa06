//! Threads for jobs that block: dialling, shaking hands.
//!
//! A thread that has done its job takes the next one. With a thread for each job, hundreds would begin and end at once when many clients
//! come or move; the C library makes and frees their stacks under one lock, for which each waits behind all others.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farcall_core::panics::contain;

/// How long a thread without a job waits for one before it ends.
const IDLE: Duration = Duration::from_millis(500);

type Job = Box<dyn FnOnce() + Send>;

/// Up to a number of threads. A job waits only while all of them have one.
#[derive(Debug)]
pub(super) struct Workers {
    name: &'static str,
    most: usize,
    state: Mutex<State>,
    /// A job has come, or the threads are to end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    threads: usize,
    /// Of the threads, those that wait for a job.
    idle: usize,
    /// The caller bounds how many there are.
    waiting: VecDeque<Job>,
    is_closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { threads, idle, waiting, is_closed } = self;
        let mut debug = f.debug_struct("State");
        debug.field("threads", threads).field("idle", idle);
        debug.field("waiting", &waiting.len()).field("is_closed", is_closed).finish()
    }
}

impl Workers {
    /// No threads yet, of at most `most` with this name.
    pub(super) fn new(name: &'static str, most: usize) -> Arc<Workers> {
        Arc::new(Workers { name, most, state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs it on a thread: at once, unless all threads have a job. Its panic is logged.
    ///
    /// # Errors
    /// No thread can be started, and there is none. The job is dropped.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.lock();
        state.waiting.push_back(Box::new(job));
        if state.waiting.len() <= state.idle {
            self.changed.notify_one();
            return Ok(());
        }
        if state.threads == self.most {
            return Ok(());
        }
        state.threads += 1;
        // To start one takes long, and the others need the lock meanwhile.
        drop(state);
        let workers = Arc::clone(self);
        let spawned = thread::Builder::new().name(self.name.into()).spawn(move || workers.work());
        let Err(cause) = spawned else { return Ok(()) };
        let mut state = self.lock();
        state.threads -= 1;
        if state.threads > 0 {
            // The others come to it.
            return Ok(());
        }
        let unserved = std::mem::take(&mut state.waiting);
        drop(state);
        drop(unserved);
        Err(cause)
    }

    /// Lets the threads end, each with the job that it has.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            let _ = contain(self.name, job);
        }
    }

    /// The next job. `None`: the thread is to end.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        let mut has_waited = false;
        while state.waiting.is_empty() && !state.is_closed && !has_waited {
            state.idle += 1;
            let woken = self.changed.wait_timeout(state, IDLE);
            let timeout;
            (state, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            has_waited = timeout.timed_out();
        }
        let next = state.waiting.pop_front();
        state.threads -= usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Waits until it is so.
    #[track_caller]
    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let deadline = std::time::Instant::now() + SOON;
        while !is_so() {
            assert!(std::time::Instant::now() < deadline, "not in time");
            thread::yield_now();
        }
    }

    #[test]
    fn a_few_threads_do_the_jobs_of_a_crowd() {
        const MOST: usize = 8;
        let workers = Workers::new("crowd", MOST);
        let (done, ended) = channel();
        let [at_once, most] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        for _ in 0..500 {
            let (done, at_once, most) = (done.clone(), at_once.clone(), most.clone());
            let job = move || {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                at_once.fetch_sub(1, Ordering::SeqCst);
                let _ = done.send(());
            };
            workers.run(job).unwrap();
        }
        for _ in 0..500 {
            ended.recv_timeout(SOON).unwrap();
        }
        assert!((1..=MOST).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    }

    #[test]
    fn jobs_that_come_one_by_one_have_one_thread() {
        let workers = Workers::new("one by one", 8);
        let (done, ended) = channel();
        let mut threads = HashSet::new();
        for _ in 0..100 {
            let done = done.clone();
            workers.run(move || done.send(thread::current().id()).unwrap()).unwrap();
            threads.insert(ended.recv_timeout(SOON).unwrap());
            wait_until(|| workers.lock().idle == 1);
        }
        assert_eq!(threads.len(), 1);
    }

    #[test]
    fn jobs_that_hang_delay_no_other_while_there_is_a_thread() {
        const MOST: usize = 4;
        let workers = Workers::new("hanging", MOST);
        let (release, released) = channel::<()>();
        let released = Arc::new(Mutex::new(released));
        for _ in 1..MOST {
            let released = Arc::clone(&released);
            let hang = move || {
                let _ = released.lock().unwrap().recv();
            };
            workers.run(hang).unwrap();
        }
        let (done, ended) = channel();
        for _ in 0..10 {
            let done = done.clone();
            workers.run(move || done.send(()).unwrap()).unwrap();
        }
        (0..10).for_each(|_| ended.recv_timeout(SOON).unwrap());
        assert_eq!(workers.lock().threads, MOST);
        drop(release);
    }

    #[test]
    fn a_job_that_panics_does_not_end_its_thread() {
        let workers = Workers::new("panicking", 1);
        workers.run(|| panic!("as planned")).unwrap();
        let (done, ended) = channel();
        workers.run(move || done.send(()).unwrap()).unwrap();
        ended.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn threads_without_a_job_end_when_they_are_told_to_or_after_some_time() {
        for is_told in [true, false] {
            let workers = Workers::new("idle", 8);
            (0..8).for_each(|_| workers.run(|| {}).unwrap());
            let begun = std::time::Instant::now();
            if is_told {
                workers.close();
            }
            wait_until(|| workers.lock().threads == 0);
            assert!(is_told || begun.elapsed() >= IDLE);
        }
    }
}
