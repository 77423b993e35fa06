//! Which process this is, and what there is once per process.
//!
//! A forked child has a copy of its parent's memory, and none of its threads. What a process has once (a thread for all devices, a table
//! of them) must therefore not be found by a child. The number is kept in a page that the kernel clears in each forked child
//! (`MADV_WIPEONFORK`): a process id would not do, because that of a child in another pid namespace may be its parent's, and reading it
//! is a system call.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::memory::mapping::PAGE_BYTES;
use crate::random;

/// The number of this process among all that talk to each other: 64 random bits, not 0. A forked child has another one.
///
/// Without random numbers it is the process's number on its machine.
pub(crate) fn number() -> u64 {
    let word = word();
    match word.load(Ordering::Relaxed) {
        0 => draw(word),
        number => number,
    }
}

/// A word that differs from one process to the next: in a forked child it is never what it was in the parent.
///
/// It costs a process that remembers it one comparison to know that it has not been forked since.
pub fn process_word() -> &'static AtomicU64 {
    number();
    word()
}

#[cold]
fn draw(word: &AtomicU64) -> u64 {
    let drawn = random::word().ok().filter(|number| *number != 0);
    let drawn = drawn.unwrap_or_else(|| std::process::id().into());
    match word.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn,
        Err(first) => first,
    }
}

/// The word that has the number, or 0 while the process has none.
#[inline]
fn word() -> &'static AtomicU64 {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
    let known = WORD.load(Ordering::Acquire);
    // SAFETY: it is null, or points to a word that `make` gave, which is never freed and only accessed by atomic operations.
    match unsafe { known.as_ref() } {
        Some(word) => word,
        None => make(&WORD),
    }
}

#[cold]
fn make(place: &AtomicPtr<AtomicU64>) -> &'static AtomicU64 {
    let made = wiped_on_fork().unwrap_or_else(|error| {
        // Linux has had this since 4.14, and shared memory needs more.
        tracing::warn!(%error, "forked children will not know that they are; do not use farcall in them");
        Box::into_raw(Box::default())
    });
    let made = match place.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // A page that is never used again: two threads were first.
        Err(first) => first,
    };
    // SAFETY: zeroed memory of at least a word's size and alignment, which is never freed.
    unsafe { &*made }
}

/// A zeroed word in a page that is zeroed again in each forked child.
fn wiped_on_fork() -> io::Result<*mut AtomicU64> {
    // SAFETY: a null hint lets the kernel choose a free range; nothing else refers to it.
    let page = unsafe {
        mmap_anonymous(
            null_mut(),
            PAGE_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    // SAFETY: advice on a page that we have just mapped.
    let advised = unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    if let Err(error) = advised {
        // SAFETY: nothing refers to the page yet.
        let _ = unsafe { munmap(page, PAGE_BYTES) };
        return Err(error);
    }
    Ok(page.cast())
}

/// A value that each process makes for itself when it first needs it. A forked child has its own, and leaves its parent's as it is:
/// to drop it could unmap, close or tell peers what the parent still needs, and its locks may be held by threads that are not there.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    /// The last process's, never freed.
    current: AtomicPtr<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    process: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// No process has a value yet.
    #[allow(clippy::new_without_default)] // It is for statics.
    pub const fn new() -> Self {
        PerProcess { current: AtomicPtr::new(null_mut()) }
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// The value of this process.
    pub fn get(&self) -> &T {
        let process = number();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: it is null, or was made from a box below, and is never freed. `T` is `Sync`.
            if let Some(entry) = unsafe { current.as_ref() }
                && entry.process == process
            {
                return &entry.value;
            }
            let made = Box::into_raw(Box::new(Entry { process, value: T::default() }));
            let exchanged =
                self.current.compare_exchange(current, made, Ordering::AcqRel, Ordering::Acquire);
            if exchanged.is_err() {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::Mutex;

    use super::*;

    /// What a forked child returns.
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only runs `work`, which takes no lock that another thread could hold, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            let is_right = work();
            // SAFETY: it ends the process at once.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        let mut status = 0;
        // SAFETY: it waits for a child of ours, and writes a status of ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_forked_child_has_another_number() {
        let (of_parent, word) = (number(), process_word());
        assert_ne!(of_parent, 0);
        assert_eq!(of_parent, number());
        let is_other = || word.load(Ordering::Relaxed) == 0 && ![0, of_parent].contains(&number());
        assert!(in_child(is_other));
        assert_eq!(word.load(Ordering::Relaxed), of_parent, "the child has its own");
    }

    #[test]
    fn a_forked_child_has_its_own_value_even_if_the_parents_is_locked() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        *VALUE.get().lock().unwrap() = 7;
        let held = VALUE.get().lock().unwrap();
        let has_own = || VALUE.get().try_lock().is_ok_and(|value| *value == 0);
        assert!(in_child(has_own));
        drop(held);
        assert_eq!(*VALUE.get().lock().unwrap(), 7);
        assert!(ptr::eq(VALUE.get(), VALUE.get()));
    }
}
