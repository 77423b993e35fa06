//! The thread on the other core, which works only on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use crossbeam_utils::CachePadded;

use crate::cores;

const REST: u8 = 0;
const WORK: u8 = 1;
const QUIT: u8 = 2;

/// The partner's current order.
#[derive(Clone, Debug)]
pub(super) struct Orders(Arc<CachePadded<AtomicU8>>);

impl Orders {
    /// Whether the slice is over and the partner's work must return.
    #[inline]
    pub(super) fn are_to_stop(&self) -> bool {
        self.0.load(Ordering::Acquire) != WORK
    }
}

/// A pinned thread that works in slices; between them it sleeps and leaves its core to others.
pub(super) struct Partner {
    orders: Orders,
    thread: Option<JoinHandle<()>>,
}

impl Partner {
    /// Starts it on `core`. In each slice it calls `work` until the slice ends.
    pub(super) fn start(
        core: usize,
        mut work: impl FnMut(&Orders) + Send + 'static,
    ) -> Result<Partner> {
        let orders = Orders(Arc::new(CachePadded::new(AtomicU8::new(REST))));
        let theirs = orders.clone();
        let (pinned, is_pinned) = mpsc::channel();
        let thread = thread::Builder::new().name("limit".into()).spawn(move || {
            // The receiver waits below; an error means that the partner is no longer needed.
            if pinned.send(cores::pin(core)).is_err() {
                return;
            }
            loop {
                match theirs.0.load(Ordering::Acquire) {
                    QUIT => return,
                    WORK => work(&theirs),
                    // Sleeps, or returns immediately if a slice has begun since the order was read.
                    _ => thread::park(),
                }
            }
        })?;
        is_pinned.recv().context("the limit's other thread ended")??;
        Ok(Partner { orders, thread: Some(thread) })
    }

    /// Runs it while `ours` runs.
    pub(super) fn work_during<T>(&self, ours: impl FnOnce() -> T) -> T {
        self.order(WORK);
        let outcome = ours();
        self.order(REST);
        outcome
    }

    fn order(&self, what: u8) {
        self.orders.0.store(what, Ordering::Release);
        self.wake();
    }

    /// Ends its next or current `park`.
    pub(super) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.order(QUIT);
        if let Some(thread) = self.thread.take() {
            // It ends when it reads its order next; it cannot panic.
            let _ = thread.join();
        }
    }
}
