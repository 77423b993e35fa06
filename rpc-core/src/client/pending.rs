//! The token of a started call.

use crate::service::Answer;
use core::fmt;

/// A started call of a [`Connection`](super::Connection): give it to `take` until it answers, or to `cancel`.
///
/// The token borrows nothing. The connection keeps the answer until it is taken, so a token that is dropped without
/// `take` or `cancel` holds one of the connection's places until the connection is dropped.
#[must_use = "an answer that is not taken holds its place in the connection; take or cancel it"]
pub struct PendingCall<R> {
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) read: fn(Answer<'_>) -> R,
}

impl<R> fmt::Debug for PendingCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingCall({}.{})", self.index, self.generation)
    }
}
