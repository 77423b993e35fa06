//! Small messages and large ones: which is which, and whether a connection has both.
//!
//! What is told apart are requests, whose length is known before they are sent. A short request with a long response goes with the
//! short ones: what a method has answered before would have to be looked up for each call.

use super::choice::Measured;

/// Requests of so many bytes are large. By default they have no room in a slot (4 KiB), and none in a packet either: backends send them by
/// rendezvous or in fragments, whatever they do with small ones.
pub(super) const LARGE_FROM_BYTES: usize = 4097;

/// A connection has both sizes if it has had answers of both in so many looks more than of one size alone.
const LOOKS_OF_BOTH: u32 = 8;

/// The size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Large,
}

/// What was measured of the calls of each size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BySize {
    pub(super) small: Measured,
    pub(super) large: Measured,
}

impl BySize {
    pub(super) fn of(&mut self, size: Size) -> &mut Measured {
        match size {
            Size::Small => &mut self.small,
            Size::Large => &mut self.large,
        }
    }

    pub(super) fn all(self) -> Measured {
        let mut all = self.small;
        all.add(self.large);
        all
    }
}

/// Whether a connection has messages of both sizes, with hysteresis.
#[derive(Debug, Default)]
pub(super) struct BothSizes {
    looks: u32,
    are_there: bool,
}

impl BothSizes {
    /// Notes what a look has shown. Whether there are both now.
    pub(super) fn note(&mut self, measured: BySize) -> bool {
        match (measured.small.answers, measured.large.answers) {
            (0, 0) => {}
            (0, _) | (_, 0) => self.looks = self.looks.saturating_sub(1),
            _ => self.looks = (self.looks + 1).min(LOOKS_OF_BOTH),
        }
        match self.looks {
            0 => self.are_there = false,
            LOOKS_OF_BOTH => self.are_there = true,
            _ => {}
        }
        self.are_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(small: u64, large: u64) -> BySize {
        let measured = |answers| Measured { answers, under_way_ns: 1000 * answers };
        BySize { small: measured(small), large: measured(large) }
    }

    #[test]
    fn both_sizes_are_there_after_some_looks_and_until_as_many_without() {
        let mut both = BothSizes::default();
        assert!((1..LOOKS_OF_BOTH).all(|_| !both.note(answers(90, 1))));
        assert!(both.note(answers(90, 1)));
        assert!((1..LOOKS_OF_BOTH).all(|_| both.note(answers(90, 0))));
        assert!((0..100).all(|_| both.note(answers(0, 0))), "a pause says nothing");
        assert!(!both.note(answers(90, 0)));
    }

    #[test]
    fn a_large_message_now_and_then_changes_nothing() {
        let mut both = BothSizes::default();
        for look in 0..1000 {
            assert!(!both.note(answers(90, u64::from(look % 3 == 0))));
        }
    }
}
