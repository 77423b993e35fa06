//! A protection domain: memory and queue pairs that work together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::context::Context;
use super::datagram::AddressHandle;
use super::region::Pages;
use super::wire::Gid;
use crate::dispatch::Registration;
use crate::memory::mapping::{Mapping, Population};
use crate::memory::region::{Region, RegionParts};
use crate::{Access, VerbsError};

/// How long looking up a peer's device may take.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// A protection domain of this device: a number that its memory and its queue pairs have in common.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) context: Arc<Context>,
    pub(crate) number: u32,
    /// Set if it is for one queue pair.
    pub(crate) sole: Option<Arc<Sole>>,
}

/// A domain for one queue pair. Only one peer can ever map its memory, so its files are closed once that has.
#[derive(Debug, Default)]
pub(crate) struct Sole {
    has_queue_pair: AtomicBool,
    is_within_process: AtomicBool,
}

impl Sole {
    /// Makes sure that there is no other queue pair.
    pub(super) fn take_place(&self) -> Result<(), VerbsError> {
        match self.has_queue_pair.swap(true, Ordering::Relaxed) {
            false => Ok(()),
            true => Err(VerbsError::Invalid("the protection domain is for one queue pair")),
        }
    }

    /// The one peer belongs to this process.
    pub(super) fn set_within_process(&self) {
        self.is_within_process.store(true, Ordering::Release);
    }

    pub(super) fn is_within_process(&self) -> bool {
        self.is_within_process.load(Ordering::Acquire)
    }
}

impl Domain {
    pub(crate) fn private(&self, len: usize) -> Result<Region, VerbsError> {
        private_region(len, self.number, Population::AtOnce)
    }

    pub(crate) fn private_on_demand(&self, len: usize) -> Result<Region, VerbsError> {
        private_region(len, self.number, Population::WhenTouched)
    }

    pub(crate) fn register(&self, len: usize, access: Access) -> Result<Region, VerbsError> {
        self.context.register(self, len, access, Population::AtOnce)
    }

    pub(crate) fn register_on_demand(
        &self,
        len: usize,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.context.register(self, len, access, Population::WhenTouched)
    }

    /// Registers memory of this process that peers may READ in this domain too.
    pub(crate) fn publish(&self, memory: &Pages, len: usize) -> Result<Region, VerbsError> {
        let Pages::Lent(memory) = memory else { return Err(NOT_PUBLISHED) };
        let file = memory.lent.file().ok_or(NOT_PUBLISHED)?;
        let pages = (file, Arc::clone(&memory._mapping));
        self.context.enter(self, pages, len, Access::REMOTE_READ)
    }

    pub(crate) fn address_handle(&self, gid: Gid) -> Result<AddressHandle, VerbsError> {
        Ok(AddressHandle { peer: self.context.peer(gid, PEER_TIMEOUT)? })
    }
}

/// It was not allocated with `alloc_published`, or in a domain for one queue pair.
const NOT_PUBLISHED: VerbsError = VerbsError::Invalid("memory that peers cannot READ is published");

/// Pages of this process alone: the device has no part in them.
pub(crate) fn private_region(
    len: usize,
    pd: u32,
    population: Population,
) -> Result<Region, VerbsError> {
    let mapping = Mapping::populated(len, population).map_err(|error| VerbsError::System {
        what: "memory for a private region",
        source: error.into(),
    })?;
    Ok(Region::new(RegionParts {
        start: mapping.start_non_null(),
        len,
        access: Access::empty(),
        lkey: 0,
        rkey: 0,
        pd,
        registration: Registration::Shm(Pages::Private(mapping)),
    }))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::completion_queue::CompletionQueue;
    use crate::shm::queue_pair::hostile::{connect, queue_pair};

    /// A peer in another process needs the file to map it; one of this process does not.
    #[test]
    fn a_region_for_one_queue_pair_keeps_its_file_until_its_peer_is_known_to_be_of_this_process() {
        let owner = Context::open(false).unwrap();
        let sole = Some(Arc::default());
        let domain = Domain { context: Arc::clone(&owner), number: 1, sole };
        let region = domain.register(64, Access::all()).unwrap();
        let has_file_when_mapped = || {
            let other = Context::open(false).unwrap();
            let peer = other.peer(owner.gid, PEER_TIMEOUT).unwrap();
            assert!(peer.ask_for_region(region.rkey()).unwrap().is_some());
            owner.region(region.rkey()).unwrap().file().is_some()
        };
        assert!(has_file_when_mapped(), "its peer may be in another process");
        let peers = Domain { context: Context::open(false).unwrap(), number: 1, sole: None };
        let queues = [(); 2].map(|()| CompletionQueue::new(64, None, false));
        let (mut qp, mut its_peer) =
            (queue_pair(&domain, &queues[0]), queue_pair(&peers, &queues[1]));
        connect(&mut qp, &mut its_peer);
        assert!(!has_file_when_mapped(), "a descriptor for nobody");
    }
}
