//! The thread at the other core, which works only while it is asked to.

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

/// What the partner is to do now.
#[derive(Clone, Debug)]
pub(super) struct Orders(Arc<CachePadded<AtomicU8>>);

impl Orders {
    /// The slice is over: the partner's work is to return.
    #[inline]
    pub(super) fn are_to_stop(&self) -> bool {
        self.0.load(Ordering::Acquire) != WORK
    }
}

/// A pinned thread that works in slices, and between them sleeps and leaves its core to others.
pub(super) struct Partner {
    orders: Orders,
    thread: Option<JoinHandle<()>>,
}

impl Partner {
    /// Starts it on `core`. In each slice `work` is called until it is to stop.
    pub(super) fn start(
        core: usize,
        mut work: impl FnMut(&Orders) + Send + 'static,
    ) -> Result<Partner> {
        let orders = Orders(Arc::new(CachePadded::new(AtomicU8::new(REST))));
        let theirs = orders.clone();
        let (pinned, is_pinned) = mpsc::channel();
        let thread = thread::Builder::new().name("limit".into()).spawn(move || {
            // The receiver waits below, and an error means that nobody wants a partner any more.
            if pinned.send(cores::pin(core)).is_err() {
                return;
            }
            loop {
                match theirs.0.load(Ordering::Acquire) {
                    QUIT => return,
                    WORK => work(&theirs),
                    // Sleeps, or returns at once if a slice has begun since the orders were read.
                    _ => thread::park(),
                }
            }
        })?;
        is_pinned.recv().context("the limit's other thread ended")??;
        Ok(Partner { orders, thread: Some(thread) })
    }

    /// Has it work beside `ours`.
    pub(super) fn beside<T>(&self, ours: impl FnOnce() -> T) -> T {
        self.order(WORK);
        let outcome = ours();
        self.order(REST);
        outcome
    }

    fn order(&self, what: u8) {
        self.orders.0.store(what, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.order(QUIT);
        if let Some(thread) = self.thread.take() {
            // It ends at the next look at its orders; it cannot panic.
            let _ = thread.join();
        }
    }
}
