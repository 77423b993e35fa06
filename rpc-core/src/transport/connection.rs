//! What a server knows of its clients, beyond their calls.

use super::CallToken;
use crate::identity::Identity;
use core::fmt;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A client of one transport, as the transport numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// What names a connection, at both of its ends: 128 random bits, which no third party can guess. It outlives the transports
/// that carry the connection's calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConnectionId([u8; 16]);

impl ConnectionId {
    /// Of these bytes, which must be random.
    pub const fn new(random: [u8; 16]) -> ConnectionId {
        ConnectionId(random)
    }
}

/// A client that knows the id may join the connection, so it is in no log.
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

/// Why a client has opened a lane, as it says. Nothing is decided by it: it is shown to those who look at a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LaneReason {
    /// The connection begins with it.
    #[default]
    First,
    /// The client tries whether calls take less time there.
    Trial,
    /// Calls take less time there.
    Moved,
    /// The server has advised it.
    Advised,
    /// What the client would rather have cannot be had.
    Fallback,
    /// The client does not say, or says something that a later version knows.
    Unknown,
}

impl LaneReason {
    /// All reasons.
    pub const ALL: [LaneReason; 6] = [
        LaneReason::First,
        LaneReason::Trial,
        LaneReason::Moved,
        LaneReason::Advised,
        LaneReason::Fallback,
        LaneReason::Unknown,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            LaneReason::First => "first",
            LaneReason::Trial => "trial",
            LaneReason::Moved => "moved",
            LaneReason::Advised => "advised",
            LaneReason::Fallback => "fallback",
            LaneReason::Unknown => "unknown",
        }
    }

    /// The number in handshakes.
    pub const fn number(self) -> u8 {
        match self {
            LaneReason::First => 0,
            LaneReason::Trial => 1,
            LaneReason::Moved => 2,
            LaneReason::Advised => 3,
            LaneReason::Fallback => 4,
            LaneReason::Unknown => u8::MAX,
        }
    }

    /// The reason of that number; [`Unknown`](Self::Unknown) if this version knows none.
    pub fn of_number(number: u8) -> LaneReason {
        let known = LaneReason::ALL.into_iter().find(|reason| reason.number() == number);
        known.unwrap_or(LaneReason::Unknown)
    }
}

/// What a server knows of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneInfo {
    /// The name of the backend that carries it.
    pub backend: &'static str,
    /// Why the client has opened it.
    pub why: LaneReason,
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
    /// The lane that it is; `None`: it is not shown among the server's connections.
    pub lane: Option<LaneInfo>,
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
