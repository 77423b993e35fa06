//! The built-in service that every server of [`Server::builder`](crate::Server::builder) also answers. It is
//! used by `farcall ping`, and by programs that check whether a server is reachable and how fast.
//!
//! A ping is an ordinary call of an ordinary service with a name of its own. A client that pings therefore
//! does the same handshake, uses the same device, and is answered by the same threads as any other. It does
//! not need to know the server's other services.

use bytes::Bytes;

/// Returns its argument.
#[crate::service(name = "farcall.ping", crate = crate)]
pub trait Ping {
    /// Returns the same bytes.
    #[rpc(idempotent)]
    fn ping(&self, payload: Bytes) -> Bytes;
}

/// The implementation of the service.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pong;

impl Ping for Pong {
    fn ping(&self, payload: Bytes) -> Bytes {
        payload
    }
}
