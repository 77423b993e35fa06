//! What a handler can ask about the call it serves.

use crate::time::Instant;
use core::cell::Cell;
use core::time::Duration;

/// The call that the current handler serves, as of the start of the thread's turn.
///
/// In an `async` handler ask again after each `.await`: time passes, and the caller may give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallContext {
    deadline: Instant,
    now: Instant,
    cancelled: bool,
}

thread_local! {
    static CURRENT: Cell<Option<CallContext>> = const { Cell::new(None) };
}

impl CallContext {
    /// The context of the call whose handler runs now on this thread; `None` outside of handlers.
    pub fn current() -> Option<CallContext> {
        CURRENT.get()
    }

    /// Time left until the caller gives up; `None` if it waits for ever.
    pub fn remaining(&self) -> Option<Duration> {
        (self.deadline != Instant::FAR_FUTURE).then(|| self.deadline - self.now)
    }

    /// Has the caller given up already? Only a server with [`CancelPolicy::Finish`](super::CancelPolicy::Finish) lets
    /// a handler see this; otherwise it is dropped instead.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    #[inline]
    pub(super) fn enter(deadline: Instant, now: Instant, cancelled: bool) {
        CURRENT.set(Some(CallContext { deadline, now, cancelled }));
    }

    #[inline]
    pub(super) fn leave() {
        CURRENT.set(None);
    }
}
