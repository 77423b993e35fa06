//! What a polled completion says.

use crate::{Buffer, QpNumber};

/// Bytes at the front of a UD receive buffer that belong to the global route header.
pub const GRH_BYTES: usize = 40;

/// The most bytes that any device's completion carries itself.
pub const COMPLETION_PAYLOAD_BYTES: usize = 48;

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    #[default]
    Success,
    /// A received message was longer than the posted buffer.
    LocalLength,
    /// Local memory did not allow the access.
    LocalProtection,
    /// The peer found the request malformed (a misaligned atomic, a message it has no room for).
    RemoteInvalidRequest,
    /// The remote key, range or access right did not allow it.
    RemoteAccess,
    /// The peer could not carry out the request.
    RemoteOperation,
    /// The peer does not answer: gone, or its queue pair is not there any more.
    RetryExceeded,
    /// The peer had no receive posted, for longer than we were told to retry.
    RnrRetryExceeded,
    /// The queue pair went into error before this work request was carried out.
    Flushed,
    /// A code of the device that has no name here.
    Vendor(u32),
}

/// Which kind of work request a completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A SEND of ours.
    #[default]
    Send,
    /// A WRITE of ours, with or without immediate.
    Write,
    /// A READ of ours.
    Read,
    /// A compare-and-swap of ours.
    CompareAndSwap,
    /// A fetch-and-add of ours.
    FetchAdd,
    /// A flush of ours.
    Flush,
    /// A receive, consumed by a peer's SEND (or flushed).
    Recv,
    /// A receive, consumed by a peer's WRITE_WITH_IMM.
    RecvWriteWithImm,
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramSource {
    /// The sending queue pair.
    pub qp: QpNumber,
    /// The sender's global identifier, as its route header gives it.
    pub gid: [u8; 16],
}

/// One polled completion. The default value is a placeholder for the array given to
/// [`CompletionQueue::poll`](crate::CompletionQueue::poll).
#[derive(Debug)]
pub struct WorkCompletion {
    /// The id given to the work request.
    pub id: u64,
    /// The queue pair it was posted on; for a receive of a shared queue, the one it arrived on.
    pub qp: QpNumber,
    /// How it ended. On anything but success only `id`, `qp` and `buffer` mean something.
    pub status: Status,
    /// Which kind of work it was.
    pub opcode: CompletionOpcode,
    /// Bytes moved. On a UD receive this counts the 40 bytes of the route header too.
    pub byte_len: u32,
    /// The immediate, in host order.
    pub imm: Option<u32>,
    /// The sender of a datagram.
    pub source: Option<DatagramSource>,
    /// The posted receive buffer, given back; its length is `byte_len` after a SEND.
    pub buffer: Option<Buffer>,
    pub(crate) payload_len: u8,
    pub(crate) payload: [u64; COMPLETION_PAYLOAD_BYTES / 8],
}

impl WorkCompletion {
    /// The message's bytes where the completion itself carried them: a private copy, which no peer can
    /// change any more. `None` where the message is longer than
    /// [`completion_payload`](crate::Capabilities::completion_payload), a datagram, or where the device
    /// hides it: then read the memory it went to.
    #[inline]
    pub fn payload(&self) -> Option<&[u8]> {
        let bytes: &[u8; COMPLETION_PAYLOAD_BYTES] = zerocopy::transmute_ref!(&self.payload);
        bytes.get(..usize::from(self.payload_len))
    }
}

impl Default for WorkCompletion {
    fn default() -> Self {
        WorkCompletion {
            id: 0,
            qp: QpNumber(0),
            status: Status::Success,
            opcode: CompletionOpcode::Send,
            byte_len: 0,
            imm: None,
            source: None,
            buffer: None,
            payload_len: u8::MAX,
            payload: [0; COMPLETION_PAYLOAD_BYTES / 8],
        }
    }
}
