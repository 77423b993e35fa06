//! Shared receive queues.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::attachment::{Attached, Change};
use super::completion_queue::{CqShared, CqState};
use super::context::Context;
use super::domain::ProtectionDomain;
use super::receive::{Owner, ReceiveSlots, Target};
use super::status;
use super::sys::{Handle, Zeroed, ibv_srq, ibv_srq_init_attr};
use crate::{Buffer, PostError, VerbsError};

/// A shared receive queue of the device. Queue pairs that use it keep it alive.
#[derive(Debug)]
pub(super) struct SrqShared {
    pub(super) raw: Handle<ibv_srq>,
    slots: Arc<ReceiveSlots>,
    domain: Arc<ProtectionDomain>,
    /// The queues that get its completions. It stays attached until it is dropped: a queue pair that is dropped
    /// earlier leaves completions behind, whose receives must be returned.
    queues: Mutex<Vec<Weak<CqState>>>,
}

impl SrqShared {
    pub(super) fn attach_to(&self, cq: &CqShared) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        if !queues.iter().any(|queue| queue.as_ptr() == Arc::as_ptr(&cq.state)) {
            queues.push(Arc::downgrade(&cq.state));
            let receives = Attached::Receives(Arc::clone(&self.slots));
            cq.state.change(Change::Attach(self.slots.key, receives));
        }
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        let queues = self.queues.get_mut().unwrap_or_else(PoisonError::into_inner);
        for queue in queues.iter().filter_map(Weak::upgrade) {
            queue.change(Change::Detach(self.slots.key));
        }
        // SAFETY: queue pairs keep the queue alive, so none is left that uses it. If this succeeds, the device has
        // released all buffers posted here.
        let code = unsafe { (self.domain.context.library.destroy_srq)(self.raw.raw()) };
        if code == 0 {
            self.slots.clear();
        } else {
            tracing::error!(code, "a shared receive queue could not be destroyed");
            std::mem::forget(Arc::clone(&self.slots));
        }
    }
}

/// The owner's side of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    shared: Arc<SrqShared>,
}

impl SharedReceiveQueue {
    pub(crate) fn create(
        domain: &Arc<ProtectionDomain>,
        max_wr: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let mut init = ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr as u32, 1);
        // SAFETY: the domain lives, and the structure is ours.
        let raw = Handle::new(unsafe {
            (domain.context.library.create_srq)(domain.raw.raw(), &mut init)
        });
        let raw = raw.ok_or_else(|| status::resource("shared receive queue")(status::last()))?;
        let slots = Arc::new(ReceiveSlots::new(max_wr, domain.number, Owner::Shared));
        let domain = Arc::clone(domain);
        let shared = SrqShared { raw, slots, domain, queues: Mutex::default() };
        Ok(SharedReceiveQueue { shared: Arc::new(shared) })
    }

    /// The queue, if it belongs to this device.
    pub(super) fn of(&self, context: &Arc<Context>) -> Result<Arc<SrqShared>, VerbsError> {
        if Arc::ptr_eq(&self.shared.domain.context, context) {
            Ok(Arc::clone(&self.shared))
        } else {
            Err(VerbsError::Foreign("shared receive queue"))
        }
    }

    pub(crate) fn post_recv(&self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        Target::Shared(self.shared.raw.raw()).post_one(&self.shared.slots, id, buffer)
    }
}
