//! From a textual address to a client, or to a server's builder.

use farcall_core::transport::Binding;
use farcall_core::{
    BindError, Channel, ChannelOptions, ConnectError, Connection, ConnectionOptions, PollClient,
    ServerBuilder, ServiceClient,
};
use farcall_transports::Address;

use crate::ping::{PingServer, Pong};

/// Creates clients whose calls are futures: `KvClient::connect("shm://kv")`.
pub trait Connect: ServiceClient {
    /// Connects to the server at this address.
    ///
    /// # Errors
    /// If the address is invalid, or the server cannot be reached or refuses.
    fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, ChannelOptions::default())
    }

    /// Connects with explicit deadlines, limits and idling.
    ///
    /// # Errors
    /// As [`connect`](Connect::connect).
    fn connect_with(address: &str, options: ChannelOptions) -> Result<Self, ConnectError> {
        let address = dialled(address)?;
        let channel = Channel::connect(address, Self::DESCRIPTION, options)?;
        Ok(Self::from_channel(channel))
    }
}

impl<C: ServiceClient> Connect for C {}

/// Creates clients that their thread polls: `KvPollClient::connect("shm://kv")`.
pub trait ConnectPoll: PollClient {
    /// Connects to the server at this address.
    ///
    /// # Errors
    /// If the address is invalid, or the server cannot be reached or refuses.
    fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, &ConnectionOptions::default())
    }

    /// Connects with an explicit deadline and idling.
    ///
    /// # Errors
    /// As [`connect`](ConnectPoll::connect).
    fn connect_with(address: &str, options: &ConnectionOptions) -> Result<Self, ConnectError> {
        let address = dialled(address)?;
        let connection = Connection::connect(&address, Self::DESCRIPTION, options)?;
        Ok(Self::from_connection(connection))
    }
}

impl<C: PollClient> ConnectPoll for C {}

/// Creates servers.
#[derive(Debug)]
pub enum Server {}

impl Server {
    /// A builder of a server with one thread and no services yet. The server listens at the addresses that
    /// [`Address`] describes, and also answers [pings](crate::ping).
    pub fn builder() -> ServerBuilder {
        let builder = farcall_core::Server::builder().built_in_service(PingServer::new(Pong));
        builder.addresses(|address| {
            let address: Address =
                address.parse().map_err(|why| BindError::InvalidAddress(Box::new(why)))?;
            Ok(Box::new(address) as Box<dyn Binding>)
        })
    }
}

fn dialled(address: &str) -> Result<Address, ConnectError> {
    address.parse().map_err(|why| ConnectError::InvalidAddress(Box::new(why)))
}
