//! What a server knows of its clients, beyond their calls.

use super::CallToken;
use crate::identity::Identity;
use core::fmt;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A client of one transport, as the transport numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Its number: a small one, because core keeps tables by it.
    pub number: u32,
    /// Which client of that number. Only compared.
    pub generation: u32,
}

impl ClientId {
    /// The client that made this call.
    #[inline]
    pub const fn of(call: &CallToken) -> ClientId {
        ClientId { number: call.client(), generation: call.client_generation() }
    }
}

/// What names a connection, at both of its ends: 128 random bits, which nobody else can guess. It outlives the transports
/// that carry the connection's calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConnectionId([u8; 16]);

impl ConnectionId {
    /// Of these bytes, which must be random.
    pub const fn new(random: [u8; 16]) -> ConnectionId {
        ConnectionId(random)
    }
}

/// Whoever knows the id may join the connection, so it is in no log.
impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionId(..)")
    }
}

/// Which lane of which connection is dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lane {
    /// The only one.
    #[default]
    Alone,
    /// The first of a connection that may get further ones: [`NewConnection::connection`](super::NewConnection) has its id.
    First,
    /// A further one of this connection, which has one at that server.
    Of(ConnectionId),
}

/// What the handshake with a client has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// The connection that it is a lane of; `None`: it is a connection of its own.
    pub connection: Option<ConnectionId>,
    /// Who it has proven to be.
    pub identity: Option<Identity>,
    /// Whether it may call the service, for each of the server's in their order. `None`: it may call all.
    pub services: Option<Arc<[bool]>>,
}

/// What has become of a client.
#[derive(Debug)]
pub enum ClientEvent {
    /// It is there. A transport says it before the client's first request; of a client with nothing in its info, it may say nothing.
    Joined(ClientInfo),
    /// It gave up a request. That must still be answered soon, with anything: that frees the slot. May be told of a request that was
    /// answered already, or twice: each time costs the same, and only the first does something.
    Cancelled {
        /// The index of its slot.
        slot: u32,
        /// Which use of that slot.
        generation: u32,
    },
    /// It is gone. Answers to its requests get [`ReserveError::Closed`](crate::error::ReserveError::Closed).
    Left,
}
