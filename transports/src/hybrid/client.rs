//! The client's end: one transport for those above, and one to three lanes below.

use std::sync::Arc;
use std::task::Waker;

use farcall_core::error::ReserveError;
use farcall_core::metrics::MoveCounts;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{
    Armed, Body, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId, Usage,
};

use super::OpenLane;
use super::choice::Choice;
use super::lane::Lane;
use super::large::Large;
use super::pace::OF_CLIENT;
use super::sizes::{BothSizes, LARGE_FROM_BYTES, Size};
use crate::planted::{Bug, is_planted};

/// A connection that moves among backends.
///
/// A call ends on the lane on which it began: it runs at most once, and no move fails it. During a move there is one lane more, each with a
/// window of its own. The lane that was left ends when the server has nothing of it any more.
pub struct Hybrid {
    /// New calls take it: all, or the small ones if the large ones have a lane of their own.
    pub(super) current: Lane,
    pub(super) choice: Choice,
    /// Since there are calls of both sizes.
    pub(super) large: Option<Large>,
    pub(super) both: BothSizes,
    pub(super) other: Option<Other>,
    pub(super) opener: Box<dyn OpenLane>,
    /// A lane is being opened, for calls of that size.
    pub(super) opening: Option<Size>,
    /// Calls are measured until the next look; otherwise they pass as they are, until it.
    pub(super) measures: bool,
    /// So many answers end a look before its time, after a rest.
    pub(super) enough: u64,
    pub(super) next_look: Instant,
    /// Before then, calls and polls are those of the current lane: they are not measured, its slots have the connection's numbers, and there is no
    /// other lane. Zero: there may be, or it has another number.
    pub(super) quiet_until: Instant,
    /// Requests of so many bytes are looked at: they are measured apart, or have a lane of their own.
    pub(super) large_from: usize,
    /// There is another lane than the current one.
    pub(super) has_more_lanes: bool,
    pub(super) limits: Limits,
    /// More slots than any lane has: each lane's slots are numbered from another multiple of it.
    pub(super) stride: u32,
    pub(super) is_told: bool,
    pub(super) counts: Arc<MoveCounts>,
    pub(super) seed: u64,
}

/// The most lanes that a connection has: that of small calls, that of large ones, and one that is tried or was left.
const MOST_LANES: u32 = 3;

/// A lane that new calls do not take.
pub(super) struct Other {
    pub(super) lane: Lane,
    pub(super) kept: Kept,
    /// Whose calls took it.
    pub(super) of: Size,
}

/// How long a lane that new calls do not take is kept, so that they may take it again. It ends as soon as it can after that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is left.
    No,
    /// Until the trial is over.
    Trial,
    /// Until then: the server may take back its advice.
    Until(Instant),
}

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
            choice,
            large: None,
            both: BothSizes::default(),
            other: None,
            opener,
            opening: None,
            measures: true,
            enough: u64::MAX,
            next_look: Instant::ZERO,
            quiet_until: Instant::ZERO,
            large_from: LARGE_FROM_BYTES,
            has_more_lanes: false,
            limits,
            stride,
            is_told: false,
            counts: Arc::default(),
            seed,
        }
    }

    /// Counts its moves there.
    pub fn counting(self, counts: Arc<MoveCounts>) -> Hybrid {
        Hybrid { counts, ..self }
    }

    /// Calls pass to the current lane as they are: see `quiet_until`.
    #[inline(always)]
    fn is_quiet(&self) -> bool {
        self.quiet_until != Instant::ZERO
    }

    /// The lane that has this slot of the connection.
    #[inline]
    fn lane_of(&mut self, slot: SlotId) -> Option<&mut Lane> {
        let stride = self.stride;
        if slot.index.wrapping_sub(self.current.offset) < stride {
            return Some(&mut self.current);
        }
        self.more_lanes().find(|lane| slot.index.wrapping_sub(lane.offset) < stride)
    }

    /// The lanes besides the current one.
    pub(super) fn more_lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        let large = self.large.iter_mut().filter_map(|large| large.lane.as_mut());
        large.chain(self.other.iter_mut().map(|other| &mut other.lane))
    }

    /// Where the slots of one more lane are numbered from.
    pub(super) fn free_offset(&mut self) -> u32 {
        let (stride, current) = (self.stride, self.current.offset);
        let is_free = |offset: &u32| {
            *offset != current && self.more_lanes().all(|lane| lane.offset != *offset)
        };
        let free = (0..MOST_LANES).map(|lane| lane * stride).find(is_free);
        debug_assert!(free.is_some(), "there is a lane too many");
        free.unwrap_or(0)
    }

    /// The lane that new large calls take.
    fn large_lane(&mut self) -> &mut Lane {
        let own = self.large.as_mut().and_then(|large| large.lane.as_mut());
        own.unwrap_or(&mut self.current)
    }

    #[cold]
    fn reserve_large(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let measures = self.measures;
        let Lane { transport, meter, offset, .. } = self.large_lane();
        let (mut slot, bytes) = transport.reserve(len)?;
        if measures {
            meter.note_large(slot);
        }
        slot.index += *offset;
        Ok((slot, bytes))
    }

    #[cold]
    fn post_large_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        let measures = self.measures;
        let lane = self.large_lane();
        let mut slot = lane.transport.post_parts(front, body, delivery)?;
        if measures {
            lane.meter.note_large(slot);
            lane.meter.post(slot);
        }
        slot.index += lane.offset;
        Ok(slot)
    }

    /// Polls all lanes that new calls take, and does what else is to be done.
    #[inline(never)]
    fn poll_all(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if self.opening.is_some() && is_planted(Bug::BlockingOpening) {
            return self.attend(now, sink);
        }
        let mut progress = self.current.poll(now, sink);
        if let Some(Large { lane: Some(lane), .. }) = &mut self.large {
            progress = progress.and(lane.poll(now, sink));
        }
        if !self.is_to_look(now) && !self.is_moving() {
            return progress;
        }
        progress.and(self.attend(now, sink))
    }

    /// The time is over in which calls were to be measured, or were not.
    pub(super) fn is_to_look(&self, now: Instant) -> bool {
        now >= self.next_look || self.current.meter.answers() >= self.enough
    }

    #[cold]
    fn flush_more(&mut self) {
        self.more_lanes().for_each(|lane| lane.transport.flush());
    }
}

impl ClientTransport for Hybrid {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn slots(&self) -> u32 {
        MOST_LANES * self.stride
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if self.is_quiet() {
            return self.current.transport.reserve(len);
        }
        if len >= self.large_from {
            return self.reserve_large(len);
        }
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
        if self.is_quiet() {
            return self.current.transport.post(slot, delivery);
        }
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
        if self.is_quiet() {
            return self.current.transport.post_parts(front, body, delivery);
        }
        self.post_again(front, body, delivery);
        if front.len() + body.len() >= self.large_from {
            return self.post_large_parts(front, body, delivery);
        }
        let mut slot = self.current.transport.post_parts(front, body, delivery)?;
        if self.measures {
            self.current.meter.post(slot);
        }
        slot.index += self.current.offset;
        Ok(slot)
    }

    #[inline]
    fn flush(&mut self) {
        if self.has_more_lanes {
            self.flush_more();
        }
        self.current.transport.flush();
    }

    fn abandon(&mut self, slot: SlotId) {
        if let Some(lane) = self.lane_of(slot) {
            let slot = lane.inner(slot);
            lane.transport.abandon(slot);
        }
    }

    fn usage(&self) -> Usage {
        let large = self.large.iter().filter_map(|large| large.lane.as_ref());
        let more = large.chain(self.other.iter().map(|other| &other.lane));
        let usages = more.map(|lane| lane.transport.usage());
        usages.fold(self.current.transport.usage(), Usage::max)
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if now >= self.quiet_until {
            return self.poll_all(now, sink);
        }
        self.current.transport.poll(now, sink)
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        self.current.meter.sleep();
        self.more_lanes().for_each(|lane| lane.meter.sleep());
        let armed = self.current.transport.arm(waker);
        let large = match &mut self.large {
            Some(Large { lane: Some(lane), .. }) => lane.transport.arm(waker),
            _ => Armed::ByWaker,
        };
        let other = match &mut self.other {
            None => Armed::ByWaker,
            // It can be left: the next poll does that.
            Some(Other { lane, kept: Kept::No, .. }) if lane.transport.usage() == Usage::Unused => {
                Armed::No
            }
            Some(Other { lane, .. }) => lane.transport.arm(waker),
        };
        // What is being opened makes an event at the site.
        let opening = if self.opening.is_some() { Armed::AtSite } else { Armed::ByWaker };
        [large, other, opening].into_iter().fold(armed, |both, one| match (both, one) {
            (Armed::No, _) | (_, Armed::No) => Armed::No,
            (Armed::ByWaker, Armed::ByWaker) => Armed::ByWaker,
            _ => Armed::AtSite,
        })
    }

    fn disarm(&mut self) {
        self.current.transport.disarm();
        self.more_lanes().for_each(|lane| lane.transport.disarm());
    }

    fn close(&mut self, why: Closing) {
        self.current.transport.close(why);
        self.more_lanes().for_each(|lane| lane.transport.close(why));
    }
}
