//! How messages travel: the part in which backends differ.

use std::fmt;

use farcall_verbs::{Buffer, WorkCompletion, WorkRequest};

use crate::kit::sender::Sender;

/// How the messages of one end of a connection travel.
pub(crate) trait Carrier: fmt::Debug + Send {
    /// The client that a completion names. Its queue pair shows whether that is true.
    fn client_of(completion: &WorkCompletion) -> u32;

    /// Posts the message of a slot inline. `false`: the queue pair is broken.
    fn post_inline(
        &self,
        sender: &mut Sender,
        slot: u32,
        message: &[u8],
        imm: u32,
        must_signal: bool,
    ) -> bool;

    /// The work request that carries the message of a slot in this buffer.
    fn request(&self, slot: u32, message: Buffer, imm: u32) -> WorkRequest<'static>;

    /// The message that a completion announces, as private bytes. `None` if it announces none that the slot could hold.
    fn read<'a>(
        &self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut [u8],
    ) -> Option<&'a [u8]>;

    /// A message has arrived. `false`: the queue pair is broken.
    fn consume_receive(&mut self, sender: &mut Sender) -> bool;

    /// At the client: the message has been handled. `false`: the queue pair is broken.
    fn recycle(&mut self, sender: &mut Sender, completion: &mut WorkCompletion) -> bool;
}

/// The receives of one server thread's connections.
pub(crate) trait Receives: fmt::Debug + Send {
    /// Clients have come: there must be receives for what they send.
    fn replenish(&mut self);

    /// The message of a client has been handled.
    fn recycle(&mut self, completion: &mut WorkCompletion);
}
