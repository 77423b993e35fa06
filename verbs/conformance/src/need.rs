//! What a case needs of the device and of the fixture: known before it runs.

use farcall_verbs::{Capabilities, Operation, QpType, WriteOrder};

/// What a device and a fixture offer to a case.
#[derive(Debug, Clone)]
pub struct Offer {
    /// What the device can do.
    pub device: Capabilities,
    /// The initiator can kill the target.
    pub kill: bool,
    /// The initiator can stop the target, and let it go on.
    pub stop: bool,
    /// Each end can open its device again.
    pub reopen: bool,
    /// What each end holds of the system or of the NIC can be counted.
    pub usage: bool,
    /// Each end has a thread of its own, which may sleep in the device.
    pub threads: bool,
}

/// One thing that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The operation on that type of queue pair.
    Carries(QpType, Operation),
    /// 64-bit atomics.
    Atomics,
    /// Shared receive queues.
    SharedReceiveQueues,
    /// Shared receive queues that serve queue pairs of other protection domains.
    SharedReceivesOfOtherDomains,
    /// Completion events.
    Events,
    /// Events of WRITEs into a watched region.
    WriteEvents,
    /// WRITEs that land left to right.
    OrderedWrites,
    /// Memory windows.
    MemoryWindows,
    /// Memory windows that give access to their own bytes only.
    WindowBounds,
    /// READs that read the first word of each line no later than the rest.
    LinesFirstWordFirst,
    /// A device without memory windows.
    NoMemoryWindows,
    /// Flushes.
    Flush,
    /// Persistent memory.
    PersistentMemory,
    /// A device without flushes or without persistent memory.
    NoPersistence,
    /// A target that can be killed.
    Kill,
    /// A target that can be stopped.
    Stop,
    /// A device that can be opened again.
    Reopen,
    /// What an end holds can be counted.
    Usage,
    /// Threads of the ends' own.
    Threads,
}

impl Need {
    /// Why a case with this need does not apply, if it does not.
    pub fn missing(self, offer: &Offer) -> Option<String> {
        let caps = &offer.device;
        let (met, reason) = match self {
            Need::Carries(ty, operation) => {
                let reason = format!("{ty:?} does not carry {operation:?}");
                return (!caps.supports(ty, operation)).then_some(reason);
            }
            Need::Atomics => {
                let supported = caps.atomics && caps.supports(QpType::Rc, Operation::FetchAdd);
                (supported, "no atomics")
            }
            Need::SharedReceiveQueues => (caps.srq, "no shared receive queues"),
            Need::SharedReceivesOfOtherDomains => (
                caps.srq && caps.srq_of_other_domain,
                "shared receives are for queue pairs of their own domain only",
            ),
            Need::Events => (caps.wait, "no completion events"),
            Need::WriteEvents => (caps.write_events, "a WRITE makes no event"),
            Need::OrderedWrites => {
                (caps.write_order == WriteOrder::LeftToRight, "WRITEs land in any order")
            }
            Need::MemoryWindows => (caps.max_mw > 0, "no memory windows"),
            Need::LinesFirstWordFirst => {
                (caps.reads_first_word_first, "READs read the words of a line in any order")
            }
            Need::WindowBounds => (
                caps.max_mw > 0 && caps.window_bounds,
                "the key of a memory window reaches its whole region",
            ),
            Need::NoMemoryWindows => (caps.max_mw == 0, "the device has memory windows"),
            Need::Flush => (caps.flush, "no flush"),
            Need::PersistentMemory => (caps.persistent_memory, "no persistent memory"),
            Need::NoPersistence => (
                !(caps.flush && caps.persistent_memory),
                "the device has flushes and persistent memory",
            ),
            Need::Kill => (offer.kill, "the target cannot be killed"),
            Need::Stop => (offer.stop, "the target cannot be stopped"),
            Need::Reopen => (offer.reopen, "the device cannot be opened again"),
            Need::Usage => (offer.usage, "what an end holds cannot be counted"),
            Need::Threads => (offer.threads, "both ends are on one thread"),
        };
        (!met).then(|| reason.to_owned())
    }
}
