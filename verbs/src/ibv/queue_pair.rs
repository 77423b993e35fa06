//! The owner's side of a queue pair, and the state shared with pollers and the event thread.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::attachment::{Attached, Change, Key};
use super::completion_queue::{CqShared, attention};
use super::domain::ProtectionDomain;
use super::endpoint::IbvEndpoint;
use super::events::Registry;
use super::in_flight::{InFlight, SendSlots};
use super::pending::Pending;
use super::port;
use super::receive::{Owner, ReceiveSlots, Target};
use super::shared_receive::{SharedReceiveQueue, SrqShared};
use super::status;
use super::sys::{
    Handle, Zeroed, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type,
};
use super::window::BoundWindows;
use crate::memory::window::Binder;
use crate::{Buffer, PostError, QpState, QpType, VerbsError};

/// The shared state of a queue pair. It outlives the queue pair, because a poller may still use it.
#[derive(Debug)]
pub(super) struct QpShared {
    pub(super) number: u32,
    pub(super) ty: QpType,
    /// Datagrams arrive with IPv4 headers.
    pub(super) ipv4: bool,
    pub(super) sends: SendSlots,
    state: AtomicU32,
    /// Work requests from this number on never reached the device; `u64::MAX` if all did.
    unposted: AtomicU64,
    /// The address of its handle, its key in the registry.
    address: usize,
    registry: Arc<Registry>,
}

impl QpShared {
    #[inline]
    pub(super) fn state(&self) -> QpState {
        QpState::of(self.state.load(Ordering::Acquire))
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Changes the state from `from` to `to`, unless it has broken meanwhile.
    pub(super) fn advance(&self, from: QpState, to: QpState) -> bool {
        let exchanged = self.state.compare_exchange(
            from as u32,
            to as u32,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        exchanged.is_ok()
    }

    /// Handles a failed work request, which breaks the queue pair. The device is in the error state already;
    /// this flushes what was posted before we noticed.
    #[cold]
    pub(super) fn handle_failure(&self) {
        if self.state() != QpState::Error {
            self.registry.break_pair(self.address);
        }
    }

    /// The number of the first work request that never reached the device.
    pub(super) fn unposted(&self) -> Option<u64> {
        Some(self.unposted.load(Ordering::Acquire)).filter(|number| *number != u64::MAX)
    }
}

/// The checked parameters of a queue pair.
pub(crate) struct Parts<'a> {
    pub(crate) ty: QpType,
    pub(crate) send_cq: &'a Arc<CqShared>,
    pub(crate) recv_cq: &'a Arc<CqShared>,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
}

/// Where receives are posted.
#[derive(Debug)]
enum Receives {
    Own(Arc<ReceiveSlots>),
    /// In a shared queue, which the queue pair keeps alive.
    Shared(#[allow(dead_code)] Arc<SrqShared>),
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) raw: Handle<ibv_qp>,
    pub(super) shared: Arc<QpShared>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) key: Key,
    /// Send work requests posted so far, and the limit of that count as last computed.
    pub(super) posted: u64,
    pub(super) limit: u64,
    pub(super) max_send_wr: u64,
    /// Posted without a doorbell yet.
    pub(super) pending: Pending,
    pub(super) in_flight: InFlight,
    /// What windows know it by, and those that it may have bound.
    pub(super) binder: Binder,
    pub(super) windows: BoundWindows,
    receives: Receives,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    /// The sequence number of the first packet.
    pub(super) psn: u32,
}

impl QueuePair {
    pub(crate) fn create(
        domain: &Arc<ProtectionDomain>,
        parts: Parts<'_>,
    ) -> Result<QueuePair, VerbsError> {
        let context = &domain.context;
        let Parts { ty, send_cq, recv_cq, srq, max_send_wr, max_recv_wr } = parts;
        let (send_cq, recv_cq) = (send_cq.of(context)?, recv_cq.of(context)?);
        let srq = srq.map(|srq| srq.of(context)).transpose()?;
        let max_inline = context.caps().max_inline;
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq) = (send_cq.raw.raw(), recv_cq.raw.raw());
        init.qp_type = match ty {
            QpType::Rc => ibv_qp_type::IBV_QPT_RC,
            QpType::Uc => ibv_qp_type::IBV_QPT_UC,
            QpType::Ud => ibv_qp_type::IBV_QPT_UD,
        };
        init.cap.max_send_wr = max_send_wr as u32;
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        init.cap.max_inline_data = max_inline as u32;
        match &srq {
            Some(srq) => init.srq = srq.raw.raw(),
            None => init.cap.max_recv_wr = max_recv_wr as u32,
        }
        let failed = status::resource("queue pair");
        // SAFETY: domain and queues live, and are kept by the queue pair; the structure is ours.
        let raw = Handle::new(unsafe { (context.library.create_qp)(domain.raw.raw(), &mut init) });
        let raw = raw.ok_or_else(|| failed(status::last()))?;
        // SAFETY: libibverbs has filled the structure.
        let number = unsafe { (*raw.raw()).qp_num };
        let registry = Arc::clone(&context.events.registry);
        let shared = Arc::new(QpShared {
            number,
            ty,
            ipv4: port::ipv4(&context.port.gid).is_some(),
            sends: SendSlots::new(max_send_wr),
            state: AtomicU32::new(QpState::Init as u32),
            unposted: AtomicU64::new(u64::MAX),
            address: raw.address(),
            registry,
        });
        let receives = match srq {
            Some(srq) => Receives::Shared(srq),
            None => {
                let owner = Owner::Pair(Arc::clone(&shared));
                Receives::Own(Arc::new(ReceiveSlots::new(max_recv_wr, domain.number, owner)))
            }
        };
        let queue_pair = QueuePair {
            raw,
            shared,
            domain: Arc::clone(domain),
            key: Key::fresh(),
            posted: 0,
            limit: max_send_wr as u64,
            max_send_wr: max_send_wr as u64,
            pending: Pending::new(max_send_wr, max_inline),
            in_flight: InFlight::new(max_send_wr),
            binder: Binder::default(),
            windows: BoundWindows::default(),
            receives,
            send_cq,
            recv_cq,
            psn: random_psn().map_err(status::resource("random packet number"))?,
        };
        queue_pair.initialise().map_err(failed)?;
        queue_pair.attach();
        Ok(queue_pair)
    }

    /// From RESET to INIT, in which receives may be posted.
    fn initialise(&self) -> rustix::io::Result<()> {
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = self.domain.context.port.number;
        let mut wanted = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        wanted |= if self.shared.ty == QpType::Ud {
            mask::IBV_QP_QKEY
        } else {
            attributes.qp_access_flags =
                super::memory::remote_access(self.shared.ty, self.domain.context.caps().atomics);
            mask::IBV_QP_ACCESS_FLAGS
        };
        self.modify(&mut attributes, wanted)
    }

    pub(super) fn modify(
        &self,
        attributes: &mut ibv_qp_attr,
        wanted: mask,
    ) -> rustix::io::Result<()> {
        let library = self.domain.context.library;
        // SAFETY: the queue pair lives; of the structure, what `wanted` names is filled.
        match unsafe { (library.modify_qp)(self.raw.raw(), attributes, wanted.0 as i32) } {
            0 => Ok(()),
            code => Err(status::returned(code)),
        }
    }

    /// Notifies pollers and the event thread.
    fn attach(&self) {
        let cqs = [self.send_cq.raw.address(), self.recv_cq.raw.address()];
        self.shared.registry.add_pair(&self.raw, &self.shared, cqs);
        let sends = Attached::Sends(Arc::clone(&self.shared));
        self.send_cq.state.change(Change::Attach(self.key, sends));
        match &self.receives {
            Receives::Own(slots) => {
                let receives = Attached::Receives(Arc::clone(slots));
                self.recv_cq.state.change(Change::Attach(slots.key, receives));
            }
            Receives::Shared(srq) => {
                srq.attach_to(&self.recv_cq);
                self.recv_cq.state.change(Change::Join(Arc::clone(&self.shared)));
            }
        }
    }

    fn detach(&self) {
        self.send_cq.state.change(Change::Detach(self.key));
        let gone = match &self.receives {
            Receives::Own(slots) => Change::Detach(slots.key),
            Receives::Shared(_) => Change::Leave(self.shared.number),
        };
        self.recv_cq.state.change(gone);
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.shared.number
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.shared.state()
    }

    /// What windows know it by.
    #[cfg(feature = "faults")]
    pub(crate) fn binder(&self) -> &Binder {
        &self.binder
    }

    pub(crate) fn endpoint(&self) -> IbvEndpoint {
        let context = &self.domain.context;
        IbvEndpoint {
            gid: context.port.gid,
            qp: self.shared.number,
            psn: self.psn,
            lid: context.port.lid,
            mtu: context.port.mtu,
            ty: self.shared.ty as u8,
            serves: context.rd_atomic.1,
            ethernet: context.port.ethernet.into(),
            reserved: [0; 2],
        }
    }

    pub(crate) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        let Receives::Own(slots) = &self.receives else { return Err(PostError::HasSrq) };
        Target::Pair(self.raw.raw()).post_one(slots, id, buffer)?;
        self.flush_if_in_error();
        Ok(())
    }

    #[inline]
    pub(crate) fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        let Receives::Own(slots) = &self.receives else {
            return if ids.is_empty() { Ok(()) } else { Err(PostError::HasSrq) };
        };
        Target::Pair(self.raw.raw()).post_run(slots, ids)?;
        self.flush_if_in_error();
        Ok(())
    }

    /// Flushes receives posted to a broken queue pair: if the device saw the error first, it has not flushed
    /// them.
    #[inline]
    fn flush_if_in_error(&self) {
        if self.shared.state() == QpState::Error {
            self.fail_again();
        }
    }

    #[cold]
    fn fail_again(&self) {
        self.shared.registry.break_pair(self.raw.address());
    }

    pub(crate) fn fail(&mut self) {
        self.ring_doorbell(); // Work posted before is flushed too.
        self.shared.registry.break_pair(self.raw.address());
    }

    #[inline]
    pub(crate) fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        if !self.in_flight.is_empty() {
            self.in_flight.reclaim(self.shared.sends.retired(), into);
        }
    }

    /// Records that the device refused accepted work requests from this number on. They complete as flushed,
    /// after those before them.
    #[cold]
    pub(super) fn mark_unposted(&self, from: u64) {
        self.shared.unposted.fetch_min(from, Ordering::AcqRel);
        self.shared.registry.break_pair(self.raw.address());
        self.send_cq.state.notice(attention::UNPOSTED);
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let (library, registry) = (self.domain.context.library, &self.shared.registry);
        if matches!(self.receives, Receives::Shared(_)) {
            // Returns the shared receive that a half-arrived message has taken.
            registry.break_pair(self.raw.address());
        }
        registry.remove_pair(self.raw.address());
        self.shared.set_state(QpState::Error);
        self.detach();
        self.windows.deallocate(self.raw.address());
        // SAFETY: ours, and no longer in the registry. If this succeeds, the device has released all memory posted
        // here.
        let code = unsafe { (library.destroy_qp)(self.raw.raw()) };
        if code == 0 {
            if let Receives::Own(slots) = &self.receives {
                slots.clear();
            }
            return;
        }
        // The device may still access posted memory, which must stay until the process ends.
        tracing::error!(qp = self.shared.number, code, "a queue pair could not be destroyed");
        std::mem::forget(std::mem::replace(&mut self.in_flight, InFlight::new(0)));
        match &self.receives {
            Receives::Own(slots) => std::mem::forget(Arc::clone(slots)),
            Receives::Shared(srq) => std::mem::forget(Arc::clone(srq)),
        }
        std::mem::forget(Arc::clone(&self.domain));
        std::mem::forget((Arc::clone(&self.send_cq), Arc::clone(&self.recv_cq)));
    }
}

/// A 24-bit sequence number that a late packet of an earlier connection is unlikely to match.
fn random_psn() -> rustix::io::Result<u32> {
    Ok(crate::random::bytes().map(u32::from_ne_bytes)? & 0x00ff_ffff)
}
