//! The token of a started call.

use core::fmt;
use core::marker::PhantomData;

/// A started call of a [`Connection`](super::Connection). Pass it to `take` until the call has ended, or to `cancel`.
///
/// The token borrows nothing. The connection keeps the result until it is taken: a token that is dropped without `take` or
/// `cancel` occupies memory of the connection until the connection is dropped.
#[must_use = "a result that is not taken occupies memory of the connection; take or cancel it"]
pub struct PendingCall<R> {
    /// Index and generation in one word, which moves in a register.
    id: u64,
    result: PhantomData<fn() -> R>,
}

impl<R> PendingCall<R> {
    #[inline]
    pub(super) fn new(index: u32, generation: u32) -> Self {
        PendingCall { id: u64::from(generation) << 32 | u64::from(index), result: PhantomData }
    }

    #[inline]
    pub(super) fn index(&self) -> u32 {
        self.id as u32
    }

    #[inline]
    pub(super) fn generation(&self) -> u32 {
        (self.id >> 32) as u32
    }
}

impl<R> fmt::Debug for PendingCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingCall({}.{})", self.index(), self.generation())
    }
}
