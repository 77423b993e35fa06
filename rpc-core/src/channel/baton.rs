//! Who drives: the state of one driver at a time is handed from thread to thread through one cell.
//!
//! A thread that wants the driver to see something leaves it first (a job in a queue, a flag), and then tries to take the
//! state. If it does not get it, another thread has it; that thread looks for what was left *after* it has put the state back. Both
//! are atomic exchanges of the same cell: a failed one comes before the next `put`, which therefore sees everything that was
//! left before it. No fence and no lock is needed, and nothing that was left is overlooked.

#[cfg(not(all(test, loom)))]
use crossbeam_utils::atomic::AtomicCell;

/// The state of a driver, while nobody drives.
pub(super) struct Baton<T> {
    at_rest: AtomicCell<Option<Box<T>>>,
}

impl<T> Baton<T> {
    /// Nobody gets it before it is [put](Self::put) here.
    pub(super) fn new() -> Self {
        Baton { at_rest: AtomicCell::new(None) }
    }

    /// The state; `None` while another thread has it.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<T>> {
        self.at_rest.take()
    }

    /// Puts it back. The caller then looks for what other threads have left meanwhile.
    #[inline]
    pub(super) fn put(&self, state: Box<T>) {
        let before = self.at_rest.swap(Some(state));
        debug_assert!(before.is_none(), "there is one state");
    }
}

#[cfg(all(test, loom))]
use in_loom::AtomicCell;

/// crossbeam's cell of a pointer as loom sees it: exchanges with `AcqRel` of one word.
#[cfg(all(test, loom))]
mod in_loom {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use std::collections::HashMap;
    use std::sync::Mutex;

    /// The word is the value's number, 0 for none. The mutex is the standard library's: loom sees no ordering by it.
    pub(super) struct AtomicCell<V> {
        number: AtomicUsize,
        values: Mutex<HashMap<usize, V>>,
    }

    impl<T> AtomicCell<Option<Box<T>>> {
        pub(super) fn new(_: Option<Box<T>>) -> Self {
            AtomicCell { number: AtomicUsize::new(0), values: Mutex::default() }
        }

        pub(super) fn take(&self) -> Option<Box<T>> {
            self.swap(None)
        }

        pub(super) fn swap(&self, value: Option<Box<T>>) -> Option<Box<T>> {
            let number = value.as_ref().map_or(0, |state| &raw const **state as usize);
            if value.is_some() {
                self.values.lock().expect("no panic").insert(number, value);
            }
            match self.number.swap(number, Ordering::AcqRel) {
                0 => None,
                before => self.values.lock().expect("no panic").remove(&before).flatten(),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_handed_over_without_a_lock() {
        assert!(AtomicCell::<Option<Box<u64>>>::is_lock_free());
    }

    #[test]
    fn one_thread_has_it_at_a_time() {
        let baton = Baton::new();
        assert!(baton.take().is_none(), "not put yet");
        baton.put(Box::new(0_u32));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut turns = 0;
                    while turns < 1000 {
                        let Some(mut count) = baton.take() else {
                            std::thread::yield_now();
                            continue;
                        };
                        *count += 1;
                        turns += 1;
                        baton.put(count);
                    }
                });
            }
        });
        assert_eq!(baton.take().as_deref(), Some(&4000));
    }
}

#[cfg(all(test, loom))]
mod model;
