//! How often a peer asks for keys that do not exist. A NIC lets who guesses a key break a queue pair for each guess; asking a
//! control thread would cost nothing.

/// Keys that a peer may ask for in vain, for each of its queue pairs that was ever connected. A program that uses a key that has
/// gone breaks a queue pair, and so misses about once for each. Guesses of 32 bits need four thousand million.
const MISSES_PER_CONNECTION: u32 = 16;

/// The misses of one peer.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    left: u32,
    /// The last key that is of no region: it may be of a window.
    last: Option<u32>,
}

impl Guesses {
    /// One more of its queue pairs is connected.
    pub(super) fn note_connection(&mut self) {
        self.left = self.left.saturating_add(MISSES_PER_CONNECTION);
    }

    /// There is no region with this key for it. `false`: it has asked too often.
    pub(super) fn may_miss_region(&mut self, rkey: u32) -> bool {
        let may = self.may_miss();
        self.last = Some(rkey);
        may
    }

    /// There is no window with this key either.
    pub(super) fn may_miss_window(&mut self, rkey: u32) -> bool {
        // Counted when it was asked for as a region.
        self.last.take() == Some(rkey) || self.may_miss()
    }

    /// There is a window with this key: to ask for it as a region before was no miss.
    pub(super) fn note_window(&mut self, rkey: u32) {
        if self.last.take() == Some(rkey) {
            self.left = self.left.saturating_add(1);
        }
    }

    fn may_miss(&mut self) -> bool {
        if self.left == 0 {
            tracing::warn!("a peer asks for keys that do not exist, and is disconnected");
            return false;
        }
        self.left -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_connected_may_not_guess_at_all() {
        assert!(!Guesses::default().may_miss_region(1));
        assert!(!Guesses::default().may_miss_window(1));
    }

    #[test]
    fn keys_of_windows_are_asked_for_without_end_and_others_are_not() {
        let mut guesses = Guesses::default();
        guesses.note_connection();
        for key in 0..1000 {
            assert!(guesses.may_miss_region(key));
            guesses.note_window(key);
        }
        // Another window's key makes up for nothing.
        let missed = (0..1000).take_while(|key| {
            let may = guesses.may_miss_region(*key);
            guesses.note_window(key + 1);
            may
        });
        assert_eq!(missed.count(), MISSES_PER_CONNECTION as usize);
    }

    #[test]
    fn a_key_of_nothing_is_one_miss() {
        let mut guesses = Guesses::default();
        guesses.note_connection();
        let both = |key: &u32| guesses.may_miss_region(*key) && guesses.may_miss_window(*key);
        assert_eq!((0..1000).take_while(both).count(), MISSES_PER_CONNECTION as usize);
    }
}
