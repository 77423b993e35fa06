//! A protection domain and the memory registered in it.

use std::ptr::NonNull;
use std::sync::Arc;

use super::context::Context;
use super::memory::{Registration, published, registered};
use super::status;
use super::sys::{Handle, ibv_pd};
use crate::memory::region::Region;
use crate::{Access, VerbsError};

/// A protection domain. It is deallocated once everything created in it is dropped.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pub(crate) context: Arc<Context>,
    pub(super) raw: Handle<ibv_pd>,
    /// Unique in this process; compared between memory and queue pairs.
    pub(crate) number: u32,
}

impl ProtectionDomain {
    pub(crate) fn alloc(context: &Arc<Context>, number: u32) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = Handle::new(unsafe { (context.library.alloc_pd)(context.raw.raw()) });
        let raw = raw.ok_or_else(|| status::resource("protection domain")(status::last()))?;
        Ok(Arc::new(ProtectionDomain { context: Arc::clone(context), raw, number }))
    }

    /// Allocates memory that no peer can access, registered for our own NIC.
    pub(crate) fn private(self: &Arc<Self>, len: usize) -> Result<Region, VerbsError> {
        registered(self, len, Access::empty())
    }

    /// Allocates memory that peers with its key may access as `access` allows.
    pub(crate) fn register(
        self: &Arc<Self>,
        len: usize,
        access: Access,
    ) -> Result<Region, VerbsError> {
        registered(self, len, access)
    }

    /// Registers a part of memory that is registered in another domain, for peers of this one to READ.
    pub(crate) fn publish(
        self: &Arc<Self>,
        memory: &Registration,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<Region, VerbsError> {
        published(self, memory, start, len)
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: memory, queue pairs and address handles of the domain keep it alive, so none is left, unless one
        // had to be leaked: then this call fails, and the domain stays until the process ends.
        unsafe { (self.context.library.dealloc_pd)(self.raw.raw()) };
    }
}
