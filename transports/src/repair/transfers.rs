//! The client's large messages: requests that it sends in parts, responses whose parts it asks for.
//!
//! All that are under way take turns, part by part, so that none keeps the others waiting.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use farcall_core::time::Instant;
use farcall_verbs::{Buffer, ProtectionDomain};

use super::parts::{Fetch, Outgoing, Parts};
use super::window::LAST_COPY;
use crate::kit::by_slot::BySlot;
use crate::kit::memory::{Budget, Exposure, LargeBuffers};

/// One step, to be sent.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send these [`bytes`](Transfers::bytes) of the request.
    Part { slot: u32, number: u32, range: Range<usize> },
    /// Ask for these parts of the response.
    Ask { slot: u32, base: u32, mask: u64 },
}

/// A part whose round trip is measured: from sending it, or asking for it, until it is known to have arrived.
#[derive(Debug, Clone, Copy)]
struct Timing {
    slot: u32,
    part: u32,
    round: u8,
    sent_at: Instant,
}

#[derive(Debug)]
enum Large {
    /// A request that is filled, or waits until the server has room.
    Request(Buffer),
    Sending {
        whole: Buffer,
        outgoing: Outgoing,
    },
    /// A response for which there is no memory yet.
    Waiting {
        len: usize,
        parts: Parts,
    },
    Fetching {
        whole: Buffer,
        fetch: Fetch,
    },
}

/// What became of a part of a response.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It is not expected.
    No,
    Yes,
    /// It was the last one.
    Whole(Buffer),
}

#[derive(Debug)]
pub(crate) struct Transfers {
    requests: LargeBuffers,
    /// Separate, so that requests which wait for the server never hold what a response needs.
    responses: LargeBuffers,
    large: BySlot<Large>,
    /// Slots whose parts are under way, in turn.
    active: VecDeque<u32>,
    /// Slots that wait for memory.
    waiting: VecDeque<u32>,
    sending: u32,
    fetching: u32,
    timing: Option<Timing>,
    /// When the part was sent, or asked for, whose round trip has ended.
    timed: Option<Instant>,
    /// How many timeouts the parts of each slot had. Messages of a round are answered with its number, so that the answer to
    /// a first copy is not taken for that to a second (Karn).
    rounds: Box<[u8]>,
    credits: u32,
    part_bytes: usize,
}

impl Transfers {
    pub(crate) fn new(
        window: u32,
        pd: &ProtectionDomain,
        memory: u64,
        part_bytes: usize,
        credits: u32,
    ) -> Transfers {
        let half = || LargeBuffers::new(pd, Exposure::Private, &Budget::new(memory / 2));
        Transfers {
            requests: half(),
            responses: half(),
            large: BySlot::new(window),
            active: VecDeque::new(),
            waiting: VecDeque::new(),
            sending: 0,
            fetching: 0,
            timing: None,
            timed: None,
            rounds: vec![0; window as usize].into(),
            credits,
            part_bytes,
        }
    }

    /// Nothing is under way.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Some response waits for memory, which comes back without an event.
    pub(crate) fn wants_memory(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A whole response, for the program.
    pub(crate) fn hand_over(&self, response: Buffer) -> Bytes {
        self.responses.budget().hand_over(response)
    }

    /// Memory for a request of this slot, if there is some now.
    pub(crate) fn reserve(&mut self, slot: u32, len: usize) -> Option<&mut [u8]> {
        Parts::new(len as u64, self.part_bytes)?;
        let buffer = buffer(self.requests.take(len), len)?;
        match self.large.put(slot, Large::Request(buffer)) {
            Large::Request(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The length of the slot's request.
    pub(crate) fn request_len(&self, slot: u32) -> u64 {
        match self.large.get(slot) {
            Some(Large::Request(whole)) => whole.len() as u64,
            _ => 0,
        }
    }

    /// The server has room for the request: its parts may go.
    pub(crate) fn start(&mut self, slot: u32) {
        let Some(Large::Request(whole)) = self.large.take(slot) else { return };
        let Some(parts) = Parts::new(whole.len() as u64, self.part_bytes) else { return };
        self.large.put(slot, Large::Sending { whole, outgoing: Outgoing::new(parts) });
        self.sending += 1;
        self.active.push_back(slot);
    }

    /// The server says what has arrived. Tells whether that is new, and whether it is all; `None` if it cannot be.
    pub(crate) fn acknowledge(
        &mut self,
        slot: u32,
        round: u8,
        (base, arrived): (u32, u64),
    ) -> Option<(bool, bool)> {
        let Some(Large::Sending { outgoing, .. }) = self.large.get_mut(slot) else {
            return Some((false, false));
        };
        let news = outgoing.acknowledge(base, arrived)?;
        let done = outgoing.is_done();
        if let Some(timing) = self.timing.filter(|it| it.slot == slot)
            && outgoing.has_arrived(timing.part)
        {
            self.timing = None;
            self.timed = (timing.round == round).then_some(timing.sent_at);
        }
        if done {
            self.forget(slot);
        }
        Some((news, done))
    }

    /// When the round trip began that has ended since the last call.
    #[inline]
    pub(crate) fn finish_timing(&mut self) -> Option<Instant> {
        self.timed.take()
    }

    /// The round that the slot's parts are in.
    pub(crate) fn round(&self, slot: u32) -> u8 {
        self.rounds[slot as usize]
    }

    fn begin_timing(&mut self, slot: u32, part: u32, now: Instant) {
        if self.timing.is_none() {
            let round = self.round(slot);
            self.timing = Some(Timing { slot, part, round, sent_at: now });
        }
    }

    /// Something of the slot is sent again in the same round, or not expected any more.
    fn cancel_timing(&mut self, slot: u32) {
        self.timing = self.timing.filter(|it| it.slot != slot);
    }

    /// The server has not mentioned the slot's parts for a timeout.
    pub(crate) fn time_out(&mut self, slot: u32) {
        let round = &mut self.rounds[slot as usize];
        *round = (*round + 1) & LAST_COPY;
        if let Some(Large::Sending { outgoing, .. }) = self.large.get_mut(slot) {
            outgoing.time_out();
        }
    }

    /// The slot's response waits at the server; `false` if no message can have this length.
    pub(crate) fn lent(&mut self, slot: u32, len: u64) -> bool {
        let Some(parts) = Parts::new(len, self.part_bytes) else { return false };
        self.forget(slot);
        self.large.put(slot, Large::Waiting { len: len as usize, parts });
        self.waiting.push_back(slot);
        true
    }

    /// Gives memory to those that wait for it, in order.
    ///
    /// One response is always fetched, even beyond the budget: responses that arrived in another order than their caller
    /// takes them may hold all of it, and the caller waits for this one.
    fn admit(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            if let Some(&Large::Waiting { len, parts }) = self.large.get(slot) {
                let within = buffer(self.responses.take(len), len);
                let must = self.fetching == 0;
                let beyond =
                    || must.then(|| buffer(self.responses.take_beyond(len), len)).flatten();
                let Some(whole) = within.or_else(beyond) else { return };
                self.large.put(slot, Large::Fetching { whole, fetch: Fetch::new(parts) });
                self.fetching += 1;
                self.active.push_back(slot);
            }
            self.waiting.pop_front();
        }
    }

    /// A part of a response has arrived.
    pub(crate) fn take_part(&mut self, slot: u32, round: u8, number: u32, bytes: &[u8]) -> Taken {
        let Some(Large::Fetching { whole, fetch }) = self.large.get_mut(slot) else {
            return Taken::No;
        };
        let Some(range) = fetch.take(number, bytes.len()) else { return Taken::No };
        whole[range].copy_from_slice(bytes);
        if let Some(timing) = self.timing.filter(|it| (it.slot, it.part) == (slot, number)) {
            self.timing = None;
            self.timed = (timing.round == round).then_some(timing.sent_at);
        }
        if !fetch.is_whole() {
            return Taken::Yes;
        }
        self.leave(slot);
        match self.large.take(slot) {
            Some(Large::Fetching { whole, .. }) => Taken::Whole(whole),
            _ => Taken::No,
        }
    }

    /// The parts that were asked for and have not arrived.
    pub(crate) fn missing(&self, slot: u32) -> Option<(u32, u64)> {
        match self.large.get(slot) {
            Some(Large::Fetching { fetch, .. }) => fetch.ask_again(),
            _ => None,
        }
    }

    /// The next step of the slot whose turn it is, where at most `window` parts may be under way.
    pub(crate) fn step(&mut self, now: Instant, window: u32) -> Option<Step> {
        if !self.waiting.is_empty() {
            self.admit();
        }
        let credits = self.credits.min(window);
        let each = |count: u32| (credits / count.max(1)).max(1);
        let (sending, fetching) = (each(self.sending), each(self.fetching));
        for _ in 0..self.active.len() {
            let slot = self.active.pop_front()?;
            self.active.push_back(slot);
            match self.large.get_mut(slot) {
                Some(Large::Sending { outgoing, .. }) => {
                    let repeats = outgoing.repeats();
                    if !repeats && outgoing.under_way() >= sending {
                        continue;
                    }
                    let Some((number, range)) = outgoing.next() else { continue };
                    if repeats {
                        self.cancel_timing(slot);
                    } else {
                        self.begin_timing(slot, number, now);
                    }
                    return Some(Step::Part { slot, number, range });
                }
                Some(Large::Fetching { fetch, .. }) => {
                    if fetch.has_lost()
                        && let Some((base, mask)) = fetch.ask_lost()
                    {
                        self.cancel_timing(slot);
                        return Some(Step::Ask { slot, base, mask });
                    }
                    // Several parts are asked for at a time.
                    let under_way = fetch.under_way();
                    if fetch.is_asked() || under_way > fetching / 2 {
                        continue;
                    }
                    let Some((base, mask)) = fetch.ask(fetching - under_way) else { continue };
                    self.begin_timing(slot, base + mask.trailing_zeros(), now);
                    return Some(Step::Ask { slot, base, mask });
                }
                None | Some(Large::Request(_) | Large::Waiting { .. }) => {}
            }
        }
        None
    }

    /// Bytes of the slot's request.
    pub(crate) fn bytes(&self, slot: u32, range: Range<usize>) -> &[u8] {
        match self.large.get(slot) {
            Some(Large::Sending { whole, .. }) => &whole[range],
            _ => &[],
        }
    }

    /// Frees the slot's large message.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.leave(slot);
        self.cancel_timing(slot);
        self.large.take(slot);
    }

    /// Takes the slot out of all queues.
    fn leave(&mut self, slot: u32) {
        match self.large.get(slot) {
            None | Some(Large::Request(_)) => {}
            Some(Large::Waiting { .. }) => self.waiting.retain(|waiting| *waiting != slot),
            Some(Large::Sending { .. }) => {
                self.sending -= 1;
                self.active.retain(|active| *active != slot);
            }
            Some(Large::Fetching { .. }) => {
                self.fetching -= 1;
                self.active.retain(|active| *active != slot);
            }
        }
    }
}

/// No memory in the system is no memory in the budget: the caller tries again.
fn buffer(taken: Result<Option<Buffer>, farcall_verbs::VerbsError>, len: usize) -> Option<Buffer> {
    taken.unwrap_or_else(|error| {
        tracing::warn!(%error, len, "no memory for a large message");
        None
    })
}

#[cfg(test)]
mod tests {
    use farcall_verbs::Device;

    use super::*;

    /// Whatever the server says of it, late or wrongly.
    #[test]
    fn a_slot_without_a_large_message_takes_no_memory_for_one() {
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let mut transfers = Transfers::new(64, &pd, 1 << 20, 1024, 1);
        transfers.forget(63);
        transfers.start(63);
        transfers.time_out(63);
        assert_eq!(transfers.acknowledge(63, 0, (1, 0)), Some((false, false)));
        assert!(matches!(transfers.take_part(63, 0, 0, &[7]), Taken::No));
        assert!(transfers.large.takes_no_memory());
    }

    #[test]
    fn a_round_trip_ends_with_the_part_that_began_it_and_no_other() {
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let mut transfers = Transfers::new(2, &pd, 1 << 20, 1024, 8);
        let now = Instant::from_nanos(7);
        assert!(transfers.lent(1, 4 * 1024));
        assert!(matches!(transfers.step(now, 8), Some(Step::Ask { slot: 1, base: 0, .. })));
        assert!(matches!(transfers.take_part(1, 0, 1, &[1; 1024]), Taken::Yes));
        assert_eq!(transfers.finish_timing(), None, "another part");
        assert!(matches!(transfers.take_part(1, 0, 0, &[0; 1024]), Taken::Yes));
        assert_eq!(transfers.finish_timing(), Some(now));
    }
}
