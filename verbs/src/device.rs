//! Opening a device, and what it gives.

use crate::{
    Access, AddressHandle, Capabilities, CompletionChannel, CompletionQueue, DatagramSource,
    Endpoint, OpenError, PrivateRegion, QueuePair, QueuePairConfig, SharedReceiveQueue,
    SharedRegion, VerbsError,
};

/// An opened device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    _private: (),
}

/// A device that may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name for [`Device::open`].
    pub name: String,
    /// What it is, for people.
    pub description: String,
}

impl Device {
    /// Opens a device by name: `shm` is the memory shared between threads and processes of this
    /// machine. Each call opens it anew.
    pub fn open(name: &str) -> Result<Device, OpenError> {
        unimplemented!()
    }

    /// The devices there are.
    pub fn list() -> Vec<DeviceInfo> {
        unimplemented!()
    }

    /// What the device can do.
    pub fn caps(&self) -> &Capabilities {
        unimplemented!()
    }

    /// The device's clock: nanoseconds that only grow. Cheap enough for once per turn.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        unimplemented!()
    }

    /// A protection domain: memory and queue pairs of one domain work together, and with no other.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        unimplemented!()
    }

    /// Where a thread sleeps until an armed completion queue has something.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, VerbsError> {
        unimplemented!()
    }

    /// A completion queue for `capacity` outstanding completions, 1 to
    /// [`max_cqe`](Capabilities::max_cqe).
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        unimplemented!()
    }
}

/// A protection domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    _private: (),
}

impl ProtectionDomain {
    /// Memory that no peer can ever reach.
    pub fn alloc_private(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        unimplemented!()
    }

    /// Memory that only its owner writes, with real references for it, and that peers who learn its key
    /// may READ (see [`Buffer::remote`](crate::Buffer::remote)). What the owner changes while a peer
    /// reads arrives there as a mixture.
    pub fn alloc_published(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        unimplemented!()
    }

    /// Memory that peers who learn its key may use as `access` says.
    pub fn alloc_shared(&self, len: usize, access: Access) -> Result<SharedRegion, VerbsError> {
        unimplemented!()
    }

    /// A receive queue that several queue pairs take their receives from.
    pub fn create_srq(&self, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        unimplemented!()
    }

    /// A queue pair, in state Init: receives may be posted.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        unimplemented!()
    }

    /// The way to the device behind `peer`, for datagrams.
    pub fn create_address_handle(&self, peer: &Endpoint) -> Result<AddressHandle, VerbsError> {
        unimplemented!()
    }

    /// The way back to the sender of a datagram.
    pub fn create_address_handle_to(
        &self,
        source: &DatagramSource,
    ) -> Result<AddressHandle, VerbsError> {
        unimplemented!()
    }
}
