//! WRITE_WITH_IMM into the slots that the peer keeps for this end.

pub(crate) mod setup;

use farcall_core::transport::Message;
use farcall_verbs::{Buffer, RemoteRegion, RemoteSlice, SharedRegion, WorkCompletion, WorkRequest};

use self::setup::Sizes;
use super::carrier::{Carrier, ClientCarrier, ServerCarrier, Shared};
use super::link::stride;
use crate::kit::scratch::Scratch;
use crate::kit::sender::{Sender, work_id};
use crate::planted::{Bug, is_planted};

/// The slots of both ends, and the receives that the peer's immediates take.
#[derive(Debug)]
pub(crate) struct Writes {
    slot_bytes: usize,
    stride: u64,
    client: u32,
    /// Receives that were consumed and not yet posted again.
    consumed: u32,
    replenish_at: u32,
    peer_slots: RemoteRegion,
    slots: SharedRegion,
}

impl Writes {
    pub(crate) fn new(
        slots: SharedRegion,
        peer_slots: RemoteRegion,
        sizes: &Sizes,
        client: u32,
    ) -> Writes {
        Writes {
            slot_bytes: sizes.link.slot as usize,
            stride: stride(sizes.link.slot).into(),
            client,
            consumed: 0,
            replenish_at: sizes.replenish_at.min(sizes.recv_depth),
            peer_slots,
            slots,
        }
    }

    /// The front of the peer's slot. Its address was the peer's to say: it may be nonsense, which its NIC refuses.
    #[inline]
    fn remote(&self, slot: u32, len: usize) -> RemoteSlice {
        self.remote_at(u64::from(slot) * self.stride, len)
    }

    /// The last `len` bytes of the peer's slot.
    #[inline]
    pub(crate) fn remote_end(&self, slot: u32, len: usize) -> RemoteSlice {
        let RemoteRegion { addr, rkey, .. } = self.peer_slots;
        let end = addr.wrapping_add(u64::from(slot + 1) * self.stride);
        RemoteSlice::new(end.wrapping_sub(len as u64), rkey, len as u64)
    }

    /// So many bytes from an offset on in the region of the peer's slots.
    #[inline]
    pub(crate) fn remote_at(&self, offset: u64, len: usize) -> RemoteSlice {
        let RemoteRegion { addr, rkey, .. } = self.peer_slots;
        RemoteSlice::new(addr.wrapping_add(offset), rkey, len as u64)
    }

    /// Our slots.
    #[inline]
    pub(crate) fn slots(&self) -> &SharedRegion {
        &self.slots
    }

    /// Where in [`slots`](Writes::slots) a slot ends.
    #[inline]
    pub(crate) fn slot_end(&self, slot: u32) -> usize {
        (slot as usize + 1) * self.stride as usize
    }
}

impl Carrier for Writes {
    #[inline]
    fn try_post_parts(
        &mut self,
        sender: &mut Sender,
        slot: u32,
        front: &[u8],
        rest: &[u8],
        imm: u32,
    ) -> bool {
        let remote = self.remote(slot, front.len() + rest.len());
        sender.try_write_imm_parts(front, rest, remote, imm)
    }

    #[inline(always)]
    fn post_inline(
        &mut self,
        sender: &mut Sender,
        slot: u32,
        message: &mut [u8],
        imm: u32,
        must_signal: bool,
    ) -> bool {
        let remote = self.remote(slot, message.len());
        sender.write_imm(message, remote, imm, must_signal)
    }

    fn request(&mut self, slot: u32, message: Buffer, imm: u32) -> WorkRequest<'static> {
        let remote = self.remote(slot, message.len());
        WorkRequest::write(message, remote).imm(imm).into()
    }

    /// From the completion itself where it carries the message, else read once out of the slot.
    #[inline]
    fn read<'a>(
        &mut self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut Scratch,
    ) -> Option<Message<'a>> {
        if let Some(payload) = completion.payload() {
            return Some(Message::Borrowed(payload));
        }
        let (at, len) = (slot as usize * self.stride as usize, completion.byte_len as usize);
        let fits = len <= self.slot_bytes || is_planted(Bug::UncheckedLength);
        if !fits || at >= self.slots.len() {
            return None;
        }
        Some(scratch.copy_out(&self.slots, at, len))
    }

    /// Receives are posted again in batches.
    #[inline]
    fn consume_receive(&mut self, sender: &mut Sender) -> bool {
        self.consumed += 1;
        if self.consumed < self.replenish_at {
            return true;
        }
        let (first, count) = (work_id(self.client, 0), u64::from(self.consumed));
        self.consumed = 0;
        sender.check(|qp| qp.post_recvs(first..first + count))
    }
}

impl ClientCarrier for Writes {}

impl ServerCarrier for Writes {}

/// Each connection posts its own receives.
#[derive(Debug)]
pub(crate) struct OwnReceives;

impl<C: ServerCarrier> Shared<C> for OwnReceives {}
