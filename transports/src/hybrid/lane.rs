//! One lane: a client's end of a backend, its part of the connection's slots, and what is measured of its calls.

use std::ops::Range;

use farcall_core::error::TransportFailure;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Message, ReplySink, SlotId, Usage, advice_in};

use super::meter::Meter;

/// A lane that was left ends when no caller has waited for a call of it for so long, although the server has not answered the calls that
/// were given up: it may never do that.
const LONGEST_UNAWAITED_NS: u64 = 1_000_000_000;

/// One lane of a connection.
pub(super) struct Lane {
    pub(super) transport: Box<dyn ClientTransport>,
    /// Which way it is.
    pub(super) way: usize,
    /// What the connection adds to the transport's slot: two lanes never have a slot in common.
    pub(super) offset: u32,
    pub(super) meter: Meter,
    /// The lane has ended.
    pub(super) over: Option<TransportFailure>,
    /// It was left, and since then no caller waits for a call of it.
    unawaited_since: Option<Instant>,
}

impl Lane {
    /// A lane of that way whose slots are numbered from `offset`.
    pub(super) fn new(transport: Box<dyn ClientTransport>, way: usize, offset: u32) -> Lane {
        let meter = Meter::new(transport.slots());
        Lane { transport, way, offset, meter, over: None, unawaited_since: None }
    }

    /// It was left, and may end now; or at which moment, unless something happens before.
    pub(super) fn may_end(&mut self, now: Instant) -> Result<(), PollAt> {
        let usage = self.transport.usage();
        if usage == Usage::Awaited {
            self.unawaited_since = None;
            return Err(PollAt::OnEvent);
        }
        let since = *self.unawaited_since.get_or_insert(now);
        let latest = since.saturating_add_nanos(LONGEST_UNAWAITED_NS);
        if usage == Usage::Unused || now >= latest { Ok(()) } else { Err(PollAt::At(latest)) }
    }

    /// The transport's name for a slot of the connection.
    #[inline]
    pub(super) fn inner(&self, slot: SlotId) -> SlotId {
        SlotId { index: slot.index - self.offset, ..slot }
    }

    /// The connection's slots that are this lane's.
    pub(super) fn slots(&self) -> Range<u32> {
        self.offset..self.offset + self.transport.slots()
    }

    /// Polls the transport, and measures the calls that end.
    pub(super) fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let Lane { transport, offset, meter, over, .. } = self;
        meter.begin_posted(now);
        transport.poll(now, &mut LaneSink { sink, meter, over, offset: *offset })
    }
}

/// Takes what one lane has for the connection.
struct LaneSink<'a> {
    sink: &'a mut dyn ReplySink,
    meter: &'a mut Meter,
    over: &'a mut Option<TransportFailure>,
    offset: u32,
}

impl LaneSink<'_> {
    /// The connection's name for a slot of the transport.
    fn outer(&self, slot: SlotId) -> SlotId {
        SlotId { index: slot.index + self.offset, ..slot }
    }
}

impl ReplySink for LaneSink<'_> {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        self.meter.end(slot);
        self.meter.advice = advice_in(&message);
        self.sink.reply(self.outer(slot), message);
    }

    #[cold]
    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        self.sink.failed(self.outer(slot), why);
    }

    #[cold]
    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        self.sink.lane_lost(slots.start + self.offset..slots.end + self.offset, why);
    }

    #[cold]
    fn closed(&mut self, why: TransportFailure) {
        self.over.get_or_insert(why);
    }
}
