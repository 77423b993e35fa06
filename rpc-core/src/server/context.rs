//! What a handler can learn about the call that it serves.

use crate::identity::Identity;
use crate::time::Instant;
use core::cell::Cell;
use core::time::Duration;

/// The call that the current handler serves, as of the start of the thread's turn.
///
/// It does not change. In an `async` handler, call [`current`](Self::current) again after each `.await`: time has passed,
/// and the caller may have given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallContext {
    deadline: Instant,
    now: Instant,
    cancelled: bool,
    identity: Option<Identity>,
}

thread_local! {
    static CURRENT: Cell<Option<CallContext>> = const { Cell::new(None) };
}

impl CallContext {
    /// The context of the call whose handler runs now on this thread; `None` outside of handlers.
    pub fn current() -> Option<CallContext> {
        CURRENT.get()
    }

    /// Time left until the call's deadline, as of the start of the thread's turn; `None` if the call has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        (self.deadline != Instant::FAR_FUTURE).then(|| self.deadline - self.now)
    }

    /// The caller has given up. Only handlers of a server with [`CancelPolicy::Finish`](super::CancelPolicy::Finish) see
    /// this; otherwise the handler is dropped instead.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Who the caller is; `None` if the server [authenticates](super::ServerBuilder::authenticate) nobody.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Who makes the call whose handler runs now.
    pub(super) fn caller() -> Option<Identity> {
        CURRENT.get().and_then(|context| context.identity)
    }

    #[inline]
    pub(super) fn enter(
        deadline: Instant,
        now: Instant,
        cancelled: bool,
        identity: Option<Identity>,
    ) {
        CURRENT.set(Some(CallContext { deadline, now, cancelled, identity }));
    }

    /// The call whose handler runs next is made by this caller.
    pub(super) fn identify(identity: Option<Identity>) {
        CURRENT.set(CURRENT.get().map(|context| CallContext { identity, ..context }));
    }

    #[inline]
    pub(super) fn leave() {
        CURRENT.set(None);
    }
}
