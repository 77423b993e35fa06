//! What can happen.

/// Names a queue pair of the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpId {
    pub(super) number: u32,
    pub(super) node: u16,
}

/// What the responder of a message says to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// No word of the responder: an unreliable message has left.
    Sent,
    /// This message and all before it are done; READs and atomics have responses of their own.
    Done,
    /// This message is missing.
    OutOfSequence,
    /// There was no receive for this message.
    NotReady,
    /// A key, range or right did not allow it.
    AccessError,
    /// It was malformed, or too long.
    InvalidRequest,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The NIC hears of what was posted before the work request of number `rung`.
    Doorbell { qp: QpId, rung: u32 },
    /// It is a queue pair's turn again, and its context has been read.
    Resume { qp: QpId, context_read: bool },
    /// A work request and its bytes are in the NIC.
    Launch { qp: QpId, epoch: u16, psn: u32 },
    /// A message's last byte has come to the other NIC.
    Arrive(u32),
    /// The other NIC carries it out.
    Deliver(u32),
    /// One piece of a WRITE lands in memory.
    Chunk { message: u32, chunk: u32 },
    /// All pieces have.
    Landed(u32),
    /// The NIC has the bytes that a READ or an atomic asked for.
    Reply(u32),
    /// An answer comes back to the sender of message `psn`; its NIC has taken it in.
    Answer { to: QpId, psn: u32, answer: Answer, heard: bool },
    /// A peer that had no receive is tried again.
    TryAgain(QpId),
    /// A queue pair in error gives back what it holds.
    Flush(QpId),
    /// A peer may have been silent for too long.
    Timer(QpId),
    /// The moment may have come that an actor waits for.
    Alarm(u32),
    /// An actor's turn.
    Turn { actor: u32, token: u32 },
    /// A fault that was scheduled.
    Fault(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_small() {
        assert_eq!(size_of::<Event>(), 16);
    }
}
