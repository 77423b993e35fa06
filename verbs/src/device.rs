//! Opening a device, and what it gives.

#[cfg(feature = "faults")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::dispatch::{self, on_device};
#[cfg(feature = "faults")]
use crate::faults::{FaultInjector, Layer};
use crate::{
    Access, AddressHandle, Capabilities, CompletionChannel, CompletionQueue, DatagramSource,
    Endpoint, OpenError, OpenOptions, PersistentRegion, PortInfo, PrivateRegion, QueuePair,
    QueuePairConfig, SharedReceiveQueue, SharedRegion, VerbsError,
};

/// The longest region: what addresses of one mapping can span.
const MAX_REGION_BYTES: usize = 1 << 40;

/// Names protection domains; never used twice in a process.
static NEXT_PD: AtomicU32 = AtomicU32::new(1);

/// An opened device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    context: dispatch::Context,
    #[cfg(feature = "faults")]
    faults: Option<Arc<Layer>>,
}

/// A device that may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name for [`Device::open`].
    pub name: String,
    /// What it is, for people.
    pub description: String,
    /// Its ports; empty for devices that have none.
    pub ports: Vec<PortInfo>,
    /// Why [`Device::open`] would fail, and the mend.
    pub problem: Option<String>,
}

impl Device {
    /// Opens a device by name: `shm` is the memory shared between threads and processes of this
    /// machine, and `shm-plain` the same with no more promises than those of the usual NIC, to try
    /// programs with. Each call opens it anew.
    pub fn open(name: &str) -> Result<Device, OpenError> {
        Device::open_with(name, &OpenOptions::default())
    }

    /// The same, with a say in which port and address of the device are used.
    pub fn open_with(name: &str, options: &OpenOptions) -> Result<Device, OpenError> {
        Ok(Device::of(dispatch::Context::open(name, options)?))
    }

    pub(crate) fn of(context: dispatch::Context) -> Device {
        Device {
            context,
            #[cfg(feature = "faults")]
            faults: None,
        }
    }

    /// The same device, whose queue pairs ask `injector` about each work request before the device sees it,
    /// and whose completion queues ask it about each datagram that has arrived (see [`faults`](crate::faults)).
    /// Of injectors that are there already it is the outer one: they are asked about what it passes. It has
    /// nothing to do with queue pairs and completion queues that exist; make both from what this returns.
    #[cfg(feature = "faults")]
    pub fn with_faults(&self, injector: Arc<dyn FaultInjector>) -> Device {
        let faults = Some(Layer::around(injector, self.faults.as_deref()));
        Device { context: self.context.clone(), faults }
    }

    /// The devices there are.
    pub fn list() -> Vec<DeviceInfo> {
        dispatch::Context::list()
    }

    /// Whether this program can use RDMA devices, if there are any; otherwise why not, and the mend.
    pub fn rdma_support() -> Result<(), String> {
        dispatch::rdma_support()
    }

    /// Whether the other is a clone of this one; of a simulated node also, whether both were opened in the same life of it.
    pub fn is_same(&self, other: &Device) -> bool {
        self.context.is_same(&other.context)
    }

    /// What the device can do.
    #[inline]
    pub fn caps(&self) -> &Capabilities {
        self.context.caps()
    }

    /// Its ports, as they are now; empty for devices that have none.
    pub fn ports(&self) -> Vec<PortInfo> {
        self.context.ports().0
    }

    /// The number of the port, and the index of its GID, that this device was opened with.
    pub fn port_in_use(&self) -> Option<(u8, u8)> {
        self.context.ports().1
    }

    /// The device's clock: nanoseconds that only grow. Cheap enough for once per turn.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        on_device!(Context, &self.context, context => context.now_ns())
    }

    /// A protection domain: memory and queue pairs of one domain work together, and with no other.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        let number = NEXT_PD.fetch_add(1, Ordering::Relaxed);
        Ok(ProtectionDomain {
            domain: self.context.alloc_pd(number)?,
            #[cfg(feature = "faults")]
            faults: self.faults.clone(),
        })
    }

    /// Where a thread sleeps until an armed completion queue has something.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(&self.context)
    }

    /// A completion queue for `capacity` outstanding completions, 1 to
    /// [`max_cqe`](Capabilities::max_cqe).
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        within("completion queue capacity", capacity, self.caps().max_cqe)?;
        let queue = CompletionQueue::new(&self.context, capacity, channel)?;
        #[cfg(feature = "faults")]
        let queue = queue.with_faults(self.faults.as_ref());
        Ok(queue)
    }
}

/// Checks an amount that was asked for.
fn within(what: &'static str, asked: usize, max: usize) -> Result<(), VerbsError> {
    if (1..=max).contains(&asked) { Ok(()) } else { Err(VerbsError::Limit { what, asked, max }) }
}

/// A protection domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    domain: dispatch::Domain,
    #[cfg(feature = "faults")]
    faults: Option<Arc<Layer>>,
}

impl ProtectionDomain {
    /// Memory that no peer can ever reach.
    pub fn alloc_private(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        self.domain.private(len).map(PrivateRegion::new)
    }

    /// Memory that only its owner writes, with real references for it, and that peers who learn its key
    /// may READ (see [`Buffer::remote`](crate::Buffer::remote)). What the owner changes while a peer
    /// reads arrives there as a mixture.
    pub fn alloc_published(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        self.domain.register(len, Access::REMOTE_READ).map(PrivateRegion::new)
    }

    /// Memory that peers who learn its key may use as `access` says.
    pub fn alloc_shared(&self, len: usize, access: Access) -> Result<SharedRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        self.domain.register(len, access).map(SharedRegion::new)
    }

    /// Memory that keeps what is durable when the power goes, by a name of this machine: that of its last
    /// opening, or fresh and zeroed. One opening of a name at a time. Peers who learn its key may use it as
    /// `access` says, and flush it.
    pub fn open_persistent(
        &self,
        name: &str,
        len: usize,
        access: Access,
    ) -> Result<PersistentRegion, VerbsError> {
        if !self.domain.caps().persistent_memory {
            return Err(VerbsError::Unsupported("persistent memory"));
        }
        within("region length", len, MAX_REGION_BYTES)?;
        let (region, persistence) = self.domain.open_persistent(name, len, access)?;
        Ok(PersistentRegion::new(SharedRegion::new(region), persistence))
    }

    /// A receive queue that several queue pairs take their receives from.
    pub fn create_srq(&self, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        within("max_wr of a shared receive queue", max_wr, self.domain.caps().max_recv_wr)?;
        self.domain.create_srq(max_wr).map(SharedReceiveQueue::new)
    }

    /// A queue pair, in state Init: receives may be posted.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        let caps = self.domain.caps();
        within("max_send_wr", config.max_send_wr, caps.max_send_wr)?;
        within("max_recv_wr", config.max_recv_wr, caps.max_recv_wr)?;
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.faults {
            let qp = crate::faults::QueuePair::create(layer, &self.domain, config)?;
            return Ok(QueuePair::new(dispatch::QueuePair::Faulty(Box::new(qp))));
        }
        self.domain.create_qp(config).map(QueuePair::new)
    }

    /// The way to the device behind `peer`, for datagrams.
    pub fn create_address_handle(&self, peer: &Endpoint) -> Result<AddressHandle, VerbsError> {
        self.domain.address_handle(peer.address()).map(AddressHandle::new)
    }

    /// The way back to the sender of a datagram.
    pub fn create_address_handle_to(
        &self,
        source: &DatagramSource,
    ) -> Result<AddressHandle, VerbsError> {
        self.domain.address_handle_to(source.gid).map(AddressHandle::new)
    }
}
