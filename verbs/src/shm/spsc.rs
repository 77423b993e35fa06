//! A bounded single-producer, single-consumer queue inside this process. It carries posted receives from
//! the queue pair's owner to the owner of the completion queue.
//!
//! Many queue pairs post runs of receives, each of which is one entry. So a queue starts with a short ring, and moves to one with
//! room for all when that is full: the producer at once, the consumer when it has emptied the short one.

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use super::sync::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::Arc};
#[cfg(not(loom))]
use std::sync::Arc;

/// The standard cell with loom's interface.
#[cfg(not(loom))]
#[derive(Debug)]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A ring.
struct Shared<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Entries pushed so far, wrapping; written by the producer.
    tail: CachePadded<AtomicU32>,
    /// Entries popped so far, wrapping; written by the consumer.
    head: CachePadded<AtomicU32>,
    /// Not 0: the producer has moved to the next ring, and pushes nothing more here.
    has_moved: AtomicU32,
    /// That ring; written before `has_moved`, and then left alone until the consumer takes it.
    next: UnsafeCell<Option<Arc<Shared<T>>>>,
}

// SAFETY: the producer writes `next` before it sets `has_moved` (release), and the consumer takes it after it has seen that
// (acquire). The producer touches a slot while `tail - head` leaves it free, and the consumer once `tail`
// (release, acquire) has covered it; never both at the same time.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn new(count: usize) -> Arc<Shared<T>> {
        Arc::new(Shared {
            slots: (0..count).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
            tail: CachePadded::new(AtomicU32::new(0)),
            head: CachePadded::new(AtomicU32::new(0)),
            has_moved: AtomicU32::new(0),
            next: UnsafeCell::new(None),
        })
    }

    #[inline]
    fn slot(&self, position: u32) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut head, tail) =
            (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Acquire));
        while head != tail {
            // SAFETY: both sides are gone, and the slots from head to tail are filled.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// The pushing end.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: u32,
    /// The last `head` read; read again only when the queue seems full.
    head: u32,
    /// Entries of the ring to move to; 0 if this is the last one.
    larger: usize,
}

/// The popping end.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: u32,
    /// The last `tail` read; read again only when the queue seems empty.
    tail: u32,
}

/// Creates a queue with room for at least `capacity` entries.
pub(crate) fn queue<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.next_power_of_two();
    match capacity <= SHORT {
        true => queue_of(capacity, 0),
        false => queue_of(SHORT, capacity),
    }
}

/// Entries of the ring that a queue starts with; a power of two.
const SHORT: usize = 16;

fn queue_of<T>(first: usize, larger: usize) -> (Producer<T>, Consumer<T>) {
    let shared = Shared::new(first);
    let producer = Producer { shared: shared.clone(), tail: 0, head: 0, larger };
    (producer, Consumer { shared, head: 0, tail: 0 })
}

impl<T> Producer<T> {
    /// Pushes the entry.
    ///
    /// # Errors
    /// Returns the entry if the queue is full.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) -> Result<(), T> {
        if self.tail.wrapping_sub(self.head) as usize == self.shared.slots.len() {
            self.head = self.shared.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) as usize == self.shared.slots.len()
                && !self.move_on()
            {
                return Err(entry);
            }
        }
        // SAFETY: the slot is free: the consumer has moved `head` past it, and there is one producer.
        self.shared.slot(self.tail).with_mut(|slot| unsafe {
            (*slot).write(entry);
        });
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl<T> Producer<T> {
    /// Moves to the larger ring; `false` if this is the last one.
    #[cold]
    fn move_on(&mut self) -> bool {
        if self.larger == 0 {
            return false;
        }
        let next = Shared::new(std::mem::take(&mut self.larger));
        let last = std::mem::replace(&mut self.shared, next.clone());
        // SAFETY: the consumer looks at it after `has_moved`, which is set below, and there is one producer.
        last.next.with_mut(|place| unsafe { *place = Some(next) });
        last.has_moved.store(1, Ordering::Release);
        (self.tail, self.head) = (0, 0);
        true
    }
}

impl<T> Consumer<T> {
    /// Follows the producer to the next ring. `false`: it has not moved, or there are entries here.
    #[cold]
    fn move_on(&mut self) -> bool {
        if self.shared.has_moved.load(Ordering::Acquire) == 0 {
            return false;
        }
        // The producer has pushed all that it ever pushes here.
        self.tail = self.shared.tail.load(Ordering::Acquire);
        if self.head != self.tail {
            return true;
        }
        // SAFETY: the producer has written it before `has_moved`, and does not touch it again; there is one consumer.
        let next = self.shared.next.with_mut(|place| unsafe { (*place).take() });
        let Some(next) = next else { return false };
        (self.shared, self.head) = (next, 0);
        self.tail = self.shared.tail.load(Ordering::Acquire);
        self.head != self.tail
    }

    /// Pops the oldest entry.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            self.tail = self.shared.tail.load(Ordering::Acquire);
            if self.head == self.tail && !self.move_on() {
                return None;
            }
        }
        // SAFETY: the producer has filled this slot and moved `tail` past it; there is one consumer.
        let entry =
            self.shared.slot(self.head).with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        self.shared.head.store(self.head, Ordering::Release);
        Some(entry)
    }

    /// Calls `look` with the oldest entry, if it is known to exist without reading `tail`.
    #[inline]
    pub(crate) fn peek(&mut self, look: impl FnOnce(&T)) {
        if self.head != self.tail {
            // SAFETY: as in `pop`; the entry stays where it is.
            self.shared.slot(self.head).with_mut(|slot| look(unsafe { (*slot).assume_init_ref() }));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn it_behaves_as_a_bounded_queue(pushes in proptest::collection::vec(any::<bool>(), 0..400)) {
            let (mut producer, mut consumer) = queue(8);
            let mut model = VecDeque::new();
            for (i, push) in pushes.into_iter().enumerate() {
                if push {
                    prop_assert_eq!(producer.push(i).is_ok(), model.len() < 8);
                    if model.len() < 8 {
                        model.push_back(i);
                    }
                } else {
                    consumer.peek(|oldest| assert_eq!(Some(oldest), model.front()));
                    prop_assert_eq!(consumer.pop(), model.pop_front());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn entries_stay_in_order_when_it_moves_to_the_larger_ring(pushes in proptest::collection::vec(0..5u8, 0..400)) {
            let (mut producer, mut consumer) = queue(128);
            let mut model = VecDeque::new();
            for (i, what) in pushes.into_iter().enumerate() {
                if what < 3 && model.len() < 128 {
                    prop_assert_eq!(producer.push(i), Ok(()));
                    model.push_back(i);
                } else {
                    prop_assert_eq!(consumer.pop(), model.pop_front());
                }
            }
            prop_assert!(model.into_iter().all(|entry| consumer.pop() == Some(entry)));
            prop_assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn entries_of_both_rings_are_dropped_once() {
        let counted = Arc::new(());
        let (mut producer, consumer) = queue(64);
        (0..40).for_each(|_| producer.push(Arc::clone(&counted)).unwrap());
        assert_eq!(Arc::strong_count(&counted), 41);
        drop((producer, consumer));
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn unpopped_entries_are_dropped_once() {
        let counted = Arc::new(());
        let (mut producer, mut consumer) = queue(4);
        for _ in 0..3 {
            producer.push(Arc::clone(&counted)).unwrap();
        }
        drop(consumer.pop());
        drop((producer, consumer));
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}

#[cfg(all(test, loom))]
mod ring_loom {
    use super::*;

    #[test]
    fn ring_entries_arrive_in_order_and_whole_while_it_moves() {
        loom::model(|| {
            let (mut producer, mut consumer) = queue_of(1, 2);
            let pushing = loom::thread::spawn(move || {
                for i in 0..3u32 {
                    let mut entry = Box::new(i);
                    while let Err(back) = producer.push(entry) {
                        entry = back;
                        loom::thread::yield_now();
                    }
                }
            });
            for i in 0..3u32 {
                let entry = loop {
                    match consumer.pop() {
                        Some(entry) => break entry,
                        None => loom::thread::yield_now(),
                    }
                };
                assert_eq!(*entry, i);
            }
            pushing.join().unwrap();
        });
    }

    #[test]
    fn ring_entries_arrive_in_order_and_whole() {
        loom::model(|| {
            let (mut producer, mut consumer) = queue(2);
            let pushing = loom::thread::spawn(move || {
                for i in 0..3u32 {
                    let mut entry = Box::new(i);
                    while let Err(back) = producer.push(entry) {
                        entry = back;
                        loom::thread::yield_now();
                    }
                }
            });
            for i in 0..3u32 {
                let entry = loop {
                    match consumer.pop() {
                        Some(entry) => break entry,
                        None => loom::thread::yield_now(),
                    }
                };
                assert_eq!(*entry, i);
            }
            pushing.join().unwrap();
        });
    }
}
