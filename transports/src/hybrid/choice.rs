//! Which backend carries a connection's calls: measurements in, steps out. Time is an argument, and so is chance.
//!
//! What is compared is the mean time that a call is under way. With a given number of calls at once it is the inverse of their rate
//! (Little's law), and it needs no load that fills the connection.
//!
//! A way is tried by moving to it for some looks. Each way that was no better is tried again after a pause that doubles, so that the part
//! of the calls that is spent on trials falls. A load that has changed has all ways tried again soon, after pauses that double
//! while it goes on changing: a load that changes all the time is not worth more trials than a steady one. A connection without calls tries
//! nothing.
//!
//! A server may advise a way: it sees all its clients, of which each alone may gain nothing by moving. A client follows unless
//! its own calls take far more there.

use farcall_core::time::Instant;

use super::budget::Budget;
use super::noise::{Noise, RunningMean};
use super::pace::{FAR_WORSE, Pace};
use super::trust::{Trust, is_boundless};

/// How long calls are measured before a look.
pub(super) const LOOK_NS: u64 = 500_000;

/// How long they are not, while no way is to be tried; and while the server advises one, for its advice is seen when calls are measured.
const REST_NS: u64 = 3_500_000;
const REST_OF_ADVISED_NS: u64 = 1_000_000;

/// A trial ends after so long, with calls or without.
const LONGEST_TRIAL_NS: u64 = 50_000_000;

/// Calls of a trial hang if none is answered in so long, and in so many times as long as calls took before.
const HANGING_NS: u64 = 2_000_000;
const HANGING: f64 = 20.0;

/// A way that is far worse pauses for so many times as long: another load, which may make it better, has all tried again.
const PAUSES_IF_FAR_WORSE: u64 = 4;

/// The longest pause after a trial that has gained nothing.
const LONGEST_PAUSE_NS: u64 = 60_000_000_000;

/// A way that takes so many times as long need not be tried for longer than what shows anything.
const HOPELESS: f64 = 2.0;

/// An advised way is left again if the first calls there take so much more: what is good for all others need not be for this one.
const HARM: f64 = 3.0;

/// What is measured so soon after such a move is of clients that all move at the same time.
const ALL_MOVE_NS: u64 = 5_000_000;

/// Answers that show whether it is so.
const ANSWERS_IF_HARMED: u64 = 32;
const ANSWERS_IF_NOT: u64 = 200;

/// Time between two moves to which the server's advice leads, at least; and how much later the first may be, so that clients do not move in
/// step.
const BETWEEN_ADVISED_NS: u64 = 5_000_000;
const ADVISED_LATER_NS: u64 = 500_000;

/// The load has changed if calls take so much longer or shorter than when the ways were last compared.
const OTHER_LOAD: f64 = 1.6;

/// How long a load is not looked at for a change after one, at first; and for how many such pauses it must have been steady to be taken for
/// one that seldom changes.
const FIRST_CHANGE_PAUSE_NS: u64 = 5_000_000;
const STEADY_PAUSES: u64 = 4;

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

    pub(super) fn add(&mut self, other: Measured) {
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
    /// Move to this way, for good: as the server advises, or back from where it advised to be.
    Go(usize),
    /// The other lane is in the way of the next step; it is to be left.
    Leave,
    /// The lane that is tried stays; the other is to be left. Mean times per call there, and here.
    Keep { before_ns: f64, now_ns: f64 },
    /// Calls go over the other lane again; the one that was tried is to be left. Mean times per call there, and here, if there were calls.
    Return { before_ns: f64, now_ns: Option<f64> },
}

/// The lanes of a connection besides the one that new calls take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lanes {
    /// None: one may be opened.
    One,
    /// One of this way.
    Two(usize),
}

/// One way, and when it is to be tried.
#[derive(Clone, Copy, Debug)]
struct Way {
    next_trial: Instant,
    pause_ns: u64,
    /// Trials in a row that have shown a gain.
    gains: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many looks have had calls since the last trial.
    Settled { looks: u32 },
    /// A lane is being opened: to try it, or because it is to be taken.
    Opening { way: usize, is_trial: bool },
    /// Calls go over the way that the server advises. What they took before the move, until it is known whether they take far more now.
    Following { before_ns: Option<f64>, since: Instant, measured: Measured },
    /// Calls go over a lane of this way since `begun`, and were last `answered` then.
    Trial { way: usize, begun: Instant, answered: Instant, measured: Measured },
}

/// The choice of one connection.
#[derive(Debug)]
pub(super) struct Choice {
    pace: &'static Pace,
    ways: Vec<Way>,
    /// The way that calls are to take unless the server advises another.
    home: usize,
    /// The way that they take.
    at: usize,
    stage: Stage,
    /// The way that the server advises.
    advised: Option<usize>,
    /// It was no good: it is not followed until it changes.
    is_refused: bool,
    /// The way that was advised before and did no harm, and what calls took there. They take it again while the present advice is refused: home is
    /// what was best before the server advised anything, and with all other clients there, too, it may be far worse.
    advised_before: Option<(usize, f64)>,
    next_advised: Instant,
    trust: Trust,
    /// What trials may cost at present.
    budget: Budget,
    /// The time per call at home.
    mean: RunningMean,
    /// How far looks at home are from it.
    noise: Noise,
    /// The time per call on the advised way, since it is known to do no harm.
    advised_mean: RunningMean,
    /// The time per call at home when the ways were last compared.
    compared_ns: Option<f64>,
    /// The way that was home before, and what calls took there: what seemed better need not stay so.
    left: Option<(usize, f64)>,
    /// The last look was far above the mean.
    has_jumped: bool,
    /// The last look found another load: only further ones tell whether it stays so.
    is_unsure: bool,
    /// From then on a load that has changed counts again.
    next_change: Instant,
    change_pause_ns: u64,
    dice: u64,
}

impl Choice {
    /// A connection that begins on the way `home`. The seed decides when ways are tried: clients with different ones do not move in
    /// step.
    pub(super) fn new(ways: usize, home: usize, seed: u64, pace: &'static Pace) -> Choice {
        let (stage, trust) = (Stage::Settled { looks: 0 }, Trust::new(ways));
        let new = Way { next_trial: Instant::ZERO, pause_ns: pace.first_pause_ns, gains: 0 };
        let (ways, dice) = (vec![new; ways], seed | 1);
        Choice {
            pace,
            ways,
            home,
            at: home,
            stage,
            advised: None,
            is_refused: false,
            advised_before: None,
            next_advised: Instant::ZERO,
            trust,
            budget: pace.budget,
            mean: RunningMean::default(),
            noise: Noise::default(),
            advised_mean: RunningMean::default(),
            compared_ns: None,
            left: None,
            has_jumped: false,
            is_unsure: false,
            next_change: Instant::ZERO,
            change_pause_ns: FIRST_CHANGE_PAUSE_NS,
            dice,
        }
    }

    /// The way that calls take unless another is tried.
    pub(super) fn home(&self) -> usize {
        self.home
    }

    /// How long calls take at home, in the mean.
    pub(super) fn mean_ns(&self) -> Option<f64> {
        self.mean.per_call_ns()
    }

    /// The server advises this way, or none.
    pub(super) fn advise(&mut self, way: Option<usize>, now: Instant) {
        if way == self.advised {
            return;
        }
        let was_followed = self.followed().is_some();
        self.advised = way;
        self.is_refused = way.is_some_and(|way| self.trust.refuses(way, now));
        self.advised_before = self.advised_before.filter(|_| way.is_some());
        let later = now.saturating_add_nanos(self.roll() % ADVISED_LATER_NS);
        self.next_advised = self.next_advised.max(later);
        if way.is_none() && was_followed && self.at == self.home && self.is_settled() {
            self.follow_load_again(now);
        }
    }

    /// The advice that is followed.
    fn followed(&self) -> Option<usize> {
        self.advised.filter(|_| !self.is_refused)
    }

    /// The way that calls are to take.
    fn target(&self) -> usize {
        let before = || self.advised_before.map(|(way, _)| way);
        self.followed().or_else(before).unwrap_or(self.home)
    }

    /// When to look again, although nothing may arrive: a trial is to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Trial { begun, .. } => Some(begun.saturating_add_nanos(LONGEST_TRIAL_NS)),
            _ => None,
        }
    }

    /// No lane is opened or tried, and no advice followed.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Settled { .. })
    }

    /// A way is being tried.
    pub(super) fn is_trying(&self) -> bool {
        matches!(self.stage, Stage::Trial { .. })
    }

    /// Calls take far more than at home.
    pub(super) fn is_far_worse(&self, measured: Measured) -> bool {
        let now_ns = measured.per_call_ns();
        now_ns.zip(self.mean_ns()).is_some_and(|(now_ns, home_ns)| now_ns > FAR_WORSE * home_ns)
    }

    /// No call is under way: none hangs.
    pub(super) fn none_under_way(&mut self, now: Instant) {
        if let Stage::Trial { answered, .. } = &mut self.stage {
            *answered = now;
        }
    }

    /// How long calls need not be measured, if they need not.
    pub(super) fn rest_ns(&self) -> u64 {
        if self.followed().is_some() { REST_OF_ADVISED_NS } else { REST_NS }
    }

    /// How long to measure before the next look.
    pub(super) fn look_ns(&self) -> u64 {
        match self.stage {
            Stage::Trial { .. } => self.pace.trial_look_ns,
            _ => LOOK_NS,
        }
    }

    /// Calls are where they are to be, and no way is to be tried at present: they need not be measured all the time.
    pub(super) fn may_rest(&self, now: Instant) -> bool {
        let is_known = match self.stage {
            Stage::Settled { .. } => {
                !self.is_unsure && !(0..self.ways.len()).any(|way| self.is_due(way, now))
            }
            Stage::Following { before_ns, .. } => before_ns.is_none(),
            Stage::Opening { .. } | Stage::Trial { .. } => false,
        };
        is_known && self.at == self.target()
    }

    /// A way is to be tried. While the server advises one, it is the server that tries: what each client alone finds best need not be
    /// best for all.
    pub(super) fn is_due(&self, way: usize, now: Instant) -> bool {
        let may_try = self.followed().is_none() && self.budget.is_left();
        may_try && way != self.home && self.ways[way].next_trial <= now
    }

    /// Decides what to do, by what was measured of the lane that new calls take.
    pub(super) fn look(&mut self, measured: Measured, lanes: Lanes, now: Instant) -> Step {
        match self.stage {
            // The server tries for all its clients, and none by itself.
            Stage::Trial { way, measured, .. } if self.followed().is_some() => {
                let (before_ns, now_ns) =
                    (self.mean_ns().unwrap_or(f64::MAX), measured.per_call_ns());
                if self.followed() == Some(way) && self.trust.spend(now) {
                    self.follow(self.mean_ns(), now);
                    return Step::Keep { before_ns, now_ns: now_ns.unwrap_or(f64::MAX) };
                }
                self.return_home();
                return Step::Return { before_ns, now_ns };
            }
            Stage::Trial { way, begun, mut answered, measured: mut sum } => {
                if measured.answers > 0 {
                    answered = now;
                }
                if now >= begun.saturating_add_nanos(self.pace.settling_ns) {
                    sum.add(measured);
                }
                self.stage = Stage::Trial { way, begun, answered, measured: sum };
                return self.judge(now);
            }
            Stage::Opening { .. } => {
                if self.at == self.home {
                    self.note(measured, now);
                }
                return Step::Stay;
            }
            Stage::Following { before_ns: Some(before_ns), since, measured: mut sum } => {
                if now >= since.saturating_add_nanos(ALL_MOVE_NS) {
                    sum.add(measured);
                }
                let before_ns = self.see_harm(before_ns, sum, now);
                self.stage = Stage::Following { before_ns, since, measured: sum };
            }
            Stage::Following { before_ns: None, .. } => {
                self.advised_mean.note(measured);
            }
            Stage::Settled { looks } => {
                let next_change = self.next_change;
                let looks = looks + u32::from(self.note(measured, now));
                // The mean is to be that of the new load before a way is compared with it.
                let has_changed = self.pace.in_order && self.next_change != next_change;
                self.stage = Stage::Settled { looks: if has_changed { 0 } else { looks } };
            }
        }
        if self.at != self.target() {
            return self.go_on(lanes, now);
        }
        match self.stage {
            Stage::Settled { looks }
                if looks >= self.pace.looks_between
                    && lanes == Lanes::One
                    && measured.answers > 0 =>
            {
                self.next_trial(now)
            }
            _ => Step::Stay,
        }
    }

    /// Moves to where calls are to be.
    fn go_on(&mut self, lanes: Lanes, now: Instant) -> Step {
        let target = self.target();
        if now < self.next_advised && !is_boundless() {
            return Step::Stay;
        }
        if let Lanes::Two(other) = lanes
            && other != target
        {
            return Step::Leave;
        }
        if target != self.home && !self.trust.spend(now) {
            return Step::Stay;
        }
        self.next_advised = now.saturating_add_nanos(BETWEEN_ADVISED_NS);
        self.stage = Stage::Opening { way: target, is_trial: false };
        Step::Go(target)
    }

    /// Whether the first calls over the way that was advised take far more than those before; gives the latter if that is not known yet.
    fn see_harm(&mut self, before_ns: f64, measured: Measured, now: Instant) -> Option<f64> {
        let is_harmed = measured.per_call_ns().is_some_and(|now_ns| now_ns > HARM * before_ns);
        let is_known =
            measured.answers >= if is_harmed { ANSWERS_IF_HARMED } else { ANSWERS_IF_NOT };
        if is_known && is_harmed && !is_boundless() {
            self.is_refused |= self.advised == Some(self.at);
            self.advised_before = self.advised_before.filter(|(before, _)| *before != self.at);
            self.trust.refuse(self.at, now);
        }
        Some(before_ns).filter(|_| !is_known)
    }

    /// Notes a look at home. Whether there were calls.
    fn note(&mut self, measured: Measured, now: Instant) -> bool {
        let Some(latest) = measured.per_call_ns() else { return false };
        self.budget.earn(now);
        let before = self.mean_ns();
        let weight = self.mean.weight(measured);
        // One look alone may have been held up by the machine. What two in a row are far above is the mean of another load.
        let jumps = weight > 0.5 && before.is_some_and(|before| latest > OTHER_LOAD * before);
        let has_jumped = std::mem::replace(&mut self.has_jumped, jumps);
        match before {
            None => self.noise.restart(latest),
            Some(mean) if self.pace.has_noise && !(jumps && has_jumped) => {
                self.noise.note(latest, mean, weight);
            }
            Some(_) => {}
        }
        if !jumps || has_jumped {
            if jumps {
                self.mean = RunningMean::default();
            }
            self.mean.note(measured);
        }
        let mean = self.mean_ns().unwrap_or(latest);
        if let Some((way, before_ns)) = self.left
            && mean > before_ns / self.pace.gain
        {
            self.left = None;
            self.ways[way].next_trial = now;
        }
        let compared = self.compared_ns;
        let other_load = self.noise.widen(OTHER_LOAD);
        let is_other = |ns: f64| compared.is_some_and(|it| is_apart(ns, it, other_load));
        let counts = now >= self.next_change;
        self.is_unsure = counts && is_other(latest) && weight > 0.5;
        if counts && is_other(mean) {
            self.load_changed(now);
        }
        true
    }

    /// All ways are to be tried soon, unless the load has changed a moment ago. Whether it counts.
    pub(super) fn load_changed(&mut self, now: Instant) -> bool {
        if now < self.next_change || !matches!(self.stage, Stage::Settled { .. }) {
            return false;
        }
        self.compared_ns = self.mean_ns();
        if let Some(mean) = self.mean_ns() {
            self.noise.restart(mean);
        }
        let steady_ns = (now - self.next_change).as_nanos() as u64;
        if steady_ns > STEADY_PAUSES * self.change_pause_ns {
            self.change_pause_ns = FIRST_CHANGE_PAUSE_NS;
        }
        self.next_change = now.saturating_add_nanos(self.change_pause_ns);
        self.change_pause_ns = (self.change_pause_ns * 2).min(LONGEST_PAUSE_NS);
        let new = Way { next_trial: Instant::ZERO, pause_ns: self.pace.first_pause_ns, gains: 0 };
        self.ways.fill(new);
        true
    }

    /// This way is tried next, and the others no earlier than after so long.
    pub(super) fn try_first(&mut self, first: usize, wait_ns: u64, now: Instant) {
        let wait = now.saturating_add_nanos(wait_ns);
        self.ways[first].next_trial = now;
        let others = self.ways.iter_mut().enumerate().filter(|(way, _)| *way != first);
        others.for_each(|(_, way)| way.next_trial = way.next_trial.max(wait));
    }

    fn next_trial(&mut self, now: Instant) -> Step {
        let due = (0..self.ways.len()).filter(|way| self.is_due(*way, now)).count();
        if due == 0 {
            return Step::Stay;
        }
        let chosen = if self.pace.in_order { 0 } else { (self.roll() % due as u64) as usize };
        let mut due = (0..self.ways.len()).filter(|way| self.is_due(*way, now));
        let Some(way) = due.nth(chosen) else { return Step::Stay };
        self.stage = Stage::Opening { way, is_trial: true };
        Step::Try(way)
    }

    /// The lane is open, and calls take it from now on.
    pub(super) fn moved(&mut self, now: Instant) {
        let Stage::Opening { way, is_trial } = self.stage else { return };
        let left = std::mem::replace(&mut self.at, way);
        let measured = Measured::default();
        self.stage = if is_trial {
            Stage::Trial { way, begun: now, answered: now, measured }
        } else if way == self.home {
            return self.follow_load_again(now);
        } else {
            let before_ns = self.come_to_advised(way, left);
            return self.follow(before_ns, now);
        };
    }

    /// Calls come to an advised way. What they took before, or when they were there.
    fn come_to_advised(&mut self, way: usize, left: usize) -> Option<f64> {
        if left == self.home {
            self.advised_before = None;
            return self.mean_ns();
        }
        if let Some((_, then_ns)) = self.advised_before.filter(|(before, _)| *before == way) {
            return Some(then_ns);
        }
        // Known once the way is known to do no harm.
        let left_ns = self.advised_mean.per_call_ns();
        self.advised_before = left_ns.map(|ns| (left, ns)).or(self.advised_before);
        left_ns
    }

    /// Calls are at home, and no advice is followed any more. The server has followed the load until now, and this choice has not.
    fn follow_load_again(&mut self, now: Instant) {
        self.stage = Stage::Settled { looks: 0 };
        self.load_changed(now);
        (self.mean, self.compared_ns) = (RunningMean::default(), None);
    }

    /// Calls have taken the advised way since `now`, and `before_ns` at home.
    fn follow(&mut self, before_ns: Option<f64>, now: Instant) {
        self.stage = Stage::Following { before_ns, since: now, measured: Measured::default() };
        self.advised_mean = RunningMean::default();
    }

    /// No lane of that way could be opened.
    pub(super) fn not_opened(&mut self, now: Instant) {
        let Stage::Opening { way, is_trial } = self.stage else { return };
        self.is_refused |= !is_trial && way != self.home;
        self.advised_before = self.advised_before.filter(|(before, _)| *before != way);
        self.pause(way, now);
        if !is_trial && way == self.home {
            // There is no way back.
            self.home = self.at;
            self.mean = RunningMean::default();
        }
        self.settle();
    }

    /// The way of the lane that is being opened.
    pub(super) fn opening(&self) -> Option<usize> {
        match self.stage {
            Stage::Opening { way, .. } => Some(way),
            _ => None,
        }
    }

    /// The lane that new calls took has ended; they take one of this way now.
    pub(super) fn lost(&mut self, now_on: usize, now: Instant) {
        let lost = std::mem::replace(&mut self.at, now_on);
        self.pause(lost, now);
        self.is_refused |= self.advised == Some(lost);
        self.advised_before = self.advised_before.filter(|(before, _)| *before != lost);
        if self.home != now_on {
            self.mean = RunningMean::default();
        }
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
        let Stage::Trial { way, begun, answered, measured } = self.stage else {
            return Step::Stay;
        };
        let before_ns = self.mean_ns().unwrap_or(f64::MAX);
        let tried_ns = (now - begun).as_nanos() as u64;
        let unanswered_ns = (now - answered).as_nanos() as u64;
        let hangs = unanswered_ns >= HANGING_NS && unanswered_ns as f64 > HANGING * before_ns;
        let is_over = hangs || now >= begun.saturating_add_nanos(LONGEST_TRIAL_NS);
        let per_call_ns = measured.per_call_ns().filter(|_| measured.answers >= self.pace.least);
        let Some(now_ns) = per_call_ns else {
            if !is_over {
                return Step::Stay;
            }
            self.budget.lose(tried_ns, f64::INFINITY);
            self.pause(way, now);
            self.return_home();
            return Step::Return { before_ns, now_ns: None };
        };
        let enough = match now_ns / before_ns {
            ratio if ratio < self.pace.gain => self.pace.better,
            ratio if ratio < self.pace.far_worse_from => self.pace.no_better,
            ratio if ratio < HOPELESS || self.noise.trials() > 1 => self.pace.far_worse,
            _ => self.pace.least,
        };
        if measured.answers < enough && !is_over {
            return Step::Stay;
        }
        self.budget.lose(tried_ns, now_ns / before_ns);
        let has_gained = now_ns < self.pace.gain * self.noise.to_beat(before_ns);
        let gains = if has_gained { self.ways[way].gains + 1 } else { 0 };
        self.ways[way].gains = gains;
        if has_gained && gains < self.noise.trials() {
            self.try_again(way, now);
            self.return_home();
            return Step::Return { before_ns, now_ns: Some(now_ns) };
        }
        if has_gained {
            self.pause(self.home, now);
            let left = (self.home, before_ns);
            self.move_to(way);
            self.left = Some(left);
            let wait = now.saturating_add_nanos(self.pace.after_move_ns);
            self.ways.iter_mut().for_each(|way| way.next_trial = way.next_trial.max(wait));
            self.mean.note(measured);
            self.noise.restart(now_ns);
            self.compared_ns = Some(now_ns);
            return Step::Keep { before_ns, now_ns };
        }
        if now_ns >= FAR_WORSE * before_ns {
            self.ways[way].pause_ns *= PAUSES_IF_FAR_WORSE;
        }
        self.pause(way, now);
        self.compared_ns = self.mean_ns();
        self.return_home();
        Step::Return { before_ns, now_ns: Some(now_ns) }
    }

    fn return_home(&mut self) {
        self.at = self.home;
        self.settle();
    }

    /// The way has gained, which is to be seen again before it counts.
    fn try_again(&mut self, way: usize, now: Instant) {
        let pause_ns = self.pace.first_pause_ns;
        let pause_ns = pause_ns / 2 + self.roll() % pause_ns;
        self.ways[way].next_trial = now.saturating_add_nanos(pause_ns);
    }

    fn move_to(&mut self, way: usize) {
        self.home = way;
        self.mean = RunningMean::default();
        self.left = None;
        self.settle();
    }

    /// Calls stay where they are to be without advice, or where they are because of it.
    fn settle(&mut self) {
        self.stage = match self.at == self.home {
            true => Stage::Settled { looks: 0 },
            false => return self.follow(None, Instant::ZERO),
        };
    }

    /// The way is not tried for a while, each time for longer.
    pub(super) fn pause(&mut self, way: usize, now: Instant) {
        let by_chance = self.roll();
        let trials = u64::from(self.noise.trials());
        let way = &mut self.ways[way];
        let pause_ns = trials * way.pause_ns + by_chance % (way.pause_ns / 2);
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

/// Whether calls take so many times longer or shorter.
fn is_apart(ns: f64, before_ns: f64, factor: f64) -> bool {
    !(1.0 / factor..factor).contains(&(ns / before_ns))
}

#[cfg(test)]
mod tests;
