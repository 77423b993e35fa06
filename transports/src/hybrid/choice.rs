//! Which backend carries a connection's calls: measurements in, steps out. Time is an argument, and so is chance.
//!
//! What is compared is the mean time that a call is under way. With a given number of calls at once it is the inverse of their rate
//! (Little's law), and it needs no load that fills the connection.
//!
//! A way is tried by moving to it for some looks. Each way that was no better is tried again after a pause that doubles, so that the part
//! of the calls that is spent on trials falls. A load that has changed has all ways tried again soon, after pauses that double
//! while it goes on changing: a load that changes all the time is not worth more trials than a steady one. A connection without calls tries
//! nothing.

use farcall_core::time::Instant;

/// Time between two looks.
pub(super) const LOOK_NS: u64 = 500_000;

/// Looks with calls before the first trial, and between two: at least, and how many there may be more by chance, so that clients that
/// began together do not try together.
const LOOKS_BETWEEN: u32 = 4;
const MORE_LOOKS_BETWEEN: u64 = 6;

/// Looks that a trial takes at least, after the first, in which calls have only begun to move.
const LEAST_LOOKS: u32 = 3;

/// Looks that a trial takes at most.
const MOST_LOOKS: u32 = 40;

/// Answers that decide a trial.
const ENOUGH_ANSWERS: u64 = 200;

/// A way that takes so much less time is moved to. Less is within what machines differ by from one moment to the next.
const GAIN: f64 = 0.9;

/// A way that takes so much more is left at the first look that shows it.
const FAR_WORSE: f64 = 1.5;

/// A trial ends after so long, with calls or without.
const LONGEST_TRIAL_NS: u64 = 50_000_000;

/// Calls of a trial hang if none is answered in so many looks, and in so many times as long as calls took before.
const HANGING_LOOKS: u32 = 4;
const HANGING: f64 = 20.0;

/// The pause after a trial that has gained nothing, at first and at most.
const FIRST_PAUSE_NS: u64 = 20_000_000;
const LONGEST_PAUSE_NS: u64 = 60_000_000_000;

/// The load has changed if calls take so much longer or shorter than when the ways were last compared.
const OTHER_LOAD: f64 = 1.6;

/// How long a load is not looked at for a change after one, at first; and for how many such pauses it must have been steady to be taken for
/// one that seldom changes.
const FIRST_CHANGE_PAUSE_NS: u64 = 5_000_000;
const STEADY_PAUSES: u64 = 4;

/// The part of the latest look in the running mean.
const FRESH: f64 = 0.25;

/// What was measured of a lane's calls since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) answers: u64,
    /// Summed over all calls under way.
    pub(super) under_way_ns: u64,
}

impl Measured {
    fn per_call_ns(self) -> Option<f64> {
        (self.answers > 0).then(|| self.under_way_ns as f64 / self.answers as f64)
    }

    fn add(&mut self, other: Measured) {
        self.answers += other.answers;
        self.under_way_ns += other.under_way_ns;
    }
}

/// What a look has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Go on.
    Stay,
    /// Open a lane of this way, and move to it.
    Try(usize),
    /// The lane that is tried stays; the other is to be left. Mean times per call there, and here.
    Keep { before_ns: f64, now_ns: f64 },
    /// Calls go over the other lane again; the one that was tried is to be left. Mean times per call there, and here, if there were calls.
    Return { before_ns: f64, now_ns: Option<f64> },
}

/// One way, and when it is to be tried.
#[derive(Clone, Copy, Debug)]
struct Way {
    next_trial: Instant,
    pause_ns: u64,
}

impl Way {
    /// To be tried at once.
    const NEW: Way = Way { next_trial: Instant::ZERO, pause_ns: FIRST_PAUSE_NS };
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many looks have had calls since the last trial.
    Settled { looks: u32, until: u32 },
    /// A lane is being opened.
    Opening { way: usize },
    /// Calls go over a lane of this way since `begun`. In the last looks, so many of them, calls were under way and none was answered.
    Trial { way: usize, begun: Instant, looks: u32, measured: Measured, unanswered: u32 },
}

/// The choice of one connection.
#[derive(Debug)]
pub(super) struct Choice {
    ways: Vec<Way>,
    home: usize,
    stage: Stage,
    /// The running mean of the time per call at home.
    mean_ns: Option<f64>,
    /// Measured at home since the last answer: calls may take longer than a look.
    unanswered: Measured,
    /// That mean when the ways were last compared.
    compared_ns: Option<f64>,
    /// From then on a load that has changed counts again.
    next_change: Instant,
    change_pause_ns: u64,
    dice: u64,
}

impl Choice {
    /// A connection that begins on the way `home`. The seed decides when ways are tried: clients with different ones do not move in
    /// step.
    pub(super) fn new(ways: usize, home: usize, seed: u64) -> Choice {
        let stage = Stage::Settled { looks: 0, until: 0 };
        let (ways, dice) = (vec![Way::NEW; ways], seed | 1);
        let mut choice = Choice {
            ways,
            home,
            stage,
            mean_ns: None,
            unanswered: Measured::default(),
            compared_ns: None,
            next_change: Instant::ZERO,
            change_pause_ns: FIRST_CHANGE_PAUSE_NS,
            dice,
        };
        choice.settle();
        choice
    }

    /// The way that calls take unless another is tried.
    #[cfg(test)]
    pub(super) fn home(&self) -> usize {
        self.home
    }

    /// When to look again, although nothing may arrive: a trial is to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Trial { begun, .. } => Some(begun.saturating_add_nanos(LONGEST_TRIAL_NS)),
            _ => None,
        }
    }

    /// Decides what to do, by what was measured of the lane that new calls take. A further lane `may_open` now or not.
    pub(super) fn look(&mut self, measured: Measured, may_open: bool, now: Instant) -> Step {
        match self.stage {
            Stage::Trial { way, begun, looks, measured: before, unanswered } => {
                let waits = u32::from(measured.under_way_ns > 0);
                let unanswered = if measured.answers > 0 { 0 } else { unanswered + waits };
                let looks = looks + u32::from(measured.answers > 0);
                // In the first, calls of the other lane may still have been under way.
                let mut sum = before;
                if looks > 1 {
                    sum.add(measured);
                }
                self.stage = Stage::Trial { way, begun, looks, measured: sum, unanswered };
                self.judge(now)
            }
            Stage::Opening { .. } => {
                self.note(measured, now);
                Step::Stay
            }
            Stage::Settled { looks, until } => {
                let looks = looks + u32::from(self.note(measured, now));
                self.stage = Stage::Settled { looks, until };
                if looks < until || !may_open || measured.answers == 0 {
                    return Step::Stay;
                }
                self.next_trial(now)
            }
        }
    }

    /// Notes a look at home. Whether there were calls.
    fn note(&mut self, measured: Measured, now: Instant) -> bool {
        self.unanswered.add(measured);
        let Some(latest) = self.unanswered.per_call_ns() else { return false };
        self.unanswered = Measured::default();
        let mean = self.mean_ns.map_or(latest, |mean| mean + FRESH * (latest - mean));
        self.mean_ns = Some(mean);
        let is_other_load =
            |compared: f64| mean > OTHER_LOAD * compared || mean < compared / OTHER_LOAD;
        if now >= self.next_change && self.compared_ns.is_some_and(is_other_load) {
            self.compared_ns = Some(mean);
            let steady_ns = (now - self.next_change).as_nanos() as u64;
            if steady_ns > STEADY_PAUSES * self.change_pause_ns {
                self.change_pause_ns = FIRST_CHANGE_PAUSE_NS;
            }
            self.next_change = now.saturating_add_nanos(self.change_pause_ns);
            self.change_pause_ns = (self.change_pause_ns * 2).min(LONGEST_PAUSE_NS);
            self.ways.iter_mut().for_each(|way| *way = Way::NEW);
        }
        true
    }

    fn next_trial(&mut self, now: Instant) -> Step {
        let is_due = |way: &usize| *way != self.home && self.ways[*way].next_trial <= now;
        let due: Vec<_> = (0..self.ways.len()).filter(is_due).collect();
        if due.is_empty() {
            return Step::Stay;
        }
        let way = due[(self.roll() % due.len() as u64) as usize];
        self.stage = Stage::Opening { way };
        Step::Try(way)
    }

    /// The lane is open, and calls take it from now on.
    pub(super) fn moved(&mut self, now: Instant) {
        if let Stage::Opening { way } = self.stage {
            let measured = Measured::default();
            self.stage = Stage::Trial { way, begun: now, looks: 0, measured, unanswered: 0 };
        }
    }

    /// No lane of that way could be opened.
    pub(super) fn not_opened(&mut self, now: Instant) {
        if let Stage::Opening { way } = self.stage {
            self.pause(way, now);
            self.settle();
        }
    }

    /// The way of the lane that is being opened.
    pub(super) fn opening(&self) -> Option<usize> {
        match self.stage {
            Stage::Opening { way } => Some(way),
            _ => None,
        }
    }

    /// The lane that new calls took has ended; they take one of this way now.
    pub(super) fn lost(&mut self, now_on: usize, now: Instant) {
        let lost = match self.stage {
            Stage::Trial { way, .. } => way,
            Stage::Opening { .. } | Stage::Settled { .. } => self.home,
        };
        self.pause(lost, now);
        self.mean_ns = self.mean_ns.filter(|_| self.home == now_on);
        self.home = now_on;
        if !matches!(self.stage, Stage::Opening { .. }) {
            self.settle();
        }
    }

    /// The lane to return to has ended: what was tried stays.
    pub(super) fn lost_home(&mut self, now: Instant) {
        if let Stage::Trial { way, .. } = self.stage {
            self.pause(self.home, now);
            self.move_to(way);
        }
    }

    fn judge(&mut self, now: Instant) -> Step {
        let Stage::Trial { way, begun, looks, measured, unanswered } = self.stage else {
            return Step::Stay;
        };
        let before_ns = self.mean_ns.unwrap_or(f64::MAX);
        let unanswered_ns = f64::from(unanswered) * LOOK_NS as f64;
        if unanswered >= HANGING_LOOKS && unanswered_ns > HANGING * before_ns {
            self.pause(way, now);
            self.settle();
            return Step::Return { before_ns, now_ns: None };
        }
        let is_over = now >= begun.saturating_add_nanos(LONGEST_TRIAL_NS);
        let Some(now_ns) = measured.per_call_ns() else {
            if !is_over {
                return Step::Stay;
            }
            if unanswered > 0 {
                self.pause(way, now);
            } else {
                // There was nothing to measure: nothing is known of the way.
                self.ways[way].next_trial = now.saturating_add_nanos(self.ways[way].pause_ns);
            }
            self.settle();
            return Step::Return { before_ns, now_ns: None };
        };
        let is_enough = looks > LEAST_LOOKS && measured.answers >= ENOUGH_ANSWERS;
        let is_far_worse = looks > 2 && now_ns > FAR_WORSE * before_ns;
        if !(is_enough || is_far_worse || looks >= MOST_LOOKS || is_over) {
            return Step::Stay;
        }
        if now_ns < GAIN * before_ns {
            self.pause(self.home, now);
            self.move_to(way);
            self.mean_ns = Some(now_ns);
            self.compared_ns = Some(now_ns);
            return Step::Keep { before_ns, now_ns };
        }
        self.pause(way, now);
        self.compared_ns = self.mean_ns;
        self.settle();
        Step::Return { before_ns, now_ns: Some(now_ns) }
    }

    fn move_to(&mut self, way: usize) {
        self.home = way;
        self.mean_ns = None;
        self.settle();
    }

    fn settle(&mut self) {
        let more = self.roll() % (MORE_LOOKS_BETWEEN + 1);
        self.unanswered = Measured::default();
        self.stage = Stage::Settled { looks: 0, until: LOOKS_BETWEEN + more as u32 };
    }

    /// The way is not tried for a while, each time for longer.
    fn pause(&mut self, way: usize, now: Instant) {
        let by_chance = self.roll();
        let way = &mut self.ways[way];
        let pause_ns = way.pause_ns + by_chance % (way.pause_ns / 2);
        way.next_trial = now.saturating_add_nanos(pause_ns);
        way.pause_ns = (way.pause_ns * 2).min(LONGEST_PAUSE_NS);
    }

    /// The next number of a xorshift generator.
    fn roll(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a connection on these ways does, whose calls take `per_call(way, ms)` ns. Gives the way of each look.
    struct Run {
        choice: Choice,
        now: Instant,
        at: usize,
        /// The part of the looks on another way than home.
        away: u32,
        moves: u32,
    }

    impl Run {
        fn new(ways: usize, seed: u64) -> Run {
            let choice = Choice::new(ways, 0, seed);
            Run { choice, now: Instant::from_nanos(1), at: 0, away: 0, moves: 0 }
        }

        fn look(&mut self, answers: u64, per_call_ns: impl Fn(usize) -> f64) -> Step {
            let under_way_ns = (answers as f64 * per_call_ns(self.at)) as u64;
            self.look_at(Measured { answers, under_way_ns })
        }

        fn look_at(&mut self, measured: Measured) -> Step {
            self.now = self.now.saturating_add_nanos(LOOK_NS);
            let step = self.choice.look(measured, true, self.now);
            match step {
                Step::Stay => {}
                Step::Try(way) => {
                    self.at = way;
                    self.choice.moved(self.now);
                }
                Step::Keep { .. } => self.moves += 1,
                Step::Return { .. } => self.at = self.choice.home(),
            }
            self.away += u32::from(self.at != self.choice.home());
            step
        }

        fn looks(&mut self, looks: u32, per_call_ns: impl Fn(usize) -> f64) {
            for _ in 0..looks {
                self.look(100, &per_call_ns);
            }
        }
    }

    #[test]
    fn calls_move_to_the_quickest_way_and_stay() {
        for seed in 1..50 {
            let mut run = Run::new(4, seed);
            run.looks(400, |way| [2000.0, 3000.0, 900.0, 1200.0][way]);
            assert_eq!(run.choice.home(), 2, "{seed}");
            assert!(run.moves <= 2, "{seed}: {} moves", run.moves);
        }
    }

    #[test]
    fn ways_that_are_no_better_are_tried_less_and_less() {
        for seed in 1..50 {
            let mut run = Run::new(5, seed);
            let within_noise = |way| [1000.0, 2000.0, 970.0, 1010.0, 9000.0][way];
            run.looks(20_000, within_noise);
            assert_eq!((run.choice.home(), run.moves), (0, 0), "{seed}");
            run.away = 0;
            run.looks(20_000, within_noise);
            assert!(run.away < 200, "{seed}: {} of 20,000 looks", run.away);
        }
    }

    #[test]
    fn a_load_that_changes_is_answered_soon() {
        for seed in 1..50 {
            let mut run = Run::new(3, seed);
            run.looks(20_000, |way| [1000.0, 2000.0, 2000.0][way]);
            run.looks(60, |way| [5000.0, 3000.0, 1500.0][way]);
            assert_eq!(run.choice.home(), 2, "{seed}");
            run.looks(20_000, |way| [5000.0, 3000.0, 1500.0][way]);
            run.looks(60, |way| [500.0, 600.0, 900.0][way]);
            assert_eq!(run.choice.home(), 0, "{seed}");
        }
    }

    #[test]
    fn a_load_that_changes_all_the_time_is_tried_no_more_than_a_steady_one() {
        let mut run = Run::new(5, 9);
        for phase in 0..4_000 {
            if phase == 2_000 {
                run.away = 0;
            }
            let load = if phase % 2 == 0 { 1.0 } else { 20.0 };
            run.looks(10, |way| load * [1000.0, 1500.0, 1500.0, 1500.0, 1500.0][way]);
        }
        assert!(run.away < 600, "{} of 20,000 looks", run.away);
    }

    #[test]
    fn a_far_worse_way_is_left_at_once() {
        let mut run = Run::new(2, 7);
        run.looks(40, |way| [1000.0, 5000.0][way]);
        assert!(run.away <= 3 && run.choice.home() == 0, "{}", run.away);
    }

    #[test]
    fn without_calls_nothing_is_tried_and_a_trial_ends() {
        let mut run = Run::new(3, 7);
        for _ in 0..10_000 {
            assert_eq!(run.look(0, |_| 0.0), Step::Stay);
        }
        while run.look(100, |_| 1000.0) == Step::Stay {}
        let deadline = run.choice.deadline().unwrap();
        let ended = (0..).find(|_| run.look(0, |_| 0.0) != Step::Stay).unwrap();
        assert!(run.now >= deadline && ended < 200);
        assert_eq!((run.at, run.choice.deadline()), (0, None));
    }

    #[test]
    fn a_way_on_which_calls_hang_is_left_soon_and_tried_less_and_less() {
        for answers_first in [0, 5] {
            let mut run = Run::new(2, 7);
            let (mut away, mut tried) = (0, 0);
            for _ in 0..20_000 {
                let waits = Measured { answers: 0, under_way_ns: 4 * LOOK_NS };
                let hangs = run.at == 1 && away >= answers_first;
                let step = match hangs {
                    false => run.look(100, |_| 1000.0),
                    true => run.look_at(waits),
                };
                tried += u32::from(matches!(step, Step::Try(_)));
                away = if run.at == 1 { away + 1 } else { 0 };
                assert!(away <= answers_first + HANGING_LOOKS);
            }
            assert_eq!(run.choice.home(), 0);
            assert!((4..=12).contains(&tried), "tried {tried} times in 10 s");
        }
    }

    #[test]
    fn calls_that_take_longer_than_a_look_are_measured_and_do_not_hang() {
        let mut run = Run::new(2, 7);
        // One call at a time, of 5 ms, or of 4 where it takes less: most looks have no answer.
        let look = |run: &mut Run, count: u64| {
            let looks_per_call = if run.at == 0 { 10 } else { 8 };
            let answers = u64::from(count.is_multiple_of(looks_per_call));
            run.look_at(Measured { answers, under_way_ns: LOOK_NS })
        };
        let tried = (1..).find(|count| matches!(look(&mut run, *count), Step::Try(1))).unwrap();
        let mean_ns = run.choice.mean_ns.unwrap();
        assert!((4.9e6..5.1e6).contains(&mean_ns), "{mean_ns}");
        let ends = |step| matches!(step, Step::Keep { .. } | Step::Return { .. });
        let looks = (1..).find(|count| ends(look(&mut run, tried + *count))).unwrap();
        assert!(looks > u64::from(MOST_LOOKS), "{looks}");
        assert_eq!((run.choice.home(), run.moves), (1, 1));
    }

    #[test]
    fn clients_do_not_try_in_step() {
        let first_returns: Vec<_> = (1..20)
            .map(|seed: u64| {
                let mut run = Run::new(3, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                run.looks(300, |_| 1000.0);
                run.choice.ways.iter().map(|way| way.next_trial).collect::<Vec<_>>()
            })
            .collect();
        for (index, ways) in first_returns.iter().enumerate() {
            assert!(!first_returns[..index].contains(ways));
        }
    }

    #[test]
    fn a_way_that_cannot_be_opened_is_tried_again_after_a_pause() {
        let mut choice = Choice::new(2, 0, 3);
        let (mut now, mut tried) = (Instant::ZERO, Vec::new());
        let calls = Measured { answers: 100, under_way_ns: 100_000 };
        for _ in 0..4_000 {
            now = now.saturating_add_nanos(LOOK_NS);
            if choice.look(calls, true, now) == Step::Try(1) {
                tried.push(now);
                choice.not_opened(now);
            }
        }
        assert!((5..9).contains(&tried.len()), "{tried:?}");
        let pauses: Vec<_> = tried.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
    }

    #[test]
    fn a_lane_that_ends_leaves_the_choice_with_the_other() {
        let mut run = Run::new(2, 3);
        while !matches!(run.look(100, |_| 1000.0), Step::Try(_)) {}
        run.choice.lost(0, run.now);
        assert_eq!((run.choice.home(), run.choice.deadline()), (0, None));
        run.at = 0;
        while !matches!(run.look(100, |_| 1000.0), Step::Try(_)) {}
        run.choice.lost_home(run.now);
        assert_eq!((run.choice.home(), run.choice.deadline()), (1, None));
    }
}
