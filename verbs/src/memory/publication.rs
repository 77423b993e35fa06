//! Memory that peers of several protection domains may READ.

use crate::memory::region::Region;
use crate::{Access, BufferPool, ProtectionDomain, RemoteRegion, VerbsError};

/// Published memory, as the peers of one more protection domain may READ it. Dropping it takes that away.
///
/// It keeps the pages, not a buffer: the owner sees to it that they hold what peers may see.
#[derive(Debug)]
pub struct Publication {
    region: Region,
}

impl Publication {
    /// The address and key of these bytes; `None` if they are not all of its memory.
    pub fn remote(&self, bytes: &[u8]) -> Option<RemoteRegion> {
        self.region.offset_of(bytes).map(|_| {
            let addr = self.region.address_of(bytes.as_ptr());
            RemoteRegion::new(addr, self.region.rkey(), bytes.len() as u64)
        })
    }
}

impl ProtectionDomain {
    /// Lets the peers of this domain READ memory that was [published](Self::alloc_published) in another domain of the same device: `bytes`,
    /// which lie in a buffer of the pool. Those with the key may READ these bytes; on `shm`, where peers map memory, all of the pool.
    ///
    /// # Errors
    /// If the bytes are not of this pool, the pool is not published, or of another device, or the device refuses.
    pub fn publish(&self, pool: &BufferPool, bytes: &[u8]) -> Result<Publication, VerbsError> {
        let memory = pool.memory();
        if !memory.access().contains(Access::REMOTE_READ) {
            return Err(VerbsError::Invalid("memory that peers cannot READ is published"));
        }
        let offset = memory.offset_of(bytes).ok_or(VerbsError::Invalid("bytes of another pool"))?;
        Ok(Publication { region: self.register_published(memory, offset, bytes.len())? })
    }
}

#[cfg(test)]
mod tests {
    use crate::Device;

    #[test]
    fn bytes_of_a_published_pool_have_an_address_in_another_domain_and_others_do_not() {
        let device = Device::open("shm").unwrap();
        let (pd, other) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        let pool = pd.alloc_published(3 * 8192).unwrap().into_pool(8192);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        let publication = other.publish(&pool, &first).unwrap();
        let remote = publication.remote(&first[100..300]).unwrap();
        let own = first.remote().unwrap();
        assert_eq!((remote.addr, remote.len), (own.addr + 100, 200));
        assert_ne!(remote.rkey, own.rkey, "each domain has its key");
        assert!(publication.remote(&second).is_some(), "peers map all of it");
        assert!(publication.remote(&[7; 10]).is_none());
        assert!(other.publish(&pool, &[7; 10]).is_err());
    }

    #[test]
    fn private_memory_is_not_published() {
        let device = Device::open("shm").unwrap();
        let pool = device.alloc_pd().unwrap().alloc_private(4096).unwrap().into_pool(4096);
        let buffer = pool.take().unwrap();
        assert!(device.alloc_pd().unwrap().publish(&pool, &buffer).is_err());
    }
}
