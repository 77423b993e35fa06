//! Which clients are pinned: served in every slice, as many as the server allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The clients of one server thread that may be pinned; clients come from any thread.
#[derive(Debug, Clone)]
pub(super) struct Pins(Arc<State>);

#[derive(Debug)]
struct State {
    most: u32,
    taken: AtomicU32,
    is_logged: AtomicBool,
}

/// A client's right to be served in every slice, until it is dropped.
#[derive(Debug)]
pub(super) struct Pin(Arc<State>);

impl Pins {
    /// At most so many clients at a time.
    pub(super) fn new(most: u32) -> Pins {
        let (taken, is_logged) = (AtomicU32::new(0), AtomicBool::new(false));
        Pins(Arc::new(State { most, taken, is_logged }))
    }

    /// Pins a further client, if there may be one more.
    pub(super) fn take(&self) -> Option<Pin> {
        let Pins(state) = self;
        let one_more = |taken| (taken < state.most).then_some(taken + 1);
        // The counter orders no other memory.
        let taken = state.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        if taken.is_err() {
            self.log();
            return None;
        }
        Some(Pin(Arc::clone(state)))
    }

    /// Says once that a client was not pinned: clients can cause it at any rate.
    #[cold]
    fn log(&self) {
        let Pins(state) = self;
        if !state.is_logged.swap(true, Ordering::Relaxed) {
            let most = state.most;
            tracing::warn!(
                most,
                "more clients want to be pinned than `pins` allows on a thread; they are served as others are"
            );
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_that_is_dropped_can_be_taken_again() {
        let pins = Pins::new(2);
        let first = pins.take().unwrap();
        let _second = pins.take().unwrap();
        assert!(pins.take().is_none() && pins.take().is_none());
        drop(first);
        let _third = pins.take().unwrap();
        assert!(pins.take().is_none());
        assert!(Pins::new(0).take().is_none());
    }
}
