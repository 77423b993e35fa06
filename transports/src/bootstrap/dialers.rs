//! Threads that open lanes, which blocks.
//!
//! A process has a few, and each opens one lane after another. With a thread for each lane, hundreds would begin and end at once when all
//! clients of a process move; the C library makes and frees their stacks under one lock, for which each waits behind all others.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use farcall_verbs::PerProcess;

/// Most threads at a time. A server that does not answer holds one up until the dial's timeout.
const MOST_THREADS: usize = 8;

type Dial = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Dialers {
    threads: usize,
    /// At most one of each connection.
    waiting: VecDeque<Dial>,
}

static DIALERS: PerProcess<Mutex<Dialers>> = PerProcess::new();

fn dialers() -> MutexGuard<'static, Dialers> {
    DIALERS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs it on a thread, at once or behind others. It does not panic.
///
/// # Errors
/// No thread can be started, and there is none.
pub(super) fn run(dial: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut dialers = dialers();
    dialers.waiting.push_back(Box::new(dial));
    if dialers.threads < MOST_THREADS {
        match thread::Builder::new().name("farcall-lane".into()).spawn(work) {
            Ok(_) => dialers.threads += 1,
            Err(cause) if dialers.threads == 0 => {
                dialers.waiting.clear();
                return Err(cause);
            }
            // The others come to it.
            Err(_) => {}
        }
    }
    Ok(())
}

fn work() {
    while let Some(dial) = next() {
        dial();
    }
}

fn next() -> Option<Dial> {
    let mut dialers = dialers();
    let next = dialers.waiting.pop_front();
    if next.is_none() {
        dialers.threads -= 1;
    }
    next
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use crossbeam_channel::unbounded;

    use super::*;

    #[test]
    fn a_few_threads_open_the_lanes_of_a_crowd() {
        let (done, ended) = unbounded();
        let [at_once, most] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        for _ in 0..500 {
            let (done, at_once, most) = (done.clone(), at_once.clone(), most.clone());
            let dial = move || {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                at_once.fetch_sub(1, Ordering::SeqCst);
                let _ = done.send(());
            };
            run(dial).unwrap();
        }
        for _ in 0..500 {
            ended.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!((1..=MOST_THREADS).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    }
}
