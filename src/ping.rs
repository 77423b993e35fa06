//! The service that every server of [`Server::builder`](crate::Server::builder) answers besides its own: for `farcall
//! ping`, and for programs that want to know whether a server is there and how far.
//!
//! A ping is an ordinary call of an ordinary service, with a name of its own. So a client that pings passes the same
//! handshake, crosses the same device, and is answered by the same threads as one that works; it needs to know nothing of
//! the services that are there.

use bytes::Bytes;

/// Gives back what it gets.
#[crate::service(name = "farcall.ping", crate = crate)]
pub trait Ping {
    /// The same bytes.
    #[rpc(idempotent)]
    fn ping(&self, payload: Bytes) -> Bytes;
}

/// The service's only implementation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pong;

impl Ping for Pong {
    fn ping(&self, payload: Bytes) -> Bytes {
        payload
    }
}
