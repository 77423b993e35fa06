//! Chooses between ordinary and streaming stores by measuring both.
//!
//! An ordinary store fetches its cache line first. If the reader of a large message has the line in the
//! cache of another core complex, that fetch is some ten times slower than streaming stores, which evict
//! the line from every cache and write to memory. If both cores share a cache, streaming only makes the
//! reader go to memory. The situation can change while a program runs, whenever a thread or a virtual core
//! moves, so both kinds are timed repeatedly.

/// Shorter copies always use ordinary stores.
pub(crate) const CHOICE_BYTES: usize = 32 << 10;

/// One copy in this many uses the other kind of store, to measure its current cost.
const TRY_EVERY: u32 = 256;

/// Streaming must cost less than this fraction of ordinary stores, because its cost to the reader is not
/// measured.
const STREAMING_GAIN: f32 = 0.5;

/// How a copy stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Stores through the caches.
    Ordinary,
    /// Non-temporal stores that bypass the caches. They are unordered until the copy's last word.
    Streaming,
}

/// The recent cost of each kind of store.
#[derive(Debug, Default)]
pub(crate) struct StoreChoice {
    copies: u32,
    ordinary: Cost,
    streaming: Cost,
}

/// Nanoseconds per byte. It keeps the recent minimum, because disturbances only make a copy slower.
#[derive(Debug, Default)]
struct Cost(Option<f32>);

impl Cost {
    fn record(&mut self, seen: f32) {
        self.0 = Some(match self.0 {
            Some(known) if seen > known => known + (seen - known) / 4.0,
            _ => seen,
        });
    }
}

impl StoreChoice {
    /// The kind of store for the next copy.
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

    /// Records how long a copy of `bytes` (not 0) took.
    pub(crate) fn record(&mut self, stores: Stores, bytes: usize, nanoseconds: u64) {
        let cost = match stores {
            Stores::Ordinary => &mut self.ordinary,
            Stores::Streaming => &mut self.streaming,
        };
        cost.record(nanoseconds as f32 / bytes as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates copies of 100 KB at these costs, and counts those that streamed.
    fn streamed(choice: &mut StoreChoice, copies: u32, ordinary: u64, streaming: u64) -> u32 {
        let mut streamed = 0;
        for _ in 0..copies {
            let stores = choice.next();
            let took = match stores {
                Stores::Ordinary => ordinary,
                Stores::Streaming => streaming,
            };
            streamed += u32::from(stores == Stores::Streaming);
            choice.record(stores, 100_000, took);
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
        choice.record(Stores::Ordinary, 100_000, 12_000);
        assert_eq!(choice.next(), Stores::Ordinary);
    }
}
