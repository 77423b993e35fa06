//! A slot map: a number refers to at most one entry at a time, and is not reused soon.

use std::collections::VecDeque;

use crate::memory::prefetch;

/// The low bits of a number are its index, the others count the uses of that index.
const INDEX_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << (32 - INDEX_BITS);

#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Free indices, the one that has been free for longest first.
    free: VecDeque<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { slots: Vec::new(), free: VecDeque::new() }
    }
}

impl<T> Slots<T> {
    /// Inserts an entry and returns its number; `None` if there are too many.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < 1 << INDEX_BITS => {
                self.slots.push(Slot { generation: 1, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        let number = slot.generation << INDEX_BITS | index;
        slot.value = Some(value);
        Some(number)
    }

    /// How many are in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(index_of(number))?;
        slot.value.as_ref().filter(|_| slot.generation == number >> INDEX_BITS)
    }

    /// Prefetches an entry that will be needed soon.
    #[inline]
    pub(super) fn fetch_ahead(&self, number: u32) {
        if let Some(slot) = self.slots.get(index_of(number)) {
            prefetch(slot);
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index_of(number))?;
        slot.value.as_mut().filter(|_| slot.generation == number >> INDEX_BITS)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        let slot = &mut self.slots[index_of(number)];
        // 0 is not a valid generation, so that small numbers are invalid.
        slot.generation = (slot.generation + 1) % GENERATIONS;
        slot.generation += u32::from(slot.generation == 0);
        self.free.push_back(index_of(number) as u32);
        slot.value.take()
    }

    /// The numbers in use, ordered by index.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some());
        used.map(|(index, slot)| slot.generation << INDEX_BITS | index as u32).collect()
    }
}

/// Prefetches all lines of a value.
#[inline]
pub(super) fn prefetch<T>(thing: &T) {
    let start = std::ptr::from_ref(thing).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(64) {
        prefetch::to_read(start.wrapping_add(offset));
    }
}

fn index_of(number: u32) -> usize {
    (number & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_does_not_refer_to_a_new_entry_at_its_index() {
        let mut slots = Slots::default();
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b').unwrap();
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.get(second), slots.numbers()), (Some(&'b'), vec![second]));
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn numbers_that_were_never_returned_refer_to_nothing() {
        let mut slots = Slots::default();
        slots.insert(());
        assert!((0..64).all(|number| slots.get(number).is_none()));
    }
}
