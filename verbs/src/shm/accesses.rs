//! A peer's accesses through [windows](super::window): where the peer is, so that the owner of a window can wait for the end of what it has
//! taken away.
//!
//! The peer enters, checks that the window is still bound, accesses the memory, and leaves. The owner invalidates the window, and asks until
//! the access that it found under way has ended. Both sides fence between their store and their look, so one of the two sees the other: the
//! peer that the window is gone, or the owner that the peer is inside.

use super::sync::{AtomicU32, Ordering, fence};

/// Counts each begin and each end of an access: odd while there is one. Written by the peer; anything it writes only delays its own owner.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Accesses(AtomicU32);

impl Accesses {
    #[cfg(test)]
    pub(super) fn new() -> Accesses {
        Accesses(AtomicU32::new(0))
    }

    /// The peer begins an access. What it checks from now on counts.
    #[inline]
    pub(super) fn enter(&self) {
        self.count();
        fence(Ordering::SeqCst);
    }

    /// The access has ended.
    #[inline]
    pub(super) fn leave(&self) {
        self.count();
    }

    /// One thread at a time does this, so it needs no atomic addition. An owner that sees the begin of an access sees the end of the one before,
    /// and what that has stored.
    #[inline]
    fn count(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Whether the access has ended that was under way when the owner first asked, after an invalidation. `first` is what it saw then.
    pub(super) fn have_ended(&self, first: &mut Option<u32>) -> bool {
        let now = self.0.load(Ordering::Acquire);
        let before = *first.get_or_insert(now);
        before & 1 == 0 || now != before
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_access_that_begins_later_is_not_waited_for() {
        let (accesses, mut first) = (Accesses::new(), None);
        assert!(accesses.have_ended(&mut None), "there is none");
        accesses.enter();
        assert!(!accesses.have_ended(&mut first) && !accesses.have_ended(&mut first));
        accesses.leave();
        accesses.enter();
        assert!(accesses.have_ended(&mut first), "this one sees that the window is gone");
    }
}
