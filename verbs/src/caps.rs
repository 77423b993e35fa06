//! Device capabilities, which users query instead of assuming them.

use crate::QpType;

/// One kind of work request that a queue pair may support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Sends bytes to a receive that the peer posted.
    Send,
    /// A SEND with 32 bits of immediate data.
    SendWithImm,
    /// Writes bytes into the peer's memory.
    Write,
    /// A WRITE that also completes one of the peer's receives with an immediate.
    WriteWithImm,
    /// Reads bytes from the peer's memory.
    Read,
    /// 64-bit compare-and-swap in the peer's memory.
    CompareAndSwap,
    /// 64-bit fetch-and-add in the peer's memory.
    FetchAdd,
    /// Makes the peer's persistent memory durable.
    Flush,
    /// Binds a memory window of this side to a part of a region.
    BindWindow,
    /// Invalidates the key of a memory window of this side.
    InvalidateWindow,
}

impl Operation {
    /// Every operation, in a fixed order.
    pub const ALL: [Operation; 10] = [
        Operation::Send,
        Operation::SendWithImm,
        Operation::Write,
        Operation::WriteWithImm,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAdd,
        Operation::Flush,
        Operation::BindWindow,
        Operation::InvalidateWindow,
    ];
}

/// The order in which the bytes of one WRITE become visible in the peer's memory.
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

/// The capabilities of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The most bytes that a work request may carry inline.
    pub max_inline: usize,
    /// The most scatter-gather elements of one work request.
    pub max_sge: usize,
    /// The most send work requests outstanding on one queue pair.
    pub max_send_wr: usize,
    /// The most receive work requests outstanding on one queue pair.
    pub max_recv_wr: usize,
    /// The most entries of one completion queue.
    pub max_cqe: usize,
    /// The most READs and atomics outstanding on one queue pair.
    pub max_rd_atomic: usize,
    /// The most payload bytes of one UD message.
    pub mtu: usize,
    /// The most bytes of one RC or UC message.
    pub max_message: u64,
    /// How many of the first bytes of a received SEND or WRITE_WITH_IMM its completion may carry; 0 if
    /// completions carry none.
    pub completion_payload: usize,
    /// Supports 64-bit atomics (see [`Capabilities::supports`] for the queue-pair types).
    pub atomics: bool,
    /// Peers' atomics are atomic with respect to this side's CPU too (`IBV_ATOMIC_GLOB`). Otherwise they are so with each other only, and what
    /// the CPU does to a word at the same time may be lost: let one side alone change it.
    pub atomics_include_cpu: bool,
    /// Supports shared receive queues.
    pub srq: bool,
    /// A shared receive queue may serve queue pairs of other protection domains than its own, as the InfiniBand specification
    /// has it. Otherwise their messages fail.
    pub srq_of_other_domain: bool,
    /// Supports [flushes](crate::WorkRequest::flush) that make remote data durable.
    pub flush: bool,
    /// The most [memory windows](crate::MemoryWindow); 0 if the device has none.
    pub max_mw: usize,
    /// A memory window gives access to its own bytes only, as the InfiniBand specification has it. Otherwise its key reaches
    /// every byte of its region.
    pub window_bounds: bool,
    /// A READ of at most [`mtu`](Self::mtu) bytes reads of each line of 64 bytes the first word no later than the rest. Soft-RoCE copies by whatever
    /// routine the kernel has for the CPU, whose order is its own.
    pub reads_first_word_first: bool,
    /// When the invalidation of a memory window completes, no WRITE that was let through before is still landing, as the
    /// InfiniBand specification has it. Otherwise one packet may be.
    pub invalidation_waits: bool,
    /// Supports [persistent memory](crate::ProtectionDomain::open_persistent).
    pub persistent_memory: bool,
    /// Supports completion channels, on which a poller can sleep.
    pub wait: bool,
    /// A remote WRITE or atomic can make an event for a sleeper: see [`SharedRegion::watch`](crate::SharedRegion::watch).
    pub write_events: bool,
    /// One queue pair can reach any number of targets, each connected on the fly: see
    /// [`QueuePair::connect_dynamically`](crate::QueuePair::connect_dynamically).
    pub dynamic_connections: bool,
    /// Peers are connected by a network whose queues many senders may fill. Without one, a message is only
    /// delayed by a busy peer.
    pub network: bool,
    /// The order in which a WRITE's bytes land.
    pub write_order: WriteOrder,
    /// What a completion says about the target's memory.
    pub visibility: Visibility,
    pub(crate) rc: OperationSet,
    pub(crate) uc: OperationSet,
    pub(crate) ud: OperationSet,
}

impl Capabilities {
    /// Whether a queue pair of type `ty` supports `operation`.
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
pub(crate) struct OperationSet(u16);

impl OperationSet {
    pub(crate) const fn of(operations: &[Operation]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < operations.len() {
            bits |= 1 << operations[i] as u16;
            i += 1;
        }
        OperationSet(bits)
    }

    /// These too.
    #[cfg(feature = "ibverbs")]
    pub(crate) const fn with(self, operations: &[Operation]) -> Self {
        OperationSet(self.0 | OperationSet::of(operations).0)
    }

    #[inline]
    pub(crate) const fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u16) != 0
    }
}
