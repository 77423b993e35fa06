//! From an address to a client, or to a server's builder.

use farcall_core::transport::ToAddress;
use farcall_core::{Connecting, PollClient, PollConnecting, ServerBuilder, ServiceClient};
use farcall_transports::parse_address;

use crate::info::{InfoServer, Informer};
use crate::ping::{PingServer, Pong};

/// What the generated `connect` of a client does.
pub fn connect<C: ServiceClient>(address: impl ToAddress) -> Connecting<C> {
    Connecting::to(address, parse_address)
}

/// What the generated `connect` of a poll-mode client does.
pub fn connect_poll<C: PollClient>(address: impl ToAddress) -> PollConnecting<C> {
    PollConnecting::to(address, parse_address)
}

/// Creates servers.
#[derive(Debug)]
pub enum Server {}

impl Server {
    /// A builder of a server with one thread and no services yet. The server listens at the addresses that
    /// [`Address`](crate::Address) describes, and also answers [pings](crate::ping) and says what it has refused and who is [connected](crate::info).
    pub fn builder() -> ServerBuilder {
        let informer = Informer::default();
        farcall_core::Server::builder()
            .metrics_for_built_in(informer.0.clone())
            .built_in_service(PingServer::new(Pong))
            .built_in_service(InfoServer::new(informer))
            .addresses(parse_address)
    }
}
