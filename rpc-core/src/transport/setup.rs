//! How connections come to be: dialling, and listening.

use super::{ClientThread, ClientTransport, ServerTransport};
use crate::error::{BindError, ConnectError};
use crate::service::ServiceDescription;
use core::time::Duration;

/// Something that can be dialled: an address.
pub trait Dial: Send + Sync {
    /// Makes one connection for calls of `service`. Blocks, at most for `options.timeout`.
    fn dial(
        &self,
        service: &'static ServiceDescription,
        options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError>;
}

/// How to dial.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DialOptions {
    /// The bound on the whole handshake. Default 5 s.
    pub timeout: Duration,
    /// Shares with the other connections of that thread what its backend can share. Default: nothing is shared.
    pub thread: Option<ClientThread>,
}

impl Default for DialOptions {
    fn default() -> Self {
        DialOptions { timeout: Duration::from_secs(5), thread: None }
    }
}

impl DialOptions {
    /// Sets the bound on the whole handshake.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Shares with the other connections of that thread what the backend can share.
    pub fn thread(mut self, thread: &ClientThread) -> Self {
        self.thread = Some(thread.clone());
        self
    }
}

/// Something that can be listened on: an address.
pub trait Binding {
    /// Listens for clients of `services`, for `threads` server threads. Connections are accepted from now on, by
    /// threads of the transport's own, and dealt to the `threads` transports.
    fn bind(
        &self,
        threads: usize,
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError>;
}

/// How to listen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BindOptions {
    /// The bound on one client's handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// Most clients at once, all threads together; later ones are refused. Default 4096.
    pub max_clients: usize,
}

impl Default for BindOptions {
    fn default() -> Self {
        BindOptions { handshake_timeout: Duration::from_secs(5), max_clients: 4096 }
    }
}

/// A listening server, before its threads run.
pub struct Bound {
    /// One per server thread.
    pub transports: Vec<Box<dyn ServerTransport>>,
    /// What takes new clients in.
    pub acceptor: Box<dyn Acceptor>,
    /// Where they come in: the address as it was given, with whatever the system chose.
    pub address: String,
}

/// What takes new clients in, until stopped.
pub trait Acceptor: Send {
    /// Takes no more clients and frees the address. Returns when both are so. Dropping does it too.
    fn stop(&mut self);
}
