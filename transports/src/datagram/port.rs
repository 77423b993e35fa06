//! A UD queue pair: datagrams put together and posted, receives replenished. The same for client and server.

use farcall_verbs::{
    AddressHandle, Buffer, CompletionQueueHandle, DatagramSource, Device, GRH_BYTES, PostError,
    ProtectionDomain, QpNumber, QpType, QueuePair, QueuePairConfig, WorkCompletion, WorkRequest,
};
use zerocopy::IntoBytes;

use super::setup::Sizes;
use super::wire::{HEADER_BYTES, Header, Id, Kind, MESSAGE_BYTES, MessageHeader};
use crate::address::Optimization;
use crate::backend::SetupError;
use crate::planted::{Bug, is_planted};
use crate::send_queue::SendQueue;

/// The way to the other end of a session.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) handle: AddressHandle,
    pub(crate) qp: QpNumber,
    pub(crate) qkey: u32,
    /// Its number of the session.
    pub(crate) session: u32,
    pub(crate) epoch: u64,
    /// The longest datagram between the two.
    pub(crate) mtu: usize,
}

impl Way {
    /// Whether the other end has sent this, in this life: what a former one or somebody else has sent is not for us.
    #[inline]
    pub(crate) fn leads_to(&self, epoch: u64, source: Option<DatagramSource>) -> bool {
        let is_theirs = source.is_none_or(|source| source.qp == self.qp);
        (is_theirs && epoch == self.epoch) || is_planted(Bug::FormerLife)
    }
}

#[derive(Debug)]
pub(crate) struct Port {
    qp: QueuePair,
    send_queue: SendQueue,
    max_inline: usize,
    /// The longest datagram that still takes in another message.
    max_shared: usize,
    /// Each datagram has a doorbell of its own.
    rings_each: bool,
    /// The datagram that is put together, in so many bytes of the buffer; none if 0.
    building: Buffer,
    built: usize,
    /// One for each work request that the send queue holds.
    spare: Vec<Buffer>,
    /// Receives that were consumed and not yet posted again.
    consumed: Vec<Buffer>,
    replenish_at: usize,
    /// Datagrams that were put together so far.
    sealed: u32,
    /// Something was posted since the last doorbell.
    unrung: bool,
    /// The doorbell waits for more.
    held: bool,
    broken: bool,
}

impl Port {
    /// A queue pair that is ready, with all its receives.
    pub(crate) fn open(
        device: &Device,
        pd: &ProtectionDomain,
        cq: &CompletionQueueHandle,
        sizes: &Sizes,
    ) -> Result<Port, SetupError> {
        let config = QueuePairConfig::new(QpType::Ud, cq, cq)
            .max_send_wr(sizes.send_depth)
            .max_recv_wr(sizes.recv_depth);
        let mut qp = pd.create_qp(config)?;
        let sends = pd.alloc_private((sizes.send_depth + 1) * sizes.mtu)?.into_pool(sizes.mtu);
        let mut spare: Vec<_> = std::iter::from_fn(|| sends.take()).collect();
        let Some(building) = spare.pop() else {
            return Err(SetupError::Unsupported("there is no buffer to send from".into()));
        };
        let room = GRH_BYTES + sizes.mtu;
        let receives = pd.alloc_private(sizes.recv_depth * room)?.into_pool(room);
        while let Some(buffer) = receives.take() {
            let posted = qp.post_recv(0, Some(buffer));
            posted.map_err(|error| SetupError::Device(error.into()))?;
        }
        let lacks = |optimization| sizes.without.has(optimization);
        Ok(Port {
            qp,
            send_queue: if lacks(Optimization::Selective) {
                SendQueue::signaling_all(sizes.send_depth as u32)
            } else {
                SendQueue::new(sizes.send_depth as u32)
            },
            max_inline: if lacks(Optimization::Inline) { 0 } else { device.caps().max_inline },
            max_shared: if lacks(Optimization::Coalescing) { 0 } else { usize::MAX },
            rings_each: lacks(Optimization::Doorbells),
            building,
            built: 0,
            spare,
            consumed: Vec::with_capacity(sizes.recv_depth),
            replenish_at: sizes.replenish_at,
            sealed: 0,
            unrung: false,
            held: false,
            broken: false,
        })
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    #[cfg(test)]
    pub(crate) fn qp_mut(&mut self) -> &mut QueuePair {
        &mut self.qp
    }

    /// Lets datagrams with this key in, and others out.
    pub(crate) fn activate(&mut self, qkey: u32) -> Result<(), SetupError> {
        Ok(self.qp.activate(qkey)?)
    }

    /// The queue pair is in error: no session over it can go on.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// One more datagram can be posted.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.broken && self.send_queue.room() > 0
    }

    /// Everything posted has left.
    pub(crate) fn has_left(&self) -> bool {
        self.broken || self.send_queue.is_empty()
    }

    /// Datagrams that were put together so far: the number of the one that a message is put into next.
    #[inline]
    pub(crate) fn sealed(&self) -> u32 {
        self.sealed
    }

    /// A message of so many bytes needs no new datagram.
    pub(crate) fn takes(&self, way: &Way, body: usize) -> bool {
        self.built > 0 && self.built + MESSAGE_BYTES + body <= way.mtu.min(self.max_shared)
    }

    /// Puts a message, whose body is made of two pieces, into a datagram to this peer. `false` if the send queue
    /// is full: the caller keeps it. Between messages to different peers goes a [`seal`](Port::seal).
    #[inline]
    pub(crate) fn put(
        &mut self,
        way: &Way,
        kind: Kind,
        id: Id,
        (front, back): (&[u8], &[u8]),
    ) -> bool {
        let body = front.len() + back.len();
        let len = MESSAGE_BYTES + body;
        if !self.make_room(way, len) {
            return false;
        }
        let header = MessageHeader::new(kind, id, body);
        let place = &mut self.building[self.built..self.built + len];
        place[..MESSAGE_BYTES].copy_from_slice(header.as_bytes());
        place[MESSAGE_BYTES..MESSAGE_BYTES + front.len()].copy_from_slice(front);
        place[MESSAGE_BYTES + front.len()..].copy_from_slice(back);
        self.built += len;
        true
    }

    /// Begins a message to this peer whose body, of that length, is to be filled through [`body`](Port::body) and
    /// [kept](Port::keep). Beginning another one instead forgets it. `false` if the send queue is full.
    #[inline]
    pub(crate) fn begin(&mut self, way: &Way, kind: Kind, id: Id, len: usize) -> bool {
        if !self.make_room(way, MESSAGE_BYTES + len) {
            return false;
        }
        let header = MessageHeader::new(kind, id, len);
        let place = &mut self.building[self.built..self.built + MESSAGE_BYTES];
        place.copy_from_slice(header.as_bytes());
        true
    }

    /// The body of the message that was begun, as long as it was said to be.
    #[inline]
    pub(crate) fn body(&mut self, len: usize) -> &mut [u8] {
        &mut self.building[self.built + MESSAGE_BYTES..][..len]
    }

    /// The message that was begun is part of the datagram, with so many bytes of its body.
    #[inline]
    pub(crate) fn keep(&mut self, len: usize) {
        MessageHeader::set_len(&mut self.building[self.built..], len);
        self.built += MESSAGE_BYTES + len;
    }

    /// Room for a message of `len` bytes in a datagram to this peer; `false` if the send queue is full.
    #[inline]
    fn make_room(&mut self, way: &Way, len: usize) -> bool {
        debug_assert!(HEADER_BYTES + len <= way.mtu);
        if self.built > 0 && self.built + len > way.mtu.min(self.max_shared) {
            self.seal(way);
        }
        if self.built == 0 {
            if !self.has_room() {
                return false;
            }
            let header = Header::new(way.session, way.epoch);
            self.building[..HEADER_BYTES].copy_from_slice(header.as_bytes());
            self.built = HEADER_BYTES;
        }
        true
    }

    /// Posts the datagram that was put together, if there is one. It leaves with the next doorbell.
    #[inline]
    pub(crate) fn seal(&mut self, way: &Way) {
        self.seal_as(way, false);
    }

    /// Posts it as the last of all, whose completion is waited for.
    pub(crate) fn seal_last(&mut self, way: &Way) {
        self.seal_as(way, true);
    }

    #[inline]
    fn seal_as(&mut self, way: &Way, must_signal: bool) {
        let len = std::mem::take(&mut self.built);
        if len <= HEADER_BYTES || self.broken {
            return;
        }
        self.sealed = self.sealed.wrapping_add(1);
        let signal = self.send_queue.post(must_signal).map(u64::from);
        self.unrung = true;
        let outcome = if len <= self.max_inline {
            let request =
                WorkRequest::send(&self.building[..len]).to(&way.handle, way.qp, way.qkey);
            post(&mut self.qp, request.unsignaled(), signal)
        } else {
            // As many as work requests, of which one more has room.
            let Some(next) = self.spare.pop() else { return };
            let mut buffer = std::mem::replace(&mut self.building, next);
            buffer.set_len(len);
            let request = WorkRequest::send(buffer).to(&way.handle, way.qp, way.qkey);
            post(&mut self.qp, request.unsignaled(), signal)
        };
        if let Err(error) = outcome {
            self.failed(error);
        }
        if self.rings_each {
            self.ring_at_once();
        }
    }

    #[cold]
    fn failed(&mut self, error: PostError) {
        tracing::debug!(%error, "a datagram queue pair broke while posting");
        self.broken = true;
    }

    /// One doorbell for all datagrams that were posted, to whomever.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if !self.held {
            self.ring_at_once();
        }
    }

    #[inline]
    fn ring_at_once(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.qp.ring();
        }
    }

    /// From now on the doorbell waits; or does not any more, and what has waited leaves.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
        self.ring();
    }

    /// A work request has completed, and so have all before it.
    pub(crate) fn retire(&mut self, completion: &WorkCompletion) {
        self.send_queue.retire(completion.id as u32);
        let spare = &mut self.spare;
        self.qp.reclaim(&mut |mut buffer| {
            buffer.set_len(buffer.capacity());
            spare.push(buffer);
        });
    }

    /// The buffer of a receive, to be posted again. That is done in batches.
    #[inline]
    pub(crate) fn recycle(&mut self, mut buffer: Buffer) {
        buffer.set_len(buffer.capacity());
        self.consumed.push(buffer);
        if self.consumed.len() >= self.replenish_at {
            self.replenish();
        }
    }

    fn replenish(&mut self) {
        for buffer in self.consumed.drain(..) {
            if let Err(error) = self.qp.post_recv(0, Some(buffer)) {
                tracing::debug!(%error, "a receive could not be posted");
                self.broken = true;
                return;
            }
        }
    }
}

#[inline]
fn post(
    qp: &mut QueuePair,
    request: WorkRequest<'_>,
    signal: Option<u64>,
) -> Result<(), PostError> {
    let request = match signal {
        Some(id) => request.signaled(id),
        None => request,
    };
    qp.post_unrung(request).map_err(|(error, _)| error)
}
