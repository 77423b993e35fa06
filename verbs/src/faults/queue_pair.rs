//! A queue pair of a device with injectors, in the hands of its owner.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::copies::MAX_COPIES;
use super::injector::{Outgoing, PAYLOAD_VIEW_BYTES, Verdict};
use super::layer::{Layer, SharedPair};
use super::lock;
use super::pair::Pair;
use crate::dispatch::{self, on_device};
use crate::memory::window::Binder;
use crate::{
    Buffer, Capabilities, ConnectError, ConnectOptions, PostError, QpNumber, QpState, QpType,
    QueuePairConfig, RemoteSlice, VerbsError, WorkRequest,
};

/// A queue pair that asks injectors about what is posted.
pub(crate) struct QueuePair {
    layer: Arc<Layer>,
    shared: Arc<SharedPair>,
    number: u32,
    pd: u32,
    /// That of the device's queue pair.
    binder: Binder,
    caps: Capabilities,
}

impl QueuePair {
    /// A queue pair of `domain`. One for datagrams gets room for copies beyond what was asked for.
    pub(crate) fn create(
        layer: &Arc<Layer>,
        domain: &dispatch::Domain,
        mut config: QueuePairConfig<'_>,
    ) -> Result<QueuePair, VerbsError> {
        let (ty, own_receives) = (config.ty, config.srq.is_none());
        let caps = domain.caps().clone();
        let max_copies = match ty {
            QpType::Ud => MAX_COPIES.min(caps.max_send_wr - config.max_send_wr),
            QpType::Rc | QpType::Uc => 0,
        };
        config.max_send_wr += max_copies;
        let qp = domain.create_qp(config)?;
        let number = on_device!(QueuePair, &qp, qp => qp.number());
        let binder = on_device!(QueuePair, &qp, qp => qp.binder().clone());
        let pd = on_device!(Domain, domain, domain => domain.number);
        let pair = Mutex::new(Pair::new(qp, domain, ty, max_copies));
        let shared = Arc::new(SharedPair { ty, own_receives, pair });
        layer.insert(number, &shared);
        Ok(QueuePair { layer: Arc::clone(layer), shared, number, pd, binder, caps })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn binder(&self) -> &Binder {
        &self.binder
    }

    pub(crate) fn state(&self) -> QpState {
        on_device!(QueuePair, &lock(&self.shared.pair).qp, qp => qp.state())
    }

    pub(crate) fn address(&self) -> dispatch::Address {
        lock(&self.shared.pair).qp.address()
    }

    pub(crate) fn connect(
        &mut self,
        peer: &dispatch::Address,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        lock(&self.shared.pair).qp.connect(peer, options)
    }

    pub(crate) fn activate(&mut self, qkey: u32) -> Result<(), ConnectError> {
        on_device!(QueuePair, &mut lock(&self.shared.pair).qp, qp => qp.activate(qkey))
    }

    /// Posts one work request, without ringing.
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(crate) fn post<'a>(
        &mut self,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let ty = self.shared.ty;
        let verdict = match request.check(ty, self.pd, &self.binder, &self.caps) {
            Ok(()) => {
                let mut room = [0; PAYLOAD_VIEW_BYTES];
                let facts = Outgoing::of(QpNumber(self.number), ty, &request, &mut room);
                self.layer.verdict(&facts)
            }
            Err(_) => Verdict::Pass, // The device refuses it.
        };
        lock(&self.shared.pair).post(request, verdict)
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

    pub(crate) fn ring_doorbell(&mut self) {
        on_device!(QueuePair, &mut lock(&self.shared.pair).qp, qp => qp.ring_doorbell());
    }

    /// Sends the datagrams that are delayed.
    pub(crate) fn release_delayed(&mut self) {
        lock(&self.shared.pair).release_delayed();
        self.ring_doorbell();
    }

    pub(crate) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        lock(&self.shared.pair).post_recv(id, buffer)
    }

    pub(crate) fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        lock(&self.shared.pair).post_recvs(ids)
    }

    pub(crate) fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        lock(&self.shared.pair).reclaim(into);
    }

    pub(crate) fn fail(&mut self) {
        lock(&self.shared.pair).fail();
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.layer.remove(self.number);
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number).finish_non_exhaustive()
    }
}
