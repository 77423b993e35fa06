//! What a device can do: asked by whoever builds on it, never assumed.

use crate::QpType;

/// One kind of work that a queue pair may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Bytes into a receive that the peer posted.
    Send,
    /// The same, with 32 bits of immediate data.
    SendWithImm,
    /// Bytes into the peer's memory.
    Write,
    /// The same, and one of the peer's receives completes with the immediate.
    WriteWithImm,
    /// Bytes from the peer's memory.
    Read,
    /// 64-bit compare-and-swap in the peer's memory.
    CompareAndSwap,
    /// 64-bit fetch-and-add in the peer's memory.
    FetchAdd,
    /// Makes the peer's persistent memory durable.
    Flush,
}

impl Operation {
    /// Every operation, in a fixed order.
    pub const ALL: [Operation; 8] = [
        Operation::Send,
        Operation::SendWithImm,
        Operation::Write,
        Operation::WriteWithImm,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAdd,
        Operation::Flush,
    ];
}

/// In which order the bytes of one WRITE become visible in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteOrder {
    /// Lower addresses first; a reader that sees the last aligned word sees the rest.
    LeftToRight,
    /// Any order: only a completion at the target says that all have landed.
    Unordered,
}

/// What a successful completion at the initiator says about the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Visibility {
    /// The target's CPUs see the data.
    CompletionMeansVisible,
    /// The target's NIC has the data; its CPUs may not see them yet.
    CompletionMeansDelivered,
}

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Bytes that a work request may carry in itself.
    pub max_inline: usize,
    /// Scatter-gather elements of one work request.
    pub max_sge: usize,
    /// Send work requests outstanding on one queue pair.
    pub max_send_wr: usize,
    /// Receive work requests outstanding on one queue pair.
    pub max_recv_wr: usize,
    /// Entries of one completion queue.
    pub max_cqe: usize,
    /// READs and atomics outstanding on one queue pair.
    pub max_rd_atomic: usize,
    /// Payload bytes of one UD message.
    pub mtu: usize,
    /// Bytes of one RC or UC message.
    pub max_message: u64,
    /// The first bytes of a received SEND or WRITE_WITH_IMM that its completion itself may carry; 0
    /// where the device hides them.
    pub completion_payload: usize,
    /// 64-bit atomics are there (see [`Capabilities::supports`] for the queue-pair types).
    pub atomics: bool,
    /// Shared receive queues are there.
    pub srq: bool,
    /// A [flush](crate::WorkRequest::flush) that makes remote data durable is there.
    pub flush: bool,
    /// [Persistent memory](crate::ProtectionDomain::open_persistent) is there.
    pub persistent_memory: bool,
    /// Completion channels are there: a poller may sleep.
    pub wait: bool,
    /// A remote WRITE or atomic can make an event for a sleeper: see [`SharedRegion::watch`](crate::SharedRegion::watch).
    pub write_events: bool,
    /// There is a network between its peers, with queues that many senders may fill. Without one, what a message waits
    /// for is a busy peer.
    pub network: bool,
    /// In which order a WRITE's bytes land.
    pub write_order: WriteOrder,
    /// What a completion says about the target's memory.
    pub visibility: Visibility,
    pub(crate) rc: OperationSet,
    pub(crate) uc: OperationSet,
    pub(crate) ud: OperationSet,
}

impl Capabilities {
    /// Whether a queue pair of type `ty` carries `operation`.
    #[inline]
    pub fn supports(&self, ty: QpType, operation: Operation) -> bool {
        match ty {
            QpType::Rc => self.rc.contains(operation),
            QpType::Uc => self.uc.contains(operation),
            QpType::Ud => self.ud.contains(operation),
        }
    }
}

/// A set of [`Operation`]s, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationSet(u8);

impl OperationSet {
    pub(crate) const fn of(operations: &[Operation]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < operations.len() {
            bits |= 1 << operations[i] as u8;
            i += 1;
        }
        OperationSet(bits)
    }

    #[inline]
    pub(crate) const fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u8) != 0
    }
}
