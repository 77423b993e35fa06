//! Memory registered with a NIC.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::domain::ProtectionDomain;
use super::status;
use super::sys::{Handle, ibv_access_flags as flags, ibv_mr};
use crate::dispatch;
use crate::memory::mapping::Mapping;
use crate::memory::region::{Region, RegionParts};
use crate::{Access, QpType, VerbsError};

/// Pages and their registration. Dropping it deregisters the pages, then unmaps them.
#[derive(Debug)]
pub(crate) struct Registration {
    mr: Handle<ibv_mr>,
    /// Other registrations may have it too.
    mapping: ManuallyDrop<Arc<Mapping>>,
    domain: Arc<ProtectionDomain>,
}

/// Registers zeroed memory for `access` by peers.
pub(super) fn registered(
    domain: &Arc<ProtectionDomain>,
    len: usize,
    access: Access,
) -> Result<Region, VerbsError> {
    let mapping = Mapping::anonymous(len).map_err(status::resource("memory for a region"))?;
    let start = mapping.start_non_null();
    register(domain, Arc::new(mapping), start, len, access)
}

/// Registers a part of memory that is registered elsewhere, for peers of this domain to READ.
pub(super) fn published(
    domain: &Arc<ProtectionDomain>,
    memory: &Registration,
    start: NonNull<u8>,
    len: usize,
) -> Result<Region, VerbsError> {
    register(domain, Arc::clone(&memory.mapping), start, len, Access::REMOTE_READ)
}

/// Registers `len` bytes from `start`, which the mapping has.
fn register(
    domain: &Arc<ProtectionDomain>,
    mapping: Arc<Mapping>,
    first: NonNull<u8>,
    len: usize,
    access: Access,
) -> Result<Region, VerbsError> {
    let library = domain.context.library;
    let (start, pd) = (first.as_ptr(), domain.raw.raw());
    let caps = domain.context.caps();
    let wanted = raw_access(access, caps.atomics, caps.max_mw > 0);
    let mut mr = None;
    if access.contains(Access::RELAXED_ORDERING) {
        let relaxed = wanted | flags::IBV_ACCESS_RELAXED_ORDERING.0;
        // SAFETY: the pages are mapped, and stay so until the region is deregistered. They are private to this
        // process; `Region` decides who may touch them.
        mr = Handle::new(unsafe {
            (library.reg_mr_iova2)(pd, start.cast(), len, start.addr() as u64, relaxed)
        });
    }
    // Relaxed ordering is optional: the device may not support it.
    let mr = match mr {
        Some(mr) => mr,
        // SAFETY: as above.
        None => Handle::new(unsafe { (library.reg_mr)(pd, start.cast(), len, wanted as i32) })
            .ok_or_else(|| status::registration(len)(status::last()))?,
    };
    // SAFETY: libibverbs has filled the structure, and changes it no more.
    let (lkey, rkey) = unsafe { ((*mr.raw()).lkey, (*mr.raw()).rkey) };
    Ok(Region::new(RegionParts {
        start: first,
        len,
        access,
        lkey,
        rkey,
        pd: domain.number,
        registration: dispatch::Registration::Ibv(Registration {
            mr,
            mapping: ManuallyDrop::new(mapping),
            domain: Arc::clone(domain),
        }),
    }))
}

impl Registration {
    /// Its handle, for a binding.
    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.mr.raw()
    }
}

/// The access that peers have on a queue pair. The region restricts it further.
pub(super) fn remote_access(ty: QpType, atomics: bool) -> u32 {
    match ty {
        QpType::Rc => raw_access(Access::all(), atomics, false),
        QpType::Uc => raw_access(Access::REMOTE_WRITE, atomics, false),
        QpType::Ud => 0,
    }
}

/// The access through a window. It writes through its region, so that one's local writing is what it needs.
pub(super) fn window_access(access: Access) -> u32 {
    raw_access(access, true, false) & !flags::IBV_ACCESS_LOCAL_WRITE.0
}

/// Translates access flags. A device without atomics or windows may refuse the flag for them.
pub(super) fn raw_access(access: Access, atomics: bool, windows: bool) -> u32 {
    // Local writes: for receives and READs, and required for remote writes.
    let mut raw = flags::IBV_ACCESS_LOCAL_WRITE.0;
    for (ours, theirs) in [
        (Access::REMOTE_READ, flags::IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_WRITE, flags::IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, flags::IBV_ACCESS_REMOTE_ATOMIC),
        (Access::MW_BIND, flags::IBV_ACCESS_MW_BIND),
    ] {
        let offered = match ours {
            Access::REMOTE_ATOMIC => atomics,
            Access::MW_BIND => windows,
            _ => true,
        };
        if offered && access.contains(ours) {
            raw |= theirs.0;
        }
    }
    raw
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: work requests that use the region hold it, so none is in flight.
        let code = unsafe { (self.domain.context.library.dereg_mr)(self.mr.raw()) };
        if code == 0 {
            // SAFETY: dropped once, here; the NIC no longer uses the pages.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        } else {
            // The NIC may still write there, so the pages stay mapped until the process ends.
            tracing::error!(code, "memory could not be deregistered, and is leaked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_the_requested_one_and_local_writing() {
        assert_eq!(raw_access(Access::empty(), true, true), 1);
        assert_eq!(raw_access(Access::REMOTE_WRITE, true, true), 3);
        assert_eq!(raw_access(Access::REMOTE_READ, false, false), 5);
        let all = raw_access(Access::all(), true, true);
        assert_eq!(all, 31, "relaxed ordering is requested separately");
        assert_eq!(raw_access(Access::all(), false, true), 23, "without atomics");
        assert_eq!(raw_access(Access::all(), true, false), 15, "without windows");
        assert_eq!(window_access(Access::REMOTE_WRITE), 2);
    }
}
