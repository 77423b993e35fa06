//! Parts of regions that are registered once more.

use crate::dispatch;
use crate::{RemoteRegion, SharedSlice, VerbsError};

/// A part of a region under a key of its own, in a protection domain of its own: see
/// [`ProtectionDomain::register_part`](crate::ProtectionDomain::register_part). Peers of that domain's queue pairs reach these bytes with the
/// key, and no others.
///
/// It keeps the region. Dropping it deregisters it.
#[derive(Debug)]
pub struct PartRegistration {
    device: dispatch::Part,
    remote: RemoteRegion,
    /// `None`: the device may still use it, so it is leaked.
    memory: Option<SharedSlice>,
}

impl PartRegistration {
    pub(crate) fn new(device: dispatch::Part, rkey: u32, memory: SharedSlice) -> PartRegistration {
        let remote = RemoteRegion::new(memory.remote_address(), rkey, memory.len() as u64);
        PartRegistration { device, remote, memory: Some(memory) }
    }

    /// The address and key under which peers access it.
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }

    /// Takes the access away. When this returns, accesses with the key fail, and those that the device had let through have ended.
    ///
    /// # Errors
    /// The device refuses, because a peer still accesses it: destroy the queue pair, and then drop this.
    pub fn deregister(&mut self) -> Result<(), VerbsError> {
        self.device.deregister()
    }
}

impl Drop for PartRegistration {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::error!(%error, "a part of a region could not be deregistered, and is leaked");
            std::mem::forget(self.memory.take());
        }
    }
}
