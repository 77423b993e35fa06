//! Queue pairs and shared receive queues.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::{self, on_device};
#[cfg(feature = "ibverbs")]
use crate::ibv;
use crate::{
    Buffer, CompletionQueueHandle, ConnectError, Endpoint, PostError, RemoteRegion, RemoteSlice,
    VerbsError, WorkRequest, shm,
};

/// The number of a queue pair, unique within its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct QpNumber(pub u32);

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection: in order, acknowledged, all operations.
    Rc,
    /// Unreliable connection: SEND and WRITE, silently dropped if the peer is not ready.
    Uc,
    /// Unreliable datagram: SEND of at most one MTU to any number of peers.
    Ud,
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpState {
    /// Receives may be posted; not connected yet.
    Init,
    /// Messages can arrive but not be sent yet.
    ReadyToReceive,
    /// Connected.
    ReadyToSend,
    /// Broken: queued and posted work is flushed.
    Error,
}

impl QpState {
    /// The state of a number stored in an atomic. Unknown numbers mean Error.
    #[inline]
    pub(crate) fn of(number: u32) -> QpState {
        match number {
            0 => QpState::Init,
            1 => QpState::ReadyToReceive,
            2 => QpState::ReadyToSend,
            _ => QpState::Error,
        }
    }
}

/// The parameters of a queue pair.
#[derive(Debug)]
pub struct QueuePairConfig<'a> {
    pub(crate) ty: QpType,
    pub(crate) send_cq: CompletionQueueHandle,
    pub(crate) recv_cq: CompletionQueueHandle,
    pub(crate) srq: Option<&'a SharedReceiveQueueHandle>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
}

impl<'a> QueuePairConfig<'a> {
    /// A queue pair whose completions go to the two queues (which may be the same), with room for 128 work
    /// requests in each direction. If another thread owns a queue, pass its handle.
    pub fn new(
        ty: QpType,
        send_cq: impl Into<CompletionQueueHandle>,
        recv_cq: impl Into<CompletionQueueHandle>,
    ) -> QueuePairConfig<'a> {
        QueuePairConfig {
            ty,
            send_cq: send_cq.into(),
            recv_cq: recv_cq.into(),
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
        }
    }

    /// Takes receives from a shared receive queue. If another thread owns the queue, pass its handle.
    pub fn srq(mut self, srq: &'a impl AsRef<SharedReceiveQueueHandle>) -> Self {
        self.srq = Some(srq.as_ref());
        self
    }

    /// Sets the number of send work requests that may be outstanding.
    pub fn max_send_wr(mut self, max: usize) -> Self {
        self.max_send_wr = max;
        self
    }

    /// Sets the number of receive work requests that may be outstanding. With a shared receive queue: for how many messages
    /// there should be room while they wait to be polled; a device may have more.
    pub fn max_recv_wr(mut self, max: usize) -> Self {
        self.max_recv_wr = max;
        self
    }
}

/// How a connected queue pair treats a slow or dead peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// How often a message is retried when the peer has no receive posted; 7 means forever.
    pub rnr_retry: u8,
    /// Nanoseconds between two such retries.
    pub rnr_timer_ns: u64,
    /// Nanoseconds after which a peer that takes no messages at all counts as dead.
    pub retry_timeout_ns: u64,
    /// The time limit of connecting itself.
    pub setup_timeout: Duration,
    /// Regions of the peer that work requests will access.
    pub regions: Vec<RemoteRegion>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            rnr_retry: 7,
            rnr_timer_ns: 100_000,
            retry_timeout_ns: 1_000_000_000,
            setup_timeout: Duration::from_secs(5),
            regions: Vec::new(),
        }
    }
}

impl ConnectOptions {
    /// Sets [`rnr_retry`](ConnectOptions::rnr_retry).
    pub fn rnr_retry(mut self, times: u8) -> Self {
        self.rnr_retry = times;
        self
    }

    /// Sets [`rnr_timer_ns`](ConnectOptions::rnr_timer_ns).
    pub fn rnr_timer_ns(mut self, nanoseconds: u64) -> Self {
        self.rnr_timer_ns = nanoseconds;
        self
    }

    /// Sets [`retry_timeout_ns`](ConnectOptions::retry_timeout_ns).
    pub fn retry_timeout_ns(mut self, nanoseconds: u64) -> Self {
        self.retry_timeout_ns = nanoseconds;
        self
    }

    /// Sets [`setup_timeout`](ConnectOptions::setup_timeout).
    pub fn setup_timeout(mut self, timeout: Duration) -> Self {
        self.setup_timeout = timeout;
        self
    }

    /// Adds a region of the peer that work requests will access. Where a device must map it, it does so while it connects, and not
    /// when the first work request waits for that. A region that there is not is no error yet.
    pub fn region(mut self, region: RemoteRegion) -> Self {
        self.regions.push(region);
        self
    }
}

/// A queue pair, owned by one thread at a time.
///
/// Dropping it notifies the peer, whose next messages then fail, and removes it from its completion queues.
/// Completions not polled by then are lost.
#[derive(Debug)]
pub struct QueuePair {
    qp: dispatch::QueuePair,
    _not_sync: PhantomData<Cell<()>>,
}

impl QueuePair {
    pub(crate) fn new(qp: dispatch::QueuePair) -> QueuePair {
        QueuePair { qp, _not_sync: PhantomData }
    }

    /// Its number.
    #[inline]
    pub fn number(&self) -> QpNumber {
        QpNumber(on_device!(QueuePair, &self.qp, qp => qp.number()))
    }

    /// Its state.
    #[inline]
    pub fn state(&self) -> QpState {
        on_device!(QueuePair, &self.qp, qp => qp.state())
    }

    /// Its address for a peer.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.qp.address())
    }

    /// Connects to a peer's queue pair and goes through ReadyToReceive to ReadyToSend. Both sides call it, in
    /// any order: messages that one side sends before the other has connected wait there. It takes at most
    /// [`setup_timeout`](ConnectOptions::setup_timeout).
    ///
    /// # Errors
    /// If the states or types do not match, or the peer refuses or cannot be reached.
    pub fn connect(
        &mut self,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        self.qp.connect(peer.address(), options)
    }

    /// Makes an RC queue pair reach this target with what is posted from now on, instead of [`connect`](Self::connect). It may be called
    /// again at any time, for another target.
    ///
    /// The device connects when a work request is for another target than the one before, which takes it a round trip, and two packets to
    /// disconnect and connect. Work requests are executed in the order in which they were posted, those for one target after
    /// another's. The target must have this key. If it has not, or cannot be reached, the queue pair breaks. Options count the first time.
    ///
    /// # Errors
    /// The device has no [dynamic connections](crate::Capabilities::dynamic_connections), or the queue pair is not RC, not in state
    /// Init, connected to one peer, or a target itself.
    pub fn connect_dynamically(
        &mut self,
        target: &Endpoint,
        key: u64,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        self.qp.connect_dynamically(target.address(), key, options)
    }

    /// Makes an RC queue pair a target of dynamic connections, instead of [`connect`](Self::connect): any number of initiators with this
    /// key may reach it. It sends nothing itself. SENDs to it need a shared receive queue.
    ///
    /// # Errors
    /// The device has no [dynamic connections](crate::Capabilities::dynamic_connections), or the queue pair is not RC or not in state
    /// Init.
    pub fn accept_dynamically(&mut self, key: u64) -> Result<(), ConnectError> {
        self.qp.accept_dynamically(key)
    }

    /// Makes a UD queue pair ready to send, and to receive datagrams that carry `qkey`.
    ///
    /// # Errors
    /// If the queue pair is not UD or not in state Init.
    pub fn activate(&mut self, qkey: u32) -> Result<(), ConnectError> {
        on_device!(QueuePair, &mut self.qp, qp => qp.activate(qkey))
    }

    /// Posts a list of work requests with one doorbell. Posted requests are removed from the front. If one is
    /// refused, it and all after it stay in the list.
    ///
    /// # Errors
    /// Why the request that is now first in the list was refused.
    pub fn post_send(&mut self, requests: &mut Vec<WorkRequest<'_>>) -> Result<(), PostError> {
        let mut doorbell = self.doorbell();
        let mut refused = None;
        let mut rest = requests.drain(..);
        for request in rest.by_ref() {
            if let Err((error, request)) = doorbell.post(request) {
                refused = Some((error, request));
                break;
            }
        }
        let Some((error, request)) = refused else { return Ok(()) };
        let mut left = Vec::with_capacity(rest.len() + 1);
        left.push(request);
        left.extend(rest);
        *requests = left;
        Err(error)
    }

    /// Posts one work request with its own doorbell.
    ///
    /// # Errors
    /// Why it was refused, and the request.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub fn post_send_one<'a>(
        &mut self,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post(request.into()))?;
        on_device!(QueuePair, &mut self.qp, qp => qp.ring_doorbell());
        Ok(())
    }

    /// Posts several work requests with one doorbell, without a list. The doorbell rings when the guard is
    /// dropped.
    #[inline]
    pub fn doorbell(&mut self) -> Doorbell<'_> {
        Doorbell { qp: self, posted: false }
    }

    /// Posts one work request without a doorbell. A later [`ring`](QueuePair::ring) covers all requests posted
    /// this way. The peer may see them earlier; its invalidation of a window that they use may wait for the ring.
    ///
    /// # Errors
    /// Why it was refused, and the request.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub fn post_unrung<'a>(
        &mut self,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post(request.into()))
    }

    /// Posts an inline WRITE_WITH_IMM without a doorbell; it is unsignaled if there is no id. It avoids
    /// building a work request, for users who post millions.
    ///
    /// # Errors
    /// Why it was refused.
    #[inline]
    pub fn post_write_imm(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> Result<(), PostError> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post_write_imm(bytes, remote, imm, signaled))
    }

    /// As [`post_write_imm`](Self::post_write_imm), of the bytes of `front` and then those of `rest`, where the device can do that
    /// without putting them together, and at once: `shm`, if there are more than a cell carries, and nothing waits. `false`:
    /// nothing was posted, and it takes one piece.
    #[inline]
    pub fn try_post_write_imm_parts(
        &mut self,
        front: &[u8],
        rest: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> bool {
        match &mut self.qp {
            dispatch::QueuePair::Shm(qp) => {
                qp.try_write_imm_parts(front, rest, remote, imm, signaled)
            }
            #[cfg(any(feature = "ibverbs", feature = "sim", feature = "faults"))]
            _ => false,
        }
    }

    /// Rings the doorbell for requests posted without one. An unnecessary ring is harmless.
    #[inline]
    pub fn ring(&mut self) {
        on_device!(QueuePair, &mut self.qp, qp => qp.ring_doorbell());
    }

    /// Posts a receive. Without a buffer, it only fits a peer's WRITE_WITH_IMM or empty SEND. On a UD queue
    /// pair, the first [`GRH_BYTES`](crate::GRH_BYTES) of the buffer hold the route header.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post_recv(id, buffer))
    }

    /// Posts receives without buffers, one per id, with one doorbell. Posts all or none.
    ///
    /// # Errors
    /// Why they were refused.
    #[inline]
    pub fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post_recvs(ids))
    }

    /// Returns the buffers of send work requests retired by a polled completion, in posting order. A READ's
    /// buffer holds its data.
    #[inline]
    pub fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        on_device!(QueuePair, &mut self.qp, qp => qp.reclaim(into));
    }

    /// Sends the datagrams that an injector of this device [delays](crate::faults::Verdict::Delay) or
    /// [holds](crate::faults::Verdict::Hold).
    #[cfg(feature = "faults")]
    pub fn release_delayed(&mut self) {
        if let dispatch::QueuePair::Faulty(qp) = &mut self.qp {
            qp.release_delayed();
        }
    }

    /// Moves the queue pair to the error state: everything queued or posted is flushed, with completions.
    #[allow(clippy::wrong_self_convention)] // As in libibverbs: modify to error.
    pub fn to_error(&mut self) {
        on_device!(QueuePair, &mut self.qp, qp => qp.fail());
    }
}

/// Posts several work requests with one doorbell; see [`QueuePair::doorbell`].
#[derive(Debug)]
#[must_use = "the doorbell rings when this is dropped"]
pub struct Doorbell<'q> {
    qp: &'q mut QueuePair,
    posted: bool,
}

impl Doorbell<'_> {
    /// Posts one work request.
    ///
    /// # Errors
    /// Why it was refused, and the request.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub fn post<'a>(
        &mut self,
        request: impl Into<WorkRequest<'a>>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        on_device!(QueuePair, &mut self.qp.qp, qp => qp.post(request.into()))?;
        self.posted = true;
        Ok(())
    }
}

impl Drop for Doorbell<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.posted {
            on_device!(QueuePair, &mut self.qp.qp, qp => qp.ring_doorbell());
        }
    }
}

/// A receive queue that several queue pairs share, owned by the thread that posts to it. Queue pairs may be created on it
/// from other threads.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    handle: SharedReceiveQueueHandle,
    _not_sync: PhantomData<Cell<()>>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(queue: dispatch::SharedReceiveQueue) -> SharedReceiveQueue {
        let handle = SharedReceiveQueueHandle { queue: Arc::new(queue) };
        SharedReceiveQueue { handle, _not_sync: PhantomData }
    }

    /// A handle with which other threads create queue pairs on it.
    pub fn handle(&self) -> SharedReceiveQueueHandle {
        self.handle.clone()
    }

    /// Posts a receive for the first queue pair that needs one.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        on_device!(SharedReceiveQueue, &*self.handle.queue, queue => queue.post_recv(id, buffer))
    }
}

/// A handle to a shared receive queue, with which one thread creates queue pairs while another posts receives.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueueHandle {
    queue: Arc<dispatch::SharedReceiveQueue>,
}

impl SharedReceiveQueueHandle {
    pub(crate) fn shm(&self) -> Result<&shm::SharedReceiveQueue, VerbsError> {
        match &*self.queue {
            dispatch::SharedReceiveQueue::Shm(queue) => Ok(queue),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => Err(VerbsError::Foreign("shared receive queue")),
        }
    }

    #[cfg(feature = "sim")]
    pub(crate) fn sim(&self) -> Result<&crate::sim::SharedReceiveQueue, VerbsError> {
        match &*self.queue {
            dispatch::SharedReceiveQueue::Sim(queue) => Ok(queue),
            _ => Err(VerbsError::Foreign("shared receive queue")),
        }
    }

    #[cfg(feature = "ibverbs")]
    pub(crate) fn ibv(&self) -> Result<&ibv::SharedReceiveQueue, VerbsError> {
        match &*self.queue {
            dispatch::SharedReceiveQueue::Ibv(queue) => Ok(queue),
            _ => Err(VerbsError::Foreign("shared receive queue")),
        }
    }
}

impl AsRef<SharedReceiveQueueHandle> for SharedReceiveQueueHandle {
    fn as_ref(&self) -> &SharedReceiveQueueHandle {
        self
    }
}

impl AsRef<SharedReceiveQueueHandle> for SharedReceiveQueue {
    fn as_ref(&self) -> &SharedReceiveQueueHandle {
        &self.handle
    }
}
