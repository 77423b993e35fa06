//! The words by which a context tells its peers about its regions: whether each is alive, and whether its
//! owner waits for a write into it. The records of [windows](super::window) follow them in the same file.
//!
//! The file behind them is sealed: only their owner can write them. A peer that writes into a region looks
//! at the region's word afterwards, and tells the owner if the word is armed. Neither side can miss the
//! other: the writer stores its bytes, fences, loads the word; the owner arms the word, fences, looks at the
//! memory. One of the two fences comes first, and what was stored before it is seen by the other side.

use super::sync::{AtomicU64, Ordering, fence};
use super::window::{WINDOW_SLOTS, WindowRecord};
use crate::memory::mapping::Mapping;

/// Slots of one context's file of region words; the first is not for a region.
pub(crate) const REGION_SLOTS: u32 = 1 << 16;

/// One region's word. The lower half is its generation, odd while the region lives; the upper half counts
/// arms and disarms, odd while it is armed.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct RegionWord(AtomicU64);

#[inline]
fn generation_of(word: u64) -> u32 {
    word as u32
}

#[inline]
fn arm_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn word_of(generation: u32, arm: u32) -> u64 {
    u64::from(generation) | u64::from(arm) << 32
}

/// The next odd number after this one.
fn next_odd(number: u32) -> u32 {
    number.wrapping_add(1) | 1
}

/// This number, if it is even, or the one after it.
fn next_even(number: u32) -> u32 {
    number.wrapping_add(1) & !1
}

impl RegionWord {
    #[cfg(test)]
    pub(super) fn new() -> RegionWord {
        RegionWord(AtomicU64::new(0))
    }

    /// A region begins in this slot: its generation. The slot is nobody else's.
    pub(crate) fn register(&self) -> u32 {
        let word = self.0.load(Ordering::Relaxed);
        let generation = next_odd(generation_of(word));
        self.0.store(word_of(generation, arm_of(word)), Ordering::Release);
        generation
    }

    /// The region of this slot is gone; nothing arms it any more.
    pub(crate) fn deregister(&self) {
        let gone = |word| Some(word_of(next_even(generation_of(word)), next_even(arm_of(word))));
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, gone);
    }

    /// Whether the region of this generation is alive.
    #[inline]
    pub(crate) fn is_alive(&self, generation: u32) -> bool {
        generation_of(self.0.load(Ordering::Acquire)) == generation
    }

    /// The generation of the region in this slot, if there is one.
    pub(crate) fn living(&self) -> Option<u32> {
        Some(generation_of(self.0.load(Ordering::Acquire))).filter(|generation| generation & 1 == 1)
    }

    /// Its owner waits for a write from now on: it is told of one whose bytes a look after this does not see.
    pub(crate) fn arm(&self) {
        let armed = |word| Some(word_of(generation_of(word), next_odd(arm_of(word))));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, armed);
        fence(Ordering::SeqCst);
    }

    /// Its owner waits no more. `true`: it did, in this generation.
    pub(crate) fn disarm(&self, generation: u32) -> bool {
        let disarmed = |word| {
            let armed = generation_of(word) == generation && arm_of(word) & 1 == 1;
            armed.then(|| word_of(generation, next_even(arm_of(word))))
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, disarmed).is_ok()
    }

    /// Whether an owner waits, of this generation or another; to be asked after a write and a sequentially
    /// consistent fence.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        arm_of(self.0.load(Ordering::Relaxed)) & 1 == 1
    }

    /// The arm under which the owner of this generation waits.
    pub(crate) fn armed(&self, generation: u32) -> Option<u32> {
        let word = self.0.load(Ordering::Relaxed);
        (arm_of(word) & 1 == 1 && generation_of(word) == generation).then_some(arm_of(word))
    }
}

/// A context's words, one per slot. The first counts deregistrations, so that peers know when to look through
/// what they have mapped.
#[derive(Debug)]
pub(crate) struct RegionWords {
    mapping: Mapping,
}

impl RegionWords {
    /// Bytes of the words, which the records of windows follow.
    const WORD_BYTES: usize = REGION_SLOTS as usize * size_of::<u64>();

    pub(crate) const BYTES: usize =
        Self::WORD_BYTES + WINDOW_SLOTS as usize * size_of::<WindowRecord>();

    /// `mapping` has [`RegionWords::BYTES`] bytes.
    pub(crate) fn new(mapping: Mapping) -> RegionWords {
        debug_assert!(mapping.len() >= Self::BYTES);
        RegionWords { mapping }
    }

    #[inline]
    pub(crate) fn word(&self, slot: u32) -> &RegionWord {
        let slot = slot.min(REGION_SLOTS - 1) as usize;
        // SAFETY: the mapping has REGION_SLOTS words, page-aligned, which only atomics touch.
        unsafe { &*self.mapping.start().cast::<RegionWord>().add(slot) }
    }

    /// The record of a window.
    pub(super) fn window(&self, slot: u32) -> &WindowRecord {
        let slot = slot.min(WINDOW_SLOTS - 1) as usize;
        // SAFETY: the records follow the words, at a multiple of a page. They consist of atomics.
        unsafe {
            let first = self.mapping.start().add(Self::WORD_BYTES).cast::<WindowRecord>();
            &*first.add(slot)
        }
    }

    /// Deregistrations so far, wrapping.
    #[inline]
    pub(crate) fn deregistrations(&self) -> u64 {
        self.word(0).0.load(Ordering::Acquire)
    }

    /// One more region is gone.
    pub(crate) fn count_deregistration(&self) {
        self.word(0).0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_is_another_generation() {
        let word = RegionWord(AtomicU64::new(0));
        let first = word.register();
        assert!(word.is_alive(first));
        word.arm();
        word.deregister();
        assert!(!word.is_alive(first));
        let second = word.register();
        assert!(word.is_alive(second) && !word.is_alive(first));
        assert_eq!(word.armed(second), None, "the arm of the region before");
    }

    #[test]
    fn each_arm_has_a_number_of_its_own() {
        let word = RegionWord(AtomicU64::new(0));
        let generation = word.register();
        assert_eq!(word.armed(generation), None);
        word.arm();
        let first = word.armed(generation);
        word.arm();
        let second = word.armed(generation);
        assert!(first.is_some() && second.is_some() && first != second);
        assert!(word.disarm(generation) && !word.disarm(generation));
        assert_eq!(word.armed(generation), None);
        assert!(word.is_alive(generation));
    }

    #[test]
    fn an_arm_belongs_to_its_generation() {
        let word = RegionWord(AtomicU64::new(0));
        let first = word.register();
        word.deregister();
        let second = word.register();
        word.arm();
        assert!(!word.disarm(first) && word.armed(first).is_none());
        assert!(word.disarm(second));
    }

    #[test]
    fn numbers_wrap_without_touching_each_other() {
        let word = RegionWord(AtomicU64::new(u64::MAX));
        word.deregister();
        let generation = word.register();
        assert_eq!((generation, word.armed(generation)), (1, None));
        word.arm();
        assert_eq!(word.armed(generation), Some(1));
    }
}

#[cfg(all(test, loom))]
mod ring_loom {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32};
    use loom::thread;

    /// A write meets an owner who arms: either the owner's look finds it, or its writer sees the arm.
    #[test]
    fn ring_a_write_is_seen_or_its_owner_is_told() {
        loom::model(|| {
            let word = Arc::new(RegionWord(AtomicU64::new(0)));
            let memory = Arc::new(AtomicU32::new(0));
            let told = Arc::new(AtomicBool::new(false));
            let generation = word.register();
            let writing = {
                let (word, memory, told) = (word.clone(), memory.clone(), told.clone());
                thread::spawn(move || {
                    memory.store(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                    told.store(word.armed(generation).is_some(), Ordering::Release);
                })
            };
            word.arm();
            let seen = memory.load(Ordering::Acquire) == 1;
            writing.join().unwrap();
            assert!(seen || told.load(Ordering::Acquire), "the write was missed");
        });
    }

    /// An owner that arms again while it is told of a write before is told of the next one too.
    #[test]
    fn ring_an_arm_taken_back_late_wakes_its_owner() {
        loom::model(|| {
            let word = Arc::new(RegionWord(AtomicU64::new(0)));
            let woken = Arc::new(AtomicBool::new(false));
            let generation = word.register();
            word.arm();
            let telling = {
                let (word, woken) = (word.clone(), woken.clone());
                thread::spawn(move || {
                    if word.disarm(generation) {
                        woken.store(true, Ordering::Release);
                    }
                })
            };
            word.arm();
            telling.join().unwrap();
            let armed = word.armed(generation).is_some();
            assert!(armed || woken.load(Ordering::Acquire), "asleep, and not armed");
        });
    }
}
