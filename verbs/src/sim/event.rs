//! The events of a simulation.

/// Identifies a queue pair of the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpId {
    pub(super) number: u32,
    pub(super) node: u16,
}

/// What the responder of a message tells its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An unreliable message has left; the responder is not involved.
    Sent,
    /// This message and all before it are done. READs and atomics have responses of their own.
    Done,
    /// This message is missing.
    OutOfSequence,
    /// There was no receive for this message.
    NotReady,
    /// The key, range or access flags do not allow it.
    AccessError,
    /// It was invalid or too long.
    InvalidRequest,
    /// A target of dynamic connections accepts the initiator.
    Connected,
    /// It does not, or there is no such target.
    NotConnected,
}

/// One event of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The NIC is notified of work requests before number `rung`. The doorbell has so many cache lines; 0 if they have passed.
    Doorbell { qp: QpId, rung: u32, lines: u8 },
    /// A queue pair may send again, or its context has been read.
    Resume { qp: QpId, context_read: bool },
    /// A work request and its bytes are in the NIC.
    Launch { qp: QpId, epoch: u16, psn: u32 },
    /// A message's last byte has reached the other NIC.
    Arrive(u32),
    /// The other NIC executes it.
    Deliver(u32),
    /// One piece of a WRITE lands in memory, or one of a READ is read.
    Chunk { message: u32, chunk: u32 },
    /// All pieces have landed.
    Landed(u32),
    /// An atomic stores the word that it has loaded.
    Swap(u32),
    /// The NIC has the bytes that a READ or an atomic requested.
    Reply(u32),
    /// An answer for message `psn` reaches its sender; `processed`: the sender's NIC has processed it.
    Answer { to: QpId, psn: u32, answer: Answer, processed: bool },
    /// Retries a peer that had no receive.
    Retry(QpId),
    /// A queue pair in error flushes its posted work.
    Flush(QpId),
    /// A peer may have been silent for too long.
    Timer(QpId),
    /// A store of a core takes effect.
    Publish(u32),
    /// An actor's alarm is due.
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
