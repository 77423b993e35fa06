//! Calls that block the thread of a server: what is said of them.
//!
//! A handler that waits for a call blocks its server's thread, on which no other handler runs meanwhile. If the call is to the same
//! thread, it waits for itself until its deadline.

use crate::error::{RpcError, Waited};
use crate::server::CallContext;
use core::sync::atomic::{AtomicBool, Ordering};

/// A handler runs on this thread, which waits for a call of its own.
fn is_in_handler() -> bool {
    CallContext::current().is_some()
}

/// This thread is about to sleep until a call ends. Warns, once per process, if a handler runs on it.
#[cold]
pub(crate) fn warn_of_server_thread() {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    if is_in_handler() && !HAS_WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a handler blocks its server's thread while it waits for a call: no other handler runs there meanwhile, and a call to the same server may wait for itself; make the handler an `async fn` and await the call"
        );
    }
}

/// A call that was sent has no answer at its deadline, and this thread has waited for it.
#[cold]
pub(crate) fn late_answer() -> RpcError {
    on_this_thread(RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForAnswer })
}

/// The error of a call for which this thread has waited.
#[cold]
pub(crate) fn on_this_thread(mut error: RpcError) -> RpcError {
    if let RpcError::DeadlineExceeded { waited: waited @ Waited::ForAnswer, .. } = &mut error
        && is_in_handler()
    {
        *waited = Waited::OnServerThread;
    }
    error
}
