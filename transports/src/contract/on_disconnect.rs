//! What is dropped with a client.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Drops what it is given as soon as the server thread drops its client.
#[derive(Clone, Default)]
pub struct OnDisconnect(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    kept: Option<Box<dyn Send>>,
    is_disconnected: bool,
}

impl OnDisconnect {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps this until the client is dropped. If it is dropped already, drops this at once.
    pub fn keep(&self, thing: Box<dyn Send>) {
        let mut state = self.lock();
        if !state.is_disconnected {
            let before = state.kept.replace(thing);
            // Not under the lock, as in `drop`.
            drop((state, before));
        }
    }

    /// The guard that the server thread keeps with its client.
    pub(crate) fn guard(&self) -> DropGuard {
        DropGuard(self.clone())
    }
}

/// Lives as long as the server thread has the client; its drop is the disconnect.
pub(crate) struct DropGuard(OnDisconnect);

impl Drop for DropGuard {
    fn drop(&mut self) {
        let kept = {
            let mut state = self.0.lock();
            state.is_disconnected = true;
            state.kept.take()
        };
        // Not under the lock: its drop may take other locks.
        drop(kept);
    }
}

impl fmt::Debug for DropGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropGuard").finish_non_exhaustive()
    }
}

impl fmt::Debug for OnDisconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDisconnect").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_dropped_with_the_client() {
        let thing = Arc::new(());
        let on_disconnect = OnDisconnect::default();
        let guard = on_disconnect.guard();
        on_disconnect.keep(Box::new(Arc::clone(&thing)));
        assert_eq!(Arc::strong_count(&thing), 2);
        drop(guard);
        assert_eq!(Arc::strong_count(&thing), 1);
        on_disconnect.keep(Box::new(Arc::clone(&thing)));
        assert_eq!(Arc::strong_count(&thing), 1, "the client was dropped before");
    }
}
