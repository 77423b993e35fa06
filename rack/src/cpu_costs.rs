//! What calls cost their cores, in addition to posting and polling, which the devices charge.

use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{
    Body, CallToken, ClientLayer, ClientTransport, Delivery, Message, Replies, ReplySink,
    RequestLayer, RequestSink, ServerLayer, ServerTransport, SlotId,
};
use farcall_verbs::sim::Node;
use std::ops::Range;

/// What a call costs the cores of its two ends, in addition to what the device charges for posting and polling.
///
/// A handler charges its own work with [`Node::busy`]. The usual values are for calls of 32
/// bytes, as `cargo bench -p farcall-bench --bench dispatch` measures them: some 40 ns for the client's `stub`, some
/// 80 ns for a request in the server's `turn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuCosts {
    /// Client: encoding a request.
    pub request_ns: u64,
    /// Client: decoding an answer.
    pub answer_ns: u64,
    /// Server: decoding a request, finding its handler, and encoding the answer.
    pub dispatch_ns: u64,
}

impl Default for CpuCosts {
    fn default() -> CpuCosts {
        CpuCosts { request_ns: 20, answer_ns: 20, dispatch_ns: 80 }
    }
}

impl CpuCosts {
    /// Nothing.
    pub const FREE: CpuCosts = CpuCosts { request_ns: 0, answer_ns: 0, dispatch_ns: 0 };

    /// Sets [`request_ns`](CpuCosts::request_ns).
    pub fn request_ns(mut self, ns: u64) -> CpuCosts {
        self.request_ns = ns;
        self
    }

    /// Sets [`answer_ns`](CpuCosts::answer_ns).
    pub fn answer_ns(mut self, ns: u64) -> CpuCosts {
        self.answer_ns = ns;
        self
    }

    /// Sets [`dispatch_ns`](CpuCosts::dispatch_ns).
    pub fn dispatch_ns(mut self, ns: u64) -> CpuCosts {
        self.dispatch_ns = ns;
        self
    }
}

/// A transport, and the node whose cores it uses.
struct Charged<T> {
    inner: T,
    node: Node,
    costs: CpuCosts,
}

/// A client whose calls have these costs.
pub(super) fn client(
    inner: Box<dyn ClientTransport>,
    node: &Node,
    costs: CpuCosts,
) -> Box<dyn ClientTransport> {
    Box::new(Charged { inner, node: node.clone(), costs })
}

/// A server thread whose calls have these costs.
pub(super) fn server(
    inner: Box<dyn ServerTransport>,
    node: &Node,
    costs: CpuCosts,
) -> Box<dyn ServerTransport> {
    Box::new(Charged { inner, node: node.clone(), costs })
}

impl ClientLayer for Charged<Box<dyn ClientTransport>> {
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.inner.reserve(len).inspect(|_| self.node.busy(self.costs.request_ns))
    }

    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        let posted = self.inner.post_parts(front, body, delivery);
        posted.inspect(|_| self.node.busy(self.costs.request_ns))
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let Charged { inner, node, costs } = self;
        inner.poll(now, &mut Answers { sink, node, ns: costs.answer_ns })
    }
}

/// Charges for each answer.
struct Answers<'a> {
    sink: &'a mut dyn ReplySink,
    node: &'a Node,
    ns: u64,
}

impl ReplySink for Answers<'_> {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        self.node.busy(self.ns);
        self.sink.reply(slot, message);
    }

    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        self.sink.failed(slot, why);
    }

    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        self.sink.lane_lost(slots, why);
    }

    fn closed(&mut self, why: TransportFailure) {
        self.sink.closed(why);
    }
}

impl ServerLayer for Charged<Box<dyn ServerTransport>> {
    fn inner(&self) -> &dyn ServerTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ServerTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let Charged { inner, node, costs } = self;
        inner.poll(now, &mut Requests { sink, node, ns: costs.dispatch_ns })
    }
}

/// Charges for each request.
struct Requests<'a> {
    sink: &'a mut dyn RequestSink,
    node: &'a Node,
    ns: u64,
}

impl RequestLayer for Requests<'_> {
    fn inner(&self) -> &dyn RequestSink {
        self.sink
    }

    fn inner_mut(&mut self) -> &mut dyn RequestSink {
        self.sink
    }

    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.node.busy(self.ns);
        self.sink.request(call, message, replies);
    }
}
