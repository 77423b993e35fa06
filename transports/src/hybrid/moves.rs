//! What a connection does besides its calls: it looks at what was measured, opens lanes, moves, and leaves lanes.

use farcall_core::error::TransportFailure;
use farcall_core::metrics::MoveEvent;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, LaneReason, ReplySink, Usage};

use super::choice::{Choice, Lanes, Step};
use super::client::{Hybrid, Kept, Other};
use super::lane::Lane;
use super::large::Large;
use super::sizes::{BySize, LARGE_FROM_BYTES, Size};
use super::{Opening, planted};

/// Answers that show whether the load is still the one that it was.
const SAMPLE: u64 = 128;

/// How long the server takes to see whether its advice was good.
const ADVICE_IS_TRIED_NS: u64 = 50_000_000;

impl Hybrid {
    /// There is more to look at than the lanes that new calls take.
    pub(super) fn is_moving(&self) -> bool {
        let large = self.large.as_ref().and_then(|large| large.lane.as_ref());
        let is_over = |lane: &Lane| lane.over.is_some();
        self.other.is_some()
            | self.opening.is_some()
            | is_over(&self.current)
            | large.is_some_and(is_over)
    }

    /// What is to be done besides the calls of the lanes that new ones take.
    #[cold]
    pub(super) fn attend(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let mut progress = Progress::IDLE;
        if let Some(other) = &mut self.other {
            progress = planted::poll_other(&mut other.lane, &mut self.current, now, sink);
        }
        self.end_lost_lanes(now, sink);
        if self.is_told {
            return progress;
        }
        if self.is_to_look(now) {
            self.look(now);
        }
        if let Some(size) = self.opening {
            match self.opener.poll(now) {
                Opening::NotYet(at) => progress.next = progress.next.earlier(at),
                Opening::Done(opened) => {
                    self.opening = None;
                    progress.worked += 1;
                    let usable = opened.map_err(|error| error.to_string());
                    match usable.and_then(|transport| self.check(transport)) {
                        Ok(transport) => self.move_to(size, transport, now),
                        Err(why) => self.not_opened(size, &why, now),
                    }
                }
            }
        }
        progress.next = progress.next.earlier(self.let_go(now));
        let is_apart = self.large.as_ref().is_some_and(Large::is_apart);
        self.has_more_lanes = self.other.is_some() || is_apart;
        self.large_from = if self.measures || is_apart { LARGE_FROM_BYTES } else { usize::MAX };
        progress
    }

    fn choice_of(&mut self, size: Size) -> &mut Choice {
        match (size, &mut self.large) {
            (Size::Large, Some(large)) => &mut large.choice,
            _ => &mut self.choice,
        }
    }

    /// When a trial is to end, although nothing may arrive.
    fn trial_ends(&self) -> PollAt {
        let choices = [Some(&self.choice), self.large.as_ref().map(|large| &large.choice)];
        let ends = choices.into_iter().flatten().filter_map(Choice::deadline);
        ends.fold(PollAt::OnEvent, |first, at| first.earlier(PollAt::At(at)))
    }

    /// Leaves the other lane when it is kept no longer, and ends it when the server has nothing of it. Gives when to look again.
    fn let_go(&mut self, now: Instant) -> PollAt {
        let trial_ends = self.trial_ends();
        let Some(other) = &mut self.other else { return trial_ends };
        if let Kept::Until(until) = other.kept {
            if now < until {
                return PollAt::At(until).earlier(trial_ends);
            }
            other.kept = Kept::No;
        }
        if other.kept != Kept::No {
            return trial_ends;
        }
        match other.lane.may_end(now) {
            Ok(()) => {
                self.other = None;
                trial_ends
            }
            Err(at) => at.earlier(trial_ends),
        }
    }

    /// A lane that has ended fails its requests; the connection ends with its last lane.
    fn end_lost_lanes(&mut self, now: Instant, sink: &mut dyn ReplySink) {
        if let Some(Other { lane, kept, of }) = &self.other
            && let Some(why) = lane.over
        {
            let (is_home, of) = (*kept == Kept::Trial, *of);
            self.tell_lost(lane, why, sink);
            self.other = None;
            if is_home {
                self.choice_of(of).lost_home(now);
            }
        }
        if let Some(Large { lane: Some(lane), .. }) = &self.large
            && let Some(why) = lane.over
        {
            self.tell_lost(lane, why, sink);
            self.leave_other(Size::Large);
            if let Some(large) = &mut self.large {
                large.lost(self.current.way, now);
            }
        }
        let Some(why) = self.current.over else { return };
        let large = self.large.as_mut().and_then(|large| large.lane.take());
        let next = self.other.take().map(|other| other.lane);
        // With three lanes, one more is left to end.
        let (next, left) = if large.is_some() { (large, next) } else { (next, None) };
        match next {
            Some(lane) => {
                let lost = std::mem::replace(&mut self.current, lane);
                self.tell_lost(&lost, why, sink);
                self.choice.lost(self.current.way, now);
                self.other = left.map(|lane| Other { lane, kept: Kept::No, of: Size::Small });
                self.large = None;
            }
            None if !self.is_told => {
                self.is_told = true;
                sink.closed(why);
            }
            None => {}
        }
    }

    fn tell_lost(&self, lane: &Lane, why: TransportFailure, sink: &mut dyn ReplySink) {
        tracing::info!(way = self.opener.ways().name(lane.way), %why, "a lane has ended");
        self.counts.count(MoveEvent::LaneLost);
        sink.lane_lost(lane.slots(), why);
    }

    fn look(&mut self, now: Instant) {
        if !self.measures {
            (self.measures, self.enough) = (true, SAMPLE);
            self.next_look = now.saturating_add_nanos(self.look_ns());
            self.quiet_until = Instant::ZERO;
            return;
        }
        self.enough = u64::MAX;
        let mut measured = self.current.meter.take_measured();
        if let Some(Large { lane: Some(lane), .. }) = &mut self.large {
            measured.large.add(lane.meter.take_measured().all());
        }
        if measured.all().answers > 0 {
            // It is for small calls where there are both sizes: most calls are small, and it is calls that a server counts.
            let advised = self.opener.ways().advised(self.current.meter.advice);
            self.choice.advise(advised, now);
        }
        if self.usage() != Usage::Awaited {
            self.choice.none_under_way(now);
            self.choice_of(Size::Large).none_under_way(now);
        }
        self.note_sizes(measured);
        let BySize { small, large } = measured;
        let of_current = if self.large.is_some() { small } else { measured.all() };
        if self.may_move(Size::Small) {
            let step = self.choice.look(of_current, self.lanes(Size::Small), now);
            self.take(step, Size::Small, now);
        }
        if self.large.is_some() && self.may_move(Size::Large) {
            let lanes = self.lanes(Size::Large);
            let step = self.choice_of(Size::Large).look(large, lanes, now);
            self.take(step, Size::Large, now);
        }
        let may_rest = self.choice.may_rest(now) && self.choice_of(Size::Large).may_rest(now);
        self.measures = measured.all().answers == 0 || self.is_moving() || !may_rest;
        let pause_ns = if self.measures { self.look_ns() } else { self.choice.rest_ns() };
        self.next_look = now.saturating_add_nanos(pause_ns);
        let is_apart = self.large.as_ref().is_some_and(Large::is_apart);
        let is_quiet = !self.measures && self.current.offset == 0 && !is_apart;
        self.quiet_until = if is_quiet { self.next_look } else { Instant::ZERO };
    }

    /// How long to measure before the next look.
    fn look_ns(&mut self) -> u64 {
        self.choice.look_ns().min(self.choice_of(Size::Large).look_ns())
    }

    /// Large calls have a choice of their own while there are small ones too.
    fn note_sizes(&mut self, measured: BySize) {
        // Looks at a trial are short: one without calls of a size says nothing.
        if self.moving().is_some() {
            return;
        }
        let (are_both, way) = (self.both.note(measured), self.current.way);
        let Some(large) = &mut self.large else {
            if are_both {
                self.large = Some(Large::new(self.opener.ways().len(), way, self.seed));
            }
            return;
        };
        let is_same_way = large.lane.as_ref().is_none_or(|lane| lane.way == way);
        if (is_same_way || !are_both) && self.other.is_none() {
            let lane = large.join(way);
            self.other = lane.map(|lane| Other { lane, kept: Kept::No, of: Size::Large });
            if !are_both {
                self.large = None;
            }
        }
    }

    /// The size whose calls are on trial, or for which a lane is being opened.
    fn moving(&self) -> Option<Size> {
        let is_trial = |other: &&Other| other.kept == Kept::Trial;
        let of_other = self.other.as_ref().filter(is_trial).map(|other| other.of);
        let of_large = self.large.as_ref().filter(|large| large.choice.is_trying());
        self.opening.or(of_other).or(of_large.map(|_| Size::Large))
    }

    /// Calls of this size may be moved: those of the other one are not on trial.
    fn may_move(&self, size: Size) -> bool {
        self.moving().is_none_or(|moving| moving == size)
    }

    /// The way that calls of this size take.
    fn way_of(&self, size: Size) -> usize {
        match (size, &self.large) {
            (Size::Large, Some(Large { lane: Some(lane), .. })) => lane.way,
            _ => self.current.way,
        }
    }

    /// What other lanes there are for calls of this size.
    fn lanes(&self, size: Size) -> Lanes {
        match &self.other {
            None if self.opening.is_none() => Lanes::One,
            Some(other) if other.of == size => Lanes::Two(other.lane.way),
            _ => Lanes::Two(self.way_of(size)),
        }
    }

    /// Does what a choice has come to.
    fn take(&mut self, step: Step, size: Size, now: Instant) {
        let [way, other] = [Some(self.way_of(size)), self.other.as_ref().map(|it| it.lane.way)]
            .map(|way| way.map(|way| self.opener.ways().name(way)));
        match step {
            Step::Stay => {}
            Step::Try(to) if size == Size::Large && to == self.current.way => self.try_current(now),
            Step::Try(to) => self.open(to, LaneReason::Trial, size),
            Step::Go(to) => {
                tracing::debug!(
                    from = way,
                    to = self.opener.ways().name(to),
                    "moves as the server advises"
                );
                if self.lanes(size) == Lanes::Two(to) {
                    self.swap(size);
                    self.choice_of(size).moved(now);
                    self.counts.count(MoveEvent::Moved);
                } else {
                    self.open(to, LaneReason::Advised, size);
                }
            }
            Step::Leave => self.leave_other(size),
            Step::Keep { before_ns, now_ns } => {
                tracing::debug!(
                    ?size,
                    from = other,
                    to = way,
                    before_ns,
                    now_ns,
                    "moved: calls take less time"
                );
                self.counts.count(MoveEvent::Moved);
                self.leave_other(size);
            }
            Step::Return { before_ns, now_ns } => {
                tracing::debug!(
                    ?size,
                    from = way,
                    to = other,
                    before_ns,
                    now_ns,
                    "moved back: calls took no less time"
                );
                self.counts.count(MoveEvent::Returned);
                self.swap(size);
            }
        }
    }

    fn open(&mut self, way: usize, why: LaneReason, size: Size) {
        self.opener.open(way, why);
        self.opening = Some(size);
    }

    fn not_opened(&mut self, size: Size, why: &str, now: Instant) {
        let to = self.choice_of(size).opening();
        let to = to.map(|way| self.opener.ways().name(way));
        tracing::info!(to, why, "no further lane");
        self.counts.count(MoveEvent::NotOpened);
        self.choice_of(size).not_opened(now);
    }

    /// Large calls, which have a lane of their own, are tried on the lane of the small ones.
    fn try_current(&mut self, now: Instant) {
        let Some(large) = &mut self.large else { return };
        large.choice.moved(now);
        let lane = large.lane.take();
        self.other = lane.map(|lane| Other { lane, kept: Kept::Trial, of: Size::Large });
        self.counts.count(MoveEvent::Tried);
    }

    /// New calls of this size take the other lane again, and the one that they took is left.
    fn swap(&mut self, size: Size) {
        match (size, &mut self.large) {
            (Size::Large, Some(large)) => {
                let back = self.other.take_if(|other| other.of == size).map(|other| other.lane);
                if let Some(lane) = std::mem::replace(&mut large.lane, back) {
                    self.other = Some(Other { lane, kept: Kept::No, of: size });
                }
            }
            _ => {
                if let Some(other) = &mut self.other {
                    std::mem::swap(&mut self.current, &mut other.lane);
                    self.current.meter.take_measured();
                    planted::lose_credit(&mut self.current);
                }
            }
        }
        self.leave_other(size);
    }

    fn leave_other(&mut self, size: Size) {
        let of_size = self.other.iter_mut().filter(|other| other.of == size);
        of_size.for_each(|other| other.kept = Kept::No);
    }

    /// Whether a lane can carry what the connection carries.
    fn check(
        &self,
        transport: Box<dyn ClientTransport>,
    ) -> Result<Box<dyn ClientTransport>, String> {
        let limits = transport.limits();
        match limits.max_message >= self.limits.max_message && transport.slots() <= self.stride {
            true => Ok(transport),
            false => Err(format!("it carries less than the connection: {limits:?}")),
        }
    }

    /// From now on new calls of this size take this lane.
    fn move_to(&mut self, size: Size, transport: Box<dyn ClientTransport>, now: Instant) {
        let Some(way) = self.choice_of(size).opening() else { return };
        let from = self.way_of(size);
        let mut lane = Lane::new(transport, way, self.free_offset());
        planted::lose_credit(&mut lane);
        self.choice_of(size).moved(now);
        let kept = match self.choice_of(size).deadline() {
            Some(_) => Kept::Trial,
            None => Kept::Until(now.saturating_add_nanos(ADVICE_IS_TRIED_NS)),
        };
        let [from, to] = [from, way].map(|way| self.opener.ways().name(way));
        let is_trial = kept == Kept::Trial;
        tracing::debug!(?size, from, to, is_trial, "new calls take another backend");
        self.counts.count(if is_trial { MoveEvent::Tried } else { MoveEvent::Moved });
        let left = match (size, &mut self.large) {
            (Size::Large, Some(large)) => large.lane.replace(lane),
            _ => Some(std::mem::replace(&mut self.current, lane)),
        };
        if let Some(lane) = left {
            self.other = Some(Other { lane, kept, of: size });
        }
        self.measures = true;
        self.next_look = now.saturating_add_nanos(self.look_ns());
    }
}
