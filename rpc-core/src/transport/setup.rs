//! How connections come to be: dialling, and listening.

use super::{ClientTransport, ServerTransport};
use crate::error::{BindError, ConnectError};
use crate::service::ServiceDescription;
use crate::site::Site;
use core::time::Duration;

/// Something that can be dialled: an address.
pub trait Dial: Send + Sync {
    /// Makes one connection for calls of `service`, to be driven by the thread of `site`. Blocks, at most for
    /// `options.timeout`.
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError>;
}

impl<D: Dial + ?Sized> Dial for Box<D> {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError> {
        (**self).dial(service, site, options)
    }
}

/// How to dial.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DialOptions {
    /// The bound on the whole handshake. Default 5 s.
    pub timeout: Duration,
    /// Share with the other connections of the site what the backend can share. Default: nothing is shared.
    ///
    /// A backend that connects queue pairs has nothing to share; one of datagrams has a single queue pair for all
    /// connections of a site, whichever server they lead to. A NIC then keeps one context instead of one for each, and a
    /// connection costs memory for its calls only.
    pub share: bool,
}

impl Default for DialOptions {
    fn default() -> Self {
        DialOptions { timeout: Duration::from_secs(5), share: false }
    }
}

impl DialOptions {
    /// Sets the bound on the whole handshake.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets whether to share with the other connections of the site what the backend can share.
    pub fn share(mut self, share: bool) -> Self {
        self.share = share;
        self
    }
}

/// Something that can be listened on: an address.
pub trait Binding {
    /// Listens for clients of `services`, for a server thread at each of `sites`. Connections are accepted from now on, by
    /// threads of the transport's own, and dealt to the server threads.
    fn bind(
        &self,
        sites: &[Site],
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
    /// One per server thread, in the order of their sites.
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
