//! One end of one connection: its queue pair, what waits to be posted, and the buffers that are under way. The same for
//! client and server.

use std::collections::VecDeque;

use farcall_core::transport::Message;
use farcall_verbs::{Buffer, BufferPool, ProtectionDomain, QueuePair, RemoteSlice};
use farcall_verbs::{WorkCompletion, WorkRequest};

use super::carrier::{Carrier, ClientCarrier, Fetch, Fetched, MOST_PROBES, ServerCarrier};
use super::features::Features;
use super::operations::MOST_CREDITS;
use super::wire::{HEADER_BYTES, Immediate, Kind, Op, put_header};
use crate::contract::SetupError;
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::rendezvous::MOST_OPERATIONS;
use crate::rendezvous::source::Source;

/// How much of everything a link has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkSizes {
    /// Slots of the window.
    pub(crate) window: u32,
    /// Bytes of a slot.
    pub(crate) slot: u32,
    /// Work requests of the send queue.
    pub(crate) send_depth: u32,
    /// Bytes that a work request may carry inline.
    pub(crate) max_inline: usize,
}

/// Buffers for which there is room from the beginning where seldom more are under way.
const FEW_BUFFERS: usize = 8;

/// Posts for which there is room then.
const FEW_POSTS: usize = 16;

/// Posts of a slot that may wait, if the peer keeps the rules: a message, the operations of one large message, and one that ends it. It
/// asks for the next only when it has received these. A peer that asks without receiving is dropped.
const MOST_WAITING_PER_SLOT: usize = MOST_OPERATIONS + 2;

/// Posts of no slot that may wait: modes of a carrier that was asked and that ends, credits of operations, and the goodbye.
const MOST_WAITING_OF_NONE: usize = 4 + MOST_CREDITS;

/// Posts that may wait on a link with this window.
const fn most_waiting(window: usize) -> usize {
    window * MOST_WAITING_PER_SLOT + MOST_WAITING_OF_NONE
}

/// Bytes of a cache line.
const LINE_BYTES: u32 = 64;

/// Bytes from one slot to the next: an odd number of cache lines, so that the fronts of all slots
/// do not meet in one set of the cache, and never neighbouring lines, which prefetchers would take
/// from the peer that writes there.
pub(crate) const fn stride(slot_bytes: u32) -> u32 {
    let lines = slot_bytes.div_ceil(LINE_BYTES) | 1;
    if lines < 3 { 3 * LINE_BYTES } else { lines * LINE_BYTES }
}

/// A message that waits for the doorbell. With no bytes it is its immediate alone.
#[derive(Debug, Clone, Copy)]
struct Post {
    imm: u32,
    /// Of no meaning without bytes.
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
    Part { slot: u32 },
    /// Where responses arrive.
    Responses(Fetched),
    /// Where requests arrive.
    Requests,
}

/// What was READ.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// Parts of large responses, with their slots.
    pub(crate) parts: Vec<(u32, Buffer)>,
    /// Responses that the carrier fetches.
    pub(crate) responses: Vec<(Fetched, Buffer)>,
    /// Requests that the server fetches.
    pub(crate) requests: Vec<Buffer>,
}

impl Arrived {
    /// Before the first responses of a client with this window: room for a long one for each call, for those that are ready, and for probes.
    #[inline]
    pub(crate) fn make_room(&mut self, window: usize) {
        if self.responses.capacity() == 0 {
            self.responses.reserve(window + 1 + MOST_PROBES);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Link<C> {
    // The queue pair goes before the memory that it works on.
    sender: Sender,
    pub(crate) carrier: C,
    /// What has no room in the send queue, at most [`most_waiting`].
    outbox: VecDeque<Post>,
    most_waiting: usize,
    /// The peer has asked for more than may wait.
    is_flooded: bool,
    slot_bytes: usize,
    client: u32,
    peer: Features,
    /// Posts wait, or the queue pair is broken.
    urgent: bool,
    /// The buffer in which each slot's next message is made, unless it is under way; of the slots that have been used.
    staging: Vec<Option<Buffer>>,
    /// Buffers that have been used and are free, the last one used first: the memory of a link that is seldom used stays small.
    spare: Vec<Buffer>,
    /// Buffers that have not been used yet.
    unused: BufferPool,
    under_way: VecDeque<UnderWay>,
    /// Parts of large responses under way.
    parts: usize,
}

impl<C: Carrier> Link<C> {
    /// Over this queue pair, with send buffers of this domain, which is that of the queue pair.
    pub(crate) fn new(
        qp: QueuePair,
        carrier: C,
        sizes: &LinkSizes,
        (client, peer): (u32, Features),
        pd: &ProtectionDomain,
    ) -> Result<Link<C>, SetupError> {
        let window = sizes.window as usize;
        // One for each slot and for each work request that the send queue holds.
        let count = window + sizes.send_depth as usize;
        let size = stride(sizes.slot) as usize;
        // Where messages of slots go inline, only parts of large ones are under way.
        let goes_inline = sizes.max_inline >= sizes.slot as usize;
        let (buffers, posts) = if goes_inline { (FEW_BUFFERS, FEW_POSTS) } else { (count, count) };
        let unused = pd.alloc_private_on_demand(count * size)?.into_pool(size);
        Ok(Link {
            sender: Sender::new(qp, sizes.send_depth, sizes.max_inline, client),
            carrier,
            outbox: VecDeque::with_capacity(posts.min(2 * window)),
            most_waiting: most_waiting(window),
            is_flooded: false,
            slot_bytes: sizes.slot as usize,
            client,
            peer,
            urgent: false,
            staging: Vec::with_capacity(window.min(FEW_BUFFERS)),
            spare: Vec::with_capacity(buffers),
            unused,
            under_way: VecDeque::with_capacity(buffers),
            parts: 0,
        })
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        self.sender.qp()
    }

    /// What sends, and what says how.
    pub(crate) fn parts(&mut self) -> (&mut Sender, &mut C) {
        (&mut self.sender, &mut self.carrier)
    }

    /// The client's number at its server thread.
    pub(crate) fn client(&self) -> u32 {
        self.client
    }

    /// What the peer can do.
    pub(crate) fn peer(&self) -> Features {
        self.peer
    }

    /// A post failed: the queue pair is in error, or the peer's numbers made no sense.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.sender.is_broken()
    }

    /// The longest message that goes in a slot.
    #[inline]
    pub(crate) fn max_in_slot(&self) -> usize {
        self.slot_bytes - HEADER_BYTES - C::TRAILER_BYTES
    }

    /// The link is broken because its peer asked for more than may wait: it takes nothing, and goes on asking.
    pub(crate) fn is_flooded(&self) -> bool {
        self.is_flooded
    }

    /// One more work request has room, after those that wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sender.room() as usize > self.outbox.len()
    }

    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        !self.outbox.is_empty() || self.carrier.has_notice()
    }

    /// Posts wait for room in the send queue or for [`ring`](Link::ring), or the link is broken.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent || self.carrier.has_notice()
    }

    /// The slot's buffer, at full length, header included. `None` only while more messages are
    /// under way than the send queue holds, which cannot be.
    #[inline]
    pub(crate) fn stage(&mut self, slot: u32) -> Option<&mut [u8]> {
        if !matches!(self.staging.get(slot as usize), Some(Some(_))) {
            self.provide(slot as usize);
        }
        self.staging.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Gives the slot a buffer, if there is one. Not inlined: after a short message the slot still has its buffer.
    #[inline(never)]
    fn provide(&mut self, slot: usize) {
        if slot >= self.staging.len() {
            self.staging.resize_with(slot + 1, || None);
        }
        self.staging[slot] = self.take_buffer();
    }

    /// Posts the message of `len` bytes, header included, that the slot's buffer holds. It leaves
    /// with the next doorbell at the latest.
    #[inline]
    pub(crate) fn post(&mut self, slot: u32, generation: u32, kind: Kind, len: usize) {
        let Some(message) = self.staging[slot as usize].as_deref_mut() else { return };
        put_header(message, generation, kind);
        let may_place = !C::PLACES_IN_ORDER || self.outbox.is_empty();
        if may_place && self.carrier.place(slot, &message[..len]) {
            return;
        }
        let imm = Immediate { op: Op::Message, client: self.client, slot }.to_wire();
        let posted = len + C::TRAILER_BYTES;
        if !self.sender.is_inline(posted) || self.urgent || self.sender.room() == 0 {
            return self.push(Post { imm, slot, len: len as u32, signaled: false });
        }
        let Link { sender, carrier, .. } = self;
        carrier.prepare(sender, message);
        if !carrier.post_inline(sender, slot, &mut message[..posted], imm, false) {
            self.urgent = true;
        }
    }

    /// Posts a message of a slot that consists of `front` and `body`, whose bytes are copied once if the device can. The slot's
    /// buffer is [staged](Link::stage).
    #[inline]
    pub(crate) fn post_parts(&mut self, slot: u32, generation: u32, front: &[u8], body: &[u8]) {
        let Some(message) = self.staging[slot as usize].as_deref_mut() else { return };
        let at = HEADER_BYTES + front.len();
        let len = at + body.len();
        message[HEADER_BYTES..at].copy_from_slice(front);
        put_header(message, generation, Kind::Inline);
        let Link { sender, carrier, client, urgent, .. } = self;
        let imm = Immediate { op: Op::Message, client: *client, slot }.to_wire();
        let may_post = sender.is_inline(len) && !*urgent && sender.room() > 0;
        if !may_post || !carrier.try_post_parts(sender, slot, &message[..at], body, imm) {
            message[at..len].copy_from_slice(body);
            self.post(slot, generation, Kind::Inline, len);
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
        self.urgent = true;
        if self.outbox.len() >= self.most_waiting {
            return self.give_up_flooded();
        }
        self.outbox.push_back(post);
    }

    #[cold]
    fn give_up_flooded(&mut self) {
        self.is_flooded = true;
        self.sender.mark_broken();
    }

    /// Takes back what has not been posted of this slot; `false` if it has been.
    #[cold]
    pub(crate) fn withdraw(&mut self, slot: u32) -> bool {
        let before = self.outbox.len();
        self.outbox.retain(|post| post.slot != slot || post.len == 0);
        self.outbox.len() < before || self.carrier.withdraw(slot)
    }

    /// One doorbell for all that was posted, and for what waits. What the send queue has no room for
    /// waits on.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.is_urgent() {
            self.post_waiting();
        }
        self.sender.ring();
    }

    /// Never inlined: it would keep [`ring`](Link::ring), which finds nothing that waits most of the time, from being.
    #[inline(never)]
    fn post_waiting(&mut self) {
        let Link { sender, carrier, staging, under_way, outbox, client, .. } = self;
        let (mut posted, mut is_flooded) = (0, false);
        for &Post { imm, slot, len, signaled } in outbox.iter() {
            if sender.is_broken() || sender.room() == 0 {
                break;
            }
            if len == 0 {
                if carrier.has_notice() {
                    carrier.post_notice(sender, *client);
                    if sender.room() == 0 {
                        break;
                    }
                }
                carrier.post_inline(sender, slot, &mut [], imm, signaled);
                posted += 1;
                continue;
            }
            let staged = &mut staging[slot as usize];
            if C::PLACES_IN_ORDER
                && let Some(buffer) = staged
                && carrier.place(slot, &buffer[..len as usize])
            {
                posted += 1;
                continue;
            }
            if let Some(buffer) = staged {
                carrier.prepare(sender, buffer);
            }
            let len = len as usize + C::TRAILER_BYTES;
            match staged {
                Some(buffer) if sender.is_inline(len) => {
                    carrier.post_inline(sender, slot, &mut buffer[..len], imm, signaled)
                }
                _ => {
                    // A second message of the slot: the peer asked for it before the first has left.
                    let Some(mut buffer) = staged.take() else {
                        is_flooded = true;
                        break;
                    };
                    buffer.set_len(len);
                    under_way.push_back(UnderWay::Message);
                    sender.post(carrier.request(slot, buffer, imm), signaled)
                }
            };
            posted += 1;
        }
        if carrier.has_notice() && !sender.is_broken() && sender.room() > 0 {
            carrier.post_notice(sender, *client);
        }
        self.outbox.drain(..posted);
        if is_flooded {
            self.give_up_flooded();
        }
        self.urgent = self.sender.is_broken() || !self.outbox.is_empty();
    }

    /// Writes a chunk of a large request at once.
    pub(crate) fn write_chunk(&mut self, slot: u32, chunk: Source, remote: RemoteSlice) {
        let imm = Immediate { op: Op::Chunk, client: self.client, slot }.to_wire();
        match chunk {
            // Signaled, so that the memory comes back as soon as the request has landed.
            Source::Registered(chunk) => {
                self.post_at_once(WorkRequest::write(chunk, remote).imm(imm), UnderWay::Chunk);
            }
            Source::Shared(chunk) => {
                debug_assert!(self.sender.room() > 0);
                let [front, body] = chunk.pieces();
                if !self.sender.try_write_imm_parts(front, body, remote, imm) {
                    // The peer's ring is not known yet, or full.
                    let chunk = [front, body].concat();
                    self.urgent |= !self.sender.write_imm(&chunk, remote, imm, false);
                }
                self.sender.ring();
            }
        }
    }

    /// Reads a part of a large response at once.
    pub(crate) fn fetch_part(&mut self, slot: u32, into: Buffer, remote: RemoteSlice) {
        self.parts += 1;
        self.post_at_once(WorkRequest::read(into, remote), UnderWay::Part { slot });
    }

    /// Parts of large responses that are being read.
    #[inline]
    pub(crate) fn parts_under_way(&self) -> usize {
        self.parts
    }

    fn post_at_once<'a>(&mut self, request: impl Into<WorkRequest<'a>>, under_way: UnderWay) {
        debug_assert!(self.sender.room() > 0);
        self.under_way.push_back(under_way);
        self.urgent |= !self.sender.post(request, true);
        self.sender.ring();
    }

    /// A work request of ours has completed, and so have all before it.
    #[inline]
    pub(crate) fn retire(&mut self, id: u64, arrived: &mut Arrived) {
        self.sender.retire(id);
        if !self.under_way.is_empty() {
            self.reclaim(arrived);
        }
    }

    fn reclaim(&mut self, arrived: &mut Arrived) {
        let Link { sender, under_way, spare, slot_bytes, parts, .. } = self;
        sender.reclaim(&mut |mut buffer| match under_way.pop_front() {
            Some(UnderWay::Message) => {
                buffer.set_len(*slot_bytes);
                spare.push(buffer);
            }
            Some(UnderWay::Part { slot }) => {
                *parts -= 1;
                arrived.parts.push((slot, buffer));
            }
            Some(UnderWay::Responses(what)) => arrived.responses.push((what, buffer)),
            Some(UnderWay::Requests) => arrived.requests.push(buffer),
            // Dropped: it goes back to its pool with the request's other parts.
            Some(UnderWay::Chunk) | None => {}
        });
    }

    /// A message has arrived.
    #[inline]
    pub(crate) fn consume_receive(&mut self) {
        let Link { sender, carrier, .. } = self;
        if !carrier.consume_receive(sender) {
            self.urgent = true;
        }
    }

    /// A message has been handled, at the client.
    #[inline]
    pub(crate) fn recycle(&mut self, completion: &mut WorkCompletion) {
        let Link { sender, carrier, .. } = self;
        if !carrier.recycle(sender, completion) {
            self.urgent = true;
        }
    }

    /// The message that a completion announces: see [`Carrier::read`].
    #[inline]
    pub(crate) fn read<'a>(
        &mut self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut Scratch,
    ) -> Option<Message<'a>> {
        self.carrier.read(completion, slot, scratch)
    }
}

impl<C: Carrier> Link<C> {
    /// Takes the buffer of a READ back.
    #[inline]
    pub(crate) fn give_back(&mut self, mut buffer: Buffer) {
        buffer.set_len(self.slot_bytes);
        self.spare.push(buffer);
    }

    /// A free buffer.
    #[inline]
    fn take_buffer(&mut self) -> Option<Buffer> {
        self.spare.pop().or_else(|| self.unused.take())
    }

    /// Reads requests out of the client's memory at once, at most a slot. `false`: there is no room now.
    pub(crate) fn fetch_requests(&mut self, remote: RemoteSlice) -> bool {
        if !self.has_room() {
            return false;
        }
        let Some(mut into) = self.take_buffer() else { return false };
        into.set_len(remote.len() as usize);
        self.post_at_once(WorkRequest::read(into, remote), UnderWay::Requests);
        true
    }
}

impl<C: ServerCarrier> Link<C> {
    /// Takes the buffers of requests back that were all taken.
    #[inline(always)]
    pub(crate) fn give_back_empty(&mut self) {
        while let Some(empty) = self.carrier.take_empty() {
            self.give_back(empty);
        }
    }
}

impl<C: ClientCarrier> Link<C> {
    /// Reads the responses that its carrier wants to fetch.
    #[inline]
    pub(crate) fn fetch_responses(&mut self) {
        while self.has_room()
            && let Some(mut into) = self.take_buffer()
        {
            let Some(Fetch { remote, what }) = self.carrier.next_fetch(into.len()) else {
                return self.spare.push(into);
            };
            into.set_len(remote.len() as usize);
            self.post_at_once(WorkRequest::read(into, remote), UnderWay::Responses(what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_meet_in_the_cache() {
        for slot in (64..9000).step_by(64) {
            let lines = stride(slot) / LINE_BYTES;
            assert!(stride(slot) >= slot && lines % 2 == 1 && lines > 1);
        }
        assert_eq!(stride(4096), 4160);
    }
}
