//! Who drives: the state of one driver at a time is handed from thread to thread through one cell.
//!
//! A thread that wants the driver to see something leaves it first (a job in a queue, a flag), and then tries to take the
//! state. If it does not get it, another thread has it; that thread looks for what was left *after* it has put the state back. Both
//! are atomic exchanges of the same cell: a failed one comes before the next `put`, which therefore sees everything that was
//! left before it. No fence and no lock is needed, and nothing that was left is overlooked.

use crossbeam_utils::atomic::AtomicCell;

/// The state of a driver, while nobody drives.
pub(super) struct Baton<T, E = AtomicCell<Option<Box<T>>>> {
    at_rest: E,
    state: core::marker::PhantomData<fn(T) -> T>,
}

/// One atomic exchange, `AcqRel`. A model has its own.
pub(super) trait Exchange<T>: Default {
    fn exchange(&self, state: Option<Box<T>>) -> Option<Box<T>>;
}

impl<T> Exchange<T> for AtomicCell<Option<Box<T>>> {
    #[inline]
    fn exchange(&self, state: Option<Box<T>>) -> Option<Box<T>> {
        self.swap(state)
    }
}

impl<T, E: Exchange<T>> Baton<T, E> {
    /// Nobody gets it before it is [put](Self::put) here.
    pub(super) fn new() -> Self {
        Baton { at_rest: E::default(), state: core::marker::PhantomData }
    }

    /// The state; `None` while another thread has it.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<T>> {
        self.at_rest.exchange(None)
    }

    /// Puts it back. The caller then looks for what other threads have left meanwhile.
    #[inline]
    pub(super) fn put(&self, state: Box<T>) {
        let before = self.at_rest.exchange(Some(state));
        debug_assert!(before.is_none(), "there is one state");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_handed_over_without_a_lock() {
        assert!(AtomicCell::<Option<Box<u64>>>::is_lock_free());
    }

    #[test]
    fn one_thread_has_it_at_a_time() {
        let baton: Baton<u32> = Baton::new();
        assert!(baton.take().is_none(), "not put yet");
        baton.put(Box::new(0));
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

#[cfg(test)]
mod model;
