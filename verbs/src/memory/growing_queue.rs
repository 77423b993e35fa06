//! A bounded queue of many producers and consumers that takes little memory until it holds much.

use crossbeam_queue::ArrayQueue;
use std::sync::OnceLock;

/// Entries that it holds without growing.
const SMALL: usize = 16;

/// A bounded queue without locks. It starts with room for a few entries, and grows once, when there are more, to its capacity.
///
/// What one thread pushes is popped in that order, if one thread pops.
pub(crate) struct GrowingQueue<T> {
    small: ArrayQueue<T>,
    large: OnceLock<Box<ArrayQueue<T>>>,
    capacity: usize,
}

impl<T> GrowingQueue<T> {
    /// With room for `capacity` entries, which is at least 1, and possibly for a few more.
    pub(crate) fn new(capacity: usize) -> Self {
        GrowingQueue {
            small: ArrayQueue::new(capacity.min(SMALL)),
            large: OnceLock::new(),
            capacity,
        }
    }

    /// The large part, if it holds entries.
    #[inline]
    fn overflow(&self) -> Option<&ArrayQueue<T>> {
        self.large.get().filter(|large| !large.is_empty()).map(|large| &**large)
    }

    /// Appends the entry.
    ///
    /// # Errors
    /// Returns the entry if the queue is full.
    #[inline]
    pub(crate) fn push(&self, entry: T) -> Result<(), T> {
        // While the large part holds entries, it takes all: an earlier one of this thread may be among them.
        match self.overflow() {
            None => self.small.push(entry).or_else(|entry| self.push_large(entry)),
            Some(large) => large.push(entry),
        }
    }

    #[cold]
    fn push_large(&self, entry: T) -> Result<(), T> {
        if self.capacity <= SMALL {
            return Err(entry);
        }
        self.large.get_or_init(|| Box::new(ArrayQueue::new(self.capacity))).push(entry)
    }

    /// Takes the oldest entry.
    #[inline]
    pub(crate) fn pop(&self) -> Option<T> {
        // Looked at first: what a thread pushed into the small part before is there by now, and what it pushes from now on goes
        // into the large one.
        let overflow = self.overflow();
        self.small.pop().or_else(|| overflow?.pop())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.large.get().map_or(0, |large| large.len())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.overflow().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::thread;

    proptest! {
        #[test]
        fn it_is_a_queue(pushes in proptest::collection::vec(0..5u8, 0..300)) {
            let (queue, mut model) = (GrowingQueue::new(100), VecDeque::new());
            for (entry, what) in pushes.into_iter().enumerate() {
                // More pushes than pops, so that it grows in many cases.
                if what < 3 && model.len() < 100 {
                    prop_assert_eq!(queue.push(entry), Ok(()));
                    model.push_back(entry);
                } else {
                    prop_assert_eq!(queue.pop(), model.pop_front());
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn it_takes_its_capacity_and_refuses_more_in_the_end() {
        for capacity in [1, SMALL, SMALL + 1, 1000] {
            let queue = GrowingQueue::new(capacity);
            let taken = (0..).take_while(|entry| queue.push(*entry).is_ok()).count();
            assert!((capacity..=capacity + SMALL).contains(&taken), "{taken} of {capacity}");
            assert!((0..taken).all(|entry| queue.pop() == Some(entry)));
        }
    }

    #[test]
    fn it_does_not_grow_for_a_few_entries() {
        let queue = GrowingQueue::new(1000);
        for round in 0..1000 {
            (0..SMALL).for_each(|entry| queue.push(round + entry).unwrap());
            (0..SMALL).for_each(|entry| assert_eq!(queue.pop(), Some(round + entry)));
        }
        assert!(queue.large.get().is_none());
    }

    #[test]
    fn entries_of_one_thread_stay_in_order_while_others_push_and_it_is_popped() {
        const EACH: usize = 20_000;
        let queue = GrowingQueue::new(64);
        thread::scope(|scope| {
            for producer in 0..2 {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..EACH {
                        while queue.push((producer, number)).is_err() {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 2];
            while next != [EACH; 2] {
                match queue.pop() {
                    Some((producer, number)) => {
                        assert_eq!(number, next[producer]);
                        next[producer] += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
    }
}
