//! The owner of a completion. The upper half of a `wr_id` identifies an attachment of the completion queue,
//! the lower half is an index in it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::queue_pair::QpShared;
use super::receive::ReceiveSlots;

/// Identifies an attachment. A key is reused only after 2^32 others. Completions that a dropped queue pair
/// left behind are therefore never taken for another's, as could happen with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u32);

impl Key {
    pub(super) fn fresh() -> Key {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Key(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The `wr_id` of the work request at index `place`.
    #[inline]
    pub(super) fn wr_id(self, place: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(place)
    }

    /// The key and the index in a `wr_id`.
    #[inline]
    pub(super) fn of(wr_id: u64) -> (Key, u32) {
        (Key((wr_id >> 32) as u32), wr_id as u32)
    }
}

/// A source of completions.
#[derive(Clone, Debug)]
pub(super) enum Attached {
    /// Send work requests of a queue pair. Indices are their numbers, truncated to 32 bits.
    Sends(Arc<QpShared>),
    /// Receives of a queue pair or of a shared queue. Indices are their slots.
    Receives(Arc<ReceiveSlots>),
}

/// A change to the attachments of a completion queue, applied by its poller.
#[derive(Debug)]
pub(super) enum Change {
    /// Completions with this key may arrive from now on.
    Attach(Key, Attached),
    /// No more completions with this key are wanted.
    Detach(Key),
    /// A queue pair uses a shared receive queue.
    Join(Arc<QpShared>),
    /// A queue pair no longer uses a shared receive queue.
    Leave(u32),
}

/// The attachments of one completion queue, by key.
///
/// Keys count up, so the low bits of keys in use seldom collide. Most attachments are found by these bits
/// alone, in a fifth of the time of a hash table. The others are in a hash table.
#[derive(Debug)]
pub(super) struct Directory {
    /// Indexed by a key's low bits; its length is a power of two.
    by_low_bits: Vec<Option<(Key, Attached)>>,
    others: HashMap<Key, Attached, foldhash::fast::RandomState>,
}

impl Default for Directory {
    fn default() -> Self {
        Directory { by_low_bits: vec![None; 16], others: HashMap::default() }
    }
}

impl Directory {
    #[inline]
    fn place(&self, key: Key) -> usize {
        key.0 as usize & (self.by_low_bits.len() - 1)
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Attached> {
        match &self.by_low_bits[self.place(key)] {
            Some((found, attached)) if *found == key => Some(attached),
            _ => self.others.get(&key),
        }
    }

    /// Inserts an attachment. Each key is inserted only once.
    pub(super) fn insert(&mut self, key: Key, attached: Attached) {
        let place = self.place(key);
        if self.by_low_bits[place].is_none() {
            self.by_low_bits[place] = Some((key, attached));
            return;
        }
        self.others.insert(key, attached);
        if 4 * self.others.len() > self.by_low_bits.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let length = 2 * self.by_low_bits.len();
        let all = std::mem::replace(&mut self.by_low_bits, vec![None; length]);
        let others = std::mem::take(&mut self.others);
        for (key, attached) in all.into_iter().flatten().chain(others) {
            let place = self.place(key);
            match &mut self.by_low_bits[place] {
                free @ None => *free = Some((key, attached)),
                Some(_) => drop(self.others.insert(key, attached)),
            }
        }
    }

    pub(super) fn remove(&mut self, key: Key) {
        let place = self.place(key);
        match &mut self.by_low_bits[place] {
            Some((found, _)) if *found == key => self.by_low_bits[place] = None,
            _ => drop(self.others.remove(&key)),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Attached> {
        self.by_low_bits.iter().flatten().map(|(_, attached)| attached).chain(self.others.values())
    }
}

#[cfg(test)]
mod tests {
    use super::super::receive::Owner;
    use super::*;

    #[test]
    fn attachments_are_found_by_their_keys_wherever_they_are_stored() {
        let receives = || {
            let slots = ReceiveSlots::new(1, 1, Owner::Shared);
            (slots.key, Attached::Receives(Arc::new(slots)))
        };
        let of = |attached: Option<&Attached>| match attached {
            Some(Attached::Receives(slots)) => Some(slots.key),
            _ => None,
        };
        let mut directory = Directory::default();
        // Keep one of every eight, as when clients come and go: the low bits of keys in use collide.
        let mut kept = Vec::new();
        for count in 0..400 {
            let (key, attached) = receives();
            directory.insert(key, attached);
            assert_eq!(of(directory.get(key)), Some(key));
            match count % 8 {
                0 => kept.push(key),
                _ => {
                    directory.remove(key);
                    assert_eq!(of(directory.get(key)), None);
                }
            }
        }
        assert_eq!(directory.values().count(), kept.len());
        for key in kept {
            assert_eq!(of(directory.get(key)), Some(key));
            directory.remove(key);
        }
        assert_eq!(directory.values().count(), 0);
        assert!(directory.by_low_bits.len() <= 256, "{}", directory.by_low_bits.len());
    }

    #[test]
    fn a_wr_id_contains_its_index() {
        let key = Key::fresh();
        assert_ne!(key, Key::fresh());
        for place in [0, 1, u32::MAX] {
            assert_eq!(Key::of(key.wr_id(place)), (key, place));
        }
    }
}
