//! The client's end: one transport for those above, and one or two lanes below.

use std::sync::Arc;
use std::task::Waker;

use farcall_core::error::ReserveError;
use farcall_core::metrics::{MoveCounts, MoveEvent};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Armed, Body, ClientTransport, Closing, Delivery, LaneReason, Limits, ReplySink, SlotId,
};

use super::choice::{Choice, LOOK_NS, Step};
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
    next_look: Instant,
    limits: Limits,
    /// More slots than any lane has: the second lane's are numbered from it.
    stride: u32,
    is_told: bool,
    counts: Arc<MoveCounts>,
}

/// The lane that new calls do not take.
struct Other {
    lane: Lane,
    /// They may take it again, if what is tried is no better. Otherwise it ends as soon as it can.
    is_kept: bool,
}

impl Hybrid {
    /// A connection whose first lane is of the way `home`. No lane has more than `most_slots` slots. The seed is one of its own.
    pub fn new(
        first: Box<dyn ClientTransport>,
        home: usize,
        opener: Box<dyn OpenLane>,
        most_slots: u32,
        seed: u64,
    ) -> Hybrid {
        let (limits, stride) = (first.limits(), most_slots.max(first.slots()));
        let choice = Choice::new(opener.ways().len(), home, seed);
        Hybrid {
            current: Lane::new(first, home, 0),
            other: None,
            choice,
            opener,
            is_opening: false,
            next_look: Instant::ZERO,
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
        if (slot.index >= self.stride) == (self.current.offset() > 0) {
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
    #[inline]
    fn is_moving(&self) -> bool {
        self.other.is_some() | self.is_opening | self.current.requests.over.is_some()
    }

    /// What is to be done beside the calls of the current lane.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let mut progress = Progress::IDLE;
        if let Some(other) = &mut self.other {
            let current = &mut self.current.requests;
            progress = planted::poll_other(&mut other.lane, current, now, sink);
        }
        self.end_lost_lanes(now, sink);
        if self.is_told {
            return progress;
        }
        if now >= self.next_look {
            self.next_look = now.saturating_add_nanos(LOOK_NS);
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
                            let to = self.choice.opening().map(|way| self.opener.ways()[way]);
                            tracing::info!(to, %why, "no further lane");
                            self.counts.count(MoveEvent::NotOpened);
                            self.choice.not_opened(now);
                        }
                    }
                }
            }
        }
        if let Some(Other { lane, is_kept: false }) = &mut self.other {
            match lane.may_end(now) {
                Ok(()) => self.other = None,
                Err(at) => progress.next = progress.next.earlier(at),
            }
        }
        if let Some(at) = self.choice.deadline() {
            progress.next = progress.next.earlier(PollAt::At(at));
        }
        progress
    }

    /// A lane that has ended fails its requests; the connection ends with its last lane.
    fn end_lost_lanes(&mut self, now: Instant, sink: &mut dyn ReplySink) {
        if let Some(Other { lane, is_kept }) = &mut self.other
            && let Some(why) = lane.requests.over
        {
            let way = self.opener.ways()[lane.way];
            tracing::info!(way, %why, "a lane has ended");
            self.counts.count(MoveEvent::LaneLost);
            lane.requests.fail(why, sink);
            if *is_kept {
                self.choice.lost_home(now);
            }
            self.other = None;
        }
        let Some(why) = self.current.requests.over else { return };
        match self.other.take() {
            Some(Other { lane, .. }) => {
                let mut lost = std::mem::replace(&mut self.current, lane);
                let [from, to] = [lost.way, self.current.way].map(|way| self.opener.ways()[way]);
                tracing::info!(from, to, %why, "moved: a lane has ended");
                self.counts.count(MoveEvent::LaneLost);
                lost.requests.fail(why, sink);
                self.choice.lost(self.current.way, now);
            }
            None if !self.is_told => {
                self.is_told = true;
                sink.closed(why);
            }
            None => {}
        }
    }

    fn look(&mut self, now: Instant) {
        let measured = self.current.requests.take_measured();
        let may_open = self.other.is_none() && !self.is_opening;
        let here = self.opener.ways()[self.current.way];
        let other = self.other.as_ref().map(|other| self.opener.ways()[other.lane.way]);
        match self.choice.look(measured, may_open, now) {
            Step::Stay => {}
            Step::Try(way) => {
                self.opener.open(way, LaneReason::Trial);
                self.is_opening = true;
            }
            Step::Keep { before_ns, now_ns } => {
                tracing::debug!(
                    from = other,
                    to = here,
                    before_ns,
                    now_ns,
                    "moved: calls take less time"
                );
                self.counts.count(MoveEvent::Moved);
                self.leave_other();
            }
            Step::Return { before_ns, now_ns } => {
                tracing::debug!(
                    from = here,
                    to = other,
                    before_ns,
                    now_ns,
                    "moved back: calls took no less time"
                );
                self.counts.count(MoveEvent::Returned);
                if let Some(other) = &mut self.other {
                    std::mem::swap(&mut self.current, &mut other.lane);
                    self.current.requests.take_measured();
                    planted::lose_credit(&mut self.current);
                }
                self.leave_other();
            }
        }
    }

    fn leave_other(&mut self) {
        self.other.iter_mut().for_each(|other| other.is_kept = false);
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
        let offset = if self.current.offset() == 0 { self.stride } else { 0 };
        let lane = std::mem::replace(&mut self.current, Lane::new(transport, way, offset));
        planted::lose_credit(&mut self.current);
        let [from, to] = [lane.way, way].map(|way| self.opener.ways()[way]);
        tracing::debug!(from, to, "calls try another backend");
        self.counts.count(MoveEvent::Tried);
        self.other = Some(Other { lane, is_kept: true });
        self.choice.moved(now);
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
        if self.current.requests.over.is_some() {
            return Err(ReserveError::Closed);
        }
        let Lane { transport, requests, .. } = &mut self.current;
        let (slot, bytes) = transport.reserve(len)?;
        Ok((requests.outer(slot), bytes))
    }

    fn release(&mut self, slot: SlotId) {
        if let Some(lane) = self.lane_of(slot) {
            let slot = lane.inner(slot);
            lane.transport.release(slot);
        }
    }

    #[inline]
    fn post(&mut self, slot: SlotId, delivery: Delivery) {
        if let Some(lane) = self.lane_of(slot) {
            let slot = lane.inner(slot);
            lane.requests.begin(slot);
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
        if self.current.requests.over.is_some() {
            return Err(ReserveError::Closed);
        }
        self.post_again(front, body, delivery);
        let Lane { transport, requests, .. } = &mut self.current;
        let slot = transport.post_parts(front, body, delivery)?;
        requests.begin(slot);
        Ok(requests.outer(slot))
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
            if lane.requests.end(slot) {
                lane.transport.abandon(slot);
            }
        }
    }

    fn is_unused(&self) -> bool {
        self.current.is_unused() && self.other.as_ref().is_none_or(|other| other.lane.is_unused())
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if self.is_opening && is_planted(Bug::BlockingOpening) {
            return self.attend(now, sink);
        }
        let progress = self.current.poll(now, sink);
        if now < self.next_look && !self.is_moving() {
            return progress;
        }
        progress.and(self.attend(now, sink))
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        let armed = self.current.transport.arm(waker);
        let other = match &mut self.other {
            None => Armed::ByWaker,
            // It can be left: the next poll does that.
            Some(Other { lane, is_kept: false }) if lane.is_unused() => Armed::No,
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
