//! What a completion belongs to: the upper half of its `wr_id` names an attachment of its completion
//! queue, the lower half a place there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::queue_pair::QpShared;
use super::receive::ReceiveSlots;

/// Names an attachment. Not used twice before 2^32 others: what a queue pair that is gone has left in a
/// completion queue is never taken for another's, as it could be by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u32);

impl Key {
    pub(super) fn fresh() -> Key {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Key(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The `wr_id` of the work request at `place`.
    #[inline]
    pub(super) fn wr_id(self, place: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(place)
    }

    /// What a `wr_id` says.
    #[inline]
    pub(super) fn of(wr_id: u64) -> (Key, u32) {
        (Key((wr_id >> 32) as u32), wr_id as u32)
    }
}

/// Whose completions come to a queue.
#[derive(Clone, Debug)]
pub(super) enum Attached {
    /// Send work requests of a queue pair; places are their numbers, cut to 32 bits.
    Sends(Arc<QpShared>),
    /// Receives, of a queue pair or of a shared queue; places are their slots.
    Receives(Arc<ReceiveSlots>),
}

/// What the poller of a completion queue has to know.
#[derive(Debug)]
pub(super) enum Change {
    /// Completions with this key come from now on.
    Attach(Key, Attached),
    /// No more, and what is still there is of no interest.
    Detach(Key),
    /// A queue pair receives from a shared queue.
    Join(Arc<QpShared>),
    /// It does no more.
    Leave(u32),
}

/// The attachments of one completion queue, by key.
///
/// Keys count up, so that the low bits of those in use seldom meet: most attachments are found by these alone, which
/// takes a fifth of what a hash table takes. The others are in one.
#[derive(Debug)]
pub(super) struct Directory {
    /// At the place that a key's low bits name; a power of two of them.
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

    /// A key is inserted once.
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
    fn attachments_are_found_by_their_keys_wherever_they_lie() {
        let receives = || {
            let slots = ReceiveSlots::new(1, 1, Owner::Shared);
            (slots.key, Attached::Receives(Arc::new(slots)))
        };
        let of = |attached: Option<&Attached>| match attached {
            Some(Attached::Receives(slots)) => Some(slots.key),
            _ => None,
        };
        let mut directory = Directory::default();
        // Of each eight one stays, as of clients that come and go: keys in use meet in their low bits.
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
    fn a_wr_id_names_its_place() {
        let key = Key::fresh();
        assert_ne!(key, Key::fresh());
        for place in [0, 1, u32::MAX] {
            assert_eq!(Key::of(key.wr_id(place)), (key, place));
        }
    }
}
