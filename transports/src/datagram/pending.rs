//! A client whose session has not begun. It asks the server by datagram what its own datagrams must carry.
//!
//! The server sends that to the address that the handshake named, so only a client that receives there learns it, and
//! nothing is served without it. Question and answer may be lost: the client repeats the question, and the server answers
//! each as the first. The server keeps no state and no timer for that.

use farcall_core::error::{FailureKind, TransportFailure};
use farcall_core::time::Instant;
use farcall_core::transport::{ClientTransport, Message, ReplySink, SlotId};

use super::calls::{Broken, Calls};
use super::client::Client;
use super::client_port::{LockedPort, Received, SessionPort};
use super::port::{Peer, Port};
use super::setup::EndSetup;
use super::wire::{CHALLENGE_BYTES, Id, Kind};
use crate::contract::{Answer, Config, PendingClient, SetupError};

/// The question is repeated after so long, then after twice as long each time, up to a cap. It is some round trips, and a
/// server thread that sleeps has woken up meanwhile.
const REPEAT_NANOS: u64 = 1_000_000;

/// The cap: when nine of ten datagrams are lost, dozens get through in five seconds.
const REPEAT_CAP_NANOS: u64 = 16_000_000;

/// How often the client looks for the answer at first, and later: a quarter of the time that has passed, within these bounds.
const LOOK_NANOS: u64 = 20_000;
const LOOK_CAP_NANOS: u64 = 1_000_000;

/// A client whose session has not begun.
pub(super) struct Pending<P> {
    port: P,
    setup: Vec<u8>,
    config: Config,
    /// Once the server has accepted it by the handshake.
    session: Option<(Calls, Question)>,
}

/// When a client asks what its datagrams must carry.
struct Question {
    began: Instant,
    next_at: Instant,
    /// Until the one after the next.
    pause_nanos: u64,
}

impl<P: SessionPort> Pending<P> {
    pub(super) fn new(mut port: P, config: &Config) -> Pending<P> {
        let session = port.session();
        let setup = port.lock().setup(session);
        Pending { port, setup, config: config.clone(), session: None }
    }

    /// The calls of the session that the server's answer describes.
    fn calls(&mut self, answer: &Answer<'_>) -> Result<Calls, SetupError> {
        let Pending { port, config, .. } = self;
        let session = port.session();
        let theirs = EndSetup::from_bytes(answer.setup)?;
        let (pd, mtu) = {
            let port = port.lock();
            (port.pd.clone(), port.mtu)
        };
        // Other sessions go on meanwhile: the server's address may have to be resolved.
        let peer = theirs.peer(&pd, theirs.epoch, mtu)?;
        Ok(Calls::new(&port.lock(), session, answer.terms, peer, theirs.credits, config))
    }
}

impl<P: SessionPort + 'static> PendingClient for Pending<P> {
    fn setup(&self) -> Vec<u8> {
        self.setup.clone()
    }

    fn confirm(
        &mut self,
        answer: &Answer<'_>,
        now: Instant,
    ) -> Result<Option<Instant>, SetupError> {
        if self.session.is_none() {
            self.session = Some((self.calls(answer)?, Question::new(now)));
        }
        let Pending { port, session: Some((calls, question)), .. } = self else { return Ok(None) };
        let mut port = port.lock();
        let Received { outcome, more, .. } = port.receive(calls, now, &mut NoCalls);
        outcome.map_err(no_session)?;
        if port.port.is_broken() {
            return Err(SetupError::Device("its queue pair is in error".into()));
        }
        if calls.has_epoch() {
            // The server knows now that it may say goodbye. If that is lost, the first request tells it.
            send_challenge(&mut port.port, calls.peer(), Id::OUTSIDE);
            return Ok(None);
        }
        if question.is_due(now) {
            send_challenge(&mut port.port, calls.peer(), Id::NONE);
        }
        Ok(Some(if more { now } else { question.look_at(now) }))
    }

    fn finish(
        mut self: Box<Self>,
        answer: Answer<'_>,
    ) -> Result<Box<dyn ClientTransport>, SetupError> {
        let calls = match self.session.take() {
            Some((calls, _)) => calls,
            None => self.calls(&answer)?,
        };
        Ok(Box::new(Client::new(self.port, calls)))
    }
}

/// As long as the server's answer, which is never longer than what it answers. Without room in the send queue it is lost.
fn send_challenge(port: &mut Port, server: &Peer, id: Id) {
    port.put(server, Kind::Challenge, id, (&[0; CHALLENGE_BYTES], &[]));
    port.post(server);
    port.ring();
}

fn no_session(why: Broken) -> SetupError {
    match why {
        FailureKind::Device(what) => SetupError::Device(what.into()),
        FailureKind::PeerMisbehaved(what) => SetupError::Misbehaved(what),
        _ => SetupError::Misbehaved("it ended the session before that had begun"),
    }
}

impl Question {
    fn new(now: Instant) -> Question {
        Question { began: now, next_at: now, pause_nanos: REPEAT_NANOS }
    }

    /// Whether it is to be asked now.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_at <= now;
        if is_due {
            self.next_at = now.saturating_add_nanos(self.pause_nanos);
            self.pause_nanos = (2 * self.pause_nanos).min(REPEAT_CAP_NANOS);
        }
        is_due
    }

    /// When to look for the answer.
    fn look_at(&self, now: Instant) -> Instant {
        let passed = (now - self.began).as_nanos() as u64;
        let look_at = now.saturating_add_nanos((passed / 4).clamp(LOOK_NANOS, LOOK_CAP_NANOS));
        look_at.min(self.next_at)
    }
}

/// The session has no calls yet: no reply can be one's.
struct NoCalls;

impl ReplySink for NoCalls {
    fn reply(&mut self, _: SlotId, _: Message<'_>) {}
    fn failed(&mut self, _: SlotId, _: TransportFailure) {}
    fn lane_lost(&mut self, _: core::ops::Range<u32>, _: TransportFailure) {
        panic!("it has one lane");
    }

    fn closed(&mut self, _: TransportFailure) {}
}

#[cfg(test)]
mod tests {
    use super::{Instant, Question, REPEAT_CAP_NANOS, REPEAT_NANOS};

    #[test]
    fn a_question_is_repeated_after_ever_longer_pauses() {
        let began = Instant::from_nanos(1_000);
        let mut question = Question::new(began);
        assert!(question.is_due(began), "asked at once");
        let (mut now, mut pause) = (began, REPEAT_NANOS);
        for _ in 0..8 {
            assert!(!question.is_due(now), "no second time in the same instant");
            assert!(!question.is_due(now.saturating_add_nanos(pause - 1)));
            now = now.saturating_add_nanos(pause);
            assert!(question.is_due(now), "{pause} ns have passed");
            pause = (2 * pause).min(REPEAT_CAP_NANOS);
        }
        assert_eq!(pause, REPEAT_CAP_NANOS);
    }
}
