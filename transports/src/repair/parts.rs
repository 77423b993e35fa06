//! A long message in parts: which have come, which to send or to ask for next. Pure.
//!
//! Of a message at most [`WINDOW`] parts beyond the first missing one are under way, so that a base and a mask
//! say all of what has come, and neither end keeps a list.
//!
//! Repair is selective. Go-back-N, which eRPC has, was tried in its place, on the simulated rack at 1 % loss (one client, 256 KiB at
//! a time, ConnectX-5): of the rate without loss it left 0.88 of requests and 0.76 of responses, with 99.9 % of the calls within 95
//! and 142 us. Selective repair leaves 0.95 and 0.91, within 54 and 65 us.

use std::ops::Range;

/// Parts beyond the first missing one that may be under way: the bits of a mask.
pub(crate) const WINDOW: u32 = 64;

/// A part that is missing while one so much later has come is likely lost (RFC 5681, section 3.2).
const OVERTAKEN_BY: u32 = 3;

/// Which missing parts were repaired already, on the word of later ones. Those that are lost again are found by the parts that
/// came after their repair, or by time.
#[derive(Debug, Clone, Copy, Default)]
struct Repair {
    /// Of those after the base.
    done: u64,
    /// What was sent or asked for after the latest repair begins here.
    until: u32,
}

impl Repair {
    /// The base has moved on.
    fn shift(&mut self, moved: u32) {
        self.done = self.done.checked_shr(moved).unwrap_or(0);
    }

    /// Which parts are to be repaired, where these have come and those before `next` were sent.
    fn find(&mut self, base: u32, come: u64, next: u32) -> u64 {
        let end = base + (WINDOW - come.leading_zeros());
        if end > self.until.saturating_add(OVERTAKEN_BY) {
            self.done = 0;
        }
        let lost = bits(base, end.saturating_sub(OVERTAKEN_BY)) & !come & !self.done;
        if lost != 0 {
            self.done |= lost;
            self.until = next;
        }
        lost
    }
}

/// How a message is cut. Both ends know it from the message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    len: usize,
    part: usize,
    count: u32,
}

impl Cut {
    /// A message of `len` bytes in parts of `part`; `None` if it has none, or more than can be numbered.
    pub(crate) fn new(len: u64, part: usize) -> Option<Cut> {
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        let count = u32::try_from(len.div_ceil(part)).ok().filter(|n| *n < u32::MAX - WINDOW)?;
        Some(Cut { len, part, count })
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

/// What has come of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    cut: Cut,
    /// The first part that is missing.
    base: u32,
    /// Which of those after it have come. Its lowest bit is never set.
    come: u64,
}

impl Incoming {
    pub(crate) fn new(cut: Cut) -> Incoming {
        Incoming { cut, base: 0, come: 0 }
    }

    /// Where to put a part of so many bytes; `None` if it came before, is out of the window, or is of the
    /// wrong length.
    pub(crate) fn take(&mut self, number: u32, len: usize) -> Option<Range<usize>> {
        let ahead = number.checked_sub(self.base).filter(|ahead| *ahead < WINDOW)?;
        let range = self.cut.range(number).filter(|range| range.len() == len)?;
        if self.come >> ahead & 1 == 1 {
            return None;
        }
        self.come |= 1 << ahead;
        let run = self.come.trailing_ones();
        self.come = self.come.checked_shr(run).unwrap_or(0);
        self.base += run;
        Some(range)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.base == self.cut.count
    }

    /// The first part that is missing, and which of those after it have come.
    pub(crate) fn come(&self) -> (u32, u64) {
        (self.base, self.come)
    }
}

/// A message that is sent in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing {
    cut: Cut,
    /// All before have come.
    base: u32,
    /// Of those after it these have come.
    come: u64,
    /// Of those after it these are to be sent again.
    again: u64,
    /// The first that was never sent.
    next: u32,
    repair: Repair,
    /// After a timeout: what the receiver says next tells which of those sent are missing.
    asking: bool,
}

impl Outgoing {
    pub(crate) fn new(cut: Cut) -> Outgoing {
        Outgoing {
            cut,
            base: 0,
            come: 0,
            again: 0,
            next: 0,
            repair: Repair::default(),
            asking: false,
        }
    }

    /// Parts sent of which nobody has said that they came.
    pub(crate) fn under_way(&self) -> u32 {
        self.next - self.base - self.come.count_ones()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.base == self.cut.count
    }

    /// The receiver says what has come. Answers whether that is news; `None` if it cannot be.
    pub(crate) fn acknowledge(&mut self, base: u32, come: u64) -> Option<bool> {
        if base > self.next || come & !bits(base, self.next) != 0 {
            return None;
        }
        if base < self.base {
            return Some(false); // Overtaken.
        }
        let moved = base - self.base;
        let before = self.come.checked_shr(moved).unwrap_or(0);
        let news = moved > 0 || come & !before != 0;
        self.base = base;
        self.come = before | come;
        self.repair.shift(moved);
        let mut lost = self.repair.find(base, self.come, self.next);
        if std::mem::take(&mut self.asking) {
            lost = bits(base, self.next);
        }
        self.again = (self.again.checked_shr(moved).unwrap_or(0) | lost) & !self.come;
        Some(news)
    }

    /// Whether this part has come.
    pub(crate) fn has_come(&self, number: u32) -> bool {
        number.checked_sub(self.base).is_none_or(|ahead| self.come >> ahead.min(63) & 1 == 1)
    }

    /// The part to send now, and where it lies.
    pub(crate) fn next(&mut self) -> Option<(u32, Range<usize>)> {
        let number = if self.again != 0 {
            let ahead = self.again.trailing_zeros();
            self.again &= self.again - 1;
            self.base + ahead
        } else if self.next < self.cut.count && self.next - self.base < WINDOW {
            self.next += 1;
            self.next - 1
        } else {
            return None;
        };
        Some((number, self.cut.range(number)?))
    }

    /// The next part needs no credit: it is sent again.
    pub(crate) fn repeats(&self) -> bool {
        self.again != 0
    }

    /// Nothing was heard for long: the first part that is missing is sent again, to hear of all of them.
    pub(crate) fn timed_out(&mut self) {
        self.again = bits(self.base, self.next) & 1;
        self.asking = true;
    }
}

/// A message whose parts are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetch {
    incoming: Incoming,
    /// The first that was never asked for.
    asked: u32,
    repair: Repair,
    /// To be asked for again: of those after `lost_base`.
    lost: u64,
    lost_base: u32,
}

impl Fetch {
    pub(crate) fn new(cut: Cut) -> Fetch {
        Fetch {
            incoming: Incoming::new(cut),
            asked: 0,
            repair: Repair::default(),
            lost: 0,
            lost_base: 0,
        }
    }

    /// Where to put a part of so many bytes; `None` if it is not waited for.
    pub(crate) fn take(&mut self, number: u32, len: usize) -> Option<Range<usize>> {
        let (before, _) = self.incoming.come();
        let range = (number < self.asked).then(|| self.incoming.take(number, len)).flatten()?;
        let (base, come) = self.incoming.come();
        self.repair.shift(base - before);
        let lost = self.repair.find(base, come, self.asked);
        if lost != 0 {
            self.lost = self.lost.checked_shr(base - self.lost_base).unwrap_or(0) | lost;
            self.lost_base = base;
        }
        Some(range)
    }

    /// Asks again for what later parts have overtaken.
    pub(crate) fn ask_lost(&mut self) -> Option<(u32, u64)> {
        let lost = std::mem::take(&mut self.lost);
        if lost == 0 {
            return None;
        }
        let (base, come) = self.incoming.come();
        let wanted = lost.checked_shr(base - self.lost_base).unwrap_or(0) & !come;
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
        self.asked == self.incoming.cut.count
    }

    /// Parts asked for that have not come.
    pub(crate) fn under_way(&self) -> u32 {
        let (base, come) = self.incoming.come();
        self.asked - base - come.count_ones()
    }

    /// Asks for more parts, at most `most`: a base and a mask.
    pub(crate) fn ask(&mut self, most: u32) -> Option<(u32, u64)> {
        let (base, _) = self.incoming.come();
        let end = (self.asked.saturating_add(most)).min(self.incoming.cut.count).min(base + WINDOW);
        let wanted = bits(base, end) & !bits(base, self.asked);
        self.asked = self.asked.max(end);
        (wanted != 0).then_some((base, wanted))
    }

    /// Asks again for what was asked for and has not come.
    pub(crate) fn ask_again(&self) -> Option<(u32, u64)> {
        let (base, come) = self.incoming.come();
        let wanted = bits(base, self.asked) & !come;
        (wanted != 0).then_some((base, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_is_cut_without_gaps() {
        for len in 1..300 {
            let cut = Cut::new(len, 64).unwrap();
            let mut end = 0;
            for number in 0..cut.count() {
                let range = cut.range(number).unwrap();
                assert_eq!(range.start, end);
                end = range.end;
            }
            assert_eq!(end as u64, len);
            assert_eq!(cut.range(cut.count()), None);
        }
        assert_eq!(Cut::new(0, 64), None);
        assert_eq!(Cut::new(u64::MAX, 64), None);
    }

    #[test]
    fn a_part_is_taken_once() {
        let mut incoming = Incoming::new(Cut::new(200, 64).unwrap());
        assert_eq!(incoming.take(1, 64), Some(64..128));
        assert_eq!(incoming.take(1, 64), None);
        assert_eq!(incoming.take(3, 9), None, "the last one has 8 bytes");
        assert_eq!(incoming.take(3, 8), Some(192..200));
        assert_eq!(incoming.come(), (0, 0b1010));
        assert_eq!(incoming.take(0, 64), Some(0..64));
        assert_eq!(incoming.come(), (2, 0b10));
        assert_eq!(incoming.take(4, 8), None);
        assert_eq!(incoming.take(2, 64), Some(128..192));
        assert!(incoming.is_whole());
    }

    #[test]
    fn a_part_far_ahead_is_not_taken() {
        let mut incoming = Incoming::new(Cut::new(1000, 1).unwrap());
        assert_eq!(incoming.take(WINDOW, 1), None);
        for number in (0..WINDOW).rev() {
            assert!(incoming.take(number, 1).is_some());
        }
        assert_eq!(incoming.come(), (WINDOW, 0));
        assert!(incoming.take(WINDOW, 1).is_some());
    }

    #[test]
    fn progress_that_cannot_be_is_known() {
        let mut outgoing = Outgoing::new(Cut::new(1000, 1).unwrap());
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

    proptest! {
        /// Whatever the wire drops, doubles and reorders: in the end all of it has come, and no part twice.
        #[test]
        fn a_message_comes_whole_over_a_bad_wire(len in 1u64..3000, fates: Vec<u8>) {
            let cut = Cut::new(len, 16).unwrap();
            let (mut outgoing, mut incoming) = (Outgoing::new(cut), Incoming::new(cut));
            let mut fates = fates.into_iter().chain(std::iter::repeat(0));
            let mut wire: Vec<(u32, Range<usize>)> = Vec::new();
            let (mut taken, mut turns) = (0, 0);
            while !outgoing.is_done() {
                turns += 1;
                prop_assert!(turns < 100_000);
                match outgoing.next() {
                    Some(part) => wire.push(part),
                    None if wire.is_empty() => outgoing.timed_out(),
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
                let (base, come) = incoming.come();
                prop_assert!(outgoing.acknowledge(base, come).is_some());
            }
            prop_assert!(incoming.is_whole());
            prop_assert_eq!(taken, len);
        }

        /// The same where parts are asked for.
        #[test]
        fn a_message_is_fetched_whole_over_a_bad_wire(len in 1u64..3000, fates: Vec<u8>) {
            let mut fetch = Fetch::new(Cut::new(len, 16).unwrap());
            let cut = fetch.incoming.cut;
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
                let range = cut.range(number).unwrap();
                taken += fetch.take(number, range.len()).map_or(0, |to| to.len() as u64);
                prop_assert!(fetch.under_way() <= WINDOW);
            }
            prop_assert_eq!((taken, fetch.under_way()), (len, 0));
        }

        #[test]
        fn any_progress_is_possible_or_not(base: u32, come: u64, sent in 0u32..100) {
            let mut outgoing = Outgoing::new(Cut::new(5000, 10).unwrap());
            for _ in 0..sent.min(WINDOW) {
                outgoing.next();
            }
            let possible = outgoing.acknowledge(base, come).is_some();
            prop_assert!(!possible || base <= sent);
            let _ = (outgoing.under_way(), outgoing.next());
        }
    }
}
