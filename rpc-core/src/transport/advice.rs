//! What a server that is served in several ways advises its clients.

use crate::time::Instant;

/// Where in a response the server's advice is.
const AT: usize = 1;

/// Advises the clients of one address, in their answers, which of its ways to take. A client follows it or not.
pub trait Adviser: Send + Sync {
    /// A server thread tells its load, now and then while it is busy. Returns the advice from now on; 0 is none. Any thread may be at it
    /// at the same time.
    fn advise(&self, thread: usize, load: &ThreadLoad<'_>, now: Instant) -> u8;
}

/// The load of one server thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLoad<'a> {
    /// Clients with calls since the load was last told, as far as was seen in some turns.
    pub active: usize,
    /// Clients with calls in the last milliseconds, as far as was seen.
    pub active_lately: usize,
    /// Calls since the thread began, over each way of the address, in the order of [`Bound::halves`](super::Bound::halves).
    pub calls: &'a [u64],
    /// The mean length in bytes of the requests of those turns; 0 if there were none.
    pub mean_bytes: usize,
}

/// The advice in a response; 0 is none. The response may be anything: a peer has sent it.
#[inline]
pub fn advice_in(response: &[u8]) -> u8 {
    response.get(AT).copied().unwrap_or(0)
}

/// The header of a response with that first byte, and with advice.
#[inline]
pub(crate) fn with_advice(status: u8, advice: u8) -> u64 {
    u64::from(status) | u64::from(advice) << (8 * AT)
}
