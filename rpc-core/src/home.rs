//! Which process something was made in: a forked child has none of its parent's threads and connections, although its memory says so.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Where nobody has said how processes differ: all are one.
static ONE: AtomicU64 = AtomicU64::new(1);

static WORD: OnceLock<&'static AtomicU64> = OnceLock::new();

/// Has clients and servers that are made from now on notice that their process was forked: `word` is never in a child what it was in its
/// parent. Only the first one counts.
pub fn tell_processes_by(word: &'static AtomicU64) {
    let _ = WORD.set(word);
}

/// A process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    word: &'static AtomicU64,
    number: u64,
}

impl Home {
    /// This process.
    pub(crate) fn here() -> Home {
        Home::by(WORD.get().copied().unwrap_or(&ONE))
    }

    pub(crate) fn by(word: &'static AtomicU64) -> Home {
        Home { word, number: word.load(Ordering::Relaxed) }
    }

    /// It is this process, and not a parent that forked it.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_left_when_the_word_changes() {
        static WORD_OF_TEST: AtomicU64 = AtomicU64::new(7);
        let home = Home::by(&WORD_OF_TEST);
        assert!(home.is_here());
        // As a fork does.
        WORD_OF_TEST.store(0, Ordering::Relaxed);
        assert!(!home.is_here());
        assert!(Home::here().is_here());
    }
}
