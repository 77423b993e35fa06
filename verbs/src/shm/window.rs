//! Memory windows: their records, which peers read for themselves, so that a new binding costs nobody a request.
//!
//! A peer looks up a key once, to learn the window's slot. After that a binding is one record in the file of [region
//! words](super::region_words), sealed against other writers: the key, the queue pair it is for, and the memory. The record's
//! word is odd while the window is bound, and another odd number with each binding. So what a peer remembers of a binding is
//! checked like a region, with one load.
//!
//! The initiator's CPU acts as the NIC, so it may be between that check and its last store when the window is invalidated.
//! Around each access through a window it therefore tells its peer that it is [inside](super::accesses), and checks once more; an
//! invalidation changes the word, and completes when it has seen the peer outside.

use std::sync::Arc;

use super::context::Context;
use super::domain::Domain;
use super::region_words::RegionWord;
use super::sync::{AtomicU64, Ordering, fence};
use crate::VerbsError;
use crate::memory::window::Binding;

/// Windows of one context.
pub(super) const WINDOW_SLOTS: u32 = 1 << 13;

/// The part of a key that stays the same for all bindings of a window.
pub(super) fn base(rkey: u32) -> u32 {
    rkey >> 8
}

/// The record of one window.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct WindowRecord {
    word: RegionWord,
    /// The key, and the number of the queue pair above it.
    key: AtomicU64,
    /// The key of the region, and the access flags above it.
    region: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
}

/// What a record says of a bound window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoundTo {
    /// The word's value while this binding lasts.
    pub(super) generation: u32,
    pub(super) rkey: u32,
    /// The owner's queue pair: only its peer has access.
    pub(super) qp: u32,
    pub(super) region: u32,
    pub(super) access: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
}

fn halves(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl WindowRecord {
    #[cfg(test)]
    fn new() -> WindowRecord {
        WindowRecord {
            word: RegionWord::new(),
            key: AtomicU64::new(0),
            region: AtomicU64::new(0),
            addr: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }

    pub(super) fn word(&self) -> &RegionWord {
        &self.word
    }

    /// Binds the window, which is free. `generation` of the argument is not used.
    fn bind(&self, to: BoundTo) {
        // So that a peer never sees the bytes of this binding under the word of the one before. That one may not have been
        // invalidated, if its queue pair is gone.
        self.word.deregister();
        fence(Ordering::SeqCst);
        self.key.store(halves(to.rkey, to.qp), Ordering::Relaxed);
        self.region.store(halves(to.region, to.access), Ordering::Relaxed);
        self.addr.store(to.addr, Ordering::Relaxed);
        self.len.store(to.len, Ordering::Relaxed);
        self.word.register();
    }

    /// Takes the access away. What a peer has begun may go on.
    fn invalidate(&self) {
        self.word.deregister();
        fence(Ordering::SeqCst);
    }

    /// The current binding; `None` if the window is free, or is being bound.
    pub(super) fn load(&self) -> Option<BoundTo> {
        let generation = self.word.living()?;
        let (key, region) = (self.key.load(Ordering::Relaxed), self.region.load(Ordering::Relaxed));
        let (addr, len) = (self.addr.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        self.word.is_alive(generation).then_some(BoundTo {
            generation,
            rkey: key as u32,
            qp: (key >> 32) as u32,
            region: region as u32,
            access: (region >> 32) as u32,
            addr,
            len,
        })
    }
}

/// A window of ours. Dropping it frees its slot.
#[derive(Debug)]
pub(crate) struct Window {
    context: Arc<Context>,
    base: u32,
    slot: u32,
}

/// A binding that waits for its turn in the send queue, with what it needs.
#[derive(Debug)]
pub(super) struct Bind {
    window: Arc<Window>,
    to: BoundTo,
}

impl Window {
    pub(crate) fn alloc(domain: &Domain) -> Result<Window, VerbsError> {
        let (base, slot) = domain.context.add_window()?;
        Ok(Window { context: Arc::clone(&domain.context), base, slot })
    }

    /// The key before the first binding, which has the next one.
    pub(crate) fn first_key(&self) -> u32 {
        self.base << 8
    }

    fn record(&self) -> &WindowRecord {
        self.context.window_record(self.slot)
    }

    /// Takes the access away. What the peer has begun may go on.
    pub(super) fn invalidate(&self) {
        self.record().invalidate();
    }
}

impl Bind {
    /// Of a window to a part of the region with this key, for the peer of this queue pair of ours.
    pub(super) fn new(window: Arc<Window>, binding: &Binding, region: u32, qp: u32) -> Bind {
        let Binding { rkey, addr, len, access, .. } = *binding;
        let access = u32::from(access.bits());
        Bind { window, to: BoundTo { generation: 0, rkey, qp, region, access, addr, len } }
    }

    /// Gives the access.
    pub(super) fn execute(&self) {
        self.window.record().bind(self.to);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.record().invalidate();
        self.context.remove_window(self.base, self.slot);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    use crate::MemoryWindow;

    #[test]
    fn all_keys_of_a_window_lead_to_its_slot() {
        let context = Context::open(false).unwrap();
        let domain = Domain { context: Arc::clone(&context), number: 1, sole: None };
        for window in [(); 2].map(|()| Window::alloc(&domain).unwrap()) {
            let first = window.first_key();
            let keys =
                std::iter::successors(Some(first), |key| Some(MemoryWindow::key_after(*key)));
            for key in keys.take(300) {
                assert_eq!(context.window(key), Some(window.slot), "{key:#x}");
            }
        }
    }

    fn binding(rkey: u32) -> BoundTo {
        BoundTo { generation: 0, rkey, qp: 7, region: 9, access: 2, addr: 4096, len: 64 }
    }

    #[test]
    fn a_record_gives_its_binding_until_it_is_invalidated() {
        let record = WindowRecord::new();
        assert_eq!(record.load(), None);
        record.bind(binding(0x101));
        let first = record.load().unwrap();
        assert_eq!(BoundTo { generation: 0, ..first }, binding(0x101));
        record.invalidate();
        assert_eq!(record.load(), None);
        assert!(!record.word().is_alive(first.generation));
        record.bind(binding(0x102));
        let second = record.load().unwrap();
        assert!(second.rkey == 0x102 && second.generation != first.generation);
        assert!(!record.word().is_alive(first.generation), "the binding before");
    }
}

#[cfg(all(test, loom))]
mod revoke_loom;
