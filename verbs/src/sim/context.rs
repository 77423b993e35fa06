//! An opened device of a node, and its protection domains.

use std::sync::{Arc, Mutex, MutexGuard};

use super::channel::Channel;
use super::completion_queue::{CompletionQueue, CqHandle};
use super::memory::{self, Pages};
use super::node::{capabilities, node_of};
use super::world::{World, lock};
use crate::memory::region::Region;
use crate::{Access, Capabilities, ConnectError, VerbsError};

/// A device opened since one start of a node.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) world: Arc<Mutex<World>>,
    pub(super) node: u16,
    pub(super) incarnation: u32,
    /// The number of its doorbell page.
    pub(super) doorbell: u32,
    caps: Capabilities,
}

impl Context {
    /// Whether both were opened since the same start of the same node.
    pub(crate) fn is_same(&self, other: &Context) -> bool {
        let whose = |context: &Context| (context.node, context.incarnation);
        Arc::ptr_eq(&self.world, &other.world) && whose(self) == whose(other)
    }

    /// All programs of a node are one process, from one start to the next.
    pub(crate) fn process_number(&self) -> u64 {
        u64::from(self.incarnation) << 16 | u64::from(self.node)
    }

    pub(super) fn open(world: &Arc<Mutex<World>>, node: u16) -> Arc<Context> {
        let mut guard = lock(world);
        let incarnation = guard.nodes[usize::from(node)].incarnation;
        let caps = capabilities(&guard.config);
        let doorbell = guard.node(node).doorbells.open();
        drop(guard);
        Arc::new(Context { world: Arc::clone(world), node, incarnation, doorbell, caps })
    }

    pub(crate) fn caps(&self) -> &Capabilities {
        &self.caps
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// A number that depends on the seed and on how many were drawn.
    pub(crate) fn random(&self) -> u64 {
        let secrets = &mut self.lock().secrets;
        u64::from(secrets.word()) << 32 | u64::from(secrets.word())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// The simulation, if the node of this device still runs.
    pub(super) fn running(&self) -> Result<MutexGuard<'_, World>, VerbsError> {
        let world = self.lock();
        match world.runs(self.node, self.incarnation) {
            true => Ok(world),
            false => Err(VerbsError::Invalid("the simulated node of this device was killed")),
        }
    }

    /// Whether both are the same device, possibly opened twice.
    pub(super) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.world, &other.world)
            && (self.node, self.incarnation) == (other.node, other.incarnation)
    }

    pub(crate) fn create_channel(&self) -> rustix::io::Result<Channel> {
        Channel::new(Arc::downgrade(&self.world), self.node)
    }

    pub(crate) fn create_cq(
        self: &Arc<Self>,
        capacity: usize,
        channel: Option<Arc<Channel>>,
    ) -> Result<(CompletionQueue, CqHandle), VerbsError> {
        CompletionQueue::new(self, capacity, channel)
    }
}

/// A protection domain: a number that its memory and its queue pairs share.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) context: Arc<Context>,
    pub(crate) number: u32,
}

impl Domain {
    pub(crate) fn private(&self, len: usize) -> Result<Region, VerbsError> {
        memory::private(len, self.number)
    }

    pub(crate) fn register(&self, len: usize, access: Access) -> Result<Region, VerbsError> {
        self.enter(Arc::new(Pages::new(len)?), access)
    }

    /// Registers a part of memory that is registered in another domain, for peers of this one to READ.
    pub(crate) fn publish(
        &self,
        memory: &memory::Registration,
        offset: usize,
        len: usize,
    ) -> Result<Region, VerbsError> {
        self.enter(memory.part_for(&self.context, offset, len)?, Access::REMOTE_READ)
    }

    fn enter(&self, pages: Arc<Pages>, access: Access) -> Result<Region, VerbsError> {
        let mut world = self.context.running()?;
        let World { nodes, dice, .. } = &mut *world;
        let regions = &mut nodes[usize::from(self.context.node)].regions;
        Ok(regions.register(&self.context, self.number, pages, None, access, || dice.word()))
    }

    pub(crate) fn address_handle(&self, gid: [u8; 16]) -> Result<AddressHandle, VerbsError> {
        let nodes = self.context.lock().nodes.len();
        match node_of(gid).filter(|node| usize::from(*node) < nodes) {
            Some(node) => Ok(AddressHandle { world: self.context.world_name(), node }),
            None => Err(ConnectError::Mismatch("no node of this rack has its identifier").into()),
        }
    }
}

impl Context {
    /// Distinguishes the simulations of one process.
    pub(super) fn world_name(&self) -> usize {
        Arc::as_ptr(&self.world).addr()
    }
}

/// The address of a node.
#[derive(Clone, Debug)]
pub(crate) struct AddressHandle {
    pub(super) world: usize,
    pub(super) node: u16,
}
