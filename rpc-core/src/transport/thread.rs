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
    shared: Arc<Mutex<Vec<Weak<dyn Any + Send + Sync>>>>,
}

impl ClientThread {
    /// A thread that has no connections yet.
    pub fn new() -> ClientThread {
        ClientThread::default()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Any + Send + Sync>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For transports: what the thread's connections share of this type and `fits`; if there is none, it is made.
    pub fn share<T: Any + Send + Sync, E>(
        &self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut shared = self.lock();
        shared.retain(|thing| thing.strong_count() > 0);
        let things = shared.iter().filter_map(Weak::upgrade);
        let mut things = things.filter_map(|thing| thing.downcast::<T>().ok());
        if let Some(thing) = things.find(|thing| fits(thing)) {
            return Ok(thing);
        }
        let thing = Arc::new(make()?);
        let known: Arc<dyn Any + Send + Sync> = thing.clone();
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

    fn number(thread: &ClientThread, wanted: u32) -> Arc<u32> {
        thread.share(|number| *number == wanted, || Ok::<_, ()>(wanted)).expect("made")
    }

    #[test]
    fn what_fits_is_shared_as_long_as_somebody_uses_it() {
        let thread = ClientThread::new();
        let seven = number(&thread, 7);
        assert!(Arc::ptr_eq(&seven, &number(&thread.clone(), 7)));
        let eight = number(&thread, 8);
        assert!(!Arc::ptr_eq(&seven, &eight));
        let words = thread.share(|_: &&str| true, || Ok::<_, ()>("a word")).expect("made");
        assert_eq!((*words, thread.lock().len()), ("a word", 3));
        drop((seven, eight, words));
        let made = core::cell::Cell::new(false);
        let again = thread.share(|_: &u32| true, || Ok::<_, ()>(made.replace(true) as u32));
        assert!(made.get() && again.is_ok());
        assert_eq!(thread.lock().len(), 1);
    }

    #[test]
    fn what_cannot_be_made_is_not_kept() {
        let thread = ClientThread::new();
        assert_eq!(thread.share(|_: &u32| true, || Err("no")), Err("no"));
        assert_eq!(*number(&thread, 1), 1);
    }
}
