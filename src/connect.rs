//! From an address in text to a client, or to a server's builder.

use farcall_core::transport::Binding;
use farcall_core::{
    BindError, Channel, ChannelOptions, ConnectError, Connection, ConnectionOptions, PollClient,
    ServerBuilder, ServiceClient,
};
use farcall_transports::Address;

use crate::ping::{PingServer, Pong};

/// Makes clients whose calls are futures: `KvClient::connect("shm://kv")`.
pub trait Connect: ServiceClient {
    /// Connects to the server at this address.
    fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, ChannelOptions::default())
    }

    /// Connects with deadlines, bounds and idling of one's own.
    fn connect_with(address: &str, options: ChannelOptions) -> Result<Self, ConnectError> {
        let address = dialled(address)?;
        let channel = Channel::connect(address, Self::DESCRIPTION, options)?;
        Ok(Self::from_channel(channel))
    }
}

impl<C: ServiceClient> Connect for C {}

/// Makes clients that their thread polls: `KvPollClient::connect("shm://kv")`.
pub trait ConnectPoll: PollClient {
    /// Connects to the server at this address.
    fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, &ConnectionOptions::default())
    }

    /// Connects with a deadline and idling of one's own.
    fn connect_with(address: &str, options: &ConnectionOptions) -> Result<Self, ConnectError> {
        let address = dialled(address)?;
        let connection = Connection::connect(&address, Self::DESCRIPTION, options)?;
        Ok(Self::from_connection(connection))
    }
}

impl<C: PollClient> ConnectPoll for C {}

/// Where servers come from.
#[derive(Debug)]
pub enum Server {}

impl Server {
    /// A server to be, with one thread and no service yet. It listens at the addresses that [`Address`] describes, and
    /// answers [pings](crate::ping) besides.
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
