//! The owner's side of queue pairs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::completion_queue::CqHandle;
use super::context::{Context, Domain};
use super::event::{Event, QpId};
use super::node::gid;
use super::pair::{Pair, PairParts, RetryPolicy, Wqe};
use super::shared_receive::SharedReceiveQueue;
use super::world::World;
use crate::memory::window::Binder;
use crate::{
    Buffer, ConnectError, ConnectOptions, PostError, QpState, QpType, RemoteSlice, VerbsError,
    WorkRequest,
};

/// Identifies a queue pair to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SimEndpoint {
    /// The seed of its simulation.
    pub(crate) seed: u64,
    pub(crate) node: u32,
    pub(crate) qp: u32,
    pub(crate) ty: u32,
    pub(crate) reserved: u32,
}

impl SimEndpoint {
    /// The GID of its node. An invalid node number has an unused GID.
    pub(crate) fn gid(&self) -> [u8; 16] {
        u16::try_from(self.node).map_or([0; 16], gid)
    }
}

/// The checked parameters of a queue pair.
pub(crate) struct Config<'a> {
    pub(crate) ty: QpType,
    pub(crate) send_cq: &'a CqHandle,
    pub(crate) recv_cq: &'a CqHandle,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) context: Arc<Context>,
    pub(super) id: QpId,
    ty: QpType,
    pd: u32,
    has_srq: bool,
    /// What windows know it by.
    binder: Binder,
    /// Buffers of send work requests, with the requests' numbers, until they are retired.
    pub(super) in_flight: VecDeque<(u64, Buffer)>,
}

impl QueuePair {
    pub(crate) fn new(domain: &Domain, config: Config<'_>) -> Result<QueuePair, VerbsError> {
        let Config { ty, send_cq, recv_cq, srq, max_send_wr, max_recv_wr } = config;
        let Domain { context, number: pd } = domain;
        let parts = PairParts {
            ty,
            pd: *pd,
            send_cq: send_cq.of(context)?,
            recv_cq: recv_cq.of(context)?,
            srq: srq.map(|srq| srq.of(context)).transpose()?,
            max_send_wr,
            max_recv_wr,
        };
        let node = context.node;
        let mut world = context.running()?;
        let pairs = &mut world.node(node).pairs;
        let number = pairs
            .insert(Pair::new(parts))
            .ok_or(VerbsError::Invalid("too many queue pairs on one node"))?;
        Ok(QueuePair {
            context: Arc::clone(context),
            id: QpId { node, number },
            ty,
            pd: *pd,
            has_srq: srq.is_some(),
            binder: Binder::default(),
            in_flight: VecDeque::new(),
        })
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, World> {
        self.context.lock()
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.id.number
    }

    /// A queue pair of a killed node is in error.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.lock().pair(self.id).map_or(QpState::Error, |pair| pair.state)
    }

    /// What windows know it by.
    #[cfg(feature = "faults")]
    pub(crate) fn binder(&self) -> &Binder {
        &self.binder
    }

    pub(crate) fn endpoint(&self) -> SimEndpoint {
        SimEndpoint {
            seed: self.lock().seed,
            node: self.id.node.into(),
            qp: self.id.number,
            ty: self.ty as u32,
            reserved: 0,
        }
    }

    pub(crate) fn connect(
        &mut self,
        peer: &SimEndpoint,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        if self.ty == QpType::Ud {
            return Err(ConnectError::Type(self.ty));
        }
        let state = self.state();
        if state != QpState::Init {
            return Err(ConnectError::State(state));
        }
        let peer = self.peer_of(peer)?;
        let mut world = self.lock();
        let pair = world.pair(self.id).ok_or(ConnectError::State(QpState::Error))?;
        pair.peer = Some(peer);
        pair.retry_policy = RetryPolicy::of(options);
        pair.rnr_left = options.rnr_retry;
        pair.state = QpState::ReadyToSend;
        Ok(())
    }

    /// The queue pair that a peer's endpoint names.
    pub(super) fn peer_of(&self, peer: &SimEndpoint) -> Result<QpId, ConnectError> {
        let world = self.lock();
        if peer.ty != self.ty as u32 {
            return Err(ConnectError::Mismatch("it names a queue pair of another type"));
        }
        let nodes = world.nodes.len();
        let node = u16::try_from(peer.node).ok().filter(|node| usize::from(*node) < nodes);
        match node {
            Some(node) if peer.seed == world.seed => Ok(QpId { node, number: peer.qp }),
            _ => Err(ConnectError::Mismatch("it names a node of another rack")),
        }
    }

    pub(crate) fn activate(&mut self, qkey: u32) -> Result<(), ConnectError> {
        if self.ty != QpType::Ud {
            return Err(ConnectError::Type(self.ty));
        }
        let mut world = self.lock();
        let pair = world.pair(self.id).ok_or(ConnectError::State(QpState::Error))?;
        if pair.state != QpState::Init {
            return Err(ConnectError::State(pair.state));
        }
        pair.qkey = qkey;
        pair.state = QpState::ReadyToSend;
        Ok(())
    }

    /// Posts one work request, without ringing.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(crate) fn post<'a>(
        &mut self,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let mut world = self.context.lock();
        let (number, buffer) = world.post(&self.context, self.id, request, &self.binder)?;
        if let Some(buffer) = buffer {
            self.in_flight.push_back((number, buffer));
        }
        Ok(())
    }

    /// Posts an inline WRITE_WITH_IMM, without ringing.
    pub(crate) fn post_write_imm(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> Result<(), PostError> {
        let request = WorkRequest::inline_write_imm(bytes, remote, imm, signaled);
        self.post(request).map_err(|(error, _)| error)
    }

    /// Notifies the NIC of posted requests, with a delay.
    pub(crate) fn ring_doorbell(&mut self) {
        let mut world = self.context.lock();
        let world = &mut *world;
        let costs = &world.config.costs;
        let (max_pushed, pushes_any) = (costs.max_pushed_lines, costs.pushes_any);
        let Some(pair) = world.pair(self.id) else { return };
        let count = pair.posted() - pair.rung.max(pair.base);
        pair.rung = pair.posted();
        let rung = pair.rung as u32;
        // A single work request is pushed with its doorbell; for several, the NIC is only notified.
        let mut last = pair.sends.back_mut().filter(|_| count > 0);
        if let Some(wqe) = &mut last {
            wqe.last = true;
        }
        let fits = |wqe: &&mut Wqe| wqe.lines <= max_pushed && (wqe.inline || pushes_any);
        let pushed = last.filter(|_| count == 1).filter(fits);
        let lines = match pushed {
            Some(wqe) => {
                wqe.pushed = true;
                wqe.lines
            }
            None => 1,
        };
        world.note(self.id, || format!("rings for {count} work requests"));
        let at_ns = world.ring_doorbell(self.id.node, self.context.doorbell, lines);
        world.events.push(at_ns, Event::Doorbell { qp: self.id, rung, lines });
    }

    pub(crate) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        if buffer.as_ref().is_some_and(|buffer| buffer.pd() != self.pd) {
            return Err(PostError::Foreign);
        }
        self.post_receives(|pair| pair.receives.post(id, buffer))
    }

    pub(crate) fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        self.post_receives(|pair| pair.receives.post_run(ids))
    }

    fn post_receives(
        &mut self,
        post: impl FnOnce(&mut Pair) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if self.has_srq {
            return Err(PostError::HasSrq);
        }
        let mut world = self.context.lock();
        let post_ns = world.config.costs.post_recv_ns;
        world.charge(post_ns);
        let pair = world.pair(self.id).ok_or(PostError::State(QpState::Error))?;
        post(pair)?;
        if pair.state == QpState::Error {
            world.flush_soon(self.id);
        }
        Ok(())
    }

    pub(crate) fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        if self.in_flight.is_empty() {
            return;
        }
        // A killed node returns nothing before the queue pair is dropped.
        let retired = self.lock().pair(self.id).map_or(0, |pair| pair.retired);
        while let Some((_, buffer)) = self.in_flight.pop_front_if(|(number, _)| *number < retired) {
            into(buffer);
        }
    }

    pub(crate) fn fail(&mut self) {
        self.context.lock().break_by_owner(self.id);
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.context.lock().destroy(self.id);
        // The NIC no longer refers to them, so they may be dropped.
        self.in_flight.clear();
    }
}
