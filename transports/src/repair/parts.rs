//! A large message in parts: which have arrived, which to send or to ask for next. Pure.
//!
//! At most [`WINDOW`] parts of a message beyond the first missing one are under way, so a base and a mask say what has
//! arrived, and neither end keeps a list.
//!
//! Repair is selective. Go-back-N, which eRPC uses, was measured against it on the simulated rack at 1 % loss (one client,
//! 256 KiB at a time, ConnectX-5). It keeps 0.88 (requests) and 0.76 (responses) of the rate without loss, with 99.9 % of
//! the calls within 95 and 142 us. Selective repair keeps 0.95 and 0.91, within 54 and 65 us.

use std::ops::Range;

/// Parts beyond the first missing one that may be under way: the bits of a mask.
pub(crate) const WINDOW: u32 = 64;

/// A part that is missing while one this much later has arrived is likely lost (RFC 5681, section 3.2).
const OVERTAKEN_BY: u32 = 3;

/// Which missing parts were repaired already because later ones had arrived. Parts that are lost again are found by those
/// that arrive after their repair, or by a timeout.
#[derive(Debug, Clone, Copy, Default)]
struct Repair {
    /// Of those after the base.
    done: u64,
    /// Parts from here on were sent, or asked for, after the latest repair.
    until: u32,
}

impl Repair {
    /// The base has moved on.
    fn shift(&mut self, moved: u32) {
        self.done = self.done.checked_shr(moved).unwrap_or(0);
    }

    /// Which parts are to be repaired, if these have arrived and those before `next` were sent.
    fn find(&mut self, base: u32, arrived: u64, next: u32) -> u64 {
        let end = base + (WINDOW - arrived.leading_zeros());
        if end > self.until.saturating_add(OVERTAKEN_BY) {
            self.done = 0;
        }
        let lost = bits(base, end.saturating_sub(OVERTAKEN_BY)) & !arrived & !self.done;
        if lost != 0 {
            self.done |= lost;
            self.until = next;
        }
        lost
    }
}

/// The parts of a message. Both ends know them from the message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    len: usize,
    part: usize,
    count: u32,
}

impl Parts {
    /// The parts, of `part` bytes each, of a message of `len`; `None` if there are none, or more than can be numbered.
    pub(crate) fn new(len: u64, part: usize) -> Option<Parts> {
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        let count = u32::try_from(len.div_ceil(part)).ok().filter(|n| *n < u32::MAX - WINDOW)?;
        Some(Parts { len, part, count })
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Where the part of this number lies.
    pub(crate) fn range(&self, number: u32) -> Option<Range<usize>> {
        let start = (number < self.count).then(|| number as usize * self.part)?;
        Some(start..(start + self.part).min(self.len))
    }
}

/// The bits of the parts from `base` to `end`.
fn bits(base: u32, end: u32) -> u64 {
    match end.saturating_sub(base) {
        0 => 0,
        count if count >= WINDOW => u64::MAX,
        count => (1 << count) - 1,
    }
}

/// What has arrived of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    parts: Parts,
    /// The first part that is missing.
    base: u32,
    /// Which of those after it have arrived. The lowest bit is never set.
    arrived: u64,
}

impl Incoming {
    pub(crate) fn new(parts: Parts) -> Incoming {
        Incoming { parts, base: 0, arrived: 0 }
    }

    /// Where to put a part of `len` bytes; `None` if it arrived before, is outside of the window, or has the wrong length.
    pub(crate) fn take(&mut self, number: u32, len: usize) -> Option<Range<usize>> {
        let ahead = number.checked_sub(self.base).filter(|ahead| *ahead < WINDOW)?;
        let range = self.parts.range(number).filter(|range| range.len() == len)?;
        if self.arrived >> ahead & 1 == 1 {
            return None;
        }
        self.arrived |= 1 << ahead;
        let run = self.arrived.trailing_ones();
        self.arrived = self.arrived.checked_shr(run).unwrap_or(0);
        self.base += run;
        Some(range)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.base == self.parts.count
    }

    /// The first part that is missing, and which of those after it have arrived.
    pub(crate) fn arrived(&self) -> (u32, u64) {
        (self.base, self.arrived)
    }
}

/// A message that is sent in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing {
    parts: Parts,
    /// All before have arrived.
    base: u32,
    /// Which of those after it have arrived.
    arrived: u64,
    /// Which of those after it are to be sent again.
    again: u64,
    /// The first that was never sent.
    next: u32,
    repair: Repair,
    /// After a timeout: the receiver's next message tells which of those sent are missing.
    asking: bool,
}

impl Outgoing {
    pub(crate) fn new(parts: Parts) -> Outgoing {
        Outgoing {
            parts,
            base: 0,
            arrived: 0,
            again: 0,
            next: 0,
            repair: Repair::default(),
            asking: false,
        }
    }

    /// Parts that were sent and not acknowledged.
    pub(crate) fn under_way(&self) -> u32 {
        self.next - self.base - self.arrived.count_ones()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.base == self.parts.count
    }

    /// The receiver says what has arrived. Tells whether that is new; `None` if it cannot be.
    pub(crate) fn acknowledge(&mut self, base: u32, arrived: u64) -> Option<bool> {
        if base > self.next || arrived & !bits(base, self.next) != 0 {
            return None;
        }
        if base < self.base {
            return Some(false); // Overtaken.
        }
        let moved = base - self.base;
        let before = self.arrived.checked_shr(moved).unwrap_or(0);
        let news = moved > 0 || arrived & !before != 0;
        self.base = base;
        self.arrived = before | arrived;
        self.repair.shift(moved);
        let mut lost = self.repair.find(base, self.arrived, self.next);
        if std::mem::take(&mut self.asking) {
            lost = bits(base, self.next);
        }
        self.again = (self.again.checked_shr(moved).unwrap_or(0) | lost) & !self.arrived;
        Some(news)
    }

    /// Whether this part has arrived.
    pub(crate) fn has_arrived(&self, number: u32) -> bool {
        number.checked_sub(self.base).is_none_or(|ahead| self.arrived >> ahead.min(63) & 1 == 1)
    }

    /// The part to send now, and where it lies in the message.
    pub(crate) fn next(&mut self) -> Option<(u32, Range<usize>)> {
        let number = if self.again != 0 {
            let ahead = self.again.trailing_zeros();
            self.again &= self.again - 1;
            self.base + ahead
        } else if self.next < self.parts.count && self.next - self.base < WINDOW {
            self.next += 1;
            self.next - 1
        } else {
            return None;
        };
        Some((number, self.parts.range(number)?))
    }

    /// The next part needs no credit: it is sent again.
    pub(crate) fn repeats(&self) -> bool {
        self.again != 0
    }

    /// The receiver was silent for a timeout: the first missing part is sent again, to learn about all of them.
    pub(crate) fn time_out(&mut self) {
        self.again = bits(self.base, self.next) & 1;
        self.asking = true;
    }
}

/// A message whose receiver asks for its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetch {
    incoming: Incoming,
    /// The first that was never asked for.
    asked: u32,
    repair: Repair,
    /// Which of those after `lost_base` are to be asked for again.
    lost: u64,
    lost_base: u32,
}

impl Fetch {
    pub(crate) fn new(parts: Parts) -> Fetch {
        Fetch {
            incoming: Incoming::new(parts),
            asked: 0,
            repair: Repair::default(),
            lost: 0,
            lost_base: 0,
        }
    }

    /// Where to put a part of `len` bytes; `None` if it is not expected.
    pub(crate) fn take(&mut self, number: u32, len: usize) -> Option<Range<usize>> {
        let (before, _) = self.incoming.arrived();
        let range = (number < self.asked).then(|| self.incoming.take(number, len)).flatten()?;
        let (base, arrived) = self.incoming.arrived();
        self.repair.shift(base - before);
        let lost = self.repair.find(base, arrived, self.asked);
        if lost != 0 {
            self.lost = self.lost.checked_shr(base - self.lost_base).unwrap_or(0) | lost;
            self.lost_base = base;
        }
        Some(range)
    }

    /// Asks again for parts that later ones have overtaken.
    pub(crate) fn ask_lost(&mut self) -> Option<(u32, u64)> {
        let lost = std::mem::take(&mut self.lost);
        if lost == 0 {
            return None;
        }
        let (base, arrived) = self.incoming.arrived();
        let wanted = lost.checked_shr(base - self.lost_base).unwrap_or(0) & !arrived;
        (wanted != 0).then_some((base, wanted))
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.lost != 0
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.incoming.is_whole()
    }

    /// All parts have been asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked == self.incoming.parts.count
    }

    /// Parts that were asked for and have not arrived.
    pub(crate) fn under_way(&self) -> u32 {
        let (base, arrived) = self.incoming.arrived();
        self.asked - base - arrived.count_ones()
    }

    /// Asks for more parts, at most `most`: a base and a mask.
    pub(crate) fn ask(&mut self, most: u32) -> Option<(u32, u64)> {
        let (base, _) = self.incoming.arrived();
        let end =
            (self.asked.saturating_add(most)).min(self.incoming.parts.count).min(base + WINDOW);
        let wanted = bits(base, end) & !bits(base, self.asked);
        self.asked = self.asked.max(end);
        (wanted != 0).then_some((base, wanted))
    }

    /// Asks again for what was asked for and has not arrived.
    pub(crate) fn ask_again(&self) -> Option<(u32, u64)> {
        let (base, arrived) = self.incoming.arrived();
        let wanted = bits(base, self.asked) & !arrived;
        (wanted != 0).then_some((base, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_of_a_message_have_no_gaps() {
        for len in 1..300 {
            let parts = Parts::new(len, 64).unwrap();
            let mut end = 0;
            for number in 0..parts.count() {
                let range = parts.range(number).unwrap();
                assert_eq!(range.start, end);
                end = range.end;
            }
            assert_eq!(end as u64, len);
            assert_eq!(parts.range(parts.count()), None);
        }
        assert_eq!(Parts::new(0, 64), None);
        assert_eq!(Parts::new(u64::MAX, 64), None);
    }

    #[test]
    fn a_part_is_taken_once() {
        let mut incoming = Incoming::new(Parts::new(200, 64).unwrap());
        assert_eq!(incoming.take(1, 64), Some(64..128));
        assert_eq!(incoming.take(1, 64), None);
        assert_eq!(incoming.take(3, 9), None, "the last one has 8 bytes");
        assert_eq!(incoming.take(3, 8), Some(192..200));
        assert_eq!(incoming.arrived(), (0, 0b1010));
        assert_eq!(incoming.take(0, 64), Some(0..64));
        assert_eq!(incoming.arrived(), (2, 0b10));
        assert_eq!(incoming.take(4, 8), None);
        assert_eq!(incoming.take(2, 64), Some(128..192));
        assert!(incoming.is_whole());
    }

    #[test]
    fn a_part_far_ahead_is_not_taken() {
        let mut incoming = Incoming::new(Parts::new(1000, 1).unwrap());
        assert_eq!(incoming.take(WINDOW, 1), None);
        for number in (0..WINDOW).rev() {
            assert!(incoming.take(number, 1).is_some());
        }
        assert_eq!(incoming.arrived(), (WINDOW, 0));
        assert!(incoming.take(WINDOW, 1).is_some());
    }

    #[test]
    fn impossible_progress_is_recognised() {
        let mut outgoing = Outgoing::new(Parts::new(1000, 1).unwrap());
        assert_eq!(outgoing.acknowledge(1, 0), None, "nothing was sent");
        for _ in 0..10 {
            outgoing.next().unwrap();
        }
        assert_eq!(outgoing.acknowledge(8, 0b100), None);
        assert_eq!(outgoing.acknowledge(8, 0b10), Some(true));
        assert_eq!(outgoing.acknowledge(8, 0b10), Some(false));
        assert_eq!(outgoing.acknowledge(7, 0), Some(false));
        assert_eq!(outgoing.under_way(), 1);
    }

    #[test]
    fn an_overtaken_part_is_sent_again_once() {
        let mut outgoing = Outgoing::new(Parts::new(1000, 1).unwrap());
        for _ in 0..10 {
            outgoing.next().unwrap();
        }
        assert_eq!(outgoing.acknowledge(0, 0b110), Some(true));
        assert!(!outgoing.repeats(), "two later parts may have overtaken it without a loss");
        assert_eq!(outgoing.acknowledge(0, 0b1110), Some(true));
        assert_eq!(outgoing.next(), Some((0, 0..1)));
        assert_eq!(outgoing.acknowledge(0, 0b11110), Some(true));
        assert!(!outgoing.repeats(), "it is under way again");
        assert_eq!(outgoing.acknowledge(0, 0b11_1101_1110), Some(true));
        assert_eq!(outgoing.next(), Some((5, 5..6)), "this one was not sent again");
        assert_eq!(outgoing.next(), Some((10, 10..11)));
        assert_eq!(outgoing.acknowledge(0, 0b111_1101_1110), Some(true));
        assert!(
            !outgoing.repeats(),
            "the parts that tell of a second loss were sent after the repair"
        );
        for _ in 0..3 {
            outgoing.next().unwrap();
        }
        assert_eq!(outgoing.acknowledge(0, 0b11_1111_1101_1110), Some(true));
        assert_eq!(outgoing.next(), Some((0, 0..1)), "its second copy was overtaken too");
    }

    #[test]
    fn an_overtaken_part_is_asked_for_again_once() {
        let mut fetch = Fetch::new(Parts::new(1000, 1).unwrap());
        assert_eq!(fetch.ask(10), Some((0, 0x3FF)));
        for number in [1, 2] {
            fetch.take(number, 1).unwrap();
            assert_eq!((fetch.has_lost(), fetch.ask_lost()), (false, None));
        }
        fetch.take(3, 1).unwrap();
        assert!(fetch.has_lost());
        assert_eq!(fetch.ask_lost(), Some((0, 1)));
        assert_eq!((fetch.has_lost(), fetch.ask_lost()), (false, None));
        fetch.take(4, 1).unwrap();
        assert_eq!(fetch.ask_lost(), None, "it is under way again");
        for number in [6, 7, 8] {
            fetch.take(number, 1).unwrap();
        }
        fetch.take(0, 1).unwrap();
        assert_eq!(
            fetch.ask_lost(),
            Some((5, 1)),
            "counted from the first one that is missing now"
        );
    }

    #[test]
    fn a_lost_part_that_arrives_before_it_is_asked_for_is_not_asked_for() {
        let mut fetch = Fetch::new(Parts::new(1000, 1).unwrap());
        fetch.ask(10);
        for number in [1, 3, 4, 5, 0] {
            fetch.take(number, 1).unwrap();
        }
        assert!(fetch.has_lost());
        fetch.take(2, 1).unwrap();
        assert_eq!(fetch.ask_lost(), None);
    }

    proptest! {
        /// Whatever the wire drops, doubles and reorders: in the end all of it has arrived, and no part twice.
        #[test]
        fn a_message_arrives_whole_over_a_bad_wire(len in 1u64..3000, fates: Vec<u8>) {
            let parts = Parts::new(len, 16).unwrap();
            let (mut outgoing, mut incoming) = (Outgoing::new(parts), Incoming::new(parts));
            let mut fates = fates.into_iter().chain(std::iter::repeat(0));
            let mut wire: Vec<(u32, Range<usize>)> = Vec::new();
            let (mut taken, mut turns) = (0, 0);
            while !outgoing.is_done() {
                turns += 1;
                prop_assert!(turns < 100_000);
                match outgoing.next() {
                    Some(part) => wire.push(part),
                    None if wire.is_empty() => outgoing.time_out(),
                    None => {}
                }
                let fate = fates.next().unwrap_or(0);
                if wire.is_empty() || fate & 3 == 1 {
                    continue;
                }
                let at = usize::from(fate >> 4) % wire.len();
                let (number, range) = if fate & 3 == 2 { wire[at].clone() } else { wire.swap_remove(at) };
                if fate & 3 == 3 {
                    continue;
                }
                if let Some(to) = incoming.take(number, range.len()) {
                    prop_assert_eq!(&to, &range);
                    taken += range.len() as u64;
                }
                let (base, arrived) = incoming.arrived();
                prop_assert!(outgoing.acknowledge(base, arrived).is_some());
            }
            prop_assert!(incoming.is_whole());
            prop_assert_eq!(taken, len);
        }

        /// The same where parts are asked for.
        #[test]
        fn a_message_is_fetched_whole_over_a_bad_wire(len in 1u64..3000, fates: Vec<u8>) {
            let mut fetch = Fetch::new(Parts::new(len, 16).unwrap());
            let parts = fetch.incoming.parts;
            let mut fates = fates.into_iter().chain(std::iter::repeat(0));
            let (mut wire, mut taken, mut turns) = (Vec::new(), 0, 0);
            prop_assert_eq!(fetch.take(0, 16.min(len as usize)), None, "nobody asked for it");
            while !fetch.incoming.is_whole() {
                turns += 1;
                prop_assert!(turns < 100_000);
                let ask = fetch.ask(8).or_else(|| wire.is_empty().then(|| fetch.ask_again()).flatten());
                if let Some((base, mask)) = ask {
                    let fate = fates.next().unwrap_or(0);
                    wire.extend((0..64).filter(|n| mask >> n & 1 == 1 && fate & 1 == 0).map(|n| base + n));
                }
                let fate = fates.next().unwrap_or(0);
                if wire.is_empty() {
                    continue;
                }
                let number = wire.swap_remove(usize::from(fate >> 4) % wire.len());
                if fate & 3 == 3 {
                    continue;
                }
                let range = parts.range(number).unwrap();
                taken += fetch.take(number, range.len()).map_or(0, |to| to.len() as u64);
                prop_assert!(fetch.under_way() <= WINDOW);
            }
            prop_assert_eq!((taken, fetch.under_way()), (len, 0));
        }

        #[test]
        fn any_progress_is_possible_or_not(base: u32, arrived: u64, sent in 0u32..100) {
            let mut outgoing = Outgoing::new(Parts::new(5000, 10).unwrap());
            for _ in 0..sent.min(WINDOW) {
                outgoing.next();
            }
            let possible = outgoing.acknowledge(base, arrived).is_some();
            prop_assert!(!possible || base <= sent);
            let _ = (outgoing.under_way(), outgoing.next());
        }
    }
}
