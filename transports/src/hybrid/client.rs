//! The client's end: one transport for those above, and one or two lanes below.

use std::sync::Arc;
use std::task::Waker;

use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::metrics::{MoveCounts, MoveEvent};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Armed, Body, ClientTransport, Closing, Delivery, LaneReason, Limits, ReplySink, SlotId, Usage,
};

use super::choice::{Choice, Lanes, OF_CLIENT, Step};
use super::lane::Lane;
use super::{OpenLane, Opening, planted};
use crate::planted::{Bug, is_planted};

/// A connection that moves among backends.
///
/// A call ends on the lane on which it began: it runs at most once, and no move fails it. During a move there are two lanes, each with a
/// window of its own. The lane that was left ends when the server has nothing of it any more.
pub struct Hybrid {
    /// New calls take it.
    current: Lane,
    other: Option<Other>,
    choice: Choice,
    opener: Box<dyn OpenLane>,
    is_opening: bool,
    /// The calls of the current lane are measured until the next look; otherwise they pass as they are, until it.
    measures: bool,
    /// So many answers end a look before its time, after a rest.
    enough: u64,
    next_look: Instant,
    /// Before then, a poll is that of the current lane: its calls are not measured, its slots have the connection's numbers, and there is no other lane.
    quiet_until: Instant,
    limits: Limits,
    /// More slots than any lane has: the second lane's are numbered from it.
    stride: u32,
    is_told: bool,
    counts: Arc<MoveCounts>,
}

/// The lane that new calls do not take.
struct Other {
    lane: Lane,
    kept: Kept,
}

/// How long the lane that new calls do not take is kept, so that they may take it again. It ends as soon as it can after that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// It is left.
    No,
    /// Until the trial is over.
    Trial,
    /// Until then: the server may take back its advice.
    Until(Instant),
}

/// Answers that show whether the load is still the one that it was.
const SAMPLE: u64 = 128;

/// How long the server takes to see whether its advice was good.
const ADVICE_IS_TRIED_NS: u64 = 50_000_000;

impl Hybrid {
    /// A connection whose first lane is of the way `home`. The seed is one of its own.
    pub fn new(
        first: Box<dyn ClientTransport>,
        home: usize,
        opener: Box<dyn OpenLane>,
        seed: u64,
    ) -> Hybrid {
        let (limits, stride) = (first.limits(), opener.ways().most_slots().max(first.slots()));
        let choice = Choice::new(opener.ways().len(), home, seed, &OF_CLIENT);
        Hybrid {
            current: Lane::new(first, home, 0),
            other: None,
            choice,
            opener,
            is_opening: false,
            measures: true,
            enough: u64::MAX,
            next_look: Instant::ZERO,
            quiet_until: Instant::ZERO,
            limits,
            stride,
            is_told: false,
            counts: Arc::default(),
        }
    }

    /// Counts its moves there.
    pub fn counting(self, counts: Arc<MoveCounts>) -> Hybrid {
        Hybrid { counts, ..self }
    }

    /// The lane that has this slot of the connection.
    #[inline]
    fn lane_of(&mut self, slot: SlotId) -> Option<&mut Lane> {
        if slot.index.wrapping_sub(self.current.offset) < self.stride {
            return Some(&mut self.current);
        }
        self.other_lane()
    }

    /// The lane that new calls do not take.
    #[inline]
    pub(super) fn other_lane(&mut self) -> Option<&mut Lane> {
        self.other.as_mut().map(|other| &mut other.lane)
    }

    /// There is more than one lane to look at.
    fn is_moving(&self) -> bool {
        self.other.is_some() | self.is_opening | self.current.over.is_some()
    }

    /// Polls the current lane, and does what else is to be done.
    #[inline(never)]
    fn poll_all(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if self.is_opening && is_planted(Bug::BlockingOpening) {
            return self.attend(now, sink);
        }
        let progress = self.current.poll(now, sink);
        if !self.is_to_look(now) && !self.is_moving() {
            return progress;
        }
        progress.and(self.attend(now, sink))
    }

    /// The time is over in which calls were to be measured, or were not.
    fn is_to_look(&self, now: Instant) -> bool {
        now >= self.next_look || self.current.meter.answers() >= self.enough
    }

    /// What is to be done beside the calls of the current lane.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
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
        if self.is_opening {
            match self.opener.poll(now) {
                Opening::NotYet(at) => progress.next = progress.next.earlier(at),
                Opening::Done(opened) => {
                    self.is_opening = false;
                    progress.worked += 1;
                    let usable = opened.map_err(|error| error.to_string());
                    match usable.and_then(|transport| self.check(transport)) {
                        Ok(transport) => self.move_to(transport, now),
                        Err(why) => {
                            let to = self.choice.opening().map(|way| self.opener.ways().name(way));
                            tracing::info!(to, %why, "no further lane");
                            self.counts.count(MoveEvent::NotOpened);
                            self.choice.not_opened(now);
                        }
                    }
                }
            }
        }
        progress.next = progress.next.earlier(self.let_go(now));
        progress
    }

    /// Leaves the other lane when it is kept no longer, and ends it when the server has nothing of it. Gives when to look again.
    fn let_go(&mut self, now: Instant) -> PollAt {
        let trial_ends = self.choice.deadline().map_or(PollAt::OnEvent, PollAt::At);
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
        if let Some(Other { lane, kept }) = &self.other
            && let Some(why) = lane.over
        {
            self.say_lost(lane, why);
            sink.lane_lost(lane.slots(), why);
            if *kept == Kept::Trial {
                self.choice.lost_home(now);
            }
            self.other = None;
        }
        let Some(why) = self.current.over else { return };
        match self.other.take() {
            Some(Other { lane, .. }) => {
                let lost = std::mem::replace(&mut self.current, lane);
                self.say_lost(&lost, why);
                sink.lane_lost(lost.slots(), why);
                self.choice.lost(self.current.way, now);
            }
            None if !self.is_told => {
                self.is_told = true;
                sink.closed(why);
            }
            None => {}
        }
    }

    fn say_lost(&self, lane: &Lane, why: TransportFailure) {
        tracing::info!(way = self.opener.ways().name(lane.way), %why, "a lane has ended");
        self.counts.count(MoveEvent::LaneLost);
    }

    fn look(&mut self, now: Instant) {
        if !self.measures {
            (self.measures, self.enough) = (true, SAMPLE);
            self.next_look = now.saturating_add_nanos(self.choice.look_ns());
            self.quiet_until = Instant::ZERO;
            return;
        }
        self.enough = u64::MAX;
        let measured = self.current.meter.take_measured();
        if measured.answers > 0 {
            let advised = self.opener.ways().advised(self.current.meter.advice);
            self.choice.advise(advised, now);
        }
        if self.current.transport.usage() != Usage::Awaited {
            self.choice.none_under_way(now);
        }
        let lanes = match &self.other {
            None if self.is_opening => Lanes::Two(self.current.way),
            None => Lanes::One,
            Some(other) => Lanes::Two(other.lane.way),
        };
        let way = self.opener.ways().name(self.current.way);
        let other = self.other.as_ref().map(|other| self.opener.ways().name(other.lane.way));
        match self.choice.look(measured, lanes, now) {
            Step::Stay => {}
            Step::Try(way) => self.open(way, LaneReason::Trial),
            Step::Go(to) if lanes == Lanes::Two(to) => {
                self.say_advised(way, to);
                self.swap();
                self.choice.moved(now);
                self.counts.count(MoveEvent::Moved);
            }
            Step::Go(to) => {
                self.say_advised(way, to);
                self.open(to, LaneReason::Advised);
            }
            Step::Leave => self.leave_other(),
            Step::Keep { before_ns, now_ns } => {
                tracing::debug!(
                    from = other,
                    to = way,
                    before_ns,
                    now_ns,
                    "moved: calls take less time"
                );
                self.counts.count(MoveEvent::Moved);
                self.leave_other();
            }
            Step::Return { before_ns, now_ns } => {
                tracing::debug!(
                    from = way,
                    to = other,
                    before_ns,
                    now_ns,
                    "moved back: calls took no less time"
                );
                self.counts.count(MoveEvent::Returned);
                self.swap();
            }
        }
        self.measures = measured.answers == 0 || self.is_moving() || !self.choice.may_rest(now);
        let pause_ns = if self.measures { self.choice.look_ns() } else { self.choice.rest_ns() };
        self.next_look = now.saturating_add_nanos(pause_ns);
        let is_quiet = !self.measures && self.current.offset == 0;
        self.quiet_until = if is_quiet { self.next_look } else { Instant::ZERO };
    }

    fn open(&mut self, way: usize, why: LaneReason) {
        self.opener.open(way, why);
        self.is_opening = true;
    }

    /// New calls take the other lane, and the one that they took is left.
    fn swap(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.current, &mut other.lane);
            self.current.meter.take_measured();
            planted::lose_credit(&mut self.current);
        }
        self.leave_other();
    }

    fn leave_other(&mut self) {
        self.other.iter_mut().for_each(|other| other.kept = Kept::No);
    }

    fn say_advised(&self, from: &str, to: usize) {
        tracing::debug!(from, to = self.opener.ways().name(to), "moves as the server advises");
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

    /// From now on new calls take this lane.
    fn move_to(&mut self, transport: Box<dyn ClientTransport>, now: Instant) {
        let Some(way) = self.choice.opening() else { return };
        let offset = if self.current.offset == 0 { self.stride } else { 0 };
        let lane = std::mem::replace(&mut self.current, Lane::new(transport, way, offset));
        planted::lose_credit(&mut self.current);
        self.choice.moved(now);
        let kept = match self.choice.deadline() {
            Some(_) => Kept::Trial,
            None => Kept::Until(now.saturating_add_nanos(ADVICE_IS_TRIED_NS)),
        };
        let [from, to] = [lane.way, way].map(|way| self.opener.ways().name(way));
        let is_trial = kept == Kept::Trial;
        tracing::debug!(from, to, is_trial, "new calls take another backend");
        self.counts.count(if is_trial { MoveEvent::Tried } else { MoveEvent::Moved });
        self.other = Some(Other { lane, kept });
        self.measures = true;
        self.next_look = now.saturating_add_nanos(self.choice.look_ns());
    }
}

impl ClientTransport for Hybrid {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn slots(&self) -> u32 {
        2 * self.stride
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let mut reserved = self.current.transport.reserve(len);
        if let Ok((slot, _)) = &mut reserved {
            slot.index += self.current.offset;
        }
        reserved
    }

    fn release(&mut self, slot: SlotId) {
        if let Some(lane) = self.lane_of(slot) {
            let slot = lane.inner(slot);
            lane.transport.release(slot);
        }
    }

    #[inline]
    fn post(&mut self, slot: SlotId, delivery: Delivery) {
        let measures = self.measures;
        if let Some(lane) = self.lane_of(slot) {
            let slot = lane.inner(slot);
            if measures {
                lane.meter.post(slot);
            }
            lane.transport.post(slot, delivery);
        }
    }

    #[inline]
    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        self.post_again(front, body, delivery);
        let mut slot = self.current.transport.post_parts(front, body, delivery)?;
        if self.measures {
            self.current.meter.post(slot);
        }
        slot.index += self.current.offset;
        Ok(slot)
    }

    #[inline]
    fn flush(&mut self) {
        self.current.transport.flush();
        if let Some(other) = &mut self.other {
            other.lane.transport.flush();
        }
    }

    fn abandon(&mut self, slot: SlotId) {
        if let Some(lane) = self.lane_of(slot) {
            let slot = lane.inner(slot);
            lane.transport.abandon(slot);
        }
    }

    fn usage(&self) -> Usage {
        let other = self.other.as_ref().map(|other| other.lane.transport.usage());
        self.current.transport.usage().max(other.unwrap_or(Usage::Unused))
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if now >= self.quiet_until {
            return self.poll_all(now, sink);
        }
        self.current.transport.poll(now, sink)
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        let armed = self.current.transport.arm(waker);
        let other = match &mut self.other {
            None => Armed::ByWaker,
            // It can be left: the next poll does that.
            Some(Other { lane, kept: Kept::No }) if lane.transport.usage() == Usage::Unused => {
                Armed::No
            }
            Some(Other { lane, .. }) => lane.transport.arm(waker),
        };
        // What is being opened makes an event at the site.
        let opening = if self.is_opening { Armed::AtSite } else { Armed::ByWaker };
        [other, opening].into_iter().fold(armed, |both, one| match (both, one) {
            (Armed::No, _) | (_, Armed::No) => Armed::No,
            (Armed::ByWaker, Armed::ByWaker) => Armed::ByWaker,
            _ => Armed::AtSite,
        })
    }

    fn disarm(&mut self) {
        self.current.transport.disarm();
        if let Some(other) = &mut self.other {
            other.lane.transport.disarm();
        }
    }

    fn close(&mut self, why: Closing) {
        self.current.transport.close(why);
        if let Some(other) = &mut self.other {
            other.lane.transport.close(why);
        }
    }
}
