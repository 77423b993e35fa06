//! Blocking a thread on a call.

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};

/// Polls before the thread sleeps: an answer from a server that spins is there by then.
const SPINS: u32 = 512;

/// Polls with the core given to others in between, before the thread sleeps.
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

/// Runs a future to its end on this thread. The call's deadline bounds it.
pub(super) fn on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut cx = Context::from_waker(waker);
        let mut round = 0;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            if round < SPINS {
                core::hint::spin_loop();
            } else if round < SPINS + YIELDS {
                thread::yield_now();
            } else {
                // Wake-ups that were meant for an earlier call end this early; the loop looks again.
                thread::park();
                continue;
            }
            round += 1;
        }
    })
}
