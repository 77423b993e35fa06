//! What a handler can learn about the call that it serves.

use super::clients::ClientKey;
use crate::identity::Identity;
use crate::site::{Caller, Site};
use crate::time::Instant;
use crate::transport::ClientId;
use core::cell::{Cell, RefCell};
use core::time::Duration;

/// The call that the current handler serves, as of the start of the thread's turn.
///
/// It does not change. In an `async` handler, call [`current`](Self::current) again after each `.await`: time has passed,
/// and the caller may have given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallContext {
    deadline: Instant,
    now: Instant,
    cancelled: bool,
    identity: Option<Identity>,
}

/// What each call has of its context.
#[derive(Clone, Copy)]
struct Current {
    deadline: Instant,
    now: Instant,
    cancelled: bool,
    /// [`CALLER`] makes the call.
    is_identified: bool,
    transport: u32,
    client: ClientId,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// Who has made the last call of a client with an identity. Apart from the other parts: most servers identify nobody, and a client's
    /// next call finds it here.
    static CALLER: RefCell<Option<Identity>> = const { RefCell::new(None) };
}

impl CallContext {
    /// The context of the call whose handler runs now on this thread; `None` outside of handlers.
    pub fn current() -> Option<CallContext> {
        let Current { deadline, now, cancelled, .. } = CURRENT.get()?;
        Some(CallContext { deadline, now, cancelled, identity: CallContext::caller() })
    }

    /// Time left until the call's deadline, as of the start of the thread's turn; `None` if the call has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        (self.deadline != Instant::FAR_FUTURE).then(|| self.deadline - self.now)
    }

    /// The start of the thread's turn, on the clock of its site.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The caller has given up. Only handlers of a server with [`CancelPolicy::Finish`](super::CancelPolicy::Finish) see
    /// this; otherwise the handler is dropped instead.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Who the caller is; `None` if the server [authenticates](super::ServerBuilder::authenticate) nobody.
    pub fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }

    /// The client whose call it is, and the site of the thread that serves it; `None` outside of handlers.
    #[doc(hidden)]
    pub fn client() -> Option<(Site, Caller)> {
        let Current { transport, client, .. } = CURRENT.get()?;
        let site = Site::current()?;
        let caller = Caller { site: site.number(), transport, client };
        Some((site, caller))
    }

    /// Who makes the call whose handler runs now.
    pub(super) fn caller() -> Option<Identity> {
        if !CURRENT.get()?.is_identified {
            return None;
        }
        // Without the thread's own state, it ends and serves nobody.
        CALLER.try_with(|caller| caller.borrow().clone()).ok().flatten()
    }

    /// A handler runs, for a caller that is unknown so far.
    #[inline]
    pub(super) fn enter(deadline: Instant, now: Instant, cancelled: bool, client: ClientKey) {
        let ClientKey { transport, id: client } = client;
        let is_identified = false;
        let current = Current { deadline, now, cancelled, is_identified, transport, client };
        CURRENT.set(Some(current));
    }

    /// The call whose handler runs next is made by this caller.
    pub(super) fn identify(identity: Option<&Identity>) {
        let Some(identity) = identity else { return };
        let is_set = CALLER.try_with(|caller| {
            let mut caller = caller.borrow_mut();
            if !caller.as_ref().is_some_and(|last| last.is_same_clone(identity)) {
                *caller = Some(identity.clone());
            }
        });
        let is_identified = is_set.is_ok();
        CURRENT.set(CURRENT.get().map(|current| Current { is_identified, ..current }));
    }

    #[inline]
    pub(super) fn leave() {
        CURRENT.set(None);
    }
}
