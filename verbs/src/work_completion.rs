//! Work completions.

use crate::{Buffer, QpNumber};

/// Bytes of the global route header at the front of a UD receive buffer.
pub const GRH_BYTES: usize = 40;

/// The most message bytes in a completion of any device.
pub const COMPLETION_PAYLOAD_BYTES: usize = 48;

/// The result of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Status {
    /// Success.
    #[default]
    Success,
    /// A received message was longer than its buffer.
    LocalLength,
    /// The local memory does not allow the access.
    LocalProtection,
    /// A memory window could not be bound: an earlier binding, of another queue pair, had not been invalidated yet.
    WindowBind,
    /// The peer found the request invalid (a misaligned atomic, or a message that is too long for it).
    RemoteInvalidRequest,
    /// The remote key, range or access flags do not allow it.
    RemoteAccess,
    /// The peer could not execute the request.
    RemoteOperation,
    /// The peer does not answer: it is dead, or its queue pair no longer exists.
    RetryExceeded,
    /// The peer had no receive posted during all retries.
    RnrRetryExceeded,
    /// The queue pair entered the error state before this work request was executed.
    Flushed,
    /// A device-specific code without a name here.
    Vendor(u32),
}

/// The kind of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A SEND.
    #[default]
    Send,
    /// A WRITE, with or without immediate.
    Write,
    /// A READ.
    Read,
    /// A compare-and-swap.
    CompareAndSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// The binding of a memory window.
    BindWindow,
    /// The invalidation of a memory window.
    InvalidateWindow,
    /// A flush.
    Flush,
    /// A receive, consumed by a peer's SEND (or flushed).
    Recv,
    /// A receive, consumed by a peer's WRITE_WITH_IMM.
    RecvWriteWithImm,
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramSource {
    /// The sender's queue pair.
    pub qp: QpNumber,
    /// The global identifier of the sender's device ([`Endpoint::gid`](crate::Endpoint::gid)), as the route header in front of
    /// the datagram gives it. `None` if there is no such header: RDMA devices leave it out within an InfiniBand subnet. RoCE
    /// always has it, and so do `shm` and the simulated rack. Whether a sender can lie is up to the network; on `shm` it
    /// cannot name the device of another process.
    pub gid: Option<[u8; 16]>,
}

/// One polled completion. The default value is a placeholder for the array given to
/// [`CompletionQueue::poll`](crate::CompletionQueue::poll).
#[derive(Debug)]
pub struct WorkCompletion {
    /// The id of the work request.
    pub id: u64,
    /// The queue pair it was posted on; for a shared receive, the one the message arrived on.
    pub qp: QpNumber,
    /// Its result. If it is not success, only `id`, `qp` and `buffer` are valid.
    pub status: Status,
    /// Its kind.
    pub opcode: CompletionOpcode,
    /// Bytes transferred. A UD receive includes the 40 bytes of the route header.
    pub byte_len: u32,
    /// The immediate, in host byte order.
    pub imm: Option<u32>,
    /// The sender of a datagram.
    pub source: Option<DatagramSource>,
    /// The posted receive buffer, returned; after a SEND its length is `byte_len`.
    pub buffer: Option<Buffer>,
    pub(crate) payload_len: u8,
    pub(crate) payload: [u64; COMPLETION_PAYLOAD_BYTES / 8],
}

impl WorkCompletion {
    /// The message's bytes, if the completion carries them: a private copy that no peer can change. `None` for
    /// a datagram, for a message longer than [`completion_payload`](crate::Capabilities::completion_payload),
    /// or if completions of this device carry no messages: then read the memory that the message went to.
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
