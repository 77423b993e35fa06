//! Dropping what clients leave behind without delaying the others: on a thread of its own.
//!
//! A queue pair, its memory and its sockets take a fraction of a millisecond to be destroyed. A server thread would answer nobody
//! meanwhile. The process has one thread for it, which starts with the first client.

use std::sync::{Mutex, PoisonError};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use farcall_core::panics::contain;
use farcall_verbs::PerProcess;

/// Most clients that wait for the thread: each still holds its memory and its descriptors. Beyond that, server threads drop them in
/// place.
const MOST_WAITING: usize = 256;

/// What is to be dropped.
type Remains = Box<dyn Send>;

/// The way to the thread.
#[derive(Debug, Clone)]
pub(crate) struct TearDown(Sender<Remains>);

impl TearDown {
    /// The thread of this process, started if there is none. `None`: it cannot be started now.
    pub(crate) fn of_this_process() -> Option<TearDown> {
        static THREAD: PerProcess<Mutex<Option<TearDown>>> = PerProcess::new();
        let mut running = THREAD.get().lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let (sender, receiver) = bounded(MOST_WAITING);
            let thread = thread::Builder::new().name("farcall-teardown".into());
            match thread.spawn(move || run(&receiver)) {
                Ok(_) => *running = Some(TearDown(sender)),
                Err(error) => tracing::warn!(%error, "clients that leave delay the others"),
            }
        }
        running.clone()
    }

    /// Drops `remains` on the thread; in place if too many wait for it.
    pub(crate) fn drop_there(&self, remains: Remains) {
        // What was not sent is dropped here.
        let _ = self.0.try_send(remains);
    }
}

/// Runs as long as the process.
fn run(remains: &Receiver<Remains>) {
    for remains in remains {
        contain("dropping a client", || drop(remains));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Tells(Sender<thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a test");
        }
    }

    #[test]
    fn the_thread_survives_a_drop_that_panics() {
        let tear_down = TearDown::of_this_process().unwrap();
        tear_down.drop_there(Box::new(Panics));
        let (sender, dropped) = bounded(1);
        tear_down.drop_there(Box::new(Tells(sender)));
        let on = dropped.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_ne!(on, thread::current().id());
    }

    #[test]
    fn too_many_are_dropped_in_place() {
        let (sender, _receiver) = bounded(1);
        let tear_down = TearDown(sender);
        let (tell, dropped) = bounded(2);
        tear_down.drop_there(Box::new(Tells(tell.clone())));
        assert!(dropped.is_empty(), "it waits");
        tear_down.drop_there(Box::new(Tells(tell)));
        assert_eq!(dropped.try_recv(), Ok(thread::current().id()));
    }
}
