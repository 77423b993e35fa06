//! Dialling and listening.

use super::{
    Adviser, BindTls, ClientTransport, ConnectionId, DialTls, Lane, LaneReason, ServerTransport,
};
use crate::compatibility::Compatibility;
use crate::error::{BindError, ConnectError};
use crate::identity::{Authentication, Key};
use crate::metrics::MoveCounts;
use crate::service::ServiceDescription;
use crate::site::Site;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// An address that can be dialled.
pub trait Dial: Send + Sync {
    /// Makes a connection for calls of `service`, which the thread of `site` drives. Blocks, at most for
    /// `options.timeout`.
    ///
    /// # Errors
    /// Why there is no connection.
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError>;
}

impl<D: Dial + ?Sized> Dial for Box<D> {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        (**self).dial(service, site, options)
    }
}

/// A connection that was dialled, and what can be called over it.
pub struct NewConnection {
    /// Carries the calls.
    pub transport: Box<dyn ClientTransport>,
    /// What cannot be called as the client declares it; `None`: the server's declaration fits.
    pub compatibility: Option<Box<Compatibility>>,
    /// Names the connection, for further lanes: if it was dialled as a [first one](super::Lane::First) or further one, of a server that
    /// has lanes.
    pub connection: Option<ConnectionId>,
}

impl NewConnection {
    /// The same connection, with this layer around its transport.
    pub fn with_layer(
        self,
        layer: impl FnOnce(Box<dyn ClientTransport>) -> Box<dyn ClientTransport>,
    ) -> NewConnection {
        NewConnection { transport: layer(self.transport), ..self }
    }
}

impl From<Box<dyn ClientTransport>> for NewConnection {
    /// A connection to a server whose declaration fits.
    fn from(transport: Box<dyn ClientTransport>) -> NewConnection {
        NewConnection { transport, compatibility: None, connection: None }
    }
}

impl<T: ClientTransport + 'static> From<Box<T>> for NewConnection {
    fn from(transport: Box<T>) -> NewConnection {
        NewConnection::from(transport as Box<dyn ClientTransport>)
    }
}

impl fmt::Debug for NewConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compatibility = &self.compatibility;
        f.debug_struct("NewConnection")
            .field("compatibility", compatibility)
            .finish_non_exhaustive()
    }
}

/// How to dial.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// The limit for the whole handshake. Default 5 s.
    pub timeout: Duration,
    /// Share with the other connections of the site what the backend can share. Default: nothing is shared.
    ///
    /// A backend that connects queue pairs has nothing to share; one of datagrams has a single queue pair for all
    /// connections of a site, whichever server they lead to. A NIC then keeps one context instead of one for each, and a
    /// connection costs memory for its calls only.
    pub share: bool,
    /// Which lane of which connection this is to be. Default: the only one of a connection of its own.
    ///
    /// A transport that has no lanes is to refuse to dial a further one.
    pub lane: Lane,
    /// Why it is opened, for those who look at the server. Default: the connection begins with it.
    pub why: LaneReason,
    /// Counts how the connection moves among backends. Clones of these options count in the same place.
    pub moves: Arc<MoveCounts>,
    /// The server thread that is to serve the connection, by its number from 0. A server without that thread refuses. A further lane comes to
    /// the thread of its connection. Default: the server takes its threads in rotation.
    ///
    /// A transport that cannot do that is to refuse to dial.
    pub thread: Option<u16>,
    /// Further services that the connection is to carry. Default: none.
    pub further: Vec<&'static ServiceDescription>,
    /// Names of methods without which there is to be no connection, besides those that the service requires. Default: none.
    pub require: Vec<&'static str>,
    /// Proves to the server who this client is, and has the server prove that it knows the key too. Default: none.
    ///
    /// A transport that cannot do that is to refuse to dial.
    pub key: Option<Key>,
    /// Shakes hands within TLS, and checks that the server is the right one. Default: no TLS.
    ///
    /// A transport that cannot do that is to refuse to dial.
    pub tls: Option<DialTls>,
}

impl DialOptions {
    /// Has the connection carry this service, too.
    pub(crate) fn add_service(&mut self, service: &'static ServiceDescription) {
        if !self.further.iter().any(|it| it.name == service.name) {
            self.further.push(service);
        }
    }
}

impl Default for DialOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(5);
        DialOptions {
            timeout,
            share: false,
            lane: Lane::Alone,
            why: LaneReason::First,
            moves: Arc::default(),
            thread: None,
            further: Vec::new(),
            require: Vec::new(),
            key: None,
            tls: None,
        }
    }
}

/// An address to listen at.
pub trait Binding {
    /// Listens for clients of `services`, for one server thread per site. From now on, threads of the transport accept
    /// connections and distribute them among the server threads.
    ///
    /// # Errors
    /// Why the address cannot be had.
    fn bind(
        &self,
        sites: &[Site],
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError>;
}

/// How to listen.
#[derive(Clone, Debug)]
pub struct BindOptions {
    /// The limit for one client's handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// The limit of clients, over all threads; further ones are refused. Default 4096.
    pub max_clients: usize,
    /// Whom to let in. Default: every client.
    ///
    /// A transport that cannot check that is to refuse to listen.
    pub authentication: Option<Authentication>,
    /// The limit of connections of one identity, over all threads; further ones are refused. Default: none.
    pub max_connections_per_identity: Option<usize>,
    /// Lets in only clients that shake hands within TLS. Default: no TLS.
    ///
    /// A transport that cannot do that is to refuse to listen.
    pub tls: Option<BindTls>,
    /// Raise the soft limit of the process's descriptors to its hard limit, if clients need descriptors. Default: yes.
    pub raise_descriptor_limit: bool,
}

impl Default for BindOptions {
    fn default() -> Self {
        let handshake_timeout = Duration::from_secs(5);
        BindOptions {
            handshake_timeout,
            max_clients: 4096,
            authentication: None,
            tls: None,
            max_connections_per_identity: None,
            raise_descriptor_limit: true,
        }
    }
}

/// What serves an address in one way: for an address that is served by one backend, all there is.
pub struct BoundHalf {
    /// One per server thread, in the order of the sites.
    pub transports: Vec<Box<dyn ServerTransport>>,
    /// Makes the transport of a thread that panicked, or lost the transport's device, once more. `None`: a thread that panics ends, and
    /// one without the device serves nobody there.
    pub renewal: Option<Arc<dyn Renewal>>,
}

/// An address that is listened at, before the server's threads run.
pub struct Bound {
    /// The ways in which it is served; each thread has all of them.
    pub halves: Vec<BoundHalf>,
    /// Accepts clients.
    pub acceptor: Box<dyn Acceptor>,
    /// The address as it was given, with the parts that the system chose.
    pub address: String,
    /// Advises clients that may move among the halves. A server that listens at several addresses takes the advice of the first that
    /// has an adviser for all its clients.
    pub adviser: Option<Arc<dyn Adviser>>,
}

/// Makes transports once more for an address that is listened at.
pub trait Renewal: Send + Sync {
    /// Makes the transport of the server thread of this index and site. Its earlier one was dropped with all clients; clients that
    /// are accepted from now on come to this one.
    ///
    /// # Errors
    /// Why there is none now, for example that the device is gone. The caller tries again later.
    fn renew(&self, thread: usize, site: &Site) -> Result<Box<dyn ServerTransport>, BindError>;

    /// The transport of this thread has [lost its device](super::RequestSink::device_lost): until it is renewed, clients that want to
    /// come there are refused.
    fn lose(&self, _thread: usize) {}
}

/// Accepts clients until it is stopped.
pub trait Acceptor: Send {
    /// Stops accepting clients and frees the address, before it returns. Dropping the acceptor does it too.
    fn stop(&mut self);
}
