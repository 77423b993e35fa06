//! The client's half: reserve, post, poll.

use std::task::Waker;

use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Armed, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId, Usage,
};

use super::calls::{Broken, Calls};
use super::client_port::{LockedPort, Received, SessionPort};
use super::port::{Peer, Port};
use super::wire::{Id, Kind};

/// When to look again for room in the send queue of a shared port: another thread may have made it.
const ROOM_RETRY_NANOS: u64 = 100_000;

/// A session with one server thread.
#[derive(Debug)]
pub(crate) struct Client<P: SessionPort> {
    calls: Calls,
    port: P,
    ending: Ending,
}

/// Whether and why the session is over, and who was told.
#[derive(Debug, Default)]
struct Ending {
    why: Option<TransportFailure>,
    sink_was_told: bool,
    server_was_told: bool,
}

impl<P: SessionPort> Client<P> {
    pub(crate) fn new(port: P, calls: Calls) -> Client<P> {
        Client { calls, port, ending: Ending::default() }
    }

    fn say_goodbye(&mut self) {
        self.ending.say_goodbye(&mut self.port.lock().port, self.calls.peer());
    }
}

impl<P: SessionPort> ClientTransport for Client<P> {
    fn limits(&self) -> Limits {
        self.calls.limits()
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if self.ending.why.is_some() {
            return Err(ReserveError::Closed);
        }
        self.calls.reserve(len)
    }

    fn release(&mut self, slot: SlotId) {
        self.calls.release(slot);
    }

    #[inline]
    fn post(&mut self, id: SlotId, delivery: Delivery) {
        self.calls.post(id, delivery);
    }

    #[inline]
    fn flush(&mut self) {
        // If another thread has the port, the next poll sends what waits.
        if let Some(mut port) = self.port.try_lock() {
            self.calls.flush(&mut port.port);
        }
    }

    fn abandon(&mut self, id: SlotId) {
        self.calls.abandon(id);
    }

    fn usage(&self) -> Usage {
        self.calls.usage()
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let Client { calls, port, ending } = self;
        let Some(mut port) = port.try_lock() else {
            return Progress { next: PollAt::Now, ..Progress::IDLE };
        };
        if let Some(why) = ending.why {
            ending.close(&mut port.port, calls.peer(), why.kind, sink);
            return Progress::IDLE;
        }
        calls.start_timers(now);
        let Received { outcome, worked, more, scanned } = port.receive(calls, now, sink);
        let mut progress = Progress { worked, next: PollAt::OnEvent, scanned };
        let mut outcome = outcome.and_then(|()| check(&port.port));
        if outcome.is_ok() && calls.need_attention(now) {
            match drive(calls, &mut port.port, now, more) {
                Ok((moved, next)) => (progress.worked, progress.next) = (worked + moved, next),
                Err(broken) => outcome = Err(broken),
            }
            if P::IS_SHARED {
                // What waited for room may have left without an event of this session.
                calls.start_timers(now);
            }
        }
        if let Err(broken) = outcome {
            ending.close(&mut port.port, calls.peer(), broken, sink);
            return progress;
        }
        progress.next = progress.next.earlier(calls.poll_at());
        if P::IS_SHARED && calls.wait_for_room() {
            let again = now.saturating_add_nanos(ROOM_RETRY_NANOS);
            progress.next = progress.next.earlier(PollAt::At(again));
        }
        if more {
            progress.next = PollAt::Now;
        }
        progress
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        let Client { calls, port, ending } = self;
        let Some(mut port) = port.try_lock() else { return Armed::No };
        port.arm(waker, |port| match ending.why.is_some() || port.is_broken() {
            true => !ending.sink_was_told,
            false => calls.can_send(port),
        })
    }

    fn disarm(&mut self) {
        if let Some(mut port) = self.port.try_lock() {
            port.disarm();
        }
    }

    fn close(&mut self, why: Closing) {
        match why {
            Closing::Goodbye => self.say_goodbye(),
            Closing::PeerGone => {
                let gone = TransportFailure::new(FailureKind::PeerGone, true);
                self.ending.why.get_or_insert(gone);
            }
        }
    }
}

impl<P: SessionPort> Drop for Client<P> {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

#[inline]
fn check(port: &Port) -> Result<(), Broken> {
    match port.is_broken() {
        true => Err(FailureKind::Device("its queue pair is in error")),
        false => Ok(()),
    }
}

/// Sends what waited, and again what is due, and moves large messages on. Answers how many steps it took, and when to come
/// back. Nothing is due while there is more that has arrived and was not looked at.
#[cold]
fn drive(
    calls: &mut Calls,
    port: &mut Port,
    now: Instant,
    more: bool,
) -> Result<(u32, PollAt), Broken> {
    if !more {
        calls.queue_due(now)?;
    }
    // What waited before goes before.
    calls.flush(port);
    Ok(calls.move_large(port, now))
}

impl Ending {
    fn say_goodbye(&mut self, port: &mut Port, peer: &Peer) {
        if std::mem::replace(&mut self.server_was_told, true) {
            return;
        }
        self.why.get_or_insert(TransportFailure::new(FailureKind::Closed, true));
        port.put(peer, Kind::Goodbye, Id::NONE, (&[], &[]));
        port.post_last(peer);
        port.ring();
    }

    /// The session is over; the sink is told once.
    #[cold]
    fn close(&mut self, port: &mut Port, peer: &Peer, kind: FailureKind, sink: &mut dyn ReplySink) {
        let why = *self.why.get_or_insert(TransportFailure::new(kind, true));
        if !std::mem::replace(&mut self.sink_was_told, true) {
            tracing::debug!(%why, "session closed");
            if kind == FailureKind::Goodbye {
                // The server waits for it, for a moment.
                self.say_goodbye(port, peer);
            }
            sink.closed(why);
        }
    }
}
