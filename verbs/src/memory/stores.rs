//! Ordinary or streaming stores, whichever cost less here.
//!
//! An ordinary store fetches its line first. Where the reader of a large message has it in the cache of
//! another core complex, that fetch is some ten times as slow as streaming stores, which throw the line out
//! of every cache and write memory; where both cores share a cache, streaming only sends the reader to
//! memory. Which of the two it is can change while a program runs, whenever a thread or a virtual core
//! moves; so both are tried, and timed, again and again.

/// Copies shorter than this are not worth the choice.
pub(crate) const CHOICE_BYTES: usize = 32 << 10;

/// One copy in this many is made the other way, to see what that costs by now.
const TRY_EVERY: u32 = 256;

/// Streaming must cost less than this part of the other: what it costs the reader is not measured.
const STREAMING_GAIN: f32 = 0.5;

/// How a copy stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the caches.
    Ordinary,
    /// Past them, in no order until the copy's last word.
    Streaming,
}

/// What either kind of store cost lately.
#[derive(Debug, Default)]
pub(crate) struct StoreChoice {
    copies: u32,
    ordinary: Cost,
    streaming: Cost,
}

/// Nanoseconds per byte: the least lately seen, as what disturbs a copy only makes it longer.
#[derive(Debug, Default)]
struct Cost(Option<f32>);

impl Cost {
    fn took(&mut self, seen: f32) {
        self.0 = Some(match self.0 {
            Some(known) if seen > known => known + (seen - known) / 4.0,
            _ => seen,
        });
    }
}

impl StoreChoice {
    /// How the next copy should store.
    pub(crate) fn next(&mut self) -> Stores {
        self.copies = self.copies.wrapping_add(1);
        let (best, other) = match (self.ordinary.0, self.streaming.0) {
            (None, _) => return Stores::Ordinary,
            (_, None) => return Stores::Streaming,
            (Some(ordinary), Some(streaming)) if streaming < STREAMING_GAIN * ordinary => {
                (Stores::Streaming, Stores::Ordinary)
            }
            _ => (Stores::Ordinary, Stores::Streaming),
        };
        if self.copies.is_multiple_of(TRY_EVERY) { other } else { best }
    }

    /// Such a copy of `bytes`, not 0, took this long.
    pub(crate) fn took(&mut self, stores: Stores, bytes: usize, nanoseconds: u64) {
        let cost = match stores {
            Stores::Ordinary => &mut self.ordinary,
            Stores::Streaming => &mut self.streaming,
        };
        cost.took(nanoseconds as f32 / bytes as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes copies of 100 KB that cost this much, and counts those that streamed.
    fn streamed(choice: &mut StoreChoice, copies: u32, ordinary: u64, streaming: u64) -> u32 {
        let mut streamed = 0;
        for _ in 0..copies {
            let stores = choice.next();
            let took = match stores {
                Stores::Ordinary => ordinary,
                Stores::Streaming => streaming,
            };
            streamed += u32::from(stores == Stores::Streaming);
            choice.took(stores, 100_000, took);
        }
        streamed
    }

    #[test]
    fn the_cheaper_kind_is_found_and_found_again_when_costs_change() {
        let mut choice = StoreChoice::default();
        assert!(streamed(&mut choice, 2560, 3_000, 4_000) <= 11, "shared cache");
        streamed(&mut choice, 2560, 40_000, 4_000);
        assert!(streamed(&mut choice, 2560, 40_000, 4_000) >= 2549, "apart");
        streamed(&mut choice, 2560, 3_000, 4_000);
        assert!(streamed(&mut choice, 2560, 3_000, 4_000) <= 10, "together again");
    }

    #[test]
    fn a_copy_that_was_disturbed_once_decides_nothing() {
        let mut choice = StoreChoice::default();
        streamed(&mut choice, 100, 3_000, 4_000);
        choice.took(Stores::Ordinary, 100_000, 12_000);
        assert_eq!(choice.next(), Stores::Ordinary);
    }
}
