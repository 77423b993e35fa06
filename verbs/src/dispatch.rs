//! The device behind each public type: one enum per kind of resource, one variant per kind of device.
//!
//! Without features there is one kind of device, and the enums cost nothing. Queue pairs and completion queues may also be
//! those of any device inside a layer of [`faults`](crate::faults). To add a kind, add a variant in the two macros, its
//! types in the list, and an arm to each constructor below.

use std::sync::Arc;

#[cfg(feature = "faults")]
use crate::faults;
#[cfg(feature = "ibverbs")]
use crate::ibv;
use crate::memory::region::Region;
#[cfg(feature = "sim")]
use crate::sim;
use crate::{
    Access, Capabilities, ConnectError, ConnectOptions, DeviceInfo, DeviceKind, MemoryWindow,
    OpenError, OpenOptions, PeerRefusal, PortInfo, QueuePairConfig, SharedSlice, VerbsError, Wake,
    process, random, shm,
};

/// Defines the enum that a public type holds.
macro_rules! per_device {
    ($($(#[$meta:meta])* $name:ident {
        shm: $shm:ty, ibv: $ibv:ty, sim: $sim:ty $(; faults: $faults:ty)?
    })*) => { $(
        $(#[$meta])*
        pub(crate) enum $name {
            Shm($shm),
            #[cfg(feature = "ibverbs")]
            Ibv($ibv),
            #[cfg(feature = "sim")]
            Sim($sim),
            $(
                #[cfg(feature = "faults")]
                Faulty($faults),
            )?
        }
    )* };
}

/// Evaluates the same expression for any device.
macro_rules! on_device {
    (QueuePair, $value:expr, $inner:pat => $body:expr) => {
        $crate::dispatch::on_device!(@with_faults QueuePair, $value, $inner => $body)
    };
    (CompletionQueue, $value:expr, $inner:pat => $body:expr) => {
        $crate::dispatch::on_device!(@with_faults CompletionQueue, $value, $inner => $body)
    };
    (@with_faults $name:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            $crate::dispatch::$name::Shm($inner) => $body,
            #[cfg(feature = "ibverbs")]
            $crate::dispatch::$name::Ibv($inner) => $body,
            #[cfg(feature = "sim")]
            $crate::dispatch::$name::Sim($inner) => $body,
            #[cfg(feature = "faults")]
            $crate::dispatch::$name::Faulty($inner) => $body,
        }
    };
    ($name:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            $crate::dispatch::$name::Shm($inner) => $body,
            #[cfg(feature = "ibverbs")]
            $crate::dispatch::$name::Ibv($inner) => $body,
            #[cfg(feature = "sim")]
            $crate::dispatch::$name::Sim($inner) => $body,
        }
    };
}

pub(crate) use on_device;

per_device! {
    /// An opened device.
    #[derive(Clone, Debug)]
    Context { shm: Arc<shm::Context>, ibv: Arc<ibv::Context>, sim: Arc<sim::Context> }

    /// A protection domain.
    #[derive(Clone, Debug)]
    Domain { shm: shm::Domain, ibv: Arc<ibv::ProtectionDomain>, sim: sim::Domain }

    /// Keeps registered memory registered until it is dropped.
    #[derive(Debug)]
    #[allow(dead_code)] // Some are only held for their drop.
    Registration { shm: shm::Pages, ibv: ibv::Registration, sim: sim::Registration }

    /// A memory window. Dropping it takes away the access that it gives.
    #[derive(Debug)]
    #[allow(dead_code)] // Some are only held for their drop.
    Window { shm: Arc<shm::Window>, ibv: Arc<ibv::Window>, sim: sim::Window }

    /// A completion queue, as its poller uses it.
    #[derive(Debug)]
    CompletionQueue {
        shm: shm::CompletionQueue, ibv: ibv::CompletionQueue, sim: sim::CompletionQueue;
        faults: faults::CompletionQueue
    }

    /// A handle for creating queue pairs on a completion queue.
    #[derive(Clone, Debug)]
    CqHandle { shm: shm::CqHandle, ibv: Arc<ibv::CqShared>, sim: sim::CqHandle }

    /// A channel on which pollers sleep.
    #[derive(Clone, Debug)]
    Channel { shm: Arc<shm::Channel>, ibv: Arc<ibv::Channel>, sim: Arc<sim::Channel> }

    /// A queue pair.
    #[derive(Debug)]
    QueuePair {
        shm: shm::QueuePair, ibv: Box<ibv::QueuePair>, sim: sim::QueuePair;
        faults: Box<faults::QueuePair>
    }

    /// A shared receive queue.
    #[derive(Debug)]
    SharedReceiveQueue { shm: shm::SharedReceiveQueue, ibv: ibv::SharedReceiveQueue, sim: sim::SharedReceiveQueue }

    /// The address of a queue pair: plain data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    Address { shm: shm::ShmEndpoint, ibv: ibv::IbvEndpoint, sim: sim::SimEndpoint }

    /// The address of a peer's device.
    #[derive(Clone, Debug)]
    AddressHandle { shm: shm::AddressHandle, ibv: Arc<ibv::AddressHandle>, sim: sim::AddressHandle }
}

/// Makes memory durable. Only simulated nodes support it so far.
#[derive(Debug)]
pub(crate) enum Persistence {
    #[cfg(feature = "sim")]
    Sim(sim::Persistent),
}

impl Context {
    /// A number that no other program can predict; of a simulated node, one that its seed determines.
    pub(crate) fn random(&self) -> Result<u64, VerbsError> {
        match self {
            #[cfg(feature = "sim")]
            Context::Sim(context) => Ok(context.random()),
            _ => random::word().map_err(system("random number")),
        }
    }

    /// What carries out the work requests.
    pub(crate) fn kind(&self) -> DeviceKind {
        match self {
            Context::Shm(_) => DeviceKind::SharedMemory,
            #[cfg(feature = "ibverbs")]
            Context::Ibv(_) => DeviceKind::Rdma,
            #[cfg(feature = "sim")]
            Context::Sim(_) => DeviceKind::Simulated,
        }
    }

    /// Opens the device with that name.
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Context, OpenError> {
        if name == shm::NAME || name == shm::PLAIN_NAME {
            options.refuse_ports(name)?;
            return Ok(Context::Shm(shm::Context::open(name == shm::PLAIN_NAME)?));
        }
        #[cfg(feature = "ibverbs")]
        if let Some(context) = ibv::Context::open(name, options)? {
            return Ok(Context::Ibv(context));
        }
        let hint = rdma_support()
            .err()
            .map_or_else(String::new, |why| format!("; for RDMA devices: {why}"));
        let known: Vec<_> = Context::list().into_iter().map(|info| info.name).collect();
        Err(OpenError::UnknownDevice { name: name.to_owned(), known: known.join(", "), hint })
    }

    /// Lists the available devices.
    pub(crate) fn list() -> Vec<DeviceInfo> {
        let shm = DeviceInfo {
            name: shm::NAME.to_owned(),
            description: "memory shared between threads and processes of this machine".to_owned(),
            ports: Vec::new(),
            problem: None,
        };
        #[cfg_attr(not(feature = "ibverbs"), allow(unused_mut))]
        let mut devices = vec![shm];
        #[cfg(feature = "ibverbs")]
        devices.extend(ibv::list());
        devices
    }

    #[inline]
    pub(crate) fn caps(&self) -> &Capabilities {
        on_device!(Context, self, context => context.caps())
    }

    pub(crate) fn on_peer_refused(&self, tell: Box<dyn Fn(PeerRefusal) + Send + Sync>) {
        match self {
            Context::Shm(context) => context.control.refused.set(tell),
            #[cfg(feature = "ibverbs")]
            Context::Ibv(_) => {}
            #[cfg(feature = "sim")]
            Context::Sim(_) => {}
        }
    }

    pub(crate) fn process_number(&self) -> u64 {
        match self {
            Context::Shm(_) => process::number(),
            #[cfg(feature = "ibverbs")]
            Context::Ibv(_) => process::number(),
            #[cfg(feature = "sim")]
            Context::Sim(context) => context.process_number(),
        }
    }

    pub(crate) fn is_same(&self, other: &Context) -> bool {
        match (self, other) {
            (Context::Shm(one), Context::Shm(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "ibverbs")]
            (Context::Ibv(one), Context::Ibv(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "sim")]
            (Context::Sim(one), Context::Sim(other)) => one.is_same(other),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => false,
        }
    }

    /// Its ports, and which port and GID are in use.
    pub(crate) fn ports(&self) -> (Vec<PortInfo>, Option<(u8, u8)>) {
        match self {
            Context::Shm(_) => (Vec::new(), None),
            #[cfg(feature = "ibverbs")]
            Context::Ibv(context) => (context.ports(), Some(context.in_use())),
            #[cfg(feature = "sim")]
            Context::Sim(_) => (Vec::new(), None),
        }
    }

    /// With `for_one_qp`, the domain has one queue pair at most, where the device makes use of that.
    pub(crate) fn alloc_pd(&self, number: u32, for_one_qp: bool) -> Result<Domain, VerbsError> {
        match self {
            Context::Shm(context) => {
                let sole = for_one_qp.then(Arc::default);
                Ok(Domain::Shm(shm::Domain { context: Arc::clone(context), number, sole }))
            }
            #[cfg(feature = "ibverbs")]
            Context::Ibv(context) => ibv::ProtectionDomain::alloc(context, number).map(Domain::Ibv),
            #[cfg(feature = "sim")]
            Context::Sim(context) => {
                Ok(Domain::Sim(sim::Domain { context: Arc::clone(context), number }))
            }
        }
    }

    pub(crate) fn create_channel(&self) -> Result<Channel, VerbsError> {
        match self {
            Context::Shm(_) => {
                let channel = shm::Channel::new().map_err(system("completion channel"))?;
                Ok(Channel::Shm(Arc::new(channel)))
            }
            #[cfg(feature = "ibverbs")]
            Context::Ibv(context) => ibv::Channel::create(context).map(Channel::Ibv),
            #[cfg(feature = "sim")]
            Context::Sim(context) => {
                let channel = context.create_channel().map_err(system("completion channel"))?;
                Ok(Channel::Sim(Arc::new(channel)))
            }
        }
    }

    pub(crate) fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&Channel>,
    ) -> Result<(CompletionQueue, CqHandle), VerbsError> {
        match self {
            Context::Shm(context) => {
                let channel = match channel {
                    Some(Channel::Shm(channel)) => Some(Arc::clone(channel)),
                    #[cfg(any(feature = "ibverbs", feature = "sim"))]
                    Some(_) => return Err(VerbsError::Foreign("completion channel")),
                    None => None,
                };
                let hides_payloads = context.caps().completion_payload == 0;
                let queue = shm::CompletionQueue::new(capacity, channel, hides_payloads);
                let handle = queue.handle(context);
                Ok((CompletionQueue::Shm(queue), CqHandle::Shm(handle)))
            }
            #[cfg(feature = "ibverbs")]
            Context::Ibv(context) => {
                let channel = match channel {
                    Some(Channel::Ibv(channel)) => Some(channel),
                    Some(_) => return Err(VerbsError::Foreign("completion channel")),
                    None => None,
                };
                let queue = ibv::CompletionQueue::create(context, capacity, channel)?;
                let handle = queue.handle();
                Ok((CompletionQueue::Ibv(queue), CqHandle::Ibv(handle)))
            }
            #[cfg(feature = "sim")]
            Context::Sim(context) => {
                let channel = match channel {
                    Some(Channel::Sim(channel)) => Some(Arc::clone(channel)),
                    Some(_) => return Err(VerbsError::Foreign("completion channel")),
                    None => None,
                };
                let (queue, handle) = context.create_cq(capacity, channel)?;
                Ok((CompletionQueue::Sim(queue), CqHandle::Sim(handle)))
            }
        }
    }
}

/// A part of a region that is registered once more.
#[derive(Debug)]
pub(crate) enum Part {
    #[cfg(feature = "ibverbs")]
    Ibv(ibv::Part),
}

impl Part {
    /// Deregisters it, once.
    pub(crate) fn deregister(&mut self) -> Result<(), VerbsError> {
        match *self {
            #[cfg(feature = "ibverbs")]
            Part::Ibv(ref mut part) => part.deregister(),
        }
    }
}

impl Domain {
    #[inline]
    pub(crate) fn caps(&self) -> &Capabilities {
        on_device!(Domain, self, domain => domain.context.caps())
    }

    /// Allocates memory that no peer can access.
    pub(crate) fn private(&self, len: usize) -> Result<Region, VerbsError> {
        on_device!(Domain, self, domain => domain.private(len))
    }

    /// Allocates memory that peers with its key may access as `access` allows.
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<Region, VerbsError> {
        on_device!(Domain, self, domain => domain.register(len, access))
    }

    /// The same, where the device can do without the pages until they are touched.
    pub(crate) fn private_on_demand(&self, len: usize) -> Result<Region, VerbsError> {
        match self {
            Domain::Shm(domain) => domain.private_on_demand(len),
            #[allow(unreachable_patterns)] // Without other devices.
            _ => self.private(len),
        }
    }

    /// The same, where the device can do without the pages until they are touched.
    pub(crate) fn register_on_demand(
        &self,
        len: usize,
        access: Access,
    ) -> Result<Region, VerbsError> {
        match self {
            Domain::Shm(domain) => domain.register_on_demand(len, access),
            #[allow(unreachable_patterns)] // Without other devices.
            _ => self.register(len, access),
        }
    }

    /// Registers memory that is registered in another domain here too, for peers to READ: `len` bytes from `offset` on, or all of it where
    /// peers map whole regions.
    pub(crate) fn publish(
        &self,
        memory: &Region,
        offset: usize,
        len: usize,
    ) -> Result<Region, VerbsError> {
        debug_assert!(offset + len <= memory.len());
        match (self, memory.registration()) {
            (Domain::Shm(domain), Registration::Shm(pages)) => domain.publish(pages, memory.len()),
            #[cfg(feature = "ibverbs")]
            (Domain::Ibv(domain), Registration::Ibv(registration)) => {
                domain.publish(registration, memory.at(offset), len)
            }
            #[cfg(feature = "sim")]
            (Domain::Sim(domain), Registration::Sim(registration)) => {
                domain.publish(registration, offset, len)
            }
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => Err(VerbsError::Foreign("memory")),
        }
    }

    /// Opens memory that survives a power failure, by its name.
    pub(crate) fn open_persistent(
        &self,
        name: &str,
        len: usize,
        access: Access,
    ) -> Result<(Region, Persistence), VerbsError> {
        match self {
            #[cfg(feature = "sim")]
            Domain::Sim(domain) => {
                let (region, memory) = sim::Persistent::open(domain, name, len, access)?;
                Ok((region, Persistence::Sim(memory)))
            }
            _ => {
                let _ = (name, len, access);
                Err(VerbsError::Unsupported("persistent memory"))
            }
        }
    }

    /// Registers bytes of a region of the same device in this domain. Returns their key, too.
    pub(crate) fn register_part(
        &self,
        memory: &SharedSlice,
        access: Access,
    ) -> Result<(Part, u32), VerbsError> {
        match self {
            #[cfg(feature = "ibverbs")]
            Domain::Ibv(domain) => {
                let (part, rkey) = ibv::Part::register(domain, memory, access)?;
                Ok((Part::Ibv(part), rkey))
            }
            _ => {
                let _ = (memory, access);
                Err(VerbsError::Unsupported("registrations of parts of regions"))
            }
        }
    }

    /// Allocates a free memory window.
    pub(crate) fn alloc_window(&self) -> Result<MemoryWindow, VerbsError> {
        match self {
            Domain::Shm(domain) => {
                let window = shm::Window::alloc(domain)?;
                let rkey = window.first_key();
                Ok(MemoryWindow::new(Window::Shm(Arc::new(window)), domain.number, rkey))
            }
            #[cfg(feature = "ibverbs")]
            Domain::Ibv(domain) => {
                let (window, rkey) = ibv::Window::alloc(domain)?;
                Ok(MemoryWindow::new(Window::Ibv(Arc::new(window)), domain.number, rkey))
            }
            #[cfg(feature = "sim")]
            Domain::Sim(domain) => {
                let (window, rkey) = domain.alloc_window()?;
                Ok(MemoryWindow::new(Window::Sim(window), domain.number, rkey))
            }
        }
    }

    pub(crate) fn create_srq(&self, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        match self {
            Domain::Shm(domain) => {
                shm::SharedReceiveQueue::new(domain, max_wr).map(SharedReceiveQueue::Shm)
            }
            #[cfg(feature = "ibverbs")]
            Domain::Ibv(domain) => {
                ibv::SharedReceiveQueue::create(domain, max_wr).map(SharedReceiveQueue::Ibv)
            }
            #[cfg(feature = "sim")]
            Domain::Sim(domain) => {
                sim::SharedReceiveQueue::new(domain, max_wr).map(SharedReceiveQueue::Sim)
            }
        }
    }

    pub(crate) fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        let QueuePairConfig { ty, send_cq, recv_cq, srq, max_send_wr, max_recv_wr } = config;
        match self {
            Domain::Shm(domain) => {
                let parts = shm::QueuePairParts {
                    ty,
                    send_cq: send_cq.shm()?,
                    recv_cq: recv_cq.shm()?,
                    srq: srq.map(crate::SharedReceiveQueueHandle::shm).transpose()?,
                    max_send_wr,
                    max_recv_wr,
                };
                Ok(QueuePair::Shm(shm::QueuePair::new(domain, parts)?))
            }
            #[cfg(feature = "ibverbs")]
            Domain::Ibv(domain) => {
                let parts = ibv::QueuePairParts {
                    ty,
                    send_cq: send_cq.ibv()?,
                    recv_cq: recv_cq.ibv()?,
                    srq: srq.map(crate::SharedReceiveQueueHandle::ibv).transpose()?,
                    max_send_wr,
                    max_recv_wr,
                };
                Ok(QueuePair::Ibv(Box::new(ibv::QueuePair::create(domain, parts)?)))
            }
            #[cfg(feature = "sim")]
            Domain::Sim(domain) => {
                let parts = sim::QueuePairParts {
                    ty,
                    send_cq: send_cq.sim()?,
                    recv_cq: recv_cq.sim()?,
                    srq: srq.map(crate::SharedReceiveQueueHandle::sim).transpose()?,
                    max_send_wr,
                    max_recv_wr,
                };
                Ok(QueuePair::Sim(sim::QueuePair::new(domain, parts)?))
            }
        }
    }

    /// The address of the device of a peer's queue pair.
    pub(crate) fn address_handle(&self, peer: &Address) -> Result<AddressHandle, VerbsError> {
        match (self, peer) {
            (Domain::Shm(domain), Address::Shm(peer)) => {
                domain.address_handle(peer.gid).map(AddressHandle::Shm)
            }
            #[cfg(feature = "ibverbs")]
            (Domain::Ibv(domain), Address::Ibv(peer)) => {
                ibv::AddressHandle::to_endpoint(domain, peer).map(AddressHandle::Ibv)
            }
            #[cfg(feature = "sim")]
            (Domain::Sim(domain), Address::Sim(peer)) => {
                domain.address_handle(peer.gid()).map(AddressHandle::Sim)
            }
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => Err(OTHER_KIND.into()),
        }
    }

    /// The address of the device with this identifier.
    pub(crate) fn address_handle_to(&self, gid: [u8; 16]) -> Result<AddressHandle, VerbsError> {
        match self {
            Domain::Shm(domain) => domain.address_handle(gid).map(AddressHandle::Shm),
            #[cfg(feature = "ibverbs")]
            Domain::Ibv(domain) => ibv::AddressHandle::to_gid(domain, &gid).map(AddressHandle::Ibv),
            #[cfg(feature = "sim")]
            Domain::Sim(domain) => domain.address_handle(gid).map(AddressHandle::Sim),
        }
    }
}

impl Registration {
    /// Whether peers' writes into the region with this key can make events on the channel; from now on they
    /// do, when it is armed.
    pub(crate) fn watch(&self, rkey: u32, channel: &Channel) -> Result<Wake, VerbsError> {
        let _ = rkey;
        match (self, channel) {
            (Registration::Shm(pages), Channel::Shm(channel)) => pages.watch(channel),
            #[cfg(feature = "ibverbs")]
            (Registration::Ibv(_), Channel::Ibv(_)) => Ok(Wake::PollOnly),
            #[cfg(feature = "sim")]
            (Registration::Sim(region), Channel::Sim(channel)) => region.watch(rkey, channel),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => Err(VerbsError::Foreign("completion channel")),
        }
    }

    /// Stores a word later, if the device is a simulated one whose core has not come to it; otherwise `false`.
    #[cfg(feature = "sim")]
    pub(crate) fn publish(&self, offset: usize, word: u64) -> bool {
        match self {
            Registration::Sim(region) => region.publish(offset, word),
            _ => false,
        }
    }

    /// The owner's CPU changes a word of it by an atomic operation. A debug build of a device that hides it panics if peers do too.
    #[inline]
    pub(crate) fn note_atomic(&self, word: *const u8) {
        match self {
            Registration::Shm(pages) => pages.note_atomic(word),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => {}
        }
    }

    /// Asks for an event with the next write into it, if it is watched.
    pub(crate) fn arm(&self, rkey: u32) {
        let _ = rkey;
        match self {
            Registration::Shm(pages) => pages.arm(),
            #[cfg(feature = "ibverbs")]
            Registration::Ibv(_) => {}
            #[cfg(feature = "sim")]
            Registration::Sim(region) => region.arm(rkey),
        }
    }

    /// Takes that back.
    pub(crate) fn disarm(&self, rkey: u32) {
        let _ = rkey;
        match self {
            Registration::Shm(pages) => pages.disarm(),
            #[cfg(feature = "ibverbs")]
            Registration::Ibv(_) => {}
            #[cfg(feature = "sim")]
            Registration::Sim(region) => region.disarm(rkey),
        }
    }
}

impl QueuePair {
    pub(crate) fn connect(
        &mut self,
        peer: &Address,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        match (self, peer) {
            (QueuePair::Shm(qp), Address::Shm(peer)) => qp.connect(peer, options),
            #[cfg(feature = "ibverbs")]
            (QueuePair::Ibv(qp), Address::Ibv(peer)) => qp.connect(peer, options),
            #[cfg(feature = "sim")]
            (QueuePair::Sim(qp), Address::Sim(peer)) => qp.connect(peer, options),
            #[cfg(feature = "faults")]
            (QueuePair::Faulty(qp), peer) => qp.connect(peer, options),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => Err(OTHER_KIND),
        }
    }

    pub(crate) fn connect_dynamically(
        &mut self,
        target: &Address,
        key: u64,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        match (self, target) {
            #[cfg(feature = "sim")]
            (QueuePair::Sim(qp), Address::Sim(target)) => {
                qp.connect_dynamically(target, key, options)
            }
            #[cfg(feature = "sim")]
            (QueuePair::Sim(_), _) => Err(OTHER_KIND),
            #[cfg(feature = "faults")]
            (QueuePair::Faulty(_), _) => Err(NO_FAULTS),
            _ => {
                let _ = (key, options);
                Err(ConnectError::NotDynamic)
            }
        }
    }

    pub(crate) fn accept_dynamically(&mut self, key: u64) -> Result<(), ConnectError> {
        match self {
            #[cfg(feature = "sim")]
            QueuePair::Sim(qp) => qp.accept_dynamically(key),
            #[cfg(feature = "faults")]
            QueuePair::Faulty(_) => Err(NO_FAULTS),
            _ => {
                let _ = key;
                Err(ConnectError::NotDynamic)
            }
        }
    }

    pub(crate) fn address(&self) -> Address {
        match self {
            QueuePair::Shm(qp) => Address::Shm(qp.endpoint()),
            #[cfg(feature = "ibverbs")]
            QueuePair::Ibv(qp) => Address::Ibv(qp.endpoint()),
            #[cfg(feature = "sim")]
            QueuePair::Sim(qp) => Address::Sim(qp.endpoint()),
            #[cfg(feature = "faults")]
            QueuePair::Faulty(qp) => qp.address(),
        }
    }
}

/// Checks whether this program can use RDMA devices; the error says why not, and how to fix it.
pub(crate) fn rdma_support() -> Result<(), String> {
    #[cfg(feature = "ibverbs")]
    return ibv::support();
    #[cfg(not(feature = "ibverbs"))]
    Err("this program was built without them; build it with `--features ibverbs`".to_owned())
}

/// What an injector holds back would go to the target that was named meanwhile.
#[cfg(feature = "faults")]
const NO_FAULTS: ConnectError = ConnectError::Refused(
    "an injector of faults around the device does not follow changing targets; use the device without",
);

#[cfg(any(feature = "ibverbs", feature = "sim"))]
const OTHER_KIND: ConnectError =
    ConnectError::Mismatch("it names a queue pair of another kind of device");

/// Converts an operating-system error, with what the device tried to do.
fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> VerbsError {
    move |error| VerbsError::System { what, source: error.into() }
}
