//! Blocking a thread on a call.

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};

/// Polls before the thread yields: a server that spins has answered by then.
const SPINS: u32 = 512;

/// Polls that yield the core in between, before the thread sleeps.
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

/// Runs a call's future to its end on this thread. Its deadline bounds the wait.
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
                // A wake-up that was meant for an earlier call ends this early; the loop polls again.
                thread::park();
                continue;
            }
            round += 1;
        }
    })
}
