//! A UD queue pair: builds and posts datagrams, and replenishes receives. The same for client and server.

use farcall_verbs::{
    AddressHandle, Buffer, BufferPool, CompletionQueueHandle, DatagramSource, Device, Endpoint,
    GRH_BYTES, ProtectionDomain, QpNumber, QpType, QueuePairConfig, WorkCompletion, WorkRequest,
};
use zerocopy::IntoBytes;

use super::ablation::{Optimization, Without};
use super::setup::Sizes;
use super::wire::{HEADER_BYTES, Header, Id, Kind, MESSAGE_BYTES, MessageHeader};
use crate::contract::SetupError;
use crate::kit::sender::Sender;
use crate::planted::{Bug, is_planted};

/// The other end of a session.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) handle: AddressHandle,
    pub(crate) qp: QpNumber,
    /// Of its device.
    pub(crate) gid: [u8; 16],
    pub(crate) qkey: u32,
    /// Its number for the session.
    pub(crate) session: u32,
    /// What datagrams to it carry.
    pub(crate) epoch: u64,
    /// What its own carry.
    pub(crate) their_epoch: u64,
    pub(super) mtu: u32,
}

impl Peer {
    /// The longest datagram between the two ends.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.mtu as usize
    }

    /// Whether it has sent this in this session, and not in a former one of the same number.
    #[inline]
    pub(crate) fn has_sent(&self, epoch: u64, source: Option<DatagramSource>) -> bool {
        // What it sends first asks for its epoch.
        let is_no_question = epoch != self.epoch;
        (epoch == self.their_epoch && self.is(source))
            || (is_planted(Bug::UncheckedEpoch) && is_no_question && self.is(source))
            || (is_planted(Bug::FormerLife) && is_no_question)
    }

    /// Whether it has sent this in this session, and has not been told yet what its datagrams must carry.
    pub(crate) fn lacks_epoch(&self, epoch: u64, source: Option<DatagramSource>) -> bool {
        epoch == self.epoch && self.is(source)
    }

    /// Whether this is an epoch of this session.
    pub(crate) fn knows(&self, epoch: u64) -> bool {
        [self.epoch, self.their_epoch].contains(&epoch)
    }

    /// Whether this is where its datagrams come from, as far as the device tells.
    #[inline]
    fn is(&self, source: Option<DatagramSource>) -> bool {
        source.is_none_or(|DatagramSource { qp, gid }| {
            qp == self.qp && gid.is_none_or(|gid| gid == self.gid)
        })
    }
}

#[derive(Debug)]
pub(crate) struct Port {
    sender: Sender,
    without: Without,
    /// The datagram that is built: `built` bytes of the buffer; none if that is 0.
    building: Buffer,
    built: usize,
    /// Buffers that were sent from. With those of the pool, there is one for each work request that the send queue holds.
    spare: Vec<Buffer>,
    sends: BufferPool,
    send_depth: usize,
    /// Receives that were consumed and not yet posted again.
    consumed: Vec<Buffer>,
    replenish_at: usize,
    /// Receives that were never posted: an idle client needs few.
    later: Option<Later>,
    /// Datagrams that were posted so far.
    posted: u32,
    /// The doorbell is held back.
    held: bool,
}

#[derive(Debug)]
struct Later {
    receives: BufferPool,
    /// Then, receives are posted again so many at a time.
    replenish_at: usize,
}

/// A queue pair, as peers must know it.
#[derive(Debug)]
pub(crate) struct PortAddress {
    pub(crate) endpoint: Endpoint,
    pub(crate) qkey: u32,
}

impl Port {
    /// A queue pair that is ready, with its first receives, and its address.
    pub(crate) fn open(
        device: &Device,
        pd: &ProtectionDomain,
        cq: &CompletionQueueHandle,
        sizes: &Sizes,
    ) -> Result<(Port, PortAddress), SetupError> {
        let config = QueuePairConfig::new(QpType::Ud, cq, cq)
            .max_send_wr(sizes.send_depth)
            .max_recv_wr(sizes.recv_depth);
        let mut qp = pd.create_qp(config)?;
        let sends =
            pd.alloc_private_on_demand((sizes.send_depth + 1) * sizes.mtu)?.into_pool(sizes.mtu);
        let Some(building) = sends.take() else {
            return Err(SetupError::Unsupported("there is no buffer to send from".into()));
        };
        let room = GRH_BYTES + sizes.mtu;
        let receives = pd.alloc_private_on_demand(sizes.recv_depth * room)?.into_pool(room);
        for _ in 0..sizes.first_receives {
            let posted = qp.post_recv(0, receives.take());
            posted.map_err(|error| SetupError::Device(error.into()))?;
        }
        let replenish_at = sizes.replenish_at.min(sizes.first_receives.div_ceil(4));
        let later = (sizes.first_receives < sizes.recv_depth)
            .then_some(Later { receives, replenish_at: sizes.replenish_at });
        let endpoint = qp.endpoint();
        // With the highest bit it would be privileged.
        let qkey = device.random()? as u32 >> 1;
        qp.activate(qkey)?;
        let without = sizes.without;
        let inline = !without.has(Optimization::Inline);
        let max_inline = if inline { device.caps().max_inline } else { 0 };
        let mut sender = Sender::new(qp, sizes.send_depth as u32, max_inline, 0);
        if without.has(Optimization::Selective) {
            sender = sender.signaling_all();
        }
        let port = Port {
            sender,
            without,
            building,
            built: 0,
            spare: Vec::new(),
            sends,
            send_depth: sizes.send_depth,
            consumed: Vec::with_capacity(replenish_at),
            replenish_at,
            later,
            posted: 0,
            held: false,
        };
        Ok((port, PortAddress { endpoint, qkey }))
    }

    #[cfg(test)]
    pub(crate) fn qp_mut(&mut self) -> &mut farcall_verbs::QueuePair {
        self.sender.qp_mut()
    }

    /// The queue pair is in error: no session over it can go on.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.sender.is_broken()
    }

    /// A work request has failed, and with it the queue pair.
    pub(crate) fn mark_broken(&mut self) {
        self.sender.mark_broken();
    }

    /// One more datagram can be posted.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.sender.is_broken() && self.sender.room() > 0
    }

    /// Everything posted has left.
    pub(crate) fn has_left(&self) -> bool {
        self.sender.has_left()
    }

    /// Datagrams that were posted so far: the number of the one that is built.
    #[inline]
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// The longest datagram to this peer that gets another message.
    #[inline]
    fn max_shared(&self, peer: &Peer) -> usize {
        if self.without.has(Optimization::Coalescing) { 0 } else { peer.mtu() }
    }

    /// A message with this many bytes needs no new datagram.
    pub(crate) fn fits(&self, peer: &Peer, body: usize) -> bool {
        self.built > 0 && self.built + MESSAGE_BYTES + body <= self.max_shared(peer)
    }

    /// Puts a message, whose body is made of two pieces, into a datagram to this peer. `false` if the send queue
    /// is full: the caller keeps it. Between messages to different peers goes a [`post`](Port::post).
    #[inline]
    pub(crate) fn put(
        &mut self,
        peer: &Peer,
        kind: Kind,
        id: Id,
        (front, back): (&[u8], &[u8]),
    ) -> bool {
        let body = front.len() + back.len();
        let len = MESSAGE_BYTES + body;
        if !self.make_room(peer, len) {
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

    /// Begins a message to this peer, whose body of `len` bytes is filled through [`body`](Port::body) and then
    /// [finished](Port::finish). Beginning another one instead discards it. `false` if the send queue is full.
    #[inline]
    pub(crate) fn begin(&mut self, peer: &Peer, kind: Kind, id: Id, len: usize) -> bool {
        if !self.make_room(peer, MESSAGE_BYTES + len) {
            return false;
        }
        let header = MessageHeader::new(kind, id, len);
        let place = &mut self.building[self.built..self.built + MESSAGE_BYTES];
        place.copy_from_slice(header.as_bytes());
        true
    }

    /// The `len` bytes of the body of the message that was begun.
    #[inline]
    pub(crate) fn body(&mut self, len: usize) -> &mut [u8] {
        &mut self.building[self.built + MESSAGE_BYTES..][..len]
    }

    /// The message that was begun becomes part of the datagram, with `len` bytes of its body.
    #[inline]
    pub(crate) fn finish(&mut self, len: usize) {
        MessageHeader::set_len(&mut self.building[self.built..], len);
        self.built += MESSAGE_BYTES + len;
    }

    /// Room for a message of `len` bytes in a datagram to this peer; `false` if the send queue is full.
    #[inline]
    fn make_room(&mut self, peer: &Peer, len: usize) -> bool {
        debug_assert!(HEADER_BYTES + len <= peer.mtu());
        if self.built > 0 && self.built + len > self.max_shared(peer) {
            self.post(peer);
        }
        if self.built == 0 {
            if !self.has_room() {
                return false;
            }
            let header = Header::new(peer.session, peer.epoch);
            self.building[..HEADER_BYTES].copy_from_slice(header.as_bytes());
            self.built = HEADER_BYTES;
        }
        true
    }

    /// Posts the datagram that was built, if there is one. It leaves with the next doorbell.
    #[inline]
    pub(crate) fn post(&mut self, peer: &Peer) {
        self.post_as(peer, false);
    }

    /// Posts the last datagram of a session, whose completion is waited for.
    pub(crate) fn post_last(&mut self, peer: &Peer) {
        self.post_as(peer, true);
    }

    #[inline]
    fn post_as(&mut self, peer: &Peer, must_signal: bool) {
        let len = std::mem::take(&mut self.built);
        if len <= HEADER_BYTES || self.sender.is_broken() {
            return;
        }
        self.posted = self.posted.wrapping_add(1);
        if self.sender.is_inline(len) {
            let request = WorkRequest::send(&self.building[..len]);
            self.sender.post(request.to(&peer.handle, peer.qp, peer.qkey), must_signal);
        } else {
            // There are as many as the send queue has work requests, and it has room for one.
            let Some(next) = self.spare.pop().or_else(|| self.first_use()) else { return };
            let mut buffer = std::mem::replace(&mut self.building, next);
            buffer.set_len(len);
            let request = WorkRequest::send(buffer).to(&peer.handle, peer.qp, peer.qkey);
            self.sender.post(request, must_signal);
        }
        if self.without.has(Optimization::Doorbells) {
            self.sender.ring();
        }
    }

    /// A buffer that was not sent from yet.
    #[cold]
    fn first_use(&mut self) -> Option<Buffer> {
        // Once: it may hold all of them some time.
        self.spare.reserve(self.send_depth);
        self.sends.take()
    }

    /// One doorbell for all datagrams that were posted.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if !self.held {
            self.sender.ring();
        }
    }

    /// Holds the doorbell back; or does not any more, and what waited leaves.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
        self.ring();
    }

    /// A work request has completed, and so have all before it.
    pub(crate) fn retire(&mut self, completion: &WorkCompletion) {
        self.sender.retire(completion.id);
        let spare = &mut self.spare;
        self.sender.reclaim(&mut |mut buffer| {
            buffer.set_len(buffer.capacity());
            spare.push(buffer);
        });
    }

    /// Takes the buffer of a receive, to post it again. That is done in batches.
    #[inline]
    pub(crate) fn recycle(&mut self, mut buffer: Buffer) {
        buffer.set_len(buffer.capacity());
        self.consumed.push(buffer);
        if self.consumed.len() >= self.replenish_at {
            self.replenish();
        }
    }

    /// Not all receives are posted yet.
    #[inline]
    pub(crate) fn has_few_receives(&self) -> bool {
        self.later.is_some()
    }

    /// Posts the receives that were never posted: more may arrive than the first ones take.
    #[cold]
    pub(crate) fn post_all_receives(&mut self) {
        let Some(Later { receives, replenish_at }) = self.later.take() else { return };
        self.replenish_at = replenish_at;
        self.consumed.reserve(replenish_at);
        while let Some(buffer) = receives.take() {
            if !self.sender.check(|qp| qp.post_recv(0, Some(buffer))) {
                return;
            }
        }
    }

    fn replenish(&mut self) {
        for buffer in self.consumed.drain(..) {
            if !self.sender.check(|qp| qp.post_recv(0, Some(buffer))) {
                return;
            }
        }
    }
}
