//! Whether all threads of a running server run.

use crate::error::ThreadEnded;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the threads of a server tell it when they end too early.
#[derive(Debug, Default)]
pub(super) struct Health {
    first_ended: Mutex<Option<ThreadEnded>>,
    news: Condvar,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, Option<ThreadEnded>> {
        self.first_ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread has ended too early.
    #[cold]
    pub(super) fn report(&self, ended: ThreadEnded) {
        self.lock().get_or_insert(ended);
        self.news.notify_all();
    }

    pub(super) fn is_good(&self) -> bool {
        self.lock().is_none()
    }

    /// Waits for the first thread that ends too early.
    pub(super) fn wait(&self) -> ThreadEnded {
        let mut first_ended = self.lock();
        loop {
            if let Some(ended) = &*first_ended {
                return ended.clone();
            }
            first_ended = self.news.wait(first_ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
