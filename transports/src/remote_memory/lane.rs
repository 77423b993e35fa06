//! What both ends of a lane agree on.

use farcall_core::shape::{Node, Shape};
use farcall_verbs::{ConnectError, EndpointError, OpenError, RemoteRegion, VerbsError};
use serde::{Deserialize, Serialize};

/// The device on which lanes run.
pub(super) const SHARED_MEMORY: &str = "shm";

/// A memory window that the owner has bound for the client of a lane: it may access a lend's bytes with it, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The window's address and key.
    pub(super) memory: RemoteRegion,
    /// Where its bytes begin in the owner's region.
    pub(super) begin: u64,
    /// The bits of the lend's rights.
    pub(super) rights: u8,
    /// The lend's key.
    pub(super) key: u64,
}

impl Shape for Window {
    const SHAPE: &'static Node = &Node::opaque("farcall::memory::Window 1");
}

/// Why there is no lane. Operations then travel as calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// What the other end has sent is no endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The two ends cannot be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The owner has as many lanes as it can have.
    #[error("the owner has as many lanes as it can have")]
    TooMany,
    /// The memory is of a device on which lanes do not run yet.
    #[error("the memory is not of shared memory; its operations travel as calls")]
    Unsupported,
}
