//! One lane: a client's end of a backend, the requests that are under way over it, and how long they take.

use farcall_core::error::TransportFailure;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Message, ReplySink, SlotId};

use super::choice::Measured;

/// A lane that was left ends after so long without anybody who waits for a call, although the server has not answered what was given up:
/// it may never do that.
const LONGEST_UNAWAITED_NS: u64 = 1_000_000_000;

/// One lane of a connection.
pub(super) struct Lane {
    pub(super) transport: Box<dyn ClientTransport>,
    /// Which way it is.
    pub(super) way: usize,
    pub(super) requests: Requests,
    /// It was left, and since then nobody waits for a call of it.
    unawaited_since: Option<Instant>,
}

/// The requests of one lane that are under way. Those that were given up are the transport's alone.
pub(super) struct Requests {
    /// By the transport's slot: the generation of the request.
    posted: Box<[Option<u32>]>,
    /// What the connection adds to the transport's slot: two lanes never have a slot in common.
    offset: u32,
    under_way: u32,
    measured: Measured,
    /// Until when calls were measured; `None`: there were none.
    measured_until: Option<Instant>,
    /// The lane has ended.
    pub(super) over: Option<TransportFailure>,
}

impl Lane {
    /// A lane of that way whose slots are numbered from `offset`.
    pub(super) fn new(transport: Box<dyn ClientTransport>, way: usize, offset: u32) -> Lane {
        let posted = vec![None; transport.slots() as usize].into();
        let measured = Measured::default();
        let requests =
            Requests { posted, offset, under_way: 0, measured, measured_until: None, over: None };
        Lane { transport, way, requests, unawaited_since: None }
    }

    /// The first of the connection's slots that are this lane's.
    pub(super) fn offset(&self) -> u32 {
        self.requests.offset
    }

    /// The transport's name for a slot of the connection.
    #[inline]
    pub(super) fn inner(&self, slot: SlotId) -> SlotId {
        SlotId { index: slot.index - self.requests.offset, ..slot }
    }

    #[inline]
    pub(super) fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let Lane { transport, requests, .. } = self;
        if requests.under_way > 0 {
            requests.measure(now);
        }
        transport.poll(now, &mut LaneSink { sink, requests })
    }

    /// It was left, and may end now; or at which moment, unless something happens before.
    pub(super) fn may_end(&mut self, now: Instant) -> Result<(), PollAt> {
        if self.requests.under_way > 0 {
            self.unawaited_since = None;
            return Err(PollAt::OnEvent);
        }
        let since = *self.unawaited_since.get_or_insert(now);
        let latest = since.saturating_add_nanos(LONGEST_UNAWAITED_NS);
        if self.transport.is_unused() || now >= latest { Ok(()) } else { Err(PollAt::At(latest)) }
    }

    /// It has no request of anybody's.
    pub(super) fn is_unused(&self) -> bool {
        self.requests.under_way == 0 && self.transport.is_unused()
    }
}

impl Requests {
    /// The connection's name for a slot of the transport.
    #[inline]
    pub(super) fn outer(&self, slot: SlotId) -> SlotId {
        SlotId { index: slot.index + self.offset, ..slot }
    }

    /// The request that is under way in this slot of the transport.
    pub(super) fn under_way_at(&self, index: u32) -> Option<SlotId> {
        let generation = self.posted.get(index as usize).copied().flatten()?;
        Some(SlotId { index, generation })
    }

    /// This request is under way.
    #[inline]
    pub(super) fn begin(&mut self, slot: SlotId) {
        if self.under_way == 0 {
            self.measured_until = None;
        }
        self.under_way += 1;
        self.posted[slot.index as usize] = Some(slot.generation);
    }

    /// This request is under way no more. `false`: it was not.
    #[inline]
    pub(super) fn end(&mut self, slot: SlotId) -> bool {
        let posted = self.posted.get_mut(slot.index as usize);
        let was_posted = posted.and_then(|it| it.take_if(|it| *it == slot.generation)).is_some();
        self.under_way -= u32::from(was_posted);
        was_posted
    }

    #[inline]
    fn measure(&mut self, now: Instant) {
        if let Some(until) = self.measured_until {
            let ns = now.as_nanos().saturating_sub(until.as_nanos());
            self.measured.under_way_ns += ns * u64::from(self.under_way);
        }
        self.measured_until = Some(now);
    }

    /// What was measured since this was last asked.
    pub(super) fn take_measured(&mut self) -> Measured {
        core::mem::take(&mut self.measured)
    }

    /// Ends all requests under way: their lane has ended, and the connection goes on.
    #[cold]
    pub(super) fn fail(&mut self, why: TransportFailure, sink: &mut dyn ReplySink) {
        for index in 0..self.posted.len() {
            if let Some(generation) = self.posted[index].take() {
                sink.failed(self.outer(SlotId { index: index as u32, generation }), why);
            }
        }
        self.under_way = 0;
    }
}

/// Takes what one lane has for the connection.
struct LaneSink<'a> {
    sink: &'a mut dyn ReplySink,
    requests: &'a mut Requests,
}

impl ReplySink for LaneSink<'_> {
    #[inline]
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        if self.requests.end(slot) {
            self.requests.measured.answers += 1;
            self.sink.reply(self.requests.outer(slot), message);
        }
    }

    #[cold]
    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        if self.requests.end(slot) {
            self.sink.failed(self.requests.outer(slot), why);
        }
    }

    #[cold]
    fn closed(&mut self, why: TransportFailure) {
        self.requests.over.get_or_insert(why);
    }
}
