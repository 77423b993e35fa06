//! How far a client trusts its server's advice. A server may be hostile, or hostile clients may have misled it.

use farcall_core::time::Instant;

use crate::planted::{Bug, is_planted};

/// Advised moves that a client makes in close sequence. An honest server tries each backend once after a change of the load, and has its
/// clients move back if it is no better: there are no more than six.
const MOST_MOVES: u32 = 16;

/// After that, one in this time.
const PER_MOVE_NS: u64 = 20_000_000;

/// How long a way that has harmed is not followed again, at first. It doubles each time.
const FIRST_REFUSAL_NS: u64 = 100_000_000;
const LONGEST_REFUSAL_NS: u64 = 3_200_000_000;

/// The advised moves that a client may still make.
#[derive(Debug)]
pub(super) struct Trust {
    moves: u32,
    /// The moves are those of this moment.
    since: Instant,
    refusals: Vec<Refusal>,
}

/// A way, and until when it is not followed.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    until: Instant,
    next_ns: u64,
}

impl Trust {
    /// In advice of so many ways.
    pub(super) fn new(ways: usize) -> Trust {
        let refusals = vec![Refusal { until: Instant::ZERO, next_ns: FIRST_REFUSAL_NS }; ways];
        Trust { moves: MOST_MOVES, since: Instant::ZERO, refusals }
    }

    /// The calls took far longer on this way.
    pub(super) fn refuse(&mut self, way: usize, now: Instant) {
        let refusal = &mut self.refusals[way];
        refusal.until = now.saturating_add_nanos(refusal.next_ns);
        refusal.next_ns = (2 * refusal.next_ns).min(LONGEST_REFUSAL_NS);
    }

    /// This way is not to be followed at present.
    pub(super) fn refuses(&self, way: usize, now: Instant) -> bool {
        now < self.refusals[way].until && !is_boundless()
    }

    /// Takes one of the moves. `false`: none is left at present.
    pub(super) fn spend(&mut self, now: Instant) -> bool {
        let passed_ns = (now - self.since).as_nanos() as u64;
        let earned = u32::try_from(passed_ns / PER_MOVE_NS).unwrap_or(u32::MAX);
        if self.moves.saturating_add(earned) >= MOST_MOVES {
            (self.moves, self.since) = (MOST_MOVES, now);
        } else {
            self.moves += earned;
            self.since = self.since.saturating_add_nanos(u64::from(earned) * PER_MOVE_NS);
        }
        let may_move = self.moves > 0;
        self.moves -= u32::from(may_move);
        may_move || is_boundless()
    }
}

/// [`Bug::BelievedAdvice`]: nothing bounds what the client believes.
pub(super) fn is_boundless() -> bool {
    is_planted(Bug::BelievedAdvice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_bounded_and_come_back_with_time() {
        let (mut trust, mut now) = (Trust::new(1), Instant::ZERO);
        for _ in 0..MOST_MOVES {
            assert!(trust.spend(now));
        }
        assert!(!trust.spend(now));
        now = now.saturating_add_nanos(2 * PER_MOVE_NS + PER_MOVE_NS / 2);
        assert!(trust.spend(now) && trust.spend(now) && !trust.spend(now));
        now = now.saturating_add_nanos(PER_MOVE_NS / 2);
        assert!(trust.spend(now), "the half that was left counts");
        now = now.saturating_add_nanos(1_000 * PER_MOVE_NS);
        for _ in 0..MOST_MOVES {
            assert!(trust.spend(now));
        }
        assert!(!trust.spend(now));
    }

    #[test]
    fn a_way_that_harms_is_refused_for_longer_each_time() {
        let (mut trust, mut now) = (Trust::new(2), Instant::ZERO);
        for longer in [1, 2, 4] {
            trust.refuse(1, now);
            now = now.saturating_add_nanos(longer * FIRST_REFUSAL_NS - 1);
            assert!(trust.refuses(1, now) && !trust.refuses(0, now));
            now = now.saturating_add_nanos(1);
            assert!(!trust.refuses(1, now));
        }
    }
}
