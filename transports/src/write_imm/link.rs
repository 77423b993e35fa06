//! One end of one connection: its queue pair, the slots its peer writes, what waits to be posted,
//! and the buffers that are under way. The same for client and server.

use std::collections::VecDeque;

use farcall_core::transport::Message;
use farcall_verbs::{Buffer, QueuePair, RemoteRegion, RemoteSlice, SharedRegion};
use farcall_verbs::{WorkCompletion, WorkRequest};

use super::layout::{HEADER_BYTES, Immediate, Kind, Op, put_header, stride};
use super::setup::Sizes;
use crate::kit::sender::{Sender, work_id};

/// A WRITE_WITH_IMM that waits for the doorbell. With no bytes it is its immediate alone.
#[derive(Debug, Clone, Copy)]
struct Post {
    imm: u32,
    slot: u32,
    len: u32,
    /// Its completion is waited for.
    signaled: bool,
}

/// What a buffer under way is, in the order of posting.
#[derive(Debug, Clone, Copy)]
enum UnderWay {
    /// A slot's message.
    Message,
    /// Part of a large request.
    Chunk,
    /// Where part of a large response arrives.
    Fetch { slot: u32 },
}

/// Part of a large response, fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) slot: u32,
    pub(crate) part: Buffer,
}

#[derive(Debug)]
pub(crate) struct Link {
    // The queue pair goes before the memory that it works on.
    sender: Sender,
    outbox: Vec<Post>,
    slot_bytes: usize,
    stride: u64,
    client: u32,
    /// Receives that were consumed and not yet posted again.
    consumed: u32,
    replenish_at: u32,
    /// Posts wait, or the queue pair is broken.
    urgent: bool,
    /// The buffer in which each slot's next message is made, unless it is under way.
    staging: Box<[Option<Buffer>]>,
    spare: Vec<Buffer>,
    under_way: VecDeque<UnderWay>,
    peer_slots: RemoteRegion,
    slots: SharedRegion,
}

impl Link {
    /// `buffers` are of `sizes.slot` bytes each, one for each slot and for each work request that
    /// the send queue holds.
    pub(crate) fn new(
        qp: QueuePair,
        slots: SharedRegion,
        peer_slots: RemoteRegion,
        sizes: &Sizes,
        client: u32,
        mut buffers: Vec<Buffer>,
    ) -> Link {
        let window = sizes.window as usize;
        assert!(buffers.len() >= window + sizes.send_depth as usize);
        assert!(peer_slots.len >= sizes.slots_bytes());
        let spare = buffers.split_off(window);
        Link {
            sender: Sender::new(qp, sizes.send_depth, sizes.max_inline, client),
            outbox: Vec::with_capacity(2 * window),
            slot_bytes: sizes.slot as usize,
            stride: stride(sizes.slot).into(),
            client,
            consumed: 0,
            replenish_at: sizes.replenish_at.min(sizes.recv_depth),
            urgent: false,
            staging: buffers.into_iter().map(Some).collect(),
            spare,
            under_way: VecDeque::with_capacity(sizes.send_depth as usize),
            peer_slots,
            slots,
        }
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        self.sender.qp()
    }

    /// The client's number at its server thread.
    pub(crate) fn client(&self) -> u32 {
        self.client
    }

    /// A post failed: the queue pair is in error, or the peer's numbers made no sense.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.sender.is_broken()
    }

    /// The longest message that goes in a slot.
    #[inline]
    pub(crate) fn max_in_slot(&self) -> usize {
        self.slot_bytes - HEADER_BYTES
    }

    /// One more work request has room, after those that wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sender.room() as usize > self.outbox.len()
    }

    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Posts wait for room in the send queue or for [`ring`](Link::ring), or the link is broken.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// The slot's buffer, at full length, header included. `None` only while more messages are
    /// under way than the send queue holds, which cannot be.
    #[inline]
    pub(crate) fn stage(&mut self, slot: u32) -> Option<&mut [u8]> {
        let staged = &mut self.staging[slot as usize];
        if staged.is_none() {
            *staged = self.spare.pop();
        }
        staged.as_deref_mut()
    }

    /// Posts the message of `len` bytes, header included, that the slot's buffer holds. It leaves
    /// with the next doorbell at the latest.
    #[inline]
    pub(crate) fn post(&mut self, slot: u32, generation: u32, kind: Kind, len: usize) {
        let Some(message) = self.staging[slot as usize].as_deref_mut() else { return };
        put_header(message, generation, kind);
        let imm = Immediate { op: Op::Message, client: self.client, slot }.to_wire();
        if !self.sender.is_inline(len) || self.urgent || self.sender.room() == 0 {
            return self.push(Post { imm, slot, len: len as u32, signaled: false });
        }
        let Ok(remote) = self.peer_slots.slice(u64::from(slot) * self.stride, len as u64) else {
            return;
        };
        if !self.sender.write_imm(&message[..len], remote, imm, false) {
            self.urgent = true;
        }
    }

    /// Queues a control message with this body.
    #[cold]
    pub(crate) fn post_control(&mut self, slot: u32, generation: u32, kind: Kind, body: &[u8]) {
        let Some(message) = self.stage(slot) else { return };
        message[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(body);
        self.post(slot, generation, kind, HEADER_BYTES + body.len());
    }

    /// Queues an immediate alone.
    #[cold]
    pub(crate) fn post_op(&mut self, op: Op, slot: u32) {
        let imm = Immediate { op, client: self.client, slot }.to_wire();
        self.push(Post { imm, slot, len: 0, signaled: false });
    }

    /// Queues the last message of all, whose completion says that all have arrived.
    #[cold]
    pub(crate) fn post_goodbye(&mut self) {
        let imm = Immediate { op: Op::Goodbye, client: self.client, slot: 0 }.to_wire();
        self.push(Post { imm, slot: 0, len: 0, signaled: true });
    }

    /// After the goodbye: everything has arrived at the peer, or nothing will any more.
    pub(crate) fn has_left(&self) -> bool {
        self.sender.is_broken() || (self.outbox.is_empty() && self.sender.has_left())
    }

    fn push(&mut self, post: Post) {
        self.outbox.push(post);
        self.urgent = true;
    }

    /// Takes back what has not been posted of this slot; `false` if it has been.
    #[cold]
    pub(crate) fn withdraw(&mut self, slot: u32) -> bool {
        let before = self.outbox.len();
        self.outbox.retain(|post| post.slot != slot || post.len == 0);
        self.outbox.len() < before
    }

    /// One doorbell for all that was posted, and for what waits. What the send queue has no room for
    /// waits on.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.urgent {
            self.post_waiting();
        }
        self.sender.ring();
    }

    fn post_waiting(&mut self) {
        let mut posted = 0;
        for post in &self.outbox {
            if self.sender.is_broken() || self.sender.room() == 0 {
                break;
            }
            let len = post.len as usize;
            let offset = u64::from(post.slot) * self.stride;
            let Ok(remote) = self.peer_slots.slice(offset, len as u64) else { break };
            let staged = &mut self.staging[post.slot as usize];
            match staged {
                _ if len == 0 => self.sender.write_imm(&[], remote, post.imm, post.signaled),
                Some(buffer) if self.sender.is_inline(len) => {
                    self.sender.write_imm(&buffer[..len], remote, post.imm, post.signaled)
                }
                _ => {
                    let Some(mut buffer) = staged.take() else { break };
                    buffer.set_len(len);
                    self.under_way.push_back(UnderWay::Message);
                    let request = WorkRequest::write(buffer, remote).imm(post.imm);
                    self.sender.post(request, post.signaled)
                }
            };
            posted += 1;
        }
        self.outbox.drain(..posted);
        self.urgent = self.sender.is_broken() || !self.outbox.is_empty();
    }

    /// Writes a chunk of a large request at once.
    pub(crate) fn write_chunk(&mut self, slot: u32, chunk: Buffer, remote: RemoteSlice) {
        let imm = Immediate { op: Op::Chunk, client: self.client, slot }.to_wire();
        // Signaled, so that the memory comes back as soon as the request has landed.
        self.post_at_once(WorkRequest::write(chunk, remote).imm(imm), UnderWay::Chunk);
    }

    /// Reads a part of a large response at once.
    pub(crate) fn fetch(&mut self, slot: u32, into: Buffer, remote: RemoteSlice) {
        self.post_at_once(WorkRequest::read(into, remote), UnderWay::Fetch { slot });
    }

    fn post_at_once<'a>(&mut self, request: impl Into<WorkRequest<'a>>, under_way: UnderWay) {
        debug_assert!(self.sender.room() > 0);
        self.under_way.push_back(under_way);
        self.urgent |= !self.sender.post(request, true);
        self.sender.ring();
    }

    /// A work request of ours has completed, and so have all before it.
    #[inline]
    pub(crate) fn retire(&mut self, id: u64, fetched: &mut Vec<Fetched>) {
        self.sender.retire(id);
        if !self.under_way.is_empty() {
            self.reclaim(fetched);
        }
    }

    fn reclaim(&mut self, fetched: &mut Vec<Fetched>) {
        let Link { sender, under_way, spare, slot_bytes, .. } = self;
        sender.reclaim(&mut |mut buffer| match under_way.pop_front() {
            Some(UnderWay::Message) => {
                buffer.set_len(*slot_bytes);
                spare.push(buffer);
            }
            Some(UnderWay::Fetch { slot }) => fetched.push(Fetched { slot, part: buffer }),
            // Dropped: it goes back to its pool with the request's other parts.
            Some(UnderWay::Chunk) | None => {}
        });
    }

    /// A receive was consumed. They are posted again in batches.
    #[inline]
    pub(crate) fn consume_receive(&mut self) {
        self.consumed += 1;
        if self.consumed >= self.replenish_at {
            let (first, count) = (work_id(self.client, 0), u64::from(self.consumed));
            self.urgent |= !self.sender.check(|qp| qp.post_recvs(first..first + count));
            self.consumed = 0;
        }
    }

    /// The message that a completion announces, as private bytes: from the completion itself where
    /// it carries them, else read once out of the slot.
    #[inline]
    pub(crate) fn read<'a>(
        &self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        if let Some(payload) = completion.payload() {
            return Some(payload);
        }
        let len = completion.byte_len as usize;
        if len > self.slot_bytes {
            return None;
        }
        let message = &mut scratch[..len];
        self.slots.copy_out(slot as usize * self.stride as usize, message);
        Some(message)
    }
}

/// A large message of private memory, to be kept.
pub(crate) fn owned(buffer: Buffer) -> Message<'static> {
    Message::Owned(bytes::Bytes::from_owner(buffer))
}
