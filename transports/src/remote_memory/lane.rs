//! What both ends of a lane agree on.

use std::sync::{Mutex, PoisonError};

use farcall_core::shape::{Node, Shape};
use farcall_core::site::Site;
use farcall_verbs::{
    ConnectError, Device, DeviceKind, EndpointError, OpenError, PerProcess, RemoteRegion,
    VerbsError,
};
use serde::{Deserialize, Serialize};

use crate::kit::device_channel::DeviceChannel;

/// The device of memory that names none, and of clients whose connection has none.
pub(super) const SHARED_MEMORY: &str = "shm";

/// That device of all clients of this process.
static SHARED: PerProcess<Mutex<Option<Device>>> = PerProcess::new();

/// The devices on which a client with this site may have a lane, the most likely first: those of its connections, and shared memory.
pub fn lane_devices(site: &Site) -> Vec<Device> {
    let mut devices = DeviceChannel::devices_at(site);
    if !site.is_driven()
        && let Some(shared) = shared_memory()
        && !devices.iter().any(|device| device.kind() == DeviceKind::SharedMemory)
    {
        devices.push(shared);
    }
    devices
}

fn shared_memory() -> Option<Device> {
    let mut opened = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if opened.is_none() {
        *opened = Device::open(SHARED_MEMORY).ok();
    }
    opened.clone()
}

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
    /// What was left of the lend's lease when the owner was asked for the window, in nanoseconds.
    pub(super) left_ns: Option<u64>,
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
    /// The system has no thread for a moment.
    #[error("the system gives no thread on which to connect to the client: {0}")]
    Thread(std::io::Error),
    /// The device of the memory can neither bind memory windows nor register parts of regions.
    #[error("the device of the memory has no memory windows; its operations travel as calls")]
    Unsupported,
}
