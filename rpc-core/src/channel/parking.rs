//! Channels that the I/O thread of an endpoint need not look at: nothing is under way, and what arrives calls for them by name.
//!
//! So a thousand idle clients of an endpoint cost nothing while another one is busy. A channel is parked after its callers have
//! stopped driving, when its transport is armed and [calls a waker](crate::transport::Armed::ByWaker). It leaves with
//! the first event, or when a caller has something for the I/O thread.

use super::endpoint::EndpointShared;
use super::shared::Shared;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::task::Waker;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Wake;

/// Whether one channel is parked, and where it is called.
#[derive(Default)]
pub(super) struct Parking {
    is_parked: AtomicBool,
    of: OnceLock<Entry>,
}

/// What a channel is called by.
struct Entry {
    number: u64,
    endpoint: Weak<EndpointShared>,
    waker: Waker,
}

/// Calls for a channel when its transport has an event.
struct EventWaker(Weak<Shared>);

impl Wake for EventWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.rouse();
        }
    }
}

impl Parking {
    /// The channel belongs to this endpoint, where it has this number.
    pub(super) fn enter(channel: &Arc<Shared>, endpoint: &Arc<EndpointShared>, number: u64) {
        let waker = Waker::from(Arc::new(EventWaker(Arc::downgrade(channel))));
        let endpoint = Arc::downgrade(endpoint);
        let _ = channel.parking.of.set(Entry { number, endpoint, waker });
    }

    /// What calls for the channel.
    pub(super) fn waker(&self) -> Option<&Waker> {
        self.of.get().map(|entry| &entry.waker)
    }

    /// The I/O thread is about to park the channel. From now on it is called for. The thread then looks whether there is
    /// something for it, and [takes that back](Self::revoke) if there is.
    pub(super) fn announce(&self) {
        self.is_parked.store(true, Ordering::SeqCst);
        // Orders it before that look. Others leave something first, and then call.
        fence(Ordering::SeqCst);
    }

    /// It is called for.
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::SeqCst)
    }

    /// The channel is not parked after all.
    pub(super) fn revoke(&self) {
        self.is_parked.store(false, Ordering::SeqCst);
    }

    /// Calls for the channel if it is parked. The caller then rouses the thread.
    pub(super) fn unpark(&self) {
        fence(Ordering::SeqCst);
        if self.is_parked.load(Ordering::SeqCst)
            && self.is_parked.swap(false, Ordering::SeqCst)
            && let Some(entry) = self.of.get()
            && let Some(endpoint) = entry.endpoint.upgrade()
        {
            endpoint.called.push(entry.number);
        }
    }
}

/// Channels for which there is room from the beginning: they may be few, and parked seldom.
const FEW: usize = 4;

/// The channels of an endpoint that were called for.
pub(super) struct Called {
    numbers: Mutex<Vec<u64>>,
    is_some: AtomicBool,
}

impl Default for Called {
    fn default() -> Self {
        Called { numbers: Mutex::new(Vec::with_capacity(FEW)), is_some: AtomicBool::new(false) }
    }
}

impl Called {
    fn push(&self, number: u64) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.push(number);
        self.is_some.store(true, Ordering::SeqCst);
    }

    /// There are some.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.is_some.load(Ordering::SeqCst)
    }
}

/// The parked channels of an endpoint's thread.
pub(super) struct Parked {
    channels: HashMap<u64, Arc<Shared>>,
    /// Empty, and keeps its memory.
    called: Vec<u64>,
}

impl Default for Parked {
    fn default() -> Self {
        Parked { channels: HashMap::with_capacity(FEW), called: Vec::with_capacity(FEW) }
    }
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Parks a channel that was [announced](Parking::announce).
    pub(super) fn insert(&mut self, channel: Arc<Shared>) {
        if let Some(entry) = channel.parking.of.get() {
            let number = entry.number;
            self.channels.insert(number, channel);
        }
    }

    /// Moves those that were called for to `channels`.
    #[cold]
    pub(super) fn take_called(&mut self, called: &Called, channels: &mut Vec<Arc<Shared>>) {
        let mut numbers = called.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        called.is_some.store(false, Ordering::SeqCst);
        core::mem::swap(&mut *numbers, &mut self.called);
        drop(numbers);
        let Parked { channels: parked, called } = self;
        channels.extend(called.drain(..).filter_map(|number| parked.remove(&number)));
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Arc<Shared>> {
        self.channels.drain().map(|(_, channel)| channel)
    }
}
