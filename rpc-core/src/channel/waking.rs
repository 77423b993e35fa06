//! Waking callers, whose wakers run code of theirs.

use crate::panics::contain;
use core::cell::RefCell;
use core::task::Waker;

/// Callers of one turn for whom there is room without an allocation.
pub(super) const ROOM: usize = 64;

thread_local! {
    /// Empty, and keeps its memory from one turn to the next.
    static SPARE: RefCell<Vec<Waker>> = RefCell::new(Vec::with_capacity(ROOM));
}

/// Adds a waker to those of this turn.
#[inline]
pub(super) fn add(woken: &mut Vec<Waker>, waker: Waker) {
    if woken.capacity() == 0 {
        // The first of a client.
        woken.reserve(ROOM);
    }
    woken.push(waker);
}

/// Takes the wakers out of `woken`, to be woken when nothing of the channel is in use.
pub(super) fn take(woken: &mut Vec<Waker>) -> Vec<Waker> {
    let spare = SPARE.try_with(|spare| spare.take()).unwrap_or_default();
    core::mem::replace(woken, spare)
}

/// Wakes these callers.
pub(super) fn wake(mut woken: Vec<Waker>) {
    wake_all(&mut woken);
    let _ = SPARE.try_with(|spare| spare.replace(woken));
}

/// Wakes these callers. One whose waker panics does not keep the others from being woken.
pub(super) fn wake_all(woken: &mut Vec<Waker>) {
    woken.drain(..).for_each(wake_one);
}

/// Wakes a caller. Its waker may panic.
pub(super) fn wake_one(waker: Waker) {
    contain("a waker", || waker.wake());
}
