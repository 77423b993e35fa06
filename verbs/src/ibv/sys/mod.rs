//! The binding to libibverbs: types and inline functions of `rdma-sys`, and exported functions loaded when
//! the first device is requested. Only this module depends on the choice of binding.
//!
//! The program is not linked with libibverbs, so it also starts where it is not installed. `rdma-sys` calls
//! what goes through a context's table of operations (posting, polling); everything else is in [`Library`].

mod library;

use std::ptr::NonNull;

pub(super) use rdma_sys::{atomic_t, bind_mw_t, ibv_mw_bind_info, rdma_t, ud_t};
pub(super) use rdma_sys::{
    ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_atomic_cap, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_device_cap_flags, ibv_event_type, ibv_mr,
    ibv_mw, ibv_mw_type, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr, ibv_wc, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status, ibv_wr_opcode,
};
pub(super) use rdma_sys::{
    ibv_alloc_mw, ibv_dealloc_mw, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv,
    ibv_req_notify_cq,
};

pub(super) use library::Library;

/// The link layer of a port that is Ethernet, so RoCE (`IBV_LINK_LAYER_ETHERNET`, a macro in C).
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

/// A non-null handle of libibverbs.
pub(super) struct Handle<T>(NonNull<T>);

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Handle<T> {
    /// `None` for null: the call failed, and errno says why.
    pub(super) fn new(raw: *mut T) -> Option<Handle<T>> {
        NonNull::new(raw).map(Handle)
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Identifies the handle among others of its kind while it lives.
    #[inline]
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

// SAFETY: libibverbs may be called from any thread with any handle (`man ibv_get_device_list` and the
// others name no exception; providers lock internally). A handle's destroyer ensures that it is the last
// user.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// C structures for which all-zero bytes are a valid value: numbers, null pointers, and unions of these.
///
/// # Safety
/// All-zero bytes must be a valid value.
pub(super) unsafe trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: promised by the implementor of the trait.
        unsafe { std::mem::zeroed() }
    }
}

/// Implements [`Zeroed`] for the given structures.
macro_rules! zeroed {
    ($($name:ty)*) => { $(
        // SAFETY: consists of integers, pointers that may be null, and unions and structures of these.
        unsafe impl Zeroed for $name {}
    )* };
}

zeroed! {
    ibv_ah_attr ibv_device_attr ibv_port_attr ibv_qp_attr ibv_qp_init_attr ibv_recv_wr ibv_send_wr
    ibv_sge ibv_srq_init_attr ibv_wc
}
