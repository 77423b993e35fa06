//! SEND into a receive that the peer posted.

use farcall_core::transport::Message;
use farcall_verbs::{Buffer, CompletionOpcode, Status, WorkCompletion, WorkRequest};

use super::receives::Grant;
use crate::kit::memory::Charge;
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::slots::carrier::{Carrier, ClientCarrier, ServerCarrier};
use crate::slots::wire::client_in;

/// One end of a connection, and the receives that it has used, if they are its own.
#[derive(Debug)]
pub(crate) struct Sends {
    slot_bytes: usize,
    /// Buffers of messages that have been handled.
    used: Vec<Buffer>,
    repost_at: usize,
    /// Receives that the client has for operations.
    spare: u32,
    /// At the server, the credits of its client.
    _credits: Option<Charge>,
}

impl Sends {
    /// A client's end: slots of so many bytes, and so many receives that are posted again at a time. At the server, it has so many
    /// spare ones.
    pub(crate) fn of_client(slot_bytes: u32, repost_at: u32, spare: u32) -> Sends {
        let (slot_bytes, repost_at) = (slot_bytes as usize, repost_at as usize);
        Sends { slot_bytes, used: Vec::with_capacity(repost_at), repost_at, spare, _credits: None }
    }

    /// A server's end, of a client that was granted this.
    pub(crate) fn of_server(slot_bytes: u32, Grant { spare, charge, .. }: Grant) -> Sends {
        Sends { _credits: Some(charge), ..Sends::of_client(slot_bytes, 0, spare) }
    }
}

impl Carrier for Sends {
    const SHARES_RECEIVES: bool = true;

    fn spare_receives(&self) -> u32 {
        self.spare
    }

    /// An arrived message says it in its immediate: its receive was posted for any client. Other work requests say it in
    /// their ids.
    #[inline]
    fn client_of(completion: &WorkCompletion) -> u32 {
        match (completion.status, completion.opcode, completion.imm) {
            (
                Status::Success,
                CompletionOpcode::Recv | CompletionOpcode::RecvWriteWithImm,
                Some(imm),
            ) => client_in(imm),
            _ => (completion.id >> 32) as u32,
        }
    }

    #[inline(always)]
    fn post_inline(
        &mut self,
        sender: &mut Sender,
        _slot: u32,
        message: &mut [u8],
        imm: u32,
        must_signal: bool,
    ) -> bool {
        sender.send_imm(&*message, imm, must_signal)
    }

    fn request(&mut self, _slot: u32, message: Buffer, imm: u32) -> WorkRequest<'static> {
        WorkRequest::send(message).imm(imm).into()
    }

    /// Where it has arrived. Only a SEND fills the buffer of its receive: after a WRITE there are an earlier message's bytes.
    #[inline]
    fn read<'a>(
        &mut self,
        completion: &'a WorkCompletion,
        _slot: u32,
        _scratch: &'a mut Scratch,
    ) -> Option<Message<'a>> {
        if completion.opcode != CompletionOpcode::Recv {
            return None;
        }
        let message = completion.buffer.as_deref()?;
        (message.len() <= self.slot_bytes).then_some(Message::Borrowed(message))
    }

    #[inline]
    fn consume_receive(&mut self, _: &mut Sender) -> bool {
        true
    }

    /// Receives are posted again in batches.
    #[inline]
    fn recycle(&mut self, sender: &mut Sender, completion: &mut WorkCompletion) -> bool {
        let Some(mut buffer) = completion.buffer.take() else { return true };
        buffer.set_len(buffer.capacity());
        self.used.push(buffer);
        if self.used.len() < self.repost_at {
            return true;
        }
        let used = &mut self.used;
        sender.check(|qp| used.drain(..).try_for_each(|buffer| qp.post_recv(0, Some(buffer))))
    }
}

impl ClientCarrier for Sends {}

impl ServerCarrier for Sends {}
