//! Where clients come in: the server's ends of their connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::site::Site;
use farcall_core::transport::ClientId;
use farcall_verbs::{CompletionQueueHandle, Device, ProtectionDomain};

use super::carrier::{ServerCarrier, Shared};
use super::connection::Connection;
use super::link::Link;
use super::server::Server;
use super::wire::MAX_CLIENTS;
use crate::contract::{
    Accepted, Config, Intake, NewClient, ServerHalf, SetupError, Source, Terms, ThreadPlaces,
};
use crate::kit::accept_queue::AcceptQueue;
use crate::kit::clusters::{Clusters, Place};
use crate::rendezvous::server::LargeMessages;

/// Makes the server's ends of one backend's connections.
pub(crate) trait MakeEnds: fmt::Debug + Send + Sync {
    type Carrier: ServerCarrier + 'static;

    /// Completions that a connection may have outstanding.
    fn completions(&self, terms: &Terms) -> usize;

    /// The server's end of a connection with that client, whose completions come to this queue.
    fn make(
        &self,
        queue: &CompletionQueueHandle,
        id: ClientId,
        client: &NewClient<'_>,
    ) -> Result<MadeEnd<Self::Carrier>, SetupError>;
}

/// The server's end of a connection.
pub(crate) struct MadeEnd<C> {
    pub(crate) link: Link<C>,
    pub(crate) pd: ProtectionDomain,
    /// What holds for this connection, of which the window may be smaller than agreed.
    pub(crate) terms: Terms,
    /// What its client must know of it.
    pub(crate) setup: Vec<u8>,
}

/// What one server thread serves, and with how much.
pub(crate) struct Serving<'a> {
    pub(crate) site: &'a Site,
    pub(crate) device: &'a Device,
    pub(crate) config: &'a Config,
    pub(crate) max_clients: usize,
    pub(crate) places: Arc<ThreadPlaces>,
}

impl Serving<'_> {
    /// A server thread's half, whose clients' completions come to these clusters.
    pub(crate) fn half<M: MakeEnds + 'static>(
        &self,
        clusters: Arc<Clusters>,
        make: M,
        shared: impl Shared<M::Carrier> + 'static,
    ) -> Result<ServerHalf, SetupError> {
        let most = self.max_clients.min(MAX_CLIENTS as usize);
        let (queue, arrivals) = AcceptQueue::new(self.site, (Arc::clone(&self.places), most));
        let server = Server::new(self.device, self.config, arrivals, &clusters, shared)?;
        let intake = SlotIntake { queue, clusters, make };
        Ok(ServerHalf { transport: Box::new(server), intake: Box::new(intake) })
    }
}

#[derive(Debug)]
struct SlotIntake<M: MakeEnds> {
    queue: Arc<AcceptQueue<Connection<M::Carrier>>>,
    clusters: Arc<Clusters>,
    make: M,
}

impl<M: MakeEnds> Intake for SlotIntake<M> {
    fn accept(&self, client: NewClient<'_>) -> Result<Accepted, SetupError> {
        self.queue.accept((client.source, client.info), |id, on_disconnect| {
            let Place { queue, entries } =
                self.clusters.place(self.make.completions(client.terms))?;
            let MadeEnd { link, pd, terms, setup } = self.make.make(&queue, id, &client)?;
            let large = LargeMessages::new(terms.window, pd);
            let guard = on_disconnect.guard();
            Ok((setup, Connection::new(link, large, id, &terms, entries, guard)))
        })
    }

    fn make_room(&self, source: Source, wait: Duration) -> bool {
        self.queue.make_room(source, wait)
    }
}
