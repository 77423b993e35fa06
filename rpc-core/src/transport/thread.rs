//! What the connections of one thread share.

use core::any::Any;
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A client's thread, for the connections that it dials: what one of them needs of the device and others can use as well,
/// they use together.
///
/// Give a clone to each of the thread's [`DialOptions`](super::DialOptions). A backend that connects queue pairs has nothing
/// to share; one of datagrams has a single queue pair for all connections of a thread, to whomever they lead. A NIC keeps
/// one context then instead of one for each, and a connection costs memory for its calls only.
///
/// The connections may be used by other threads too; then they get into each other's way, and one that another thread is
/// busy with has its turn later.
#[derive(Clone, Default)]
pub struct ClientThread {
    /// What is shared goes with the last connection that uses it.
    shared: Arc<Mutex<Vec<Weak<dyn ThreadShare>>>>,
}

/// What a thread's connections share.
pub trait ThreadShare: Any + Send + Sync {
    /// The connections have their turns now, one after the other: what they send may wait for one doorbell.
    fn begin_turn(&self) {}

    /// The turns are over, and everything leaves.
    fn end_turn(&self) {}
}

impl ClientThread {
    /// A thread that has no connections yet.
    pub fn new() -> ClientThread {
        ClientThread::default()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn ThreadShare>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives several of the thread's connections their turns, as one turn of the thread: what all of them send leaves
    /// under one doorbell when `turns` has ended, and what has come for any of them is looked for once.
    ///
    /// `turns` polls each connection that is to have a turn, and never blocks: what it started has not left yet.
    pub fn together<R>(&self, turns: impl FnOnce() -> R) -> R {
        /// Ends them also if one panics.
        struct Turns<'t>(&'t ClientThread);
        impl Drop for Turns<'_> {
            fn drop(&mut self) {
                self.0.lock().iter().filter_map(Weak::upgrade).for_each(|it| it.end_turn());
            }
        }
        self.lock().iter().filter_map(Weak::upgrade).for_each(|it| it.begin_turn());
        let _turns = Turns(self);
        turns()
    }

    /// For transports: what the thread's connections share of this type and `fits`; if there is none, it is made.
    pub fn share<T: ThreadShare, E>(
        &self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut shared = self.lock();
        shared.retain(|thing| thing.strong_count() > 0);
        let things = shared.iter().filter_map(Weak::upgrade);
        let mut things = things.filter_map(|thing| {
            let thing: Arc<dyn Any + Send + Sync> = thing;
            thing.downcast::<T>().ok()
        });
        if let Some(thing) = things.find(|thing| fits(thing)) {
            return Ok(thing);
        }
        let thing = Arc::new(make()?);
        let known: Arc<dyn ThreadShare> = thing.clone();
        shared.push(Arc::downgrade(&known));
        Ok(thing)
    }
}

impl fmt::Debug for ClientThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientThread").field("shared", &self.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug, PartialEq)]
    struct Number(u32);

    impl ThreadShare for Number {}

    #[derive(Default)]
    struct Turns(AtomicU32);

    impl ThreadShare for Turns {
        fn begin_turn(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn end_turn(&self) {
            self.0.fetch_add(10, Ordering::Relaxed);
        }
    }

    fn number(thread: &ClientThread, wanted: u32) -> Arc<Number> {
        thread.share(|it| *it == Number(wanted), || Ok::<_, ()>(Number(wanted))).expect("made")
    }

    #[test]
    fn what_fits_is_shared_as_long_as_somebody_uses_it() {
        let thread = ClientThread::new();
        let seven = number(&thread, 7);
        assert!(Arc::ptr_eq(&seven, &number(&thread.clone(), 7)));
        let eight = number(&thread, 8);
        assert!(!Arc::ptr_eq(&seven, &eight));
        let turns = thread.share(|_: &Turns| true, || Ok::<_, ()>(Turns::default()));
        assert_eq!(thread.lock().len(), 3);
        drop((seven, eight, turns));
        let made = core::cell::Cell::new(false);
        let again =
            thread.share(|_: &Number| true, || Ok::<_, ()>(Number(made.replace(true) as u32)));
        assert!(made.get() && again.is_ok());
        assert_eq!(thread.lock().len(), 1);
    }

    #[test]
    fn what_cannot_be_made_is_not_kept() {
        let thread = ClientThread::new();
        assert_eq!(thread.share(|_: &Number| true, || Err("no")).err(), Some("no"));
        assert_eq!(*number(&thread, 1), Number(1));
    }

    #[test]
    fn turns_begin_and_end_together() {
        let thread = ClientThread::new();
        let shared = thread.share(|_: &Turns| true, || Ok::<_, ()>(Turns::default()));
        let turns = shared.expect("made");
        let during = thread.together(|| turns.0.load(Ordering::Relaxed));
        assert_eq!((during, turns.0.load(Ordering::Relaxed)), (1, 11));
    }
}
