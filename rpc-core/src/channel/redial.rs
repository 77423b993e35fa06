//! When to dial again, and what a failed attempt means for the calls that wait. Pure: time is an argument.

use super::options::ReconnectPolicy;
use crate::error::{ConnectError, GoneReason, RpcError};
use crate::time::Instant;
use std::sync::Arc;

/// The attempts since a connection was lost.
pub(super) struct Redial {
    policy: ReconnectPolicy,
    failures: u32,
    next_attempt: Instant,
    /// When the first call began to wait for this round of attempts.
    waiting_since: Option<Instant>,
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Dial.
    Dial,
    /// Wait until then; calls wait too.
    Wait(Instant),
    /// End the calls that wait: they have waited long enough.
    GiveUp,
}

impl Redial {
    pub(super) fn new(policy: ReconnectPolicy) -> Self {
        Redial { policy, failures: 0, next_attempt: Instant::ZERO, waiting_since: None }
    }

    /// What to do when calls wait for a connection and none is being dialled.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        let since = *self.waiting_since.get_or_insert(now);
        let give_up = since + self.policy.give_up_after;
        if now >= give_up {
            self.waiting_since = None;
            Step::GiveUp
        } else if now >= self.next_attempt {
            Step::Dial
        } else {
            Step::Wait(self.next_attempt.min(give_up))
        }
    }

    /// No call waits any more.
    pub(super) fn stop_waiting(&mut self) {
        self.waiting_since = None;
    }

    /// No attempt has failed since the connection was lost.
    pub(super) fn is_first(&self) -> bool {
        self.failures == 0
    }

    /// An attempt has failed. Returns the error that ends the waiting calls if another attempt would not help; otherwise why there is no
    /// connection.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        error: Arc<ConnectError>,
    ) -> Result<GoneReason, RpcError> {
        let doublings = self.failures.min(20);
        let pause = self.policy.first_pause.saturating_mul(1 << doublings);
        self.failures = self.failures.saturating_add(1);
        self.next_attempt = now + pause.min(self.policy.longest_pause);
        match RpcError::not_connected(error) {
            RpcError::PeerGone { why, .. } => Ok(why),
            lasting => {
                self.waiting_since = None;
                Err(lasting)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn no_server() -> Arc<ConnectError> {
        Arc::new(ConnectError::NoServer { address: "shm://kv".into(), hint: String::new() })
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = ReconnectPolicy::default()
            .pauses(Duration::from_millis(10), Duration::from_millis(35))
            .give_up_after(Duration::from_secs(9));
        let mut redial = Redial::new(pauses);
        assert_eq!(redial.step(at_ms(0)), Step::Dial);
        for (now, next) in [(0, 10), (10, 30), (30, 65), (65, 100)] {
            let why = redial.failed(at_ms(now), no_server());
            assert_eq!(why, Ok(GoneReason::Dial(no_server())));
            assert_eq!(redial.step(at_ms(now)), Step::Wait(at_ms(next)));
            assert_eq!(redial.step(at_ms(next)), Step::Dial);
        }
    }

    #[test]
    fn calls_wait_no_longer_than_the_bound_and_later_ones_wait_again() {
        let mut redial =
            Redial::new(ReconnectPolicy::default().give_up_after(Duration::from_millis(50)));
        assert_eq!(redial.step(at_ms(0)), Step::Dial);
        assert!(redial.is_first());
        redial.failed(at_ms(0), no_server()).expect("it is tried again");
        assert!(!redial.is_first());
        assert_eq!(redial.step(at_ms(50)), Step::GiveUp);
        assert_eq!(redial.step(at_ms(1000)), Step::Dial);
    }

    #[test]
    fn a_refusal_ends_the_calls_at_once() {
        let mut redial = Redial::new(ReconnectPolicy::default());
        let refused = ConnectError::Refused { address: "shm://kv".into(), reason: "full".into() };
        let refused = Arc::new(refused);
        let error = redial.failed(at_ms(0), Arc::clone(&refused));
        assert_eq!(error, Err(RpcError::Refused { why: refused }));
    }
}
