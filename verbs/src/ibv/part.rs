//! Parts of regions that are registered once more.

use std::sync::Arc;

use super::domain::ProtectionDomain;
use super::memory::raw_access;
use super::status;
use super::sys::{Handle, ibv_mr};
use crate::dispatch;
use crate::{Access, SharedSlice, VerbsError};

/// The registration of a part. Its owner keeps the memory.
#[derive(Debug)]
pub(crate) struct Part {
    /// `None` once it is deregistered.
    mr: Option<Handle<ibv_mr>>,
    domain: Arc<ProtectionDomain>,
}

impl Part {
    /// Registers bytes of a region of this device in this domain. Returns their key, too.
    pub(crate) fn register(
        domain: &Arc<ProtectionDomain>,
        memory: &SharedSlice,
        access: Access,
    ) -> Result<(Part, u32), VerbsError> {
        if !matches!(memory.registration(), dispatch::Registration::Ibv(_)) {
            return Err(VerbsError::Foreign("region"));
        }
        let wanted = raw_access(access, domain.context.caps().atomics, false);
        let (library, len) = (domain.context.library, memory.len());
        // SAFETY: the pages are mapped as long as the caller keeps the slice, which it does until this is deregistered. They are this
        // process's; the owner of the region decides who may touch them.
        let mr = Handle::new(unsafe {
            (library.reg_mr)(domain.raw.raw(), memory.start().cast(), len, wanted as i32)
        });
        let mr = mr.ok_or_else(|| status::registration(len)(status::last()))?;
        // SAFETY: libibverbs has filled the structure, and changes it no more.
        let rkey = unsafe { (*mr.raw()).rkey };
        Ok((Part { mr: Some(mr), domain: Arc::clone(domain) }, rkey))
    }

    /// Deregisters it, once.
    pub(crate) fn deregister(&mut self) -> Result<(), VerbsError> {
        let Some(mr) = &self.mr else { return Ok(()) };
        // SAFETY: no work request of this end names it, and it is deregistered once: it is taken out if that succeeds.
        let code = unsafe { (self.domain.context.library.dereg_mr)(mr.raw()) };
        if code != 0 {
            return Err(status::resource("deregistering memory")(status::returned(code)));
        }
        self.mr = None;
        Ok(())
    }
}
