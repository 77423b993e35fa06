//! Opening a device, and what it gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::Backing;
use crate::memory::mapping::Mapping;
use crate::{
    Access, AddressHandle, Capabilities, CompletionChannel, CompletionQueue, DatagramSource,
    Endpoint, OpenError, PrivateRegion, QueuePair, QueuePairConfig, SharedReceiveQueue,
    SharedRegion, VerbsError, shm,
};

/// How long looking up a peer's device may take.
const PEER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The longest region: what addresses of one mapping can span.
const MAX_REGION_BYTES: usize = 1 << 40;

/// Names protection domains; never used twice in a process.
static NEXT_PD: AtomicU32 = AtomicU32::new(1);

/// An opened device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<shm::Context>,
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
        if name == shm::NAME {
            return Ok(Device { context: shm::Context::open()? });
        }
        let known: Vec<_> = Device::list().into_iter().map(|info| info.name).collect();
        Err(OpenError::UnknownDevice { name: name.to_owned(), known: known.join(", ") })
    }

    /// The devices there are.
    pub fn list() -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            name: shm::NAME.to_owned(),
            description: "memory shared between threads and processes of this machine".to_owned(),
        }]
    }

    /// What the device can do.
    #[inline]
    pub fn caps(&self) -> &Capabilities {
        self.context.caps()
    }

    /// The device's clock: nanoseconds that only grow. Cheap enough for once per turn.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.context.now_ns()
    }

    /// A protection domain: memory and queue pairs of one domain work together, and with no other.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        let number = NEXT_PD.fetch_add(1, Ordering::Relaxed);
        Ok(ProtectionDomain { context: Arc::clone(&self.context), number })
    }

    /// Where a thread sleeps until an armed completion queue has something.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new()
    }

    /// A completion queue for `capacity` outstanding completions, 1 to
    /// [`max_cqe`](Capabilities::max_cqe).
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        within("completion queue capacity", capacity, self.caps().max_cqe)?;
        CompletionQueue::new(&self.context, capacity, channel)
    }
}

/// Checks an amount that was asked for.
fn within(what: &'static str, asked: usize, max: usize) -> Result<(), VerbsError> {
    if (1..=max).contains(&asked) { Ok(()) } else { Err(VerbsError::Limit { what, asked, max }) }
}

/// A protection domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    context: Arc<shm::Context>,
    number: u32,
}

impl ProtectionDomain {
    /// Memory that no peer can ever reach.
    pub fn alloc_private(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let mapping = Mapping::anonymous(len).map_err(|error| VerbsError::System {
            what: "memory for a private region",
            source: error.into(),
        })?;
        Ok(PrivateRegion::new(Backing::Anonymous(mapping), len, self.number))
    }

    /// Memory that only its owner writes, with real references for it, and that peers who learn its key
    /// may READ (see [`Buffer::remote`](crate::Buffer::remote)). What the owner changes while a peer
    /// reads arrives there as a mixture.
    pub fn alloc_published(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let memory = self.context.register(self.number, len, Access::REMOTE_READ)?;
        Ok(PrivateRegion::new(Backing::Published(memory), len, self.number))
    }

    /// Memory that peers who learn its key may use as `access` says.
    pub fn alloc_shared(&self, len: usize, access: Access) -> Result<SharedRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        Ok(SharedRegion::new(self.context.register(self.number, len, access)?))
    }

    /// A receive queue that several queue pairs take their receives from.
    pub fn create_srq(&self, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        within("max_wr of a shared receive queue", max_wr, self.context.caps().max_recv_wr)?;
        SharedReceiveQueue::new(&self.context, max_wr, self.number)
    }

    /// A queue pair, in state Init: receives may be posted.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        let caps = self.context.caps();
        within("max_send_wr", config.max_send_wr, caps.max_send_wr)?;
        within("max_recv_wr", config.max_recv_wr, caps.max_recv_wr)?;
        QueuePair::new(&self.context, self.number, config)
    }

    /// The way to the device behind `peer`, for datagrams.
    pub fn create_address_handle(&self, peer: &Endpoint) -> Result<AddressHandle, VerbsError> {
        self.address_handle(peer.shm().gid)
    }

    /// The way back to the sender of a datagram.
    pub fn create_address_handle_to(
        &self,
        source: &DatagramSource,
    ) -> Result<AddressHandle, VerbsError> {
        self.address_handle(source.gid)
    }

    fn address_handle(&self, gid: [u8; 16]) -> Result<AddressHandle, VerbsError> {
        let peer = self.context.peer(gid, PEER_TIMEOUT)?;
        Ok(AddressHandle::from_shm(shm::AddressHandle { peer }))
    }
}
