//! Opening a device and creating its resources.

#[cfg(feature = "faults")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::dispatch::{self, on_device};
#[cfg(feature = "faults")]
use crate::faults::{FaultInjector, Layer};
use crate::memory::region::Region;
use crate::numa::{Layout, PreferredNode};
use crate::{
    Access, AddressHandle, Capabilities, CompletionChannel, CompletionQueue, DatagramSource,
    Endpoint, MemoryWindow, OpenError, OpenOptions, PartRegistration, PeerRefusal,
    PersistentRegion, PortInfo, PrivateRegion, QueuePair, QueuePairConfig, SharedReceiveQueue,
    SharedRegion, SharedSlice, VerbsError,
};

/// The length limit of a region, which addresses of one mapping can span.
const MAX_REGION_BYTES: usize = 1 << 40;

/// The next number of a protection domain; never reused in a process.
static NEXT_PD: AtomicU32 = AtomicU32::new(1);

/// An opened device. Clones refer to the same device.
#[derive(Clone, Debug)]
pub struct Device {
    context: dispatch::Context,
    numa_node: Option<usize>,
    #[cfg(feature = "faults")]
    faults: Option<Arc<Layer>>,
}

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name for [`Device::open`].
    pub name: String,
    /// A description for users.
    pub description: String,
    /// Its ports; empty for devices without ports.
    pub ports: Vec<PortInfo>,
    /// Why [`Device::open`] would fail, and how to fix it.
    pub problem: Option<String>,
}

/// What carries out the work requests of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The CPUs of the processes that share the memory.
    SharedMemory,
    /// An RDMA device: a NIC, or the kernel.
    Rdma,
    /// A simulator, in virtual time.
    Simulated,
}

impl Device {
    /// Opens a device by name. `shm` is memory shared between threads and processes of this machine.
    /// `shm-plain` is the same with only the capabilities of a typical NIC, to test programs with. Each call
    /// opens a new device.
    ///
    /// # Errors
    /// If there is no such device, or it cannot be opened.
    pub fn open(name: &str) -> Result<Device, OpenError> {
        Device::open_with(name, &OpenOptions::default())
    }

    /// As [`open`](Device::open), with a choice of the device's port and address.
    ///
    /// # Errors
    /// If there is no such device, port or address, or the device cannot be opened.
    pub fn open_with(name: &str, options: &OpenOptions) -> Result<Device, OpenError> {
        let node = numa_node_to_prefer(name);
        let _near = PreferredNode::of(node);
        Ok(Device { numa_node: node, ..Device::of(dispatch::Context::open(name, options)?) })
    }

    pub(crate) fn of(context: dispatch::Context) -> Device {
        Device {
            context,
            numa_node: None,
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
        Device { context: self.context.clone(), numa_node: self.numa_node, faults }
    }

    /// Lists the available devices.
    pub fn list() -> Vec<DeviceInfo> {
        dispatch::Context::list()
    }

    /// Checks whether this program can use RDMA devices.
    ///
    /// # Errors
    /// Why it cannot, and how to fix it.
    pub fn rdma_support() -> Result<(), String> {
        dispatch::rdma_support()
    }

    /// Whether `other` is a clone of this device. For a simulated node, both must have been opened since its
    /// last restart.
    pub fn is_same(&self, other: &Device) -> bool {
        self.context.is_same(&other.context)
    }

    /// What carries out its work requests.
    pub fn kind(&self) -> DeviceKind {
        self.context.kind()
    }

    /// Its capabilities.
    #[inline]
    pub fn caps(&self) -> &Capabilities {
        self.context.caps()
    }

    /// The current state of its ports; empty for devices without ports.
    pub fn ports(&self) -> Vec<PortInfo> {
        self.context.ports().0
    }

    /// The port number and GID index that this device was opened with.
    pub fn port_in_use(&self) -> Option<(u8, u8)> {
        self.context.ports().1
    }

    /// A number of this process, the same for all devices that it opens, and most likely another than that of any other process on
    /// any machine. On a simulated rack each start of a node is one process.
    pub fn process_number(&self) -> u64 {
        self.context.process_number()
    }

    /// The device's monotonic clock in nanoseconds. Cheap enough to read once per poll.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        on_device!(Context, &self.context, context => context.now_ns())
    }

    /// A random number for a key or a secret: of the operating system, so that no other program can predict it. A simulated
    /// node takes it from its simulation's seed, so that runs repeat; faults are drawn from other numbers.
    ///
    /// # Errors
    /// If the operating system has none.
    pub fn random(&self) -> Result<u64, VerbsError> {
        self.context.random()
    }

    /// Calls this function for each peer that the device refuses or disconnects for what it did: on a thread of the device. Only the first
    /// call for a device has an effect. Only `shm` knows its peers; a NIC tells nobody.
    pub fn on_peer_refused(&self, tell: impl Fn(PeerRefusal) + Send + Sync + 'static) {
        self.context.on_peer_refused(Box::new(tell));
    }

    /// Creates a protection domain. Memory and queue pairs only work together within one domain.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        self.alloc_domain(false)
    }

    /// Creates a protection domain for one queue pair: only its peer can ever access the domain's memory. `shm` then needs no
    /// descriptor for memory that the peer has mapped, and creates no second queue pair in it; for other devices it is a domain like
    /// any other.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn alloc_pd_for_one_qp(&self) -> Result<ProtectionDomain, VerbsError> {
        self.alloc_domain(true)
    }

    fn alloc_domain(&self, for_one_qp: bool) -> Result<ProtectionDomain, VerbsError> {
        let number = NEXT_PD.fetch_add(1, Ordering::Relaxed);
        Ok(ProtectionDomain {
            domain: self.context.alloc_pd(number, for_one_qp)?,
            numa_node: self.numa_node,
            #[cfg(feature = "faults")]
            faults: self.faults.clone(),
        })
    }

    /// Creates a channel on which a thread can sleep until an armed completion queue has a completion.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(&self.context)
    }

    /// Creates a completion queue for `capacity` outstanding completions, 1 to
    /// [`max_cqe`](Capabilities::max_cqe).
    ///
    /// # Errors
    /// If the capacity is out of range, the channel belongs to another device, or the device refuses.
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        within("completion queue capacity", capacity, self.caps().max_cqe)?;
        let _near = PreferredNode::of(self.numa_node);
        let queue = CompletionQueue::new(&self.context, capacity, channel)?;
        #[cfg(feature = "faults")]
        let queue = queue.with_faults(self.faults.as_ref());
        Ok(queue)
    }
}

/// The node on which to place what a device allocates; none where all memory is equally far.
fn numa_node_to_prefer(device: &str) -> Option<usize> {
    Layout::node_of_device(device).filter(|_| Layout::read().has_several())
}

/// Checks that a requested amount is within the device's range.
fn within(what: &'static str, asked: usize, max: usize) -> Result<(), VerbsError> {
    if (1..=max).contains(&asked) { Ok(()) } else { Err(VerbsError::Limit { what, asked, max }) }
}

/// A protection domain. Clones refer to the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    domain: dispatch::Domain,
    numa_node: Option<usize>,
    #[cfg(feature = "faults")]
    faults: Option<Arc<Layer>>,
}

impl ProtectionDomain {
    /// The capabilities of its device.
    #[inline]
    pub fn caps(&self) -> &Capabilities {
        self.domain.caps()
    }

    /// Has what is allocated until this is dropped come from the device's node.
    fn near_device(&self) -> PreferredNode {
        PreferredNode::of(self.numa_node)
    }

    /// Allocates memory that no peer can access.
    ///
    /// # Errors
    /// If the length is out of range or the memory cannot be registered.
    pub fn alloc_private(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let _near = self.near_device();
        self.domain.private(len).map(PrivateRegion::new)
    }

    /// As [`alloc_private`](Self::alloc_private), for memory of which much may never be used: where the device does not access it
    /// itself (`shm`), a page takes memory when it is first touched.
    ///
    /// # Errors
    /// If the length is out of range or the memory cannot be registered.
    pub fn alloc_private_on_demand(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let _near = self.near_device();
        self.domain.private_on_demand(len).map(PrivateRegion::new)
    }

    /// Allocates memory that only its owner writes, through references, and that peers with its key may READ
    /// (see [`Buffer::remote`](crate::Buffer::remote)). A READ during a write may return a mixture of old and
    /// new bytes.
    ///
    /// # Errors
    /// If the length is out of range or the memory cannot be registered.
    pub fn alloc_published(&self, len: usize) -> Result<PrivateRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let _near = self.near_device();
        self.domain.register(len, Access::REMOTE_READ).map(PrivateRegion::new)
    }

    /// Registers memory of another domain here too, for peers to READ.
    pub(crate) fn register_published(
        &self,
        memory: &Region,
        offset: usize,
        len: usize,
    ) -> Result<Region, VerbsError> {
        self.domain.publish(memory, offset, len)
    }

    /// Allocates memory that peers with its key may access as `access` allows.
    ///
    /// # Errors
    /// If the length is out of range or the memory cannot be registered.
    pub fn alloc_shared(&self, len: usize, access: Access) -> Result<SharedRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let _near = self.near_device();
        self.domain.register(len, access).map(SharedRegion::new)
    }

    /// As [`alloc_shared`](Self::alloc_shared), for memory of which much may never be used: where the device allows it (`shm`), a page
    /// takes memory when it is first touched, at either end.
    ///
    /// # Errors
    /// If the length is out of range or the memory cannot be registered.
    pub fn alloc_shared_on_demand(
        &self,
        len: usize,
        access: Access,
    ) -> Result<SharedRegion, VerbsError> {
        within("region length", len, MAX_REGION_BYTES)?;
        let _near = self.near_device();
        self.domain.register_on_demand(len, access).map(SharedRegion::new)
    }

    /// Opens persistent memory by a name that is unique on this machine. It holds the durable bytes of its last
    /// opening; a new region is zeroed. A name can be opened once at a time. Peers with its key may access it
    /// as `access` allows, and flush it.
    ///
    /// # Errors
    /// If the device has no persistent memory, the length is out of range, or the name cannot be opened.
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
        let _near = self.near_device();
        let (region, persistence) = self.domain.open_persistent(name, len, access)?;
        Ok(PersistentRegion::new(SharedRegion::new(region), persistence))
    }

    /// Registers a part of a region of the same device in this domain, under a key of its own: access that can be
    /// [taken away](PartRegistration::deregister) although the region goes on. For devices whose memory windows reach further than their
    /// own bytes, or that have none.
    ///
    /// # Errors
    /// The device cannot do that, the part is of another device, or it cannot be registered.
    pub fn register_part(
        &self,
        part: SharedSlice,
        access: Access,
    ) -> Result<PartRegistration, VerbsError> {
        let (device, rkey) = self.domain.register_part(&part, access)?;
        Ok(PartRegistration::new(device, rkey, part))
    }

    /// Allocates a memory window, free. Queue pairs of this domain can bind it to memory of this domain.
    ///
    /// # Errors
    /// If the device has no memory windows, or no more of them.
    pub fn alloc_memory_window(&self) -> Result<MemoryWindow, VerbsError> {
        if self.domain.caps().max_mw == 0 {
            return Err(VerbsError::Unsupported("memory windows"));
        }
        self.domain.alloc_window()
    }

    /// Creates a receive queue that several queue pairs share.
    ///
    /// # Errors
    /// If `max_wr` is out of range or the device refuses.
    pub fn create_srq(&self, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        within("max_wr of a shared receive queue", max_wr, self.domain.caps().max_recv_wr)?;
        let _near = self.near_device();
        self.domain.create_srq(max_wr).map(SharedReceiveQueue::new)
    }

    /// Creates a queue pair in state Init, in which receives may be posted.
    ///
    /// # Errors
    /// If a limit is out of range, a resource belongs to another device or domain, or the device refuses.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        let caps = self.domain.caps();
        within("max_send_wr", config.max_send_wr, caps.max_send_wr)?;
        within("max_recv_wr", config.max_recv_wr, caps.max_recv_wr)?;
        let _near = self.near_device();
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.faults {
            let qp = crate::faults::QueuePair::create(layer, &self.domain, config)?;
            return Ok(QueuePair::new(dispatch::QueuePair::Faulty(Box::new(qp))));
        }
        self.domain.create_qp(config).map(QueuePair::new)
    }

    /// Creates an address handle for the device of `peer`, as a destination of datagrams.
    ///
    /// # Errors
    /// If the peer's device cannot be reached.
    pub fn create_address_handle(&self, peer: &Endpoint) -> Result<AddressHandle, VerbsError> {
        self.domain.address_handle(peer.address()).map(AddressHandle::new)
    }

    /// Creates an address handle for the sender of a datagram.
    ///
    /// # Errors
    /// If the datagram did not tell the sender's device, or that cannot be reached.
    pub fn create_address_handle_to(
        &self,
        source: &DatagramSource,
    ) -> Result<AddressHandle, VerbsError> {
        let gid = source.gid.ok_or(VerbsError::Invalid("the datagram has no route header"))?;
        self.domain.address_handle_to(gid).map(AddressHandle::new)
    }
}
