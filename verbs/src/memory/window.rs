//! Memory windows: access to a part of a region for one peer, given and taken back by work requests.

use std::sync::{Arc, Weak};

use crate::dispatch;
use crate::{Access, RemoteRegion, SharedSlice};

/// The bits of a window's key that the consumer of a device chooses with each binding.
const KEY_TAG: u32 = 0xff;

/// What a window may allow.
const WINDOW_ACCESS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A memory window of type 2B of the InfiniBand specification (volume 1, section 10.6.7.2). Once
/// [bound](crate::WorkRequest::bind_window) by a work request of a connected queue pair, its key gives the peer of that queue
/// pair, and nobody else, access to a part of a region. A second work request
/// [invalidates](crate::WorkRequest::invalidate_window) the key. Neither makes a system call.
///
/// A window is bound or free. It becomes free when it is invalidated, and when the queue pair that it is bound on is dropped.
/// Only a free window can be bound; each binding has another key. There are 256 keys for a window: a key that is given out
/// means another binding after 256 of them.
///
/// A window keeps its region registered from a binding until it is bound again or dropped. Dropping a window takes the access
/// away, but does not wait for a WRITE that is landing, as the completion of an invalidation does. Drop it after its binding
/// has completed.
#[derive(Debug)]
pub struct MemoryWindow {
    /// Dropped first: access ends before the region may be deregistered.
    device: dispatch::Window,
    pd: u32,
    /// The key of its last binding, or the one that it was allocated with.
    rkey: u32,
    bound: Option<Bound>,
    /// The memory of its last binding.
    memory: Option<SharedSlice>,
}

/// A binding as posted.
#[derive(Debug)]
struct Bound {
    /// The queue pair, as long as it exists.
    to: Weak<()>,
    remote: RemoteRegion,
}

/// Identifies a queue pair to the windows that are bound on it. It is dropped with the queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Binder(Arc<()>);

/// A binding that a device has accepted and must execute.
#[derive(Debug)]
pub(crate) struct Binding {
    /// The window's key before, and from now on.
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code))]
    pub(crate) old_rkey: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// The memory of the binding before. An invalidation that takes it from the peer may still be under way.
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code))]
    pub(crate) before: Option<SharedSlice>,
}

/// Why a work request for a memory window was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// Only a free window can be bound.
    #[error("the memory window is bound; invalidate it first")]
    Bound,
    /// The window is free, or bound on another queue pair.
    #[error("the memory window is not bound on this queue pair, so it cannot be invalidated here")]
    NotBoundHere,
    /// The region's owner did not say that windows may be bound to it.
    #[error("the region has no Access::MW_BIND; register it with that flag")]
    NoBindAccess,
    /// Access that a window cannot give.
    #[error("a memory window gives remote read, write and atomic access only")]
    Access,
    /// A window has at least one byte.
    #[error("a memory window of no bytes; invalidate it instead")]
    Empty,
}

impl MemoryWindow {
    pub(crate) fn new(device: dispatch::Window, pd: u32, rkey: u32) -> MemoryWindow {
        MemoryWindow { device, pd, rkey, bound: None, memory: None }
    }

    /// The address and key under which the peer accesses it; `None` if it is free. A binding counts from its post on: tell the
    /// peer by a message on the same queue pair, which is sent after the binding.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.live().map(|bound| bound.remote)
    }

    /// Whether it is bound, by what has been posted.
    pub fn is_bound(&self) -> bool {
        self.live().is_some()
    }

    /// The key of its next binding; those of the bindings after it [follow](MemoryWindow::key_after). So a peer that counts the
    /// bindings need not be told each key.
    pub fn next_rkey(&self) -> u32 {
        MemoryWindow::key_after(self.rkey)
    }

    /// The key of the binding after the one with this key (`ibv_inc_rkey`): its lower bits count.
    pub fn key_after(rkey: u32) -> u32 {
        (rkey & !KEY_TAG) | (rkey.wrapping_add(1) & KEY_TAG)
    }

    fn live(&self) -> Option<&Bound> {
        self.bound.as_ref().filter(|bound| bound.to.strong_count() > 0)
    }

    pub(crate) fn device(&self) -> &dispatch::Window {
        &self.device
    }

    #[inline]
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// Whether it may be bound to this memory.
    pub(crate) fn check_binding(
        &self,
        memory: &SharedSlice,
        access: Access,
    ) -> Result<(), WindowError> {
        if self.is_bound() {
            return Err(WindowError::Bound);
        }
        if !memory.region_access().contains(Access::MW_BIND) {
            return Err(WindowError::NoBindAccess);
        }
        if !WINDOW_ACCESS.contains(access) {
            return Err(WindowError::Access);
        }
        if memory.is_empty() { Err(WindowError::Empty) } else { Ok(()) }
    }

    /// Whether it may be invalidated on this queue pair.
    pub(crate) fn check_invalidation(&self, binder: &Binder) -> Result<(), WindowError> {
        let here = |bound: &Bound| std::ptr::eq(bound.to.as_ptr(), Arc::as_ptr(&binder.0));
        if self.live().is_some_and(here) { Ok(()) } else { Err(WindowError::NotBoundHere) }
    }

    /// Binds it, as checked, to memory that the peer of this queue pair may access from now on.
    pub(crate) fn bind(&mut self, binder: &Binder, memory: SharedSlice, access: Access) -> Binding {
        let old_rkey = self.rkey;
        self.rkey = MemoryWindow::key_after(old_rkey);
        let (addr, len) = (memory.remote_address(), memory.len() as u64);
        let remote = RemoteRegion::new(addr, self.rkey, len);
        self.bound = Some(Bound { to: Arc::downgrade(&binder.0), remote });
        let before = self.memory.replace(memory);
        Binding { old_rkey, rkey: self.rkey, addr, len, access, before }
    }

    /// Invalidates it, as checked. Returns the key.
    pub(crate) fn invalidate(&mut self) -> u32 {
        self.bound = None;
        self.rkey
    }

    /// The device has allocated it again, under another key.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn renew(&mut self, rkey: u32) {
        self.rkey = rkey;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lower_bits_of_a_key_change() {
        let keys = [0x1234_5600, 0x1234_56ff, u32::MAX].map(MemoryWindow::key_after);
        assert_eq!(keys, [0x1234_5601, 0x1234_5600, 0xffff_ff00]);
    }
}
